#!/usr/bin/env bash
# Unpacks packages of Debian sid, with everything they need, into one folder beside the host's own libc. Nothing is installed.
#   fetch.sh DIR PACKAGE...          e.g. fetch.sh build/debian/ocloc intel-ocloc libigc2-tools
#   DIR/run PROGRAM [ARGUMENT...]    starts a program of it with its own loader and libraries: DIR/run ocloc --help
#   DIR/root                         the unpacked files; DIR/versions names every package and version
# The mirror is the one in the machine's apt sources; the packages are checked by apt against Debian's archive keys.
# Exit codes: 0 ready, 77 cannot be had here (one line "not run: reason"), 1 error, 2 bad usage.
# SPDX-License-Identifier: MIT
set -euo pipefail
[ $# -ge 2 ] || { sed -n 2,7p "$0" >&2; exit 2; }
not_run() { echo "not run: $*" >&2; exit 77; }

mkdir -p "$1"
dir=$(cd "$1" && pwd)
shift
wanted=$(printf '%s\n' "$@" | sort -u)

exec 9> "$dir/lock"
flock 9
if [ -e "$dir/stamp" ] && [ "$(cat "$dir/stamp")" = "$wanted" ]; then exit 0; fi

[ "$(uname -m)" = x86_64 ] || not_run "Debian's Intel packages are for x86_64, this is $(uname -m)"
for tool in apt-get dpkg dpkg-query; do
  command -v "$tool" > /dev/null || not_run "$tool is missing: packages of Debian can only be fetched on a Debian"
done
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
[ -e $keyring ] || keyring=/usr/share/keyrings/debian-archive-keyring.pgp
[ -e "$keyring" ] || not_run "Debian's archive keys are missing (package debian-archive-keyring)"

# First address ending in /debian among the active lines of apt's sources, in either of their two forms.
mirror=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources 2> /dev/null |
  sed -n -e '/^[[:space:]]*#/d' -e 's#.*[[:space:]]\(https\{0,1\}://[^[:space:]]*/debian\)/\{0,1\}\([[:space:]].*\)\{0,1\}$#\1#p' | head -n 1 || true)
[ -n "$mirror" ] || not_run "no Debian mirror in apt's sources"

state=$dir/apt
rm -rf "$state" "$dir/root.tmp"
mkdir -p "$state/lists/partial" "$state/archives/partial"
: > "$state/status" # an empty one: nothing counts as installed, so the whole closure comes
echo "deb [signed-by=$keyring] $mirror sid main contrib non-free non-free-firmware" > "$state/sources.list"
apt=(apt-get -q
  -o Dir::Etc::SourceList="$state/sources.list" -o Dir::Etc::SourceParts=/dev/null
  -o Dir::State::Lists="$state/lists" -o Dir::State::status="$state/status"
  -o Dir::Cache::archives="$state/archives" -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache=
  -o APT::Architecture=amd64 -o APT::Install-Recommends=false -o APT::Sandbox::User= -o Debug::NoLocking=1
  -o Acquire::Languages=none -o Acquire::Retries=2 -o Acquire::http::Timeout=30 -o Acquire::https::Timeout=30)
failed() { sed -n '/^[EW]:/p' "$dir/log" | head -n 3 | cut -c1-300 >&2; }

echo "Debian packages: $*" >&2
"${apt[@]}" -o APT::Update::Error-Mode=any update > "$dir/log" 2>&1 < /dev/null ||
  { failed; not_run "the Debian mirror of apt's sources has no answer for sid (log: $dir/log)"; }
if ! "${apt[@]}" -y --download-only install "$@" >> "$dir/log" 2>&1 < /dev/null; then
  failed
  not_run "apt cannot fetch $* from sid (log: $dir/log)"
fi
for package in "$state"/archives/*.deb; do
  dpkg -x "$package" "$dir/root.tmp"
  dpkg-deb --show --showformat '${Package} ${Version}\n' "$package"
done > "$dir/versions"
rm -rf "$dir/root" "$state"
mv "$dir/root.tmp" "$dir/root"

cat > "$dir/run" << 'RUN'
#!/bin/sh
# Starts a program of the unpacked packages with their own loader and libraries: run PROGRAM [ARGUMENT...]
root=$(dirname "$(readlink -f "$0")")/root
lib=$root/usr/lib/x86_64-linux-gnu
[ $# -ge 1 ] || { ls "$root/usr/bin" >&2; exit 2; }
name=$1
shift
for program in "$root/usr/bin/$name" "$root/usr/bin/$name"-[0-9]*; do
  if [ -x "$program" ]; then
    exec env -u LD_LIBRARY_PATH "$lib/ld-linux-x86-64.so.2" --library-path "$lib" "$program" "$@"
  fi
done
echo "run: no program $name in $root/usr/bin" >&2
exit 127
RUN
chmod +x "$dir/run"
echo "$wanted" > "$dir/stamp"
echo "Debian packages: $(wc -l < "$dir/versions") unpacked in $dir" >&2
