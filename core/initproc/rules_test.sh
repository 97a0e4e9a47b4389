#!/bin/sh
# Proves that each safety rule of init has a test that notices when it is broken:
# builds init with one rule switched off at a time, and expects the rule's test
# to fail with it, and all of them to pass with none switched off.
#
#   rules_test.sh [RUNS]     how often each; default 1
set -eu

here=$(cd "$(dirname "$0")" && pwd)
runs=${1:-1}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
arch=$(go env GOARCH)

cd "$here"
[ -e "image/bin/init-$arch.gz" ] || image/build.sh "$arch"
go test -c -o "$work/tests" .

wrong=0
# broken RULE TEST
broken() {
	INIT_LDFLAGS="-X github.com/evelandhq/sandbox-bwrap/core/initproc.broken=$1" \
		image/build.sh "$arch" "$work/init" -tags sbxbreak
	failed=0
	i=0
	while [ $i -lt "$runs" ]; do
		i=$((i + 1))
		SBX_TEST_INIT=$work/init "$work/tests" -test.timeout 120s -test.run "$2" >"$work/log" 2>&1 || failed=$((failed + 1))
	done
	echo "$1: $2 failed $failed of $runs times"
	if [ "$1" = none ]; then
		[ $failed -eq 0 ] || { cat "$work/log"; wrong=1; }
	elif [ $failed -ne "$runs" ]; then
		wrong=1
	elif [ -n "${SHOW:-}" ]; then
		grep -E -m 6 'Error:|Messages:|unexpected|expected|actual|bwrap:' "$work/log" || tail -n 5 "$work/log"
	fi
}

broken none TestRule
broken init1 TestRule1_MainThreadNeverBecomesACommand
broken init1b TestRule1_InitIsUndumpable
broken init2 TestRule2
broken init2b TestRule2
broken init2c TestRule2_NoSignalEndsInitWhileItStartsCommands
broken init3 TestRule3
broken init4 TestRule4_ThreadsAreThrownAway
broken init4b TestRule4_CommandsHaveNoPrivilege
broken init5 TestRule5
broken init6 TestRule6
broken init7 TestRule7
broken init8 TestRule8
exit $wrong
