#!/bin/sh
# with-node.sh COMMAND... runs a command with Node 24 or newer first on PATH and
# the headers that belong to it in npm_config_nodedir, where node-gyp looks.
#
# The machine's own Node is taken if it is new enough and its headers are there;
# otherwise the one of tools/node, which `make node` installs. Tells which by
# with-node.sh --which.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)

# usable_dir PREFIX: whether PREFIX holds a Node we can use, with headers.
usable_dir() {
  [ -f "$1/include/node/node_api.h" ] && [ -x "$1/bin/node" ] &&
    "$1/bin/node" -e 'process.exit(parseInt(process.versions.node) >= 24 ? 0 : 1)' 2>/dev/null
}

dir=
if own=$(command -v node); then
  own=$(dirname -- "$(dirname -- "$(readlink -f -- "$own")")")
  if usable_dir "$own"; then
    dir=$own
  fi
fi
if [ -z "$dir" ]; then
  for candidate in "$here"/node/node_modules/node-linux-*; do
    if usable_dir "$candidate"; then
      dir=$candidate
    fi
  done
fi
if [ -z "$dir" ]; then
  echo "Node 24 or newer, with its headers, is not here: run 'make node'" >&2
  exit 1
fi
if [ "${1-}" = --which ]; then
  echo "$dir"
  exit 0
fi

PATH=$dir/bin:$PATH
npm_config_nodedir=$dir
export PATH npm_config_nodedir
exec "$@"
