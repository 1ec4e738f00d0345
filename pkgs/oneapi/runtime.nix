# What a program needs when it runs; the CPU device only when asked for (libraries find each other in one folder, so it is
# another prefix and not a package beside).
{
  lib,
  callPackage,
  cpuDevice ? false,
}:
let
  lock = lib.importJSON ./wheels.lock.json;
in
callPackage ./prefix.nix {
  pname = "nextsycl-oneapi-rt";
  description =
    "Intel oneAPI runtime, from the published wheels"
    + lib.optionalString cpuDevice ", with the CPU device";
  uses = [ "rt" ] ++ lib.optional cpuDevice "cpu";
  dropped = lock.dropped.runtime;
}
