#!/bin/sh
# format.sh write|check formats every source file, or says which are not.
# Files are what git knows, and what it would know after `git add`.
set -u

cd "$(dirname -- "$0")/.." || exit 1
mode=$1
failed=0

# shellcheck disable=SC2016 # the inner shell expands
# sources PATTERN... lists files, NUL-separated, leaving out the deleted.
sources() {
  git ls-files -z --cached --others --exclude-standard --deduplicate -- "$@" |
    xargs -0 -r sh -c 'for file; do [ ! -f "$file" ] || printf "%s\0" "$file"; done' sh
}

if [ "$mode" = write ]; then
  sources '*.go' | xargs -0 -r build/bin/gofumpt -l -w
  sources '*.[ch]' '*.cc' | xargs -0 -r clang-format -i
  tools/with-node.sh node_modules/.bin/oxfmt
  exit
fi

unformatted=$(sources '*.go' | xargs -0 -r build/bin/gofumpt -l) || failed=1
if [ -n "$unformatted" ]; then
  echo "gofumpt would change:"
  echo "$unformatted"
  failed=1
fi
sources '*.[ch]' '*.cc' | xargs -0 -r clang-format --dry-run -Werror || failed=1
tools/with-node.sh node_modules/.bin/oxfmt --check || failed=1

[ "$failed" = 0 ] || {
  echo "not formatted: run 'make fmt'" >&2
  exit 1
}
