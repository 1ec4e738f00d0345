#!/usr/bin/env bash
# Tests of nskc: reproducible and incremental builds, errors, hostile files, the public interface, launchers, the gate on native code.
#   tests.sh      NS_BUILD is the folder build/ of a build (oneapi/ with include/ and lib/, nskc/); without it NS_ONEAPI has the runtime and nskc is built.
# The gate needs ocloc and iga64: NS_OCLOC and NS_IGA name them, else they are looked for in PATH and in NS_BUILD/debian/ocloc. Last line: N passed, N failed, N skipped.
# SPDX-License-Identifier: MIT
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
prefix=${NS_BUILD:+$NS_BUILD/oneapi}
[ -n "$prefix" ] && [ -e "$prefix/lib/libsycl-jit.so" ] || prefix=${NS_ONEAPI:?names the oneAPI runtime}
[ -e "$prefix/lib/libsycl-jit.so" ] || { echo "tests.sh: $prefix/lib has no libsycl-jit.so" >&2; exit 2; }
prefix=$(cd "$prefix" && pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/nskc-tests.XXXXXX")
trap 'rm -rf "$work"' EXIT
bin=${NS_BUILD:+$NS_BUILD/nskc}
bin=${bin:-$work/bin}
"$here/build.sh" "$prefix" "$bin" --public || { echo "0 passed, 1 failed, 0 skipped"; exit 1; }
nskc=$bin/nskc
passed=0 failed=0 skipped=0

verdict() { # verdict WHAT CODE: 0 is good
  if [ "$2" = 0 ]; then
    passed=$((passed + 1))
    echo "ok   $1"
  else
    failed=$((failed + 1))
    echo "FAIL $1"
    [ ! -s "$work/log" ] || sed 's/^/     | /' "$work/log" | head -20
  fi
}
# check WHAT COMMAND...: the command succeeds. Its output stays in log for says.
check() {
  local what=$1
  shift
  "$@" > "$work/log" 2>&1
  verdict "$what" $?
}
# refused WHAT CODE TEXT COMMAND...: it ends with the code and says the text (a regular expression).
refused() {
  local what=$1 code=$2 text=$3
  shift 3
  "$@" > "$work/log" 2>&1
  local got=$?
  [ $got = "$code" ] && grep -qE -- "$text" "$work/log"
  verdict "$what (exit $got, wanted $code and \"$text\")" $?
}
says() { grep -qE -- "$2" "$work/log"; verdict "$1" $?; }
same() { cmp -s "$2" "$3"; verdict "$1" $?; }
compile() { "$nskc" --oneapi "$prefix" "$@"; }
place() { # place FOLDER: a copy of the test sources
  mkdir -p "$1/kernels/tests"
  cp "$here"/tests/*.cpp "$here"/tests/*.hpp "$1/kernels/tests/"
}

echo "== the compiler"
check "the compiler's own entry passes the self-test" compile --self-test --compiler private
check "the public interface passes the self-test" compile --self-test --compiler public

echo "== reproducible"
place "$work/one" && place "$work/another/folder/deeper"
check "a build by relative names" env -C "$work/one" "$nskc" --oneapi "$prefix" --out out -I kernels --jobs 2 kernels/tests/arguments.cpp kernels/tests/promises.cpp
deep=$work/another/folder/deeper
check "a build by absolute names, with a precompiled header" compile --out "$deep/out" -I "$deep/kernels" --pch "$work/pch" "$deep/kernels/tests/arguments.cpp" "$deep/kernels/tests/promises.cpp"
for f in arguments.gpu.spv arguments.gpu.json arguments.cpu.spv arguments.cpu.json promises.gpu.spv promises.cpu.json; do same "the same bytes in both folders: $f" "$work/one/out/$f" "$deep/out/$f"; done
grep -qa "$work" "$work"/one/out/*.* "$deep"/out/*.*
verdict "no folder of the build in the output" $((1 - $?))
check "a build by the public interface" compile --out "$work/public" --compiler public --variant gpu -I "$work/one/kernels" "$work/one/kernels/tests/arguments.cpp"
same "the public interface gives the same module" "$work/public/arguments.gpu.spv" "$work/one/out/arguments.gpu.spv"
same "... and the same description" "$work/public/arguments.gpu.json" "$work/one/out/arguments.gpu.json"
sed 's/,"source":"[^"]*"//g' "$work/one/out/arguments.gpu.json" | grep '^{"name"' | diff - "$here/tests/arguments.expected" > "$work/log"
verdict "the description has every kernel, argument, comment and promise" $?

echo "== incremental"
cd "$work/one" || exit 1
again() { "$nskc" --oneapi "$prefix" --out out -I kernels --jobs 2 "$@" kernels/tests/arguments.cpp kernels/tests/promises.cpp; }
stat -c '%n %y %i' out/*.* > "$work/before"
check "a second run" again
says "... compiles nothing" 'nskc: 0 built, 4 up to date'
touch kernels/tests/*
check "a run after touching the sources" again
says "... compiles nothing" 'nskc: 0 built, 4 up to date'
stat -c '%n %y %i' out/*.* > "$work/after"
same "... and writes no file" "$work/before" "$work/after"
sed -i 's/return 2 \* v/return 3 * v/' kernels/tests/arguments.cpp
check "a run after a change in one source" again
says "... compiles that one" 'nskc: 2 built, 2 up to date'
cmp -s out/arguments.gpu.spv "$deep/out/arguments.gpu.spv"
verdict "... to another result" $((1 - ($? != 0 ? 1 : 0)))
echo 'inline int unused_here(int v) { return v; }' >> kernels/tests/kernel.hpp
check "a run after a change in a header" again
says "... compiles what includes it" 'nskc: 4 built, 0 up to date'
check "a run with another -D" again -D SOMETHING=1
says "... compiles all" 'nskc: 4 built, 0 up to date'
check "a run without it" again
printf x >> out/promises.cpu.spv
rm out/promises.gpu.json
check "a run after a damaged and a missing output" again
says "... makes those again" 'nskc: 2 built, 2 up to date'
same "... as they were" out/promises.cpu.spv "$deep/out/promises.cpu.spv"
sed -i 's/return 3 \* v/return 2 * v/' kernels/tests/arguments.cpp
check "a changed header under a precompiled one" again --pch "$work/pch"
same "... gives the right module" out/arguments.gpu.spv "$deep/out/arguments.gpu.spv"

mkdir -p out/.work/run-left && touch out/.nskc-left && rm out/promises.cpu.json
check "a run after one that was cut off" again
[ ! -e out/.work/run-left ] && [ ! -e out/.nskc-left ]
verdict "... clears what it left" $?

echo "== errors"
mkdir -p "$work/bad/tests"
cp "$here/tests/kernel.hpp" "$work/bad/tests/"
cd "$work/bad" || exit 1
bad() { # bad NAME TEXT < body: compiling the body is refused with the text, and writes nothing
  { printf '#include "tests/kernel.hpp"\n'; cat; } > "$1.cpp"
  refused "$1" 1 "$2" compile --out "out-$1" --variant gpu -I . "$1.cpp"
  [ -z "$(find "out-$1" -maxdepth 1 -type f)" ] || verdict "... and wrote something" 1
}
bad double_value 'double_value\.cpp:2: error: kernel half_of: uses double' << 'S'
KERNEL void half_of(float *x, double *y) { y[0] = x[0] * 0.5; }
S
bad double_inside 'double_inside\.cpp:2: error: kernel thirds: uses double' << 'S'
KERNEL void thirds(float *x) { x[0] = (float)((double)x[1] * x[1] + 0.1); }
S
bad undefined_function 'error: kernel calls_it: calls an undefined function: missing_one\(float\)' << 'S'
SYCL_EXTERNAL float missing_one(float);
KERNEL void calls_it(float *x) { x[0] = missing_one(x[1]); }
S
bad library_bfloat16 'kernel rounds: calls an undefined function: .*BF16.*integer shifts' << 'S'
KERNEL void rounds(sycl::ext::oneapi::bfloat16 *x, float *y) { x[0] = sycl::ext::oneapi::bfloat16(y[0] + 1.0f); }
S
bad no_sub_group 'no_sub_group\.cpp:2: error: kernel free_size: declares no sub-group size' << 'S'
extern "C" RANGE void free_size(float *x) { x[0] = 1; }
S
bad syntax "syntax\.cpp:2:.*error: use of undeclared identifier 'y'" << 'S'
KERNEL void wrong(float *x) { x[0] = y; }
S
bad missing_header "missing_header\.cpp:2:.*error: 'tests/nowhere.hpp' file not found" << 'S'
#include "tests/nowhere.hpp"
KERNEL void fine(float *x) { x[0] = 1; }
S
bad hidden_include 'hidden_include\.cpp:3: an include through a macro' << 'S'
#define WHERE "tests/kernel.hpp"
#include WHERE
S
bad unknown_promise 'unknown promise "dp5a" .*known: dp4a' << 'S'
// arc: dp5a
KERNEL void fine(float *x) { x[0] = 1; }
S
bad no_kernel 'no_kernel\.cpp: no kernel in it' << 'S'
inline float nothing(float x) { return x; }
S
printf '#include "tests/kernel.hpp"\nKERNEL void warns(float *x) { int unused; x[0] = 1; }\n' > warns.cpp
check "a warning is no error" compile --out out-warns --variant cpu -I . warns.cpp
says "... but is shown with its place" "warns\.cpp:2:.*warning: unused variable"
cp warns.cpp tests/warns.cpp
refused "two sources of one module" 1 'two sources of module warns' compile --out out-two --variant cpu -I . warns.cpp tests/warns.cpp
refused "an unknown option" 2 'unknown option --wrong' compile --wrong x --out o warns.cpp
refused "an option without value" 2 '--out needs a value' compile --out
refused "a variant that does not exist" 2 'gpu or cpu, not fpga' compile --out o --variant fpga warns.cpp
refused "no source" 2 'no source given' compile --out o
refused "no runtime at the prefix" 1 'libsycl-jit.so cannot be opened' "$nskc" --oneapi "$work/bad" --out o warns.cpp
refused "a source that is not there" 1 'nothing.cpp: cannot be read' compile --out o nothing.cpp
# A failed build leaves the good files of the last one.
cp out-warns/warns.cpu.spv "$work/kept.spv"
printf 'KERNEL void broken(' >> warns.cpp
refused "a source that became wrong" 1 'warns\.cpp:3' compile --out out-warns --variant cpu -I . warns.cpp
same "... leaves the last good module" out-warns/warns.cpu.spv "$work/kept.spv"

echo "== another runtime compiler"
mkdir -p "$work/fake/lib"
fake() { # fake BODY: a libsycl-jit that is not the one we know
  printf '%s\n' "$1" > "$work/fake.cpp"
  ${CXX:-g++} -shared -fPIC -o "$work/fake/lib/libsycl-jit.so" "$work/fake.cpp"
}
printf '#!/bin/sh\nexport LD_LIBRARY_PATH="%s/lib" OCL_ICD_FILENAMES="%s/lib/libintelocl.so"\nexec "%s/nskc-public" "$@"\n' "$prefix" "$prefix" "$bin" > "$work/public.sh"
chmod +x "$work/public.sh"
cp "$here/tests/promises.cpp" .
fake 'extern "C" void compileSYCL() { *(volatile int *)0 = 1; }'
refused "one that crashes" 1 'fails its self-test: it ended with signal 11' "$nskc" --oneapi "$work/fake" --self-test --compiler private
check "... makes nskc use the public interface" "$nskc" --oneapi "$work/fake" --public "$work/public.sh" --out out-fake --variant gpu -I . promises.cpp
says "... which it says" "own entry fails its self-test .*signal 11.*using the public interface"
same "... with the same result" out-fake/promises.gpu.spv "$work/one/out/promises.gpu.spv"
fake 'extern "C" void other() {}'
refused "one without the entry" 1 'does not export compileSYCL' "$nskc" --oneapi "$work/fake" --self-test --compiler private
fake 'extern "C" int compileSYCL(void *result) { for (int i = 0; i < 64; i++) ((char *)result)[i] = 0; return 0; }'
refused "one that returns nothing" 1 'self-test: (0 images|the one-line)' "$nskc" --oneapi "$work/fake" --self-test --compiler private

echo "== hostile files"
hostile() { # hostile FILE: cut off and with flipped bytes it is read or refused, never a crash
  local size i crashed=0 refusals=0 code
  size=$(stat -c %s "$1")
  for i in $(seq 0 119); do
    head -c $((size * i / 120)) "$1" > "$work/hostile"
    "$nskc" inspect "$work/hostile" > /dev/null 2>&1
    code=$?
    [ $code -le 1 ] || crashed=$((crashed + 1))
    [ $code != 1 ] || refusals=$((refusals + 1))
    cp "$1" "$work/hostile"
    # Early bytes are the interesting ones: headers, types, entry points.
    printf "\\x$(printf %02x $(((i * 37 + 255) % 256)))" | dd of="$work/hostile" bs=1 seek=$((i * i * size / 30000 + i % 4)) conv=notrunc 2> /dev/null
    "$nskc" inspect "$work/hostile" > /dev/null 2>&1
    code=$?
    [ $code -le 1 ] || crashed=$((crashed + 1))
    [ $code != 1 ] || refusals=$((refusals + 1))
  done
  : > "$work/log"
  echo "     $refusals of 240 refused"
  [ $crashed = 0 ] && [ $refusals -gt 60 ]
  verdict "damaged copies of ${1##*/} never crash nskc" $?
}
check "inspect reads a good module" "$nskc" inspect "$work/one/out/arguments.gpu.spv"
hostile "$work/one/out/arguments.gpu.spv"

