# pkgs.testers.runNixOSTest of the stand-in: evaluates the machines as nixpkgs does and runs the test script against them. A machine is
# not a virtual machine but this host's systemd in namespaces (machine.sh): real units, sockets, users and hardening; no kernel,
# no network, no other packages than /usr and the store. What it cannot do is an error.
{
  lib,
  pkgs,
  host,
}:
module:
let
  render = import ../units.nix lib;
  inherit
    (lib.evalModules {
      modules = [
        ./options.nix
        module
      ];
      specialArgs = {
        inherit pkgs;
        hostPkgs = pkgs;
      };
    })
    config
    ;
  nodes = lib.mapAttrs (
    name: node:
    lib.nixosSystem {
      inherit pkgs;
      modules = [
        { networking.hostName = lib.mkDefault name; }
        node
      ];
    }
  ) config.nodes;

  enabled = lib.filterAttrs (_: unit: unit.enable);
  unitsOf =
    node:
    lib.concatMapAttrs (name: unit: {
      "${name}.service" = render.service name unit;
    }) (enabled node.config.systemd.services)
    // lib.concatMapAttrs (name: unit: {
      "${name}.socket" = render.socket name unit;
    }) (enabled node.config.systemd.sockets);
  wantsOf =
    node:
    lib.concatMapAttrs (name: unit: { "${name}.service" = unit.wantedBy; }) (
      enabled node.config.systemd.services
    )
    // lib.concatMapAttrs (name: unit: { "${name}.socket" = unit.wantedBy; }) (
      enabled node.config.systemd.sockets
    );
  rule =
    path: type: r:
    "${type} ${path} ${r.mode} ${r.user} ${r.group} ${r.age} ${r.argument}";
  tmpfilesOf =
    node:
    node.config.systemd.tmpfiles.rules
    ++ lib.concatMap (
      paths:
      lib.concatLists (
        lib.mapAttrsToList (path: types: lib.mapAttrsToList (_: r: rule path r.type r) types) paths
      )
    ) (lib.attrValues node.config.systemd.tmpfiles.settings);

  # What a machine in namespaces would leave out without a word.
  left =
    node:
    let
      inherit (node.config) systemd;
      scripts = [
        "script"
        "preStart"
        "postStart"
        "reload"
        "preStop"
        "postStop"
      ];
    in
    lib.optional (systemd.timers != { }) "systemd.timers"
    ++ lib.optional (systemd.targets != { }) "systemd.targets"
    ++ lib.optional (systemd.slices != { }) "systemd.slices"
    ++ lib.optional (systemd.mounts != [ ]) "systemd.mounts"
    ++ lib.concatLists (
      lib.mapAttrsToList (
        name: unit:
        map (key: "systemd.services.${name}.${key}") (lib.filter (key: unit.${key} != "") scripts)
        ++ lib.optional (unit.startAt != [ ]) "systemd.services.${name}.startAt"
      ) systemd.services
    );

  machine = node: {
    units = unitsOf node;
    wants = wantsOf node;
    etc = lib.mapAttrs' (
      _: file:
      lib.nameValuePair file.target (
        if file.text != null then { inherit (file) text; } else { source = "${file.source}"; }
      )
    ) (lib.filterAttrs (_: file: file.enable) node.config.environment.etc);
    tmpfiles = tmpfilesOf node;
    inherit (node.config.users) users groups;
    path = map toString node.config.environment.systemPackages;
  };
  problems =
    name: node:
    map (a: "${name}: failed assertion: ${a.message}") (
      lib.filter (a: !a.assertion) node.config.assertions
    )
    ++ map (what: "${name}: ${what} is not something the stand-in's machines have") (left node);
  all = lib.concatLists (lib.mapAttrsToList problems nodes);
  script =
    if lib.isFunction config.testScript then
      config.testScript { nodes = configurations; }
    else
      config.testScript;
  configurations = lib.mapAttrs (_: node: node.config) nodes;
in
if all != [ ] then
  throw (lib.concatStringsSep "\n" ([ "${config.name}:" ] ++ all))
else
  pkgs.runCommand "vm-test-run-${config.name}"
    {
      inherit script;
      machines = builtins.toJSON {
        timeout = config.globalTimeout;
        # Why no machine can run on this host; empty where they can.
        reason = host.noMachines or "";
        machines = lib.mapAttrs (_: machine) nodes;
      };
      passAsFile = [
        "script"
        "machines"
      ];
      passthru = {
        inherit config;
        nodes = configurations;
      };
      meta = config.meta;
    }
    ''
      mkdir "$out"
      python3 ${./driver.py} "$machinesPath" "$scriptPath" ${./machine.sh}
    ''
