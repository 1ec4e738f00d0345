#!/usr/bin/env bash
# What can be shown of our programs on Intel's driver without a card: modules load, answers are the same as on the CPU
# device, the host never waits for single events while serving, nothing stays allocated, too small a card is refused politely.
#   tests/nocard/tests.sh [modules|cards|tokens|serve|memory|split|runtime]
# SPDX-License-Identifier: MIT
set -uo pipefail
here=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
top=$(cd "$here/../.." && pwd)
run=$here/run
program=$top/dist/bin/nextsycl-llm
export NS_LIB=${NS_LIB:-$top/dist/lib/nextsycl}
export NS_ONEAPI=${NS_ONEAPI:-$NS_LIB/oneapi} NS_KERNELS=${NS_KERNELS:-$NS_LIB/kernels} NS_TEST_KERNELS=${NS_TEST_KERNELS:-$top/build/test-kernels}
work=$(mktemp -d "${TMPDIR:-/tmp}/nextsycl-nocard.XXXXXX")
server=
finish() {
  [ -z "$server" ] || kill "$server" 2> /dev/null
  rm -rf "$work"
}
trap finish EXIT
export XDG_CACHE_HOME=$work/cache XDG_STATE_HOME=$work/state XDG_CONFIG_HOME=$work/config NS_SOCKET_DIR=$work/sockets
passed=0 failed=0 skipped=0
ok() { passed=$((passed + 1)); echo "ok: $*"; }
bad() { failed=$((failed + 1)); echo "FAILED: $*"; }
that() { local name=$1; shift; if "$@"; then ok "$name"; else bad "$name"; fi; }
field() { sed -n "s/.*\"$2\":\([0-9]*\).*/\1/p" "$1"; }

"$run" --prepare
code=$?
if [ $code = 77 ]; then
  echo "not run: pretended cards (Debian's driver packages cannot be had, see above)"
  echo "0 passed, 0 failed, 1 skipped"
  exit 77
elif [ $code != 0 ]; then
  echo "FAILED: the wrapper driver could not be built"
  echo "0 passed, 1 failed, 0 skipped"
  exit 1
fi
root=${NS_NOCARD_ROOT:-$top/build/debian/nocard}/root

modules() {
  local loader=$top/build/nocard/load counts p f s folders=("$NS_KERNELS")
  if [ "$here/load.cpp" -nt "$loader" ]; then
    "${CXX:-g++}" -O2 -std=c++17 -Wall -Wextra -Wno-missing-field-initializers -isystem "$root/usr/include" "$here/load.cpp" -o "$loader.new" \
      -L"$root/usr/lib/x86_64-linux-gnu" -lze_loader -Wl,--allow-shlib-undefined && mv "$loader.new" "$loader" || { bad "load.cpp does not build"; return; }
  fi
  [ ! -d "$NS_TEST_KERNELS" ] || folders+=("$NS_TEST_KERNELS")
  python3 "$here/modules.py" "$run" "$loader" "${folders[@]}" > "$work/modules"
  code=$?
  grep -vE '^[0-9]+ passed' "$work/modules"
  counts=$(grep -E '^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$' "$work/modules")
  if [ -z "$counts" ]; then bad "modules.py ended with $code"; return; fi
  read -r p _ f _ s _ <<< "$counts"
  passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
}

cards() {
  local card name
  while read -r card name; do
    "$run" "$card" "$program" devices > "$work/devices" 2> "$work/devices.err" < /dev/null
    that "$card is listed as $name" grep -q "$name" "$work/devices"
  done << 'LIST'
b580 Arc B580
b60 Arc Pro B60
b70 Arc Pro B70
a770 Arc A770
LIST
  "$run" -n 2 b580 "$program" devices > "$work/devices" 2> "$work/devices.err" < /dev/null
  that "two cards are two devices" test "$(grep -c "Arc B580" "$work/devices")" = 2
}

