// Q2_K, Q3_K and Q5_K: blocks of 256 values of few bits with scales for 16 or 32 of them (see matrix.hpp).
#pragma once
#include "block.hpp"

namespace ns {
// d, dmin, 12 bytes of 6-bit scales and minimums, 32 bytes of fifth bits, 128 bytes of nibbles.
struct FormatQ5_K {
  static constexpr i32 BLOCK = 256, BYTES = 176, PART = 32, CPU_BYTES = 180;
  static constexpr bool HAS_OFFSET = true, FLOAT = false, DESCRIBED = true;
  static constexpr Fields<1> FIELDS{{{0, 176}}}; // whole: aligned as it is

  static NS_INLINE i32 code(const u8 *b, i32 i) {
    const i32 g = i / 32, l = i % 32;
    return (b[48 + 32 * (g / 2) + l] >> 4 * (g % 2) & 15) | (b[16 + l] >> g & 1) << 4;
  }
  template <class At> static NS_INLINE f32 value(At at, i32 i) {
    const u8 *b = at(0);
    i32 scale, minimum;
    k4_scale(b + 4, i / 32, scale, minimum);
    return half_at(b) * (f32)scale * (f32)code(b, i) - half_at(b + 2) * (f32)minimum;
  }

  // d, dmin: half[16] each; then for each part: scale u8[16], minimum u8[16], q u8[16][16] (low nibbles values 0..15, high ones
  // 16..31), fifth bits u8[4][16] (bit i of byte k: value 4 k + i; bit 4 + i: value 16 + 4 k + i).
  static constexpr i32 HEAD = 64, PART_BYTES = 352;
  static void cpu_pack(const u8 *from, u8 *to, i32 lane) {
    ((u16 *)to)[lane] = *(const u16 *)from, ((u16 *)to)[16 + lane] = *(const u16 *)(from + 2);
#pragma nounroll
    for (i32 g = 0; g < 8; g++) {
      i32 scale, minimum;
      k4_scale(from + 4, g, scale, minimum);
      u8 *part = to + HEAD + PART_BYTES * g + lane;
      part[0] = (u8)scale, part[16] = (u8)minimum;
#pragma nounroll
      for (i32 k = 0; k < 4; k++) {
        i32 bits = 0;
#pragma nounroll
        for (i32 i = 0; i < 4; i++) {
          const i32 low = code(from, 32 * g + 4 * k + i), high = code(from, 32 * g + 16 + 4 * k + i);
          part[32 + 16 * (4 * k + i)] = (u8)((low & 15) | (high & 15) << 4);
          bits |= low >> 4 << i | high >> 4 << (4 + i);
        }
        part[288 + 16 * k] = (u8)bits;
      }
    }
  }
};
template <> struct CpuPart<FormatQ5_K> {
  using F = FormatQ5_K;
  const u8 *q_, *h_;
  f32 d, o;
  NS_INLINE CpuPart(const u8 *b, i32 p, i32 lane) {
    const u8 *part = b + F::HEAD + F::PART_BYTES * p;
    d = half_at(b + 2 * lane) * (f32)part[lane];
    o = -half_at(b + 32 + 2 * lane) * (f32)part[16 + lane];
    q_ = part + 32 + lane;
    h_ = part + 288 + lane;
  }
  NS_INLINE f32 q(i32 j) const {
    const i32 k = j % 16, nibble = j < 16 ? q_[16 * k] & 15 : q_[16 * k] >> 4;
    return (f32)(nibble | (h_[16 * (k / 4)] >> (k % 4 + j / 16 * 4) & 1) << 4);
  }
  template <class G> NS_INLINE void each(G g) const {
    repeat<16>([&](i32 j) __attribute__((always_inline)) {
      const i32 v = q_[16 * j], h = h_[16 * (j / 4)];
      g(j, (f32)((v & 15) | (h << (4 - j % 4) & 16)));
      g(j + 16, (f32)(v >> 4 | (h >> j % 4 & 16)));
    });
  }
};

// 32 bytes of third bits, 64 bytes of two bits, 12 bytes of 6-bit scales, d.
struct FormatQ3_K {
  static constexpr i32 BLOCK = 256, BYTES = 110, PART = 16, CPU_BYTES = 114;
  static constexpr bool HAS_OFFSET = true, FLOAT = false, DESCRIBED = true;
  static constexpr Fields<4> FIELDS{{{0, 32}, {32, 64}, {96, 12}, {108, 2}}}; // h, q, sc, d

  template <class At> static NS_INLINE i32 code(At at, i32 i) { // 0..7
    const i32 n = i / 128, j = i / 32 % 4, l = i % 32;
    return (at(1)[32 * n + l] >> 2 * j & 3) | (at(0)[l] >> (4 * n + j) & 1) << 2;
  }
  template <class At> static NS_INLINE i32 scale(At at, i32 g) {
    return ((at(2)[g % 8] >> 4 * (g / 8) & 15) | (at(2)[8 + g % 4] >> 2 * (g / 4) & 3) << 4) - 32;
  }
  template <class At> static NS_INLINE f32 value(At at, i32 i) {
    return half_at(at(3)) * (f32)scale(at, i / 16) * (f32)(code(at, i) - 4);
  }

