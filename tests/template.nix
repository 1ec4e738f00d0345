# The host of `nix flake init -t` as this flake makes it: it evaluates, and its model is one that the package has.
{
  lib,
  runCommand,
  self,
}:
let
  flake = import ../templates/host/flake.nix;
  outputs = flake.outputs {
    self = outputs;
    inherit (self.inputs) nixpkgs;
    nextsycl = self;
  };
  inherit (outputs.nixosConfigurations.host) config;
  wrong = lib.filter (a: !a.assertion) config.services.nextsycl.checks;
  service = config.systemd.services.nextsycl-llm-main;
  inherit (config.services.nextsycl.llm.main) package model;
in
assert lib.assertMsg (wrong == [ ]) (lib.concatMapStringsSep "; " (a: a.message) wrong);
assert lib.assertMsg (service.wantedBy == [ "multi-user.target" ]) "the server does not start";
assert lib.assertMsg config.hardware.graphics.enable "the driver is missing";
assert lib.assertMsg (
  flake.inputs.nixpkgs.url == (import ../flake.nix).inputs.nixpkgs.url
) "the template has another nixpkgs than the flake";
runCommand "template-host" { nativeBuildInputs = [ package ]; } ''
  export HOME=$NIX_BUILD_TOP
  nextsycl-llm info ${lib.escapeShellArg model} > "$out"
  grep -i smollm2 "$out"
''
