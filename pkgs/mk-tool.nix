# The package of one tool: laid out as the folder that build.sh makes, so that a program finds everything beside itself.
#   cpuDevice       brings the runtime's CPU device, for a machine without a card
#   bundledDriver   brings Intel's driver, for a Linux whose own one our loader does not see; NixOS' goes first
{
  lib,
  runCommand,
  intel-compute-runtime,
  pname,
  tool,
  version,
  nextsycl-workspace,
  nextsycl-oneapi-rt,
  nextsycl-runtime,
  nextsycl-kernels,
  cpuDevice ? true,
  bundledDriver ? true,
}:
let
  oneapi = nextsycl-oneapi-rt.override { inherit cpuDevice; };
in
runCommand pname
  {
    inherit pname version;
    passthru = lib.optionalAttrs (tool.gpu or false) { inherit oneapi; };
    meta = {
      inherit (tool) description;
      mainProgram = pname;
      license = lib.licenses.mit;
      platforms = [ "x86_64-linux" ];
    };
  }
  ''
    install -Dm755 -t "$out/bin" ${nextsycl-workspace}/bin/${pname}
    mkdir -p "$out/share/nextsycl"
    echo ${version} > "$out/share/nextsycl/version"
    ${lib.optionalString (tool.gpu or false) ''
      # copies: they look for `oneapi` beside their own file
      install -Dm755 -t "$out/lib/nextsycl" ${nextsycl-runtime}/lib/*.so
      ln -s ${oneapi} "$out/lib/nextsycl/oneapi"
      ln -s ${nextsycl-kernels}/share/nextsycl/kernels "$out/lib/nextsycl/kernels"
      ${lib.optionalString bundledDriver ''
        ln -s ${intel-compute-runtime.drivers}/lib "$out/lib/nextsycl/driver"
      ''}
    ''}
    ${lib.concatMapStrings (model: ''
      mkdir -p "$out/share/nextsycl/models"
      ln -s ${model}/* "$out/share/nextsycl/models/"
    '') (tool.models or [ ])}
  ''
