// Loads modules with the Level Zero driver and prints their kernels with the sub-group size that the driver chose.
//   load [-o OPTIONS] FILE...     FILE.spv is SPIR-V, everything else native code; -o among the files: more options for the SPIR-V behind it
// One line a kernel: FILE KERNEL SUB_GROUP_SIZE PRIVATE_BYTES SPILL_BYTES. Exit 1 when a file is refused.
// SPDX-License-Identifier: MIT
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <level_zero/ze_api.h>
#include <string>
#include <vector>

namespace {

bool bad(ze_result_t result, const char *what) {
  if (result == ZE_RESULT_SUCCESS) return false;
  fprintf(stderr, "load: %s: error 0x%x\n", what, (unsigned)result);
  return true;
}

bool load(ze_context_handle_t context, ze_device_handle_t device, const std::string &file, const std::string &more) {
  std::ifstream in(file, std::ios::binary);
  const std::vector<char> bytes((std::istreambuf_iterator<char>(in)), {});
  if (bytes.empty()) {
    fprintf(stderr, "load: cannot read %s\n", file.c_str());
    return false;
  }
  const bool spirv = file.size() > 4 && file.compare(file.size() - 4, 4, ".spv") == 0;
  const std::string options = "-ze-opt-greater-than-4GB-buffer-required" + (more.empty() ? "" : " " + more);
  ze_module_desc_t desc = {};
  desc.stype = ZE_STRUCTURE_TYPE_MODULE_DESC;
  desc.format = spirv ? ZE_MODULE_FORMAT_IL_SPIRV : ZE_MODULE_FORMAT_NATIVE;
  desc.inputSize = bytes.size();
  desc.pInputModule = (const uint8_t *)bytes.data();
  desc.pBuildFlags = spirv ? options.c_str() : "";
  ze_module_handle_t module = nullptr;
  ze_module_build_log_handle_t log = nullptr;
  const ze_result_t result = zeModuleCreate(context, device, &desc, &module, &log);
  if (bad(result, file.c_str())) {
    size_t size = 0;
    if (log && !zeModuleBuildLogGetString(log, &size, nullptr) && size > 1) {
      std::string text(size, '\0');
      zeModuleBuildLogGetString(log, &size, text.data());
      fprintf(stderr, "%s\n", text.c_str());
    }
    return false;
  }
  uint32_t count = 0;
  if (bad(zeModuleGetKernelNames(module, &count, nullptr), "kernel names")) return false;
  std::vector<const char *> names(count);
  if (bad(zeModuleGetKernelNames(module, &count, names.data()), "kernel names")) return false;
  bool good = count > 0;
  for (const char *name : names) {
    ze_kernel_desc_t kernel_desc = {ZE_STRUCTURE_TYPE_KERNEL_DESC, nullptr, 0, name};
    ze_kernel_handle_t kernel = nullptr;
    if (bad(zeKernelCreate(module, &kernel_desc, &kernel), name)) {
      good = false;
      continue;
    }
    ze_kernel_properties_t properties = {};
    properties.stype = ZE_STRUCTURE_TYPE_KERNEL_PROPERTIES;
    if (bad(zeKernelGetProperties(kernel, &properties), name)) good = false;
    printf("%s %s %u %u %u\n", file.c_str(), name, properties.maxSubgroupSize, properties.privateMemSize, properties.spillMemSize);
    zeKernelDestroy(kernel);
  }
  zeModuleDestroy(module);
  return good;
}

} // namespace

int main(int count, char **arguments) {
  if (bad(zeInit(ZE_INIT_FLAG_GPU_ONLY), "zeInit")) return 1;
  uint32_t drivers = 1, devices = 1;
  ze_driver_handle_t driver = nullptr;
  ze_device_handle_t device = nullptr;
  if (bad(zeDriverGet(&drivers, &driver), "zeDriverGet") || !driver) return 1;
  if (bad(zeDeviceGet(driver, &devices, &device), "zeDeviceGet") || !device) return 1;
  ze_context_desc_t desc = {ZE_STRUCTURE_TYPE_CONTEXT_DESC, nullptr, 0};
  ze_context_handle_t context = nullptr;
  if (bad(zeContextCreate(driver, &desc, &context), "zeContextCreate")) return 1;
  int failures = 0;
  std::string more;
  for (int i = 1; i < count; i++) {
    if (!strcmp(arguments[i], "-o") && i + 1 < count) more = arguments[++i];
    else failures += !load(context, device, arguments[i], more);
  }
  zeContextDestroy(context);
  return failures ? 1 : 0;
}
