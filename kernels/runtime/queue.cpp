// Queues, copies and launches.
// SPDX-License-Identifier: MIT
#include "queue.hpp"
#include "side.hpp"

#include <cstring>

namespace ns {

constexpr size_t staging_bytes = 1 << 20, staged_write = 1 << 16;

namespace {

sycl::property_list properties(bool profiling) {
  if (profiling) return {sycl::property::queue::in_order{}, sycl::property::queue::enable_profiling{}};
  return {sycl::property::queue::in_order{}};
}

ns_queue *add_queue(ns_context *c, sycl::queue q) {
  auto made = std::make_unique<ns_queue>(c, std::move(q));
  made->profiling = c->profiling && made->queue.has_property<sycl::property::queue::enable_profiling>();
  std::lock_guard lock(c->queues_mutex);
  c->queues.push_back(made.get());
  c->references++;
  return made.release();
}

void no_recording(const ns_queue *q, const char *what) {
  if (q->recording) fail(NS_ERROR_ARGUMENT, std::string(what) + " is not possible while a graph is recorded");
}

/// Pinned memory of the queue that the device may still be reading: free again after a wait.
char *stage(ns_queue *q, size_t bytes) {
  if (!q->staging) {
    q->staging = static_cast<char *>(sycl::malloc_host(staging_bytes, q->context->context));
    if (!q->staging) fail(NS_ERROR_MEMORY, "out of memory: no " + size_text(staging_bytes) + " of pinned host memory for staging");
  }
  if (q->staging_used + bytes > staging_bytes) q->wait();
  char *p = q->staging + q->staging_used;
  q->staging_used += (bytes + 63) & ~size_t(63);
  return p;
}

void check_launch(const ns_queue *q, const ns_kernel *k, const size_t global[3], const size_t local[3], const ns_arg *args, size_t n) {
  auto bad = [&](const std::string &why) { fail(NS_ERROR_ARGUMENT, "kernel " + k->shape->name + " (module " + k->module->shape.name + "): " + why); };
  const KernelShape &shape = *k->shape;
  if (k->module->context != q->context) bad("it was loaded for " + std::string(k->module->context->info.name) + ", the queue is of another device or context");
  if (q->copies_only) bad("this queue is for copies only");
  if (n != shape.args.size()) bad("it takes " + std::to_string(shape.args.size()) + " arguments, " + std::to_string(n) + " were given");
  size_t group = 1;
  for (int i = 0; i < 3; i++) {
    if (global[i] == 0 || local[i] == 0 || global[i] % local[i]) bad("the work-group size " + std::to_string(local[i]) + " does not divide the " + std::to_string(global[i]) + " work-items of dimension " + "xyz"[i]);
    group *= local[i];
    if (group > q->context->info.max_work_group) bad("a work-group of " + std::to_string(local[0]) + " x " + std::to_string(local[1]) + " x " + std::to_string(local[2]) + " is more than the device's " + std::to_string(q->context->info.max_work_group));
  }
  uint64_t local_bytes = 0;
  static const char *const kinds[] = {"nothing", "a pointer", "an integer", "a float", "a struct", "local memory"};
  for (size_t i = 0; i < n; i++) {
    const ArgShape &want = shape.args[i];
    const ns_arg &a = args[i];
    auto at = [&] { return shape.argument(i); };
    if (a.kind < NS_ARG_POINTER || a.kind > NS_ARG_LOCAL) bad(at() + " has the unknown kind " + std::to_string(a.kind));
    bool by_address = a.kind == NS_ARG_BYTES && (want.kind == NS_ARG_INT || want.kind == NS_ARG_FLOAT);
    if (a.kind != want.kind && !by_address) bad(at() + " must be " + kinds[want.kind] + ", " + kinds[a.kind] + " was given");
    if (want.kind == NS_ARG_POINTER) continue; // looked up by the caller of this function, which also notes the block
    if (want.kind == NS_ARG_LOCAL) {
      if (a.size == 0) bad(at() + " is local memory of 0 bytes");
      local_bytes += a.size;
    } else if (a.size != want.size) {
      bad(at() + " must have " + std::to_string(want.size) + " bytes, " + std::to_string(a.size) + " were given");
    } else if (a.kind == NS_ARG_BYTES && !a.value.bytes) {
      bad(at() + " is a null pointer");
    }
  }
  if (local_bytes > q->context->info.local_memory) bad(size_text(local_bytes) + " of local memory is more than the device's " + size_text(q->context->info.local_memory));
}

/// Blocks the launch touches go to `blocks` when a graph is being recorded.
void check_pointers(ns_queue *q, const ns_kernel *k, const ns_arg *args, size_t n, std::set<uint64_t> *blocks) {
  for (size_t i = 0; i < n; i++) {
    if (args[i].kind != NS_ARG_POINTER) continue;
    Block b = q->context->find(args[i].value.pointer, std::max<uint64_t>(args[i].bytes_used, 1),
                               [&] { return "kernel " + k->shape->name + " (module " + k->module->shape.name + "): " + k->shape->argument(i); });
    if (blocks && b.id) blocks->insert(b.id);
  }
}

void set_and_start(sycl::handler &h, const sycl::kernel &kernel, const size_t global[3], const size_t local[3], const ns_arg *args, size_t n) {
  for (size_t i = 0; i < n; i++) {
    const ns_arg &a = args[i];
    int index = static_cast<int>(i);
    switch (a.kind) {
    case NS_ARG_POINTER: h.set_arg(index, const_cast<void *>(a.value.pointer)); break;
    case NS_ARG_LOCAL: h.set_arg(index, sycl::local_accessor<char, 1>{sycl::range<1>(a.size), h}); break;
    case NS_ARG_BYTES: h.set_arg(index, sx::raw_kernel_arg(a.value.bytes, a.size)); break;
    default: h.set_arg(index, sx::raw_kernel_arg(&a.value.bits, a.size)); break; // little-endian: the low bytes come first
    }
  }
  if (global[1] == 1 && global[2] == 1) h.parallel_for(sycl::nd_range<1>{{global[0]}, {local[0]}}, kernel);
  else if (global[2] == 1) h.parallel_for(sycl::nd_range<2>{{global[1], global[0]}, {local[1], local[0]}}, kernel);
  else h.parallel_for(sycl::nd_range<3>{{global[2], global[1], global[0]}, {local[2], local[1], local[0]}}, kernel);
}

/// A launch that can be given again later: owns its arguments.
struct KeptLaunch {
  sycl::kernel kernel;
  size_t global[3], local[3];
  std::vector<ns_arg> args;
  std::vector<std::vector<unsigned char>> bytes;
  KeptLaunch(const ns_kernel *k, const size_t g[3], const size_t l[3], const ns_arg *a, size_t n) : kernel(k->kernel), args(a, a + n), bytes(n) {
    std::copy(g, g + 3, global);
    std::copy(l, l + 3, local);
    for (size_t i = 0; i < n; i++)
      if (a[i].kind == NS_ARG_BYTES) {
        auto p = static_cast<const unsigned char *>(a[i].value.bytes);
        bytes[i].assign(p, p + a[i].size);
        args[i].value.bytes = bytes[i].data();
      }
  }
  KeptLaunch(KeptLaunch &&) = default;
};

} // namespace

} // namespace ns

