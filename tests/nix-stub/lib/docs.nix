# Options as a list for documents, and values as text.
lib:
let
  inherit (builtins)
    attrNames
    concatMap
    concatStringsSep
    isAttrs
    isBool
    isFloat
    isFunction
    isInt
    isList
    isPath
    isString
    match
    toJSON
    ;
  toPretty =
    {
      multiline ? true,
      allowPrettyValues ? false,
      ...
    }:
    let
      go =
        indent: v:
        let
          space = if multiline then "\n${indent}  " else " ";
          end = if multiline then "\n${indent}" else " ";
        in
        if isInt v then
          toString v
        else if isFloat v then
          "~${toString v}"
        else if isString v then
          lib.escapeNixString v
        else if v == true || v == false then
          lib.boolToString v
        else if v == null then
          "null"
        else if isPath v then
          toString v
        else if isList v then
          if v == [ ] then
            "[ ]"
          else
            "[" + space + concatStringsSep space (map (go "${indent}  ") v) + end + "]"
        else if isFunction v then
          "<function>"
        else if isAttrs v then
          if allowPrettyValues && v ? __pretty && v ? val then
            v.__pretty v.val
          else if v == { } then
            "{ }"
          else if v ? type && v.type == "derivation" then
            "<derivation ${v.name or "???"}>"
          else
            "{"
            + space
            + concatStringsSep space (
              lib.mapAttrsToList (
                n: x:
                "${
                  if match "[a-zA-Z_][a-zA-Z0-9_'-]*" n != null then n else lib.escapeNixString n
                } = ${go "${indent}  " x};"
              ) v
            )
            + end
            + "}"
        else
          throw "toPretty: a value of an unknown kind";
    in
    go "";
  render =
    v:
    if isAttrs v && v ? _type && v ? text then
      v
    else
      lib.literalExpression (
        toPretty {
          multiline = true;
          allowPrettyValues = true;
        } v
      );
  showOption =
    loc:
    concatStringsSep "." (
      map (
        part:
        if match "[a-zA-Z_][a-zA-Z0-9_'-]*" part != null || match "<.*>|\\*" part != null then
          part
        else
          toJSON part
      ) loc
    );
in
{
  inherit showOption;
  generators = {
    inherit toPretty;
    mkValueStringDefault =
      _: v:
      if isBool v then
        lib.boolToString v
      else if v == null then
        "null"
      else if isAttrs v && !lib.isStringLike v || isList v || isFunction v then
        throw "generators.mkValueStringDefault: this kind of value is not supported"
      else
        toString v;
    mkKeyValueDefault =
      {
        mkValueString ? lib.generators.mkValueStringDefault { },
      }:
      sep: k: v:
      "${k}${sep}${mkValueString v}";
    toKeyValue =
      {
        mkKeyValue ? lib.generators.mkKeyValueDefault { } "=",
        listsAsDuplicateKeys ? false,
        indent ? "",
      }:
      attrs:
      lib.concatStrings (
        concatMap (
          k:
          map (v: "${indent}${mkKeyValue k v}\n") (
            if listsAsDuplicateKeys then lib.toList attrs.${k} else [ attrs.${k} ]
          )
        ) (attrNames attrs)
      );
  };
  # One entry for each option below a tree of options, with those of submodules.
  optionAttrSetToDocList =
    let
      list =
        tree:
        if lib.isOption tree then
          let
            visible = tree.visible or true;
            entry = {
              inherit (tree) loc;
              name = showOption tree.loc;
              description = tree.description or null;
              declarations = [ ];
              internal = tree.internal or false;
              visible = if builtins.isBool visible then visible else visible == "shallow";
              readOnly = tree.readOnly or false;
              type = tree.type.description or "unspecified";
            }
            // lib.optionalAttrs (tree ? example) { example = render tree.example; }
            // lib.optionalAttrs (tree ? defaultText || tree ? default) {
              default = render (tree.defaultText or tree.default);
            };
            below = tree.type.getSubOptions tree.loc;
          in
          [ entry ]
          ++ lib.optionals (below != { } && visible != "shallow" && entry.visible) (
            concatMap (n: list below.${n}) (attrNames below)
          )
        else if isAttrs tree then
          concatMap (n: list tree.${n}) (builtins.filter (n: n != "_module") (attrNames tree))
        else
          [ ];
    in
    list;
}
