#!/bin/sh
# lint-c.sh compiles our C and C++ with every warning an error, and keeps nothing.
# Run it under with-node.sh, which knows where Node's headers are.
set -eu

cd "$(dirname -- "$0")/.."
headers=${npm_config_nodedir:?run it under with-node.sh}/include/node
warnings="-Wall -Wextra -Wshadow -Werror -fsyntax-only"

find core capi -name '*.c' -print | while IFS= read -r file; do
  # shellcheck disable=SC2086 # the warnings are words
  "${CC:-gcc}" $warnings -std=gnu17 "$file"
done

addon_api=$(node -p 'require("node-addon-api").include_dir')
find src -name '*.cc' -print | while IFS= read -r file; do
  # -isystem: the warnings of others' headers are theirs.
  # shellcheck disable=SC2086
  "${CXX:-g++}" $warnings -std=c++20 -fno-exceptions \
    -DNAPI_VERSION=9 -DNAPI_DISABLE_CPP_EXCEPTIONS -DNODE_API_SWALLOW_UNTHROWABLE_EXCEPTIONS \
    -isystem "$headers" -isystem "$addon_api" -Icapi "$file"
done
