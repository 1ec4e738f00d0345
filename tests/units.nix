# Every unit of a few hosts through `systemd-analyze verify` and `systemd-analyze security`, and its command line through the
# program's own help.
{
  lib,
  runCommand,
  systemd,
  writeText,
  self,
}:
let
  host =
    services:
    let
      wrong = lib.filter (a: !a.assertion) config.services.nextsycl.checks;
      config = evaluated services;
    in
    assert lib.assertMsg (wrong == [ ]) (lib.concatMapStringsSep "; " (a: a.message) wrong);
    config;
  evaluated =
    services:
    (self.inputs.nixpkgs.lib.nixosSystem {
      modules = [
        self.nixosModules.default
        {
          nixpkgs.hostPlatform = "x86_64-linux";
          system.stateVersion = "26.05";
          services.nextsycl = services;
        }
      ];
    }).config;
  hosts = {
    plain.llm.main = {
      enable = true;
      model = "qwen.gguf";
    };
    activated = {
      environmentFile = "/run/secrets/nextsycl";
      llm.main = {
        enable = true;
        model = "/home/alice/models/qwen.gguf";
        host = "::1";
        autoStart = false;
        limits.memory = "48G";
      };
    };
    several = {
      stateDir = "/data/x";
      cacheDir = "/data/cache";
      modelsDir = "/home/alice/models";
      settings.NS_NAME = "50% \"quoted\"";
      llm = {
        big = {
          enable = true;
          model = "big.gguf";
          device = "gpu:0";
          contexts = [
            32768
            8192
          ];
          opts.kv = "f16";
          extraFlags = [
            "--cors"
            "https://chat.example.org"
          ];
        };
        small = {
          enable = true;
          model = "smollm2-135m-instruct.q4_1";
          device = "cpu";
          port = 8185;
          host = "0.0.0.0";
          openFirewall = true;
        };
        later = {
          enable = true;
          model = "smollm2-135m-instruct.q4_1";
          host = "0.0.0.0";
          port = 8186;
          autoStart = false;
          idleMinutes = 1;
        };
      };
    };
  };
  ours = config: lib.filterAttrs (name: _: lib.hasPrefix "nextsycl-" name) config.systemd.units;
  # The flags of a service's command line: `--flag`, and `--opt-name` of the engine's options.
  flags =
    service:
    lib.unique (
      map (word: lib.head (lib.splitString "=" (lib.removePrefix "\"" (lib.removeSuffix "\"" word)))) (
        lib.filter (lib.hasPrefix "\"--") (lib.splitString " " service.serviceConfig.ExecStart)
      )
    );
  services =
    config: lib.filterAttrs (name: _: lib.hasPrefix "nextsycl-" name) config.systemd.services;
  check = name: config: ''
    echo "== ${name}"
    mkdir -p ${name}
    ${lib.concatStrings (
      lib.mapAttrsToList (unit: u: ''
        cp ${writeText unit u.text} ${name}/${unit}
      '') (ours config)
    )}
    verify ${name}
    secure ${name}
    ${lib.concatStrings (
      lib.mapAttrsToList (unit: service: ''
        knows ${lib.escapeShellArg (lib.head (lib.splitString " " service.serviceConfig.ExecStart))} ${lib.escapeShellArgs (flags service)}
        starts ${name}/${unit}.service
      '') (services config)
    )}
  '';
in
runCommand "units" { nativeBuildInputs = [ systemd ]; } ''
  export HOME=$NIX_BUILD_TOP XDG_RUNTIME_DIR=$NIX_BUILD_TOP SYSTEMD_PAGER=cat
  # the units that ours name, as systemd's package has them
  units=$(dirname "$(dirname "$(readlink -f "$(command -v systemd-analyze)")")")/example/systemd/system
  {
    # verify DIR: also what systemd only warns of is refused
    verify() {
      local said
      said=$(SYSTEMD_UNIT_PATH="$PWD/$1:$units:" systemd-analyze verify --man=no --generators=no --recursive-errors=no "$1"/* 2>&1) || { echo "$said"; return 1; }
      [ -z "$said" ] || { echo "$said"; return 1; }
    }
    # secure DIR: the exposure of each service, at most 3.0 of 10
    secure() {
      local unit said
      for unit in "$1"/*.service; do
        if said=$(systemd-analyze security --offline=true --threshold=30 --no-pager "$unit" 2>&1); then
          echo "''${unit#*/}: ''${said##*→ }"
        else
          echo "$said" | grep -v '✓'
          return 1
        fi
      done
    }
    # knows PROGRAM FLAG...: the program's help or its engines name each flag
    knows() {
      local program=$1 flag
      shift
      [ $# -gt 3 ] || { echo "the flags of $program were not found"; return 1; }
      "$program" serve --help > help
      "$program" engines >> help
      for flag; do
        grep -qE -- "(^|[ ,])$flag([ =]|$)" help || { echo "$program serve does not know $flag"; return 1; }
      done
    }
    # starts UNIT: where its model is missing, the program gets as far as looking for it (exit code 4; 2 is bad usage)
    starts() {
      local line model code=0
      line=$(sed -n 's/^ExecStart=//p' "$1")
      model=$(echo "$line" | sed -n 's/.*"--model" "\(\/[^"]*\)".*/\1/p')
      [ -n "$model" ] || return 0
      bash -c "$line" > said 2>&1 || code=$?
      [ $code = 4 ] && grep -qF "$model" said || { echo "$1: exit code $code:"; cat said; return 1; }
    }
    ${lib.concatStrings (lib.mapAttrsToList (name: services: check name (host services)) hosts)}

    echo "== what must be refused"
    mkdir bad && install -m644 plain/*.service bad/
    sed -i 's/^Type=/Nonsense=1\nType=/' bad/*.service
    if verify bad; then echo "a unit with an unknown key passed"; exit 1; fi
    grep -vE '^(Protect|Restrict|System|Capability|Private|Device)' plain/nextsycl-llm-main.service > bad/nextsycl-llm-main.service
    if secure bad > /dev/null; then echo "a unit without a sandbox passed"; exit 1; fi
    if knows "$(sed -n 's/^ExecStart=\([^ ]*\).*/\1/p' plain/*.service)" --host --port --socket --no-such-flag; then
      echo "an unknown flag passed"
      exit 1
    fi
    sed 's/"serve"/"serve" "--no-such-flag"/' plain/nextsycl-llm-main.service > bad/nextsycl-llm-main.service
    if starts bad/nextsycl-llm-main.service; then echo "bad usage passed"; exit 1; fi
  } 2>&1 | tee "$out"
''
