#!/usr/bin/env bash
# The server as systemd's own tools run it: socket activation with systemd-socket-activate, and the user units of
# `nextsycl install-units` through systemd-analyze. On the CPU device.
#   tests/service/run.sh        needs dist/ (or NS_DIST); systemd's tools are fetched under build/ where they are missing
# The last line is a count. Without the tools, because they cannot be had here, it says "not run".
# SPDX-License-Identifier: MIT
set -uo pipefail
top=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.." && pwd)
dist=${NS_DIST:-$top/dist}
[ -x "$dist/bin/nextsycl-llm" ] || { echo "tests/service: $dist/bin/nextsycl-llm is missing: ./build.sh build" >&2; exit 1; }
work=$(mktemp -d "${TMPDIR:-/tmp}/nextsycl-service.XXXXXX")
pids=()
finish() {
  for pid in "${pids[@]}"; do kill "$pid" 2> /dev/null; done
  rm -rf "$work"
}
trap finish EXIT
passed=0 failed=0
that() {
  local name=$1
  shift
  if "$@"; then passed=$((passed + 1)); echo "ok: $name"; else failed=$((failed + 1)); echo "FAILED: $name"; fi
}

activate=systemd-socket-activate analyze=systemd-analyze
if ! command -v $activate > /dev/null || ! command -v $analyze > /dev/null; then
  unpacked=${NS_BUILD:-$top/build}/debian/systemd
  if ! "$top/pkgs/debian/fetch.sh" "$unpacked" systemd; then
    echo "not run: service: systemd's tools cannot be had here"
    echo "0 passed, 0 failed, 1 skipped"
    exit 77
  fi
  libraries=$unpacked/root/usr/lib/x86_64-linux-gnu
  loader="$libraries/ld-linux-x86-64.so.2 --library-path $libraries:$libraries/systemd"
  activate="$loader $unpacked/root/usr/bin/systemd-socket-activate" analyze="$loader $unpacked/root/usr/bin/systemd-analyze"
fi

# What a service manager is told goes into a file.
cat > "$work/manager.py" << 'PYTHON'
import socket, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
s.bind(sys.argv[1])
while True:
    with open(sys.argv[2], "a") as f:
        f.write(s.recv(8192).decode() + "\n")
PYTHON
cat > "$work/ask.py" << 'PYTHON'
import json, sys, time, urllib.request
body = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0, "max_tokens": 12}
for attempt in range(100):
    try:
        request = urllib.request.Request(f"http://127.0.0.1:{sys.argv[1]}/v1/chat/completions", json.dumps(body).encode())
        print(json.load(urllib.request.urlopen(request, timeout=120))["choices"][0]["message"]["content"])
        break
    except ConnectionRefusedError:  # systemd-socket-activate does not listen yet
        time.sleep(0.1)
else:
    sys.exit("nobody listens")
PYTHON
python3 "$work/manager.py" "$work/notify" "$work/told" &
pids+=($!)
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
until [ -S "$work/notify" ] || [ $SECONDS -gt 20 ]; do sleep 0.1; done

# The tool gives a nearly empty environment, as systemd does.
# shellcheck disable=SC2086 # the tool may be two words
$activate -l "127.0.0.1:$port" -l "$work/control.sock" --fdname=http:control -E "NOTIFY_SOCKET=$work/notify" -E "HOME=$work" \
  -E "NS_MODULE_CACHE=${NS_BUILD:-$top/build}/test/modules" "$dist/bin/nextsycl-llm" serve --device cpu --ctx 512 --idle-exit 2 \
  --port 1 --socket /none/x > "$work/log" 2>&1 < /dev/null &
server=$!
pids+=("$server")
answer=$(python3 "$work/ask.py" "$port" 2>&1)
that "the first connection starts it and is answered: $answer" grep -q Paris <<< "$answer"
"$dist/bin/nextsycl-llm" status --no-stream --socket "$work/control.sock" > "$work/status" 2>&1
that "the control socket was handed over too" grep -q '1 request(s) served' "$work/status"
(sleep 60 && kill -9 "$server") 2> /dev/null &
pids+=($!)
wait "$server"
code=$?
that "quiet ends it with 0 (was $code)" test $code = 0
that "the socket file is left to systemd" test -S "$work/control.sock"
for line in READY=1 STOPPING=1 STATUS=serving EXTEND_TIMEOUT_USEC=; do
  that "the manager was told $line" grep -q "^$line" "$work/told"
done
[ $failed = 0 ] || sed 's/^/   /' "$work/log"

mkdir -p "$work/runtime" "$work/units"
"$dist/bin/nextsycl" install-units --user --dir "$work/units" --model "$work/a b%c.gguf" > "$work/said"
"$dist/bin/nextsycl" install-units --user --dir "$work/units" --name cpu --device cpu --port 8090 >> "$work/said"
# shellcheck disable=SC2086
XDG_RUNTIME_DIR=$work/runtime $analyze verify --user --man=no "$work"/units/* > "$work/verify" 2>&1
that "systemd has nothing to say about the user units" test ! -s "$work/verify"
sed 's/^/   /' "$work/verify"
that "four units were written" test "$(grep -c '^wrote ' "$work/said")" = 4
echo "$passed passed, $failed failed, 0 skipped"
[ $failed = 0 ]
