# Everything of the lock: what kernels and libraries are built with, and the CPU device.
{ callPackage }:
callPackage ./prefix.nix {
  pname = "nextsycl-oneapi";
  description = "Intel oneAPI headers, kernel compiler and runtime, from the published wheels";
  uses = [ "build" ];
  checkedDevice = "cpu";
}