void ns_queue::wait() {
  queue.wait_and_throw();
  staging_used = 0;
  if (profiling) harvest();
}

void ns_queue::time(const std::string &name, ns::Charge charge, sycl::event event) {
  std::lock_guard lock(timed_mutex);
  timed.push_back({name, std::move(charge), std::move(event)});
}

/// The charge of the next command; the one after it has none but the section.
ns::Charge ns_queue::take_charge() {
  if (!profiling) return {};
  ns::Charge taken = charge;
  charge.bytes = charge.operations = 0;
  charge.stated = false;
  return taken;
}

/// Adds the finished commands' times to the context's table. Only while profiling.
void ns_queue::harvest() {
  std::scoped_lock lock(timed_mutex, context->timings_mutex);
  for (auto &[name, charge, event] : timed) {
    ns::Timing &t = context->timings[{charge.section, name}];
    t.count++;
    t.bytes += charge.bytes;
    t.operations += charge.operations;
    t.nanoseconds += event.get_profiling_info<sycl::info::event_profiling::command_end>() - event.get_profiling_info<sycl::info::event_profiling::command_start>();
  }
  timed.clear();
}

using namespace ns;

extern "C" {

ns_status ns_queue_create(ns_context *c, ns_queue **out) {
  return guarded("creating a queue", [&] {
    if (!c || !out) fail(NS_ERROR_ARGUMENT, "ns_queue_create: a null argument");
    *out = add_queue(c, sycl::queue(c->context, c->device, properties(c->profiling)));
  });
}

ns_status ns_queue_create_copy(ns_context *c, ns_queue **out) {
  return guarded("creating a copy queue", [&] {
    if (!c || !out) fail(NS_ERROR_ARGUMENT, "ns_queue_create_copy: a null argument");
    std::optional<sycl::queue> engine;
    if (c->info.has_copy_engine) engine = copy_engine_queue(c->context, c->device);
    *out = add_queue(c, engine ? *engine : sycl::queue(c->context, c->device, properties(false)));
    (*out)->copies_only = true;
  });
}

ns_status ns_queue_from_sycl(void *sycl_queue, ns_queue **out) {
  return guarded("joining a SYCL queue", [&] {
    if (!sycl_queue || !out) fail(NS_ERROR_ARGUMENT, "ns_queue_from_sycl: a null argument");
    auto &theirs = *static_cast<sycl::queue *>(sycl_queue);
    if (!theirs.is_in_order()) fail(NS_ERROR_ARGUMENT, "ns_queue_from_sycl: the queue is not in order (give it property::queue::in_order)");
    ns_context *c = ns_share_foreign_context(theirs);
    try {
      *out = add_queue(c, theirs);
    } catch (...) {
      ns_context_release(c);
      throw;
    }
    ns_context_release(c); // the queue holds it
  });
}

void ns_queue_release(ns_queue *q) {
  if (!q) return;
  ns_context *c = q->context;
  ns_graph_cancel(q);
  guarded("releasing a queue", [&] { q->wait(); });
  {
    std::lock_guard lock(c->queues_mutex);
    c->queues.erase(std::find(c->queues.begin(), c->queues.end(), q));
  }
  guarded("releasing a queue", [&] {
    if (q->staging) sycl::free(q->staging, c->context);
    delete q;
  });
  ns_context_release(c);
}

ns_context *ns_queue_context(ns_queue *q) { return q ? q->context : nullptr; }
void *ns_queue_sycl(ns_queue *q) { return q ? &q->queue : nullptr; }

ns_status ns_queue_wait(ns_queue *q) {
  return guarded("waiting for a queue", [&] {
    if (!q) fail(NS_ERROR_ARGUMENT, "ns_queue_wait: null queue");
    no_recording(q, "waiting");
    q->wait();
  });
}

ns_status ns_queue_after(ns_queue *q, ns_queue *other) {
  return guarded("ordering two queues", [&] {
    if (!q || !other) fail(NS_ERROR_ARGUMENT, "ns_queue_after: a null queue");
    if (q->context != other->context) fail(NS_ERROR_ARGUMENT, "ns_queue_after: the queues are of two devices or contexts");
    no_recording(q, "ordering two queues"), no_recording(other, "ordering two queues");
    if (q == other) return;
    q->queue.ext_oneapi_submit_barrier({other->queue.ext_oneapi_submit_barrier()});
  });
}

ns_status ns_queue_write(ns_queue *q, void *to, const void *host, size_t bytes) {
  return guarded("writing to device memory", [&] {
    if (!q || (bytes && !host)) fail(NS_ERROR_ARGUMENT, "ns_queue_write: a null argument");
    if (!bytes) return;
    no_recording(q, "writing host memory");
    q->context->find(to, bytes, [] { return std::string("the target of a write"); });
    if (bytes <= staged_write) {
      char *p = stage(q, bytes);
      std::memcpy(p, host, bytes);
      q->queue.memcpy(to, p, bytes);
    } else {
      q->queue.memcpy(to, host, bytes);
      q->wait();
    }
  });
}

ns_status ns_queue_read(ns_queue *q, void *host, const void *from, size_t bytes) {
  return guarded("reading device memory", [&] {
    if (!q || (bytes && !host)) fail(NS_ERROR_ARGUMENT, "ns_queue_read: a null argument");
    if (!bytes) return;
    no_recording(q, "reading to host memory");
    q->context->find(from, bytes, [] { return std::string("the source of a read"); });
    bool staged = bytes <= staged_write && q->context->info.device_class == NS_CLASS_GPU;
    char *p = staged ? stage(q, bytes) : static_cast<char *>(host);
    q->queue.memcpy(p, from, bytes);
    q->wait();
    if (staged) std::memcpy(host, p, bytes);
  });
}

ns_status ns_queue_copy(ns_queue *q, void *to, const void *from, size_t bytes) {
  return guarded("copying memory", [&] {
    if (!q) fail(NS_ERROR_ARGUMENT, "ns_queue_copy: null queue");
    if (!bytes) return;
    Block b = q->context->find(to, bytes, [] { return std::string("the target of a copy"); });
    Block a = q->context->find(from, bytes, [] { return std::string("the source of a copy"); });
    submit(q, "(copy)", {a.id, b.id}, nullptr, [to, from, bytes](sycl::queue &s) { return s.memcpy(to, from, bytes); });
  });
}

ns_status ns_queue_fill(ns_queue *q, void *to, int byte, size_t bytes) {
  return guarded("filling memory", [&] {
    if (!q) fail(NS_ERROR_ARGUMENT, "ns_queue_fill: null queue");
    if (!bytes) return;
    Block b = q->context->find(to, bytes, [] { return std::string("the target of a fill"); });
    // memset, never fill(): that one needs a kernel of its own on Level Zero, which host code without a SYCL compiler has not.
    submit(q, "(fill)", {b.id}, nullptr, [to, byte, bytes](sycl::queue &s) { return s.memset(to, byte, bytes); });
  });
}

ns_status ns_launch(ns_queue *q, ns_kernel *k, const size_t global[3], const size_t local[3], const ns_arg *args, size_t n) {
  return guarded("launching a kernel", [&] {
    if (!q || !k || !global || !local || (n && !args)) fail(NS_ERROR_ARGUMENT, "ns_launch: a null argument");
    check_launch(q, k, global, local, args, n);
    auto start = [&](sycl::handler &h) { set_and_start(h, k->kernel, global, local, args, n); };
    try {
      if (!q->recording) {
        check_pointers(q, k, args, n, nullptr);
        if (q->profiling) q->time(k->shape->name, q->take_charge(), q->queue.submit(start));
        else sx::submit(q->queue, start);
        return;
      }
      std::set<uint64_t> blocks;
      check_pointers(q, k, args, n, &blocks);
      if (q->recording->graph) {
        q->queue.submit(start);
        note(q, blocks, k);
      } else {
        auto kept = std::make_shared<KeptLaunch>(k, global, local, args, n);
        q->recording->commands.push_back({k->shape->name, [kept](sycl::queue &s) {
                                            return s.submit([&](sycl::handler &h) { set_and_start(h, kept->kernel, kept->global, kept->local, kept->args.data(), kept->args.size()); });
                                          }, q->take_charge()});
        note(q, blocks, k);
      }
    } catch (const sycl::exception &e) {
      fail(NS_ERROR, "kernel " + k->shape->name + " (module " + k->module->shape.name + ") on " + q->context->info.name + ": " + e.what());
    }
  });
}

ns_status ns_side_submit(ns_queue *q, const char *name, const void *const *operands, const uint64_t *bytes, size_t count, const std::function<sycl::event(sycl::queue &)> *run) {
  return guarded(name, [&] {
    if (!q) fail(NS_ERROR_ARGUMENT, std::string(name) + ": null queue");
    if (q->copies_only) fail(NS_ERROR_ARGUMENT, std::string(name) + ": this queue is for copies only");
    // There the libraries compute on the host, which a graph of that device cannot hold.
    if (q->recording && q->recording->graph && q->context->info.device_class == NS_CLASS_CPU) fail(NS_ERROR_UNSUPPORTED, std::string(name) + " cannot be recorded into a graph on " + q->context->info.name);
    std::set<uint64_t> blocks;
    for (size_t i = 0; i < count; i++) blocks.insert(q->context->find(operands[i], bytes[i], [&] { return std::string(name) + ": operand " + std::to_string(i); }).id);
    submit(q, name, blocks, nullptr, *run);
  });
}

ns_status ns_side_fail(ns_status code, const char *text) { return remember(code, text); }

} // extern "C"
