# What all services share: packages, user, directories, driver, settings, and checks across instances.
{
  config,
  lib,
  pkgs,
  ...
}:
let
  inherit (lib) mkOption types;
  cfg = config.services.nextsycl;
  values = import ./values.nix { inherit lib; };
  servers = lib.filter (i: i ? port) cfg.instances;
  isWildcard =
    host:
    lib.elem host [
      "0.0.0.0"
      "::"
      "[::]"
    ];
  number = host: if host == "localhost" then "127.0.0.1" else host;
  clash =
    a: b:
    a.option < b.option
    && a.port == b.port
    && (number a.host == number b.host || isWildcard a.host || isWildcard b.host);
  directories = { inherit (cfg) stateDir modelsDir cacheDir; };
in
{
  options.services.nextsycl = {
    packages = mkOption {
      type = types.lazyAttrsOf types.package;
      defaultText = lib.literalExpression "packages of the flake";
      description = "The tools' packages, which the flake's module sets.";
    };
    user = mkOption {
      type = types.str;
      default = "nextsycl";
      description = "User of the services; another one than the default must exist.";
    };
    group = mkOption {
      type = types.str;
      default = "nextsycl";
      description = "Group of the services; another one than the default must exist.";
    };
    stateDir = mkOption {
      type = types.path;
      default = "/var/lib/nextsycl";
      example = "/data/nextsycl";
      description = "Directory of what the services keep; made with the right owner.";
    };
    modelsDir = mkOption {
      type = types.path;
      default = "${cfg.stateDir}/models";
      defaultText = lib.literalExpression ''"''${config.services.nextsycl.stateDir}/models"'';
      example = "/home/alice/models";
      description = "Directory of model files; made when it is missing, read only for the services, and shown to them alone when it is below /home.";
    };
    cacheDir = mkOption {
      type = types.path;
      default = "/var/cache/nextsycl";
      description = "Directory of kernels that the driver has compiled.";
    };
    driver.enable = mkOption {
      type = types.bool;
      default = true;
      example = false;
      description = "Whether to install Intel's Level Zero and OpenCL driver where a service is enabled.";
    };
    cpuDevice = mkOption {
      type = types.bool;
      default = false;
      example = true;
      description = "Whether services bring the CPU device besides the card's (360 MB); one with `device = \"cpu\"` always does.";
    };
    settings = mkOption {
      type = values.settingsType;
      default = { };
      example = {
        NS_PARALLEL = 4;
        NS_KEEP_TEXT = false;
      };
      description = "Settings of all services and, as /etc/nextsycl/nextsycl.conf, of commands; `nextsycl-llm help` lists them, and everybody can read them.";
    };
    environmentFile = mkOption {
      type = types.nullOr types.path;
      default = null;
      example = "/run/secrets/nextsycl";
      description = "File with settings that nobody else may read, as NAME=value lines.";
    };
    instances = mkOption {
      type = types.listOf types.raw;
      default = [ ];
      internal = true;
      description = "The enabled services of all tools, for checks across them.";
    };
    checks = mkOption {
      type = types.listOf types.raw;
      default = [ ];
      internal = true;
      description = "Our part of `assertions`, by itself so that it can be read without the rest of a host.";
    };
  };

  config = lib.mkIf (cfg.instances != [ ]) {
    assertions = cfg.checks;
    services.nextsycl.checks =
      lib.concatMap (
        a:
        map (b: {
          assertion = !clash a b;
          message = "${a.option} and ${b.option} both listen on port ${toString a.port}: give one of them another port.";
        }) servers
      ) servers
      ++ lib.mapAttrsToList (name: dir: {
        assertion = values.isPlain dir;
        message = "services.nextsycl.${name} is `${dir}': it must be an absolute path without blanks, colons, quotes, percent signs and a slash at the end.";
      }) directories
      ++ lib.mapAttrsToList (name: dir: {
        assertion = !values.isBelowAny values.temporary dir;
        message = "services.nextsycl.${name} is ${dir}: the services have a /tmp and /var/tmp of their own. Choose a directory elsewhere.";
      }) directories
      ++
        lib.mapAttrsToList
          (name: dir: {
            assertion = !values.isBelowAny values.homes dir;
            message = "services.nextsycl.${name} is ${dir}: the services cannot write below /home, /root and /run/user. Choose a directory elsewhere, as /data/nextsycl.";
          })
          {
            inherit (cfg) stateDir cacheDir;
          }
      ++ values.settingsAssertions "services.nextsycl.settings" cfg.settings
      ++ [
        {
          assertion = cfg.user == "nextsycl" || config.users.users ? ${cfg.user};
          message = "services.nextsycl.user is ${cfg.user}: declare users.users.${cfg.user}, with the group render for the card.";
        }
        {
          assertion = cfg.group == "nextsycl" || config.users.groups ? ${cfg.group};
          message = "services.nextsycl.group is ${cfg.group}: declare users.groups.${cfg.group}.";
        }
        {
          assertion =
            cfg.environmentFile == null || !lib.hasPrefix builtins.storeDir "${cfg.environmentFile}";
          message = "services.nextsycl.environmentFile is in the store, where everybody can read it: give the path as a string.";
        }
      ];
    warnings = map (
      i:
      "${i.option}: openFirewall opens port ${toString i.port}, but the service listens on ${i.host} only. Set host, as 0.0.0.0, or leave the firewall closed."
    ) (lib.filter (i: i.openFirewall && values.isLoopback i.host) servers);

    users.users = lib.mkIf (cfg.user == "nextsycl") {
      nextsycl = {
        isSystemUser = true;
        description = "nextsycl services";
        inherit (cfg) group;
        extraGroups = [ "render" ];
        home = cfg.stateDir;
      };
    };
    users.groups = lib.mkIf (cfg.group == "nextsycl") { nextsycl = { }; };

    systemd.tmpfiles.settings."10-nextsycl" =
      let
        own = {
          d = {
            inherit (cfg) user group;
            mode = "0750";
          };
        };
        # a directory that is there already stays as it is
        missing = {
          d = {
            user = ":${cfg.user}";
            group = ":${cfg.group}";
            mode = ":0750";
          };
        };
      in
      # tmpfiles makes nothing for one user inside the home of another
      lib.optionalAttrs (!values.isBelowAny values.homes cfg.modelsDir) {
        ${cfg.modelsDir} = missing;
      }
      // {
        ${cfg.stateDir} = own;
        ${cfg.cacheDir} = own;
      };

    environment.etc = lib.mkIf (cfg.settings != { }) {
      "nextsycl/nextsycl.conf".text = lib.concatLines (
        lib.mapAttrsToList (name: value: "${name}=\"${value}\"") (values.settings cfg.settings)
      );
    };
    environment.systemPackages = lib.unique (map (i: i.package) cfg.instances);

    hardware.graphics = lib.mkIf cfg.driver.enable {
      enable = true;
      # the Level Zero driver is in `drivers` only
      extraPackages = [
        pkgs.intel-compute-runtime
        pkgs.intel-compute-runtime.drivers
      ];
    };

    networking.firewall.allowedTCPPorts = map (i: i.port) (lib.filter (i: i.openFirewall) servers);
  };
}
