// libns_dnn: oneDNN's matrix product on a queue of libns_sycl. One implementation is built per shape and kept.
// SPDX-License-Identifier: MIT
#include "side.hpp"

#include <dnnl.hpp>
#include <dnnl_sycl.hpp>

#include <map>
#include <memory>
#include <mutex>
#include <tuple>

namespace {

using dnnl::memory;

/// Everything that makes one implementation.
using Shape = std::tuple<int, int, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, float>; // x/w type, y type, m, n, k, ldx, ldw, ldy, beta

struct Built {
  memory::desc x, w, y;
  dnnl::matmul run;
};

/// Per device: the engine and what was built on it.
struct Engine {
  dnnl::engine engine;
  std::map<Shape, std::shared_ptr<const Built>> built;
};

constexpr size_t most_built = 512;

struct Engines {
  std::mutex mutex;
  std::map<ns_context *, Engine> all;
};
/// Never destroyed: the driver may be gone when the program's statics go. ns_dnn_forget empties it.
Engines &engines() {
  static Engines *e = new Engines;
  return *e;
}

memory::data_type type_of(ns_type t) {
  switch (t) {
  case NS_F32: return memory::data_type::f32;
  case NS_F16: return memory::data_type::f16;
  case NS_BF16: return memory::data_type::bf16;
  case NS_S8: return memory::data_type::s8;
  case NS_S32: return memory::data_type::s32;
  }
  throw std::invalid_argument("ns_dnn_matmul: unknown element type " + std::to_string(t));
}

std::shared_ptr<const Built> build(dnnl::engine &engine, const Shape &s, memory::data_type in, memory::data_type out) {
  auto &[in_code, out_code, m, n, k, ldx, ldw, ldy, beta] = s;
  auto b = std::make_shared<Built>();
  b->x = memory::desc({m, k}, in, memory::dims{ldx, 1});
  b->w = memory::desc({k, n}, in, memory::dims{1, ldw});
  b->y = memory::desc({m, n}, out, memory::dims{ldy, 1});
  dnnl::primitive_attr attributes;
  if (beta != 0) {
    dnnl::post_ops ops;
    ops.append_sum(beta);
    attributes.set_post_ops(ops);
  }
  b->run = dnnl::matmul(dnnl::matmul::primitive_desc(engine, b->x, b->w, b->y, attributes));
  return b;
}

} // namespace

extern "C" {

ns_status ns_dnn_matmul(ns_queue *queue, ns_type in, ns_type out, int64_t m, int64_t n, int64_t k, const void *x, int64_t ldx, const void *w, int64_t ldw, void *y, int64_t ldy, float beta) {
  try {
    if (!queue) return ns_side_fail(NS_ERROR_ARGUMENT, "ns_dnn_matmul: null queue");
    auto in_type = type_of(in), out_type = type_of(out);
    auto in_bytes = static_cast<int64_t>(memory::data_type_size(in_type)), out_bytes = static_cast<int64_t>(memory::data_type_size(out_type));
    const ns::Operand operands[3] = {{x, m, k, ldx, 0, in_bytes}, {w, n, k, ldw, 0, in_bytes}, {y, m, n, ldy, 0, out_bytes}};
    for (auto &o : operands)
      if (ns::operand_bytes(o, 1) < 0) return ns::submit_product("(dnn matmul)", queue, operands, 1, {}); // words the error
    auto &sycl_queue = *static_cast<sycl::queue *>(ns_queue_sycl(queue));
    dnnl::engine engine;
    std::shared_ptr<const Built> built;
    {
      Engines &e = engines();
      std::lock_guard lock(e.mutex);
      auto at = e.all.find(ns_queue_context(queue));
      if (at == e.all.end()) at = e.all.emplace(ns_queue_context(queue), Engine{dnnl::sycl_interop::make_engine(sycl_queue.get_device(), sycl_queue.get_context()), {}}).first;
      engine = at->second.engine;
      if (at->second.built.size() >= most_built) {
        ns_context_wait(ns_queue_context(queue)); // some may be running
        at->second.built.clear();
      }
      Shape shape(in, out, m, n, k, ldx, ldw, ldy, beta);
      auto &slot = at->second.built[shape];
      if (!slot) {
        try {
          slot = build(engine, shape, in_type, out_type);
        } catch (const dnnl::error &error) {
          at->second.built.erase(shape);
          if (error.status != dnnl_unimplemented) throw;
          std::string text = "oneDNN has no matrix product of these element types on " + sycl_queue.get_device().get_info<sycl::info::device::name>();
          return ns_side_fail(NS_ERROR_UNSUPPORTED, text.c_str());
        }
      }
      built = slot;
    }
    auto run = [=](sycl::queue &q) {
      using dnnl::sycl_interop::make_memory;
      constexpr auto usm = dnnl::sycl_interop::memory_kind::usm;
      auto stream = dnnl::sycl_interop::make_stream(engine, q);
      return dnnl::sycl_interop::execute(built->run, stream,
                                         {{DNNL_ARG_SRC, make_memory(built->x, engine, usm, const_cast<void *>(x))},
                                          {DNNL_ARG_WEIGHTS, make_memory(built->w, engine, usm, const_cast<void *>(w))},
                                          {DNNL_ARG_DST, make_memory(built->y, engine, usm, y)}});
    };
    return ns::submit_product("(dnn matmul)", queue, operands, 1, run);
  } catch (const std::exception &e) {
    return ns_side_fail(NS_ERROR, e.what());
  }
}

void ns_dnn_forget(ns_context *context) {
  try {
    Engines &e = engines();
    std::lock_guard lock(e.mutex);
    if (!e.all.count(context)) return;
    ns_context_wait(context);
    e.all.erase(context);
  } catch (...) {
    // what is left is forgotten with the program
  }
}

} // extern "C"
