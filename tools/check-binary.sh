#!/bin/sh
# check-binary.sh FILE... says whether the binaries run where we promise: glibc 2.34
# and the libstdc++ of gcc 11 (Debian 12, Ubuntu 22.04, RHEL 9), and need no library
# that such a system might lack.
set -eu

glibc=2.34
glibcxx=3.4.29
status=0

# newest FILE PREFIX prints the newest version of a symbol that FILE imports.
newest() {
  objdump -T "$1" | grep -o "$2_[0-9][0-9.]*" | sed "s/^$2_//" | sort -V | tail -n 1
}

# at_most NAME VERSION LIMIT
at_most() {
  if [ "$(printf '%s\n%s\n' "$2" "$3" | sort -V | tail -n 1)" != "$3" ]; then
    echo "$1 $2 is newer than $3" >&2
    return 1
  fi
}

for file in "$@"; do
  libc=$(newest "$file" GLIBC)
  libcxx=$(newest "$file" GLIBCXX)
  at_most "$file: glibc" "${libc:-0}" "$glibc" || status=1
  at_most "$file: libstdc++" "${libcxx:-0}" "$glibcxx" || status=1
  needed=$(objdump -p "$file" | sed -n 's/^ *NEEDED *//p')
  for library in $needed; do
    case $library in
    libc.so.6 | libm.so.6 | libdl.so.2 | libpthread.so.0 | libresolv.so.2 | ld-linux-*.so.*) ;;
    libgcc_s.so.1 | libstdc++.so.6) ;;
    *)
      # libsandbox.so among them: loaded by the dynamic linker, its threads would
      # begin before the addon has blocked the signals.
      echo "$file must not be linked with $library" >&2
      status=1
      ;;
    esac
  done
  echo "$file: glibc ${libc:-none}, libstdc++ ${libcxx:-none}, $(($(wc -c <"$file") / 1024)) KiB"
done
exit "$status"
