# libns_sycl and its side libraries: the C interface over the SYCL runtime. They look for it in `oneapi/lib` beside them.
{
  lib,
  stdenv,
  source,
  nextsycl-oneapi,
}:
stdenv.mkDerivation {
  pname = "nextsycl-runtime";
  version = "1";
  src = source "runtime" [ "kernels/runtime" ];
  buildPhase = ''
    runHook preBuild
    JOBS=$NIX_BUILD_CORES bash kernels/runtime/build.sh ${nextsycl-oneapi} "$NIX_BUILD_TOP/runtime"
    runHook postBuild
  '';
  installPhase = ''
    runHook preInstall
    install -Dm755 -t "$out/lib" "$NIX_BUILD_TOP"/runtime/*.so
    install -Dm644 -t "$out/include" "$NIX_BUILD_TOP"/runtime/*.h
    runHook postInstall
  '';
  # their search path names a folder that the packages of the tools bring
  dontPatchELF = true;
  # no search path to their own place, which would make a second build differ
  env.NIX_NO_SELF_RPATH = "1";
  # a program takes the runtime alone
  disallowedReferences = [ nextsycl-oneapi ];
  meta = {
    description = "C interface over the SYCL runtime";
    license = lib.licenses.mit;
    platforms = [ "x86_64-linux" ];
  };
}
