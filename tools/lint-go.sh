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

# forbid RULES TESTS PACKAGES... reads one rule a line and looks through the
# packages, with their tests or without. A line that needs what a rule forbids ends
# with "//permit:NAME why".
forbid() {
  rules=$1
  tests=$2
  packages=$3
  (
    set --
    while IFS= read -r rule; do
      set -- "$@" "$rule"
    done <"$rules"
    # shellcheck disable=SC2086 # packages are words
    found=$("$bin/forbidigo" -tests="$tests" "$@" -- $packages 2>&1)
    # What cgo generates is not ours.
    found=$(printf '%s' "$found" | grep -v '/go-build/') || exit 0
    printf '%s\n' "$found"
    exit 1
  )
}

# A misplaced configuration would make depguard fall back to a default of its own.
[ -f .depguard.yaml ] || {
  echo ".depguard.yaml is missing" >&2
  exit 1
}

step vet go vet ./...
# The rules that only a test's build can break.
step vet-tags go vet -tags sbxtest,sbxbreak ./...
step staticcheck "$bin/staticcheck" ./...
step depguard "$bin/depguard" -test=false ./...
step forbidigo forbid tools/lint/forbidigo-all.txt true ./...
# Process 1 of a sandbox is a process of its own: it may exit and fork.
step forbidigo-shipped forbid tools/lint/forbidigo-shipped.txt false \
  "$(go list ./... | grep -vE '/core/(initproc|internal/testkit)')"

# A name that says nothing collects what belongs nowhere.
step package-names sh -c '! go list ./... | grep -E "/(utils?|common|helpers?|base|manager|misc)$"'
# What is not imported must not be required, and what is must be pinned.
step go-mod-tidy go mod tidy -diff

[ -z "$failed" ] || {
  echo "Go lint:$failed" >&2
  exit 1
}
