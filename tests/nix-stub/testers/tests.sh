#!/usr/bin/env bash
# The stand-in's machines fail when they must: their driver with small machines and scripts, without Nix.
# The last line is a count; where no machine can run it says "not run".
# SPDX-License-Identifier: MIT
set -uo pipefail
here=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
if ! bash "$here/machine.sh" --probe; then
  echo "0 passed, 0 failed, 1 skipped"
  exit 77
fi
work=$(mktemp -d "${TMPDIR:-/tmp}/nextsycl-machines.XXXXXX")
trap 'rm -rf "$work"' EXIT
passed=0 failed=0
verdict() {
  if [ "$1" = 0 ]; then passed=$((passed + 1)); echo "ok: $2"; else failed=$((failed + 1)); echo "FAILED: $2"; sed 's/^/   /' "$work/log"; fi
}

# run [KEY=VALUE...]: a machine whose unit t.service has the text of UNIT, with the script of SCRIPT; output in $work/log.
run() {
  local unit=$'[Service]\nExecStart=/usr/bin/sleep 100\n' script="" timeout=60 reason="" word
  for word; do
    case $word in
      unit=*) unit=${word#*=} ;; script=*) script=${word#*=} ;; timeout=*) timeout=${word#*=} ;; reason=*) reason=${word#*=} ;;
    esac
  done
  printf '%s\n' "$script" > "$work/script"
  python3 - "$unit" "$timeout" "$reason" > "$work/machines" << 'PY'
import json, sys
unit, timeout, reason = sys.argv[1:]
machine = {"units": {"t.service": unit}, "wants": {"t.service": ["multi-user.target"]}, "etc": {"greeting": {"text": "hello\n"}},
           "tmpfiles": ["d /var/lib/bob 0700 bob bob -"], "users": {"bob": {"isSystemUser": True, "group": "bob"}}, "groups": {"bob": {}}, "path": []}
print(json.dumps({"timeout": int(timeout), "reason": reason, "machines": {"box": machine}}))
PY
  NIX_BUILD_TOP=$work python3 "$here/driver.py" "$work/machines" "$work/script" "$here/machine.sh" > "$work/log" 2>&1 < /dev/null
}
works() { local name=$1; shift; run "$@"; verdict $? "$name"; }
# fails NAME WORDS KEY=VALUE...: it fails, and says WORDS.
fails() {
  local name=$1 words=$2 code
  shift 2
  run "$@"
  code=$?
  [ $code != 0 ] && grep -qF -- "$words" "$work/log"
  verdict $? "$name"
}

touch "$work/outside"
works "a machine with its own files, users and addresses" script="
box.wait_for_unit('t.service')
box.succeed('grep -q hello /etc/greeting', 'test \$(stat -c %U:%a /var/lib/bob) = bob:700', 'rm -rf /tmp/* /var/tmp/*')
box.fail('touch /usr/here', 'ls $work/outside', 'ls /root/.cargo', 'modprobe loop')
assert box.succeed('ls /sys/class/net').split() == ['lo'], 'other networks'
box.shutdown()
box.wait_for_unit('t.service')"
[ -e "$work/outside" ]
verdict $? "files outside stay"
fails "a command that fails" 'failed (exit code 1)' script="machine.succeed('false')"
fails "a command that must fail and does not" 'unexpectedly succeeded' script="machine.fail('true')"
fails "an assertion of the script" 'AssertionError' script="assert machine.execute('exit 3')[0] == 0"
fails "a script that is no Python" 'SyntaxError' script="machine.succeed("
fails "a unit whose program is missing" "/usr/bin/nothing-here is not executable" unit=$'[Service]\nExecStart=/usr/bin/nothing-here\n' script="machine.start()"
fails "a unit whose program fails" "unit 't.service' reached state 'failed'" unit=$'[Service]\nExecStart=/usr/bin/false\n' script="machine.wait_for_unit('t.service')"
fails "a unit that does not exist" "unit 'u.service' is inactive" script="machine.wait_for_unit('u.service')"
fails "a unit with an unknown key" "Unknown key" unit=$'[Service]\nExecStart=/usr/bin/sleep 9\nHardened=yes\n' script="machine.start()"
fails "the same without a machine" "Unknown key" unit=$'[Service]\nExecStart=/usr/bin/sleep 9\nHardened=yes\n' reason="not run: no reason"
works "a good unit without a machine" reason="not run: no reason" script="raise SystemExit(1)"
fails "a port that nobody opens" 'timed out' script="machine.wait_for_open_port(8085, timeout=2)"
fails "a test that takes too long" 'globalTimeout of 3 seconds' timeout=3 script="machine.succeed('sleep 50')"
fails "what only a virtual machine has" 'no such thing' script="machine.screenshot('x')"

# A driver that is killed takes its machine along.
run script="machine.start(); machine.succeed('sleep 50')" &
for _ in $(seq 100); do
  driver=$(pgrep -f "driver.py $work/machines" | head -n 1)
  if [ -n "$driver" ] && grep -q 'must succeed' "$work/log" 2> /dev/null; then break; fi
  sleep 0.1
done
inside() { pgrep -f -- "--inside $work/" > /dev/null; }
inside
verdict $? "the machine runs"
kill -9 "$driver"
wait
for _ in $(seq 50); do inside || break; sleep 0.1; done
! inside
verdict $? "a driver that is killed takes its machine along"
echo "$passed passed, $failed failed, 0 skipped"
[ $failed = 0 ]
