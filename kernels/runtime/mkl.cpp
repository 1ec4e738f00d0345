// libns_mkl: oneMKL's matrix products on a queue of libns_sycl.
// SPDX-License-Identifier: MIT
#define MKL_ILP64
#include "side.hpp"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#include <oneapi/mkl/blas.hpp>
#pragma GCC diagnostic pop

namespace {

using oneapi::mkl::transpose;
namespace blas = oneapi::mkl::blas::row_major;

/// Shape and place of one product or of a batch of them.
struct Product {
  int64_t m, n, k, ldx, ldw, ldy, batch = 1, stride_x = 0, stride_w = 0, stride_y = 0;
};

template <class In, class Out> ns_status product(const char *name, ns_queue *queue, const Product &p, const void *x, const void *w, void *y, float beta) {
  try {
    auto a = static_cast<const In *>(x), b = static_cast<const In *>(w);
    auto c = static_cast<Out *>(y);
    std::function<sycl::event(sycl::queue &)> run;
    if (p.batch == 1)
      run = [=](sycl::queue &q) { return blas::gemm(q, transpose::nontrans, transpose::trans, p.m, p.n, p.k, 1.0f, a, p.ldx, b, p.ldw, beta, c, p.ldy); };
    else
      run = [=](sycl::queue &q) {
        return blas::gemm_batch(q, transpose::nontrans, transpose::trans, p.m, p.n, p.k, 1.0f, a, p.ldx, p.stride_x, b, p.ldw, p.stride_w, beta, c, p.ldy, p.stride_y, p.batch);
      };
    const ns::Operand operands[3] = {{x, p.m, p.k, p.ldx, p.stride_x, sizeof(In)}, {w, p.n, p.k, p.ldw, p.stride_w, sizeof(In)}, {y, p.m, p.n, p.ldy, p.stride_y, sizeof(Out)}};
    return ns::submit_product(name, queue, operands, p.batch, run);
  } catch (const std::exception &e) {
    return ns_side_fail(NS_ERROR, e.what());
  }
}

} // namespace

extern "C" {

ns_status ns_mkl_gemm_f32(ns_queue *q, int64_t m, int64_t n, int64_t k, const float *x, int64_t ldx, const float *w, int64_t ldw, float *y, int64_t ldy, float beta) {
  return product<float, float>("(mkl gemm f32)", q, {m, n, k, ldx, ldw, ldy}, x, w, y, beta);
}
ns_status ns_mkl_gemm_f16_f32(ns_queue *q, int64_t m, int64_t n, int64_t k, const void *x, int64_t ldx, const void *w, int64_t ldw, float *y, int64_t ldy, float beta) {
  return product<sycl::half, float>("(mkl gemm f16 to f32)", q, {m, n, k, ldx, ldw, ldy}, x, w, y, beta);
}
ns_status ns_mkl_gemm_f16(ns_queue *q, int64_t m, int64_t n, int64_t k, const void *x, int64_t ldx, const void *w, int64_t ldw, void *y, int64_t ldy, float beta) {
  return product<sycl::half, sycl::half>("(mkl gemm f16)", q, {m, n, k, ldx, ldw, ldy}, x, w, y, beta);
}
ns_status ns_mkl_gemm_batch_f32(ns_queue *q, int64_t m, int64_t n, int64_t k, const float *x, int64_t ldx, int64_t sx, const float *w, int64_t ldw, int64_t sw, float *y, int64_t ldy, int64_t sy, int64_t batch,
                                float beta) {
  return product<float, float>("(mkl gemm batch f32)", q, {m, n, k, ldx, ldw, ldy, batch, sx, sw, sy}, x, w, y, beta);
}
ns_status ns_mkl_gemm_batch_f16_f32(ns_queue *q, int64_t m, int64_t n, int64_t k, const void *x, int64_t ldx, int64_t sx, const void *w, int64_t ldw, int64_t sw, float *y, int64_t ldy, int64_t sy, int64_t batch,
                                    float beta) {
  return product<sycl::half, float>("(mkl gemm batch f16 to f32)", q, {m, n, k, ldx, ldw, ldy, batch, sx, sw, sy}, x, w, y, beta);
}

} // extern "C"
