#!/bin/sh
# lint-go.sh runs every Go linter and says at the end which of them objected.
set -u

cd "$(dirname -- "$0")/.." || exit 1
bin=$PWD/build/bin
failed=

# step NAME COMMAND...
step() {
  name=$1
  shift
  "$@" || failed="$failed $name"
}

# forbid RULES FLAGS... reads one rule a line and looks through every package. A
# line that needs what a rule forbids says "//permit: why" at its end.
forbid() {
  rules=$1
  shift
  (
    flags=$*
    set --
    while IFS= read -r rule; do
      set -- "$@" "$rule"
    done <"$rules"
    # shellcheck disable=SC2086 # flags are words
    exec "$bin/forbidigo" -set_exit_status $flags "$@" -- ./...
  )
}

# A misplaced configuration would make depguard fall back to a default of its own.
[ -f .depguard.yaml ] || {
  echo ".depguard.yaml is missing" >&2
  exit 1
}

step vet go vet ./...
step staticcheck "$bin/staticcheck" ./...
step depguard "$bin/depguard" ./...
step forbidigo forbid tools/lint/forbidigo-all.txt
step forbidigo-shipped forbid tools/lint/forbidigo-shipped.txt -tests=false

# A name that says nothing collects what belongs nowhere.
step package-names sh -c '! go list ./... | grep -E "/(utils?|common|helpers?|base|manager|misc)$"'
# What is not imported must not be required, and what is must be pinned.
step go-mod-tidy go mod tidy -diff

[ -z "$failed" ] || {
  echo "Go lint:$failed" >&2
  exit 1
}
