// Recorded graphs, and the times of kernels.
// SPDX-License-Identifier: MIT
#include "queue.hpp"

#include <cstring>

namespace ns {
namespace {

void release_kernels(std::vector<ns_kernel *> &kernels) {
  for (ns_kernel *k : kernels) release_kernel(k);
  kernels.clear();
}

/// Starts recording in the best form the device has: driver graphs make no host wait per replay.
void begin(ns_queue *q) {
  ns_context &c = *q->context;
  q->recording.emplace();
  Recording &r = *q->recording;
  bool can = c.device.has(sycl::aspect::ext_oneapi_limited_graph) || c.device.has(sycl::aspect::ext_oneapi_graph);
  if (q->profiling || !can) return;
  if (c.info.has_native_graphs && !q->no_native_recording) {
    try {
      r.graph.emplace(c.context, c.device, sycl::property_list{sx::property::graph::enable_native_recording{}});
      r.graph->begin_recording(q->queue);
      r.native = true;
      return;
    } catch (const sycl::exception &) {
      q->no_native_recording = true; // this driver has no graphs of its own: the SYCL form does as well
      r.graph.reset();
    }
  }
  r.graph.emplace(c.context, c.device);
  r.graph->begin_recording(q->queue);
}

/// A graph must not touch memory that was freed after it was recorded. Costs one comparison as long as nothing was freed.
void check_alive(ns_graph *g) {
  uint64_t frees = g->context->frees;
  if (g->checked_frees == frees) return;
  std::set<uint64_t> alive;
  {
    std::shared_lock lock(g->context->blocks_mutex);
    for (auto &b : g->context->blocks) alive.insert(b.second.id);
  }
  for (uint64_t b : g->blocks)
    if (!alive.count(b)) fail(NS_ERROR_ARGUMENT, "the graph uses memory that was freed after it was recorded");
  g->checked_frees = frees;
}

/// Brings the times of every queue into the context's table.
void harvest_all(ns_context *c) {
  c->wait_queues();
  std::lock_guard lock(c->queues_mutex);
  for (ns_queue *q : c->queues)
    if (q->profiling) q->harvest();
}

} // namespace

} // namespace ns

using namespace ns;

