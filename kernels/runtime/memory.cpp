// Contexts and unified shared memory: who holds what, the fit check, and where a pointer belongs.
// SPDX-License-Identifier: MIT
#include "internal.hpp"

#include <cstdlib>
#include <cstring>

namespace {

using namespace ns;

struct Registry {
  std::mutex mutex;
  std::vector<ns_context *> contexts;
};
/// Never destroyed: a context may be released while the program's own statics go.
Registry &registry() {
  static Registry *r = new Registry;
  return *r;
}

uint64_t margin(const ns_device_info &info) {
  if (info.device_class == NS_CLASS_CPU) return 256ull << 20;
  std::string text = setting("NS_VRAM_MARGIN_MIB");
  if (text.empty()) return 1ull << 30;
  char *end = nullptr;
  unsigned long long mib = std::strtoull(text.c_str(), &end, 10);
  if (*end || mib > 1ull << 24) fail(NS_ERROR_ARGUMENT, "NS_VRAM_MARGIN_MIB=" + text + " is not a number of MiB");
  return mib << 20;
}

std::string device_name(const ns_context &c) { return c.info.name; }

/// The context of a device; made when nobody has it yet. `existing` is a caller's own SYCL context.
ns_context *share_context(const sycl::device &device, const sycl::context *existing) {
  Registry &r = registry();
  std::lock_guard lock(r.mutex);
  for (ns_context *c : r.contexts)
    if (c->device == device && (existing ? c->context == *existing : !c->foreign)) return c->references++, c;
  auto c = std::make_unique<ns_context>(device, existing ? *existing : sycl::context(device));
  c->foreign = existing != nullptr;
  c->info = describe(device);
  std::string profile = setting("NS_PROFILE");
  if (!profile.empty() && profile != "0" && profile != "1" && profile != "gpu") fail(NS_ERROR_ARGUMENT, "NS_PROFILE=" + profile + " is not 0, 1 or gpu");
  c->profiling = profile == "1" || profile == "gpu";
  r.contexts.push_back(c.get());
  return c.release();
}

} // namespace

ns_context *ns_share_foreign_context(const sycl::queue &q) {
  sycl::context c = q.get_context();
  return share_context(q.get_device(), &c);
}

ns_context::~ns_context() {
  for (auto &k : embedded_kernels) release_kernel(k.second);
  for (auto &m : embedded) release_module(m.second);
  for (auto &b : blocks) {
    try {
      sycl::free(reinterpret_cast<void *>(b.first), context);
    } catch (...) {
      // nothing to do about memory that cannot be given back while the context goes
    }
  }
}

Block ns_context::find(const void *p, uint64_t bytes, const std::function<std::string()> &who) {
  auto address = reinterpret_cast<uintptr_t>(p);
  if (!p) fail(NS_ERROR_ARGUMENT, who() + " is a null pointer");
  {
    std::shared_lock lock(blocks_mutex);
    auto after = blocks.upper_bound(address);
    if (after != blocks.begin()) {
      auto &[start, block] = *std::prev(after);
      uint64_t offset = address - start;
      if (offset < block.bytes) {
        if (bytes > block.bytes - offset)
          fail(NS_ERROR_ARGUMENT, who() + " reaches past its block: offset " + std::to_string(offset) + " + " + std::to_string(bytes) + " bytes, the block has " + std::to_string(block.bytes));
        return block;
      }
    }
  }
  // Not ours: memory that the caller allocated in a context of its own is fine, a plain host pointer is not.
  if (foreign && sycl::get_pointer_type(p, context) != sycl::usm::alloc::unknown) return {0, NS_MEMORY_DEVICE, 0, false};
  fail(NS_ERROR_ARGUMENT, who() + " does not point into memory of this device's context (" + device_name(*this) + ")");
}

