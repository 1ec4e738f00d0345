# A machine that serves the default model from the CPU device: four instances of nextsycl-llm under their real units.
{ self }:
let
  # The greedy answer of the default model, as `nextsycl-llm run --device cpu --temp 0` gives it without any of this.
  question = "What is the capital of France?";
  answer = "The capital of France is Paris.";
  # Starts at the first connection, ends after so many seconds without a request.
  onDemand = {
    autoStart = false;
    idleMinutes = null; # minutes are too long for a test
    extraFlags = [
      "--idle-exit"
      "4"
    ];
  };
in
{
  name = "nextsycl-llm";
  globalTimeout = 1200;

  nodes.machine =
    { pkgs, ... }:
    let
      inherit (self.packages.${pkgs.stdenv.hostPlatform.system}) nextsycl-model-smollm2;
    in
    {
      imports = [ self.nixosModules.default ];
      virtualisation.memorySize = 6144;
      virtualisation.cores = 2;
      services.nextsycl = {
        driver.enable = false;
        # A model of the configuration: a file in the store under an id of its own.
        models.sources.capital.file = "${nextsycl-model-smollm2}/SmolLM2-135M-Instruct.Q4_1.gguf";
        llm = {
          # The model that comes with the package, started by systemd's socket.
          main = onDemand // {
            enable = true;
            model = "smollm2-135m-instruct.q4_1";
            device = "cpu";
          };
          # Started with the system.
          store = {
            enable = true;
            port = 8095;
            model = "capital";
            device = "cpu";
          };
          # Its device is not there at first: the libraries that open it come while it waits.
          late = {
            enable = true;
            port = 8096;
            autoStart = false;
            idleMinutes = null;
            model = "capital";
            device = "cpu";
            settings.NS_LIB = "/var/lib/nextsycl/late";
            extraFlags = [
              "--wait-device"
              "300"
            ];
          };
          # Wants a card where none is.
          card = {
            enable = true;
            port = 8097;
            autoStart = false;
            model = "capital";
            waitDevice = 5;
          };
        };
      };
    };

  testScript =
    { nodes, ... }:
    let
      inherit (nodes.machine.services.nextsycl.llm.late) package;
    in
    ''
      import json
      import shlex
      import time

      answer = ${builtins.toJSON answer}
      body = json.dumps({
          "messages": [{"role": "user", "content": ${builtins.toJSON question}}],
          "temperature": 0,
          "max_tokens": 24,
      })


      def post(port, text):
          return f"curl -sS --fail --max-time 300 http://127.0.0.1:{port}/v1/chat/completions -d {shlex.quote(text)}"


      def ask(port):
          reply = json.loads(machine.succeed(post(port, body)))
          said = reply["choices"][0]["message"]["content"]
          assert said == answer, f"port {port} answers {said!r}, not {answer!r}"


      def state(unit):
          return machine.get_unit_property(unit, "ActiveState")


      def pid(unit):
          return int(machine.get_unit_property(unit, "MainPID"))


      machine.wait_for_unit("multi-user.target")
      machine.wait_for_unit("nextsycl-llm-main.socket")

      with subtest("an instance that starts with the system is ready when its unit is"):
          machine.wait_for_unit("nextsycl-llm-store.service")
          machine.succeed("curl -sS --fail http://127.0.0.1:8095/health")
          ask(8095)
          models = json.loads(machine.succeed("curl -sS --fail http://127.0.0.1:8095/v1/models"))
          assert [m["id"] for m in models["data"]] == ["capital"], models

      with subtest("the first connection starts an instance on demand"):
          assert state("nextsycl-llm-main.service") == "inactive", "started without a request"
          ask(8085)
          assert state("nextsycl-llm-main.service") == "active"
          machine.succeed("curl -sS --fail http://127.0.0.1:8085/health")

      with subtest("it runs as its own user and has no privileges"):
          status = machine.succeed(f"cat /proc/{pid('nextsycl-llm-store.service')}/status")
          fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
          user = machine.succeed("id -u nextsycl").strip()
          assert fields["Uid"].split() == [user] * 4, fields["Uid"]
          assert int(fields["CapEff"], 16) == 0 and int(fields["CapBnd"], 16) == 0, fields
          assert fields["NoNewPrivs"] == "1" and fields["Seccomp"] == "2", fields
          machine.fail(f"nsenter -t {pid('nextsycl-llm-store.service')} -m touch /usr/nextsycl /etc/nextsycl-here")

      with subtest("the control socket tells its state"):
          told = machine.succeed("nextsycl-llm status --no-stream --socket /run/nextsycl-llm-store/nextsycl.sock")
          assert "capital" in told, told

      with subtest("kernels that the device's compiler made are kept for the next start"):
          machine.succeed("test -n \"$(find /var/cache/nextsycl -type f -print -quit)\"")
          owner = machine.succeed("stat -c %U:%a /var/cache/nextsycl").strip()
          assert owner == "nextsycl:750", owner

      with subtest("without requests it ends, and the next connection starts it again"):
          before = pid("nextsycl-llm-main.service")
          machine.wait_until_succeeds("systemctl show -P ActiveState nextsycl-llm-main.service | grep -qx inactive", timeout=120)
          assert machine.get_unit_property("nextsycl-llm-main.service", "Result") == "success"
          assert state("nextsycl-llm-main.socket") == "active"
          ask(8085)
          assert pid("nextsycl-llm-main.service") not in (0, before)

      with subtest("systemctl restart"):
          before = pid("nextsycl-llm-store.service")
          machine.succeed("systemctl restart nextsycl-llm-store.service")
          assert pid("nextsycl-llm-store.service") not in (0, before)
          ask(8095)

      with subtest("a stop finishes the running request, within TimeoutStopSec"):
          story = [{"role": "user", "content": "Write a long story about a sailor who finds an island."}]
          long = post(8095, json.dumps({"messages": story, "temperature": 0, "max_tokens": 400}))
          running = "nextsycl-llm ps --socket /run/nextsycl-llm-store/nextsycl.sock | grep -q generating"
          machine.succeed(
              f"{long} > /root/long.json 2> /root/long.err & request=$!; "
              f"for attempt in $(seq 200); do if {running}; then break; fi; sleep 0.02; done; "
              "systemctl stop nextsycl-llm-store.service; wait $request"
          )
          machine.succeed("journalctl -b -q -o cat -u nextsycl-llm-store.service | grep -F 'stopping: 1 request(s)'")
          reply = json.loads(machine.succeed("cat /root/long.json"))
          assert reply["choices"][0]["finish_reason"] in ("stop", "length"), reply
          assert reply["usage"]["completion_tokens"] > 100, reply
          assert state("nextsycl-llm-store.service") == "inactive"
          assert machine.get_unit_property("nextsycl-llm-store.service", "Result") == "success"
          machine.fail("curl -sS --fail --max-time 5 http://127.0.0.1:8095/health")
          began = time.monotonic()
          machine.succeed("systemctl start nextsycl-llm-store.service && systemctl stop nextsycl-llm-store.service")
          took = time.monotonic() - began
          assert took < 90, f"start and stop took {took} s"

      with subtest("a device that appears late: 503 until then, no other device meanwhile"):
          assert state("nextsycl-llm-late.service") == "inactive"
          code = machine.succeed("curl -sS -o /root/late.json -w '%{http_code}' http://127.0.0.1:8096/health")
          assert code == "503", code
          assert "waiting for the device cpu" in machine.succeed("cat /root/late.json")
          machine.succeed("ln -s ${package}/lib/nextsycl /var/lib/nextsycl/late")
          machine.wait_until_succeeds("curl -sS --fail http://127.0.0.1:8096/health", timeout=300)
          ask(8096)
          machine.succeed("systemctl stop nextsycl-llm-late.service")

      with subtest("nothing failed and the journal has no errors"):
          failed = machine.succeed("systemctl list-units --state=failed --plain --no-legend 'nextsycl-*'")
          assert failed == "", failed
          bad = machine.succeed("journalctl -b -q -o short-monotonic -p err -u 'nextsycl-*'")
          assert bad == "", bad
          machine.fail("journalctl -b -q -o cat -u 'nextsycl-*' | grep -E 'ERROR|WARN|JIT session|Permission denied|not permitted'")

      with subtest("without a card: an error that says so, never another device"):
          code = machine.succeed("curl -sS -o /root/card.json -w '%{http_code}' http://127.0.0.1:8097/health")
          assert code == "503", code
          machine.wait_until_succeeds(
              "journalctl -b -q -o cat -u nextsycl-llm-card.service | grep -F 'there is no device gpu after 5 s'", timeout=120
          )
          machine.succeed("systemctl stop nextsycl-llm-card.socket nextsycl-llm-card.service")
          machine.fail("journalctl -b -q -o cat -u nextsycl-llm-card.service | grep -E ' ready: '")
    '';
}
