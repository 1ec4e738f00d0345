#!/usr/bin/env bash
# The qwen35 engine and our 64-bit reference against llama.cpp as Debian sid has it, on the CPU.
#   tests/peer/qwen35.sh
# Two kinds of files, all in 32-bit floats: those of llama.cpp's own generator of random models (its shapes: heads of 128, all
# features rotated), and our seeded ones (heads of 256 with 64 rotated, three value heads to a key head). llama.cpp reads a
# text and stores the logits of its last row; the others get the same token ids. A difference may be 2e-5 of the logits' spread.
# llama.cpp's random files have tokens that only its own tests know, so the engine gets them with other tokens, twice: with
# the factors of products and the biases that no real file has, and without, the factors in the matrices. llama.cpp reads the
# same files then.
# Environment: NS_LIB, NS_ONEAPI, NS_KERNELS (those of dist/); NS_PEER_ROOT, unpacked packages (build/debian/llama.cpp, fetched
# when missing); NS_PEER_PROGRAMS, where our programs are (target/release).
# Last line: "N passed, N failed, N skipped". Exit code 77 and "not run: reason" when the packages cannot be had.
# SPDX-License-Identifier: MIT
set -uo pipefail
here=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
top=$(cd "$here/../.." && pwd)
root=${NS_PEER_ROOT:-$top/build/debian/llama.cpp}
programs=${NS_PEER_PROGRAMS:-$top/target/release}
export NS_LIB=${NS_LIB:-$top/dist/lib/nextsycl}
export NS_ONEAPI=${NS_ONEAPI:-$NS_LIB/oneapi} NS_KERNELS=${NS_KERNELS:-$NS_LIB/kernels}
bound=2e-5
work=$(mktemp -d "${TMPDIR:-/tmp}/nextsycl-peer.XXXXXX")
trap 'rm -rf "$work"' EXIT
export XDG_CACHE_HOME=$work/cache XDG_STATE_HOME=$work/state XDG_CONFIG_HOME=$work/config
passed=0 failed=0
# that NAME COMMAND...: one test, with the line the command says
that() {
  local name=$1
  shift
  if "$@" > "$work/said" 2>&1; then
    passed=$((passed + 1))
    echo "ok: $name: $(tail -n 1 "$work/said" | cut -c1-200)"
  else
    failed=$((failed + 1))
    echo "FAILED: $name: $(tail -n 2 "$work/said" | cut -c1-400)"
  fi
}

if [ -z "${NS_PEER_ROOT:-}" ]; then
  # shellcheck disable=SC2046 # one package a word
  "$top/pkgs/debian/fetch.sh" "$root" $(cat "$here/packages")
  code=$?
  if [ $code != 0 ]; then
    if [ $code = 77 ]; then
      echo "not run: comparison with llama.cpp (its packages cannot be had, see above)"
      echo "0 passed, 0 failed, 1 skipped"
    else
      echo "FAILED: llama.cpp's packages could not be unpacked"
      echo "0 passed, 1 failed, 0 skipped"
    fi
    exit $code
  fi
fi

# A program of the packages, with their own loader and libraries and the CPU backend for processors with AVX2.
peer() {
  local lib=$root/root/usr/lib/x86_64-linux-gnu program
  for program in "$root/root/usr/bin/$1" "$root"/root/usr/libexec/*/*/"$1"; do [ ! -x "$program" ] || break; done
  shift
  GGML_BACKEND_PATH=$(find "$lib/ggml" -name 'libggml-cpu-haswell.so' | head -n 1) \
    timeout 300 "$lib/ld-linux-x86-64.so.2" --library-path "$lib:$lib/llama:$lib/ggml" "$program" "$@" < /dev/null
}

# Bytes of FILE as whole numbers of 32 bits, apart by commas.
numbers() { od -An -v -t d4 "$1" | tr -s ' \n' ',,' | sed 's/^,*//; s/,*$//'; }

# ask FILE TEXT: llama.cpp's logits for a text in $work/peer.bin, and its token ids in $ids.
ask() {
  rm -rf "$work/out"
  peer llama-debug -m "$1" -p "$2" --save-logits --logits-output-dir "$work/out" --no-warmup -t 2 -ngl 0 -fa off \
    -ctk f32 -ctv f32 > "$work/log" 2>&1 || { tail -n 5 "$work/log"; return 1; }
  mv "$work"/out/*-tokens.bin "$work/tokens.bin" && mv "$work"/out/*.bin "$work/peer.bin" || return 1
  ids=$(numbers "$work/tokens.bin")
  echo "$(tr -cd , <<< "$ids," | wc -c) tokens"
}

engine() { "$programs/nextsycl-llm" logits "$1" --ids "$2" --device cpu --opt-kv f32 --out "$work/ours.f32"; }
reference() { "$programs/nextsycl-reference" logits "$1" --ids "$2" --out "$work/ours.f32"; }
# compare FILE NAME reference|engine: for the last text asked.
compare() {
  local file=$1 name=$2
  "$3" "$file" "$ids" > "$work/log" 2>&1 || { failed=$((failed + 1)); echo "FAILED: $name, $3: $(tail -n 2 "$work/log" | cut -c1-400)"; return; }
  that "$name, $3" "$programs/nextsycl-reference" compare "$work/peer.bin" "$work/ours.f32" --bound $bound
}

long="The quick brown fox jumps over the lazy dog, twice; then it sleeps."
texts=(a "Hello, world" "$long" "$long $long $long")
try() {
  local file=$1 name=$2 text which
  shift 2
  for text in "${texts[@]}"; do
    # in this shell, which wants the ids
    if ask "$file" "$text" > "$work/said" 2>&1; then
      which="$name, $(tail -n 1 "$work/said")"
      for who in "$@"; do compare "$file" "$which" "$who"; done
    else
      failed=$((failed + 1))
      echo "FAILED: $name, llama.cpp: $(tail -n 3 "$work/said" | cut -c1-400)"
    fi
  done
}

for seed in 7741 7742 7743; do
  mkdir -p "$work/random"
  if ! peer test-llama-archs -a '^qwen35$' -o "$work/random" -s $seed > "$work/log" 2>&1; then
    failed=$((failed + 1))
    echo "FAILED: llama.cpp's generator: $(tail -n 2 "$work/log" | cut -c1-400)"
    continue
  fi
  file=$(find "$work/random" -name '*.gguf')
  try "$file" "random $seed" reference
  plain=$work/plain.gguf
  that "random $seed with other tokens" "$programs/nextsycl-reference" plain "$file" "$plain" --keep-factors
  try "$plain" "random $seed with other tokens" reference engine
  that "random $seed without factors" "$programs/nextsycl-reference" plain "$file" "$plain"
  try "$plain" "random $seed without factors" reference engine
  rm -rf "$work/random"
done
for table in qwen35 qwen35-tied; do
  that "$table is written" "$programs/nextsycl-tiny" --table "$top/tests/fixtures/llm/$table.json" --out "$work/seeded.gguf"
  try "$work/seeded.gguf" "$table" reference engine
done
that "a deeper one is written" "$programs/nextsycl-tiny" qwen35 --shape small --seed 5 --out "$work/seeded.gguf"
try "$work/seeded.gguf" "shape small" reference engine
echo "$passed passed, $failed failed, 0 skipped"
[ $failed = 0 ]