answer() { # answer FILE COMMAND...: a greedy answer
  local out=$1
  shift
  "$@" generate "$model" --prompt "$prompt" --max 16 --temp 0 --ctx 512 "${device[@]}" > "$out" 2> "$out.err" < /dev/null
}

# Long enough for the products of a prompt (more than 8 rows), which take another way than single tokens.
prompt="The capital of France is a city that many people would like to see once, because of its food, its museums and its river. Its name is"

tokens() {
  local card cards_of device=(--device cpu)
  if ! answer "$work/cpu" "$program"; then
    bad "the answer on the CPU device: $(tail -n 1 "$work/cpu.err")"
    return
  fi
  that "the CPU device answers" test -s "$work/cpu"
  device=(--device gpu)
  for card in b70 b580 a770; do
    NS_NOCARD_REPORT=$work/$card.json answer "$work/$card" "$run" -x "$card" "$program"
    code=$?
    if [ $code = 0 ] && cmp -s "$work/cpu" "$work/$card"; then
      ok "$card gives the same tokens as the CPU device"
    else
      bad "$card gives other tokens than the CPU device (exit $code)"
      diff "$work/cpu" "$work/$card" | head -n 6
      tail -n 3 "$work/$card.err"
    fi
    that "$card ran every kernel" test "$(field "$work/$card.json" kernels_skipped)" = 0
    that "$card has no device memory left at exit" test "$(field "$work/$card.json" device_left)" = 0
  done
}

