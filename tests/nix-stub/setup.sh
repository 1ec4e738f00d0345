# The build of a derivation of the stand-in: nixpkgs' phases, with this machine's programs.
# SPDX-License-Identifier: MIT
set -euo pipefail
export PATH=${toolPath:+$toolPath:}$hostPath HOME=$NIX_BUILD_TOP/home SOURCE_DATE_EPOCH=1 LC_ALL=C.UTF-8 TMPDIR=$NIX_BUILD_TOP
mkdir -p "$HOME"
unset NIX_BUILD_SHELL
fixupOutputHooks=()
for script in ${hookScripts:-}; do source "$script"; done

# nixpkgs' writes the store's shells into scripts; here they are where the scripts say.
patchShebangs() { for script; do [ -e "$script" ] || return 1; done; }

runHook() {
  local text=${!1:-}
  if [ -n "$text" ]; then eval "$text"; fi
}
# phase NAME: its own text, nothing without one.
phase() {
  local text=${!1:-}
  if [ -z "$text" ]; then return 0; fi
  echo "== ${1%Phase}"
  eval "$text"
}

cd "$NIX_BUILD_TOP"
if [ -n "${buildCommand:-}" ] || [ -n "${buildCommandPath:-}" ]; then
  if [ -n "${buildCommandPath:-}" ]; then source "$buildCommandPath"; else eval "$buildCommand"; fi
  exit 0
fi
if [ -z "${dontUnpack:-}" ] && [ -n "${src:-}" ]; then
  [ -d "$src" ] || { echo "the stand-in only takes folders as a source" >&2; exit 1; }
  cp -r "$src" source
  chmod -R u+w source
  cd source
fi
phase patchPhase
[ -n "${dontConfigure:-}" ] || phase configurePhase
[ -n "${dontBuild:-}" ] || phase buildPhase
[ -z "${doCheck:-}" ] || phase checkPhase
phase installPhase
for hook in ${fixupOutputHooks[@]+"${fixupOutputHooks[@]}"}; do "$hook"; done
runHook postFixup
[ -z "${doInstallCheck:-}" ] || phase installCheckPhase
