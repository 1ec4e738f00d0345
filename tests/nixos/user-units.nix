# A user's own systemd: the units of `nextsycl install-units --user`, for people without the NixOS module.
{ self }:
{
  name = "nextsycl-user-units";
  globalTimeout = 600;

  nodes.machine =
    { pkgs, ... }:
    {
      virtualisation.memorySize = 4096;
      virtualisation.cores = 2;
      users.users.alice = {
        isNormalUser = true;
        linger = true;
      };
      environment.systemPackages = [ self.packages.${pkgs.stdenv.hostPlatform.system}.nextsycl ];
    };

  testScript = ''
    import json
    import shlex

    # The greedy answer of the default model, as in llm.nix.
    answer = "The capital of France is Paris."
    body = json.dumps({
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "temperature": 0,
        "max_tokens": 24,
    })
    alice = "runuser -u alice -- env -u XDG_CONFIG_HOME HOME=/home/alice XDG_RUNTIME_DIR=/run/user/$(id -u alice) "


    def ask():
        reply = json.loads(machine.succeed(
            f"curl -sS --fail --max-time 300 http://127.0.0.1:8085/v1/chat/completions -d {shlex.quote(body)}"
        ))
        said = reply["choices"][0]["message"]["content"]
        assert said == answer, said


    def systemctl(words):
        code, out = machine.systemctl(words, "alice")
        assert code == 0, f"systemctl --user {words}: {out}"
        return out


    def prop(unit, name):
        return systemctl(f"show -P {name} {unit}").strip()


    machine.wait_for_unit("multi-user.target")
    machine.wait_for_unit("default.target", "alice")

    with subtest("written, enabled, listening"):
        told = machine.succeed(alice + "nextsycl install-units --user --device cpu --idle-exit 4")
        assert "systemctl --user enable --now nextsycl-llm.socket" in told, told
        machine.succeed("test $(stat -c %U /home/alice/.config/systemd/user/nextsycl-llm.service) = alice")
        systemctl("daemon-reload")
        systemctl("enable --now nextsycl-llm.socket")
        assert prop("nextsycl-llm.socket", "ActiveState") == "active"
        assert prop("nextsycl-llm.service", "ActiveState") == "inactive"
        for unit in ["nextsycl-llm.socket", "nextsycl-llm.service"]:
            assert prop(unit, "LoadState") == "loaded", unit

    with subtest("the first connection starts it, as the user"):
        ask()
        pid = prop("nextsycl-llm.service", "MainPID")
        user = machine.succeed(f"stat -c %U /proc/{pid}").strip()
        assert user == "alice", user
        status = machine.succeed(f"cat /proc/{pid}/status")
        assert "NoNewPrivs:\t1" in status and "Seccomp:\t2" in status, status
        assert "smollm2" in machine.succeed(alice + "nextsycl-llm status --no-stream")

    with subtest("without requests it ends, and the next connection starts it again"):
        machine.wait_until_succeeds(
            alice + "systemctl --user show -P ActiveState nextsycl-llm.service | grep -qx inactive", timeout=120
        )
        assert prop("nextsycl-llm.service", "Result") == "success"
        ask()
        assert prop("nextsycl-llm.service", "MainPID") not in ("0", pid)

    with subtest("stopped and removed"):
        systemctl("disable --now nextsycl-llm.socket")
        systemctl("stop nextsycl-llm.service")
        assert prop("nextsycl-llm.service", "Result") == "success"
        machine.succeed(alice + "nextsycl install-units --user --remove")
        machine.fail("ls /home/alice/.config/systemd/user/nextsycl-llm.service /home/alice/.config/systemd/user/nextsycl-llm.socket")
        machine.fail("journalctl -b -q -o short | grep -E 'nextsycl-llm.*(ERROR|Unknown key|Failed to parse)|JIT session'")
  '';
}
