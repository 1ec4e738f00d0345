// Device code: native for the card, this machine's cached build, or SPIR-V; and the copy engine's queue, the other thing that needs the driver's own interface.
// SPDX-License-Identifier: MIT
#include "internal.hpp"
#include "level_zero.hpp"
#include "sha256.hpp"

#include <CL/cl.h>
#include <sycl/backend.hpp>

#include <cstring>
#include <dlfcn.h>

namespace ns {
namespace {

constexpr auto level_zero = sycl::backend::ext_oneapi_level_zero;

/// Addresses past 4 GiB must be right on Alchemist too, and divisions and roots as exact as in the build of native code.
constexpr const char *level_zero_options = "-ze-opt-greater-than-4GB-buffer-required -cl-fp32-correctly-rounded-divide-sqrt";
constexpr const char *opencl_options = "";

void *symbol(const char *library, const char *name, void *&handle) {
  if (!handle) handle = dlopen(library, RTLD_LAZY | RTLD_LOCAL);
  if (!handle) fail(NS_ERROR, std::string("cannot open ") + library + ": " + dlerror());
  void *s = dlsym(handle, name);
  if (!s) fail(NS_ERROR, std::string(library) + " has no " + name);
  return s;
}

template <class F> F ze_call(const char *name) { return reinterpret_cast<F>(ze_symbol(name)); }
#define NS_CL(function) reinterpret_cast<decltype(&function)>(cl_symbol(#function))

std::string code_text(const char *function, int32_t code) {
  char hex[16];
  std::snprintf(hex, sizeof hex, "0x%x", static_cast<unsigned>(code));
  return std::string(function) + " failed with " + (code < 0 ? std::to_string(code) : std::string(hex));
}

// ------------------------------------------------------------------ Level Zero
class ZeProgram : public Program {
public:
  ZeProgram(const ns_context &c, ze_module_handle_t module) : context_(c.context), module_(module) {
    try {
      bundle_.emplace(sycl::make_kernel_bundle<level_zero, sycl::bundle_state::executable>({module, sycl::ext::oneapi::level_zero::ownership::transfer}, context_));
    } catch (...) {
      ze_call<ze::module_destroy>("zeModuleDestroy")(module);
      throw;
    }
  }
  sycl::kernel kernel(const std::string &entry) override {
    ze::kernel_desc d{ze::type_kernel_desc, nullptr, 0, entry.c_str()};
    ze_kernel_handle_t k = nullptr;
    if (auto r = ze_call<ze::kernel_create>("zeKernelCreate")(module_, &d, &k)) fail(NS_ERROR, code_text("zeKernelCreate", r) + " for " + entry);
    try {
      return sycl::make_kernel<level_zero>({*bundle_, k, sycl::ext::oneapi::level_zero::ownership::transfer}, context_);
    } catch (...) {
      ze_call<ze::kernel_destroy>("zeKernelDestroy")(k);
      throw;
    }
  }

private:
  sycl::context context_;
  ze_module_handle_t module_;
  std::optional<sycl::kernel_bundle<sycl::bundle_state::executable>> bundle_;
};

/// nullptr and the driver's words in `log` when the driver refuses the code.
ze_module_handle_t ze_module(ns_context &c, uint32_t format, Image image, const std::string &options, std::string &log) {
  auto zc = sycl::get_native<level_zero>(c.context);
  auto zd = sycl::get_native<level_zero>(c.device);
  ze::module_desc d{ze::type_module_desc, nullptr, format, image.bytes, static_cast<const uint8_t *>(image.data), format == ze::format_spirv ? options.c_str() : "", nullptr};
  ze_module_handle_t module = nullptr;
  ze::module_build_log build_log = nullptr;
  auto r = ze_call<ze::module_create>("zeModuleCreate")(zc, zd, &d, &module, &build_log);
  if (r) log = code_text("zeModuleCreate", r);
  if (build_log) {
    size_t n = 0;
    if (r && ze_call<ze::log_get_string>("zeModuleBuildLogGetString")(build_log, &n, nullptr) == 0 && n > 1) {
      std::string text(n, 0);
      if (ze_call<ze::log_get_string>("zeModuleBuildLogGetString")(build_log, &n, text.data()) == 0) log += ": " + std::string(text.c_str());
    }
    ze_call<ze::log_destroy>("zeModuleBuildLogDestroy")(build_log);
  }
  return r ? nullptr : module;
}

std::vector<unsigned char> ze_binary(ze_module_handle_t module) {
  auto get = ze_call<ze::module_get_native>("zeModuleGetNativeBinary");
  size_t n = 0;
  if (get(module, &n, nullptr) || n == 0) return {};
  std::vector<unsigned char> bytes(n);
  if (get(module, &n, bytes.data())) return {};
  return bytes;
}

Built build_level_zero(ns_context &c, const std::string &name, Image native, Image spirv, const std::string &options, const std::string &key) {
  bool native_allowed = setting("NS_NATIVE") != "0";
  std::string log;
  if (native_allowed && native.bytes)
    if (auto m = ze_module(c, ze::format_native, native, "", log)) return {std::make_unique<ZeProgram>(c, m), "native"};
  if (native_allowed)
    if (auto cached = cache_read(key))
      if (auto m = ze_module(c, ze::format_native, {cached->data(), cached->size()}, "", log)) return {std::make_unique<ZeProgram>(c, m), "cache"};
  auto m = ze_module(c, ze::format_spirv, spirv, options, log);
  if (!m) fail(NS_ERROR, "module " + name + " cannot be built for " + c.info.name + ": " + log);
  auto program = std::make_unique<ZeProgram>(c, m);
  if (native_allowed) {
    auto binary = ze_binary(m);
    cache_write(key, binary.data(), binary.size());
  }
  return {std::move(program), "spirv"};
}

// ------------------------------------------------------------------ OpenCL
class ClProgram : public Program {
public:
  ClProgram(const ns_context &c, cl_program program) : context_(c.context), program_(program) {}
  ~ClProgram() override { NS_CL(clReleaseProgram)(program_); }
  sycl::kernel kernel(const std::string &entry) override {
    cl_int e = 0;
    cl_kernel k = NS_CL(clCreateKernel)(program_, entry.c_str(), &e);
    if (e) fail(NS_ERROR, code_text("clCreateKernel", e) + " for " + entry);
    // make_kernel keeps a reference of its own, so ours goes
    struct Release {
      cl_kernel k;
      ~Release() { NS_CL(clReleaseKernel)(k); }
    } release{k};
    return sycl::make_kernel<sycl::backend::opencl>(k, context_);
  }

private:
  sycl::context context_;
  cl_program program_;
};

/// Builds `program`; on failure releases it, leaves the compiler's words in `log` and returns nullptr.
cl_program cl_built(cl_program program, cl_device_id device, std::string &log) {
  cl_int e = NS_CL(clBuildProgram)(program, 1, &device, opencl_options, nullptr, nullptr);
  if (!e) return program;
  log = code_text("clBuildProgram", e);
  size_t n = 0;
  if (NS_CL(clGetProgramBuildInfo)(program, device, CL_PROGRAM_BUILD_LOG, 0, nullptr, &n) == 0 && n > 1) {
    std::string text(n, 0);
    if (NS_CL(clGetProgramBuildInfo)(program, device, CL_PROGRAM_BUILD_LOG, n, text.data(), nullptr) == 0) log += ": " + std::string(text.c_str());
  }
  NS_CL(clReleaseProgram)(program);
  return nullptr;
}

std::vector<unsigned char> cl_binary(cl_program program) {
  size_t n = 0;
  auto info = NS_CL(clGetProgramInfo);
  if (info(program, CL_PROGRAM_BINARY_SIZES, sizeof n, &n, nullptr) || n == 0) return {};
  std::vector<unsigned char> bytes(n);
  unsigned char *p = bytes.data();
  if (info(program, CL_PROGRAM_BINARIES, sizeof p, &p, nullptr)) return {};
  return bytes;
}

Built build_opencl(ns_context &c, const std::string &name, Image spirv, const std::string &key) {
  cl_context cc = sycl::get_native<sycl::backend::opencl>(c.context);
  cl_device_id cd = sycl::get_native<sycl::backend::opencl>(c.device);
  struct Handles { // get_native gave us references
    cl_context context;
    cl_device_id device;
    ~Handles() {
      NS_CL(clReleaseContext)(context);
      NS_CL(clReleaseDevice)(device);
    }
  } handles{cc, cd};
  std::string log;
  cl_int e = 0, status = 0;
  if (auto cached = cache_read(key)) {
    const unsigned char *p = cached->data();
    size_t n = cached->size();
    cl_program program = NS_CL(clCreateProgramWithBinary)(cc, 1, &cd, &n, &p, &status, &e);
    if (program && (e || status)) NS_CL(clReleaseProgram)(program), program = nullptr;
    if (program) program = cl_built(program, cd, log);
    if (program) return {std::make_unique<ClProgram>(c, program), "cache"};
  }
  cl_program program = NS_CL(clCreateProgramWithIL)(cc, spirv.data, spirv.bytes, &e);
  if (!program || e) fail(NS_ERROR, "module " + name + " cannot be built for " + c.info.name + ": " + code_text("clCreateProgramWithIL", e));
  program = cl_built(program, cd, log);
  if (!program) fail(NS_ERROR, "module " + name + " cannot be built for " + c.info.name + ": " + log);
  auto built = std::make_unique<ClProgram>(c, program);
  auto binary = cl_binary(program);
  cache_write(key, binary.data(), binary.size());
  return {std::move(built), "spirv"};
}

// ------------------------------------------------------------------ any other backend: SYCL's own loader, no cache
class BundleProgram : public Program {
public:
  BundleProgram(ns_context &c, Image spirv) : bundle_(build(c, spirv)) {}
  sycl::kernel kernel(const std::string &entry) override { return bundle_.ext_oneapi_get_kernel(entry); }

private:
  static sycl::kernel_bundle<sycl::bundle_state::executable> build(ns_context &c, Image spirv) {
    auto p = static_cast<const std::byte *>(spirv.data);
    auto source = sx::create_kernel_bundle_from_source(c.context, sx::source_language::spirv, std::vector<std::byte>(p, p + spirv.bytes));
    return sx::build(source);
  }
  sycl::kernel_bundle<sycl::bundle_state::executable> bundle_;
};

/// Number of the queue group that only copies, or -1.
int copy_only_group(ze_device_handle_t device) {
  auto groups = ze_call<ze::queue_groups>("zeDeviceGetCommandQueueGroupProperties");
  uint32_t n = 0;
  if (groups(device, &n, nullptr) || n == 0) return -1;
  std::vector<ze::queue_group_properties> g(n);
  for (auto &e : g) e.type = ze::type_queue_group_properties, e.next = nullptr;
  if (groups(device, &n, g.data())) return -1;
  for (uint32_t i = 0; i < n; i++)
    if ((g[i].flags & ze::group_copy) && !(g[i].flags & ze::group_compute) && g[i].queues) return static_cast<int>(i);
  return -1;
}

} // namespace

void *ze_symbol(const char *name) {
  static void *handle = nullptr;
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  return symbol("libze_loader.so.1", name, handle);
}

void *cl_symbol(const char *name) {
  static void *handle = nullptr;
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  return symbol("libOpenCL.so.1", name, handle);
}

Built build_program(ns_context &c, const std::string &name, Image native, Image spirv, bool large_registers) {
  if (spirv.bytes < 20 || std::memcmp(spirv.data, "\x03\x02\x23\x07", 4)) fail(NS_ERROR_FILE, "module " + name + ": this is no SPIR-V");
  std::string options = is_level_zero(c.device) ? level_zero_options : opencl_options;
  if (large_registers && is_level_zero(c.device)) options += " -ze-opt-large-register-file";
  // One line each: a key means one build of one module by one driver for one device.
  std::string key = std::string("nextsycl module 1\n") + sha256(spirv.data, spirv.bytes) + "\n" + c.info.backend + "\n" + c.info.name + "\n" + std::to_string(c.info.device_id) + "\n" + c.info.driver + "\n" +
                    c.device.get_platform().get_info<sycl::info::platform::version>() + "\n" + options + "\n";
  if (is_level_zero(c.device)) return build_level_zero(c, name, native, spirv, options, key);
  if (is_opencl(c.device)) return build_opencl(c, name, spirv, key);
  return {std::make_unique<BundleProgram>(c, spirv), "spirv"};
}

bool has_copy_engine(const sycl::device &d) {
  // On Alchemist an immediate list on the copy engine has hung: Battlemage only.
  if (!is_level_zero(d) || !d.is_gpu()) return false;
  try {
    auto a = d.get_info<sx::info::device::architecture>();
    if (a != sx::architecture::intel_gpu_bmg_g21 && a != sx::architecture::intel_gpu_bmg_g31) return false;
    return copy_only_group(sycl::get_native<level_zero>(d)) >= 0;
  } catch (const std::exception &) {
    return false; // no facts, no copy engine
  }
}

std::optional<sycl::queue> copy_engine_queue(const sycl::context &context, const sycl::device &device) {
  auto zc = sycl::get_native<level_zero>(context);
  auto zd = sycl::get_native<level_zero>(device);
  int group = copy_only_group(zd);
  if (group < 0) return {};
  ze::queue_desc d{ze::type_queue_desc, nullptr, static_cast<uint32_t>(group), 0, ze::queue_in_order, ze::queue_asynchronous, 0};
  ze_command_list_handle_t list = nullptr;
  if (auto r = ze_call<ze::list_create_immediate>("zeCommandListCreateImmediate")(zc, zd, &d, &list)) fail(NS_ERROR, code_text("zeCommandListCreateImmediate", r) + " for the copy engine");
  sycl::backend_input_t<level_zero, sycl::queue> input{list, device, sycl::ext::oneapi::level_zero::ownership::transfer, {sycl::property::queue::in_order{}}};
  return sycl::make_queue<level_zero>(input, context);
}

} // namespace ns
