#!/bin/sh
# build.sh OUT [ARCH [COPIES]] builds libsandbox.so as OUT, for the machine's
# architecture or for ARCH (amd64, x64, arm64), and puts a copy of it into the
# directory COPIES. Another architecture than the machine's needs its C compiler,
# taken from CC or by its usual name.
#
# SBX_TAGS and SBX_LDFLAGS add build tags and linker flags; the tests of the
# boundary's rules use them, nothing that is shipped does.
set -eu

out=$1
copies=${3-}
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
host=$(go env GOHOSTARCH)
case ${2:-$host} in
x64 | amd64) arch=amd64 triple=x86_64-linux-gnu ;;
arm64) arch=arm64 triple=aarch64-linux-gnu ;;
*)
  echo "build.sh: no such architecture: $2" >&2
  exit 1
  ;;
esac
case $out in
/*) ;;
*) out=$PWD/$out ;;
esac
case $copies in
/* | '') ;;
*) copies=$PWD/$copies ;;
esac
if [ "$arch" != "$host" ]; then
  CC=${CC:-$triple-gcc}
  export CC
fi

cd "$root"
sh core/initproc/image/build.sh "$arch"
version=$(sed -n 's/^  "version": "\(.*\)",$/\1/p' package.json)
mkdir -p "$(dirname -- "$out")"

# asyncpreemptoff: Go would interrupt its threads with SIGURG, on whatever stack
# they are, and an application may have a handler for that. It cannot be set later:
# Go reads GODEBUG from the environment that the process was started with.
CGO_ENABLED=1 GOOS=linux GOARCH=$arch go build -buildmode=c-shared -trimpath -buildvcs=false \
  -tags "${SBX_TAGS-}" \
  -ldflags "-s -w -buildid= -X main.version=$version -X runtime.godebugDefault=asyncpreemptoff=1 ${SBX_LDFLAGS-}" \
  -o "$out" ./capi
# The header that cgo writes; ours is capi/sandbox.h.
rm -f "${out%.so}.h"
if [ -n "$copies" ]; then
  mkdir -p "$copies"
  cp "$out" "$copies/"
fi