echo "== launchers"
check "launchers for every kind of argument" "$nskc" library --kind tests --dir "$work/one/out" --out "$work/launchers"
check "... compile in C without a warning" ${CXX:-g++} -x c -std=c11 -Wall -Wextra -Wpedantic -Werror -Wa,-I"$work/one/out" -I"$here/../runtime" -c "$work/launchers/nextsycl-tests.c" -o "$work/launchers.o"
printf '#include "nextsycl-tests.h"\nns_status f(ns_queue *q, const ns_range *r, float *x) { return ns_tests_no_comment(q, r, x); }\n' > "$work/use.cpp"
check "... and the header in C++" ${CXX:-g++} -std=c++17 -Wall -Wextra -Wpedantic -Werror -I"$work/launchers" -I"$here/../runtime" -fsyntax-only "$work/use.cpp"
grep -A1 'y = everything added up' "$work/launchers/nextsycl-tests.h" > /dev/null &&
  grep -q 'ns_tests_all_kinds(ns_queue \*queue, const ns_range \*range, const float \*x, uint8_t \*y, int32_t n, uint64_t m, float f, const void \*h, const void \*pair, uint32_t scratch_bytes, int16_t s, int8_t c, const uint16_t \*halves, void \*anything)' "$work/launchers/nextsycl-tests.h"
