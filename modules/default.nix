# services.nextsycl: the tools as services. One file for each tool; what they share is in common.nix and engine.nix.
{
  imports = [
    ./common.nix
    ./models.nix
    ./llm.nix
  ];
}
