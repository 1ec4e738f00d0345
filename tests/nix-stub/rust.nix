# buildRustPackage: crates come from the store by their hash of Cargo.lock, cargo is the machine's.
{
  lib,
  host,
  mkDerivation,
  fetchurl,
}:
given:
let
  attrs = if builtins.isFunction given then given { } else given;
  lock = lib.importTOML attrs.cargoLock.lockFile;
  crates = builtins.filter (package: package ? checksum) lock.package;
  # One folder for all builds of a lock, so that cargo sees the same paths.
  vendor = mkDerivation {
    name = "cargo-vendor";
    dontUnpack = true;
    files = map (
      package:
      fetchurl {
        name = "crate-${package.name}-${package.version}.tar.gz";
        sha256 = package.checksum;
      }
    ) crates;
    sums = map (package: "${package.name}-${package.version}=${package.checksum}") crates;
    passAsFile = [
      "files"
      "sums"
    ];
    buildCommand = ''
      mkdir "$out"
      set -- $(cat "$sumsPath")
      for file in $(cat "$filesPath"); do
        mkdir "$out/''${1%%=*}"
        tar -xzf "$file" -C "$out/''${1%%=*}" --strip-components=1
        printf '{"files":{},"package":"%s"}' "''${1##*=}" > "$out/''${1%%=*}/.cargo-checksum.json"
        shift
      done
    '';
  };
  words = lib.concatStringsSep " ";
  buildFlags = words (attrs.cargoBuildFlags or [ ]);
  testFlags = words (attrs.cargoTestFlags or attrs.cargoBuildFlags or [ ]);
in
mkDerivation (
  builtins.removeAttrs attrs [
    "cargoLock"
    "cargoBuildFlags"
    "cargoTestFlags"
    "checkFlags"
  ]
  // {
    configurePhase = ''
      export CARGO_HOME=$NIX_BUILD_TOP/cargo RUSTUP_HOME=${host.rustup} CARGO_TARGET_DIR=$PWD/target
      mkdir -p "$CARGO_HOME"
      printf '[source.crates-io]\nreplace-with = "vendored"\n[source.vendored]\ndirectory = "%s"\n' ${vendor} > "$CARGO_HOME/config.toml"
    '';
    buildPhase =
      attrs.buildPhase or ''
        runHook preBuild
        cargo build --release --frozen --offline -j "$NIX_BUILD_CORES" ${buildFlags}
        runHook postBuild
      '';
    doCheck = attrs.doCheck or true;
    checkPhase =
      attrs.checkPhase or ''
        runHook preCheck
        cargo test --release --frozen --offline -j "$NIX_BUILD_CORES" ${testFlags} -- ${
          words (attrs.checkFlags or [ ])
        }
        runHook postCheck
      '';
    installPhase =
      attrs.installPhase or ''
        runHook preInstall
        find target/release -maxdepth 1 -type f -executable -exec install -Dm755 -t "$out/bin" {} +
        runHook postInstall
      '';
  }
)
