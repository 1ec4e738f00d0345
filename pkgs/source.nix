# source NAME [PATH...]: those files and folders of the repository alone, so that a change elsewhere rebuilds nothing.
{ lib }:
name: parts:
let
  root = toString ../.;
in
lib.cleanSourceWith {
  src = ../.;
  name = "nextsycl-${name}-source";
  filter =
    path: _:
    let
      here = lib.removePrefix (root + "/") (toString path);
    in
    lib.any (
      part: here == part || lib.hasPrefix (part + "/") here || lib.hasPrefix (here + "/") part
    ) parts;
}
