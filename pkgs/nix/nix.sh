#!/usr/bin/env bash
# The flake where nixpkgs cannot be fetched: what it needs from outside is put into the store by its hash, and
# tests/nix-stub stands in for nixpkgs. Called by ./build.sh nix.
#   nix.sh check [NIX OPTION...]         nix flake check
#   nix.sh build ATTRIBUTE...            nix build of packages (or any attribute of the flake); prints the store paths
#   nix.sh run ATTRIBUTE [-- ARGUMENT...]    nix run
#   nix.sh eval EXPRESSION...            nix eval, and any other command of nix with its arguments
# NS_NIX: another nix. JOBS: processors a build may take (2).
# SPDX-License-Identifier: MIT
set -euo pipefail
here=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
top=$(cd "$here/../.." && pwd)
work=$top/build/nix
nix=${NS_NIX:-nix}
fail() { echo "build.sh: $*" >&2; exit 1; }
say() { echo "== $*" >&2; }

[ $# -ge 1 ] || { sed -n 4,8p "$0" >&2; exit 2; }
case $1 in
  build | run) [ $# -ge 2 ] || fail "nix $1 needs the name of a package: ./build.sh nix $1 nextsycl-llm" ;;
  flake) [ $# -ge 2 ] || fail "nix flake needs a command: ./build.sh nix flake show" ;;
esac
command -v "$nix" > /dev/null || fail "nix is missing: install the package nix-bin (Debian) or Nix itself"
command -v nix-store > /dev/null || fail "nix-store is missing: install the package nix-bin (Debian) or Nix itself"
for tool in unzip patchelf git cargo g++ python3; do
  command -v $tool > /dev/null || fail "$tool is missing: install the package $tool"
done
git -C "$top" rev-parse HEAD > /dev/null 2>&1 || fail "$top is no git checkout: Nix takes the flake's files from git"

mkdir -p "$work"
exec 7> "$work/lock"
flock 7

export NIX_CONFIG="experimental-features = nix-command flakes
sandbox = false
build-users-group =
substituters =
builders =
warn-dirty = false
flake-registry =
allow-import-from-derivation = false
max-jobs = 1
cores = ${JOBS:-2}
${NIX_CONFIG:-}"

# seed FOLDER: its files into the store, each under its own name.
seed() { find "$1" -type f -print0 | xargs -0r nix-store --add-fixed sha256 > /dev/null; }
# known SHA256 NAME: is it in the store already?
known() { nix-store --check-validity "$(nix-store --print-fixed-path sha256 "$1" "$2")" 2> /dev/null; }

# Crates, under the names nixpkgs gives them.
crates() {
  local name version sum home=${CARGO_HOME:-$HOME/.cargo} missing=0 folder=$work/crates
  rm -rf "$folder"
  mkdir -p "$folder"
  awk '/^name = /{n=$3} /^version = /{v=$3} /^checksum = /{print n, v, $3}' "$top/Cargo.lock" | tr -d '"' > "$work/crates.list"
  nix-store --check-validity --print-invalid $(while read -r name version sum; do
    echo "$sum crate-$name-$version.tar.gz"
  done < "$work/crates.list" | paths) > "$work/crates.missing"
  [ -s "$work/crates.missing" ] || return 0
  say "crates into the store"
  (cd "$top" && cargo fetch --locked --quiet) || fail "cargo could not fetch the crates of Cargo.lock"
  while read -r name version sum; do
    grep -q -- "-crate-$name-$version.tar.gz$" "$work/crates.missing" || continue
    set -- "$home"/registry/cache/*/"$name-$version.crate"
    [ -e "$1" ] || { missing=1; echo "build.sh: the crate $name $version is not in cargo's cache" >&2; continue; }
    cp "$1" "$folder/crate-$name-$version.tar.gz"
  done < "$work/crates.list"
  [ $missing = 0 ] || exit 1
  seed "$folder"
  rm -rf "$folder"
}
# paths: of lines "SHA256 NAME", the store paths such files have.
paths() {
  while read -r sum name; do nix-store --print-fixed-path sha256 "$sum" "$name"; done
}

# Wheels, fetched again only when the store lacks them.
wheels() {
  local file sum missing=()
  while read -r sum file; do
    known "$sum" "$file" || missing+=("$file")
  done < <(python3 -c 'import json, sys
for wheel in json.load(open(sys.argv[1]))["wheels"]: print(wheel["sha256"], wheel["file"])' "$top/pkgs/oneapi/wheels.lock.json")
  [ ${#missing[@]} -gt 0 ] || return 0
  say "wheels into the store"
  python3 "$top/pkgs/oneapi/fetch.py" --wheels "$top/pkgs/oneapi/wheels.lock.json" "$work/wheels" "${missing[@]}"
  rm -rf "$work/wheels/tmp"
  seed "$work/wheels"
  rm -rf "$work/wheels"
}

# stored NAME STAMP PATH...: the paths in one folder of the store, so that what is built with them does not depend on where this
# checkout is. Copied again only when the file STAMP has changed.
stored() {
  local record=$work/stored.$1 name=$1 sum path
  sum=$(cksum < "$2")
  if [ -e "$record" ] && path=$(sed -n 2p "$record") && [ "$(sed -n 1p "$record")" = "$sum" ] && nix-store --check-validity "$path" 2> /dev/null; then
    echo "$path"
    return
  fi
  shift 2
  rm -rf "$work/store"
  mkdir -p "$work/store/$name"
  cp -al "$@" "$work/store/$name/"
  path=$(nix-store --add "$work/store/$name")
  rm -rf "$work/store"
  printf '%s\n%s\n' "$sum" "$path" > "$record"
  echo "$path"
}

# The stand-in, with what this machine has beside it. Evaluation is pure, so nothing may come from the environment.
stand_in() {
  local ocloc iga64 formatters=$work/formatters unpacked=$top/build/debian/ocloc nocard rustup cargo no_machines=
  if ! ocloc=$(command -v ocloc) || ! iga64=$(command -v iga64); then
    # shellcheck disable=SC2046 # one package a word
    "$top/pkgs/debian/fetch.sh" "$unpacked" $(cat "$top/pkgs/debian/ocloc.packages") ||
      fail "the compiler for Intel GPUs (ocloc) cannot be had here, see above: the kernels' package needs it"
    unpacked=$(stored ocloc "$unpacked/versions" "$unpacked/run" "$unpacked/root")
    ocloc="$unpacked/run ocloc" iga64="$unpacked/run iga64"
  fi
  # shellcheck disable=SC2046 # one package a word
  "$top/pkgs/debian/fetch.sh" "$top/build/debian/nocard" $(cat "$top/pkgs/debian/nocard.packages") ||
    fail "Intel's driver cannot be had here, see above: the flake's check on pretended cards needs it"
  nocard=$(stored nocard "$top/build/debian/nocard/versions" "$top"/build/debian/nocard/{run,root,versions})
  "$here/formatters.sh" "$formatters"
  formatters=$(stored formatters "$formatters/bin/nixfmt" "$formatters/bin")
  rustup=${RUSTUP_HOME:-$HOME/.rustup}
  cargo=$(dirname "$(rustup which cargo 2> /dev/null || command -v cargo)")
  # Where no machine for a test can run, the reason: the checks vm-* then end after the units' texts and say so.
  no_machines=$(bash "$top/tests/nix-stub/testers/machine.sh" --probe 2>&1) || say "$no_machines"
  rm -rf "$work/stand-in.new"
  cp -r "$top/tests/nix-stub" "$work/stand-in.new"
  python3 - "$cargo" "$rustup" "$ocloc" "$iga64" "$formatters/bin" "$nocard" "$no_machines" << 'PY' > "$work/stand-in.new/host.json"
import json, sys
cargo, rustup, ocloc, iga64, formatters, nocard, no_machines = sys.argv[1:]
path = f"{cargo}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
print(json.dumps({"path": path, "rustup": rustup, "ocloc": ocloc, "iga64": iga64, "nocard": nocard, "noMachines": no_machines, "nixfmt": f"{formatters}/nixfmt", "deadnix": f"{formatters}/deadnix"}))
PY
  rm -rf "$work/stand-in"
  mv "$work/stand-in.new" "$work/stand-in"
}

crates
wheels
stand_in
flock -u 7
over=(--override-input nixpkgs "path:$work/stand-in" --no-write-lock-file)
cd "$top"
word=$1
shift
case $word in
  check) exec "$nix" flake check --keep-going "${over[@]}" "$@" ;;
  build)
    names=()
    for name; do case $name in -*) names+=("$name") ;; *) names+=(".#$name") ;; esac; done
    "$nix" build "${over[@]}" --no-link -L "${names[@]}"
    exec "$nix" path-info "${over[@]}" "${names[@]}"
    ;;
  run)
    name=$1
    shift
    exec "$nix" run "${over[@]}" ".#$name" "$@"
    ;;
  flake)
    part=$1
    shift
    exec "$nix" flake "$part" "${over[@]}" "$@"
    ;;
  *) exec "$nix" "$word" "${over[@]}" "$@" ;;
esac
