{ pkgs, ... }:
{
  networking.hostName = "host";
  system.stateVersion = "26.05";
  boot.loader.systemd-boot.enable = true;

  # Battlemage cards want a recent kernel.
  boot.kernelPackages = pkgs.linuxPackages_latest;

  services.nextsycl = {
    # Models that are downloaded when the system is built:
    # models.sources."my-model".fetch = [
    #   {
    #     url = "https://example.org/my-model.gguf";
    #     hash = "sha256-…";
    #   }
    # ];

    llm.main = {
      enable = true;
      # The model that comes with the package. Yours: a path, the name of a .gguf file in
      # /var/lib/nextsycl/models, or an id of models.sources.
      model = "smollm2-135m-instruct.q4_1";
      # Other machines in your network may use it: there is no password.
      # host = "0.0.0.0";
      # openFirewall = true;
      # Start at the first request and free the card after ten minutes without one:
      # autoStart = false;
    };
  };

  # curl http://127.0.0.1:8085/v1/chat/completions -d '{"messages":[{"role":"user","content":"Hello"}]}'
  # sudo nextsycl-llm status --socket /run/nextsycl-llm-main/nextsycl.sock
  users.users.alice = {
    isNormalUser = true;
    extraGroups = [
      "wheel"
      "render"
    ];
  };
}
