#!/bin/sh
# run.sh [LIBRARY] builds misuse.c with the address and undefined-behaviour
# sanitizers and runs it against libsandbox.so, that of build/Release unless told.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
library=${1:-$here/../../build/Release/libsandbox.so}
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT

"${CC:-gcc}" -std=gnu17 -g -O1 -Wall -Wextra -Werror -fsanitize=address,undefined -fno-sanitize-recover=all \
  -o "$directory/misuse" "$here/misuse.c" -ldl -lpthread
# Memory that only Go's heap points to looks lost to the leak detector.
ASAN_OPTIONS=detect_leaks=0 "$directory/misuse" "$library"
