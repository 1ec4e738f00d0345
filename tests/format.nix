# Every Nix file is in nixfmt's form and has no name that nothing uses.
{
  lib,
  runCommand,
  nixfmt,
  deadnix,
}:
let
  files = lib.cleanSourceWith {
    src = ../.;
    name = "nextsycl-nix-files";
    filter = path: type: type == "directory" || lib.hasSuffix ".nix" path;
  };
in
runCommand "format" { } ''
  cd ${files}
  find . -name '*.nix' > "$NIX_BUILD_TOP/files"
  [ "$(wc -l < "$NIX_BUILD_TOP/files")" -gt 10 ]
  xargs ${lib.getExe nixfmt} --check < "$NIX_BUILD_TOP/files"
  xargs ${lib.getExe deadnix} --fail < "$NIX_BUILD_TOP/files"
  wc -l < "$NIX_BUILD_TOP/files" > "$out"
''
