# services.nextsycl.llm.<name>: language-model servers.
{ lib, ... }:
let
  inherit (lib) mkOption types;
  inherit (import ./values.nix { inherit lib; }) contexts;
in
{
  imports = [
    (import ./engine.nix {
      kind = "llm";
      description = "Language-model servers, by name: the unit of `main` is `nextsycl-llm-main`.";
      options.contexts = mkOption {
        type = types.nullOr (types.either types.ints.positive (types.listOf types.ints.positive));
        default = null;
        example = [
          32768
          8192
        ];
        description = "Tokens each session holds, or a list with one number for each session (8 at most).";
      };
      flags =
        llm:
        lib.optionals (llm.contexts != null) [
          "--ctx"
          (contexts llm.contexts)
        ];
    })
  ];
}
