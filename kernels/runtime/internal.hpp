// What the files of libns_sycl share: the objects behind the handles of ns.h, and how an exception becomes a code and a text.
// SPDX-License-Identifier: MIT
#pragma once
#include "ns.h"

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <shared_mutex>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

#include <sycl/sycl.hpp>

namespace ns {

namespace sx = sycl::ext::oneapi::experimental;
using executable_graph = sx::command_graph<sx::graph_state::executable>;
using modifiable_graph = sx::command_graph<sx::graph_state::modifiable>;

/// An error with its code; everything below the C functions throws it (or a sycl::exception).
struct Failure : std::runtime_error {
  ns_status code;
  Failure(ns_status c, const std::string &text) : std::runtime_error(text), code(c) {}
};

[[noreturn]] inline void fail(ns_status code, const std::string &text) { throw Failure(code, text); }

/// Keeps the text for ns_last_error and returns the code.
ns_status remember(ns_status code, const std::string &text) noexcept;

/// Runs `body`; every exception becomes a code and a text. `what` says what was being done.
template <class Body> ns_status guarded(const char *what, Body &&body) noexcept {
  try {
    body();
    return NS_OK;
  } catch (const Failure &e) {
    return remember(e.code, e.what());
  } catch (const sycl::exception &e) {
    bool memory = e.code() == sycl::errc::memory_allocation;
    return remember(memory ? NS_ERROR_MEMORY : NS_ERROR, std::string(what) + ": " + e.what());
  } catch (const std::bad_alloc &) {
    return remember(NS_ERROR_MEMORY, std::string(what) + ": out of host memory");
  } catch (const std::exception &e) {
    return remember(NS_ERROR, std::string(what) + ": " + e.what());
  } catch (...) {
    return remember(NS_ERROR, std::string(what) + ": unknown failure");
  }
}

/// "1.50 GiB", "12 bytes": sizes in error texts.
std::string size_text(uint64_t bytes);

/// A setting of the environment, or "".
std::string setting(const char *name);

std::string join(const std::vector<std::string> &words);

// ------------------------------------------------------------------ devices
std::vector<sycl::device> select_devices(const std::string &selector);
ns_device_info describe(const sycl::device &device);
uint64_t free_memory(const sycl::device &device, const ns_device_info &info, uint64_t used_by_us);
bool is_level_zero(const sycl::device &device);
bool is_opencl(const sycl::device &device);

// ------------------------------------------------------------------ memory
struct Block {
  size_t bytes;
  ns_memory kind;
  uint64_t id;      // never reused, so that a graph notices a block freed and given again
  bool guarded;     // went through the aliasing check
};

/// What a timed command counts to, and what it said it costs.
struct Charge {
  std::string section;
  uint64_t bytes = 0, operations = 0;
  bool stated = false;
};

/// One kernel's time in one section.
struct Timing {
  uint64_t count = 0, nanoseconds = 0, bytes = 0, operations = 0;
};

// ------------------------------------------------------------------ modules
struct ArgShape {
  uint32_t kind; // ns_arg_kind
  uint32_t size;
  std::string name; // as in the source; may be empty
};

struct KernelShape {
  std::string name, entry;
  uint32_t sub_group_size = 0;
  bool needs_fp64 = false, needs_fp16 = false, esimd = false;
  std::vector<ArgShape> args;
  /// "argument 3 (n)"
  std::string argument(size_t i) const { return "argument " + std::to_string(i) + (i < args.size() && !args[i].name.empty() ? " (" + args[i].name + ")" : ""); }
};

struct ModuleShape {
  std::string name, variant;
  std::string spirv_file, spirv_sha256;
  uint64_t spirv_bytes = 0;
  bool large_registers = false; // 256 registers a thread
  struct Native {
    std::string file, sha256;
  };
  std::map<std::string, Native> natives;
  std::vector<KernelShape> kernels;
};

/// Parses and checks the reflection of a module; `where` is named in errors.
ModuleShape parse_module(const std::string &text, const std::string &where);

/// Device code ready to make kernels from; one form per backend.
struct Program {
  virtual ~Program() = default;
  virtual sycl::kernel kernel(const std::string &entry) = 0;
};

struct Built {
  std::unique_ptr<Program> program;
  const char *source; // "native", "cache", "spirv"
};

struct Image {
  const void *data = nullptr;
  size_t bytes = 0;
};

/// Native code for this very card (may be empty), else the cache, else SPIR-V.
Built build_program(ns_context &context, const std::string &name, Image native, Image spirv, bool large_registers = false);

std::vector<unsigned char> read_file(const std::string &path);

// ------------------------------------------------------------------ module cache (cache.cpp)
std::string cache_file(const std::string &key); // "" when there is no cache
std::optional<std::vector<unsigned char>> cache_read(const std::string &key);
void cache_write(const std::string &key, const void *data, size_t bytes) noexcept;

// ------------------------------------------------------------------ guarded allocation (guard.cpp)
/// Device memory checked for aliasing with itself and with the context's other guarded blocks. nullptr when the driver has none.
void *guarded_device_memory(ns_context &context, size_t bytes);
bool wants_guard(ns_context &context, size_t bytes);

void *ze_symbol(const char *name); // function of the Level Zero loader; throws Failure
void *cl_symbol(const char *name); // function of the OpenCL loader

/// A queue on the copy engine (Level Zero, copy-only group), when the device has one that may be used.
std::optional<sycl::queue> copy_engine_queue(const sycl::context &context, const sycl::device &device);
bool has_copy_engine(const sycl::device &device);

} // namespace ns

