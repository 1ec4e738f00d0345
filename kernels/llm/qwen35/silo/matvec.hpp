// Products of a packed matrix with 1 to 8 activation rows, for Arc: two matrix rows a sub-group, so that both take the activations from one
// load, and K split over the sub-groups of a work-group where the matrix has few rows. Layouts of matrix and activations are those of the
// gpu variant (ns/matrix.hpp, ns/activation.hpp), whatever the device; on the CPU device these kernels are for tests.
//
// A work-group is 4 sub-groups. With `groups` of them for P = ceil(rows / 2) pairs, each pair has S = the largest of 1, 2, 4 with S P <= 4 groups
// sub-groups; sub-group s of a pair takes pieces s, s + S, .. (a piece is what 16 lanes read at once) and the first adds up the sums in order. So
// the bits of a result depend on the matrix and `groups`, not on the number of activation rows.
//
// Addresses are a uniform base and 32 bits of offset a lane; nothing is divided and nothing multiplied but by shifts.
#pragma once
#include "ns/activation.hpp"
#include "ns/matrix.hpp"

namespace ns {
namespace silo {
typedef char char4 __attribute__((ext_vector_type(4)));
using Quants = sycl::uint4; // 16 bytes
// c + sum of four int8 products: this form becomes one dp4a.
NS_INLINE i32 dot4(u32 a, u32 b, i32 c) {
  const char4 x = __builtin_bit_cast(char4, a), y = __builtin_bit_cast(char4, b);
  return c + (i32)x[0] * y[0] + (i32)x[1] * y[1] + (i32)x[2] * y[2] + (i32)x[3] * y[3];
}
NS_INLINE i32 dot16(Quants a, Quants b) { return dot4(a.w(), b.w(), dot4(a.z(), b.z(), dot4(a.y(), b.y(), dot4(a.x(), b.x(), 0)))); }
template <class T> NS_INLINE T read(const void *base, u32 offset) { return *(const T *)((const u8 *)base + offset); }

// 16 values of an activation row.
struct Values {
  Quants hi, lo;
  NS_INLINE Values(const u8 *act, i32 cols, u32 at) : hi(read<Quants>(act + act_hi(cols), at)), lo(read<Quants>(act + act_lo(cols), at)) {}
  NS_INLINE f32 dot(Quants w) const { const i32 h = dot16(w, hi), l = dot16(w, lo); return (f32)((h << 8) + l); }
};

// Adds the products of the pieces first, first + step, .. of the matrix rows `row[0]` and `row[1]` with M activation rows to sum.
template <i32 M>
NS_INLINE void dots(FormatQ8_0, const u8 *packed, const u8 *act, f32 (&sum)[2][M], const i64 (&row)[2], i64 rows, i32 cols, i32 act_stride,
                    u32 lane, u32 first, u32 step) {
  const u32 pieces = cols / 16; // of 16 values
  const u8 *q = packed + GpuPlanes<FormatQ8_0>::start(1, rows, cols);
  const u8 *q0 = q + row[0] * cols, *q1 = q + row[1] * cols;
  const u8 *d0 = packed + row[0] * (cols / 16), *d1 = packed + row[1] * (cols / 16);
  for (u32 i = first * 16 + lane; i < pieces; i += step * 16) {
    const Quants w0 = read<Quants>(q0, i * 16), w1 = read<Quants>(q1, i * 16);
    const f32 s0 = (f32)read<f16>(d0, i >> 1 << 1), s1 = (f32)read<f16>(d1, i >> 1 << 1);
#pragma unroll
    for (i32 m = 0; m < M; m++) {
      const u8 *row_act = act + (i64)m * act_stride;
      const Values x(row_act, cols, i * 16);
      const f32 d = read<f32>(row_act + act_d(cols), i >> 1 << 2);
      sum[0][m] = sycl::fma(s0 * d, x.dot(w0), sum[0][m]);
      sum[1][m] = sycl::fma(s1 * d, x.dot(w1), sum[1][m]);
    }
  }
}

// Eight lanes a block: lane c has 32 values of each of the groups 2 (c / 2) and 2 (c / 2) + 1, half c % 2.
struct Weights4 {
  Quants low, high;
  f32 a, b, m, n; // scales and minima of both groups, the minima halved: both lanes of a pair subtract them
  NS_INLINE Weights4(const u8 *row, u32 at, u32 c, u32 shift, u32 whole, u32 nibbles, u32 tops) {
    const Quants head = read<Quants>(row, at), v = read<Quants>(row, at + 16 + 16 * c);
    low = v & 0x0f0f0f0fu, high = v >> 4u & 0x0f0f0f0fu;
    const u32 s0 = head.y(), s1 = head.z(), s2 = head.w();
    // a byte for each group: groups 0..3 have six bits together, the others four and two
    const u32 scales = (s0 >> shift & whole) | (s2 >> shift & nibbles) | (s0 >> (shift + 2) & tops);
    const u32 minima = (s1 >> shift & whole) | (s2 >> (shift + 4) & nibbles) | (s1 >> (shift + 2) & tops);
    const f32 d = (f32)sycl::bit_cast<f16>((u16)head.x()), e = 0.5f * (f32)sycl::bit_cast<f16>((u16)(head.x() >> 16));
    a = d * (f32)(scales & 63), b = d * (f32)(scales >> 8);
    m = e * (f32)(minima & 63), n = e * (f32)(minima >> 8);
  }
};
template <i32 M>
NS_INLINE void dots(FormatQ4_K, const u8 *packed, const u8 *act, f32 (&sum)[2][M], const i64 (&row)[2], i64 rows, i32 cols, i32 act_stride,
                    u32 lane, u32 first, u32 step) {
  const u32 blocks = cols / 256, c = lane & 7, g = c >> 1, shift = (g & 1) * 16;
  const u32 whole = g < 2 ? 0x3f3f : 0, nibbles = g < 2 ? 0 : 0x0f0f, tops = g < 2 ? 0 : 0x3030;
  const u8 *w0 = packed + row[0] * blocks * 144, *w1 = packed + row[1] * blocks * 144;
  const u32 begin = first * 2 + (lane >> 3);
  u32 at = begin * 144, group = begin * 8 + 2 * g; // byte of the block, block of 32 of the activations
  for (u32 block = begin; block < blocks; block += step * 2) {
    const Weights4 p(w0, at, c, shift, whole, nibbles, tops), q(w1, at, c, shift, whole, nibbles, tops);
#pragma unroll
    for (i32 m = 0; m < M; m++) {
      const u8 *row_act = act + (i64)m * act_stride;
      const Values x(row_act, cols, group * 32 + 16 * (c & 1)), y(row_act, cols, group * 32 + 32 + 16 * (c & 1));
      const sycl::float2 d = read<sycl::float2>(row_act + act_d(cols), group * 4), s = read<sycl::float2>(row_act + act_s(cols), group * 4);
      f32 one = p.a * (d.x() * x.dot(p.low)), two = q.a * (d.x() * x.dot(q.low));
      one = sycl::fma(p.b, d.y() * y.dot(p.high), one), two = sycl::fma(q.b, d.y() * y.dot(q.high), two);
      one = sycl::fma(-p.m, s.x(), one), two = sycl::fma(-q.m, s.x(), two);
      sum[0][m] += sycl::fma(-p.n, s.y(), one), sum[1][m] += sycl::fma(-q.n, s.y(), two);
    }
    at += step * 288, group += step * 16;
  }
}

// Eight lanes a block: lane c has 16 low bytes, which hold 16 values of rows r and r + 2 of four (element 128 n + 32 j + l).
struct Weights6 {
  Quants low, high;
  f32 a, b;
  NS_INLINE Weights6(const u8 *ql, const u8 *qh, const u8 *sc, const u8 *d, u32 block, u32 c) {
    const u32 r = c >> 1 & 1, e = c & 1, shift = 2 * r;
    const Quants v = read<Quants>(ql, block * 128 + 16 * c), h = read<Quants>(qh, block * 64 + 32 * (c >> 2) + 16 * e);
    // bytes 0..63 less 32: set the top bit so that no byte borrows, subtract, clear it again
    low = ((((v & 0x0f0f0f0fu) | ((h >> shift & 0x03030303u) << 4u)) | 0x80808080u) - 0x20202020u) ^ 0x80808080u;
    high = ((((v >> 4u & 0x0f0f0f0fu) | ((h >> (shift + 4) & 0x03030303u) << 4u)) | 0x80808080u) - 0x20202020u) ^ 0x80808080u;
    const sycl::uint2 scales = read<sycl::uint2>(sc, block * 16 + 8 * (c >> 2)); // of the half block
    const u32 up = 24 - 8 * (2 * r + e);
    const f32 scale = (f32)read<f16>(d, block * 2);
    a = scale * (f32)((i32)(scales.x() << up) >> 24), b = scale * (f32)((i32)(scales.y() << up) >> 24);
  }
};
template <i32 M>
NS_INLINE void dots(FormatQ6_K, const u8 *packed, const u8 *act, f32 (&sum)[2][M], const i64 (&row)[2], i64 rows, i32 cols, i32 act_stride,
                    u32 lane, u32 first, u32 step) {
  const u32 blocks = cols / 256, c = lane & 7;
  const u8 *qh = packed + GpuPlanes<FormatQ6_K>::start(1, rows, cols), *sc = packed + GpuPlanes<FormatQ6_K>::start(2, rows, cols);
  const u8 *d = packed + GpuPlanes<FormatQ6_K>::start(3, rows, cols);
  const i64 b0 = row[0] * blocks, b1 = row[1] * blocks;
  for (u32 block = first * 2 + (lane >> 3); block < blocks; block += step * 2) {
    const Weights6 p(packed + b0 * 128, qh + b0 * 64, sc + b0 * 16, d + b0 * 2, block, c);
    const Weights6 q(packed + b1 * 128, qh + b1 * 64, sc + b1 * 16, d + b1 * 2, block, c);
    const u32 i = block * 256 + 128 * (c >> 2) + 32 * (c >> 1 & 1) + 16 * (c & 1);
#pragma unroll
    for (i32 m = 0; m < M; m++) {
      const u8 *row_act = act + (i64)m * act_stride;
      const Values x(row_act, cols, i), y(row_act, cols, i + 64);
      const f32 dx = read<f32>(row_act + act_d(cols), i >> 5 << 2), dy = read<f32>(row_act + act_d(cols), (i >> 5 << 2) + 8);
      sum[0][m] = sycl::fma(p.a, dx * x.dot(p.low), sum[0][m]), sum[1][m] = sycl::fma(q.a, dx * x.dot(q.low), sum[1][m]);
      sum[0][m] = sycl::fma(p.b, dy * y.dot(p.high), sum[0][m]), sum[1][m] = sycl::fma(q.b, dy * y.dot(q.high), sum[1][m]);
    }
  }
}

template <class F, i32 M>
NS_INLINE void matvec(const u8 *packed, const u8 *act, f32 *y, i32 rows, i32 cols, i32 act_stride, i32 ldy, i32 add) {
  sycl::ext::oneapi::experimental::work_group_static<f32[4 * 2 * M]> partial;
  const Item it = item();
  const auto sg = it.get_sub_group();
  const u32 lane = sg.get_local_linear_id(), sub = sg.get_group_linear_id();
  const u32 pairs = (rows + 1) / 2, all = it.get_group_range(0) * 4;
  const u32 split = all >= 4 * pairs ? 2 : all >= 2 * pairs ? 1 : 0; // S = 1 << split
  const u32 pair = (it.get_group(0) * 4 + sub) >> split, part = sub & ((1u << split) - 1);
  const i32 first = (i32)pair * 2;
  // a missing second row is the first again; a pair beyond the end works on the last row and is not stored
  const i64 row[2] = {least(first, rows - 1), least(first + 1, rows - 1)};
  f32 sum[2][M];
#pragma unroll
  for (i32 m = 0; m < M; m++) sum[0][m] = 0, sum[1][m] = 0;
  dots<M>(F{}, packed, act, sum, row, rows, cols, act_stride, lane, part, 1u << split);
#pragma unroll
  for (i32 m = 0; m < M; m++) {
    sum[0][m] = sycl::reduce_over_group(sg, sum[0][m], sycl::plus<f32>());
    sum[1][m] = sycl::reduce_over_group(sg, sum[1][m], sycl::plus<f32>());
  }
  if (split) {
    if (lane == 0) {
#pragma unroll
      for (i32 m = 0; m < M; m++) partial[(sub * M + m) * 2] = sum[0][m], partial[(sub * M + m) * 2 + 1] = sum[1][m];
    }
    sycl::group_barrier(it.get_group());
    if (part) return;
#pragma unroll
    for (i32 m = 0; m < M; m++)
      for (u32 s = 1; s < 1u << split; s++)
        sum[0][m] += partial[((sub + s) * M + m) * 2], sum[1][m] += partial[((sub + s) * M + m) * 2 + 1];
  }
  if (lane == 0) {
#pragma unroll
    for (i32 m = 0; m < M; m++)
#pragma unroll
      for (i32 r = 0; r < 2; r++) {
        f32 *to = y + (i64)m * ldy + first + r;
        if (first + r < rows) *to = add ? *to + sum[r][m] : sum[r][m];
      }
  }
}
} // namespace silo
} // namespace ns

#define NS_SILO_MATVEC(NAME, FORMAT, M)                                                                                    \
  NS_KERNEL void NAME##_r##M(const u8 *packed, const u8 *act, f32 *y, i32 rows, i32 cols, i32 act_stride, i32 ldy,         \
                             i32 add) {                                                                                    \
    silo::matvec<FORMAT, M>(packed, act, y, rows, cols, act_stride, ldy, add);                                             \
  }
