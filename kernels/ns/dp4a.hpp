// int8 dot products of 16 bytes and the planes of an activation row, for the gpu layout.
#pragma once
#include "activation.hpp"
#include "block.hpp"

#ifdef NS_GPU
namespace ns {
typedef char char4 __attribute__((ext_vector_type(4)));

// c + sum of four int8 products: this form becomes one dp4a.
NS_INLINE i32 dp4a(u32 a, u32 b, i32 c) {
  const char4 x = __builtin_bit_cast(char4, a), y = __builtin_bit_cast(char4, b);
  return c + (i32)x[0] * y[0] + (i32)x[1] * y[1] + (i32)x[2] * y[2] + (i32)x[3] * y[3];
}
NS_INLINE i32 dot16(sycl::uint4 a, sycl::uint4 b) {
  i32 c = dp4a(a.x(), b.x(), 0);
  c = dp4a(a.y(), b.y(), c);
  c = dp4a(a.z(), b.z(), c);
  return dp4a(a.w(), b.w(), c);
}
NS_INLINE sycl::uint4 load16(const u8 *p) { return *(const sycl::uint4 *)p; }

// One activation row's planes.
struct ActRow {
  const u8 *hi, *lo;
  const f32 *d, *s, *sh;
  ActRow(const u8 *act, i32 cols)
      : hi(act + act_hi(cols)), lo(act + act_lo(cols)), d((const f32 *)(act + act_d(cols))), s((const f32 *)(act + act_s(cols))),
        sh((const f32 *)(act + act_sh(cols))) {}
  // sum over 16 values from column `i` of w q, times the block's scale.
  f32 dot(sycl::uint4 w, i32 i) const {
    return d[i / 32] * (f32)(256 * dot16(w, load16(hi + i)) + dot16(w, load16(lo + i)));
  }
  // The same over a block of 32: low nibbles for the first 16 values, high ones for the others.
  f32 dot32(sycl::uint4 low, sycl::uint4 high, i32 block) const {
    const i32 i = block * 32;
    const i32 h = dot16(low, load16(hi + i)) + dot16(high, load16(hi + i + 16));
    const i32 l = dot16(low, load16(lo + i)) + dot16(high, load16(lo + i + 16));
    return d[block] * (f32)(256 * h + l);
  }
};

} // namespace ns
#endif