  // d half[16]; then for each part: scale i8[16], two bits u8[4][16] (of values k, k + 4, ..), third bits u8[2][16] (k, k + 2, ..).
  static constexpr i32 HEAD = 32, PART_BYTES = 112;
  static void cpu_pack(const u8 *from, u8 *to, i32 lane) {
    const FileBlock<FormatQ3_K> at{from};
    ((u16 *)to)[lane] = *(const u16 *)at(3);
#pragma nounroll
    for (i32 p = 0; p < 16; p++) {
      u8 *part = to + HEAD + PART_BYTES * p + lane;
      part[0] = (u8)scale(at, p);
#pragma nounroll
      for (i32 k = 0; k < 4; k++) {
        i32 bits = 0;
#pragma nounroll
        for (i32 i = 0; i < 4; i++) bits |= (code(at, 16 * p + k + 4 * i) & 3) << 2 * i;
        part[16 + 16 * k] = (u8)bits;
      }
#pragma nounroll
      for (i32 k = 0; k < 2; k++) {
        i32 bits = 0;
#pragma nounroll
        for (i32 i = 0; i < 8; i++) bits |= code(at, 16 * p + k + 2 * i) >> 2 << i;
        part[80 + 16 * k] = (u8)bits;
      }
    }
  }
};
template <> struct CpuPart<FormatQ3_K> {
  using F = FormatQ3_K;
  const u8 *q_, *h_;
  f32 d, o;
  NS_INLINE CpuPart(const u8 *b, i32 p, i32 lane) {
    const u8 *part = b + F::HEAD + F::PART_BYTES * p;
    d = half_at(b + 2 * lane) * (f32)((const i8 *)part)[lane];
    o = -4.0f * d;
    q_ = part + 16 + lane;
    h_ = part + 80 + lane;
  }
  NS_INLINE f32 q(i32 j) const { return (f32)((q_[16 * (j % 4)] >> 2 * (j / 4) & 3) | (h_[16 * (j % 2)] >> j / 2 & 1) << 2); }
  template <class G> NS_INLINE void each(G g) const {
    repeat<4>([&](i32 j) __attribute__((always_inline)) {
      const i32 v = q_[16 * j], h = j < 2 ? h_[16 * j] << 2 : h_[16 * (j - 2)] << 1;
      g(j, (f32)((v & 3) | (h & 4)));
      g(j + 4, (f32)((v >> 2 & 3) | (h >> 2 & 4)));
      g(j + 8, (f32)((v >> 4 & 3) | (h >> 4 & 4)));
      g(j + 12, (f32)(v >> 6 | (h >> 6 & 4)));
    });
  }
};

// 16 bytes of scale and minimum nibbles, 64 bytes of two bits, d, dmin.
struct FormatQ2_K {
  static constexpr i32 BLOCK = 256, BYTES = 84, PART = 16;
  static constexpr bool HAS_OFFSET = true, FLOAT = false, DESCRIBED = true;
  static constexpr Fields<3> FIELDS{{{0, 16}, {16, 64}, {80, 4}}}; // sc mn, q, d dmin

  template <class At> static NS_INLINE i32 code(At at, i32 i) { return at(1)[32 * (i / 128) + i % 32] >> 2 * (i / 32 % 4) & 3; }
  template <class At> static NS_INLINE f32 value(At at, i32 i) {
    const i32 s = at(0)[i / 16];
    return half_at(at(2)) * (f32)(s & 15) * (f32)code(at, i) - half_at(at(2) + 2) * (f32)(s >> 4);
  }

  // d, dmin: half[16] each; then for each part: scale and minimum u8[16], two bits u8[4][16] (of values k, k + 4, ..).
  static constexpr i32 HEAD = 64, PART_BYTES = 80;
  static void cpu_pack(const u8 *from, u8 *to, i32 lane) {
    const FileBlock<FormatQ2_K> at{from};
    ((u16 *)to)[lane] = *(const u16 *)at(2), ((u16 *)to)[16 + lane] = *(const u16 *)(at(2) + 2);
#pragma nounroll
    for (i32 p = 0; p < 16; p++) {
      u8 *part = to + HEAD + PART_BYTES * p + lane;
      part[0] = at(0)[p];
#pragma nounroll
      for (i32 k = 0; k < 4; k++) {
        i32 bits = 0;
#pragma nounroll
        for (i32 i = 0; i < 4; i++) bits |= code(at, 16 * p + k + 4 * i) << 2 * i;
        part[16 + 16 * k] = (u8)bits;
      }
    }
  }
};
template <> struct CpuPart<FormatQ2_K> {
  using F = FormatQ2_K;
  const u8 *q_;
  f32 d, o;
  NS_INLINE CpuPart(const u8 *b, i32 p, i32 lane) {
    const u8 *part = b + F::HEAD + F::PART_BYTES * p;
    const i32 s = part[lane];
    d = half_at(b + 2 * lane) * (f32)(s & 15);
    o = -half_at(b + 32 + 2 * lane) * (f32)(s >> 4);
    q_ = part + 16 + lane;
  }
  NS_INLINE f32 q(i32 j) const { return (f32)(q_[16 * (j % 4)] >> 2 * (j / 4) & 3); }
  template <class G> NS_INLINE void each(G g) const {
    repeat<4>([&](i32 j) __attribute__((always_inline)) {
      const i32 v = q_[16 * j];
      g(j, (f32)(v & 3)), g(j + 4, (f32)(v >> 2 & 3)), g(j + 8, (f32)(v >> 4 & 3)), g(j + 12, (f32)(v >> 6));
    });
  }
};
} // namespace ns
