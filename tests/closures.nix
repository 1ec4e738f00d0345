# What a package brings: a tool without GPU work has nothing of oneAPI, and one that only uses cards has neither the kernel
# compiler nor the CPU device.
{
  lib,
  runCommand,
  closureInfo,
  packages,
}:
let
  paths = package: "${closureInfo { rootPaths = [ package ]; }}/store-paths";
  tools = import ../pkgs/tools.nix { nextsycl-model-smollm2 = null; };
  withoutGpu = lib.filterAttrs (_: tool: !(tool.gpu or false)) tools;
  withGpu = lib.filterAttrs (_: tool: tool.gpu or false) tools;
in
runCommand "closures" { } ''
  lacks() { # NAME STORE-PATHS PATTERN: no path, and no file in one, is called so
    local found
    found=$(while read -r path; do find "$path" -name "$3"; done < "$2")
    if [ -n "$found" ]; then
      echo "$1 brings" $found >&2
      exit 1
    fi
  }
  size() { echo "$1: $(xargs du -cLsm < "$2" | tail -n 1 | cut -f1) MB" | tee -a "$out"; }

  lacks nextsycl-workspace ${paths packages.nextsycl-workspace} '*oneapi*'
  size nextsycl-workspace ${paths packages.nextsycl-workspace}
  ${lib.concatMapStrings (name: ''
    lacks ${name} ${paths packages.${name}} '*oneapi*'
    size ${name} ${paths packages.${name}}
  '') (lib.attrNames withoutGpu)}
  ${lib.concatMapStrings (
    name:
    let
      alone = packages.${name}.override { cpuDevice = false; };
    in
    ''
      for unwanted in 'libsycl-jit*' 'libintelocl*' 'libcommon_clang*' '*.rtl' sycl.hpp; do lacks ${name} ${paths alone} "$unwanted"; done
      lacks ${name} ${paths packages.${name}} 'libsycl-jit*'
      size "${name} without the CPU device" ${paths alone}
      size ${name} ${paths packages.${name}}
      # and the search does find what is there
      if (lacks ${name} ${paths packages.${name}} 'libintelocl*') 2> said; then
        echo "the CPU device is not in ${name}" >&2
        exit 1
      fi
    ''
  ) (lib.attrNames withGpu)}
''
