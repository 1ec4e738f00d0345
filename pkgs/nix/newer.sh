#!/usr/bin/env bash
# A newer Nix than the one installed, to evaluate the flake with as well: newer.sh DIR
#   DIR/bin/nix    nix of Debian sid, for evaluation and builds in this machine's own store; its version is in DIR/versions
# The packages come by pkgs/debian/fetch.sh, so only a Debian has it. The programs are copies whose loader and library path are
# rewritten: Nix starts itself again for builds, so calling it through a loader would not do.
# Exit codes: 0 ready, 77 cannot be had here (one line "not run: reason"), 1 error, 2 bad usage.
# SPDX-License-Identifier: MIT
set -euo pipefail
[ $# -eq 1 ] || { sed -n 2,6p "$0" >&2; exit 2; }
here=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
command -v patchelf > /dev/null || { echo "not run: patchelf is missing, a newer Nix cannot be prepared" >&2; exit 77; }

"$here/../debian/fetch.sh" "$1" nix-bin
dir=$(cd "$1" && pwd)
version=$(sed -n 's/^nix-bin //p' "$dir/versions")
if [ -e "$dir/bin/stamp" ] && [ "$(< "$dir/bin/stamp")" = "$version $dir" ] && [ -x "$dir/bin/nix" ]; then exit 0; fi

lib=$dir/root/usr/lib/x86_64-linux-gnu
rm -rf "$dir/bin" "$dir/bin.new"
mkdir "$dir/bin.new"
cp "$(readlink -f "$dir/root/usr/bin/nix")" "$dir/bin.new/nix"
patchelf --set-interpreter "$lib/ld-linux-x86-64.so.2" --set-rpath "$lib" --force-rpath "$dir/bin.new/nix"
for name in nix-store nix-build nix-instantiate; do ln -s nix "$dir/bin.new/$name"; done
"$dir/bin.new/nix" --version > "$dir/log" 2>&1 || { head -n 3 "$dir/log" >&2; echo "newer.sh: nix $version does not start" >&2; exit 1; }
echo "newer.sh: $(< "$dir/log")" >&2
rm "$dir/log"
echo "$version $dir" > "$dir/bin.new/stamp"
mv "$dir/bin.new" "$dir/bin"
