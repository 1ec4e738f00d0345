# nskc: compiles kernels to SPIR-V and native code. It opens libsycl-jit of the prefix it is told of when it runs.
{
  lib,
  stdenv,
  source,
  nextsycl-oneapi,
}:
stdenv.mkDerivation {
  pname = "nextsycl-kernel-compiler";
  version = "1";
  src = source "kernel-compiler" [ "kernels/compiler" ];
  # The build script tests the compiler it has made against the prefix.
  buildPhase = ''
    runHook preBuild
    export HOME=$NIX_BUILD_TOP SYCL_CACHE_PERSISTENT=0
    bash kernels/compiler/build.sh ${nextsycl-oneapi} "$NIX_BUILD_TOP/nskc"
    runHook postBuild
  '';
  installPhase = ''
    runHook preInstall
    for program in "$NIX_BUILD_TOP"/nskc/nskc*; do install -Dm755 -t "$out/bin" "$program"; done
    runHook postInstall
  '';
  meta = {
    description = "Compiles SYCL kernels to SPIR-V and native code";
    mainProgram = "nskc";
    license = lib.licenses.mit;
    platforms = [ "x86_64-linux" ];
  };
}
