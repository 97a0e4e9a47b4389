#!/bin/sh
# Proves that each rule of starting processes has a test that notices when it is
# broken: builds the tests with one rule switched off at a time, and expects the
# rule's test to fail with it, and all of them to pass with none switched off.
#
#   rules_test.sh [RUNS]     how often each; default 3
set -eu

here=$(cd "$(dirname "$0")" && pwd)
runs=${1:-3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
arch=$(go env GOARCH)

cd "$here"
[ -e "../initproc/image/bin/init-$arch.gz" ] || ../initproc/image/build.sh "$arch"

wrong=0
# broken RULE TEST
broken() {
	go test -c -tags sbxbreak -o "$work/tests" \
		-ldflags "-X github.com/evelandhq/sandbox-bwrap/core/supervise.broken=$1" .
	failed=0
	i=0
	while [ $i -lt "$runs" ]; do
		i=$((i + 1))
		"$work/tests" -test.timeout 120s -test.run "$2" >"$work/log" 2>&1 || failed=$((failed + 1))
	done
	echo "$1: $2 failed $failed of $runs times"
	expected=$runs
	[ "$1" != none ] || expected=0
	[ $failed -eq "$expected" ] || {
		cat "$work/log"
		wrong=1
	}
}

thread=TestLauncher_ChildOutlivesTheThreadThatAsked
clean=TestLauncher_ChildStartsClean
shown=TestStart_ShowsNothingToOtherUsers
broken none "$thread|$clean|$shown"
broken rule3.thread "$thread"
broken rule3.mask "$clean"
broken init3 "$shown"
exit $wrong
