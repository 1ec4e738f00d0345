// The key-value cache: f16, f32, or eight bits (type i8).
//
// A head has blocks of 16 cells. Keys of a block are [head_dim][16 cells], so that a lane is a key; values [16 cells][head_dim], so that
// a lane is a value. With eight bits a block is its 16 head_dim whole numbers in that order, then the scales as halves, [head_dim / 32][16
// cells]: 17 head_dim bytes; value = scale * whole number.
#pragma once
#include "kernel.hpp"
#include <type_traits>

namespace ns {
constexpr i32 CELLS = 16;

// Where the head starts whose first value has the index `values` (a multiple of 16 head_dim).
template <class KV> NS_INLINE KV *kv_at(KV *cache, i64 values) {
  if constexpr (std::is_same_v<std::remove_const_t<KV>, i8>) return cache + values / CELLS * (CELLS + 1);
  else return cache + values;
}

// Stores one cell of a head: its head_dim values, each lane those with i % NS_SG = lane. `values` is local or global memory.
template <bool KEY, class KV> NS_INLINE void store_cell(KV *head, i32 cell, i32 head_dim, const f32 *values, sycl::sub_group sg) {
  const i32 lane = sg.get_local_linear_id(), within = cell % CELLS;
  KV *block = kv_at(head, (i64)(cell - within) * head_dim);
  if constexpr (std::is_same_v<KV, i8>) {
    static_assert(32 % NS_SG == 0);
    for (i32 g = 0; g < head_dim / 32; g++) {
      f32 v[32 / NS_SG], peak = 0;
      repeat<32 / NS_SG>([&](i32 k) {
        v[k] = values[g * 32 + k * NS_SG + lane];
        peak = sycl::fmax(peak, sycl::fabs(v[k]));
      });
      peak = sycl::reduce_over_group(sg, peak, sycl::maximum<f32>());
      const f16 scale = (f16)(peak / 127.0f);
      const f32 inverse = (f32)scale > 0 ? 1.0f / (f32)scale : 0.0f;
      repeat<32 / NS_SG>([&](i32 k) {
        const i32 i = g * 32 + k * NS_SG + lane;
        const f32 q = sycl::fmax(-127.0f, sycl::fmin(127.0f, sycl::rint(v[k] * inverse)));
        block[KEY ? i * CELLS + within : within * head_dim + i] = (i8)(i32)q;
      });
      if (lane == 0) ((f16 *)(block + CELLS * head_dim))[g * CELLS + within] = scale;
    }
  } else {
    for (i32 i = lane; i < head_dim; i += NS_SG) block[KEY ? i * CELLS + within : within * head_dim + i] = (KV)values[i];
  }
}
} // namespace ns
