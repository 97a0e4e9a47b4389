#!/bin/sh
# pack.sh writes the installable tarball of a built tree to build/, and checks it.
# What is packed is what was built and tested, only stripped.
set -eu

cd "$(dirname -- "$0")/.."
# shellcheck disable=SC2016 # JavaScript expands
name=$(node -p 'const { name, version } = require("./package.json"); `${name.replace("@", "").replace("/", "-")}-${version}`')
arch=$(node -p process.arch)
prebuild=prebuilds/linux-$arch
tarball=build/$name.tgz

rm -rf "$prebuild"
mkdir -p "$prebuild"
for binary in sandbox.node libsandbox.so; do
  strip --strip-unneeded -o "$prebuild/$binary" "build/Release/$binary"
  chmod 0755 "$prebuild/$binary"
done
tools/check-binary.sh "$prebuild/sandbox.node" "$prebuild/libsandbox.so"

# Every module that is linked in has its license in the package.
go version -m build/Release/libsandbox.so | while read -r kind module _; do
  if [ "$kind" = dep ] && ! grep -qF "$module" NOTICE THIRD_PARTY_LICENSES; then
    echo "NOTICE and THIRD_PARTY_LICENSES do not name $module, which is linked in" >&2
    exit 1
  fi
done

rm -f "$tarball"
npm pack --ignore-scripts --silent --pack-destination build >/dev/null
files=$(tar -tzf "$tarball" | sed 's|^package/||')

# expect FILE
expect() {
  echo "$files" | grep -qxF "$1" || {
    echo "$tarball lacks $1" >&2
    exit 1
  }
}
for file in package.json LICENSE NOTICE THIRD_PARTY_LICENSES README.md CHANGELOG.md dist/index.js dist/index.d.ts \
  dist/eve/provider/index.js dist/eve/provider/index.d.ts \
  "$prebuild/sandbox.node" "$prebuild/libsandbox.so"; do
  expect "$file"
done
# binding.gyp would make npm run node-gyp at every installation.
extra=$(echo "$files" | grep -vE '^(package\.json|LICENSE|NOTICE|THIRD_PARTY_LICENSES|README\.md|CHANGELOG\.md)$' |
  grep -vE '^dist/.*\.(js|d\.ts)$' | grep -vE '^prebuilds/linux-(x64|arm64)/(sandbox\.node|libsandbox\.so)$' || true)
if [ -n "$extra" ]; then
  echo "$tarball carries more than it should:" >&2
  echo "$extra" >&2
  exit 1
fi
# shellcheck disable=SC2016 # JavaScript expands
tar -xzOf "$tarball" package/package.json | node -e '
  const manifest = JSON.parse(require("node:fs").readFileSync(0, "utf8"));
  const scripts = ["preinstall", "install", "postinstall", "prepare"].filter((name) => manifest.scripts?.[name]);
  const wanted = Object.keys({ ...manifest.dependencies, ...manifest.optionalDependencies });
  if (scripts.length > 0) throw new Error(`scripts that npm would run: ${scripts}`);
  if (manifest.os || manifest.cpu || manifest.libc) throw new Error("os, cpu or libc would keep the package from loading elsewhere");
  if (manifest.gypfile !== false) throw new Error("gypfile must be false");
  if (wanted.length > 0) throw new Error(`run-time dependencies: ${wanted}`);
'
echo "$tarball: $(echo "$files" | wc -l) files, $(($(wc -c <"$tarball") / 1024)) KiB"
