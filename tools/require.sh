#!/bin/sh
# require.sh TOOL... makes sure the tools are here. What the system's package
# manager has is installed where that is allowed (root); where it is not, the
# exact command is printed and nothing is done. Go, Node, npm and a C++ compiler
# are not installed behind anyone's back: they are named.
#
# TOOLs: go node npm c++, and bwrap clang-format python3 setpriv shellcheck
set -eu

say() { echo "$*" >&2; }

# package MANAGER TOOL prints the package that holds TOOL.
package() {
  case $2 in
  bwrap) echo bubblewrap ;;
  setpriv) echo util-linux ;;
  python3)
    case $1 in
    pacman) echo python ;;
    *) echo python3 ;;
    esac
    ;;
  clang-format)
    case $1 in
    dnf) echo clang-tools-extra ;;
    pacman) echo clang ;;
    apk) echo clang-extra-tools ;;
    zypper) echo clang-tools ;;
    *) echo clang-format ;;
    esac
    ;;
  shellcheck)
    case $1 in
    dnf | zypper) echo ShellCheck ;;
    *) echo shellcheck ;;
    esac
    ;;
  esac
}

missing=
unmet=0
for tool in "$@"; do
  case $tool in
  go)
    if ! command -v go >/dev/null; then
      say "Go is missing: install the release go.mod names, or a newer one"
      unmet=1
    fi
    ;;
  node)
    if ! node -e 'process.exit(parseInt(process.versions.node) >= 20 ? 0 : 1)' 2>/dev/null; then
      say "Node 20 or newer is missing (Node 24 is then installed into tools/node)"
      unmet=1
    fi
    ;;
  npm)
    if ! command -v npm >/dev/null; then
      say "npm is missing: it comes with Node, or as a package of its own"
      unmet=1
    fi
    ;;
  c++)
    # node-gyp's makefiles and cgo call these names unless CC and CXX say otherwise.
    if ! command -v "${CXX:-g++}" >/dev/null || ! command -v "${CC:-gcc}" >/dev/null; then
      say "a C and C++ compiler is missing: install g++, or set CC and CXX"
      unmet=1
    fi
    ;;
  setpriv)
    # Only root has a second pass of the tests to start.
    [ "$(id -u)" != 0 ] || command -v setpriv >/dev/null || missing="$missing setpriv"
    ;;
  *)
    command -v "$tool" >/dev/null || missing="$missing $tool"
    ;;
  esac
done
[ "$unmet" = 0 ] || exit 1
[ -n "$missing" ] || exit 0

manager=
for candidate in apt-get dnf pacman apk zypper; do
  if command -v "$candidate" >/dev/null; then
    manager=$candidate
    break
  fi
done
if [ -z "$manager" ]; then
  say "missing:$missing, and no package manager that this script knows"
  exit 1
fi

packages=
for tool in $missing; do
  packages="$packages $(package "$manager" "$tool")"
done
case $manager in
apt-get) install="apt-get install -y --no-install-recommends$packages" ;;
dnf) install="dnf install -y$packages" ;;
pacman) install="pacman -S --needed --noconfirm$packages" ;;
apk) install="apk add$packages" ;;
zypper) install="zypper --non-interactive install$packages" ;;
esac

if [ "$(id -u)" != 0 ]; then
  say "missing:$missing; install with"
  say "  sudo $install"
  exit 1
fi
say "missing:$missing; $install"
if [ "$manager" = apt-get ]; then
  DEBIAN_FRONTEND=noninteractive
  export DEBIAN_FRONTEND
  # A list that is there but old names packages that are gone: fetch it and try once more.
  $install >&2 || { apt-get update >&2 && $install >&2; }
else
  $install >&2
fi
for tool in $missing; do
  command -v "$tool" >/dev/null || {
    say "$tool is still missing after the installation"
    exit 1
  }
done
