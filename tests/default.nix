# The flake's checks. Every package is one; the others are a file each.
{ pkgs, self }:
let
  inherit (pkgs) lib;
  packages = removeAttrs self.packages.${pkgs.stdenv.hostPlatform.system} [ "default" ];
  source = import ../pkgs/source.nix { inherit lib; };
  # A check takes what it names, of nixpkgs and of these.
  given = { inherit self packages source; };
  check =
    file: pkgs.callPackage file (builtins.intersectAttrs (builtins.functionArgs (import file)) given);
in
packages
// {
  # the packages
  closures = check ./closures.nix;
  smoke = check ./smoke.nix;

  # the kernels and engines, on the CPU device
  arc-gate = check ./arc-gate.nix;
  kernels-reproducible = check ./kernels-reproducible.nix;
  launchers = check ./launchers.nix;
  nocard = check ./nocard.nix;
  rust = check ./rust.nix;

  # the modules
  module-eval = check ./eval.nix;
  units = check ./units.nix;
  options = check ./options.nix;
  template = check ./template.nix;

  # machines that serve a model
  vm-llm = pkgs.testers.runNixOSTest (import ./nixos/llm.nix { inherit self; });
  vm-user-units = pkgs.testers.runNixOSTest (import ./nixos/user-units.nix { inherit self; });

  # the text of the flake
  format = check ./format.nix;
}
