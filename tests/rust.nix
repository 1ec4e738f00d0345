# The tests of every crate. Those of the engines and kernels are the parity tests: on the CPU device, against recorded
# results of the reference implementations.
{
  lib,
  rustPlatform,
  util-linux,
  packages,
  source,
}:
let
  tool = packages.nextsycl-llm;
in
rustPlatform.buildRustPackage {
  pname = "nextsycl-tests";
  inherit (packages.nextsycl-workspace) version;
  src = source "tests" [
    "Cargo.toml"
    "Cargo.lock"
    "docs/kernels.md"
    "engines"
    "kernels"
    "modules/units.json"
    "tests/fixtures"
    "tests/tiny"
    "tools"
  ];
  cargoLock.lockFile = ../Cargo.lock;
  nativeCheckInputs = [ util-linux ];
  buildPhase = ''
    runHook preBuild
    export HOME=$NIX_BUILD_TOP
    ${lib.getExe packages.nextsycl-kernel-compiler} --oneapi ${packages.nextsycl-oneapi} --out "$NIX_BUILD_TOP/test-kernels" -I kernels --jobs "$NIX_BUILD_CORES" --quiet \
      engines/sycl/tests/kernels/*.cpp
    runHook postBuild
  '';
  checkPhase = ''
    runHook preCheck
    export NS_LIB=${tool}/lib/nextsycl NS_ONEAPI=${tool}/lib/nextsycl/oneapi NS_KERNELS=${tool}/lib/nextsycl/kernels
    export NS_BUNDLED=${tool}/share/nextsycl/models NS_TEST_KERNELS=$NIX_BUILD_TOP/test-kernels
    export XDG_RUNTIME_DIR=$NIX_BUILD_TOP/run NS_SOCKET_DIR=$NIX_BUILD_TOP/run/nextsycl
    mkdir -m 700 "$XDG_RUNTIME_DIR"
    cargo test --release --workspace --locked --offline --no-fail-fast -j "$NIX_BUILD_CORES" 2>&1 | tee "$NIX_BUILD_TOP/log"
    runHook postCheck
  '';
  installPhase = ''
    awk '/^test result: /{ passed += $4; failed += $6 } END { printf "%d passed, %d failed\n", passed, failed }' "$NIX_BUILD_TOP/log" > "$out"
    cat "$out"
    grep -q '^[1-9][0-9]* passed, 0 failed$' "$out"
  '';
}
