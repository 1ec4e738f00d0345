// libns-nocard: a Level Zero driver that wraps Intel's own driver while that one pretends to have a card.
//
// Intel's driver can run without a GPU: it accepts everything and executes nothing. This wrapper
//  - answers the few calls that fail in that mode (residency, event status, timestamps),
//  - enforces a budget of device memory                 NS_NOCARD_VRAM=MiB[,MiB...] (0 or unset: none), one a card
//  - counts what the program did, as one line of JSON    NS_NOCARD_REPORT=FILE or - (stderr), written at exit
//  - and, with NS_NOCARD_EXEC=1, carries the work out: device memory is host memory, copies and fills are done at once,
//    SPIR-V kernels run on an OpenCL CPU runtime         NS_NOCARD_OCL=path of its library
// Only tests use it. It says nothing about speed, races or deadlocks.
// SPDX-License-Identifier: MIT
#pragma once
#include <CL/cl.h>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <level_zero/ze_api.h>
#include <level_zero/ze_ddi.h>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace nocard {

/// One lock for everything: the wrapped driver completes each submission at once, so nothing is lost by it.
extern std::recursive_mutex mutex;
using Lock = std::lock_guard<std::recursive_mutex>;

/// A setting of the environment, null when unset or empty.
const char *setting(const char *name);
/// Whether work is carried out.
extern const bool executing;

/// What the program did; see report.cpp for the names in the JSON.
struct Counts {
  std::atomic<long> launches{0}, copies{0}, fills{0}, graph_runs{0}, event_waits{0}, event_polls{0}, list_waits{0}, queue_waits{0};
  std::atomic<long> device_allocs{0}, host_allocs{0}, shared_allocs{0}, refused{0}, modules_spirv{0}, modules_native{0};
  std::atomic<long> kernels_run{0}, kernels_skipped{0};
  size_t device = 0, device_peak = 0, host = 0, host_peak = 0, host_biggest = 0;
};
extern Counts counts;

// ---- kernels (kernels.cpp, spirv.cpp)

enum class ArgKind { Value, Pointer, Local };
struct Parameter {
  ArgKind kind;
  size_t size;
};
using Bytes = std::vector<unsigned char>;

/// A module as the program gave it. Native ones have no words and cannot be executed.
struct Module {
  std::vector<uint32_t> words;
  std::map<std::string, std::vector<Parameter>> kernels;
  cl_program program = nullptr;
  bool failed = false;
};

struct Kernel {
  std::shared_ptr<Module> module;
  std::string name;
  cl_kernel handle = nullptr;
  std::vector<Bytes> args;
  ze_group_size_t group{1, 1, 1};
  bool warned = false;

  const std::vector<Parameter> &parameters() const { return module->kernels[name]; }
};

/// Reads the entry points and their parameters out of SPIR-V.
std::map<std::string, std::vector<Parameter>> entry_points(const std::vector<uint32_t> &words);

/// One launch, copy or fill, carried out at once or kept for a list or graph.
struct Operation {
  enum class Kind { Launch, Copy, Fill } kind;
  std::shared_ptr<Kernel> kernel{};
  ze_group_count_t count{1, 1, 1};
  ze_group_size_t group{1, 1, 1};
  std::vector<Bytes> args{};
  void *target = nullptr;
  const void *source = nullptr;
  size_t bytes = 0;
  Bytes pattern{};
};
void carry_out(Operation &operation);

std::shared_ptr<Kernel> kernel_of(ze_kernel_handle_t handle);

// ---- the parts of the driver's tables that are replaced; each keeps the driver's own entries first
void wrap(ze_device_dditable_t *table);
void wrap(ze_mem_dditable_t *table);
void wrap(ze_module_dditable_t *table);
void wrap(ze_kernel_dditable_t *table);
void wrap(ze_command_list_dditable_t *table);
void wrap(ze_command_list_exp_dditable_t *table);
void wrap(ze_command_queue_dditable_t *table);
void wrap(ze_graph_dditable_t *table);
void wrap(ze_executable_graph_dditable_t *table);
void wrap(ze_context_dditable_t *table);
void wrap(ze_event_dditable_t *table);

/// Puts `ours` into a slot of a table that the driver fills.
template <typename F> void replace(F &slot, F ours) {
  if (slot) slot = ours;
}

} // namespace nocard
