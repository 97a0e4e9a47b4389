#!/bin/sh
# test.sh [go|node|soak]... runs the tests of a built tree: once as whoever calls it,
# and, called by root, once more from a copy as an ordinary user without
# capabilities. Root alone would prove nothing about user namespaces, and a user
# alone nothing about ids.
set -u

cd "$(dirname -- "$0")/.." || exit 1
uid=12345
failed=

echo "== tests as $(id -un) (uid $(id -u))"
tools/run-tests.sh "$@" || failed="$(id -un)"
first="$(tail -qn 1 build/counts/go build/counts/node 2>/dev/null | paste -sd ' ')"

if [ "$(id -u)" != 0 ]; then
  echo "== started by a user: the pass as root is left out"
  [ -z "$failed" ] || exit 1
  exit 0
fi

# A folder that the user can reach, with nothing of root's above it.
copy=$(mktemp -d "${SBX_TEST_TMPDIR:-/tmp}/sbx-test.XXXXXX") || exit 1
trap 'rm -rf "$copy"' EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
chmod 0755 "$copy"
mkdir "$copy/tree" "$copy/home" "$copy/tmp"
# What the tests of this pass do not use is left behind; some of it is large.
tar -c --exclude=./.git --exclude=./tools/lint --exclude='./test/e2e' --exclude='./test/types' \
  --exclude='./build/*.tgz' --exclude=./build/artifacts --exclude=./build/counts --exclude=./build/eve \
  --exclude=./build/types --exclude=./build/Release/obj.target . | tar -x -C "$copy/tree" || exit 1
chown -R "$uid:$uid" "$copy/tree" "$copy/home" "$copy/tmp"

echo "== tests as uid $uid, without capabilities"
(
  cd "$copy/tree" || exit 1
  exec env -i PATH="$PATH" HOME="$copy/home" TMPDIR="$copy/tmp" LANG=C.UTF-8 \
    ${TERM+TERM="$TERM"} ${CI+CI="$CI"} ${SBX_TEST_REQUIRE+SBX_TEST_REQUIRE="$SBX_TEST_REQUIRE"} \
    ${SBX_GOTEST_FORMAT+SBX_GOTEST_FORMAT="$SBX_GOTEST_FORMAT"} \
    setpriv --reuid "$uid" --regid "$uid" --clear-groups --inh-caps=-all --bounding-set=-all \
    --no-new-privs tools/run-tests.sh "$@"
) || failed="$failed uid-$uid"

[ "$*" = soak ] || echo "== tests that ran, go and node: as root $first, as uid $uid" \
  "$(tail -qn 1 "$copy/tree/build/counts/go" "$copy/tree/build/counts/node" 2>/dev/null | paste -sd ' ')"
[ -z "$failed" ] || {
  echo "== failed as: $failed" >&2
  exit 1
}
