#!/bin/sh
# fuzz.sh [FUZZTIME] runs every fuzz test for that long, one after another, and
# fails if any found something: the input that did lies under testdata/fuzz then.
set -u

cd "$(dirname -- "$0")/.." || exit 1
time=${1:-30s}
failed=
ran=0

for package in $(go list ./...); do
  for test in $(go test -list '^Fuzz' "$package" | grep '^Fuzz'); do
    echo "== $package $test for $time"
    # Two workers find what eight would, and leave the machine to others.
    # (Shortening what is new to it, and no failure, can take a worker a minute.)
    go test -fuzzminimizetime 2s -run '^$' -fuzz "^$test\$" -fuzztime "$time" -parallel 2 "$package" || failed="$failed $test"
    ran=$((ran + 1))
  done
done
[ "$ran" -gt 0 ] || failed=none-ran
[ -z "$failed" ] || {
  echo "failed: $failed" >&2
  exit 1
}
echo "$ran fuzz tests found nothing"
