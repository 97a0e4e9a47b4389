#!/bin/sh
# build-gotest.sh compiles the tests of every Go package into build/gotest, with
# the race detector, so that they can be run by a user who has neither Go nor its
# caches. build/gotest/packages lists what was built: binary, import path, folder.
#
# SBX_RACE=0 leaves the race detector out.
set -eu

cd "$(dirname -- "$0")/.."
root=$PWD
out=build/gotest
race=-race
[ "${SBX_RACE-1}" = 1 ] || race=

tools/build-tools.sh
mkdir -p "$out"
go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}} {{.Dir}}{{end}}' ./... |
  while read -r package dir; do
    echo "$(basename -- "$package").test $package ${dir#"$root"/}"
  done >"$out/packages.new"

# shellcheck disable=SC2046,SC2086 # words are packages and flags
go test -c $race -o "$out/" $(cut -d ' ' -f 2 "$out/packages.new")
mv "$out/packages.new" "$out/packages"