ask() { # ask N: one request of N tokens; prints the answer
  python3 - "$port" "$1" << 'PY'
import json, sys, urllib.request
body = {"messages": [{"role": "user", "content": "Count from one to twenty."}], "max_tokens": int(sys.argv[2]), "temperature": 0}
request = urllib.request.Request(f"http://127.0.0.1:{sys.argv[1]}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
print(json.load(urllib.request.urlopen(request, timeout=240))["usage"]["completion_tokens"])
PY
}

# served CARD N: a server on a pretended card answers one request of N tokens and stops; its report is in $work/served.N.json
served() {
  local tries=0
  port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
  NS_NOCARD_REPORT=$work/served.$2.json "$run" -x "$1" "$program" serve --host 127.0.0.1 --port "$port" --ctx 512 --parallel 1 --device gpu --model "$model" \
    > "$work/served.$2.log" 2>&1 < /dev/null &
  server=$!
  until python3 -c "import urllib.request; urllib.request.urlopen('http://127.0.0.1:$port/health', timeout=5)" 2> /dev/null; do
    tries=$((tries + 1))
    if [ $tries -gt 240 ] || ! kill -0 $server 2> /dev/null; then
      tail -n 3 "$work/served.$2.log"
      return 1
    fi
    sleep 0.5
  done
  ask "$2" > "$work/served.$2.tokens" || return 1
  kill -TERM $server
  wait $server
  code=$?
  server=
  return $code
}

serve() {
  if served b70 4 && served b70 36; then
    ok "a server on the b70 answers and stops"
  else
    bad "a server on the b70 does not answer and stop"
    return
  fi
  local few=$work/served.4.json many=$work/served.36.json
  that "more tokens were really made" test "$(cat "$work/served.36.tokens")" -gt "$(cat "$work/served.4.tokens")"
  that "serving waits for no host event" test "$(field "$few" host_event_waits) $(field "$many" host_event_waits)" = "0 0"
  that "every kernel of the server ran" test "$(field "$many" kernels_skipped)" = 0
  that "nothing is left on the device" test "$(field "$many" device_left)" = 0
  echo "   reports: $(cat "$many")"
}

memory() {
  local text device=(--device gpu)
  NS_NOCARD_VRAM=64 NS_NOCARD_REPORT=$work/small.json answer "$work/small" "$run" b580 "$program"
  code=$?
  text=$(tail -n 3 "$work/small.err")
  that "a card of 64 MiB is refused with exit 75 (was $code)" test $code = 75
  that "the refusal speaks of memory: $text" grep -qiE 'memory|MiB|GiB|MB|GB' "$work/small.err"
  that "and says nothing on stdout" test ! -s "$work/small"
  that "nothing is left on the small card" test "$(field "$work/small.json" device_left)" = 0
}

# A model with drafts over two cards: the weaker first, the same tokens as on the CPU device, refused with the numbers of both.
split() {
  local tiny=$work/tiny.gguf text
  if ! cargo run --release --locked -q -j "${JOBS:-2}" --manifest-path "$top/Cargo.toml" -p ns-tiny --bin nextsycl-tiny -- qwen35 --fitted --seed 3 --out "$tiny" > "$work/out" 2>&1; then
    bad "the seeded model cannot be written"
    tail -n 5 "$work/out"
    return
  fi
  words() { # words FILE COMMAND...
    local out=$1
    shift
    "$@" --ids 70,71,72,73,74,75,76,77,78,79,80,81 --ctx 256 --max 24 --temp 0 --ignore-eos --print-ids > "$out" 2> "$out.err" < /dev/null
  }
  words "$work/one" "$program" generate "$tiny" --device cpu || bad "the seeded model on the CPU device: $(tail -n 1 "$work/one.err")"
  NS_NOCARD_VRAM=30000,12000 "$run" -n 2 b70 "$program" plan "$tiny" --gpu all --opt-split 1 > "$work/plan" 2> "$work/plan.err" < /dev/null
  that "of all cards the weaker comes first" test "$(awk 'NR > 1 && NR < 4 { print $1, $5 }' "$work/plan" | tr '\n' ' ')" = "gpu:1 0 gpu:0 1-3 "
  NS_NOCARD_VRAM=30000,12000 "$run" -n 2 b70 "$program" plan "$tiny" --gpu 0,1 --opt-split 1 > "$work/plan" 2> "$work/plan.err" < /dev/null
  that "named cards keep their order" test "$(awk 'NR > 1 && NR < 4 { print $1, $5 }' "$work/plan" | tr '\n' ' ')" = "gpu:0 0 gpu:1 1-3 "
  NS_NOCARD_VRAM=30000,12000 NS_NOCARD_REPORT=$work/two.json words "$work/two" "$run" -x -n 2 b70 "$program" generate "$tiny" --gpu all --opt-split 2 --opt-kv f32
  code=$?
  if [ $code = 0 ] && cmp -s "$work/one" "$work/two"; then
    ok "two cards give the same tokens as the CPU device"
  else
    bad "two cards give other tokens than the CPU device (exit $code)"
    diff "$work/one" "$work/two" | head -n 6
    tail -n 3 "$work/two.err"
  fi
  that "the plan of both cards was told" test "$(grep -c '^Arc Pro B70 (gpu:[01]): layers ' "$work/two.err")" = 2
  that "both cards ran every kernel" test "$(field "$work/two.json" kernels_skipped)" = 0
  that "no device memory is left on the two cards" test "$(field "$work/two.json" device_left)" = 0
  NS_NOCARD_VRAM=1040,1050 "$run" -n 2 b70 "$program" generate "$tiny" --gpu all --ids 1 > "$work/two" 2> "$work/two.err" < /dev/null
  code=$?
  text=$(tail -n 1 "$work/two.err")
  that "two cards without room are refused with exit 75 (was $code)" test $code = 75
  that "with the numbers of both: $text" grep -q "does not fit on .*(gpu:0): layers 0-.*(gpu:1): layers .* stay free;" "$work/two.err"
}

# one NUMBER CARD CRATE TEST BINARY FILTER: a test program; what is to be said of it goes to $work/ok.NUMBER or bad.NUMBER. Words of the
# filter with = are settings.
one() {
  local number=$1 card=$2 crate=$3 test=$4 binary=$5 word words=() settings=() out=$work/out.$1 count code
  for word in $6; do
    if [[ $word = *=* ]]; then settings+=("$word"); else words+=("$word"); fi
  done
  (cd "$top/$crate" && env NS_TEST_DEVICE=gpu "${settings[@]}" timeout 1200 "$run" -x "$card" "$binary" --test-threads 1 "${words[@]}") > "$out" 2>&1 < /dev/null
  code=$?
  count=$(sed -n 's/^test result: ok. \([0-9]*\) passed.*/\1/p' "$out")
  if [ $code = 0 ] && [ "${count:-0}" -gt 0 ]; then
    echo "$crate $test on the $card: $count passed" > "$work/ok.$number"
  else
    { echo "$crate $test on the $card (exit $code)"; grep -vE '^test .* ok$' "$out" | tail -n 15; } > "$work/bad.$number"
  fi
}

# Test programs of the workspace on pretended cards: the runtime's, and the kernels of the GPU variant with their numbers.
runtime() {
  local card crate test filter binary number=0 running=() programs=$work/programs
  if ! cargo test --release --workspace --locked --no-run -j "${JOBS:-2}" --message-format json --manifest-path "$top/Cargo.toml" > "$work/cargo" 2> "$work/out"; then
    bad "the test programs do not build"
    tail -n 15 "$work/out"
    return
  fi
  python3 - "$work/cargo" > "$programs" << 'PY'
import json, pathlib, sys
for line in open(sys.argv[1]):
    message = json.loads(line)
    if message.get("executable") and "test" in message["target"]["kind"]:
        print(pathlib.Path(message["manifest_path"]).parent.as_posix(), message["target"]["name"], message["executable"])
PY
  # two at a time: a program mostly waits for the one thread that compiles its modules
  while read -r card crate test filter; do
    binary=$(awk -v crate="$top/$crate" -v test="$test" '$1 == crate && $2 == test { print $3 }' "$programs")
    if [ -z "$binary" ]; then
      bad "no test program $test in $crate"
      continue
    fi
    number=$((number + 1))
    one "$number" "$card" "$crate" "$test" "$binary" "$filter" &
    running+=($!)
    if [ ${#running[@]} -ge "${JOBS:-2}" ]; then
      wait "${running[0]}"
      running=("${running[@]:1}")
    fi
  done << 'LIST'
b70 engines/sycl launch
b70 engines/sycl graphs
b70 engines/sycl memory
b70 engines/sycl modules
a770 engines/sycl launch
a770 engines/sycl graphs
a770 engines/sycl memory
a770 engines/sycl modules
b580 engines/llm/kernels rows
b580 engines/llm/kernels attention
b580 engines/llm/kernels sampling
b580 engines/llm/kernels matrix NS_TEST_TYPES=F32,F16,BF16,Q8_0,Q4_0,Q4_1,Q5_0,Q5_1,Q2_K,Q3_K,Q4_K,Q5_K,Q6_K
b580 engines/llm/kernels matrix NS_TEST_TYPES=IQ1_M,IQ2_XXS,IQ2_XS,IQ2_S,IQ3_XXS,IQ3_S,IQ4_NL,IQ4_XS
b70 engines/llm/qwen35 delta
b70 engines/llm/qwen35 gated
b580 engines/llm/kernels profile the_measures launches_tell
b580 engines/llm/kernels silo products_with_few_rows
a770 engines/llm/kernels rows
a770 engines/llm/kernels attention
b70 engines/llm/llama tiny own_head rows_together
LIST
  wait
  for ((card = 1; card <= number; card++)); do
    if [ -e "$work/ok.$card" ]; then ok "$(cat "$work/ok.$card")"; else bad "$(cat "$work/bad.$card")"; fi
  done
}

model=$(find "${NS_BUNDLED:-$top/dist/share/nextsycl/models}" -name '*.gguf' 2> /dev/null | head -n 1)
parts=(modules cards tokens serve memory split runtime)
[ $# = 0 ] || parts=("$@")
for part in "${parts[@]}"; do "$part"; done
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
