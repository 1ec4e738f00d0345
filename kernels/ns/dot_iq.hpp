// Products of the IQ formats' rows with activation rows, for the gpu layout: `table` are the format's levels in local memory.
#pragma once
#include "dp4a.hpp"
#include "matrix.hpp"

#ifdef NS_GPU
namespace ns {
// What a lane has of a block: its quarter c of four, 64 values in pieces k of 16, as levels (bytes) and scales. `at(k)` is where field k
// of the block is.
template <class F> struct GpuLane;

// Adds the lane's share of a row's products with M activation rows.
template <class F> struct GpuDot {
  template <i32 M>
  static NS_INLINE void run(const u8 *packed, const u8 *act, f32 (&sum)[M], i64 row, i64 rows, i32 nb, i32 cols, i32 act_stride, i32 lane,
                            const u32 *table) {
    if constexpr (M == 6 && (std::is_same_v<F, FormatIQ2_XS> || std::is_same_v<F, FormatIQ3_XXS>)) {
      f32 first[3] = {}, last[3] = {}; // six rows take one register more than an Alchemist card has: the weights are read twice
      run<3>(packed, act, first, row, rows, nb, cols, act_stride, lane, table);
      run<3>(packed, act + 3 * (i64)act_stride, last, row, rows, nb, cols, act_stride, lane, table);
      repeat<6>([&](i32 m) __attribute__((always_inline)) { sum[m] += m < 3 ? first[m] : last[m - 3]; });
      return;
    }
    const i32 c = lane & 3;
    for (i32 block = lane >> 2; block < nb; block += NS_SG / 4) {
      const GpuLane<F> own(
          [=](i32 k) __attribute__((always_inline)) {
            return packed + GpuPlanes<F>::start(k, rows, cols) + (row * nb + block) * F::FIELDS.f[k].bytes;
          },
          c);
      repeat<4>([&](i32 k) __attribute__((always_inline)) {
        const sycl::uint4 w = own.bytes(k, table);
        const f32 a = own.scale(k);
#pragma unroll
        for (i32 m = 0; m < M; m++)
          sum[m] = sycl::fma(a, ActRow(act + (i64)m * act_stride, cols).dot(w, block * 256 + 64 * c + 16 * k), sum[m]);
      });
    }
  }
};
// The levels of four values with the signs of four bits. No level is 0, so that no byte carries.
NS_INLINE u32 signed_bytes(u32 levels, u32 signs) {
  const u32 s = (signs & 1) | (signs & 2) << 7 | (signs & 4) << 14 | (signs & 8) << 21;
  return (levels ^ ((s << 8) - s)) + s;
}
NS_INLINE sycl::uint2 load8(const u8 *p) { return *(const sycl::uint2 *)p; }

// The levels of 16 bytes of nibbles.
NS_INLINE void iq4_bytes(sycl::uint4 v, const u32 *table, sycl::uint4 &low, sycl::uint4 &high) {
  repeat<4>([&](i32 k) __attribute__((always_inline)) {
    const u32 q = v[k];
    const u32 a = table[q & 255] | table[q >> 8 & 255] << 8, b = table[q >> 16 & 255] | table[q >> 24] << 8;
    low[k] = (a & 0xffff) | b << 16;
    high[k] = a >> 16 | (b & 0xffff0000);
  });
}

template <> struct GpuDot<FormatIQ4_NL> { // a lane has a block
  template <i32 M>
  static NS_INLINE void run(const u8 *packed, const u8 *act, f32 (&sum)[M], i64 row, i64 rows, i32 nb, i32 cols, i32 act_stride, i32 lane,
                            const u32 *table) {
    const f16 *d = (const f16 *)packed + row * nb;
    const u8 *q = packed + GpuPlanes<FormatIQ4_NL>::start(1, rows, cols) + row * nb * 16;
    for (i32 block = lane; block < nb; block += NS_SG) {
      sycl::uint4 low, high;
      iq4_bytes(load16(q + (i64)block * 16), table, low, high);
      const f32 a = (f32)d[block];
#pragma unroll
      for (i32 m = 0; m < M; m++) sum[m] = sycl::fma(a, ActRow(act + (i64)m * act_stride, cols).dot32(low, high, block), sum[m]);
    }
  }
};

template <> struct GpuDot<FormatIQ4_XS> { // eight lanes a block, each with 32 values
  template <i32 M>
  static NS_INLINE void run(const u8 *packed, const u8 *act, f32 (&sum)[M], i64 row, i64 rows, i32 nb, i32 cols, i32 act_stride, i32 lane,
                            const u32 *table) {
    const u8 *heads = packed + row * nb * 8, *q = packed + GpuPlanes<FormatIQ4_XS>::start(1, rows, cols) + row * nb * 128;
    const i32 c = lane & 7;
    for (i32 block = lane >> 3; block < nb; block += NS_SG / 8) {
      const sycl::uint2 head = load8(heads + (i64)block * 8);
      sycl::uint4 low, high;
      iq4_bytes(load16(q + (i64)block * 128 + 16 * c), table, low, high);
      const i32 scale = (i32)((head.y() >> 4 * c & 15) | (head.x() >> 16 >> 2 * c & 3) << 4) - 32;
      const f32 a = (f32)sycl::bit_cast<f16>((u16)head.x()) * (f32)scale;
#pragma unroll
      for (i32 m = 0; m < M; m++) sum[m] = sycl::fma(a, ActRow(act + (i64)m * act_stride, cols).dot32(low, high, block * 8 + c), sum[m]);
    }
  }
};

template <> struct GpuLane<FormatIQ3_S> {
  sycl::uint4 q;
  sycl::uint2 s;
  u32 h, sc;
  f32 d;
  template <class At> NS_INLINE GpuLane(At at, i32 c)
      : q(load16(at(1) + 16 * c)), s(load8(at(3) + 8 * c)), h(((const u16 *)at(2))[c]), sc(at(4)[c]), d(half_at(at(0))) {}
  NS_INLINE f32 scale(i32 k) const { return d * (f32)(1 + 2 * (i32)(sc >> 4 * (k / 2) & 15)); }
  NS_INLINE sycl::uint4 bytes(i32 k, const u32 *table) const {
    const u32 v = q[k], high = h >> 4 * k, signs = (k < 2 ? s.x() : s.y()) >> 16 * (k & 1);
    return {signed_bytes(table[(v & 255) | (high << 8 & 256)], signs), signed_bytes(table[(v >> 8 & 255) | (high << 7 & 256)], signs >> 4),
            signed_bytes(table[(v >> 16 & 255) | (high << 6 & 256)], signs >> 8), signed_bytes(table[v >> 24 | (high << 5 & 256)], signs >> 12)};
  }
};

template <> struct GpuLane<FormatIQ3_XXS> {
  sycl::uint4 q;
  sycl::uint2 s;
  f32 d;
  template <class At> NS_INLINE GpuLane(At at, i32 c) : q(load16(at(1) + 16 * c)), s(load8(at(2) + 8 * c)), d(half_at(at(0)) * 0.5f) {}
  NS_INLINE f32 scale(i32 k) const { return d * (0.5f + (f32)((k < 2 ? s.x() : s.y()) >> 28)); }
  NS_INLINE sycl::uint4 bytes(i32 k, const u32 *table) const {
    const u32 v = q[k], both = (k < 2 ? s.x() : s.y()) >> 14 * (k & 1), s0 = even_signs(both & 127), s1 = even_signs(both >> 7 & 127);
    return {signed_bytes(table[v & 255], s0), signed_bytes(table[v >> 8 & 255], s0 >> 4), signed_bytes(table[v >> 16 & 255], s1),
            signed_bytes(table[v >> 24], s1 >> 4)};
  }
};

// 16 levels: two rows of 8 with eight signs each.
NS_INLINE sycl::uint4 iq2_rows(const u32 *table, u32 row0, u32 row1, u32 s0, u32 s1) {
  const sycl::uint2 a = ((const sycl::uint2 *)table)[row0], b = ((const sycl::uint2 *)table)[row1];
  return {signed_bytes(a.x(), s0), signed_bytes(a.y(), s0 >> 4), signed_bytes(b.x(), s1), signed_bytes(b.y(), s1 >> 4)};
}

template <> struct GpuLane<FormatIQ2_S> {
  sycl::uint2 q, s;
  u32 h, sc;
  f32 d;
  template <class At> NS_INLINE GpuLane(At at, i32 c)
      : q(load8(at(1) + 8 * c)), s(load8(at(2) + 8 * c)), h(((const u16 *)at(3))[c]), sc(((const u16 *)at(4))[c]), d(half_at(at(0)) * 0.25f) {}
  NS_INLINE f32 scale(i32 k) const { return d * (0.5f + (f32)(sc >> 4 * k & 15)); }
  NS_INLINE sycl::uint4 bytes(i32 k, const u32 *table) const {
    const u32 v = (k < 2 ? q.x() : q.y()) >> 16 * (k & 1), high = h >> 4 * k, signs = (k < 2 ? s.x() : s.y()) >> 16 * (k & 1);
    return iq2_rows(table, (v & 255) | (high << 8 & 768), (v >> 8 & 255) | (high << 6 & 768), signs, signs >> 8);
  }
};

template <> struct GpuLane<FormatIQ2_XS> {
  sycl::uint4 q;
  u32 sc;
  f32 d;
  template <class At> NS_INLINE GpuLane(At at, i32 c) : q(load16(at(1) + 16 * c)), sc(((const u16 *)at(2))[c]), d(half_at(at(0)) * 0.25f) {}
  NS_INLINE f32 scale(i32 k) const { return d * (0.5f + (f32)(sc >> 4 * k & 15)); }
  NS_INLINE sycl::uint4 bytes(i32 k, const u32 *table) const {
    const u32 v = q[k];
    return iq2_rows(table, v & 511, v >> 16 & 511, even_signs(v >> 9 & 127), even_signs(v >> 25));
  }
};

template <> struct GpuLane<FormatIQ2_XXS> {
  sycl::uint4 q;
  f32 d;
  template <class At> NS_INLINE GpuLane(At at, i32 c) : q(load16(at(1) + 16 * c)), d(half_at(at(0)) * 0.25f) {}
  NS_INLINE f32 scale(i32 k) const { return d * (0.5f + (f32)(q[k / 2 * 2 + 1] >> 28)); }
  NS_INLINE sycl::uint4 bytes(i32 k, const u32 *table) const {
    const u32 v = q[k / 2 * 2] >> 16 * (k & 1), s = q[k / 2 * 2 + 1] >> 14 * (k & 1);
    return iq2_rows(table, v & 255, v >> 8 & 255, even_signs(s & 127), even_signs(s >> 7 & 127));
  }
};

template <> struct GpuLane<FormatIQ1_M> {
  sycl::uint2 q;
  u32 h, sc;
  f32 d;
  template <class At> NS_INLINE GpuLane(At at, i32 c) : q(load8(at(0) + 8 * c)), h(((const u32 *)at(1))[c]) {
    const sycl::uint2 s = load8(at(2));
    sc = (c < 2 ? s.x() : s.y()) >> 16 * (c & 1);
    d = iq1_m_d(s.x() & 0xffff, s.x() >> 16, s.y() & 0xffff, s.y() >> 16) * 0.125f;
  }
  NS_INLINE f32 scale(i32 k) const { return d * (f32)(2 * (i32)(sc >> 3 * k & 7) + 1); }
  NS_INLINE sycl::uint4 bytes(i32 k, const u32 *table) const {
    const u32 v = (k < 2 ? q.x() : q.y()) >> 16 * (k & 1), high = h >> 8 * k;
    const sycl::uint2 a = ((const sycl::uint2 *)table)[(v & 255) | (high << 8 & 0x700)];
    const sycl::uint2 b = ((const sycl::uint2 *)table)[(v >> 8 & 255) | (high << 4 & 0x700)];
    // eight times the level and one more, or one less
    const u32 x = high & 8 ? 0xfefefeff : 0x01010101, y = high & 128 ? 0xfefefeff : 0x01010101;
    return {a.x() + x ^ 0x80808080, a.y() + x ^ 0x80808080, b.x() + y ^ 0x80808080, b.y() + y ^ 0x80808080};
  }
};

} // namespace ns
#endif
