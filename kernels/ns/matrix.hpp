// Block formats of matrices and their two layouts on a device.
//
// A GGUF row is a run of blocks (formats: the files' own definition, ggml-common.h; fields as byte offsets). Every format is read as
// parts of PART values, value = d q + o:
//
//   format  block  bytes  PART  q                       d              o
//   F32 ..     32    128    32  the value itself        1              0         (F16, BF16: 64 bytes)
//   Q8_0       32     34    32  int8                    d              0
//   Q4_0       32     18    32  nibble                  d              -8 d
//   Q4_1       32     20    32  nibble                  d              m
//   Q5_0       32     22    32  nibble + 16 bit         d              -16 d
//   Q5_1       32     24    32  nibble + 16 bit         d              m
//   Q2_K      256     84    16  2 bits                  d sc           -dmin mn
//   Q3_K      256    110    16  3 bits                  d sc           -4 d sc
//   Q4_K      256    144    32  nibble                  d sc           -dmin mn
//   Q5_K      256    176    32  nibble + 16 bit         d sc           -dmin mn
//   Q6_K      256    210    16  6 bits - 32             d sc           0
//   IQ4_NL     32     18    32  level of a nibble       d              0
//   IQ4_XS    256    136    32  level of a nibble       d sc           0
//   IQ3_S     256    110     8  two rows of 4 levels    d sc           0             (IQ3_XXS: 98 bytes)
//   IQ2_S     256     82     8  a row of 8 levels       d sc           0             (IQ2_XS: 74, IQ2_XXS: 66)
//   IQ1_M     256     56     8  a row of 8 levels       d sc           0
//
// Rows of float formats are padded to whole blocks of 32 with zeros.
//
// cpu layout: 16 rows together, [rows / 16][blocks][field][16 rows]: a lane is a row, and a vector of bytes is one value of 16 rows.
// The K formats are stored part by part, so that every part reads alike (see CpuPart). Missing rows of the last group are zero.
// gpu layout: one plane a field, [rows][blocks][bytes of the field], each plane on a 256-byte boundary, so that 16 bytes of quants
// are one aligned load. Q4_K and Q5_K keep their blocks: they are aligned as they are.
#pragma once
#include "formats_iq4.hpp"
#include "formats_k.hpp"
#include "formats_rows.hpp"

