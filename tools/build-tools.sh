#!/bin/sh
# build-tools.sh builds the Go tools of tools/lint into build/bin, once per change
# of its go.mod. They are a module of their own, so that ours names only what is
# linked into the library.
set -eu

cd "$(dirname -- "$0")/.."
stamp=build/bin/.built

if [ -n "$(find "$stamp" -newer tools/lint/go.mod -newer tools/lint/go.sum 2>/dev/null)" ]; then
  exit 0
fi
echo "building the Go tools"
mkdir -p build/bin
out=$PWD/build/bin
# test2json is not among the tools that a Go release carries as a binary.
(cd tools/lint && go build -o "$out/" tool cmd/test2json)
touch "$stamp"
