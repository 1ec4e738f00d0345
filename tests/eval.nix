# Facts about the evaluated modules, without a virtual machine.
{
  lib,
  runCommand,
  self,
  packages,
}:
let
  extended =
    extra: services:
    (self.inputs.nixpkgs.lib.nixosSystem {
      modules = [
        self.nixosModules.default
        {
          nixpkgs.hostPlatform = "x86_64-linux";
          system.stateVersion = "26.05";
          services.nextsycl = services;
        }
      ]
      ++ extra;
    }).config;
  eval = extended [ ];
  failed = map (a: a.message);
  refusals = config: failed (lib.filter (a: !a.assertion) config.services.nextsycl.checks);
  # A host is refused, with a message that has these words.
  refused = words: services: lib.any (lib.hasInfix words) (refusals (eval services));
  accepted = services: refusals (eval services) == [ ];
  # A host does not evaluate at all.
  fails = services: !(builtins.tryEval (builtins.deepSeq (ports (eval services)) true)).success;
  ports = config: lib.mapAttrs (_: llm: llm.port) config.services.nextsycl.llm;
  llm = main: {
    llm.main = {
      enable = true;
      model = "/m/x.gguf";
    }
    // main;
  };
  service = config: config.systemd.services.nextsycl-llm-main;
  command = config: (service config).serviceConfig.ExecStart;
  has =
    words: config:
    lib.hasInfix (builtins.unsafeDiscardStringContext (
      " " + lib.concatMapStringsSep " " builtins.toJSON words
    )) (command config);
  sandbox = config: (service config).serviceConfig;
  rules = config: config.systemd.tmpfiles.settings."10-nextsycl";
  variant =
    cpuDevice: bundledDriver: packages.nextsycl-llm.override { inherit cpuDevice bundledDriver; };
  runs = config: package: lib.hasPrefix "${lib.getExe package} " (command config);
  registry =
    services:
    builtins.fromJSON (
      builtins.unsafeDiscardStringContext (eval services).services.nextsycl.models.registry
    );

  off = eval { };
  disabled = eval { llm.main.enable = false; };
  plain = eval (llm { });
  full = eval (llm {
    port = 9000;
    host = "0.0.0.0";
    openFirewall = true;
    device = "gpu:1";
    waitDevice = 90;
    contexts = [
      512
      1024
    ];
    settings = {
      NS_PARALLEL = 4;
      NS_KEEP_TEXT = false;
      NS_NAME = "50%";
    };
    environment.MY_VARIABLE = "x";
    extraFlags = [
      "--cors"
      "a b$c"
    ];
    opts = {
      kv = "f16";
      graph = true;
    };
    limits.memory = "48G";
    limits.memlock = "8G";
  });
  activated = eval (llm {
    autoStart = false;
  });
  socket = activated.systemd.sockets.nextsycl-llm-main;
  two = eval {
    llm = {
      a = {
        enable = true;
        model = "a";
      };
      b = {
        enable = true;
        model = "b";
        port = 8086;
      };
    };
  };
  elsewhere = eval (
    llm { model = "y.gguf"; }
    // {
      stateDir = "/data/x";
      cacheDir = "/data/cache";
    }
  );
  home = eval (
    llm { model = "y.gguf"; }
    // {
      modelsDir = "/home/alice/models";
    }
  );
  homeFile = eval (llm {
    model = "/root/models/z.gguf";
  });
  onCpu = eval (llm {
    device = "cpu";
  });
  onCpuBySetting = eval (llm { } // { settings.NS_DEVICE = "cpu"; });
  withCpu = eval (llm { } // { cpuDevice = true; });
  configured = eval (
    llm { }
    // {
      settings = {
        NS_PARALLEL = 3;
        NS_NAME = "a \"b\"";
      };
      environmentFile = "/run/secrets/nextsycl";
    }
  );
  otherUser = extended [
    {
      users.users.alice.isNormalUser = true;
      users.groups.models = { };
    }
  ];
  changed = extended [
    {
      systemd.services.nextsycl-llm-main.serviceConfig.TimeoutStopSec = lib.mkForce 5;
      systemd.services.nextsycl-llm-main.environment.NS_LOG = "debug";
    }
  ] (llm { });
  hash = "sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=";
  sources = {
    here = {
      file = "/data/here.gguf";
      title = "Here";
      contexts = [
        512
        256
      ];
      gpus = "0,1";
      env.NS_KV = "f16";
    };
    one.fetch = [
      {
        url = "https://example.org/a/one.gguf?download=true";
        inherit hash;
      }
    ];
    split.fetch = [
      {
        url = "https://example.org/s-00001-of-00002.gguf";
        inherit hash;
      }
      {
        url = "https://example.org/s-00002-of-00002.gguf";
        inherit hash;
      }
    ];
  };
  registered = registry { models = { inherit sources; }; };
  entry = id: lib.findFirst (e: e.id == id) { } registered.models;
  withSources = eval (llm { model = "here"; } // { models = { inherit sources; }; });

  # What the next tools bring: a server on the card, and a service without card and port.
  probe =
    kind: spec: options: services:
    extended [
      (import ../modules/engine.nix {
        inherit kind spec options;
        description = "A tool of this test.";
        flags = e: lib.optional (e ? level) "--level=${toString e.level}";
      })
    ] ({ packages.nextsycl-probe = packages.nextsycl-llm; } // services);
  shared = (lib.importJSON ../modules/units.json).services.llm;
  image =
    probe "image"
      (
        shared
        // {
          program = "nextsycl-probe";
          port = 8086;
        }
      )
      { }
      {
        image.x = {
          enable = true;
          model = "p";
          port = 8085;
        };
        llm.main = {
          enable = true;
          model = "m";
        };
      };
  watcher =
    probe "watch"
      {
        program = "nextsycl-probe";
        description = "watcher";
        gpu = false;
        args = [ "watch" ];
        unit = { };
        service.Type = "exec";
        environment = { };
      }
      {
        level = lib.mkOption {
          type = lib.types.int;
          default = 3;
          description = "A level.";
        };
      }
      { watch.x.enable = true; };

  # Settings that the modules write, which the programs must declare.
  table = builtins.readFile ../tools/lib/registry/src/settings.rs;
  undeclared = lib.filter (name: !lib.hasInfix "\"${name}\"" table) (
    lib.filter (lib.hasPrefix "NS_") (
      lib.concatMap builtins.attrNames [
        (service full).environment
        (lib.importJSON ../modules/units.json).services.llm.environment
      ]
      ++ [
        "NS_CONFIG"
        "NS_DEVICE"
        "NS_HOST"
        "NS_IDLE_EXIT"
        "NS_MODEL"
        "NS_PORT"
        "NS_WAIT_DEVICE"
      ]
    )
  );

  facts = {
    "off by default: no unit, user, driver, directory or file" =
      off.systemd.services ? nextsycl-llm-main == false
      && !(off.users.users ? nextsycl)
      && !off.hardware.graphics.enable
      && !(off.systemd.tmpfiles.settings ? "10-nextsycl")
      && !(off.environment.etc ? "nextsycl/nextsycl.conf");
    "an instance that is not enabled is nothing" = !(disabled.systemd.services ? nextsycl-llm-main);
    "a plain server is accepted without a warning" =
      refusals plain == [ ] && !lib.any (lib.hasInfix "nextsycl") plain.warnings;
    "it starts with the system" = (service plain).wantedBy == [ "multi-user.target" ];
    "and has no socket unit" = !(plain.systemd.sockets ? nextsycl-llm-main);
    "its command line" =
      lib.hasSuffix ''/bin/nextsycl-llm "serve" "--model" "/m/x.gguf" "--host" "127.0.0.1" "--port" "8085" "--socket" "/run/nextsycl-llm-main/nextsycl.sock" "--wait-device" "60"'' (
        command plain
      );
    "every option reaches the command line" = lib.all (words: has words full) [
      [
        "--host"
        "0.0.0.0"
      ]
      [
        "--port"
        "9000"
      ]
      [
        "--device"
        "gpu:1"
      ]
      [
        "--wait-device"
        "90"
      ]
      [
        "--ctx"
        "512,1024"
      ]
      [ "--opt-kv=f16" ]
      [ "--opt-graph=1" ]
    ];
    "flags of the user come last, with systemd's signs escaped" = lib.hasSuffix ''"--cors" "a b$$c"'' (
      command full
    );
    "settings are environment, with systemd's signs escaped" =
      let
        e = (service full).environment;
      in
      e.NS_PARALLEL == "4" && e.NS_KEEP_TEXT == "0" && e.NS_NAME == "50%%" && e.MY_VARIABLE == "x";
    "limits" =
      (sandbox full).MemoryMax == "48G"
      && (sandbox full).LimitMEMLOCK == "8G"
      && (sandbox plain).LimitMEMLOCK == "infinity"
      && !((sandbox plain) ? MemoryMax);
    "the firewall opens where it is asked to" =
      lib.elem 9000 full.networking.firewall.allowedTCPPorts
      && !lib.elem 8085 plain.networking.firewall.allowedTCPPorts;
    "an open firewall before a loopback address is a warning" = lib.any (lib.hasInfix "openFirewall") (
      (eval (llm {
        openFirewall = true;
      })).warnings
    );

    "a service that is told when it is ready, and stops in time" =
      (sandbox plain).Type == "notify"
      && (sandbox plain).TimeoutStopSec == 90
      && (sandbox plain).Restart == "on-failure";
    "a device without room is no reason to start again" = lib.elem 75 (sandbox plain)
    .RestartPreventExitStatus;
    "drivers may compile: no MemoryDenyWriteExecute" = (sandbox plain).MemoryDenyWriteExecute == false;
    "the card and nothing else of /dev" =
      (sandbox plain).DeviceAllow == [ "char-drm rw" ]
      && (sandbox plain).DevicePolicy == "closed"
      && (sandbox plain).SupplementaryGroups == [ "render" ];
    "the class of devices is there before the unit, the card may come later" =
      lib.elem "modprobe@drm.service" (service plain).after
      && lib.elem "modprobe@drm.service" (service plain).wants;
    "a read-only system, no homes" =
      (sandbox plain).ProtectSystem == "strict" && (sandbox plain).ProtectHome == true;
    "what NixOS users change is changed" =
      (sandbox changed).TimeoutStopSec == 5 && (service changed).environment.NS_LOG == "debug";

    "user and group" =
      plain.users.users.nextsycl.isSystemUser
      && plain.users.users.nextsycl.extraGroups == [ "render" ]
      && plain.users.users.nextsycl.home == "/var/lib/nextsycl"
      && plain.users.groups ? nextsycl
      && (sandbox plain).User == "nextsycl"
      && (sandbox plain).Group == "nextsycl";
    "another user must exist" = refused "users.users.bob" (llm { } // { user = "bob"; });
    "another group must exist" = refused "users.groups.crew" (llm { } // { group = "crew"; });
    "another user and group that exist" =
      let
        c = otherUser (
          llm { }
          // {
            user = "alice";
            group = "models";
          }
        );
      in
      refusals c == [ ]
      && !(c.users.users ? nextsycl)
      && !(c.users.groups ? nextsycl)
      && (sandbox c).User == "alice";

    "the driver, both outputs" =
      plain.hardware.graphics.enable && lib.length plain.hardware.graphics.extraPackages == 2;
    "no driver where it is not wanted" =
      !(eval (llm { } // { driver.enable = false; })).hardware.graphics.enable;
    "the tools are commands of the host" = lib.any (
      p: lib.getName p == "nextsycl-llm"
    ) plain.environment.systemPackages;

    "directories of the default" =
      (sandbox plain).StateDirectory == "nextsycl"
      && (sandbox plain).CacheDirectory == "nextsycl"
      && (sandbox plain).ReadWritePaths == [ ]
      && (rules plain)."/var/lib/nextsycl".d.mode == "0750"
      && (rules plain) ? "/var/lib/nextsycl/models";
    "directories elsewhere are made with their owner and may be written" =
      !((sandbox elsewhere) ? StateDirectory)
      && !((sandbox elsewhere) ? CacheDirectory)
      &&
        (sandbox elsewhere).ReadWritePaths == [
          "/data/x"
          "/data/cache"
        ]
      && (rules elsewhere)."/data/x".d.user == "nextsycl"
      && (rules elsewhere)."/data/cache".d.user == "nextsycl"
      && (sandbox elsewhere).WorkingDirectory == "/data/x"
      && elsewhere.users.users.nextsycl.home == "/data/x"
      && (service elsewhere).environment.NS_REGISTRY == "/data/x/models.json"
      && (service elsewhere).environment.SYCL_CACHE_DIR == "/data/cache/sycl";
    "a unit waits for the disks of its directories" = lib.elem "/data/x" (service elsewhere)
    .unitConfig.RequiresMountsFor;
    "caches are where the unit may write" =
      (service plain).environment.SYCL_CACHE_DIR == "/var/cache/nextsycl/sycl"
      && (service plain).environment.NEO_CACHE_DIR == "/var/cache/nextsycl/neo";
    "a file's name is in modelsDir" = has [
      "--model"
      "/data/x/models/y.gguf"
    ] elsewhere;
    "a model may be a package" =
      has
        [
          "--model"
          "${packages.nextsycl-model-smollm2}/x.gguf"
        ]
        (
          eval (llm {
            model = "${packages.nextsycl-model-smollm2}/x.gguf";
          })
        );
    "an id stays an id" = has [
      "--model"
      "here"
    ] withSources;
    "models below /home are shown alone, and nothing is made there" =
      (sandbox home).ProtectHome == "tmpfs"
      && (sandbox home).BindReadOnlyPaths == [ "-/home/alice/models" ]
      && !(rules home ? "/home/alice/models")
      && refusals home == [ ];
    "a model file below /root too" =
      (sandbox homeFile).ProtectHome == "tmpfs"
      && (sandbox homeFile).BindReadOnlyPaths == [ "-/root/models" ];
    "models are read only" = lib.elem "-/var/lib/nextsycl/models" (sandbox plain).ReadOnlyPaths;
    "state below /home is refused" = refused "services.nextsycl.stateDir is /home/x" (
      llm { } // { stateDir = "/home/x"; }
    );
    "a cache in /tmp is refused" = refused "services.nextsycl.cacheDir is /tmp/x" (
      llm { } // { cacheDir = "/tmp/x"; }
    );
    "a directory with a blank is refused" = refused "without blanks" (
      llm { } // { modelsDir = "/data/my models"; }
    );
    "a model in /tmp is refused" = refused "is in /tmp/models" (llm {
      model = "/tmp/models/x.gguf";
    });

    "no model is refused" = refused "llm.main.model must be set" { llm.main.enable = true; };
    "two instances" =
      refusals two == [ ]
      && two.systemd.services ? nextsycl-llm-a
      && two.systemd.services ? nextsycl-llm-b;
    "a port taken twice is refused, with both names" =
      refused "services.nextsycl.llm.a and services.nextsycl.llm.b both listen on port 8085"
        {
          llm.a = {
            enable = true;
            model = "a";
          };
          llm.b = {
            enable = true;
            model = "b";
          };
        };
    "one port on two addresses is fine" = accepted {
      llm.a = {
        enable = true;
        model = "a";
      };
      llm.b = {
        enable = true;
        model = "b";
        host = "192.168.1.2";
      };
    };
    "but not with every address" = refused "both listen" {
      llm.a = {
        enable = true;
        model = "a";
      };
      llm.b = {
        enable = true;
        model = "b";
        host = "::";
      };
    };
    "localhost is 127.0.0.1" = refused "both listen" {
      llm.a = {
        enable = true;
        model = "x";
        host = "localhost";
      };
      llm.b = {
        enable = true;
        model = "y";
      };
    };
    "the module may be imported twice" =
      refusals (extended [ self.nixosModules.nextsycl ] (llm { })) == [ ];
    "no port is refused" = refused "must say where" (llm {
      port = 0;
    });
    "no model's name is refused" = refused "it takes a path from the root" (llm {
      model = "";
    });
    "a model outside is refused" = refused "it takes a path from the root" (llm {
      model = "../x.gguf";
    });
    "a home's sign is refused" = refused "it takes a path from the root" (llm {
      model = "~/x.gguf";
    });
    "an odd option is refused" = refused "names of options" (llm {
      opts."a b" = 1;
    });
    "odd names are refused" = refused "becomes a unit's name" {
      llm."a b" = {
        enable = true;
        model = "a";
      };
    };
    "an odd device is refused" = refused "it takes gpu, gpu:N or cpu" (llm {
      device = "card0";
    });
    "a setting with an option of its own is refused" =
      refused "set services.nextsycl.llm.main.port instead"
        (llm {
          settings.NS_PORT = 1;
        });
    "a setting that is none is refused" = refused "settings are called NS_" (
      llm { } // { settings.port = 1; }
    );
    "a secret in the store is refused" = refused "environmentFile" (
      llm { } // { settings.NS_API_TOKEN = "x"; }
    );
    "a token count is no secret" = accepted (llm { } // { settings.NS_MAX_TOKENS = 100; });
    "a secret file in the store is refused" = refused "in the store" (
      llm { } // { environmentFile = ./eval.nix; }
    );
    "a setting is one line" = refused "is one line" (llm {
      settings.NS_NAME = "a\nb";
    });
    "an unknown option is refused" =
      fails
        (eval (llm {
          prot = 1;
        })).systemd.services;
    "an unknown option of the whole is refused" = fails (llm { } // { frontDoor.enable = true; });
    "a wrong type is refused" = fails (llm {
      port = "8085";
    });
    "a port out of range is refused" = fails (llm {
      port = 65536;
    });
    "what is refused stops the whole system" = lib.any (
      a: !a.assertion && lib.hasInfix "llm.main.model must be set" a.message
    ) (eval { llm.main.enable = true; }).assertions;

    "systemd listens for a server that is not started" =
      (service activated).wantedBy == [ ]
      && socket.wantedBy == [ "sockets.target" ]
      && socket.listenStreams == [ "127.0.0.1:8085" ]
      && (service activated).requires == [ "nextsycl-llm-main.socket" ];
    "and it ends when nobody asks" =
      has [
        "--idle-exit"
        "600"
      ] activated
      &&
        has
          [
            "--idle-exit"
            "180"
          ]
          (
            eval (llm {
              autoStart = false;
              idleMinutes = 3;
            })
          )
      && !lib.hasInfix "--idle-exit" (command plain)
      && !lib.hasInfix "--idle-exit" (
        command (
          eval (llm {
            autoStart = false;
            idleMinutes = null;
          })
        )
      );
    "an end that nobody starts again is refused" =
      refused "nothing would start the service again"
        (llm {
          idleMinutes = 3;
        });
    "IPv6 in a socket unit" =
      (eval (llm {
        autoStart = false;
        host = "::1";
      })).systemd.sockets.nextsycl-llm-main.listenStreams == [ "[::1]:8085" ];
    "a host name in a socket unit is refused" = refused "listens on addresses only" (llm {
      autoStart = false;
      host = "localhost";
    });

    "a card is expected: no CPU device, and the host's driver" = runs plain (variant false false);
    "the CPU device where it is asked for" = lib.all (config: runs config (variant true false)) [
      onCpu
      onCpuBySetting
      withCpu
    ];
    "a driver in the package where the host has none" = runs (eval (
      llm { } // { driver.enable = false; }
    )) (variant false true);
    "these packages differ" = lib.allUnique [
      (variant false false)
      (variant true false)
      (variant false true)
    ];
    "nobody waits for the CPU" = !lib.hasInfix "--wait-device" (command onCpu);

    "settings of all are a file for commands" =
      configured.environment.etc."nextsycl/nextsycl.conf".text == ''
        NS_NAME="a "b""
        NS_PARALLEL="3"
      '';
    "and environment of every unit" = (service configured).environment.NS_PARALLEL == "3";
    "secrets are a file" = (sandbox configured).EnvironmentFile == "/run/secrets/nextsycl";

    "sources are the registry" =
      lib.hasPrefix builtins.storeDir (service withSources).environment.NS_REGISTRY
      &&
        entry "here" == {
          id = "here";
          kind = "llm";
          file = "/data/here.gguf";
          title = "Here";
          ctx = "512,256";
          gpus = "0,1";
          env.NS_KV = "f16";
        };
    "a fetched model is a file in the store" =
      builtins.match "${builtins.storeDir}/[a-z0-9]{32}-one.gguf" (entry "one").file != null;
    "a split model is a directory with its parts" =
      lib.hasSuffix "-nextsycl-model-split/s-00001-of-00002.gguf" (entry "split").file;
    "the directory of a source is one that the unit waits for" = lib.elem "/data" (service withSources)
    .unitConfig.RequiresMountsFor;
    "a source needs a file or a fetch" = refused "set either file or fetch" (
      llm { } // { models.sources.x = { }; }
    );
    "and not both" = refused "set either file or fetch" (
      llm { }
      // {
        models.sources.x = {
          file = "/x";
          inherit (sources.one) fetch;
        };
      }
    );

    "the next tool's ports are compared with this one's" =
      lib.any (lib.hasInfix "both listen on port 8085") (refusals image);
    "the next tool's unit is like this one's" =
      image.systemd.services.nextsycl-image-x.serviceConfig.DeviceAllow == [ "char-drm rw" ];
    "a tool without card and port has neither" =
      let
        s = watcher.systemd.services.nextsycl-watch-x.serviceConfig;
      in
      refusals watcher == [ ]
      && lib.hasSuffix ''/bin/nextsycl-probe "watch" "--level=3"'' s.ExecStart
      && s.PrivateDevices
      && s.MemoryDenyWriteExecute
      && !(s ? LimitMEMLOCK)
      && !(watcher.services.nextsycl.watch.x ? port);

    "every setting that the modules write is one that the programs know" =
      undeclared == [ ] || throw "not in the table of settings: ${toString undeclared}";
  };
  wrong = lib.attrNames (lib.filterAttrs (_: fact: !fact) facts);
in
if wrong != [ ] then
  throw "about the modules this does not hold: ${lib.concatStringsSep "; " wrong}"
else
  runCommand "module-eval" { facts = lib.concatLines (lib.attrNames facts); } ''
    printf %s "$facts" > "$out"
  ''