bool ns_context::fits(uint64_t bytes, std::string &why) {
  uint64_t keep = margin(info), used;
  {
    std::shared_lock lock(blocks_mutex);
    used = device_bytes;
  }
  uint64_t left = free_memory(device, info, used);
  if (left >= keep && bytes <= left - keep) return true;
  why = "out of memory on " + device_name(*this) + ": " + size_text(bytes) + " asked, " + size_text(left) + " free of " + size_text(info.total_memory) + ", of which " + size_text(keep) +
        " are kept free" + (info.device_class == NS_CLASS_CPU ? "" : " (NS_VRAM_MARGIN_MIB)") + "; this program holds " + size_text(used);
  return false;
}

void ns_context::wait_queues() {
  std::lock_guard lock(queues_mutex);
  for (ns_queue *q : queues)
    if (!q->is_recording) q->queue.wait();
}

extern "C" {

ns_status ns_context_open(const char *selector, ns_context **out) {
  return guarded("opening a device", [&] {
    if (!selector || !out) fail(NS_ERROR_ARGUMENT, "ns_context_open: a null argument");
    auto found = select_devices(selector);
    if (found.empty()) {
      std::string s = selector, hint;
      if (s.compare(0, 3, "gpu") == 0) {
        size_t n = select_devices("gpu").size();
        hint = n ? "; there are " + std::to_string(n) + " (gpu:0 to gpu:" + std::to_string(n - 1) + ")" : ": no Intel GPU was found through Level Zero";
      } else if (s == "cpu") {
        hint = ": the OpenCL CPU runtime was not found (OCL_ICD_FILENAMES=" + setting("OCL_ICD_FILENAMES") + ")";
      }
      fail(NS_ERROR_NO_DEVICE, "no device \"" + s + "\"" + hint);
    }
    try {
      *out = share_context(found.front(), nullptr);
    } catch (const sycl::exception &) {
      // Intel's CPU runtime cuts its own path at the first blank, and then looks for its files in another folder.
      std::string runtime = setting("OCL_ICD_FILENAMES");
      if (!found.front().is_cpu() || runtime.find_first_of(" \t\n") == std::string::npos) throw;
      fail(NS_ERROR_NO_DEVICE, "Intel's OpenCL CPU runtime does not work in a folder with a blank in its path: move or rename it (" + runtime + ")");
    }
  });
}

ns_status ns_context_retain(ns_context *c) {
  return guarded("ns_context_retain", [&] {
    if (!c) fail(NS_ERROR_ARGUMENT, "ns_context_retain: null");
    c->references++;
  });
}

void ns_context_release(ns_context *c) {
  if (!c) return;
  Registry &r = registry();
  {
    std::lock_guard lock(r.mutex);
    if (--c->references != 0) return;
    r.contexts.erase(std::find(r.contexts.begin(), r.contexts.end(), c));
  }
  guarded("releasing a context", [&] { delete c; });
}

ns_status ns_context_info(ns_context *c, ns_device_info *info) {
  return guarded("ns_context_info", [&] {
    if (!c || !info) fail(NS_ERROR_ARGUMENT, "ns_context_info: a null argument");
    *info = c->info;
    uint64_t used;
    {
      std::shared_lock lock(c->blocks_mutex);
      used = c->device_bytes;
    }
    info->free_memory = free_memory(c->device, c->info, used);
  });
}

const char *ns_context_variant(ns_context *c) { return c && c->info.device_class == NS_CLASS_CPU ? "cpu" : "gpu"; }

ns_status ns_reserve(ns_context *c, uint64_t bytes) {
  return guarded("checking free memory", [&] {
    if (!c) fail(NS_ERROR_ARGUMENT, "ns_reserve: null context");
    std::string why;
    if (!c->fits(bytes, why)) fail(NS_ERROR_MEMORY, why);
  });
}

ns_status ns_alloc(ns_context *c, ns_memory kind, size_t bytes, void **out) {
  return guarded("allocating memory", [&] {
    if (!c || !out) fail(NS_ERROR_ARGUMENT, "ns_alloc: a null argument");
    if (bytes == 0) fail(NS_ERROR_ARGUMENT, "an allocation of 0 bytes was asked on " + device_name(*c));
    std::lock_guard alloc(c->alloc_mutex);
    void *p = nullptr;
    bool guard = false;
    constexpr size_t alignment = 64;
    switch (kind) {
    case NS_MEMORY_DEVICE:
    case NS_MEMORY_SHARED: {
      std::string why;
      if (!c->fits(bytes, why)) fail(NS_ERROR_MEMORY, why);
      guard = kind == NS_MEMORY_DEVICE && wants_guard(*c, bytes);
      p = guard ? guarded_device_memory(*c, bytes)
          : kind == NS_MEMORY_DEVICE ? sycl::aligned_alloc_device(alignment, bytes, c->device, c->context)
                                     : sycl::aligned_alloc_shared(alignment, bytes, c->device, c->context);
      break;
    }
    case NS_MEMORY_HOST:
      p = sycl::aligned_alloc_host(alignment, bytes, c->context);
      break;
    default: fail(NS_ERROR_ARGUMENT, "ns_alloc: unknown kind of memory " + std::to_string(kind));
    }
    if (!p) {
      std::string what = kind == NS_MEMORY_HOST ? "pinned host" : kind == NS_MEMORY_SHARED ? "shared" : "device";
      fail(NS_ERROR_MEMORY, "out of memory on " + device_name(*c) + ": the driver refused " + size_text(bytes) + " of " + what + " memory (largest single block it promises: " + size_text(c->info.max_allocation) +
                                "; this program holds " + size_text(c->device_bytes) + " of " + size_text(c->info.total_memory) + ")");
    }
    std::unique_lock lock(c->blocks_mutex);
    c->blocks[reinterpret_cast<uintptr_t>(p)] = {bytes, kind, c->next_block++, guard};
    if (kind != NS_MEMORY_HOST) {
      c->device_bytes += bytes;
      c->device_peak = std::max(c->device_peak, c->device_bytes);
    }
    *out = p;
  });
}

ns_status ns_free(ns_context *c, void *p) {
  return guarded("freeing memory", [&] {
    if (!p) return;
    if (!c) fail(NS_ERROR_ARGUMENT, "ns_free: null context");
    {
      std::shared_lock lock(c->blocks_mutex);
      if (!c->blocks.count(reinterpret_cast<uintptr_t>(p))) fail(NS_ERROR_ARGUMENT, "ns_free: the pointer is not the start of a block of " + device_name(*c));
    }
    c->wait_queues();
    {
      std::unique_lock lock(c->blocks_mutex);
      auto it = c->blocks.find(reinterpret_cast<uintptr_t>(p));
      if (it == c->blocks.end()) fail(NS_ERROR_ARGUMENT, "ns_free: the block was freed by another thread");
      if (it->second.kind != NS_MEMORY_HOST) c->device_bytes -= it->second.bytes;
      c->blocks.erase(it);
      c->frees++;
    }
    sycl::free(p, c->context);
  });
}

ns_status ns_context_wait(ns_context *c) {
  return guarded("waiting for a device", [&] {
    if (!c) fail(NS_ERROR_ARGUMENT, "ns_context_wait: null context");
    c->wait_queues();
  });
}

ns_status ns_memory_used(ns_context *c, uint64_t *now, uint64_t *peak) {
  return guarded("ns_memory_used", [&] {
    if (!c) fail(NS_ERROR_ARGUMENT, "ns_memory_used: null context");
    std::shared_lock lock(c->blocks_mutex);
    if (now) *now = c->device_bytes;
    if (peak) *peak = c->device_peak;
  });
}

ns_status ns_memory_margin(ns_context *c, uint64_t *bytes) {
  return guarded("ns_memory_margin", [&] {
    if (!c || !bytes) fail(NS_ERROR_ARGUMENT, "ns_memory_margin: a null argument");
    *bytes = margin(c->info);
  });
}

} // extern "C"
