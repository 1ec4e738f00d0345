#!/usr/bin/env bash
# Runs every test of the project: called by ./build.sh test, after a build.
#   tests/run.sh [SUITE...]      all suites, or some: style build compiler rust kernels nocard clients peer service nix
# Each suite's output goes to build/test/SUITE.log; what failed is shown. The last line is the sum over all of them:
#   N passed, N failed, N skipped
# A part that cannot run on this machine says "not run: reason" and counts as skipped.
# SPDX-License-Identifier: MIT
set -uo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$top" || exit 1
logs=$top/build/test
mkdir -p "$logs"
jobs=${JOBS:-2}

export NS_LIB=$top/dist/lib/nextsycl
export NS_ONEAPI=$NS_LIB/oneapi NS_KERNELS=$NS_LIB/kernels NS_BUNDLED=$top/dist/share/nextsycl/models
export NS_TEST_KERNELS=$top/build/test-kernels NS_DIST=$top/dist NS_BUILD=$top/build
# The user's own settings and models are not to be seen by a test.
sandbox=$(mktemp -d "${TMPDIR:-/tmp}/nextsycl-test.XXXXXX")
trap 'rm -rf "$sandbox"' EXIT
mkdir -p "$sandbox/config" "$sandbox/state" "$sandbox/data" "$sandbox/runtime"
chmod 700 "$sandbox/runtime"
export XDG_CONFIG_HOME=$sandbox/config XDG_STATE_HOME=$sandbox/state XDG_DATA_HOME=$sandbox/data XDG_RUNTIME_DIR=$sandbox/runtime
export NS_SOCKET_DIR=$sandbox/runtime/nextsycl

passed=0 failed=0 skipped=0

