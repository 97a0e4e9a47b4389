#!/bin/sh
# run-tests.sh [go|node|soak]... runs the compiled Go tests and the node:test suites of
# the tree it lies in, as whoever calls it, and fails if any failed or none ran. The
# counts are printed at the end and kept in build/counts.
set -u

cd "$(dirname -- "$0")/.." || exit 1
mkdir -p build/counts
failed=

# total FILE: the number in it, or 0.
total() {
  cat "build/counts/$1" 2>/dev/null || echo 0
}

run_go() {
  rm -f build/counts/go
  # shellcheck disable=SC2016 # gotestsum's shell expands
  build/bin/gotestsum --format "${SBX_GOTEST_FORMAT:-pkgname}" --hide-summary=output \
    --post-run-command 'sh -c "echo $TESTS_TOTAL >build/counts/go"' \
    --raw-command -- tools/run-gotests.sh || failed="$failed go"
  [ "$(total go)" -gt 0 ] || failed="$failed go(none-ran)"
}

run_node() {
  rm -f build/counts/node.tap
  # One file at a time: they measure processes, descriptors and time.
  tools/with-node.sh node --test --test-concurrency=1 \
    --test-reporter=spec --test-reporter-destination=stdout \
    --test-reporter=tap --test-reporter-destination=build/counts/node.tap \
    'test/{unit,addon,contract}/**/*.test.{mjs,ts}' || failed="$failed node"
  sed -n 's/^# tests //p' build/counts/node.tap >build/counts/node
  [ "$(total node)" -gt 0 ] || failed="$failed node(none-ran)"
}

run_soak() {
  tools/with-node.sh node --expose-gc --max-semi-space-size=1 test/soak/run.mjs || failed="$failed soak"
}

[ $# -gt 0 ] || set -- go node
for suite in "$@"; do
  "run_$suite"
done
[ -z "$failed" ] || {
  echo "failed:$failed" >&2
  exit 1
}
