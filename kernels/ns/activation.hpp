// Activation rows: a row of float32 with what the matrix products need beside it. Plain C++ apart from the finishing function.
//
//   f32 x[32 nb] (zero beyond cols) | f32 xs[nb] = sum of x in each block of 32
//   cpu variant only:  | f32 xh[2 nb] = sum of x in each half of a block
//   gpu variant only:  | f32 d[nb] | f32 s[nb] | f32 sh[2 nb] | i8 hi[32 nb] | i8 lo[32 nb]
//
// with nb = ceil(cols / 32). The gpu planes are x in 16 bits for int8 dot products: d = max|x| / 32512 of the block, q = rint(x / d),
// hi = (q + 128) >> 8, lo = q - 256 hi, so x = d (256 hi + lo) to within d / 2; s = d * sum(q), sh the same of
// each half of a block. Rows start on 64-byte boundaries.
#pragma once

namespace ns {
constexpr long act_blocks(long cols) { return (cols + 31) / 32; }
constexpr long act_xs(long cols) { return act_blocks(cols) * 128; }
constexpr long act_xh(long cols) { return act_blocks(cols) * 132; }
constexpr long act_d(long cols) { return act_blocks(cols) * 132; }
constexpr long act_s(long cols) { return act_blocks(cols) * 136; }
constexpr long act_sh(long cols) { return act_blocks(cols) * 140; }
// The int8 planes start on a 16-byte boundary: products read them 16 bytes at a time.
constexpr long act_hi(long cols) { return (act_blocks(cols) * 148 + 15) / 16 * 16; }
constexpr long act_lo(long cols) { return act_hi(cols) + act_blocks(cols) * 32; }
constexpr long act_stride_cpu(long cols) { return (act_blocks(cols) * 140 + 63) / 64 * 64; }
constexpr long act_stride_gpu(long cols) { return (act_lo(cols) + act_blocks(cols) * 32 + 63) / 64 * 64; }
} // namespace ns

#ifdef SYCL_LANGUAGE_VERSION
#include "kernel.hpp"

namespace ns {
// Sums of the two halves of a block whose values the lanes have in steps of the sub-group.
template <class T> NS_INLINE void half_sums(const T (&v)[32 / NS_SG], sycl::sub_group sg, T &first, T &second) {
  if constexpr (NS_SG == 16) {
    first = sycl::reduce_over_group(sg, v[0], sycl::plus<T>());
    second = sycl::reduce_over_group(sg, v[32 / NS_SG - 1], sycl::plus<T>());
  } else {
    const bool upper = sg.get_local_linear_id() >= 16;
    first = sycl::reduce_over_group(sg, upper ? (T)0 : v[0], sycl::plus<T>());
    second = sycl::reduce_over_group(sg, upper ? v[0] : (T)0, sycl::plus<T>());
  }
}

// Fills in everything behind x for the blocks first, first + step, ...: one block by one sub-group, NS_SG lanes of 32 values.
// `value(i)` gives x[i] for i < cols; x itself is written too.
template <class F> NS_INLINE void finish_act_blocks(u8 *row, i32 cols, i32 first, i32 step, sycl::sub_group sg, F value) {
  static_assert(NS_SG == 16 || NS_SG == 32, "a block of 32 values is one or two steps of a sub-group");
  const i32 lane = sg.get_local_linear_id();
  const i32 nb = act_blocks(cols);
  f32 *x = (f32 *)row;
  for (i32 b = first; b < nb; b += step) {
    f32 v[32 / NS_SG], first_half, second_half;
    [[maybe_unused]] f32 peak = 0;
#pragma unroll
    for (i32 k = 0; k < 32 / NS_SG; k++) {
      const i32 i = b * 32 + k * NS_SG + lane;
      v[k] = i < cols ? value(i) : 0.0f;
      x[b * 32 + k * NS_SG + lane] = v[k];
      peak = sycl::fmax(peak, sycl::fabs(v[k]));
    }
    half_sums(v, sg, first_half, second_half);
    if (lane == 0) ((f32 *)(row + act_xs(cols)))[b] = first_half + second_half;
#ifdef NS_CPU
    if (lane < 2) ((f32 *)(row + act_xh(cols)))[2 * b + lane] = lane ? second_half : first_half;
#endif
#ifdef NS_GPU
    peak = sycl::reduce_over_group(sg, peak, sycl::maximum<f32>());
    const f32 d = peak / 32512.0f, inverse = peak > 0 ? 32512.0f / peak : 0.0f;
    i32 of_lane[32 / NS_SG], low_sum, high_sum;
#pragma unroll
    for (i32 k = 0; k < 32 / NS_SG; k++) {
      const i32 i = b * 32 + k * NS_SG + lane;
      i32 q = (i32)sycl::rint(v[k] * inverse);
      q = q > 32512 ? 32512 : q < -32512 ? -32512 : q;
      const i32 hi = (q + 128) >> 8;
      ((i8 *)(row + act_hi(cols)))[i] = (i8)hi;
      ((i8 *)(row + act_lo(cols)))[i] = (i8)(q - 256 * hi);
      of_lane[k] = q;
    }
    half_sums(of_lane, sg, low_sum, high_sum);
    if (lane < 2) ((f32 *)(row + act_sh(cols)))[2 * b + lane] = d * (f32)(lane ? high_sum : low_sum);
    if (lane == 0) {
      ((f32 *)(row + act_d(cols)))[b] = d;
      ((f32 *)(row + act_s(cols)))[b] = d * (f32)(low_sum + high_sum);
    }
#endif
  }
}
} // namespace ns
#endif
