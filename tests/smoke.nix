# Every program starts from its own package, tells its version and its help, and refuses what it does not know. The ones for
# the GPU see the CPU device, and the default model answers.
{
  lib,
  runCommand,
  packages,
}:
let
  tools = import ../pkgs/tools.nix { nextsycl-model-smollm2 = null; };
  names = lib.attrNames tools;
in
runCommand "smoke" { } ''
  export HOME=$PWD XDG_RUNTIME_DIR=$PWD XDG_CACHE_HOME=$PWD/cache
  starts() { # PROGRAM VERSION
    "$1" --version | tee -a "$out"
    "$1" --version | grep -qE "^$(basename "$1") $2\$"
    "$1" --help > said
    grep -q Usage said
    if "$1" --no-such-flag > said 2>&1; then
      echo "$1 takes any flag" >&2
      exit 1
    fi
    grep -q no-such-flag said
  }
  version='[0-9]{2}\.[0-9]{4}\.[0-9]{3}'
  starts ${lib.getExe packages.nextsycl} "$version"
  ${lib.concatMapStrings (name: ''
    starts ${lib.getExe packages.${name}} "$version"
    # the dispatcher of the package with all tools finds it beside itself
    ${packages.nextsycl}/bin/nextsycl ${lib.removePrefix "nextsycl-" name} --version | grep -qE "^${name} $version\$"
  '') names}
  llm=${lib.getExe packages.nextsycl-llm}
  "$llm" devices > said
  cat said >> "$out"
  grep -q cpu said
  # The recorded greedy answer of the default model.
  "$llm" run --device cpu --temp 0 --max 16 "What is the capital of France?" < /dev/null | tee -a "$out" > answer
  diff ${./fixtures/llm/capital.txt} answer
''
