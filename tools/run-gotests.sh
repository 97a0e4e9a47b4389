#!/bin/sh
# run-gotests.sh runs the compiled Go tests one package after another, each in its
# own folder as go test does, and prints test2json's events, which gotestsum reads.
# It fails if a package did. Arguments go to every test binary.
set -u

cd "$(dirname -- "$0")/.." || exit 1
root=$PWD
status=0

while read -r binary package dir; do
  (
    cd "$dir" || exit 1
    # A pipe would hide the binary's exit status: test2json starts it itself.
    exec "$root/build/bin/test2json" -t -p "$package" \
      "$root/build/gotest/$binary" -test.v=test2json -test.timeout=5m -test.paniconexit0 "$@" </dev/null
  ) || status=1
done <build/gotest/packages
exit "$status"
