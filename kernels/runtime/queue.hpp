// How commands other than launches reach a queue, recorded or not.
// SPDX-License-Identifier: MIT
#pragma once
#include "internal.hpp"

/// The context of a caller's own queue (memory.cpp).
ns_context *ns_share_foreign_context(const sycl::queue &q);

namespace ns {

/// Notes what a recorded command uses, so that the graph can refuse to run once it is gone.
inline void note(ns_queue *q, const std::set<uint64_t> &blocks, ns_kernel *kernel) {
  Recording &r = *q->recording;
  r.size++;
  for (uint64_t b : blocks)
    if (b) r.blocks.insert(b);
  if (kernel && std::find(r.kernels.begin(), r.kernels.end(), kernel) == r.kernels.end()) {
    kernel->references++;
    r.kernels.push_back(kernel);
  }
}

/// Gives a command to the queue, or to the graph being recorded on it.
template <class Run> void submit(ns_queue *q, const char *name, const std::set<uint64_t> &blocks, ns_kernel *kernel, Run run) {
  if (!q->recording) {
    sycl::event e = run(q->queue);
    if (q->profiling) q->time(name, q->take_charge(), std::move(e));
    return;
  }
  if (q->recording->graph) run(q->queue);
  else q->recording->commands.push_back({name, run, q->take_charge()});
  note(q, blocks, kernel);
}

} // namespace ns
