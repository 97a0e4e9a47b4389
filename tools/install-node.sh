#!/bin/sh
# install-node.sh makes sure that with-node.sh finds a Node. It installs one from
# npm's per-platform packages, which carry the binary and the headers and need no
# install script, unless the machine's own Node is good enough.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
stamp=$here/node/node_modules/.package-lock.json

# fresh: what is installed is what the lock file names.
fresh() {
  [ -n "$(find "$stamp" -newer "$here/node/package-lock.json" 2>/dev/null)" ]
}

if { [ ! -e "$here/node/node_modules" ] || fresh; } && "$here/with-node.sh" true 2>/dev/null; then
  exit 0
fi
case $(uname -s)-$(uname -m) in
Linux-x86_64 | Linux-aarch64) ;;
*)
  echo "no Node for $(uname -s) $(uname -m) in tools/node: install Node 24 or newer, with headers, yourself" >&2
  exit 1
  ;;
esac
echo "installing Node 24 into tools/node"
cd "$here/node"
npm ci --ignore-scripts --no-fund --no-audit --loglevel=error
touch "$stamp"
"$here/with-node.sh" node -e 'console.log("node", process.version)'
