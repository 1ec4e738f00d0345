// What the attention kernels share: the pieces of a decode row and how they are joined.
#pragma once
#include "activation.hpp"
#include "kernel.hpp"

namespace ns {
constexpr i32 SPLIT_KEYS = 256; // keys of one piece of a decode row

// Value d of a head from its `n` pieces of `width` = head_dim + 2 numbers, [sum_t e^(s_t - m) v_t (head_dim), m, sum_t e^(s_t - m)]:
// M = max m_i, sum_i e^(m_i - M) acc_i / sum_i e^(m_i - M) l_i.
NS_INLINE f32 join_pieces(const f32 *p, i32 d, i32 n, i32 width) {
  const i32 head_dim = width - 2;
  if (n == 1) return p[d] / p[head_dim + 1];
  f32 peak = -3.0e38f, sum = 0, total = 0;
  for (i32 s = 0; s < n; s++) peak = sycl::fmax(peak, p[(i64)s * width + head_dim]);
  for (i32 s = 0; s < n; s++) {
    const f32 *o = p + (i64)s * width;
    const f32 e = sycl::exp(o[head_dim] - peak);
    sum = sycl::fma(e, o[d], sum);
    total = sycl::fma(e, o[head_dim + 1], total);
  }
  return sum / total;
}

// Activation rows of n_heads heads side by side, value(h, d) for value d of head h: blocks first, first + step, ...
template <class F>
NS_INLINE void finish_act_heads(u8 *act, i32 n_heads, i32 head_dim, i32 first, i32 step, sycl::sub_group sg, F value) {
  const i32 cols = n_heads * head_dim, blocks = act_blocks(cols);
  if (head_dim % 32 != 0) {
    finish_act_blocks(act, cols, first, step, sg, [=](i32 i) { return value(i / head_dim, i % head_dim); });
    return;
  }
  // a block lies in one head, the same for all lanes
  for (i32 b = first; b < blocks; b += step) {
    const i32 h = b * 32 / head_dim, start = h * head_dim;
    finish_act_blocks(act, cols, b, blocks, sg, [=](i32 i) { return value(h, i - start); });
  }
}
} // namespace ns
