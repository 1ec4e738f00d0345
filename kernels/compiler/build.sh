#!/bin/sh
# Builds nskc, the kernel compiler driver, with g++ alone.
#   build.sh PREFIX OUTDIR [--public]
# OUTDIR/nskc needs PREFIX/lib/libsycl-jit.so only when it runs. OUTDIR/nskc-public, its way around a library whose own compile entry has changed, is built when the self-test
# of that entry fails, or with --public. CXX names another compiler.
# SPDX-License-Identifier: MIT
set -eu
[ $# -ge 2 ] || { sed -n 3p "$0" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
prefix=$(cd "$1" && pwd); mkdir -p "$2"; out=$(cd "$2" && pwd)
cxx=${CXX:-g++}

# newer PROGRAM SOURCE...: does it exist, younger than each of them?
newer() {
  [ -x "$1" ] || return 1
  program=$1; shift
  for f; do [ "$program" -nt "$f" ] || return 1; done
}

if ! newer "$out/nskc" "$here"/*.cpp "$here"/*.hpp "$here/build.sh"; then
  $cxx -O2 -std=c++17 -Wall -Wextra "-ffile-prefix-map=$here=." "$here"/*.cpp -o "$out/nskc.new" -ldl
  mv "$out/nskc.new" "$out/nskc"
fi
if [ "${3:-}" = --public ] || ! "$out/nskc" --oneapi "$prefix" --self-test --compiler private > /dev/null; then
  if ! newer "$out/nskc-public" "$here/public/nskc-public.cpp" "$here/build.sh"; then
    $cxx -O1 -std=c++17 -isystem "$prefix/include" -isystem "$prefix/include/sycl" "$here/public/nskc-public.cpp" -o "$out/nskc-public.new" -L"$prefix/lib" -lsycl "-Wl,-rpath-link,$prefix/lib"
    mv "$out/nskc-public.new" "$out/nskc-public"
  fi
fi
