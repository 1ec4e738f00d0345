// How the optional libraries (libns_mkl, libns_dnn) put their work on a queue of libns_sycl. All three come from one build with one compiler, so C++ types may cross.
// SPDX-License-Identifier: MIT
#pragma once
#include "ns.h"

#include <functional>
#include <string>

#include <sycl/sycl.hpp>

extern "C" {
/// Gives `run` to the queue as one command: started now, recorded, or timed, as the queue is. `operands` are checked and noted for a graph.
NS_API ns_status ns_side_submit(ns_queue *queue, const char *name, const void *const *operands, const uint64_t *bytes, size_t count, const std::function<sycl::event(sycl::queue &)> *run);
/// Keeps a text for ns_last_error, returns the code.
NS_API ns_status ns_side_fail(ns_status code, const char *text);
}

namespace ns {

struct Operand {
  const void *data;
  int64_t rows, cols, ld, stride; // stride: elements to the same operand of the next product
  int64_t element;
};

/// Bytes from the first to the last element of an operand of `batch` products; -1 when the shape is wrong.
inline int64_t operand_bytes(const Operand &o, int64_t batch) {
  if (o.rows <= 0 || o.cols <= 0 || o.ld < o.cols || o.stride < 0 || batch <= 0) return -1;
  int64_t a, b, n;
  if (__builtin_mul_overflow(o.rows - 1, o.ld, &a) || __builtin_mul_overflow(batch - 1, o.stride, &b) || __builtin_add_overflow(a, b, &n) || __builtin_add_overflow(n, o.cols, &n) ||
      __builtin_mul_overflow(n, o.element, &n))
    return -1;
  return n;
}

/// Checks the three operands of a product and submits it. `product` is named in errors.
inline ns_status submit_product(const char *product, ns_queue *queue, const Operand (&operands)[3], int64_t batch, const std::function<sycl::event(sycl::queue &)> &run) {
  const void *data[3];
  uint64_t bytes[3];
  for (int i = 0; i < 3; i++) {
    int64_t n = operand_bytes(operands[i], batch);
    if (n < 0) {
      try {
        std::string text = std::string(product) + ": operand " + "xwy"[i] + " cannot have " + std::to_string(operands[i].rows) + " rows of " + std::to_string(operands[i].cols) + " with leading dimension " + std::to_string(operands[i].ld);
        return ns_side_fail(NS_ERROR_ARGUMENT, text.c_str());
      } catch (...) {
        return ns_side_fail(NS_ERROR_ARGUMENT, "an operand of a product has a wrong shape");
      }
    }
    data[i] = operands[i].data;
    bytes[i] = static_cast<uint64_t>(n);
  }
  return ns_side_submit(queue, product, data, bytes, 3, &run);
}

} // namespace ns
