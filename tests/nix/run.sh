#!/usr/bin/env bash
# Tests of the Nix flake, against the stand-in for nixpkgs: the lock's form, every check and package, `nix run`, how long a check
# with nothing to do takes, what a user reads when something is missing, and evaluation with a newer Nix.
#   tests/nix/run.sh       the last line is N passed, N failed, N skipped
# As root on a Debian it installs the packages it needs; else it says what is missing.
# SPDX-License-Identifier: MIT
set -uo pipefail
top=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.." && pwd)
cd "$top" || exit 1
passed=0 failed=0 skipped=0
ok() { passed=$((passed + 1)); echo "ok: $*"; }
bad() { failed=$((failed + 1)); echo "FAILED: $*"; }
that() { local name=$1; shift; if "$@"; then ok "$name"; else bad "$name"; fi; }
end() { printf '%d passed, %d failed, %d skipped\n' $passed $failed $skipped; [ $failed = 0 ]; exit; }

packages=()
for pair in nix-store:nix-bin unzip:unzip patchelf:patchelf systemd-analyze:systemd git:git curl:curl; do
  command -v "${pair%%:*}" > /dev/null || packages+=("${pair##*:}")
done
if [ ${#packages[@]} -gt 0 ]; then
  if [ "$(id -u)" != 0 ] || ! command -v apt-get > /dev/null; then
    echo "not run: the flake (these packages are missing: ${packages[*]})"
    skipped=1
    end
  fi
  echo "installing ${packages[*]}"
  apt-get update -qq > /dev/null 2>&1
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}" > /dev/null 2>&1 || { bad "apt-get install ${packages[*]}"; end; }
fi

work=$(mktemp -d "${TMPDIR:-/tmp}/nextsycl-nix.XXXXXX")
trap 'rm -rf "$work"' EXIT
ns() { pkgs/nix/nix.sh "$@"; }

# What can be said of the pin without fetching it.
lock_form() {
  python3 - << 'PY'
import base64, json, re
lock = json.load(open("flake.lock"))
node = lock["nodes"]["nixpkgs"]
locked, original = node["locked"], node["original"]
url = re.search(r'inputs\.nixpkgs\.url = "github:([^/"]+)/([^/"]+)/([^"]+)"', open("flake.nix").read())
assert lock["version"] == 7 and lock["root"] == "root" and lock["nodes"]["root"]["inputs"] == {"nixpkgs": "nixpkgs"}, "form"
assert re.fullmatch("[0-9a-f]{40}", locked["rev"]), "rev"
assert len(base64.b64decode(locked["narHash"].removeprefix("sha256-"), validate=True)) == 32, "narHash"
assert isinstance(locked["lastModified"], int), "lastModified"
assert (original["owner"], original["repo"], original["ref"]) == url.groups(), "flake.nix names another branch"
assert (locked["owner"], locked["repo"]) == url.groups()[:2], "owner"
PY
}
that "flake.lock has one input, of the form Nix writes" lock_form

# No prompt, no setting, no import from derivation is needed.
that "the flake sets no nixConfig" bash -c '! grep -rn "nixConfig" flake.nix'

if ns check -L > "$work/check" 2>&1; then
  ok "nix flake check"
else
  bad "nix flake check"
  grep -v Compiling "$work/check" | tail -n 40
fi
# What each check had to say in figures.
grep -hE '> *[0-9]+ passed, [0-9]+ failed|arc gate: |MB$|[Ee]xposure' "$work/check" | sed 's/^/  /' | head -n 60

began=$(date +%s%N)
if ns check > "$work/again" 2>&1; then
  spent=$((($(date +%s%N) - began) / 1000000))
  echo "  nix flake check with nothing to do: $spent ms"
  ok "nix flake check again"
else
  bad "nix flake check again"
  tail -n 20 "$work/again"
fi

mapfile -t names < <(ns eval --raw .#packages.x86_64-linux --apply 'p: builtins.concatStringsSep "\n" (builtins.attrNames p)' 2> "$work/eval")
that "the packages are listed" test ${#names[@]} -ge 10
for name in "${names[@]}"; do
  if path=$(ns build "$name" 2> "$work/build") && [ -e "$path" ]; then ok "nix build .#$name"; else bad "nix build .#$name"; tail -n 10 "$work/build"; fi
done

export XDG_CACHE_HOME=$work/cache XDG_CONFIG_HOME=$work/config XDG_RUNTIME_DIR=$work
if ns run nextsycl-llm -- run --temp 0 --max 16 "What is the capital of France?" > "$work/answer" 2> "$work/said" < /dev/null; then
  that "nix run .#nextsycl-llm -- run answers" diff tests/fixtures/llm/capital.txt "$work/answer"
else
  bad "nix run .#nextsycl-llm -- run"
  tail -n 5 "$work/said"
fi
that "and says that it runs on the CPU device" grep -q "running on the CPU device" "$work/said"
ns run nextsycl -- llm --version > "$work/version" 2> "$work/said"
that "a version of the flake has its form" grep -qE '^nextsycl-llm [0-9]{2}\.[0-9]{4}\.[0-9]{3}$' "$work/version"
ns run nextsycl-llm -- run --model no-such-model x > "$work/out" 2> "$work/said" < /dev/null
that "the program's exit code is nix run's" test $? = 4
unset XDG_CACHE_HOME XDG_CONFIG_HOME XDG_RUNTIME_DIR

# The machines of the checks vm-*, which the stand-in makes of this host's systemd.
tests/nix-stub/testers/tests.sh > "$work/machines" 2>&1
code=$?
grep -hE '^(ok|FAILED|not run): |^   ' "$work/machines"
read -r good wrong skip <<< "$(sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed, \([0-9]*\) skipped$/\1 \2 \3/p' "$work/machines")"
passed=$((passed + ${good:-0})) failed=$((failed + ${wrong:-0})) skipped=$((skipped + ${skip:-0}))
[ $code = 0 ] || [ $code = 77 ] || [ "${wrong:-0}" != 0 ] || bad "tests/nix-stub/testers/tests.sh ended with $code"

# The same text through a newer Nix, which is stricter: evaluation alone.
pkgs/nix/newer.sh "$top/build/nix/newer" > "$work/newer" 2>&1
code=$?
if [ $code = 0 ]; then
  newer=$top/build/nix/newer/bin/nix
  echo "  $("$newer" --version)"
  that "a newer Nix shows the flake" env NS_NIX="$newer" pkgs/nix/nix.sh flake show --all-systems
  that "a newer Nix evaluates every check" env NS_NIX="$newer" pkgs/nix/nix.sh check --no-build
  env NS_NIX="$newer" pkgs/nix/nix.sh eval --raw .#packages.x86_64-linux.nextsycl.drvPath > "$work/newer.drv" 2> /dev/null
  ns eval --raw .#packages.x86_64-linux.nextsycl.drvPath > "$work/older.drv" 2> /dev/null
  that "both make the same derivation" cmp -s "$work/newer.drv" "$work/older.drv"
elif [ $code = 77 ]; then
  grep -h '^not run: ' "$work/newer" || echo "not run: a newer Nix cannot be had here"
  skipped=$((skipped + 1))
else
  bad "the newer Nix"
  tail -n 5 "$work/newer"
fi

# A user's mistakes.
ns build no-such-package > "$work/out" 2>&1
that "an unknown package is an error that names it" grep -q "no-such-package" "$work/out"
ns > "$work/out" 2>&1
that "without a word it says what it takes" test $? = 2
PATH=/nonexistent /bin/bash pkgs/nix/nix.sh check > "$work/out" 2>&1
that "without Nix it says what to install" grep -q "nix is missing: install" "$work/out"
end