verdict "... with the types of the source" $?
cp -r "$work/one/out" "$work/damaged"
printf x >> "$work/damaged/promises.gpu.spv"
refused "a module that is not the described one" 1 'promises.gpu.spv: is not the file' "$nskc" library --kind tests --dir "$work/damaged" --out "$work/launchers2"
refused "a folder without modules" 1 'no module in it' "$nskc" library --kind tests --dir "$work/bad/tests" --out "$work/launchers2"

echo "== native code"
unpacked=${NS_BUILD:-/nowhere}/debian/ocloc/run
ocloc=${NS_OCLOC:-$(command -v ocloc || { [ -x "$unpacked" ] && echo "$unpacked ocloc"; })}
iga=${NS_IGA:-$(command -v iga64 || { [ -x "$unpacked" ] && echo "$unpacked iga64"; })}
if [ -z "$ocloc" ] || [ -z "$iga" ]; then
  echo "not run: native code and the gate (ocloc and iga64 are not here: NS_OCLOC, NS_IGA)"
  skipped=1
else
  cd "$work/bad" || exit 1
  gate() { "$nskc" gate --ocloc "$ocloc" --iga "$iga" "$@"; }
  cp "$here/tests/esimd.cpp" .
  check "modules with native code" compile --out native --variant gpu --ocloc "$ocloc" -I . promises.cpp esimd.cpp
  check "... twice" compile --out native2 --variant gpu --ocloc "$ocloc" -I . promises.cpp esimd.cpp
  for f in promises.gpu.bmg-g21.bin promises.gpu.bmg-g31.bin esimd.gpu.bmg-g21.bin promises.gpu.json; do same "... the same bytes: $f" native/$f native2/$f; done
  grep -q '"tile":{"simd":16,"grf":128,"spill":0,"private":0,"scratch":0,"slm":0,"barriers":0,"has_dpas":true,"has_4gb_buffers":true}' native/promises.gpu.json
  verdict "the description has what native code says" $?
  check "kernels that keep their promises pass the gate" gate --dir native --table
  says "... after a look at each of them" 'arc gate: 2 modules, 8 kernel checks on bmg-g21, bmg-g31, 10 promises, 0 violations'
  check "... also without native code, through ocloc" gate --dir out-fake --targets bmg-g21
  hostile native/promises.gpu.bmg-g21.bin
  caught() { # caught NAME TEXT < body: it compiles, and the gate stops it
    { printf '#include "tests/kernel.hpp"\n'; cat; } > "$1.cpp"
    compile --out "gate-$1" --variant gpu --ocloc "$ocloc" --targets bmg-g21 -I . "$1.cpp" > "$work/log" 2>&1 || { verdict "$1 compiles" 1; return; }
    refused "the gate stops $1" 1 "$2" gate --dir "gate-$1" --targets bmg-g21
  }
  caught spills 'spills\.greedy on bmg-g21: (spills registers|keeps an array)' << 'S'
