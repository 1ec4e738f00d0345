#!/bin/sh
# Compiles the kernels of every kind, and makes the libraries with their launchers.
#   build.sh BUILD
# BUILD has oneapi/ (the unpacked runtime) and nskc/ (from compiler/build.sh). Gets kernels/KIND/MODULE.VARIANT.spv and .json, launchers/libnextsycl-KIND.so and nextsycl-KIND.h; what lies
# deeper (KIND/ARCH/*.cpp, the kernels of one architecture) becomes kernels/KIND/ARCH/ and is in no library.
# NS_RUNTIME: a folder with lib/libns_sycl.so and include/ns.h, built before; without it they are built here. NS_OCLOC names ocloc: the modules then get native code for the cards too. JOBS: compilers at a time (2). Only what changed is compiled.
# SPDX-License-Identifier: MIT
set -eu
[ $# -eq 1 ] || { sed -n 3p "$0" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "$1" && pwd)
cd "$here"
mkdir -p "$build/launchers"
# The launchers link against libns_sycl.
if [ -n "${NS_RUNTIME:-}" ]; then
  link=$NS_RUNTIME/lib include=$NS_RUNTIME/include
else
  link=$build/runtime include=runtime
  JOBS=${JOBS:-2} runtime/build.sh "$build/oneapi" "$build/runtime" sycl
fi
for kind in llm; do
  find "$kind" -name '*.cpp' -printf '%h\n' | sort -u > "$build/launchers/.folders"
  while read -r folder; do
    "$build/nskc/nskc" --oneapi "$build/oneapi" --out "$build/kernels/$folder" -I . --jobs "${JOBS:-2}" ${NS_OCLOC:+--ocloc "$NS_OCLOC"} "$folder"/*.cpp
  done < "$build/launchers/.folders"
  "$build/nskc/nskc" library --kind "$kind" --dir "$build/kernels/$kind" --out "$build/launchers" --include "$include" --link "$link"
done
