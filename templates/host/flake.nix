{
  description = "A host that serves a language model from its Arc card";

  inputs = {
    nixpkgs.url = "github:NixOS/nixpkgs/nixos-26.05";
    # CHANGE THIS to where you have nextsycl from, as github:OWNER/nextsycl
    nextsycl.url = "path:/etc/nextsycl/source";
    nextsycl.inputs.nixpkgs.follows = "nixpkgs";
  };

  outputs =
    { nixpkgs, nextsycl, ... }:
    {
      nixosConfigurations.host = nixpkgs.lib.nixosSystem {
        system = "x86_64-linux";
        modules = [
          nextsycl.nixosModules.default
          ./configuration.nix
          # what `nixos-generate-config` wrote for your machine:
          # ./hardware-configuration.nix
        ];
      };
    };
}
