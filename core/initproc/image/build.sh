#!/bin/sh
# Builds the init program for one machine and compresses it for embedding.
#
#   build.sh GOARCH [OUTPUT [go build flags...]]
#
# INIT_LDFLAGS in the environment is added to the linker's flags.
# OUTPUT defaults to bin/init-GOARCH.gz beside this script. An output that does
# not end in .gz is left uncompressed. Go's own cache makes an unchanged build
# cheap, and an unchanged result is not written again, so that what embeds it is
# not rebuilt either.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
arch=${1:?usage: build.sh GOARCH [OUTPUT [go build flags...]]}
output=${2:-$here/bin/init-$arch.gz}
shift
if [ $# -gt 0 ]; then shift; fi

mkdir -p "$(dirname "$output")"
built=$(mktemp "$output.XXXXXX")
trap 'rm -f "$built" "$built.gz"' EXIT

cd "$here/../../.."
ldflags='-s -w -buildid='
CGO_ENABLED=0 GOOS=linux GOARCH=$arch \
	go build -trimpath -buildvcs=false -ldflags "$ldflags ${INIT_LDFLAGS:-}" "$@" -o "$built" ./core/initproc/cmd/sandbox-init

case $output in
*.gz)
	# Neither name nor time goes in: the same source gives the same bytes.
	gzip -9 -n -c "$built" >"$built.gz"
	mv "$built.gz" "$built"
	;;
*) chmod 0755 "$built" ;;
esac
if ! cmp -s "$built" "$output"; then
	[ "${output%.gz}" = "$output" ] || chmod 0644 "$built"
	mv "$built" "$output"
fi
