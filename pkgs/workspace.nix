# Every program of the workspace in one build; the packages of the tools each take theirs out of it. They are compiled
# without oneAPI: what opens the GPU loads it at run time.
{
  lib,
  rustPlatform,
  source,
  tools,
}:
rustPlatform.buildRustPackage {
  pname = "nextsycl-workspace";
  inherit ((lib.importTOML ../Cargo.toml).workspace.package) version;
  src = source "workspace" [
    "Cargo.toml"
    "Cargo.lock"
    "engines"
    "modules/units.json"
    "tests/tiny"
    "tools"
  ];
  cargoLock.lockFile = ../Cargo.lock;
  cargoBuildFlags = lib.concatMap (name: [
    "-p"
    name
  ]) ([ "nextsycl" ] ++ lib.attrNames tools);
  # The tests need a device and the kernels: they are a check of the flake (tests/rust.nix).
  doCheck = false;
  meta = {
    description = "The programs of nextsycl";
    license = lib.licenses.mit;
    platforms = [ "x86_64-linux" ];
  };
}