extern "C" {

ns_status ns_graph_begin(ns_queue *q) {
  return guarded("recording a graph", [&] {
    if (!q) fail(NS_ERROR_ARGUMENT, "ns_graph_begin: null queue");
    if (q->recording) fail(NS_ERROR_ARGUMENT, "a graph is already being recorded on this queue");
    q->wait(); // nothing staged may be reused by a replay
    q->is_recording = true;
    try {
      begin(q);
    } catch (...) {
      q->recording.reset();
      q->is_recording = false;
      throw;
    }
  });
}

ns_status ns_graph_end(ns_queue *q, ns_graph **out) {
  return guarded("finishing a graph", [&] {
    if (!q || !out) fail(NS_ERROR_ARGUMENT, "ns_graph_end: a null argument");
    if (!q->recording) fail(NS_ERROR_ARGUMENT, "ns_graph_end: no graph is being recorded on this queue");
    Recording r = std::move(*q->recording);
    q->recording.reset();
    try {
      auto g = std::make_unique<ns_graph>();
      if (r.graph) {
        r.graph->end_recording(q->queue);
        q->is_recording = false;
        g->graph.emplace(r.graph->finalize());
      }
      q->is_recording = false;
      g->form = r.native ? "native" : r.graph ? "sycl" : "replayed";
      g->commands = std::move(r.commands);
      g->blocks.assign(r.blocks.begin(), r.blocks.end());
      g->size = r.size;
      g->context = q->context;
      g->checked_frees = ~uint64_t(0);
      check_alive(g.get());
      g->kernels = std::move(r.kernels);
      q->context->references++;
      *out = g.release();
    } catch (...) {
      release_kernels(r.kernels);
      throw;
    }
  });
}

ns_status ns_graph_cancel(ns_queue *q) {
  return guarded("dropping a graph", [&] {
    if (!q || !q->recording) return;
    Recording r = std::move(*q->recording);
    q->recording.reset();
    release_kernels(r.kernels);
    if (r.graph) r.graph->end_recording(q->queue);
    q->is_recording = false;
  });
}

ns_status ns_graph_replay(ns_queue *q, ns_graph *g) {
  return guarded("replaying a graph", [&] {
    if (!q || !g) fail(NS_ERROR_ARGUMENT, "ns_graph_replay: a null argument");
    if (q->context != g->context) fail(NS_ERROR_ARGUMENT, "the graph was recorded for another device or context");
    if (q->recording) fail(NS_ERROR_ARGUMENT, "a graph cannot be replayed into another that is being recorded");
    check_alive(g);
    if (g->graph) {
      q->queue.ext_oneapi_graph(*g->graph);
      return;
    }
    for (Command &c : g->commands) {
      sycl::event e = c.run(q->queue);
      if (q->profiling) q->time(c.name, c.charge, std::move(e));
    }
  });
}

size_t ns_graph_size(ns_graph *g) { return g ? g->size : 0; }
const char *ns_graph_form(ns_graph *g) { return g ? g->form : ""; }

void ns_graph_release(ns_graph *g) {
  if (!g) return;
  ns_context *c = g->context;
  guarded("releasing a graph", [&] {
    c->wait_queues(); // a replay may still be running
    release_kernels(g->kernels);
    delete g;
  });
  ns_context_release(c);
}

ns_status ns_profile_enable(ns_context *c, int on) {
  return guarded("ns_profile_enable", [&] {
    if (!c) fail(NS_ERROR_ARGUMENT, "ns_profile_enable: null context");
    c->profiling = on != 0;
  });
}

ns_status ns_profile_read(ns_context *c, ns_profile_entry *entries, size_t capacity, size_t *count) {
  return guarded("reading the profile", [&] {
    if (!c || !count || (capacity && !entries)) fail(NS_ERROR_ARGUMENT, "ns_profile_read: a null argument");
    harvest_all(c);
    std::lock_guard lock(c->timings_mutex);
    std::vector<std::pair<std::pair<std::string, std::string>, Timing>> all(c->timings.begin(), c->timings.end());
    std::stable_sort(all.begin(), all.end(), [](auto &a, auto &b) { return a.second.nanoseconds > b.second.nanoseconds; });
    *count = all.size();
    for (size_t i = 0; i < all.size() && i < capacity; i++) {
      entries[i] = {};
      const auto &[section, name] = all[i].first;
      std::memcpy(entries[i].section, section.data(), std::min(section.size(), sizeof entries[i].section - 1));
      std::memcpy(entries[i].name, name.data(), std::min(name.size(), sizeof entries[i].name - 1));
      entries[i].count = all[i].second.count;
      entries[i].nanoseconds = all[i].second.nanoseconds;
      entries[i].bytes = all[i].second.bytes;
      entries[i].operations = all[i].second.operations;
    }
  });
}

ns_status ns_profile_reset(ns_context *c) {
  return guarded("resetting the profile", [&] {
    if (!c) fail(NS_ERROR_ARGUMENT, "ns_profile_reset: null context");
    harvest_all(c);
    std::lock_guard lock(c->timings_mutex);
    c->timings.clear();
  });
}

int ns_queue_profiled(ns_queue *q) { return q && q->profiling; }

ns_status ns_queue_section(ns_queue *q, const char *section) {
  return guarded("ns_queue_section", [&] {
    if (!q || !section) fail(NS_ERROR_ARGUMENT, "ns_queue_section: a null argument");
    if (q->profiling) q->charge.section = section;
  });
}

ns_status ns_queue_cost(ns_queue *q, uint64_t bytes, uint64_t operations) {
  return guarded("ns_queue_cost", [&] {
    if (!q) fail(NS_ERROR_ARGUMENT, "ns_queue_cost: null queue");
    if (!q->profiling || q->charge.stated) return;
    q->charge.bytes = bytes;
    q->charge.operations = operations;
    q->charge.stated = true;
  });
}

} // extern "C"
