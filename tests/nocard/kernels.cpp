// Modules and kernels, and running them on an OpenCL CPU runtime.
// SPDX-License-Identifier: MIT
#include "nocard.hpp"
#include <dlfcn.h>

namespace nocard {
namespace {

/// The OpenCL CPU runtime, opened when the first kernel runs.
struct Runtime {
  cl_context context = nullptr;
  cl_device_id device = nullptr;
  cl_command_queue queue = nullptr;
  bool usable = false;

  decltype(&::clCreateProgramWithIL) create_program = nullptr;
  decltype(&::clBuildProgram) build_program = nullptr;
  decltype(&::clGetProgramBuildInfo) build_info = nullptr;
  decltype(&::clCreateKernel) create_kernel = nullptr;
  decltype(&::clSetKernelArg) set_arg = nullptr;
  decltype(&::clEnqueueNDRangeKernel) enqueue = nullptr;
  decltype(&::clFinish) finish = nullptr;
  cl_int (*set_pointer)(cl_kernel, cl_uint, const void *) = nullptr;

  Runtime() {
    const char *path = setting("NS_NOCARD_OCL");
    void *library = dlopen(path ? path : "libOpenCL.so.1", RTLD_NOW);
    if (!library) {
      fprintf(stderr, "nocard: %s\n", dlerror());
      return;
    }
    auto load = [library](auto &function, const char *name) { function = (std::decay_t<decltype(function)>)dlsym(library, name); };
    decltype(&::clGetPlatformIDs) platform_ids;
    decltype(&::clGetDeviceIDs) device_ids;
    decltype(&::clCreateContext) create_context;
    decltype(&::clCreateCommandQueueWithProperties) create_queue;
    decltype(&::clGetExtensionFunctionAddressForPlatform) extension;
    load(platform_ids, "clGetPlatformIDs");
    load(device_ids, "clGetDeviceIDs");
    load(create_context, "clCreateContext");
    load(create_queue, "clCreateCommandQueueWithProperties");
    load(extension, "clGetExtensionFunctionAddressForPlatform");
    load(create_program, "clCreateProgramWithIL");
    load(build_program, "clBuildProgram");
    load(build_info, "clGetProgramBuildInfo");
    load(create_kernel, "clCreateKernel");
    load(set_arg, "clSetKernelArg");
    load(enqueue, "clEnqueueNDRangeKernel");
    load(finish, "clFinish");
    cl_platform_id platforms[8];
    cl_uint count = 0;
    if (!platform_ids || platform_ids(8, platforms, &count)) count = 0;
    for (cl_uint i = 0; i < count && i < 8 && !usable; i++) {
      if (device_ids(platforms[i], CL_DEVICE_TYPE_CPU, 1, &device, nullptr)) continue;
      cl_int error;
      context = create_context(nullptr, 1, &device, nullptr, nullptr, &error);
      queue = create_queue(context, device, nullptr, &error);
      set_pointer = (decltype(set_pointer))extension(platforms[i], "clSetKernelArgMemPointerINTEL");
      usable = context && queue && set_pointer;
    }
    if (!usable) fprintf(stderr, "nocard: no OpenCL CPU device\n");
  }
};

Runtime &runtime() {
  static Runtime *const instance = new Runtime; // never destroyed: programs launch until the very end
  return *instance;
}

bool prepare(Kernel &kernel) {
  if (kernel.handle) return true;
  Module &module = *kernel.module;
  if (module.failed || module.words.empty() || !runtime().usable) return false;
  cl_int error = CL_SUCCESS;
  if (!module.program) {
    module.program = runtime().create_program(runtime().context, module.words.data(), module.words.size() * 4, &error);
    if (!error) error = runtime().build_program(module.program, 1, &runtime().device, "", nullptr, nullptr);
    if (error) {
      char log[4096] = "";
      if (module.program)
        runtime().build_info(module.program, runtime().device, CL_PROGRAM_BUILD_LOG, sizeof log, log, nullptr);
      fprintf(stderr, "nocard: the module of %s does not build for the CPU (%d) %s\n", kernel.name.c_str(), error, log);
      module.failed = true;
      return false;
    }
  }
  kernel.handle = runtime().create_kernel(module.program, kernel.name.c_str(), &error);
  if (error) fprintf(stderr, "nocard: kernel %s: %d\n", kernel.name.c_str(), error);
  return kernel.handle != nullptr;
}

void launch(Operation &operation) {
  if (!operation.kernel || !prepare(*operation.kernel)) {
    counts.kernels_skipped++;
    if (operation.kernel && !operation.kernel->warned) {
      operation.kernel->warned = true;
      fprintf(stderr, "nocard: kernel %s is not executed\n", operation.kernel->name.c_str());
    }
    return;
  }
  Kernel &kernel = *operation.kernel;
  const auto &parameters = kernel.parameters();
  for (size_t i = 0; i < operation.args.size(); i++) {
    const Bytes &arg = operation.args[i];
    const ArgKind kind = i < parameters.size() ? parameters[i].kind : ArgKind::Value;
    size_t word = 0;
    memcpy(&word, arg.data(), std::min(arg.size(), sizeof word));
    const cl_uint index = (cl_uint)i;
    cl_int error = kind == ArgKind::Pointer ? runtime().set_pointer(kernel.handle, index, (void *)word)
                   : kind == ArgKind::Local ? runtime().set_arg(kernel.handle, index, word, nullptr)
                                            : runtime().set_arg(kernel.handle, index, arg.size(), arg.data());
    if (error) {
      fprintf(stderr, "nocard: %s argument %zu (%zu bytes): %d\n", kernel.name.c_str(), i, arg.size(), error);
      counts.kernels_skipped++;
      return;
    }
  }
  const size_t local[3] = {operation.group.groupSizeX, operation.group.groupSizeY, operation.group.groupSizeZ};
  const size_t global[3] = {local[0] * operation.count.groupCountX, local[1] * operation.count.groupCountY,
                            local[2] * operation.count.groupCountZ};
  cl_int error = runtime().enqueue(runtime().queue, kernel.handle, 3, nullptr, global, local, 0, nullptr, nullptr);
  if (!error) error = runtime().finish(runtime().queue);
  if (error) {
    fprintf(stderr, "nocard: %s launch: %d\n", kernel.name.c_str(), error);
    counts.kernels_skipped++;
    return;
  }
  counts.kernels_run++;
}

std::map<ze_module_handle_t, std::shared_ptr<Module>> modules;
std::map<ze_kernel_handle_t, std::shared_ptr<Kernel>> kernels;
ze_module_dditable_t module_driver;
ze_kernel_dditable_t kernel_driver;

ze_result_t create_module(ze_context_handle_t context, ze_device_handle_t device, const ze_module_desc_t *desc, ze_module_handle_t *handle,
                          ze_module_build_log_handle_t *log) {
  ze_result_t result = module_driver.pfnCreate(context, device, desc, handle, log);
  if (result) return result;
  Lock lock(mutex);
  auto module = std::make_shared<Module>();
  if (desc->format == ZE_MODULE_FORMAT_IL_SPIRV && desc->pInputModule) {
    counts.modules_spirv++;
    module->words.resize(desc->inputSize / 4);
    memcpy(module->words.data(), desc->pInputModule, module->words.size() * 4);
    module->kernels = entry_points(module->words);
  } else {
    counts.modules_native++;
  }
  modules[*handle] = module;
  return result;
}

ze_result_t destroy_module(ze_module_handle_t handle) {
  Lock lock(mutex);
  modules.erase(handle);
  return module_driver.pfnDestroy(handle);
}

ze_result_t create_kernel(ze_module_handle_t module, const ze_kernel_desc_t *desc, ze_kernel_handle_t *handle) {
  ze_result_t result = kernel_driver.pfnCreate(module, desc, handle);
  if (result) return result;
  Lock lock(mutex);
  auto kernel = std::make_shared<Kernel>();
  auto found = modules.find(module);
  kernel->module = found != modules.end() ? found->second : std::make_shared<Module>();
  kernel->name = desc->pKernelName;
  kernels[*handle] = kernel;
  return result;
}

ze_result_t destroy_kernel(ze_kernel_handle_t handle) {
  Lock lock(mutex);
  kernels.erase(handle);
  return kernel_driver.pfnDestroy(handle);
}

ze_result_t set_group_size(ze_kernel_handle_t handle, uint32_t x, uint32_t y, uint32_t z) {
  Lock lock(mutex);
  if (auto kernel = kernel_of(handle)) kernel->group = {x, y, z};
  return kernel_driver.pfnSetGroupSize(handle, x, y, z);
}

ze_result_t set_argument(ze_kernel_handle_t handle, uint32_t index, size_t bytes, const void *value) {
  Lock lock(mutex);
  ze_result_t result = kernel_driver.pfnSetArgumentValue(handle, index, bytes, value);
  auto kernel = kernel_of(handle);
  if (result || !executing || !kernel) return result;
  if (kernel->args.size() <= index) kernel->args.resize(index + 1);
  if (value) {
    kernel->args[index].assign((const unsigned char *)value, (const unsigned char *)value + bytes);
  } else { // a null pointer, or the size of local memory
    const auto &parameters = kernel->parameters();
    const size_t word = index < parameters.size() && parameters[index].kind == ArgKind::Local ? bytes : 0;
    kernel->args[index].assign((const unsigned char *)&word, (const unsigned char *)&word + sizeof word);
  }
  return result;
}

} // namespace

std::shared_ptr<Kernel> kernel_of(ze_kernel_handle_t handle) {
  auto found = kernels.find(handle);
  return found == kernels.end() ? nullptr : found->second;
}

void carry_out(Operation &operation) {
  switch (operation.kind) {
  case Operation::Kind::Copy:
    memmove(operation.target, operation.source, operation.bytes);
    break;
  case Operation::Kind::Fill:
    for (size_t at = 0; at < operation.bytes; at += operation.pattern.size())
      memcpy((char *)operation.target + at, operation.pattern.data(), std::min(operation.pattern.size(), operation.bytes - at));
    break;
  case Operation::Kind::Launch:
    launch(operation);
    break;
  }
}

void wrap(ze_module_dditable_t *table) {
  module_driver = *table;
  replace(table->pfnCreate, &create_module);
  replace(table->pfnDestroy, &destroy_module);
}

void wrap(ze_kernel_dditable_t *table) {
  kernel_driver = *table;
  replace(table->pfnCreate, &create_kernel);
  replace(table->pfnDestroy, &destroy_kernel);
  replace(table->pfnSetGroupSize, &set_group_size);
  replace(table->pfnSetArgumentValue, &set_argument);
}

} // namespace nocard