struct ns_context {
  std::atomic<long> references{1};
  sycl::device device;
  sycl::context context;
  ns_device_info info{};
  bool foreign = false; // made for a caller's own queue

  std::shared_mutex blocks_mutex;
  std::map<uintptr_t, ns::Block> blocks; // by first address
  uint64_t device_bytes = 0, device_peak = 0, next_block = 1;
  std::atomic<uint64_t> frees{0};
  std::mutex alloc_mutex; // one allocation at a time: fit check and allocation belong together
  std::unique_ptr<ns::Program> guard_program;

  std::mutex queues_mutex;
  std::vector<ns_queue *> queues;

  std::atomic<bool> profiling{false};
  std::mutex timings_mutex;
  std::map<std::pair<std::string, std::string>, ns::Timing> timings; // by section and name

  std::mutex embedded_mutex;
  std::map<const ns_embedded_module *, ns_module *> embedded;
  std::map<std::pair<const ns_embedded_module *, std::string>, ns_kernel *> embedded_kernels;

  ns_context(sycl::device d, sycl::context c) : device(std::move(d)), context(std::move(c)) {}
  ~ns_context();
  /// The block that holds [p, p + bytes), or Failure.
  ns::Block find(const void *p, uint64_t bytes, const std::function<std::string()> &who);
  bool fits(uint64_t bytes, std::string &why);
  void wait_queues();
};

namespace ns {
struct Command {
  std::string name;
  std::function<sycl::event(sycl::queue &)> run;
  Charge charge; // while profiling
};
/// Graph under construction.
struct Recording {
  std::optional<modifiable_graph> graph; // none: commands are kept and launched again
  bool native = false;
  std::vector<Command> commands;
  std::set<uint64_t> blocks;
  size_t size = 0;
  std::vector<ns_kernel *> kernels; // held
};
} // namespace ns

struct ns_queue {
  ns_context *context;
  sycl::queue queue;
  bool copies_only = false;
  bool profiling = false;
  bool no_native_recording = false;
  std::optional<ns::Recording> recording;
  std::atomic<bool> is_recording{false}; // for other threads
  // staging of small writes: a ring of pinned memory, emptied by a wait
  char *staging = nullptr;
  size_t staging_used = 0;
  std::mutex timed_mutex;
  struct Timed {
    std::string name;
    ns::Charge charge;
    sycl::event event;
  };
  std::vector<Timed> timed;
  ns::Charge charge; // of the next command; by the thread that owns the queue

  ns_queue(ns_context *c, sycl::queue q) : context(c), queue(std::move(q)) {}
  void wait(); // by the thread that owns the queue
  void time(const std::string &name, ns::Charge charge, sycl::event event);
  ns::Charge take_charge();
  void harvest();
};

struct ns_module {
  std::atomic<long> references{1};
  ns_context *context;
  bool holds_context = true; // an embedded module is owned by its context
  ns::ModuleShape shape;
  ns::Built built;
  std::mutex kernels_mutex;
  std::map<std::string, ns_kernel *> kernels;
};

struct ns_kernel {
  std::atomic<long> references{1};
  ns_module *module;
  const ns::KernelShape *shape;
  sycl::kernel kernel;
  ns_kernel(ns_module *m, const ns::KernelShape *s, sycl::kernel k) : module(m), shape(s), kernel(std::move(k)) {}
};

struct ns_graph {
  ns_context *context;
  std::optional<ns::executable_graph> graph;
  std::vector<ns::Command> commands;
  std::vector<uint64_t> blocks;
  std::vector<ns_kernel *> kernels;
  size_t size = 0;
  const char *form = "";
  std::atomic<uint64_t> checked_frees{0};
};

namespace ns {
void release_module(ns_module *module);
void release_kernel(ns_kernel *kernel);
ns_kernel *get_kernel(ns_module *module, const std::string &name);
ns_module *load_embedded(ns_context &context, const ns_embedded_module &embedded, bool holds_context);
} // namespace ns
