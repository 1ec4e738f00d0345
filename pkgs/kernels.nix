# The kernels: a module's SPIR-V, its description and native code for Arc cards (share/nextsycl/kernels/KIND), and each kind
# as a C library with its header for other people's engines.
{
  lib,
  stdenv,
  intel-compute-runtime,
  source,
  nextsycl-oneapi,
  nextsycl-runtime,
  nextsycl-kernel-compiler,
}:
stdenv.mkDerivation {
  pname = "nextsycl-kernels";
  version = "1";
  src = source "kernels" [
    "kernels/build.sh"
    "kernels/runtime/ns.h"
    "kernels/ns"
    "kernels/llm"
  ];
  buildPhase = ''
    runHook preBuild
    export HOME=$NIX_BUILD_TOP SYCL_CACHE_PERSISTENT=0
    mkdir "$NIX_BUILD_TOP/build"
    ln -s ${nextsycl-oneapi} "$NIX_BUILD_TOP/build/oneapi"
    ln -s ${nextsycl-kernel-compiler}/bin "$NIX_BUILD_TOP/build/nskc"
    NS_RUNTIME=${nextsycl-runtime} NS_OCLOC=$(echo ${lib.getBin intel-compute-runtime}/bin/ocloc*) JOBS=$NIX_BUILD_CORES bash kernels/build.sh "$NIX_BUILD_TOP/build"
    runHook postBuild
  '';
  installPhase = ''
    runHook preInstall
    mkdir -p "$out/share/nextsycl"
    cp -r "$NIX_BUILD_TOP/build/kernels" "$out/share/nextsycl/kernels"
    find "$out/share/nextsycl/kernels" -mindepth 2 -name '.*' -prune -exec rm -rf {} +
    install -Dm755 -t "$out/lib" "$NIX_BUILD_TOP"/build/launchers/*.so ${nextsycl-runtime}/lib/libns_sycl.so
    install -Dm644 -t "$out/include" "$NIX_BUILD_TOP"/build/launchers/*.h ${nextsycl-runtime}/include/ns.h
    runHook postInstall
  '';
  dontPatchELF = true;
  # no search path to their own place, which would make a second build differ
  env.NIX_NO_SELF_RPATH = "1";
  # a program takes the runtime alone
  disallowedReferences = [ nextsycl-oneapi ];
  meta = {
    description = "SYCL kernels for Intel Arc GPUs, as files and as C libraries";
    license = lib.licenses.mit;
    platforms = [ "x86_64-linux" ];
  };
}