KERNEL void greedy(const float *x, float *y, int n) {
  float v[256];
  const int i = global_id();
#pragma unroll
  for (int k = 0; k < 256; k++) v[k] = x[k * n + i];
  for (int r = 0; r < n; r++)
#pragma unroll
    for (int k = 0; k < 256; k++) v[k] = v[k] * v[(k + 1) % 256] + v[(k * 7) % 256];
#pragma unroll
  for (int k = 0; k < 256; k++) y[k * n + i] = v[k];
}
S
  caught array 'array\.indexed on bmg-g21: keeps an array in memory' << 'S'
KERNEL void indexed(const int *x, float *y, int n) {
  float v[512];
  const int i = global_id();
  for (int k = 0; k < 512; k++) v[k] = x[k * n + i];
  for (int k = 0; k < n; k++) v[x[k + i] & 511] += v[x[k + i] >> 9 & 511];
  for (int k = 0; k < 512; k++) y[k * n + i] = v[k];
}
S
  caught broken_promise 'broken_promise\.shifts on bmg-g21: promises dp4a and has none' << 'S'
// arc: dp4a
KERNEL void shifts(const int *x, int *y) { y[0] = (x[0] & 15) * (x[0] >> 4 & 15) + (x[1] & 15); }
S
  caught small_loads 'small_loads\.narrow on bmg-g21: promises load16 and has none' << 'S'
