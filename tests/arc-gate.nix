# The promises that kernels make of their native code (16-byte loads, dot products, no spill), read from its assembly.
{
  lib,
  runCommand,
  intel-compute-runtime,
  intel-graphics-compiler,
  packages,
}:
runCommand "arc-gate" { } ''
  export HOME=$PWD
  for kind in ${packages.nextsycl-kernels}/share/nextsycl/kernels/*/; do
    ${lib.getExe packages.nextsycl-kernel-compiler} gate --dir "$kind" --ocloc "$(echo ${lib.getBin intel-compute-runtime}/bin/ocloc*)" \
      --iga ${lib.getExe' intel-graphics-compiler "iga64"} | tee -a "$out"
  done
  grep -q ', 0 violations$' "$out"
''
