# services.nextsycl.models.sources: models that the configuration names, as a registry in the store.
{
  config,
  lib,
  pkgs,
  ...
}:
let
  inherit (lib) mkOption types;
  cfg = config.services.nextsycl.models;
  values = import ./values.nix { inherit lib; };
  source = {
    options = {
      file = mkOption {
        type = types.nullOr types.path;
        default = null;
        example = "/data/models/qwen3.6-27b-q4.gguf";
        description = "The model's file, on this host or in the store; of a split model the first one.";
      };
      fetch = mkOption {
        type = types.listOf (types.submodule part);
        default = [ ];
        description = "In place of `file`: what to download into the store when the system is built, the first file of a split model first.";
      };
      title = mkOption {
        type = types.nullOr types.str;
        default = null;
        example = "Qwen 3.6 27B";
        description = "The model's name for people.";
      };
      contexts = mkOption {
        type = types.nullOr (types.either types.ints.positive (types.listOf types.ints.positive));
        default = null;
        example = 32768;
        description = "Tokens each session holds, or a list with one number for each session.";
      };
      gpus = mkOption {
        type = types.nullOr types.str;
        default = null;
        example = "0,1";
        description = "Cards that the model runs on: `all`, or their numbers apart by commas.";
      };
      env = mkOption {
        type = values.settingsType;
        default = { };
        example = {
          NS_KV = "f16";
        };
        description = "Options of the engine, by their environment names.";
      };
    };
  };
  part =
    { config, ... }:
    {
      options = {
        url = mkOption {
          type = types.str;
          example = "https://example.org/model-00001-of-00002.gguf";
          description = "Where the file is.";
        };
        hash = mkOption {
          type = types.str;
          example = "sha256-QvnceIGTBeDvDd9oCn+GvdsnkquliuwbVgpiRH68qaQ=";
          description = "The file's hash, as `nix hash file` prints it.";
        };
        name = mkOption {
          type = types.str;
          default = baseNameOf (lib.head (lib.splitString "?" config.url));
          defaultText = lib.literalMD "the last part of `url`";
          description = "The file's name; the parts of a split model must keep theirs.";
        };
      };
    };
  fileOf =
    id: s:
    let
      fetched = map (p: pkgs.fetchurl { inherit (p) url hash name; }) s.fetch;
      # the parts of a split model are found beside the first one
      folder = pkgs.runCommand "nextsycl-model-${id}" { } ''
        mkdir "$out"
        ${lib.concatStrings (
          lib.zipListsWith (p: file: ''
            ln -s ${file} "$out"/${lib.escapeShellArg p.name}
          '') s.fetch fetched
        )}
      '';
    in
    if s.file != null then
      "${s.file}"
    else if s.fetch == [ ] then
      # refused below
      ""
    else if lib.length s.fetch == 1 then
      "${lib.head fetched}"
    else
      "${folder}/${(lib.head s.fetch).name}";
  entry =
    id: s:
    {
      inherit id;
      kind = "llm";
      file = fileOf id s;
    }
    // lib.optionalAttrs (s.title != null) { inherit (s) title; }
    // lib.optionalAttrs (s.contexts != null) { ctx = values.contexts s.contexts; }
    // lib.optionalAttrs (s.gpus != null) { inherit (s) gpus; }
    // lib.optionalAttrs (s.env != { }) { env = values.settings s.env; };
in
{
  options.services.nextsycl.models.registry = mkOption {
    type = types.str;
    readOnly = true;
    internal = true;
    description = "The content of the registry that is made from the sources.";
  };
  options.services.nextsycl.models.sources = mkOption {
    type = types.attrsOf (types.submodule source);
    default = { };
    example = lib.literalExpression ''
      {
        "qwen3.6-27b-q4".file = "/data/models/qwen3.6-27b-q4.gguf";
        "smollm2-360m".fetch = [
          {
            url = "https://example.org/smollm2-360m.gguf";
            hash = "sha256-QvnceIGTBeDvDd9oCn+GvdsnkquliuwbVgpiRH68qaQ=";
          }
        ];
      }'';
    description = "Models by id; with at least one of them the registry is made from this option alone and commands cannot change it.";
  };

  config = {
    services.nextsycl.models.registry = builtins.toJSON {
      models = lib.mapAttrsToList entry cfg.sources;
    };
    services.nextsycl.settings = lib.mkIf (cfg.sources != { }) {
      NS_REGISTRY = lib.mkDefault "${pkgs.writeText "nextsycl-models.json" cfg.registry}";
    };
    services.nextsycl.checks = lib.concatLists (
      lib.mapAttrsToList (id: s: [
        {
          assertion = (s.file != null) != (s.fetch != [ ]);
          message = "services.nextsycl.models.sources.${id}: set either file or fetch.";
        }
        {
          assertion = builtins.match "[^[:space:]/\"']+" id != null;
          message = "services.nextsycl.models.sources: the id `${id}' may have no blanks, slashes and quotes.";
        }
      ]) cfg.sources
    );
  };
}
