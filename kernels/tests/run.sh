#!/bin/sh
# Builds and runs programs that use libnextsycl-llm.so: one in C with a queue of ns.h, one in C++ with a SYCL queue of its own.
#   run.sh          NS_DIST is the folder dist/ of a build, NS_BUILD its build/ (for the SYCL headers in oneapi/include; else NS_ONEAPI has them)
# NS_TEST_SELECTOR names the device (cpu). CC and CXX name other compilers. Each program ends with a line "N passed, N failed, N skipped".
# SPDX-License-Identifier: MIT
set -eu
here=$(cd "$(dirname "$0")" && pwd)
dist=${NS_DIST:-${DIST:-$here/../../dist}}
prefix=${NS_BUILD:+$NS_BUILD/oneapi}
[ -n "$prefix" ] && [ -d "$prefix/include/sycl" ] || prefix=${NS_ONEAPI:?names the oneAPI runtime}
lib=$(cd "$dist/lib/nextsycl" && pwd)
include=$(cd "$dist/include" && pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/ns-launchers.XXXXXX")
trap 'rm -rf "$work"' EXIT

cxx=${CXX:-g++}
cc=${CC:-gcc}
command -v "$cc" > /dev/null 2>&1 || cc="$cxx -x c"
# What a user of the libraries writes, and nothing of the runtime for the C program.
link="-L$lib -lnextsycl-llm -lns_sycl -Wl,-rpath,$lib -Wl,-rpath-link,$lib/oneapi/lib"
$cc -std=c11 -O2 -Wall -Wextra -I"$include" "$here/launchers.c" -o "$work/launchers-c" $link -lm
$cxx -std=c++17 -O1 -Wall -I"$include" -isystem "$prefix/include" -isystem "$prefix/include/sycl" "$here/launchers.cpp" -o "$work/launchers-cpp" $link -L"$lib/oneapi/lib" -l:libsycl.so.9 \
  "-Wl,-rpath,$lib/oneapi/lib"
code=0
echo "== C, a queue of ns.h"
"$work/launchers-c" || code=1
echo "== C++, a sycl::queue"
OCL_ICD_FILENAMES=${OCL_ICD_FILENAMES:-$lib/oneapi/lib/libintelocl.so} "$work/launchers-cpp" || code=1
exit $code
