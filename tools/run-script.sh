#!/bin/sh
# run-script.sh NAME SCRIPT runs a Node script, or says that this tree has none.
set -eu
if [ ! -f "$2" ]; then
  echo "$1: $2 is not in this tree" >&2
  exit 1
fi
exec node "$2"
