# The tools: what makes a package of a program of the workspace. The package has the program's name.
#   description   one line
#   gpu           whether it opens the GPU (brings the runtime, the kernels and, for machines without a card, the CPU device)
#   models        models that come with it
{ nextsycl-model-smollm2 }:
{
  nextsycl-llm = {
    description = "Runs and serves language models on Intel Arc GPUs";
    gpu = true;
    models = [ nextsycl-model-smollm2 ];
  };
}
