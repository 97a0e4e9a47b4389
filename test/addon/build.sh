#!/bin/sh
# build.sh DIR [intact | N | NAME] builds what test/addon loads: the addon and the
# library with the exports that only tests have, in DIR. With the number of one of
# the five rules (src/addon.cc) that rule is broken, to see its test fail; 3.mask
# breaks the other half of rule 3.
set -eu

dir=$1
variant=${2:-intact}
root=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
nodedir=${npm_config_nodedir:?run this by tools/with-node.sh}
supervise=github.com/evelandhq/sandbox-bwrap/core/supervise

SBX_TAGS=sbxtest
SBX_LDFLAGS=
broken_cc=0
case $variant in
intact) ;;
1 | 2) broken_cc=$variant ;;
3) SBX_LDFLAGS="-X main.brokenRule=3 -X $supervise.broken=rule3.thread" ;;
3.mask) SBX_LDFLAGS="-X $supervise.broken=rule3.mask" ;;
4)
  broken_cc=4
  SBX_LDFLAGS="-X main.brokenRule=4"
  ;;
5) SBX_LDFLAGS="-X main.brokenRule=5" ;;
*)
  echo "build.sh: no such variant: $variant" >&2
  exit 1
  ;;
esac
if [ "$variant" != intact ]; then
  SBX_TAGS=$SBX_TAGS,sbxbreak
fi
export SBX_TAGS SBX_LDFLAGS

mkdir -p "$dir"
sh "$root/capi/build.sh" "$dir/libsandbox.so"
"${CXX:-g++}" -std=c++20 -O2 -Wall -Wextra -Werror -fno-exceptions -fvisibility=hidden -fPIC -shared -Wl,-z,nodelete \
  -DNAPI_VERSION=9 -DNAPI_DISABLE_CPP_EXCEPTIONS -DNODE_API_SWALLOW_UNTHROWABLE_EXCEPTIONS \
  -DNODE_GYP_MODULE_NAME=sandbox -DSBX_TEST_EXPORTS -DSBX_BREAK_RULE="$broken_cc" \
  -I"$nodedir/include/node" -I"$root/node_modules/node-addon-api" \
  "$root/src/addon.cc" -o "$dir/sandbox.node"
