# What building and testing by hand takes: `nix develop`, then ./build.sh test.
{ pkgs, packages }:
pkgs.mkShell {
  packages = with pkgs; [
    cargo
    clippy
    rustc
    rustfmt
    gcc
    intel-compute-runtime
    (python3.withPackages (python: [ python.pip ]))
    packages.nextsycl-kernel-compiler
    nixfmt
    deadnix
  ];
}
