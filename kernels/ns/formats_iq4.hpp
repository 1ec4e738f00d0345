// IQ4_NL and IQ4_XS: nibbles that are numbers of levels (see matrix.hpp).
#pragma once
#include "block.hpp"

namespace ns {
constexpr i8 IQ4_LEVELS[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

// 16 bytes of nibbles of 16 rows, as Q4_0 has them. The level of each lane's nibble comes from the lane with that number.
struct CpuIq4 {
  const u8 *q_;
  f32 d, o;
  NS_INLINE f32 q(i32 j) const { return (f32)IQ4_LEVELS[j < 16 ? q_[16 * j] & 15 : q_[16 * (j - 16)] >> 4]; }
  template <class G> NS_INLINE void each(G g) const {
    const auto sg = item().get_sub_group();
    const f32 level = (f32)IQ4_LEVELS[sg.get_local_linear_id() & 15];
    repeat<16>([&](i32 j) __attribute__((always_inline)) {
      const u32 v = q_[16 * j];
      g(j, sycl::select_from_group(sg, level, v & 15)), g(j + 16, sycl::select_from_group(sg, level, v >> 4));
    });
  }
};

// On cards a table gives both levels of a byte: the low nibble's in bits 0 .. 7, the high one's in 16 .. 23.
NS_INLINE u32 iq4_pair(i32 byte) { return (u8)IQ4_LEVELS[byte & 15] | (u32)(u8)IQ4_LEVELS[byte >> 4] << 16; }

struct FormatIQ4_NL { // d, 16 bytes of nibbles
  static constexpr i32 BLOCK = 32, BYTES = 18, PART = 32, TABLE = 256;
  static constexpr bool HAS_OFFSET = false, FLOAT = false, DESCRIBED = true, ONCE = true;
  static constexpr Fields<2> FIELDS{{{0, 2}, {2, 16}}};
  static NS_INLINE u32 table(i32 i) { return iq4_pair(i); }

  template <class At> static NS_INLINE f32 value(At at, i32 i) {
    return half_at(at(0)) * (f32)IQ4_LEVELS[i < 16 ? at(1)[i] & 15 : at(1)[i - 16] >> 4];
  }
  // d half[16], q u8[16][16].
  static void cpu_pack(const u8 *from, u8 *to, i32 lane) {
    ((u16 *)to)[lane] = *(const u16 *)from;
#pragma nounroll
    for (i32 j = 0; j < 16; j++) to[32 + 16 * j + lane] = from[2 + j];
  }
};
template <> struct CpuPart<FormatIQ4_NL> : CpuIq4 {
  NS_INLINE CpuPart(const u8 *b, i32 p, i32 lane) : CpuIq4{b + 32 + lane, half_at(b + 2 * lane), 0} {}
};

struct FormatIQ4_XS { // d, 16 bits of the scales' upper two, 4 bytes of the scales' nibbles, 128 bytes of nibbles
  static constexpr i32 BLOCK = 256, BYTES = 136, PART = 32, TABLE = 256, CPU_BYTES = 138;
  static constexpr bool HAS_OFFSET = false, FLOAT = false, DESCRIBED = true, ONCE = true;
  static constexpr Fields<2> FIELDS{{{0, 8}, {8, 128}}};
  static NS_INLINE u32 table(i32 i) { return iq4_pair(i); }

  template <class At> static NS_INLINE i32 scale(At at, i32 g) {
    const u8 *b = at(0);
    return ((b[4 + g / 2] >> 4 * (g & 1) & 15) | (*(const u16 *)(b + 2) >> 2 * g & 3) << 4) - 32;
  }
  template <class At> static NS_INLINE f32 value(At at, i32 i) {
    const i32 l = i % 32;
    const u8 *q = at(1) + 16 * (i / 32);
    return half_at(at(0)) * (f32)scale(at, i / 32) * (f32)IQ4_LEVELS[l < 16 ? q[l] & 15 : q[l - 16] >> 4];
  }
  // d half[16]; then for each part: scale i8[16], q u8[16][16].
  static constexpr i32 HEAD = 32, PART_BYTES = 272;
  static void cpu_pack(const u8 *from, u8 *to, i32 lane) {
    const FileBlock<FormatIQ4_XS> at{from};
    ((u16 *)to)[lane] = *(const u16 *)from;
#pragma nounroll
    for (i32 g = 0; g < 8; g++) {
      u8 *part = to + HEAD + PART_BYTES * g + lane;
      part[0] = (u8)scale(at, g);
#pragma nounroll
      for (i32 j = 0; j < 16; j++) part[16 + 16 * j] = at(1)[16 * g + j];
    }
  }
};
template <> struct CpuPart<FormatIQ4_XS> : CpuIq4 {
  using F = FormatIQ4_XS;
  NS_INLINE CpuPart(const u8 *b, i32 p, i32 lane) {
    const u8 *part = b + F::HEAD + F::PART_BYTES * p;
    d = half_at(b + 2 * lane) * (f32)((const i8 *)part)[lane];
    o = 0;
    q_ = part + 16 + lane;
  }
};
} // namespace ns
