# The engine on pretended Arc cards (tests/nocard): Intel's own driver, that of nixpkgs, over our host code and SPIR-V. The
# answer is the one of the CPU device, every kernel ran, and nothing stays allocated.
{
  lib,
  pkgs,
  runCommandCC,
  stdenv,
  intel-compute-runtime,
  level-zero,
  opencl-headers,
  packages,
  source,
}:
let
  # The driver, the loader and their headers in the folders where tests/nocard/run looks for them.
  root =
    pkgs.nocard-root or (runCommandCC "nocard-root" { } ''
      libraries=$out/root/usr/lib/x86_64-linux-gnu
      mkdir -p "$libraries" "$out/root/usr/include"
      ln -s ${intel-compute-runtime.drivers}/lib/* "$libraries/"
      ln -s ${intel-compute-runtime}/lib/intel-opencl "$libraries/"
      ln -sf ${lib.getLib level-zero}/lib/* ${stdenv.cc.libc}/lib/ld-linux-x86-64.so.2 "$libraries/"
      ln -s ${lib.getDev level-zero}/include/* ${opencl-headers}/include/* "$out/root/usr/include/"
      touch "$out/versions"
    '');
  files = source "nocard" [ "tests/nocard" ];
  tool = packages.nextsycl-llm;
in
runCommandCC "nocard" { } ''
  export HOME=$PWD XDG_CACHE_HOME=$PWD/cache XDG_RUNTIME_DIR=$PWD NS_NOCARD_ROOT=${root}
  export NS_LIB=${tool}/lib/nextsycl NS_BUNDLED=${tool}/share/nextsycl/models
  cp -r ${files} here
  chmod -R u+w here
  patchShebangs here/tests/nocard/run
  model=$(echo "$NS_BUNDLED"/*.gguf)
  # more than 8 rows, which take another way than single tokens
  answer() { "$@" ${lib.getExe tool} generate "$model" --prompt "The capital of France is a city that many people would like to see once. Its name is" --max 12 --temp 0 --ctx 256; }
  env ${lib.getExe tool} generate "$model" --prompt "The capital of France is a city that many people would like to see once. Its name is" --max 12 --temp 0 --ctx 256 --device cpu > cpu
  [ -s cpu ]
  for card in b580 b70; do
    NS_NOCARD_REPORT=$PWD/$card.json answer here/tests/nocard/run -x $card > $card
    diff cpu $card
    grep -q '"kernels_skipped":0[,}]' $card.json
    grep -q '"device_left":0[,}]' $card.json
    echo "$card: $(cat $card.json)" | tee -a "$out"
  done
''