namespace ns {
// ---------------------------------------------------------------- formats
// Each has: BLOCK values and BYTES of a file block, PART, HAS_OFFSET, FIELDS (in file order of the layouts), and for the cpu layout
// Part: what is needed of one part of 16 rows. `b` points at the block of the group plus the lane; field f of the block starts at
// 16 * FIELDS[..].bytes before it (cpu_field).

struct FormatF32 {
  static constexpr i32 BLOCK = 32, BYTES = 128, PART = 32;
  static constexpr bool HAS_OFFSET = false, FLOAT = true;
  using Value = f32;
  static f32 value(Value v) { return v; }
};
struct FormatF16 {
  static constexpr i32 BLOCK = 32, BYTES = 64, PART = 32;
  static constexpr bool HAS_OFFSET = false, FLOAT = true;
  using Value = f16;
  static f32 value(Value v) { return (f32)v; }
};
struct FormatBF16 {
  static constexpr i32 BLOCK = 32, BYTES = 64, PART = 32;
  static constexpr bool HAS_OFFSET = false, FLOAT = true;
  using Value = u16;
  static f32 value(Value v) { return bf16_to_f32(v); }
};

struct FormatQ8_0 {
  static constexpr i32 BLOCK = 32, BYTES = 34, PART = 32;
  static constexpr bool HAS_OFFSET = false, FLOAT = false;
  static constexpr Fields<2> FIELDS{{{0, 2}, {2, 32}}}; // d, q
};
// d [, m], q 16 bytes [, h 4 bytes]; SHIFT is what a symmetric format subtracts.
template <bool M, bool H> struct FormatNibble32 {
  static constexpr i32 BLOCK = 32, BYTES = 18 + 2 * M + 4 * H, PART = 32;
  static constexpr bool HAS_OFFSET = true, FLOAT = false, HAS_M = M, HAS_H = H;
  static constexpr i32 HEAD = 2 + 2 * M, SHIFT = M ? 0 : H ? 16 : 8;
  static constexpr Fields<3> FIELDS{{{0, HEAD}, {HEAD + 4 * H, 16}, {HEAD, 4 * H}}}; // d m, q, h
};
using FormatQ4_0 = FormatNibble32<false, false>;
using FormatQ4_1 = FormatNibble32<true, false>;
using FormatQ5_0 = FormatNibble32<false, true>;
using FormatQ5_1 = FormatNibble32<true, true>;
struct FormatQ4_K {
  static constexpr i32 BLOCK = 256, BYTES = 144, PART = 32, CPU_BYTES = 148; // scales are unpacked: 12 -> 16 bytes
  static constexpr bool HAS_OFFSET = true, FLOAT = false;
};
struct FormatQ6_K {
  static constexpr i32 BLOCK = 256, BYTES = 210, PART = 16;
  static constexpr bool HAS_OFFSET = false, FLOAT = false;
  static constexpr Fields<4> FIELDS{{{0, 128}, {128, 64}, {192, 16}, {208, 2}}}; // ql, qh, sc, d
};

// ---------------------------------------------------------------- cpu layout
template <class F> constexpr i64 cpu_size(i64 rows, i64 cols) {
  return round_up(rows, 16) * (round_up(cols, F::BLOCK) / F::BLOCK) * cpu_bytes<F>();
}

template <> struct CpuPart<FormatQ8_0> {
  const i8 *q_;
  f32 d, o;
  NS_INLINE CpuPart(const u8 *b, i32 p, i32 lane) : q_((const i8 *)b + 32 + lane), d(half_at(b + 2 * lane)), o(0) {}
  NS_INLINE f32 q(i32 j) const { return (f32)q_[16 * j]; }
  template <class G> NS_INLINE void each(G g) const {
    repeat<32>([&](i32 j) __attribute__((always_inline)) { g(j, q(j)); });
  }
};
template <bool M, bool H> struct CpuPart<FormatNibble32<M, H>> {
  using F = FormatNibble32<M, H>;
  const u8 *q_, *h_;
  f32 d, o;
  NS_INLINE CpuPart(const u8 *b, i32 p, i32 lane) : q_(b + 16 * F::HEAD + lane), h_(q_ + 256), d(half_at(b + 2 * lane)) {
    if constexpr (M) o = half_at(b + 32 + 2 * lane);
    else o = (f32)-F::SHIFT * d;
  }
  NS_INLINE f32 q(i32 j) const {
    i32 v = j < 16 ? q_[16 * j] & 15 : q_[16 * (j - 16)] >> 4;
    if constexpr (H) v |= (h_[16 * (j / 8)] >> (j % 8) & 1) << 4;
    return (f32)v;
  }
  template <class G> NS_INLINE void each(G g) const {
    repeat<16>([&](i32 j) __attribute__((always_inline)) {
      const i32 v = q_[16 * j];
      i32 low = v & 15, high = v >> 4;
      if constexpr (H) {
        low |= (h_[16 * (j / 8)] >> (j % 8) & 1) << 4;
        high |= (h_[16 * (j / 8 + 2)] >> (j % 8) & 1) << 4;
      }
      g(j, (f32)low), g(j + 16, (f32)high);
    });
  }
};
// d, dmin: half[16] each; then for each part: scale u8[16], minimum u8[16], q u8[16][16] (low nibbles values 0..15, high ones 16..31).
template <> struct CpuPart<FormatQ4_K> {
  static constexpr i32 HEAD = 64, BYTES = 288;
  const u8 *q_;
  f32 d, o;
  NS_INLINE CpuPart(const u8 *b, i32 p, i32 lane) {
    const u8 *part = b + HEAD + BYTES * p;
    d = half_at(b + 2 * lane) * (f32)part[lane];
    o = -half_at(b + 32 + 2 * lane) * (f32)part[16 + lane];
    q_ = part + 32 + lane;
  }
  NS_INLINE f32 q(i32 j) const { return (f32)(j < 16 ? q_[16 * j] & 15 : q_[16 * (j - 16)] >> 4); }
  template <class G> NS_INLINE void each(G g) const {
    repeat<16>([&](i32 j) __attribute__((always_inline)) {
      const i32 v = q_[16 * j];
      g(j, (f32)(v & 15)), g(j + 16, (f32)(v >> 4));
    });
  }
};
// d half[16]; then for each part: scale i8[16], low u8[8][16] (nibbles of values j and j + 8), high u8[4][16] (two bits of j, j + 4, ..).
template <> struct CpuPart<FormatQ6_K> {
  static constexpr i32 HEAD = 32, BYTES = 208;
  const u8 *l_, *h_;
  f32 d, o;
  NS_INLINE CpuPart(const u8 *b, i32 p, i32 lane) : o(0) {
    const u8 *part = b + HEAD + BYTES * p;
    d = half_at(b + 2 * lane) * (f32)((const i8 *)part)[lane];
    l_ = part + 16 + lane;
    h_ = part + 144 + lane;
  }
  NS_INLINE f32 q(i32 j) const {
    return (f32)(((l_[16 * (j % 8)] >> 4 * (j / 8) & 15) | (h_[16 * (j % 4)] >> 2 * (j / 4) & 3) << 4) - 32);
  }
  template <class G> NS_INLINE void each(G g) const {
    repeat<4>([&](i32 j) __attribute__((always_inline)) {
      const i32 h = h_[16 * j], a = l_[16 * j], c = l_[16 * (j + 4)];
      g(j, (f32)(((a & 15) | (h << 4 & 48)) - 32));
      g(j + 4, (f32)(((c & 15) | (h << 2 & 48)) - 32));
      g(j + 8, (f32)((a >> 4 | (h & 48)) - 32));
      g(j + 12, (f32)((c >> 4 | (h >> 2 & 48)) - 32));
    });
  }
};

// Bytes of a file block, one row of 16, put to their places in the group's block.
template <class F> NS_INLINE void cpu_pack(const u8 *from, u8 *to, i32 lane) {
  if constexpr (described<F>()) {
    F::cpu_pack(from, to, lane);
  } else if constexpr (F::FLOAT) {
    using V = typename F::Value;
#pragma nounroll
    for (i32 j = 0; j < 32; j++) ((V *)to)[16 * j + lane] = ((const V *)from)[j];
  } else if constexpr (std::is_same_v<F, FormatQ4_K>) {
    using Part = CpuPart<F>;
    ((u16 *)to)[lane] = *(const u16 *)from, ((u16 *)to)[16 + lane] = *(const u16 *)(from + 2);
#pragma nounroll
    for (i32 g = 0; g < 8; g++) {
      i32 scale, minimum;
      k4_scale(from + 4, g, scale, minimum);
      u8 *part = to + Part::HEAD + Part::BYTES * g + lane;
      part[0] = (u8)scale, part[16] = (u8)minimum;
      const u8 *q = from + 16 + 32 * (g / 2);
      const i32 shift = 4 * (g % 2);
#pragma nounroll
      for (i32 j = 0; j < 16; j++) part[32 + 16 * j] = (u8)((q[j] >> shift & 15) | (q[j + 16] >> shift & 15) << 4);
    }
  } else if constexpr (std::is_same_v<F, FormatQ6_K>) {
    using Part = CpuPart<F>;
    ((u16 *)to)[lane] = *(const u16 *)(from + 208);
#pragma nounroll
    for (i32 p = 0; p < 16; p++) { // values 128 n + 32 j + l of the block, l = l0 ..
      const i32 n = p / 8, j = p / 2 % 4, l0 = p % 2 * 16;
      const u8 *low = from + 64 * n + 32 * (j & 1) + l0, *high = from + 128 + 32 * n + l0;
      const i32 a = 4 * (j >> 1), c = 2 * j;
      u8 *part = to + Part::HEAD + Part::BYTES * p + lane;
      part[0] = from[192 + p];
#pragma nounroll
      for (i32 k = 0; k < 8; k++) part[16 + 16 * k] = (u8)((low[k] >> a & 15) | (low[k + 8] >> a & 15) << 4);
#pragma nounroll
      for (i32 k = 0; k < 4; k++) {
        i32 bits = 0;
#pragma nounroll
        for (i32 i = 0; i < 4; i++) bits |= (high[k + 4 * i] >> c & 3) << 2 * i;
        part[144 + 16 * k] = (u8)bits;
      }
    }
  } else if constexpr (std::is_same_v<F, FormatQ8_0>) {
    ((u16 *)to)[lane] = *(const u16 *)from;
#pragma nounroll
    for (i32 j = 0; j < 32; j++) to[32 + 16 * j + lane] = from[2 + j];
  } else {
#pragma nounroll
    for (i32 k = 0; k < F::HEAD / 2; k++) ((u16 *)to)[16 * k + lane] = ((const u16 *)from)[k];
#pragma nounroll
    for (i32 j = 0; j < 16; j++) to[16 * F::HEAD + 16 * j + lane] = from[F::HEAD + 4 * F::HAS_H + j];
    if constexpr (F::HAS_H)
#pragma nounroll
      for (i32 k = 0; k < 4; k++) to[16 * F::HEAD + 256 + 16 * k + lane] = from[F::HEAD + k];
  }
}

// ---------------------------------------------------------------- gpu layout
template <class F> struct GpuPlanes { // start of field k's plane
  template <class G = F> static constexpr i64 start(i32 k, i64 rows, i64 cols) {
    const i64 blocks = rows * (round_up(cols, F::BLOCK) / F::BLOCK);
    i64 at = 0;
    for (i32 i = 0; i < k; i++) at += round_up(blocks * G::FIELDS.f[i].bytes, 256);
    return at;
  }
};
template <class F> constexpr i64 gpu_size(i64 rows, i64 cols) {
  if constexpr (F::FLOAT || std::is_same_v<F, FormatQ4_K>) return round_up(rows * (round_up(cols, F::BLOCK) / F::BLOCK) * F::BYTES, 256);
  else return GpuPlanes<F>::start(F::FIELDS.n, rows, cols);
}

// ---------------------------------------------------------------- single values, for expansion and embedding
// Value i of a file-format block, field by field: `at(k)` gives field k's bytes of the block.
template <class F, class At> NS_INLINE f32 block_value(At at, i32 i) {
  if constexpr (described<F>()) {
    return F::value(at, i);
  } else if constexpr (std::is_same_v<F, FormatQ8_0>) {
    return half_at(at(0)) * (f32)(i8)at(1)[i];
  } else if constexpr (std::is_same_v<F, FormatQ6_K>) {
    const i32 n = i / 128, j = i / 32 % 4, l = i % 32;
    const i32 q = (at(0)[64 * n + 32 * (j & 1) + l] >> 4 * (j >> 1) & 15) | (at(1)[32 * n + l] >> 2 * j & 3) << 4;
    return half_at(at(3)) * (f32)(i8)at(2)[i / 16] * (f32)(q - 32);
  } else {
    const i32 nibble = i < 16 ? at(1)[i] & 15 : at(1)[i - 16] >> 4;
    i32 q = nibble;
    if constexpr (F::HAS_H) q |= (at(2)[i / 8] >> (i % 8) & 1) << 4;
    const f32 d = half_at(at(0));
    if constexpr (F::HAS_M) return d * (f32)q + half_at(at(0) + 2);
    else return d * (f32)(q - F::SHIFT);
  }
}
NS_INLINE f32 k4_value(const u8 *b, i32 i) {
  i32 scale, minimum;
  k4_scale(b + 4, i / 32, scale, minimum);
  const i32 q = b[16 + 32 * (i / 64) + i % 32] >> 4 * (i / 32 % 2) & 15;
  return half_at(b) * (f32)scale * (f32)q - half_at(b + 2) * (f32)minimum;
}

template <class F> NS_INLINE i32 blocks_of(i32 cols) { return (cols + F::BLOCK - 1) / F::BLOCK; }

// One element of a packed matrix.
template <class F> NS_INLINE f32 element(const u8 *packed, i64 rows, i64 cols, i64 row, i32 col) {
  const i64 nb = blocks_of<F>(cols), block = col / F::BLOCK;
  const i32 i = col % F::BLOCK;
#ifdef NS_CPU
  const CpuPart<F> part(packed + ((row / 16) * nb + block) * 16 * cpu_bytes<F>(), i / F::PART, row % 16);
  return sycl::fma(part.d, part.q(i % F::PART), part.o);
#else
  const i64 at = row * nb + block;
  if constexpr (F::FLOAT) return F::value(((const typename F::Value *)packed)[at * 32 + i]);
  else if constexpr (std::is_same_v<F, FormatQ4_K>) return k4_value(packed + at * F::BYTES, i);
  else
    return block_value<F>([=](i32 k) { return packed + GpuPlanes<F>::start(k, rows, cols) + at * F::FIELDS.f[k].bytes; }, i);
#endif
}
} // namespace ns