// arc: load16
KERNEL void narrow(const int *x, int *y) { y[global_id()] = x[global_id()]; }
S
  edited() { # edited NAME SED TEXT: a description that says something else than the code
    rm -rf edited && cp -r native edited && sed -i "$2" edited/promises.gpu.json
    refused "$1" 1 "$3" gate --dir edited --targets bmg-g21
  }
  edited "the gate stops another sub-group size" '/"dots"/s/"sub_group_size":16/"sub_group_size":32/' 'dots on bmg-g21: runs with SIMD width 16, declared is 32'
  edited "the gate stops double" '/"dots"/s/"aspects":\[\]/"aspects":[6]/' 'dots on bmg-g21: uses double'
  edited "the gate stops code of another build" '/bmg-g21/s/"sha256":"../"sha256":"00/' 'is not the file its module description'
  edited "the gate stops a kernel without code" 's/"entry":"__sycl_kernel_dots"/"entry":"__sycl_kernel_spots"/' 'dots on bmg-g21: is not in the native code'
  refused "the gate without modules" 1 'no module of variant gpu' gate --dir "$work/bad/tests"
  refused "the gate without a disassembler" 1 'ended with code 127' gate --dir native --iga "$work/no-such-program"
  printf '#include "tests/kernel.hpp"\nKERNEL void quotient(float *x) { x[global_id()] /= x[0] + 3.0f; }\n' > divide.cpp
  check "a module with plain division" compile --out divide1 --variant gpu --ocloc "$ocloc" --targets bmg-g21 -I . divide.cpp
  echo '// nskc: correctly-rounded-divide-sqrt' >> divide.cpp
  check "a module that asks for correctly rounded division" compile --out divide2 --variant gpu --ocloc "$ocloc" --targets bmg-g21 -I . divide.cpp
  grep -q '"build_options":"-cl-fp32-correctly-rounded-divide-sqrt"' divide2/divide.gpu.json && ! grep -q build_options divide1/divide.gpu.json
  verdict "... says so in its description" $?
  [ "$(stat -c %s divide2/divide.gpu.bmg-g21.bin)" -gt "$(stat -c %s divide1/divide.gpu.bmg-g21.bin)" ]
  verdict "... and has longer native code" $?
fi

echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
