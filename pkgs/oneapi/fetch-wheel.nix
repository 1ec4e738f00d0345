# A wheel of the lock as a fixed-output derivation.
{ fetchPypi }:
wheel:
let
  # NAME-VERSION-PYTHON-ABI-PLATFORM.whl
  part = builtins.elemAt (builtins.match "(.+)-([^-]+)-([^-]+)-([^-]+)-([^-]+)[.]whl" wheel.file);
in
fetchPypi {
  format = "wheel";
  pname = part 0;
  version = part 1;
  python = part 2;
  dist = part 2;
  abi = part 3;
  platform = part 4;
  inherit (wheel) sha256;
}
