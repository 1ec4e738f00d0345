// Products of Q2_K, Q3_K and Q5_K rows with activation rows, for the gpu layout.
#pragma once
#include "dot_iq.hpp"
#include "matrix.hpp"

#ifdef NS_GPU
namespace ns {
template <> struct GpuDot<FormatQ5_K> {
  // eight lanes a block: lane c has 32 values of each of the groups 2 (c / 2) and 2 (c / 2) + 1, half c % 2
  template <i32 M>
  static NS_INLINE void run(const u8 *packed, const u8 *act, f32 (&sum)[M], i64 row, i64 rows, i32 nb, i32 cols, i32 act_stride, i32 lane,
                            const u32 *) {
    constexpr i32 BYTES = FormatQ5_K::BYTES;
    const u8 *b = packed + row * nb * BYTES;
    const i32 c = lane & 7, g = c >> 1, h = c & 1;
    for (i32 block = lane >> 3; block < nb; block += NS_SG / 8) {
      const u8 *at_block = b + (i64)block * BYTES;
      const sycl::uint4 head = load16(at_block), fifth = load16(at_block + 16 + 16 * h) >> (u32)(2 * g), v = load16(at_block + 48 + 16 * c);
      const u32 s0 = head.y(), s1 = head.z(), s2 = head.w(), shift = (g & 1) * 16;
      u32 scales, minima; // of both groups, a byte each
      if (g < 2) {
        scales = s0 >> shift & 0x3f3f, minima = s1 >> shift & 0x3f3f;
      } else {
        scales = (s2 >> shift & 0x0f0f) | (s0 >> shift >> 2 & 0x3030);
        minima = (s2 >> shift >> 4 & 0x0f0f) | (s1 >> shift >> 2 & 0x3030);
      }
      const f32 d = (f32)sycl::bit_cast<f16>((u16)head.x()), dmin = (f32)sycl::bit_cast<f16>((u16)(head.x() >> 16));
      const sycl::uint4 low = (v & 0x0f0f0f0fu) | ((fifth & 0x01010101u) << 4u);
      const sycl::uint4 high = ((v >> 4u) & 0x0f0f0f0fu) | ((fifth & 0x02020202u) << 3u);
      const i32 at = block * 8 + 2 * g; // block of 32 of the activations
#pragma unroll
      for (i32 m = 0; m < M; m++) {
        const ActRow x(act + (i64)m * act_stride, cols);
        const f32 a = x.dot(low, at * 32 + 16 * h), e = x.dot(high, at * 32 + 32 + 16 * h);
        // both lanes of a pair would subtract the minimum: half each
        const f32 lost = (f32)(minima & 63) * x.s[at] + (f32)(minima >> 8) * x.s[at + 1];
        sum[m] += d * ((f32)(scales & 63) * a + (f32)(scales >> 8) * e) - 0.5f * dmin * lost;
      }
    }
  }
};

template <> struct GpuDot<FormatQ3_K> {
  // four lanes a block: lane c has 16 bytes of two bits, 16 values of each of the groups 8 n + 2 j + e (j < 4), n = c / 2, e = c % 2
  template <i32 M>
  static NS_INLINE void run(const u8 *packed, const u8 *act, f32 (&sum)[M], i64 row, i64 rows, i32 nb, i32 cols, i32 act_stride, i32 lane,
                            const u32 *) {
    using P = GpuPlanes<FormatQ3_K>;
    const i64 first = row * nb;
    const u8 *h = packed + first * 32, *q = packed + P::start(1, rows, cols) + first * 64;
    const u32 *sc = (const u32 *)(packed + P::start(2, rows, cols)) + first * 3;
    const f16 *d = (const f16 *)(packed + P::start(3, rows, cols)) + first;
    const i32 c = lane & 3, n = c >> 1, e = c & 1;
    for (i32 block = lane >> 2; block < nb; block += NS_SG / 4) {
      const sycl::uint4 v = load16(q + (i64)block * 64 + 16 * c), third = load16(h + (i64)block * 32 + 16 * e) >> (u32)(4 * n);
      // byte 2 j + e of eight low nibbles; byte (2 j + e) % 4 of the upper bits, two of them, for groups 8 n + 4 (j / 2) ..
      const u32 low0 = sc[3 * block] >> 4 * n >> 8 * e, low1 = sc[3 * block + 1] >> 4 * n >> 8 * e, upper = sc[3 * block + 2] >> 4 * n >> 8 * e;
      const f32 scale = (f32)d[block];
      const i32 i = block * 256 + 128 * n + 16 * e;
      // one at a time: with more an Alchemist card, whose registers are half as wide, runs out of them
#pragma unroll 1
      for (i32 j = 0; j < 4; j++) {
        const u32 nibble = (j < 2 ? low0 : low1) >> 16 * (j & 1) & 15;
        const i32 s = (i32)(nibble | (upper >> 16 * (j & 1) >> 2 * (j >> 1) & 3) << 4) - 32;
        const sycl::uint4 code = ((v >> (u32)(2 * j)) & 0x03030303u) | (((third >> (u32)j) & 0x01010101u) << 2u);
        // 0..7 less 4: set the top bit so that no byte borrows, subtract, clear it again
        const sycl::uint4 w = ((code | 0x80808080u) - 0x04040404u) ^ 0x80808080u;
        const f32 a = scale * (f32)s;
#pragma unroll
        for (i32 m = 0; m < M; m++) sum[m] = sycl::fma(a, ActRow(act + (i64)m * act_stride, cols).dot(w, i + 32 * j), sum[m]);
      }
    }
  }
};

template <> struct GpuDot<FormatQ2_K> {
  // lanes as for Q3_K
  template <i32 M>
  static NS_INLINE void run(const u8 *packed, const u8 *act, f32 (&sum)[M], i64 row, i64 rows, i32 nb, i32 cols, i32 act_stride, i32 lane,
                            const u32 *table) {
    if constexpr (M > 7) { // as many rows take more registers than an Alchemist card has: the weights are read twice
      f32 first[4] = {}, last[M - 4] = {};
      run<4>(packed, act, first, row, rows, nb, cols, act_stride, lane, table);
      run<M - 4>(packed, act + 4 * (i64)act_stride, last, row, rows, nb, cols, act_stride, lane, table);
      repeat<M>([&](i32 m) __attribute__((always_inline)) { sum[m] += m < 4 ? first[m] : last[m - 4]; });
      return;
    }
    using P = GpuPlanes<FormatQ2_K>;
    const i64 first = row * nb;
    const u8 *sc = packed + first * 16, *q = packed + P::start(1, rows, cols) + first * 64;
    const u32 *d = (const u32 *)(packed + P::start(2, rows, cols)) + first;
    const i32 c = lane & 3, n = c >> 1, e = c & 1;
    for (i32 block = lane >> 2; block < nb; block += NS_SG / 4) {
      const sycl::uint4 v = load16(q + (i64)block * 64 + 16 * c);
      const sycl::uint2 s = *(const sycl::uint2 *)(sc + (i64)block * 16 + 8 * n) >> (u32)(8 * e);
      const f32 scale = (f32)sycl::bit_cast<f16>((u16)d[block]), least_scale = (f32)sycl::bit_cast<f16>((u16)(d[block] >> 16));
      const i32 i = block * 256 + 128 * n + 16 * e;
      // one at a time: with more an Alchemist card, whose registers are half as wide, runs out of them
#pragma unroll 1
      for (i32 j = 0; j < 4; j++) {
        const u32 both = (j < 2 ? s.x() : s.y()) >> 16 * (j & 1) & 255;
        const sycl::uint4 w = (v >> (u32)(2 * j)) & 0x03030303u;
        const f32 a = scale * (f32)(both & 15), o = -least_scale * (f32)(both >> 4);
#pragma unroll
        for (i32 m = 0; m < M; m++) {
          const ActRow x(act + (i64)m * act_stride, cols);
          sum[m] = sycl::fma(o, x.sh[(i >> 4) + 2 * j], sycl::fma(a, x.dot(w, i + 32 * j), sum[m]));
        }
      }
    }
  }
};
} // namespace ns
#endif
