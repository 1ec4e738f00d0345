# All tools in one package, with the dispatcher that runs them.
{
  lib,
  runCommand,
  version,
  nextsycl-workspace,
  tools,
}:
runCommand "nextsycl"
  {
    pname = "nextsycl";
    inherit version;
    meta = {
      description = "Models on Intel Arc GPUs: all tools, and nextsycl which runs them";
      mainProgram = "nextsycl";
      license = lib.licenses.mit;
      platforms = [ "x86_64-linux" ];
    };
  }
  ''
    # a copy: it looks for the tools beside its own file
    install -Dm755 -t "$out/bin" ${nextsycl-workspace}/bin/nextsycl
    mkdir -p "$out/share/nextsycl"
    echo ${version} > "$out/share/nextsycl/version"
    ${lib.concatMapStrings (tool: ''
      ln -s ${lib.getExe tool} "$out/bin/"
    '') tools}
  ''
