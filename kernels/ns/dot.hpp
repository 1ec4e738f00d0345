// Products of 16-byte pieces of quants with activation rows, for the gpu layout.
#pragma once
#include "dot_iq.hpp"
#include "dot_k.hpp"
#include "dp4a.hpp"
#include "matrix.hpp"

#ifdef NS_GPU
namespace ns {
// Four bits to four bytes, each bit times 16.
NS_INLINE u32 spread16(u32 bits) { return ((bits & 1) | (bits & 2) << 7 | (bits & 4) << 14 | (bits & 8) << 21) << 4; }

template <class F, i32 M>
NS_INLINE void gpu_dot(const u8 *packed, const u8 *act, f32 (&sum)[M], i64 row, i64 rows, i32 cols, i32 act_stride, i32 lane,
                       const u32 *table) {
  const i32 nb = (cols + F::BLOCK - 1) / F::BLOCK;
  if constexpr (F::FLOAT) {
    using V = typename F::Value;
    constexpr i32 N = 16 / sizeof(V); // values of a load
    const u8 *w = packed + row * nb * F::BYTES;
    for (i32 i = lane * N; i < nb * 32; i += NS_SG * N) {
      const sycl::vec<V, N> v = *(const sycl::vec<V, N> *)(w + i * sizeof(V));
#pragma unroll
      for (i32 m = 0; m < M; m++) {
        const f32 *x = (const f32 *)(act + (i64)m * act_stride) + i;
#pragma unroll
        for (i32 k = 0; k < N; k++) sum[m] = sycl::fma(F::value(v[k]), x[k], sum[m]);
      }
    }
  } else if constexpr (described<F>()) {
    GpuDot<F>::run(packed, act, sum, row, rows, nb, cols, act_stride, lane, table);
  } else if constexpr (std::is_same_v<F, FormatQ8_0>) {
    const u8 *q = packed + GpuPlanes<F>::start(1, rows, cols) + row * nb * 32;
    const f16 *d = (const f16 *)packed + row * nb;
    for (i32 i = lane; i < nb * 2; i += NS_SG) {
      const sycl::uint4 w = load16(q + i * 16);
      const f32 scale = (f32)d[i >> 1];
#pragma unroll
      for (i32 m = 0; m < M; m++)
        sum[m] = sycl::fma(scale, ActRow(act + (i64)m * act_stride, cols).dot(w, i * 16), sum[m]);
    }
  } else if constexpr (std::is_same_v<F, FormatQ4_K>) {
    // eight lanes a block: lane c has 32 values of each of the groups 2 (c / 2) and 2 (c / 2) + 1, half c % 2
    const u8 *b = packed + row * nb * F::BYTES;
    const i32 c = lane & 7, g = c >> 1, h = c & 1;
    for (i32 block = lane >> 3; block < nb; block += NS_SG / 8) {
      const sycl::uint4 head = load16(b + (i64)block * 144), v = load16(b + (i64)block * 144 + 16 + 16 * c);
      const u32 s0 = head.y(), s1 = head.z(), s2 = head.w(), shift = (g & 1) * 16;
      u32 scales, minima; // of both groups, a byte each
      if (g < 2) {
        scales = s0 >> shift & 0x3f3f, minima = s1 >> shift & 0x3f3f;
      } else {
        scales = (s2 >> shift & 0x0f0f) | (s0 >> shift >> 2 & 0x3030);
        minima = (s2 >> shift >> 4 & 0x0f0f) | (s1 >> shift >> 2 & 0x3030);
      }
      const f32 d = (f32)sycl::bit_cast<f16>((u16)head.x()), dmin = (f32)sycl::bit_cast<f16>((u16)(head.x() >> 16));
      const sycl::uint4 low = v & 0x0f0f0f0fu, high = (v >> 4u) & 0x0f0f0f0fu;
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
  } else if constexpr (std::is_same_v<F, FormatQ6_K>) {
    // eight lanes a block: lane c has 16 low bytes, which hold 16 values of rows r and r + 2 of four (element 128 n + 32 j + l)
    const i64 first = row * nb;
    const u8 *ql = packed + first * 128, *qh = packed + GpuPlanes<F>::start(1, rows, cols) + first * 64;
    const i8 *sc = (const i8 *)packed + GpuPlanes<F>::start(2, rows, cols) + first * 16;
    const f16 *d = (const f16 *)(packed + GpuPlanes<F>::start(3, rows, cols)) + first;
    const i32 c = lane & 7, n = c >> 2, r = c >> 1 & 1, e = c & 1;
    for (i32 block = lane >> 3; block < nb; block += NS_SG / 8) {
      const sycl::uint4 v = load16(ql + (i64)block * 128 + 16 * c), h = load16(qh + (i64)block * 64 + 32 * n + 16 * e);
      const u32 shift = 2 * r;
      // bytes 0..63 less 32: set the top bit so that no byte borrows, subtract, clear it again
      const sycl::uint4 low = ((((v & 0x0f0f0f0fu) | ((h >> shift & 0x03030303u) << 4u)) | 0x80808080u) - 0x20202020u) ^ 0x80808080u;
      const sycl::uint4 high =
          (((((v >> 4u) & 0x0f0f0f0fu) | ((h >> (shift + 4) & 0x03030303u) << 4u)) | 0x80808080u) - 0x20202020u) ^ 0x80808080u;
      const i32 i = block * 256 + 128 * n + 32 * r + 16 * e;
      const f32 scale = (f32)d[block];
      const f32 a = scale * (f32)sc[block * 16 + 8 * n + 2 * r + e], b = scale * (f32)sc[block * 16 + 8 * n + 2 * (r + 2) + e];
#pragma unroll
      for (i32 m = 0; m < M; m++) {
        const ActRow x(act + (i64)m * act_stride, cols);
        sum[m] += a * x.dot(low, i) + b * x.dot(high, i + 64);
      }
    }
  } else { // nibbles in blocks of 32: a lane has a block
    const i64 first = row * nb;
    const u8 *head = packed + first * F::HEAD, *q = packed + GpuPlanes<F>::start(1, rows, cols) + first * 16;
    const u32 *bits = (const u32 *)(packed + GpuPlanes<F>::start(2, rows, cols)) + first;
    for (i32 block = lane; block < nb; block += NS_SG) {
      const sycl::uint4 v = load16(q + (i64)block * 16);
      sycl::uint4 low = v & 0x0f0f0f0fu, high = (v >> 4u) & 0x0f0f0f0fu;
      if constexpr (F::HAS_H) {
        const u32 h = bits[block];
        low |= sycl::uint4(spread16(h & 15), spread16(h >> 4 & 15), spread16(h >> 8 & 15), spread16(h >> 12 & 15));
        high |= sycl::uint4(spread16(h >> 16 & 15), spread16(h >> 20 & 15), spread16(h >> 24 & 15), spread16(h >> 28));
      }
      const f32 d = half_at(head + block * F::HEAD);
      f32 offset;
      if constexpr (F::HAS_M) offset = half_at(head + block * F::HEAD + 2);
      else offset = (f32)-F::SHIFT * d;
#pragma unroll
      for (i32 m = 0; m < M; m++) {
        const ActRow x(act + (i64)m * act_stride, cols);
        sum[m] += d * x.dot32(low, high, block) + offset * x.s[block];
      }
    }
  }
}
} // namespace ns
#endif