# suite NAME COMMAND...: runs it and adds up what its output counts. Three forms are understood:
#   cargo's "test result: ok. 12 passed; 0 failed; 1 ignored; ...", our own "12 passed, 0 failed, 1 skipped",
#   and nothing at all: then the exit code is one test, 77 or "not run:" being a skipped one.
suite() {
  local name=$1 log=$logs/$1.log began=$SECONDS code counts p f s
  shift
  printf '== %s\n' "$name"
  "$@" > "$log" 2>&1 < /dev/null
  code=$?
  counts=$(awk '
    /^test result: / { for (i = 2; i <= NF; i++) { if ($i ~ /^passed/) p += $(i-1); if ($i ~ /^failed/) f += $(i-1); if ($i ~ /^ignored/) s += $(i-1) } n++ }
    /^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$/ { p += $1; f += $3; s += $5; n++ }
    /^not run: / { reasons++ }
    END { print p + 0, f + 0, s + 0, n + 0, reasons + 0 }' "$log")
  local n reasons
  read -r p f s n reasons <<< "$counts"
  if [ "$n" = 0 ]; then
    if [ $code = 0 ] && [ "$reasons" = 0 ]; then p=1; elif [ $code = 0 ] || [ $code = 77 ]; then s=$((reasons > 0 ? reasons : 1)); else f=1; fi
  elif [ $code != 0 ] && [ "$f" = 0 ]; then
    f=1 # it counted no failure but did not end well: a crash or a build error
  fi
  grep '^not run: ' "$log"
  if [ "$f" != 0 ]; then
    grep -vE '^test .* ok$|^test result: ok|^ok: |^$|^(running|all doctests|     Running|   Compiling|    Checking|   Doc-tests)' "$log" | cut -c1-400 | tail -n 60
    printf 'FAILED: %s, the whole output is in %s\n' "$name" "$log"
  fi
  printf '   %s: %d passed, %d failed, %d skipped, %d s\n' "$name" "$p" "$f" "$s" $((SECONDS - began))
  passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
}

style() {
  cargo fmt --all --check || return 1
  cargo clippy --release --workspace --all-targets --locked -j "$jobs" -- -D warnings
}

rust() {
  local native=()
  if command -v ocloc > /dev/null; then native=(--ocloc ocloc); elif [ -x "$NS_BUILD/debian/ocloc/run" ]; then native=(--ocloc "$NS_BUILD/debian/ocloc/run ocloc"); fi
  "$NS_BUILD/nskc/nskc" --oneapi "$NS_BUILD/oneapi" --out "$NS_TEST_KERNELS" -I kernels --jobs "$jobs" --quiet "${native[@]}" engines/sycl/tests/kernels/*.cpp || return 1
  cargo test --release --workspace --locked --no-fail-fast -j "$jobs"
}

build() { tests/build/run.sh; }
# The kernel compiler, then its gate on the native code of every module.
compiler() {
  local ocloc iga unpacked=$NS_BUILD/debian/ocloc code=0
  kernels/compiler/tests.sh || code=1
  ocloc=$(command -v ocloc) || ocloc="$unpacked/run ocloc"
  iga=$(command -v iga64) || iga="$unpacked/run iga64"
  # shellcheck disable=SC2046 # one package a word
  if [ "$ocloc" != "$unpacked/run ocloc" ] && [ "$iga" != "$unpacked/run iga64" ] || pkgs/debian/fetch.sh "$unpacked" $(cat pkgs/debian/ocloc.packages); then
    for folder in $(find "$NS_BUILD/kernels" -name '*.gpu.json' -printf '%h\n' | sort -u); do
      # "arc gate: 24 modules, 322 kernel checks on bmg-g21, bmg-g31, 272 promises, 0 violations", after a line for each violation
      "$NS_BUILD/nskc/nskc" gate --dir "$folder" --ocloc "$ocloc" --iga "$iga" | tee "$logs/gate.log"
      [ "${PIPESTATUS[0]}" = 0 ] || code=1
      sed -n 's/^arc gate: .* \([0-9]*\) kernel checks .* \([0-9]*\) violations$/\1 \2/p' "$logs/gate.log" | {
        read -r checks violations && echo "$((violations > checks ? 0 : checks - violations)) passed, $violations failed, 0 skipped"
      } || code=1
    done
    # what docs/kernels.md was made from, where the same compiler is here
    if [ "$ocloc" = "$unpacked/run ocloc" ] && [ "$iga" = "$unpacked/run iga64" ]; then
      local page=engines/llm/qwen35/examples/kernels_page
      $page/gate.sh "$NS_BUILD" > "$logs/gate.txt" || code=1
      if [ "$(head -n 1 "$logs/gate.txt")" != "$(head -n 1 $page/gate.txt)" ]; then
        echo "not run: $page/gate.txt is of another compiler"
        echo "0 passed, 0 failed, 1 skipped"
      elif diff $page/gate.txt "$logs/gate.txt"; then
        echo "1 passed, 0 failed, 0 skipped"
      else
        echo "$page/gate.txt is old: $page/gate.sh build > $page/gate.txt, then make docs/kernels.md again"
        echo "0 passed, 1 failed, 0 skipped"
        code=1
      fi
    fi
  else
    echo "not run: the gate on native GPU code (ocloc cannot be had here)"
    echo "0 passed, 0 failed, 1 skipped"
  fi
  return $code
}
kernels() { kernels/tests/run.sh; }
nocard() { tests/nocard/tests.sh; }
clients() { tests/clients/run.sh; }
peer() { tests/peer/qwen35.sh; }
service() { tests/service/run.sh; }
nix() { tests/nix/run.sh; }

suites=(style build compiler rust kernels nocard clients peer service nix)
[ $# = 0 ] || suites=("$@")
for each in "${suites[@]}"; do
  case $each in
    style | build | compiler | rust | kernels | nocard | clients | peer | service | nix) suite "$each" "$each" ;;
    *) echo "tests/run.sh: no suite $each" >&2; exit 2 ;;
  esac
done
printf '%d passed, %d failed, %d skipped\n' $passed $failed $skipped
[ $failed = 0 ]
