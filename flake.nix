{
  description = "Language, image, video and audio models on Intel Arc GPUs: independent Rust tools, SYCL kernels, NixOS services";

  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-26.05";

  outputs =
    { self, nixpkgs }:
    let
      inherit (nixpkgs) lib;
      version = import ./pkgs/version.nix { inherit lib self; };
      # Intel's wheels are unfree by licence: allowed here by name, so that nobody has to set anything.
      pkgsFor =
        system:
        import nixpkgs {
          inherit system;
          config.allowUnfreePredicate =
            p:
            builtins.elem (lib.getName p) [
              "nextsycl-oneapi"
              "nextsycl-oneapi-rt"
            ];
        };
      forEach = f: lib.genAttrs [ "x86_64-linux" ] (system: f (pkgsFor system));
      packagesOf = pkgs: import ./pkgs { inherit pkgs version; };
    in
    {
      packages = forEach (
        pkgs:
        let
          packages = packagesOf pkgs;
        in
        packages // { default = packages.nextsycl-llm; }
      );
      overlays.default = final: _: packagesOf final;
      nixosModules = {
        # The key lets several files of a host import it.
        nextsycl = {
          key = "nextsycl#nixosModules.nextsycl";
          _file = ./flake.nix;
          imports = [
            ./modules
            (
              { pkgs, ... }:
              {
                services.nextsycl.packages = lib.mkDefault self.packages.${pkgs.stdenv.hostPlatform.system};
              }
            )
          ];
        };
        default = self.nixosModules.nextsycl;
      };
      templates = {
        host = {
          path = ./templates/host;
          description = "A NixOS host that serves a language model from its Arc card";
        };
        default = self.templates.host;
      };
      checks = forEach (pkgs: import ./tests { inherit pkgs self; });
      devShells = forEach (pkgs: {
        default = import ./pkgs/shell.nix {
          inherit pkgs;
          packages = packagesOf pkgs;
        };
      });
      formatter = forEach (pkgs: pkgs.nixfmt-tree);
    };
}
