#!/usr/bin/env bash
# The server against clients that other people wrote: the official Python client of OpenAI's API.
#   tests/clients/run.sh        needs dist/ (or NS_DIST); the clients are installed under build/ once
# The last line is a count. Without the clients, because there is no network, it says "not run".
# SPDX-License-Identifier: MIT
set -euo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
export NS_DIST=${NS_DIST:-$top/dist}
venv=${NS_BUILD:-$top/build}/clients
[ -x "$NS_DIST/bin/nextsycl-llm" ] || { echo "tests/clients: $NS_DIST/bin/nextsycl-llm is missing: ./build.sh build" >&2; exit 1; }
if ! "$venv/bin/python" -c 'import openai' 2> /dev/null; then
  rm -rf "$venv"
  mkdir -p "$(dirname "$venv")"
  python3 -m venv "$venv"
  if ! "$venv/bin/python" -m pip install --quiet --disable-pip-version-check openai; then
    echo "not run: clients: the package openai could not be installed"
    exit 77
  fi
fi
exec "$venv/bin/python" "$top/tests/clients/conformance.py"
