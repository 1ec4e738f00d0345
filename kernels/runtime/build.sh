#!/bin/sh
# Builds the runtime libraries with g++ (no SYCL compiler needed).
#   build.sh PREFIX OUTDIR [all|sycl|mkl|dnn]
# PREFIX has include/ and lib/ of the oneAPI runtime (for libns_mkl and libns_dnn also of oneMKL and oneDNN). OUTDIR gets libns_sycl.so, libns_mkl.so, libns_dnn.so and ns.h;
# at run time they look for the runtime in OUTDIR/oneapi/lib. CXX names another compiler, JOBS the number of compilers at a time (2). Objects stay in OUTDIR/.objects, only what changed is compiled.
# SPDX-License-Identifier: MIT
set -eu
[ $# -ge 2 ] || { sed -n 3,5p "$0" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
prefix=$(cd "$1" && pwd); mkdir -p "$2/.objects"; out=$(cd "$2" && pwd); what=${3:-all}
objects=$out/.objects
flags="-std=c++20 -O2 -g0 -fPIC -fvisibility=hidden -fvisibility-inlines-hidden -Wall -Wextra -I$here -isystem $prefix/include -isystem $prefix/include/sycl -ffile-prefix-map=$here=. -ffile-prefix-map=$prefix=oneapi -DCL_TARGET_OPENCL_VERSION=300"
link="-shared -Wl,-z,defs -Wl,-z,now -Wl,--as-needed -Wl,--enable-new-dtags -Wl,--version-script=$here/libns_sycl.map -L$prefix/lib -L$out -Wl,-rpath-link,$prefix/lib:$out"

# stale FILE.cpp: is the object missing or older than the source or a header?
stale() {
  o=$objects/$(basename "$1" .cpp).o
  [ -e "$o" ] || return 0
  for f in "$here/$1" "$here"/*.hpp "$here/ns.h" "$here/build.sh"; do [ "$f" -ot "$o" ] || return 0; done
  return 1
}
compile() {
  for s; do stale "$s" && printf '%s\n' "$s"; done |
    xargs -r -P "${JOBS:-2}" -I{} sh -c 'o=$1/$(basename "$2" .cpp).o; shift 2; "$@" -o "$o.new" && mv "$o.new" "$o"' sh "$objects" {} "${CXX:-g++}" $flags -c "$here/{}"
}
objects_of() { for s; do printf '%s ' "$objects/$(basename "$s" .cpp).o"; done; }
# library NAME 'SOURCES' FLAGS...
library() {
  name=$1 sources=$2; shift 2
  compile $sources
  "${CXX:-g++}" $link -Wl,-soname,"$name" -o "$out/$name.new" $(objects_of $sources) "$@"
  mv "$out/$name.new" "$out/$name"
}

library libns_sycl.so 'device.cpp memory.cpp queue.cpp graph.cpp reflection.cpp module.cpp program.cpp cache.cpp guard.cpp' -Wl,-rpath,'$ORIGIN/oneapi/lib' -l:libsycl.so.9 -ldl
if [ "$what" = all ] || [ "$what" = mkl ]; then
  library libns_mkl.so mkl.cpp -Wl,-rpath,'$ORIGIN:$ORIGIN/oneapi/lib' -l:libns_sycl.so -l:libsycl.so.9 -l:libmkl_sycl_blas.so.6 -Wl,--no-as-needed -l:libmkl_intel_ilp64.so.3 -l:libmkl_tbb_thread.so.3 -l:libmkl_core.so.3 -l:libtbb.so.12
fi
if [ "$what" = all ] || [ "$what" = dnn ]; then
  library libns_dnn.so dnn.cpp -Wl,-rpath,'$ORIGIN:$ORIGIN/oneapi/lib' -l:libns_sycl.so -l:libsycl.so.9 -l:libdnnl.so.3 -Wl,--no-as-needed -l:libtbb.so.12 -l:libsvml.so -l:libimf.so -l:libintlc.so.5
fi
cp "$here/ns.h" "$out/ns.h"
