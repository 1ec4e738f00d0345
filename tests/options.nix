# docs/options.md is what the modules say: every option has its description, type, default and example.
{
  lib,
  runCommand,
  writeText,
  self,
}:
let
  system = self.inputs.nixpkgs.lib.nixosSystem {
    modules = [
      self.nixosModules.default
      { nixpkgs.hostPlatform = "x86_64-linux"; }
    ];
  };
  page = import ../modules/reference.nix {
    inherit lib;
    inherit (system) options;
  };
  listed = lib.filter (o: o.visible && !o.internal) (
    lib.optionAttrSetToDocList system.options.services.nextsycl
  );
  # One sentence, with a full stop; a type with a name.
  poor = lib.filter (
    o:
    o.description == null
    || builtins.match "[A-Z][^\n]*[^.]\\." o.description == null
    || o.type == "unspecified"
  ) listed;
in
assert lib.assertMsg (lib.length listed > 30) "the options were not found";
assert lib.assertMsg (poor == [ ])
  "not described in a sentence: ${lib.concatMapStringsSep ", " (o: o.name) poor}";
runCommand "options-page"
  {
    committed = ../docs/options.md;
    made = writeText "options.md" page;
    passthru = { inherit page; };
  }
  ''
    if ! diff -u "$committed" "$made"; then
      echo "docs/options.md is not what modules/ says. Write it again:" >&2
      echo "  nix eval --raw .#checks.x86_64-linux.options.page > docs/options.md" >&2
      exit 1
    fi
    cp "$made" "$out"
  ''
