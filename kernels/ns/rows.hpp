// The row table of a pass and the rotation of a position.
#pragma once
#include "kernel.hpp"

namespace ns {
// One row of a pass; the host writes it as 32 bytes, little-endian.
struct RowState {
  i32 token;
  i32 position;   // cell of the row's session that it is stored in; it sees cells 0..position
  i64 kv_offset;  // elements from the cache's start to the session's first cell, within a layer's key or value head
  i32 active;     // 0: results are not used
  i32 draw_stream;
  u32 seed_lo, seed_hi;
};
static_assert(sizeof(RowState) == 32);

struct Turn {
  f32 cosine, sine;
};

// cos and sin of position * inv_freq, 0 <= position < 2^24. The product in float32 alone would lose the low bits of large angles;
// here the angle is reduced exactly: p = hi + lo is the product as an unevaluated sum, k the nearest multiple of pi/2, which is
// subtracted in four parts of pi/2 (each but the last with at most 24 - 17 significant bits to spare, so k * part is exact).
NS_INLINE Turn turn(i32 position, f32 inv_freq) {
  const f32 p = (f32)position;
  const f32 hi = p * inv_freq, lo = sycl::fma(p, inv_freq, -hi);
  const f32 k = sycl::rint(hi * 0.636619772f);
  // pi/2 = 0x1.921p0 + 0x1.6a8p-16 (approx.): parts chosen so that products with k < 2^24 lose nothing that matters through fma
  f32 r = sycl::fma(-k, 1.57079637e+00f, hi);
  r = sycl::fma(-k, -4.37113883e-08f, r);
  r = sycl::fma(-k, -1.71512451e-15f, r);
  r += lo;
  const f32 s = sycl::sin(r), c = sycl::cos(r);
  const i32 quadrant = (i32)k & 3;
  Turn t;
  t.cosine = quadrant == 0 ? c : quadrant == 1 ? -s : quadrant == 2 ? -c : s;
  t.sine = quadrant == 0 ? s : quadrant == 1 ? c : quadrant == 2 ? -s : -c;
  return t;
}
} // namespace ns
