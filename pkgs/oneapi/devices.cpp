// Lists the devices of a SYCL runtime; fails unless there is one of the kind named on the command line (cpu, gpu).
// SPDX-License-Identifier: MIT
#include <cstdio>
#include <cstring>
#include <sycl/sycl.hpp>

int main(int count, char **words) {
  bool found = false;
  for (const auto &device : sycl::device::get_devices()) {
    const char *kind = device.is_cpu() ? "cpu" : device.is_gpu() ? "gpu" : "other";
    std::printf("%s: %s\n", kind, device.get_info<sycl::info::device::name>().c_str());
    found = found || (count > 1 && std::strcmp(words[1], kind) == 0);
  }
  if (!found) std::fprintf(stderr, "no %s device: the runtime does not find its own libraries\n", count > 1 ? words[1] : "named");
  return found ? 0 : 1;
}
