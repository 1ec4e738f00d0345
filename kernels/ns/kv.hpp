// The key-value cache: f16, f32, or eight bits (type i8).
//
// A head has blocks of 16 cells. Keys of a block are [head_dim][16 cells], so that a lane is a key; values [16 cells][head_dim], so that
// a lane is a value. With eight bits a block is 16 head_dim whole numbers, keys [head_dim / 4][16 cells][4] and values [4][head_dim][4
// cells], so that a lane reads four at once; then the scales as halves, [head_dim / 32][16 cells]: 17 head_dim bytes in all. A value is
// scale * whole number.
#pragma once
#include "kernel.hpp"
#include "lanes.hpp"
#include <type_traits>

namespace ns {
constexpr i32 CELLS = 16;

// Where the head starts whose first value has the index `values` (a multiple of 16 head_dim).
template <class KV> NS_INLINE KV *kv_at(KV *cache, i64 values) {
  if constexpr (std::is_same_v<std::remove_const_t<KV>, i8>) return cache + values / CELLS * (CELLS + 1);
  else return cache + values;
}

// Places within a block of eight-bit values: of value d of a cell's key, and of its value.
NS_INLINE i32 key_place(i32 d, i32 cell) { return d / 4 * (4 * CELLS) + cell * 4 + d % 4; }
NS_INLINE i32 value_place(i32 d, i32 cell, i32 head_dim) { return cell / 4 * (4 * head_dim) + d * 4 + cell % 4; }
// One of the four.
NS_INLINE f32 byte_of(i32 four, i32 which) { return (f32)(four << (24 - 8 * which) >> 24); }

// Scales of a block of eight-bit values: [head_dim / 32][16 cells].
NS_INLINE const f16 *scales_of(const i8 *block, i32 head_dim) { return (const f16 *)(block + CELLS * head_dim); }

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
        block[KEY ? key_place(i, within) : value_place(i, within, head_dim)] = (i8)(i32)q;
      });
      if (lane == 0) ((f16 *)(block + CELLS * head_dim))[g * CELLS + within] = scale;
    }
  } else {
    NS_EACH_LANE(i, 0, NS_SG, head_dim, lane, { block[KEY ? i * CELLS + within : within * head_dim + i] = (KV)values[i]; });
  }
}
} // namespace ns
