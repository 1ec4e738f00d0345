#!/usr/bin/env bash
# Builds and runs nextsycl from a fresh clone: ./build.sh help
# SPDX-License-Identifier: MIT
set -euo pipefail

here=${BASH_SOURCE[0]%/*}
[ "$here" != "${BASH_SOURCE[0]}" ] || here=.
here=$(cd "$here" && pwd)
build=$here/build
dist=$here/dist
target=${CARGO_TARGET_DIR:-$here/target}
jobs=${JOBS:-2}
lock_file=${NS_WHEELS_LOCK:-$here/pkgs/oneapi/wheels.lock.json}
# What a build depends on: nothing of it newer than the stamp means that there is nothing to do.
inputs=(build.sh Cargo.toml Cargo.lock pkgs/oneapi pkgs/debian kernels engines tools tests/tiny)

usage() {
  cat << 'TEXT'
./build.sh run "PROMPT"    build what is missing, then answer PROMPT with the default model
./build.sh run             the same, as a chat in the terminal
./build.sh build           build only: everything ends up in dist/, a folder that can be moved
./build.sh test            build, then run every test; the last line is a count
./build.sh nix WHAT ...    the same through the Nix flake, also where nixpkgs cannot be fetched: check, build PACKAGE,
                           run PACKAGE -- ARGUMENTS (docs/nix.md)
./build.sh clean           remove what was built and fetched (build/, dist/, target/)
./build.sh help            this text

Needs: x86-64 Linux, g++ 12 or newer, Rust (cargo), python3 with pip (only to fetch and unpack), 5 GB of disk, and the
network once. More arguments of `run` go to nextsycl-llm run: ./build.sh run --max 50 "PROMPT".

JOBS=N                 compilers at a time (2)
NS_WHEELS_LOCK=FILE    another list of wheels than pkgs/oneapi/wheels.lock.json
CARGO_TARGET_DIR=DIR   another folder than target/ for cargo
TEXT
}

fail() { echo "build.sh: $*" >&2; exit 1; }
say() { echo "== $*" >&2; }

# The tools of the machine; one line for each that is missing.
preflight() {
  local missing=0 cxx=${CXX:-g++}
  need() {
    command -v "$1" > /dev/null 2>&1 && return
    echo "build.sh: $2 is missing: install $3" >&2
    missing=1
  }
  [ "$(uname -s)-$(uname -m)" = Linux-x86_64 ] || fail "this machine is $(uname -s) on $(uname -m); nextsycl needs Linux on x86-64"
  case $here in
    *[[:space:]]*) fail "the path of this folder has a blank in it ($here): Intel's CPU runtime does not work there, clone somewhere else" ;;
  esac
  need "$cxx" "the C++ compiler ($cxx)" "the package g++"
  need cargo "the Rust compiler (cargo)" "Rust $(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml) or newer from rustup"
  need python3 "python3" "the packages python3 and python3-pip"
  [ $missing = 0 ] || exit 1
  local version
  version=$("$cxx" -dumpversion 2> /dev/null) || fail "the C++ compiler ($cxx) does not run"
  [ "${version%%.*}" -ge 12 ] || fail "$cxx is of version $version: install g++ 12 or newer, or name one with CXX="
  python3 -m pip --version > /dev/null 2>&1 || fail "pip is missing for python3: install the package python3-pip"
}

up_to_date() {
  [ -e "$build/stamp" ] && [ -x "$dist/bin/nextsycl-llm" ] && [ -x "$dist/bin/nextsycl" ] || return 1
  [ "$(< "$build/stamp")" = "$lock_file" ] && [ ! "$lock_file" -nt "$build/stamp" ] || return 1
  [ -z "$(find "${inputs[@]}" -newer "$build/stamp" -print -quit 2>&1)" ]
}

# One build at a time; a second one waits.
take_lock() {
  mkdir -p "$build"
  exec 8> "$build/lock"
  if ! flock -n 8; then
    say "another build.sh is at work here: waiting for it"
    flock 8
  fi
}

# The offline compiler for Intel GPUs: the machine's own, or Debian's unpacked. Without one there is no native code, which
# costs a card one compilation of each kernel at its first use and nothing else.
find_ocloc() {
  local unpacked=$build/debian/ocloc
  ocloc=$(command -v ocloc || true)
  [ -z "$ocloc" ] || return 0
  # shellcheck disable=SC2046 # one package a word
  if pkgs/debian/fetch.sh "$unpacked" $(cat pkgs/debian/ocloc.packages); then
    ocloc="$unpacked/run ocloc"
  else
    say "no native GPU code: ocloc cannot be had here (see above); cards compile the kernels at their first use"
  fi
}

# The commit's UTC date and its number among that day's commits: yy.mmdd.NNN; nothing without git.
version() {
  local log
  [ "$(git rev-parse --show-toplevel 2> /dev/null)" = "$here" ] || return 0
  log=$(TZ=UTC0 git log --format=%cd --date=format-local:%y.%m%d) || return 0
  awk 'NR == 1 { day = $1 } $1 == day { count++ } END { if (NR) printf "%s.%03d\n", day, count }' <<< "$log"
}
# A commit that changes nothing of the build still has its own version.
stamp_version() {
  local file=$dist/share/nextsycl/version now
  now=$(version)
  [ "$(cat "$file" 2> /dev/null)" = "$now" ] || { echo "$now" > "$file.new" && mv "$file.new" "$file"; }
}

# Modules whose source is gone.
forget_gone_kernels() {
  local file folder module
  while read -r file; do
    module=${file##*/} folder=${file%/*}
    [ -e "kernels/${folder#"$build"/kernels/}/${module%%.*}.cpp" ] || rm -f "$file"
  done < <(find "$build/kernels" -name '.*' -prune -o -type f -print 2> /dev/null)
}

# link FROM TO: TO becomes the same file as FROM (a hard link, a copy across file systems). Symbolic links stay links.
link() { cp -alT "$1" "$2" 2> /dev/null || cp -aT "$1" "$2"; }

# The movable folder, put together beside the old one and swapped in.
assemble() {
  local fresh=$build/dist.tmp kept
  rm -rf "$fresh"
  mkdir -p "$fresh/bin" "$fresh/lib/nextsycl/oneapi/lib" "$fresh/share/nextsycl/models" "$fresh/include"
  for program in nextsycl nextsycl-llm; do link "$target/release/$program" "$fresh/bin/$program"; done
  for library in "$build"/lib/*.so; do link "$library" "$fresh/lib/nextsycl/${library##*/}"; done
  link "$build/kernels" "$fresh/lib/nextsycl/kernels"
  find "$fresh/lib/nextsycl/kernels" -mindepth 2 -name '.*' -prune -exec rm -rf {} +
  while read -r file; do link "$build/oneapi/lib/$file" "$fresh/lib/nextsycl/oneapi/lib/$file"; done < "$build/oneapi/.runtime"
  link "$build/oneapi/licensing" "$fresh/lib/nextsycl/oneapi/licensing"
  for model in "$build"/model/*.gguf; do link "$model" "$fresh/share/nextsycl/models/${model##*/}"; done
  link "$build/model/licensing" "$fresh/share/nextsycl/models/licensing"
  for header in "$build"/include/*.h; do link "$header" "$fresh/include/${header##*/}"; done
  link "$here/LICENSE" "$fresh/LICENSE"
  version > "$fresh/share/nextsycl/version"
  kept=$build/dist.old
  rm -rf "$kept"
  [ ! -e "$dist" ] || mv "$dist" "$kept"
  mv "$fresh" "$dist"
  rm -rf "$kept"
}

