# What a unit may do and see.
#   gpu     whether it opens the GPU. Drivers and the CPU device compile at run time into memory that is then executed, so
#           MemoryDenyWriteExecute is off for these units.
#   reads   directories outside the store that it reads
#   service what else its [Service] section says in units.json
{ lib, cfg }:
let
  units = lib.importJSON ./units.json;
  inherit (import ./values.nix { inherit lib; }) homes isBelowAny;
in
{
  gpu,
  reads,
  service,
}:
let
  # ProtectHome hides these, and with them a parent that the user may not enter; they are shown alone.
  hidden = lib.filter (isBelowAny homes) (lib.unique reads);
  # Those that systemd makes; others are made by systemd.tmpfiles.
  directories = lib.filterAttrs (_: d: d.path == d.default) {
    StateDirectory = {
      path = cfg.stateDir;
      default = "/var/lib/nextsycl";
    };
    CacheDirectory = {
      path = cfg.cacheDir;
      default = "/var/cache/nextsycl";
    };
  };
  writes = lib.subtractLists (lib.mapAttrsToList (_: d: d.path) directories) [
    cfg.stateDir
    cfg.cacheDir
  ];
in
units.hardening
// (if gpu then units.gpu else units.noGpu)
// lib.filterAttrs (
  key: _:
  directories ? ${key}
  || !lib.elem key [
    "StateDirectory"
    "CacheDirectory"
  ]
) service
// lib.mapAttrs' (key: _: lib.nameValuePair "${key}Mode" "0750") directories
// {
  ReadWritePaths = writes;
  # the dash: a directory that is missing is told by the program, in words
  ReadOnlyPaths = map (dir: "-${dir}") (lib.subtractLists hidden (lib.unique reads));
}
// lib.optionalAttrs (hidden != [ ]) {
  ProtectHome = "tmpfs";
  BindReadOnlyPaths = map (dir: "-${dir}") hidden;
}
