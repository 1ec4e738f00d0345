# One prefix (include/, lib/, licensing/) from the wheels of the lock: libraries find each other in one folder only.
#   uses            the wheels whose `use` has one of these words
#   dropped         further patterns of files to leave out
#   checkedDevice   a kind of device that has to be found in the end (needs the headers), or null
{
  lib,
  stdenv,
  fetchPypi,
  autoPatchelfHook,
  unzip,
  zlib,
  level-zero,
  pname,
  description,
  uses,
  dropped ? [ ],
  checkedDevice ? null,
}:
let
  lock = lib.importJSON ./wheels.lock.json;
  chosen = builtins.filter (wheel: lib.any (use: builtins.elem use wheel.use) uses) lock.wheels;
  fetchWheel = import ./fetch-wheel.nix { inherit fetchPypi; };
in
stdenv.mkDerivation {
  inherit pname;
  version = lock.oneapi;
  wheels = map fetchWheel chosen;
  names = map (wheel: wheel.name) chosen;
  dropped = map (pattern: "*.data/data/${pattern}") (lock.dropped.always ++ dropped);

  nativeBuildInputs = [
    autoPatchelfHook
    unzip
  ];
  buildInputs = [
    stdenv.cc.cc.lib
    zlib
  ];
  # autoPatchelf writes new search paths from what a library names as needed. These libraries open each other and the
  # driver by name at run time, so the prefix itself, the loader and NixOS' driver folder have to be added: without them
  # the list of devices is empty and nothing says why.
  appendRunpaths = [
    "${placeholder "out"}/lib"
    "${lib.getLib level-zero}/lib"
    "/run/opengl-driver/lib"
  ];
  dontUnpack = true;
  dontConfigure = true;
  dontBuild = true;
  dontStrip = true;

  installPhase = ''
    runHook preInstall
    set -f
    patterns=($dropped)
    set +f
    set -- $names
    for wheel in $wheels; do
      rm -rf unpacked
      mkdir unpacked
      # Patterns without a file in this wheel are told of, each; 11: nothing but files that are left out.
      unzip -q "$wheel" -d unpacked -x "''${patterns[@]}" 2> said || [ $? = 11 ] || { cat said; exit 1; }
      for data in unpacked/*.data/data; do
        if [ -d "$data" ]; then mkdir -p "$out"; cp -a "$data/." "$out/"; fi
      done
      for text in unpacked/*.dist-info/LICENSE*; do
        if [ -e "$text" ]; then install -Dm644 -t "$out/licensing/$1" "$text"; fi
      done
      shift
    done
    rm -rf unpacked
    cd "$out/lib"
    # A wheel has no symbolic links: libX.so, libX.so.1 and libX.so.1.2 are full copies. The longest name stays.
    for long in *.so.*; do
      [ ! -L "$long" ] || continue
      for short in "''${long%%.so*}".so*; do
        if [ ! -L "$short" ] && [ ''${#short} -lt ''${#long} ] && cmp -s "$long" "$short"; then ln -sf "$long" "$short"; fi
      done
    done
    find . -name '*.so*' -type f -exec chmod 755 {} +
    if [ -e libintelocl.so ]; then
      # the wheel's own file names a folder of the machine it was made on
      mkdir -p "$out/etc/OpenCL/vendors"
      echo "$out/lib/libintelocl.so" > "$out/etc/OpenCL/vendors/intel-cpu.icd"
    fi
    cd "$NIX_BUILD_TOP"
    runHook postInstall
  '';

  # After the search paths are written: can the runtime still find what it opens by name?
  doInstallCheck = checkedDevice != null;
  installCheckPhase = ''
    runHook preInstallCheck
    c++ -std=c++17 -O1 ${./devices.cpp} -o devices -isystem "$out/include" -isystem "$out/include/sycl" -L"$out/lib" -l:libsycl.so.9 \
      -Wl,-rpath,"$out/lib" -Wl,-rpath-link,"$out/lib" -Wl,--allow-shlib-undefined
    OCL_ICD_FILENAMES=$out/lib/libintelocl.so SYCL_CACHE_PERSISTENT=0 ./devices ${toString checkedDevice}
    runHook postInstallCheck
  '';

  meta = {
    inherit description;
    license = with lib.licenses; [
      intel-eula
      issl
      asl20
    ];
    sourceProvenance = [ lib.sourceTypes.binaryNativeCode ];
    platforms = [ "x86_64-linux" ];
  };
}