build_all() {
  if up_to_date; then stamp_version; return; fi
  preflight
  take_lock
  if up_to_date; then stamp_version; return; fi
  local file
  # The stamp gets the time at which the build began, so that a file changed meanwhile counts as new.
  rm -f "$build/stamp"
  echo "$lock_file" > "$build/began"
  python3 pkgs/oneapi/fetch.py "$lock_file" "$build"
  say "kernel compiler"
  kernels/compiler/build.sh "$build/oneapi" "$build/nskc"
  say "kernels"
  find_ocloc
  forget_gone_kernels
  NS_OCLOC=$ocloc JOBS=$jobs kernels/build.sh "$build"
  say "runtime libraries"
  JOBS=$jobs kernels/runtime/build.sh "$build/oneapi" "$build/runtime"
  mkdir -p "$build/lib" "$build/include"
  for file in "$build"/runtime/*.so "$build"/launchers/*.so; do ln -f "$file" "$build/lib/"; done
  for file in "$build"/runtime/*.h "$build"/launchers/*.h; do ln -f "$file" "$build/include/"; done
  say "programs"
  cargo build --release --locked -j "$jobs" -p nextsycl -p nextsycl-llm -p ns-tiny ||
    fail "cargo could not build the programs; its messages are above"
  assemble
  mv "$build/began" "$build/stamp"
  exec 8>&-
}

cd "$here"
command=${1:-help}
[ $# = 0 ] || shift
case $command in
  run)
    build_all
    exec "$dist/bin/nextsycl-llm" run "$@"
    ;;
  build)
    [ $# = 0 ] || fail "build takes no arguments: ./build.sh help"
    build_all
    say "ready: $dist/bin/nextsycl-llm"
    ;;
  test)
    build_all
    exec tests/run.sh "$@"
    ;;
  nix)
    exec pkgs/nix/nix.sh "$@"
    ;;
  clean)
    take_lock
    rm -rf "$dist" "$target"
    find "$build" -mindepth 1 -maxdepth 1 ! -name lock -exec rm -rf {} +
    ;;
  help | -h | --help) usage ;;
  *)
    usage >&2
    exit 2
    ;;
esac
