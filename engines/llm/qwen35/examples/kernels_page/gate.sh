#!/bin/sh
# What the Arc gate says of the kernels of a qwen35 pass, for docs/kernels.md:
#   engines/llm/qwen35/examples/kernels_page/gate.sh BUILD > engines/llm/qwen35/examples/kernels_page/gate.txt
# BUILD is the folder of ./build.sh build, with ocloc (debian/ocloc) in it.
# SPDX-License-Identifier: MIT
set -eu
[ $# -eq 1 ] || { sed -n 3p "$0" >&2; exit 2; }
build=$(cd "$1" && pwd)
run=$build/debian/ocloc/run
echo "# nskc gate --table; $(grep -hE '^(intel-ocloc|libigc2) ' "$build/debian/ocloc/versions" | tr '\n' ' ' | sed 's/ $//')"
for folder in llm llm/qwen35 llm/qwen35/silo; do
  case $folder in
    llm) modules='attention(_kv16)?|rows|sampling|matrix_(q8_0|q4_k|q6_k)' ;;
    llm/qwen35) modules='delta|gated' ;;
    *) modules='[a-z0-9_]+' ;;
  esac
  "$build/nskc/nskc" gate --dir "$build/kernels/$folder" --ocloc "$run ocloc" --iga "$run iga64" --table |
    sed -nE "s# +\$##; s#^(bmg-g[0-9]+) +(($modules)\.[a-z0-9_]+) +#\1 $folder/\2 #p"
done
