// Devices: selectors, facts, free memory, and the settings that must be in the environment before a driver starts.
// SPDX-License-Identifier: MIT
#include "internal.hpp"
#include "level_zero.hpp"

#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include <cpuid.h>
#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

namespace ns {
namespace {

thread_local std::string last_error;

std::string folder_of_libsycl() {
  void *handle = dlopen("libsycl.so.9", RTLD_LAZY | RTLD_NOLOAD);
  if (!handle) return "";
  link_map *map = nullptr;
  std::string path;
  if (dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map && map->l_name) path = map->l_name;
  dlclose(handle);
  size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash);
}

/// Intel's driver in a folder beside this library, for a Linux whose own driver our loader does not look for. NixOS' own goes first.
std::string driver_beside_us() {
  Dl_info us;
  if (access("/run/opengl-driver/lib/libze_intel_gpu.so.1", R_OK) == 0) return "";
  if (!dladdr(reinterpret_cast<void *>(&driver_beside_us), &us) || !us.dli_fname) return "";
  std::string path = us.dli_fname;
  path = path.substr(0, path.rfind('/') + 1) + "driver/libze_intel_gpu.so.1";
  return access(path.c_str(), R_OK) == 0 ? path : "";
}

/// Processors with cores of two speeds: there, work cut into equal parts waits for the slow ones.
bool has_two_kinds_of_cores() {
  unsigned a, b, c, d;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 15 & 1);
}

/// Runs when the library is opened: nothing of SYCL has looked at the environment yet. A value of the user always wins.
__attribute__((constructor)) void prepare_environment() {
  setenv("SYCL_CACHE_PERSISTENT", "0", 0);
  setenv("UR_L0_ENABLE_RELAXED_ALLOCATION_LIMITS", "1", 0);
  setenv("ZES_ENABLE_SYSMAN", "1", 0);
  // In a sandbox or container without /sys the runtime's hwloc would print about that, twice, before our first word.
  setenv("HWLOC_HIDE_ERRORS", "2", 0);
  // The CPU device cuts a kernel into one part a core instead of many small ones: a decode step took 2.7 ms instead of 3.05 (272 kernels, 96 MB, two cores).
  if (!has_two_kinds_of_cores()) setenv("DPCPP_CPU_SCHEDULE", "static", 0);
  std::string driver = driver_beside_us();
  if (!driver.empty()) setenv("ZE_ENABLE_ALT_DRIVERS", driver.c_str(), 0);
  if (!std::getenv("OCL_ICD_FILENAMES")) {
    std::string folder = folder_of_libsycl();
    if (!folder.empty()) setenv("OCL_ICD_FILENAMES", (folder + "/libintelocl.so").c_str(), 0);
  }
}

void put(char *to, size_t capacity, const std::string &text) {
  size_t n = std::min(text.size(), capacity - 1);
  std::memcpy(to, text.data(), n);
  to[n] = 0;
}

std::string backend_name(const sycl::device &d) {
  switch (d.get_backend()) {
  case sycl::backend::ext_oneapi_level_zero: return "level_zero";
  case sycl::backend::opencl: return "opencl";
  case sycl::backend::ext_oneapi_cuda: return "cuda";
  case sycl::backend::ext_oneapi_hip: return "hip";
  default: return "other";
  }
}

std::string architecture_name(const sycl::device &d) {
  if (!is_level_zero(d)) return "";
  try {
    switch (d.get_info<sx::info::device::architecture>()) {
    case sx::architecture::intel_gpu_bmg_g21: return "bmg-g21";
    case sx::architecture::intel_gpu_bmg_g31: return "bmg-g31";
    case sx::architecture::intel_gpu_acm_g10: return "acm-g10";
    case sx::architecture::intel_gpu_acm_g11: return "acm-g11";
    case sx::architecture::intel_gpu_acm_g12: return "acm-g12";
    default: break;
    }
  } catch (const sycl::exception &) {
  }
  return "";
}

/// The number after ':' in a selector; -1 when there is none. Anything else is an error.
long selector_index(const std::string &selector, size_t colon) {
  if (colon == std::string::npos) return -1;
  std::string digits = selector.substr(colon + 1);
  if (digits.empty() || digits.size() > 4 || digits.find_first_not_of("0123456789") != std::string::npos) fail(NS_ERROR_ARGUMENT, "device selector \"" + selector + "\": what follows ':' must be a number");
  return std::atol(digits.c_str());
}

/// What the machine (or the control group the process is in) can still give.
uint64_t host_memory_available() {
  uint64_t available = 0;
  std::ifstream meminfo("/proc/meminfo");
  for (std::string key, unit; meminfo >> key;) {
    uint64_t kib = 0;
    meminfo >> kib;
    std::getline(meminfo, unit);
    if (key == "MemAvailable:") available = kib * 1024;
  }
  std::ifstream limit("/sys/fs/cgroup/memory.max");
  uint64_t highest = 0, anonymous = 0;
  if (limit >> highest) {
    std::ifstream stat("/sys/fs/cgroup/memory.stat");
    std::string key;
    uint64_t value;
    while (stat >> key >> value)
      if (key == "anon") anonymous = value;
    uint64_t left = highest > anonymous ? highest - anonymous : 0;
    available = std::min(available, left);
  }
  return available;
}

} // namespace

ns_status remember(ns_status code, const std::string &text) noexcept {
  try {
    last_error = text;
  } catch (...) {
  }
  return code;
}

std::string size_text(uint64_t bytes) {
  char out[48];
  if (bytes >= 1ull << 30) std::snprintf(out, sizeof out, "%.2f GiB", static_cast<double>(bytes) / (1ull << 30));
  else if (bytes >= 1ull << 20) std::snprintf(out, sizeof out, "%.1f MiB", static_cast<double>(bytes) / (1ull << 20));
  else std::snprintf(out, sizeof out, "%llu bytes", static_cast<unsigned long long>(bytes));
  return out;
}

