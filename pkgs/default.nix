# All packages. The flake's `packages` and its overlay both come from here.
{ pkgs, version }:
let
  inherit (pkgs) lib;
  source = import ./source.nix { inherit lib; };
  call = pkgs.callPackage;
  # Built by our build scripts against the whole prefix, without a GPU.
  nextsycl-oneapi = call ./oneapi { };
  nextsycl-oneapi-rt = call ./oneapi/runtime.nix { };
  nextsycl-runtime = call ./runtime.nix { inherit source nextsycl-oneapi; };
  nextsycl-kernel-compiler = call ./kernel-compiler.nix { inherit source nextsycl-oneapi; };
  nextsycl-kernels = call ./kernels.nix {
    inherit
      source
      nextsycl-oneapi
      nextsycl-runtime
      nextsycl-kernel-compiler
      ;
  };
  nextsycl-model-smollm2 = call ./models/smollm2.nix { };
  # Every program, compiled once; no oneAPI in it.
  nextsycl-workspace = call ./workspace.nix { inherit source tools; };

  tools = import ./tools.nix { inherit nextsycl-model-smollm2; };
  mkTool =
    pname: tool:
    call ./mk-tool.nix {
      inherit
        pname
        tool
        version
        nextsycl-workspace
        nextsycl-oneapi-rt
        nextsycl-runtime
        nextsycl-kernels
        ;
    };
  toolPackages = lib.mapAttrs mkTool tools;
in
toolPackages
// {
  inherit
    nextsycl-oneapi
    nextsycl-oneapi-rt
    nextsycl-runtime
    nextsycl-kernel-compiler
    nextsycl-kernels
    nextsycl-model-smollm2
    nextsycl-workspace
    ;
  nextsycl = call ./all-tools.nix {
    inherit version nextsycl-workspace;
    tools = lib.attrValues toolPackages;
  };
}
