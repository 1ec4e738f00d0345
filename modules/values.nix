# Values of options in the forms that the programs read.
{ lib }:
rec {
  # Settings as the environment and nextsycl.conf have them.
  setting = value: if lib.isBool value then (if value then "1" else "0") else toString value;
  settings = lib.mapAttrs (_: setting);
  settingsType = lib.types.attrsOf (
    lib.types.oneOf [
      lib.types.bool
      lib.types.int
      lib.types.str
    ]
  );
  # One number, or one for each session.
  contexts = value: lib.concatMapStringsSep "," toString (lib.toList value);
  # Whether a directory is `above` or below it.
  isBelow = above: path: path == above || lib.hasPrefix "${above}/" path;
  isBelowAny = aboves: path: lib.any (above: isBelow above path) aboves;
  homes = [
    "/home"
    "/root"
    "/run/user"
  ];
  temporary = [
    "/tmp"
    "/var/tmp"
  ];
  # Directories in unit files: nothing that systemd would read as something else.
  isPlain = dir: builtins.match "(/[^/[:space:]:%\"'\\]+)+" dir != null;
  # An address in numbers, and with its port as a socket unit takes it.
  isAddress =
    host: builtins.match "[0-9]+(\\.[0-9]+){3}|\\[?[0-9a-fA-F:.]*:[0-9a-fA-F:.]*]?" host != null;
  address =
    { host, port, ... }:
    let
      bare = lib.removePrefix "[" (lib.removeSuffix "]" host);
    in
    if lib.hasInfix ":" bare then "[${bare}]:${toString port}" else "${bare}:${toString port}";
  isLoopback =
    host: builtins.match "127(\\.[0-9]+){3}|\\[?::1]?|localhost|ip6-localhost" host != null;
  settingsAssertions =
    at: settings:
    lib.concatLists (
      lib.mapAttrsToList (name: value: [
        {
          assertion = builtins.match "NS_[A-Z0-9_]+" name != null;
          message = "${at}.${name}: settings are called NS_ and capital letters, as NS_PARALLEL. Other variables belong to an instance's environment.";
        }
        {
          assertion = builtins.match "NS_.*_(TOKEN|SECRET|PASSWORD)" name == null;
          message = "${at}.${name}: everybody can read the store. Put secrets into a file and name it in services.nextsycl.environmentFile.";
        }
        {
          assertion = !lib.hasInfix "\n" (setting value);
          message = "${at}.${name}: a setting is one line.";
        }
      ]) settings
    );
}