std::string setting(const char *name) {
  const char *v = std::getenv(name);
  return v ? v : "";
}

std::string join(const std::vector<std::string> &words) {
  std::string out;
  for (auto &w : words) out += (out.empty() ? "" : ", ") + w;
  return out;
}

bool is_level_zero(const sycl::device &d) { return d.get_backend() == sycl::backend::ext_oneapi_level_zero; }
bool is_opencl(const sycl::device &d) { return d.get_backend() == sycl::backend::opencl; }

std::vector<sycl::device> select_devices(const std::string &selector) {
  size_t colon = selector.find(':');
  std::string family = selector.substr(0, colon);
  long index = selector_index(selector, colon);
  if (family != "gpu" && family != "cpu" && family != "all" && family != "opencl" && family != "cuda" && family != "level_zero")
    fail(NS_ERROR_ARGUMENT, "device selector \"" + selector + "\" is not known: use gpu, gpu:N, cpu or all");
  std::vector<sycl::device> found;
  for (auto &platform : sycl::platform::get_platforms())
    for (auto &d : platform.get_devices()) {
      bool fits = family == "all" || (family == "gpu" && is_level_zero(d) && d.is_gpu()) || (family == "cpu" && is_opencl(d) && d.is_cpu()) || family == backend_name(d);
      if (fits) found.push_back(d);
    }
  if (index < 0) return found;
  if (static_cast<size_t>(index) >= found.size()) return {};
  return {found[static_cast<size_t>(index)]};
}

uint64_t free_memory(const sycl::device &d, const ns_device_info &info, uint64_t used_by_us) {
  if (info.device_class == NS_CLASS_CPU) return std::min(info.total_memory, host_memory_available());
  uint64_t left = info.total_memory > used_by_us ? info.total_memory - used_by_us : 0;
  if (d.has(sycl::aspect::ext_intel_free_memory)) {
    try {
      left = std::min<uint64_t>(left, d.get_info<sycl::ext::intel::info::device::free_memory>());
    } catch (const sycl::exception &) {
      // the driver cannot say without system management rights; what is left of the total is the best figure
    }
  }
  return left;
}

ns_device_info describe(const sycl::device &d) {
  ns_device_info info{};
  put(info.name, sizeof info.name, d.get_info<sycl::info::device::name>());
  std::string backend = backend_name(d);
  put(info.backend, sizeof info.backend, backend);
  put(info.driver, sizeof info.driver, d.get_info<sycl::info::device::driver_version>());
  put(info.architecture, sizeof info.architecture, architecture_name(d));
  if (d.has(sycl::aspect::ext_intel_pci_address)) {
    try {
      put(info.pci, sizeof info.pci, d.get_info<sycl::ext::intel::info::device::pci_address>());
    } catch (const sycl::exception &) {
    }
  }
  info.device_class = d.is_cpu() ? NS_CLASS_CPU : NS_CLASS_GPU;
  std::string family = is_level_zero(d) && d.is_gpu() ? "gpu" : is_opencl(d) && d.is_cpu() ? "cpu" : backend;
  auto kin = select_devices(family);
  for (size_t i = 0; i < kin.size(); i++)
    if (kin[i] == d) info.index = static_cast<uint32_t>(i);
  put(info.selector, sizeof info.selector, family == "cpu" && kin.size() == 1 ? family : family + ":" + std::to_string(info.index));
  info.vendor_id = d.get_info<sycl::info::device::vendor_id>();
  if (d.is_gpu() && d.has(sycl::aspect::ext_intel_device_id)) {
    try {
      info.device_id = d.get_info<sycl::ext::intel::info::device::device_id>();
    } catch (const sycl::exception &) {
    }
  }
  info.compute_units = d.get_info<sycl::info::device::max_compute_units>();
  info.max_work_group = static_cast<uint32_t>(d.get_info<sycl::info::device::max_work_group_size>());
  for (size_t s : d.get_info<sycl::info::device::sub_group_sizes>()) info.sub_group_sizes |= static_cast<uint32_t>(s & (8 | 16 | 32));
  info.has_fp16 = d.has(sycl::aspect::fp16);
  info.has_fp64 = d.has(sycl::aspect::fp64);
  info.has_copy_engine = has_copy_engine(d);
  info.has_esimd = d.has(sycl::aspect::ext_intel_esimd);
  info.has_matrix_units = d.has(sycl::aspect::ext_intel_matrix);
  info.has_native_graphs = is_level_zero(d) && std::strncmp(info.architecture, "bmg", 3) == 0;
  info.total_memory = d.get_info<sycl::info::device::global_mem_size>();
  info.max_allocation = d.get_info<sycl::info::device::max_mem_alloc_size>();
  info.local_memory = d.get_info<sycl::info::device::local_mem_size>();
  info.free_memory = free_memory(d, info, 0);
  return info;
}

} // namespace ns

using namespace ns;

extern "C" {

uint32_t ns_abi_version(void) { return NS_ABI_VERSION; }
const char *ns_last_error(void) { return last_error.c_str(); }

ns_status ns_devices(const char *selector, ns_device_info *infos, size_t capacity, size_t *count) {
  return guarded("listing devices", [&] {
    if (!selector || !count || (!infos && capacity)) fail(NS_ERROR_ARGUMENT, "ns_devices: a null argument");
    auto found = select_devices(selector);
    *count = found.size();
    for (size_t i = 0; i < found.size() && i < capacity; i++) infos[i] = describe(found[i]);
  });
}

} // extern "C"
