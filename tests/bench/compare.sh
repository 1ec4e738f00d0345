#!/usr/bin/env bash
# Compares nextsycl-llm with llama.cpp on this machine's processor: same file, same cores, alternating runs, best and median of each.
#
#   tests/bench/compare.sh LLAMA_BENCH MODEL.gguf [ROUNDS]
#
# LLAMA_BENCH is the path of llama.cpp's llama-bench (a wrapper script is fine). Runs under `chrt -f 1` where that is
# allowed: the peer's threads spin at barriers and collapse on a busy machine. Leave the machine alone meanwhile.
set -euo pipefail
[ $# -ge 2 ] || { sed -n 2,7p "$0" >&2; exit 2; }
peer=$1 model=$2 rounds=${3:-5}
here=$(cd "$(dirname "$0")/../.." && pwd)
ours=${NEXTSYCL_LLM:-$here/dist/bin/nextsycl-llm}
cores=$(nproc)
prompt=512 new=128
first=(); chrt -f 1 true 2>/dev/null && first=(chrt -f 1) || echo "compare: no real-time priority here, figures will scatter" >&2
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
for ((i = 1; i <= rounds; i++)); do
  "${first[@]}" "$peer" -m "$model" -t "$cores" -p "$prompt" -n "$new" -r 1 -o json >"$work/peer.$i" 2>/dev/null
  "${first[@]}" "$ours" bench --offline "$model" --prompt "$prompt" --new "$new" --device cpu --json >"$work/ours.$i"
  echo "round $i of $rounds" >&2
done
python3 - "$work" "$rounds" <<'P'
import json, statistics, sys
work, rounds = sys.argv[1], int(sys.argv[2])
peer, ours = {"prompt": [], "decode": []}, {"prompt": [], "decode": []}
for i in range(1, rounds + 1):
    for row in json.load(open(f"{work}/peer.{i}")):
        peer["prompt" if row["n_prompt"] else "decode"].append(row["avg_ts"])
    row = json.load(open(f"{work}/ours.{i}"))
    ours["prompt"].append(row["prompt_tok_s"]); ours["decode"].append(row["decode_tok_s"])
print(f"{'':8} {'llama.cpp':>22} {'nextsycl':>22} {'ratio':>14}")
print(f"{'tok/s':8} {'median':>11} {'best':>10} {'median':>11} {'best':>10} {'median':>7} {'best':>6}")
for what in ("prompt", "decode"):
    p, o = peer[what], ours[what]
    pm, om = statistics.median(p), statistics.median(o)
    print(f"{what:8} {pm:11.1f} {max(p):10.1f} {om:11.1f} {max(o):10.1f} {om / pm:7.2f} {max(o) / max(p):6.2f}")
P
