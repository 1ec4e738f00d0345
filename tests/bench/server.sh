#!/usr/bin/env bash
# Measures the server: the first token of a conversation of some 4,000 tokens after a restart, from the prompt cache on disk against
# read again, and with one more turn; and two conversations at once against one. Median of ROUNDS.
#
#   tests/bench/server.sh [MODEL.gguf] [ROUNDS] [DEVICE]      the bundled model, 3, cpu
#
# Bars: the first token at least 10 times sooner; together at least 1.3 times the tokens a second, and the same texts.
# The exit code is 1 when a bar is missed. Leave the machine alone meanwhile.
# SPDX-License-Identifier: MIT
set -euo pipefail
here=$(cd "$(dirname "$0")/../.." && pwd)
program=${NEXTSYCL_LLM:-$here/dist/bin/nextsycl-llm}
models=${NS_BUNDLED:-$here/dist/share/nextsycl/models}
model=${1:-$(find "$models" -maxdepth 1 -name '*.gguf' | head -n 1)} rounds=${2:-3} device=${3:-cpu}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
exec python3 - "$program" "$model" "$rounds" "$device" "$work" << 'P'
import json, os, signal, statistics, subprocess, sys, threading, time, urllib.request

program, model, rounds, device, work = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], sys.argv[5]
NEW = 256


class Server:
    def __init__(self, *flags):
        words = [program, "serve", model, "--port", "0", "--device", device, "--socket", f"{work}/s.sock", *flags]
        self.log = open(f"{work}/log", "a+")
        begin = self.log.tell()
        self.child = subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=self.log)
        deadline = time.time() + 600
        while time.time() < deadline:
            text = open(f"{work}/log").read()[begin:]
            if "http://" in text and " ready: " in text:
                self.url = "http://" + text.split("http://")[1].split()[0]
                return
            if self.child.poll() is not None:
                sys.exit(f"the server ended:\n{text}")
            time.sleep(0.05)
        sys.exit("the server did not start")

    def stop(self):
        self.child.send_signal(signal.SIGTERM)
        if self.child.wait(120) != 0:
            sys.exit("the server did not end well:\n" + open(f"{work}/log").read())

    def chat(self, messages, new, **more):
        """Text, seconds to the first token and to the end, tokens taken over."""
        body = dict(messages=messages, max_tokens=new, temperature=0, ignore_eos=True, stream=True,
                    stream_options={"include_usage": True}, **more)
        request = urllib.request.Request(self.url + "/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
        begun, first, text, usage = time.perf_counter(), None, "", None
        with urllib.request.urlopen(request, timeout=1200) as answer:
            for line in answer:
                if not line.startswith(b"data: {"):
                    continue
                value = json.loads(line[6:])
                if "error" in value:
                    sys.exit(value["error"]["message"])
                piece = value["choices"][0]["delta"].get("content") if value["choices"] else None
                if piece or (value["choices"] and value["choices"][0]["finish_reason"]):
                    first = first or time.perf_counter() - begun
                    text += piece or ""
                usage = value.get("usage") or usage
        if usage["completion_tokens"] != new:
            sys.exit(f"{usage['completion_tokens']} tokens came instead of {new}")
        return text, first, time.perf_counter() - begun, usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"]


facts = [f"Note {i}: the {a} {b} stood {i * 7 % 90} steps from the {c}." for i in range(400)
         for a, b, c in [(["old", "red", "small"][i % 3], ["tree", "house", "gate", "boat"][i % 4], ["river", "road", "wall"][i % 3])]]
# How many tokens a note has here.
server = Server("--ctx", "8192", "--parallel", "1", "--prompt-cache-mib", "0")
few, many = (server.chat([{"role": "user", "content": " ".join(facts[:n])}], 1)[4] for n in (2, 12))
server.stop()
notes = int(4000 * 10 / (many - few))
cached, more, again = [], [], []
for i in range(rounds):
    folder = f"{work}/prompts{i}"
    flags = ["--ctx", "8192", "--parallel", "1", "--cache-dir", folder]
    messages = [{"role": "user", "content": f"Read these notes, number {i}. " + " ".join(facts[:notes])}]
    server = Server(*flags)
    text, first, _, _, tokens = server.chat(messages, 8)
    again.append(first)
    server.stop()
    size = sum(os.path.getsize(os.path.join(folder, f)) for f in os.listdir(folder))
    for turns, times in ([], cached), ([text, "Where is the boat?"], more):
        server = Server(*flags)
        roles = ("assistant", "user")
        asked = messages + [{"role": role, "content": turn} for role, turn in zip(roles, turns)]
        got, first, _, reused, _ = server.chat(asked, 8)
        times.append(first)
        server.stop()
        if reused < tokens - 16:
            sys.exit(f"only {reused} of {tokens} tokens came from disk")
        if not turns and got != text:
            sys.exit("from disk it wrote something else")
    print(f"round {i + 1}: {tokens} tokens, {size / 2**20:.0f} MiB on disk; first token: read {again[-1]:.2f} s, from disk {cached[-1]:.3f} s, with one more turn {more[-1]:.3f} s", flush=True)
ratio = statistics.median(again) / statistics.median(cached)
print(f"first token after a restart: {statistics.median(cached):.3f} s from disk, {statistics.median(again):.2f} s read: {ratio:.1f} times sooner (bar 10); with one more turn {statistics.median(again) / statistics.median(more):.1f} times")

server = Server("--ctx", "2048", "--parallel", "2", "--prompt-cache-mib", "0")
asks = [[{"role": "user", "content": t}] for t in ("Write a story about the sea.", "Explain how bread is made, in many words.")]
alone = [server.chat(ask, NEW)[0] for ask in asks]
one, two = [], []
for i in range(rounds):
    for ask in asks:
        _, first, end, _, _ = server.chat(ask, NEW)
        one.append((NEW - 1) / (end - first))
    got = [None, None]
    threads = [threading.Thread(target=lambda k=k: got.__setitem__(k, server.chat(asks[k], NEW))) for k in range(2)]
    begun = time.perf_counter()
    [t.start() for t in threads]
    [t.join() for t in threads]
    # All tokens, from the first of any to the last.
    two.append(2 * (NEW - 1) / (time.perf_counter() - begun - min(g[1] for g in got)))
    if [g[0] for g in got] != alone:
        sys.exit("together they wrote something else than alone")
server.stop()
gain = statistics.median(two) / statistics.median(one)
print(f"one conversation {statistics.median(one):.1f} tok/s, two together {statistics.median(two):.1f} tok/s: {gain:.2f} times (bar 1.3), texts equal")
sys.exit(0 if ratio >= 10 and gain >= 1.3 else 1)
P
