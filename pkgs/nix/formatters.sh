#!/usr/bin/env bash
# Builds the two tools that check the form of Nix files, for machines without nixpkgs: formatters.sh DIR
#   DIR/bin/nixfmt    nixfmt_rs, the official style: nixfmt --check FILE... | nixfmt FILE... (in place)
#   DIR/bin/deadnix   names that nothing uses: deadnix --fail FILE...
# Both come from the crate registry and are compiled without optimisation: 15 s on two cores, and they check the whole tree in
# less than one. Exit codes: 0 ready, 77 cannot be had here (one line "not run: reason"), 1 error, 2 bad usage.
# SPDX-License-Identifier: MIT
set -euo pipefail
[ $# -eq 1 ] || { sed -n 2,6p "$0" >&2; exit 2; }
programs=(nixfmt_rs:0.5.3:nixfmt deadnix:1.3.1:deadnix)

mkdir -p "$1"
dir=$(cd "$1" && pwd)
exec 9> "$dir/lock"
flock 9
have() { [ -e "$dir/stamp" ] && [ "$(< "$dir/stamp")" = "${programs[*]}" ] && [ -x "$dir/bin/nixfmt" ] && [ -x "$dir/bin/deadnix" ]; }
if have; then exit 0; fi
command -v cargo > /dev/null || { echo "not run: cargo is missing, the formatters of Nix files are built with it" >&2; exit 77; }

rm -rf "$dir/stamp" "$dir/target"
for program in "${programs[@]}"; do
  IFS=: read -r crate version name <<< "$program"
  echo "formatters.sh: $name ($crate $version)" >&2
  # A folder outside every workspace and no flags of the caller, so that a build there does not depend on this checkout.
  if ! (cd "$dir" && env -u RUSTFLAGS -u CARGO_BUILD_TARGET CARGO_TARGET_DIR="$dir/target" CARGO_PROFILE_DEV_OPT_LEVEL=0 \
    CARGO_PROFILE_DEV_DEBUG=0 CARGO_PROFILE_DEV_INCREMENTAL=false \
    cargo install --quiet --debug --locked --force -j "${JOBS:-2}" --version "=$version" --root "$dir" "$crate") > "$dir/log" 2>&1 < /dev/null; then
    sed -n '/^error/,$p' "$dir/log" | head -n 8 | cut -c1-300 >&2
    if grep -qE 'failed to (download|fetch|query|get)|[Cc]ould not (resolve|connect|find)|network|timed out' "$dir/log"; then
      echo "not run: cargo cannot fetch $crate $version (log: $dir/log)" >&2
      exit 77
    fi
    echo "formatters.sh: cargo could not build $crate $version (log: $dir/log)" >&2
    exit 1
  fi
  "$dir/bin/$name" --version 2>> "$dir/log" | grep -qF " $version" ||
    { echo "formatters.sh: $dir/bin/$name does not run or is not of version $version" >&2; exit 1; }
done
rm -rf "$dir/target" "$dir/.crates.toml" "$dir/.crates2.json" "$dir/log"
echo "${programs[*]}" > "$dir/stamp"
