# A tool that runs as services: the options services.nextsycl.KIND.<name> and their units. What a tool needs is its entry
# in units.json and a call of this:
#   kind          its name there
#   description   of the option services.nextsycl.KIND
#   options       options of an instance besides those below
#   flags         instance -> arguments that these give
#   spec          its entry in units.json: `gpu` brings the options of models and devices, `port` those of a server
{
  kind,
  description,
  options ? { },
  flags ? _: [ ],
  spec ? (builtins.fromJSON (builtins.readFile ./units.json)).services.${kind},
}:
{
  config,
  lib,
  utils,
  ...
}:
let
  inherit (lib) mkOption types;
  cfg = config.services.nextsycl;
  values = import ./values.nix { inherit lib; };
  sandbox = import ./sandbox.nix { inherit lib cfg; };
  isServer = spec ? port;
  path = "services.nextsycl.${kind}";

  serverOptions = config: {
    host = mkOption {
      type = types.str;
      default = "127.0.0.1";
      example = "0.0.0.0";
      description = "Address to listen on; a number where a socket of systemd listens (see `autoStart`).";
    };
    port = mkOption {
      type = types.port;
      default = spec.port;
      description = "TCP port to listen on.";
    };
    openFirewall = mkOption {
      type = types.bool;
      default = false;
      example = true;
      description = "Whether to open the port in the firewall: there is no password in front of the server.";
    };
    autoStart = mkOption {
      type = types.bool;
      default = true;
      example = false;
      description = "Whether to start with the system; otherwise systemd listens and the first connection starts the service.";
    };
    idleMinutes = mkOption {
      type = types.nullOr types.ints.positive;
      default = if config.autoStart then null else 10;
      defaultText = lib.literalExpression "if config.${path}.<name>.autoStart then null else 10";
      description = "Minutes without a request after which the service ends and frees the card, or null for never; only where a connection starts it again.";
    };
  };
  gpuOptions = {
    model = mkOption {
      type = types.nullOr (types.either types.path types.str);
      default = null;
      example = "qwen3.6-27b-q4";
      description = "The model: a file's path, the name of a `.gguf` file in `modelsDir`, or the id of a model in `models.sources`, in the registry or in the package.";
    };
    device = mkOption {
      type = types.nullOr types.str;
      default = null;
      example = "gpu:1";
      description = "The device: `gpu`, `gpu:N` or `cpu`; without one, the card with the most free memory.";
    };
    waitDevice = mkOption {
      type = types.ints.unsigned;
      default = 60;
      example = 0;
      description = "Seconds to wait for the card at start, while requests are answered with 503.";
    };
    opts = mkOption {
      type = types.attrsOf (
        types.oneOf [
          types.bool
          types.int
          types.str
        ]
      );
      default = { };
      example = {
        kv = "f16";
      };
      description = "Options of the engine, given as `--opt-NAME`; `nextsycl-${kind} engines` lists them.";
    };
    limits.memlock = mkOption {
      type = types.str;
      default = "infinity";
      example = "8G";
      description = "Memory that may be locked (LimitMEMLOCK), which transfers to the card need.";
    };
  };

  instance =
    { config, ... }:
    {
      options = lib.foldl' lib.recursiveUpdate { } [
        {
          enable = lib.mkEnableOption "this instance of nextsycl-${kind}";
          package = mkOption {
            type = types.package;
            default =
              if spec.gpu then
                cfg.packages.${spec.program}.override {
                  cpuDevice = usesCpu config;
                  # the host's is there
                  bundledDriver = !cfg.driver.enable;
                }
              else
                cfg.packages.${spec.program};
            defaultText = lib.literalExpression (
              if spec.gpu then
                "config.services.nextsycl.packages.${spec.program}.override { cpuDevice = …; bundledDriver = …; }"
              else
                "config.services.nextsycl.packages.${spec.program}"
            );
            description = "The package of the program${lib.optionalString spec.gpu ", with the CPU device where `cpuDevice` or `device` asks for it and a driver where `driver.enable` is off"}.";
          };
          settings = mkOption {
            type = values.settingsType;
            default = { };
            example = {
              NS_PARALLEL = 4;
            };
            description = "Settings of this instance, in front of `services.nextsycl.settings`.";
          };
          environment = mkOption {
            type = types.attrsOf types.str;
            default = { };
            example = {
              ZES_ENABLE_SYSMAN = "1";
            };
            description = "Environment variables of the unit.";
          };
          extraFlags = mkOption {
            type = types.listOf types.str;
            default = [ ];
            example = [
              "--cors"
              "https://chat.example.org"
            ];
            description = "Arguments added at the end of the command line.";
          };
          limits.memory = mkOption {
            type = types.nullOr types.str;
            default = null;
            example = "48G";
            description = "Most memory of the host that the service may use (MemoryMax).";
          };
        }
        (lib.optionalAttrs isServer (serverOptions config))
        (lib.optionalAttrs spec.gpu gpuOptions)
        options
      ];
    };

  # An id of the registry or of the package stays a word.
  modelOf =
    model:
    let
      text = "${model}";
    in
    if lib.hasSuffix ".gguf" text && !lib.hasPrefix "/" text then "${cfg.modelsDir}/${text}" else text;
  settingsOf = e: values.settings (cfg.settings // e.settings);
  deviceOf = e: if e.device != null then e.device else (settingsOf e).NS_DEVICE or "gpu";
  onCpu = e: builtins.match "cpu(:[0-9]+)?|opencl:cpu" (deviceOf e) != null;
  usesCpu = e: cfg.cpuDevice || onCpu e;
  # Where the model's file is, if it is in neither modelsDir nor the store.
  fileOf =
    e:
    let
      source = cfg.models.sources.${builtins.unsafeDiscardStringContext "${e.model}"}.file or null;
    in
    if source != null then "${source}" else modelOf e.model;
  isForeign =
    file:
    lib.hasPrefix "/" file
    && !values.isBelowAny [
      cfg.modelsDir
      builtins.storeDir
    ] file;
  foreign =
    e:
    lib.optionals (spec.gpu && e.model != null) (
      map (file: dirOf (builtins.unsafeDiscardStringContext file)) (lib.filter isForeign [ (fileOf e) ])
    );

  unitOf = name: "nextsycl-${kind}-${name}";
  enabled = lib.filterAttrs (_: e: e.enable) cfg.${kind};
  activated = lib.filterAttrs (_: e: isServer && !e.autoStart) enabled;
  forUnits =
    f: instances: lib.mapAttrs' (name: e: lib.nameValuePair (unitOf name) (f name e)) instances;

  arguments =
    name: e:
    spec.args
    ++ lib.optionals (spec.gpu && e.model != null) [
      "--model"
      (modelOf e.model)
    ]
    ++ lib.optionals isServer [
      "--host"
      e.host
      "--port"
      (toString e.port)
      "--socket"
      "/run/${unitOf name}/nextsycl.sock"
    ]
    ++ lib.optionals (spec.gpu && e.device != null) [
      "--device"
      e.device
    ]
    ++ flags e
    ++ lib.optionals (isServer && e.idleMinutes != null) [
      "--idle-exit"
      (toString (e.idleMinutes * 60))
    ]
    ++ lib.optionals (spec.gpu && !onCpu e && e.waitDevice > 0) [
      "--wait-device"
      (toString e.waitDevice)
    ]
    ++ lib.optionals spec.gpu (
      lib.mapAttrsToList (option: value: "--opt-${option}=${values.setting value}") e.opts
    )
    ++ e.extraFlags;

  service =
    name: e:
    let
      socket = lib.optional (activated ? ${name}) "${unitOf name}.socket";
      # Registers the class of devices that DeviceAllow names, even where the card's driver comes later.
      drm = lib.optional spec.gpu "modprobe@drm.service";
    in
    {
      description = "${spec.description} (${name})";
      after = [ "network.target" ] ++ drm ++ socket;
      wants = drm;
      requires = socket;
      wantedBy = lib.optional (!(activated ? ${name})) "multi-user.target";
      unitConfig = spec.unit // {
        RequiresMountsFor = [
          cfg.stateDir
          cfg.cacheDir
          cfg.modelsDir
        ]
        ++ foreign e;
      };
      environment =
        lib.mapAttrs (_: lib.replaceStrings [ "%C/nextsycl" ] [ cfg.cacheDir ]) spec.environment
        // {
          NS_REGISTRY = "${cfg.stateDir}/models.json";
        }
        // lib.mapAttrs (_: lib.replaceStrings [ "%" ] [ "%%" ]) (settingsOf e)
        // e.environment;
      serviceConfig =
        sandbox {
          inherit (spec) gpu service;
          reads = [ cfg.modelsDir ] ++ foreign e;
        }
        // {
          ExecStart = "${lib.getExe' e.package spec.program} ${utils.escapeSystemdExecArgs (arguments name e)}";
          User = cfg.user;
          Group = cfg.group;
          WorkingDirectory = cfg.stateDir;
          RuntimeDirectory = unitOf name;
          RuntimeDirectoryMode = "0750";
        }
        // lib.optionalAttrs (cfg.environmentFile != null) { EnvironmentFile = cfg.environmentFile; }
        // lib.optionalAttrs (e.limits.memory != null) { MemoryMax = e.limits.memory; }
        // lib.optionalAttrs spec.gpu { LimitMEMLOCK = e.limits.memlock; };
    };

  socket = name: e: {
    description = "${spec.description} (${name}), socket";
    wantedBy = [ "sockets.target" ];
    listenStreams = [ (values.address e) ];
    socketConfig = spec.socket;
  };

  # Names that an option sets, which a setting would not change.
  managed =
    lib.optionalAttrs isServer {
      NS_HOST = "host";
      NS_PORT = "port";
      NS_IDLE_EXIT = "idleMinutes";
    }
    // lib.optionalAttrs spec.gpu {
      NS_MODEL = "model";
      NS_WAIT_DEVICE = "waitDevice";
    };
  assertionsOf =
    name: e:
    let
      at = "${path}.${name}";
    in
    [
      {
        assertion = builtins.match "[a-z0-9]([a-z0-9-]*[a-z0-9])?" name != null;
        message = "${path}: the name `${name}' becomes a unit's name: it may have lower-case letters, digits and, inside, dashes.";
      }
    ]
    ++ lib.mapAttrsToList (setting: option: {
      assertion = !(e.settings ? ${setting});
      message = "${at}.settings: set ${at}.${option} instead of ${setting}.";
    }) managed
    ++ values.settingsAssertions "${at}.settings" e.settings
    ++ lib.optionals isServer [
      {
        assertion = e.port != 0 && builtins.match "[^[:space:]]+" e.host != null;
        message = "${at}: host and port must say where clients find the server, as 127.0.0.1 and ${toString spec.port}.";
      }
      {
        assertion = e.autoStart || values.isAddress e.host;
        message = "${at}.host is `${e.host}': systemd listens on addresses only. Set it to one, as 127.0.0.1, or set autoStart = true.";
      }
      {
        assertion = !e.autoStart || e.idleMinutes == null;
        message = "${at}.idleMinutes: nothing would start the service again. Set autoStart = false, or leave idleMinutes away.";
      }
    ]
    ++ lib.optionals spec.gpu (
      [
        {
          assertion = e.model != null;
          message = "${at}.model must be set: to a file's path, to a `.gguf' file in ${cfg.modelsDir}, or to an id of services.nextsycl.models.sources.";
        }
        {
          assertion =
            e.model == null
            || lib.hasPrefix "/" "${e.model}"
            ||
              builtins.match "[^/~[:space:]][^[:space:]]*" "${e.model}" != null
              && !lib.hasInfix ".." "${e.model}";
          message = "${at}.model is `${toString e.model}': it takes a path from the root, a `.gguf' file below ${cfg.modelsDir}, or an id.";
        }
        {
          assertion = lib.all (option: builtins.match "[A-Za-z0-9_-]+" option != null) (lib.attrNames e.opts);
          message = "${at}.opts: names of options have letters, digits, dashes and underscores: ${toString (lib.attrNames e.opts)}.";
        }
        {
          assertion =
            e.device == null || builtins.match "(gpu|cpu)(:[0-9]+)?|[a-z_]+:[a-z0-9_:]+" e.device != null;
          message = "${at}.device is `${toString e.device}': it takes gpu, gpu:N or cpu.";
        }
      ]
      ++ map (dir: {
        assertion = values.isPlain dir && !values.isBelowAny values.temporary dir;
        message = "${at}.model is in ${dir}, which the service cannot see: /tmp and /var/tmp are its own, and directories may have no blanks, colons, quotes and percent signs. Move the model to ${cfg.modelsDir}.";
      }) (foreign e)
    );
in
{
  options.services.nextsycl.${kind} = mkOption {
    type = types.attrsOf (types.submodule instance);
    default = { };
    inherit description;
    example = lib.literalExpression ''
      {
        main = {
          enable = true;${lib.optionalString spec.gpu "\n    model = \"qwen3.6-27b-q4\";"}
        };
      }'';
  };

  config = {
    services.nextsycl.checks = lib.concatLists (lib.mapAttrsToList assertionsOf enabled);
    services.nextsycl.instances = lib.mapAttrsToList (
      name: e:
      {
        option = "${path}.${name}";
        inherit (e) package;
      }
      // lib.optionalAttrs isServer { inherit (e) host port openFirewall; }
    ) enabled;
    systemd.services = forUnits service enabled;
    systemd.sockets = forUnits socket activated;
  };
}
