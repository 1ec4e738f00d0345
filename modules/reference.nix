# docs/options.md: every option of services.nextsycl, from the options themselves.
{ lib, options }:
let
  shown = lib.filter (o: o.visible && !o.internal) (
    lib.optionAttrSetToDocList options.services.nextsycl
  );
  # The options that everything shares first, then each tool's.
  depth = o: lib.length (lib.filter (part: part == "<name>") o.loc);
  ordered = lib.filter (o: depth o == 0) shown ++ lib.filter (o: depth o != 0) shown;
  inline = text: if lib.hasInfix "`" text then "`` ${text} ``" else "`${text}`";
  value =
    title: v:
    if v._type == "literalMD" then
      "- ${title}: ${v.text}\n"
    else if lib.hasInfix "\n" v.text then
      "- ${title}:\n\n${
        lib.concatMapStrings (line: if line == "" then "\n" else "  ${line}\n") (
          [ "```nix" ] ++ lib.splitString "\n" (lib.removeSuffix "\n" v.text) ++ [ "```" ]
        )
      }"
    else
      "- ${title}: ${inline v.text}\n";
  section = o: ''

    ## ${inline o.name}

    ${o.description}

    - Type: ${o.type}
    ${lib.optionalString (o ? default) (value "Default" o.default)}${
      lib.optionalString (o ? example) (value "Example" o.example)
    }'';
in
''
  # Options of services.nextsycl

  Made from `modules/`; do not edit it. Write it again with `nix eval --raw .#checks.x86_64-linux.options.page > docs/options.md`.
''
+ lib.concatMapStrings section ordered
