// Products of many activation rows with a matrix: y[m][n] (+)= sum_k x[m][k] w[n][k], x and y row-major, sums in float32 in ascending k.
//
// The result of a row does not depend on the number of rows or on the launch: every element is a chain of fused multiply-adds over k,
// of PRODUCT_CHAIN columns at a time (cpu) or all (gpu). A chain starts at zero and is added to what is there at its end: were it to start
// from a residual stream, every step would be rounded at that magnitude.
//
// A Source gives the weights. cpu: fill(panel, stride, n, k0, kc, lane) writes w[n + lane][k0..k0 + kc] to panel[(k - k0) * stride + lane];
// gpu: at(n, k) is one value, for n and k inside the matrix.
#pragma once
#include "matrix.hpp"

namespace ns {
#ifdef NS_CPU
// One work-group is one sub-group; a lane is a column of y (a row of the matrix). The group expands NG * 16 matrix rows by PRODUCT_K
// columns to float32 in local memory (a panel that stays in the second cache), and then takes activation rows MR at a time: MR * NG
// vectors of sums stay in registers. No barrier: a lane reads only what it wrote. With AVX-512 (32 registers of 16 floats) MR = 6, NG = 4
// is the best shape measured; with AVX2 (16 registers of 8) NG = 1, the _narrow kernels. Long panels touch y less often: 1024 columns
// are 3 % faster than 256, and their 256 KiB are the most local memory that the processor's driver gives.
template <i32 NG> constexpr i32 PRODUCT_K = NG == 1 ? 256 : 1024;
// Columns whose products are one chain of sums. Short chains are more exact; y stays in the first cache between those of a panel.
constexpr i32 PRODUCT_CHAIN = 128;

template <i32 MR, i32 NG, class X>
NS_INLINE void product_tile(const f32 *panel, const X *x, f32 *y, i32 kc, i32 ldx, i32 ldy, i32 left, i32 lane, bool more) {
  for (i32 begin = 0; begin < kc; begin += PRODUCT_CHAIN) {
    f32 acc[MR][NG];
#pragma unroll
    for (i32 m = 0; m < MR; m++)
#pragma unroll
      for (i32 g = 0; g < NG; g++) acc[m][g] = 0.0f;
    const i32 end = least(kc, begin + PRODUCT_CHAIN);
    for (i32 k = begin; k < end; k++) {
      f32 w[NG];
#pragma unroll
      for (i32 g = 0; g < NG; g++) w[g] = panel[(k * NG + g) * 16 + lane];
#pragma unroll
      for (i32 m = 0; m < MR; m++) {
        const f32 v = (f32)x[(i64)m * ldx + k];
#pragma unroll
        for (i32 g = 0; g < NG; g++) acc[m][g] = sycl::fma(w[g], v, acc[m][g]);
      }
    }
#pragma unroll
    for (i32 m = 0; m < MR; m++)
#pragma unroll
      for (i32 g = 0; g < NG; g++) {
        f32 *to = y + (i64)m * ldy + g * 16 + lane;
        if (g * 16 + lane < left) *to = more ? *to + acc[m][g] : acc[m][g];
      }
    more = true;
  }
}

// Work-groups: ceil(n / (16 NG)) times any number of parts that the rows of x are shared out to.
template <i32 NG, class Source, class X>
NS_INLINE void product(const Source &source, const X *x, f32 *y, i32 m, i32 n, i32 k, i32 ldx, i32 ldy, i32 add) {
  namespace sx = sycl::ext::oneapi::experimental;
  constexpr i32 MR = 6;
  sx::work_group_static<f32[PRODUCT_K<NG> * 16 * NG]> store;
  f32 *panel = &store[0];
  const Item it = item();
  const i32 lane = it.get_sub_group().get_local_linear_id();
  const i32 across = (n + 16 * NG - 1) / (16 * NG);
  const i32 group = it.get_group(0), parts = it.get_group_range(0) / across;
  const i32 share = ((m + parts - 1) / parts + MR - 1) / MR * MR;
  const i32 n0 = group % across * NG * 16, first = group / across * share;
  const i32 last = least(m, first + share);
  if (first >= last) return;
  y += n0;
  for (i32 k0 = 0; k0 < k; k0 += PRODUCT_K<NG>) {
    const i32 kc = least(PRODUCT_K<NG>, k - k0);
#pragma unroll
    for (i32 g = 0; g < NG; g++)
      if (n0 + g * 16 < n) source.fill(panel + g * 16, NG * 16, n0 + g * 16, k0, kc, lane);
    const bool more = add || k0 > 0;
    i32 r = first;
#define NS_ROWS(N) product_tile<N, NG>(panel, x + (i64)r * ldx + k0, y + (i64)r * ldy, kc, ldx, ldy, n - n0, lane, more), r += N
    while (r + MR <= last) NS_ROWS(MR);
    if (r + 4 <= last) NS_ROWS(4);
    if (r + 2 <= last) NS_ROWS(2);
    if (r < last) NS_ROWS(1);
#undef NS_ROWS
  }
}

// A packed matrix.
template <class F> struct PackedSource {
  const u8 *packed;
  i32 rows, cols;
  NS_INLINE void fill(f32 *panel, i32 stride, i32 n, i32 k0, i32 kc, i32 lane) const {
    constexpr i32 PARTS = F::BLOCK / F::PART;
    const u8 *w = packed + (i64)(n / 16) * blocks_of<F>(cols) * 16 * cpu_bytes<F>();
    const i32 first = k0 / F::PART, last = (k0 + kc + F::PART - 1) / F::PART; // PRODUCT_K holds whole parts
    for (i32 p = first; p < last; p++) {
      const CpuPart<F> part(w + (i64)(p / PARTS) * 16 * cpu_bytes<F>(), p % PARTS, lane);
      f32 *to = panel + (p - first) * F::PART * stride + lane;
      // value by value where all lanes read alike: the panel is then written from end to end, which is up to a fifth faster
      if constexpr (described<F>()) {
        part.each([&](i32 j, f32 q) __attribute__((always_inline)) { to[j * stride] = sycl::fma(part.d, q, part.o); });
      } else {
#pragma unroll
        for (i32 j = 0; j < F::PART; j++) {
          if constexpr (F::FLOAT) to[j * stride] = part.q(j);
          else to[j * stride] = sycl::fma(part.d, part.q(j), part.o);
        }
      }
    }
  }
};
// A row-major matrix.
template <class T> struct RowSource {
  const T *w;
  i32 rows, ld;
  NS_INLINE void fill(f32 *panel, i32 stride, i32 n, i32 k0, i32 kc, i32 lane) const {
    const bool inside = n + lane < rows;
    const T *from = w + (i64)(inside ? n + lane : n) * ld + k0;
    for (i32 k = 0; k < kc; k++) panel[k * stride + lane] = (f32)from[k];
  }
};
#else
// A work-group of 64 items (four sub-groups) makes a tile of PRODUCT_M rows by PRODUCT_N columns of y. For every PRODUCT_STEP columns of
// the matrix, the weights are expanded to local memory once, and the tile's part of x beside them; a sub-group has 8 rows of the tile, a lane
// 4 columns.
constexpr i32 PRODUCT_M = 32, PRODUCT_N = 64, PRODUCT_STEP = 32;

// Work-groups: ceil(n / PRODUCT_N) * ceil(m / PRODUCT_M), the columns running fastest.
template <class Source, class X>
NS_INLINE void product(const Source &source, const X *x, f32 *y, i32 m, i32 n, i32 k, i32 ldx, i32 ldy, i32 add) {
  namespace sx = sycl::ext::oneapi::experimental;
  constexpr i32 MR = 8, NR = PRODUCT_N / NS_SG;
  sx::work_group_static<f32[PRODUCT_STEP * PRODUCT_N]> ws;
  sx::work_group_static<f32[PRODUCT_STEP * PRODUCT_M]> xs;
  const Item it = item();
  const auto sg = it.get_sub_group();
  const i32 lane = sg.get_local_linear_id(), me = it.get_local_id(0), size = it.get_local_range(0);
  const i32 across = (n + PRODUCT_N - 1) / PRODUCT_N, group = it.get_group(0);
  const i32 n0 = group % across * PRODUCT_N, m0 = group / across * PRODUCT_M, r0 = sg.get_group_linear_id() * MR;
  f32 acc[MR][NR];
#pragma unroll
  for (i32 r = 0; r < MR; r++)
#pragma unroll
    for (i32 c = 0; c < NR; c++) acc[r][c] = 0.0f;
  for (i32 k0 = 0; k0 < k; k0 += PRODUCT_STEP) {
    for (i32 i = me; i < PRODUCT_STEP * PRODUCT_N; i += size) { // neighbours read neighbouring columns
      const i32 kk = i % PRODUCT_STEP, row = i / PRODUCT_STEP;
      ws[kk * PRODUCT_N + row] = n0 + row < n && k0 + kk < k ? source.at(n0 + row, k0 + kk) : 0.0f;
    }
    for (i32 i = me; i < PRODUCT_STEP * PRODUCT_M; i += size) {
      const i32 kk = i % PRODUCT_STEP, row = i / PRODUCT_STEP;
      xs[kk * PRODUCT_M + row] = m0 + row < m && k0 + kk < k ? (f32)x[(i64)(m0 + row) * ldx + k0 + kk] : 0.0f;
    }
    sycl::group_barrier(it.get_group());
    const i32 kc = least(PRODUCT_STEP, k - k0);
    for (i32 kk = 0; kk < kc; kk++) {
      f32 w[NR];
#pragma unroll
      for (i32 c = 0; c < NR; c++) w[c] = ws[kk * PRODUCT_N + c * NS_SG + lane];
#pragma unroll
      for (i32 r = 0; r < MR; r++) {
        const f32 v = xs[kk * PRODUCT_M + r0 + r];
#pragma unroll
        for (i32 c = 0; c < NR; c++) acc[r][c] = sycl::fma(w[c], v, acc[r][c]);
      }
    }
    sycl::group_barrier(it.get_group());
  }
#pragma unroll
  for (i32 r = 0; r < MR; r++)
#pragma unroll
    for (i32 c = 0; c < NR; c++) {
      const i32 row = m0 + r0 + r, col = n0 + c * NS_SG + lane;
      f32 *to = y + (i64)row * ldy + col;
      if (row < m && col < n) *to = add ? *to + acc[r][c] : acc[r][c];
    }
}

template <class F> struct PackedSource {
  const u8 *packed;
  i32 rows, cols;
  NS_INLINE f32 at(i32 n, i32 k) const { return element<F>(packed, rows, cols, n, k); }
};
template <class T> struct RowSource {
  const T *w;
  i32 rows, ld;
  NS_INLINE f32 at(i32 n, i32 k) const { return (f32)w[(i64)n * ld + k]; }
};
#endif
} // namespace ns
