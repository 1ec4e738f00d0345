# The kernels, built a second time in another place, are the same byte for byte.
{
  runCommand,
  packages,
}:
let
  again = packages.nextsycl-kernels.overrideAttrs (_: {
    pname = "nextsycl-kernels-again";
    # another folder, other paths
    preBuild = ''
      mkdir -p "$NIX_BUILD_TOP/somewhere/else"
      cp -r . "$NIX_BUILD_TOP/somewhere/else/kernels-source"
      cd "$NIX_BUILD_TOP/somewhere/else/kernels-source"
    '';
  });
in
runCommand "kernels-reproducible" { } ''
  diff -r ${packages.nextsycl-kernels}/share/nextsycl/kernels ${again}/share/nextsycl/kernels
  find ${again}/share/nextsycl/kernels -type f | wc -l > "$out"
  [ "$(cat "$out")" -gt 10 ]
  cmp ${packages.nextsycl-kernels}/lib/libnextsycl-llm.so ${again}/lib/libnextsycl-llm.so
''
