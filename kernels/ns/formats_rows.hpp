// IQ3, IQ2 and IQ1_M: 4 or 8 values are a row of a table of levels, with signs (see matrix.hpp).
//
// A block is read in 32 parts of 8 values: one row of 8 levels or two of 4. Signs are bits of their own, 7 of 8 in some formats: the
// eighth makes the number of set bits even. read(at, k, part) gives the rows' numbers, the signs and the scale of part k, from the fields of
// a block wherever they are: at.byte(field, n), at.word(field, n), at.dword(field, n).
//
// cpu layout: a file block's bytes in their order, 16 rows together: [unit][16 rows], units being bytes, or words of 2 or 4 bytes.
// The row of the table that a lane needs is looked up 16 words at a time, each lane taking one from the lane that has it: reading the table
// at 16 places would take three times as long.
// gpu layout: planes; a table of int8 levels is in local memory (TABLE words, table(i) is word i).
#pragma once
#include "block.hpp"
#include "grids.hpp"

namespace ns {
template <i32 N> struct Words {
  u32 v[N];
};
// Rows of 16 bits two to a word: row i and row i + N / 2.
template <i32 N> constexpr Words<N / 2> row_pairs(const u16 (&rows)[N]) {
  Words<N / 2> t{};
  for (i32 i = 0; i < N / 2; i++) t.v[i] = (u32)rows[i] | (u32)rows[i + N / 2] << 16;
  return t;
}
inline constexpr Words<128> IQ2_XXS_PAIRS = row_pairs(grids::IQ2_XXS);
inline constexpr Words<256> IQ2_XS_PAIRS = row_pairs(grids::IQ2_XS);
inline constexpr Words<512> IQ2_S_PAIRS = row_pairs(grids::IQ2_S);
inline constexpr Words<128> IQ3_XXS_PAIRS = row_pairs(grids::IQ3_XXS);
inline constexpr Words<256> IQ3_S_PAIRS = row_pairs(grids::IQ3_S);
inline constexpr Words<1024> IQ1_PAIRS = row_pairs(grids::IQ1);

// Levels of codes of 2 and 3 bits; those of IQ1 with the eighth that they are moved by, up (0..2) or down (4..6).
inline constexpr f32 IQ2_LEVEL[16] = {8, 25, 43};
inline constexpr f32 IQ3_XXS_LEVEL[16] = {4, 12, 20, 28, 36, 44, 52, 62};
inline constexpr f32 IQ3_S_LEVEL[16] = {1, 3, 5, 7, 9, 11, 13, 15};
inline constexpr f32 IQ1_LEVEL[16] = {-0.875f, 0.125f, 1.125f, 0, -1.125f, -0.125f, 0.875f};
template <i32 N> constexpr bool are_levels(const i8 (&levels)[N], const f32 (&these)[16], f32 moved = 0) {
  for (i32 i = 0; i < N; i++)
    if (these[i] != (f32)levels[i] + moved) return false;
  return true;
}
static_assert(are_levels(grids::IQ2_XXS_LEVELS, IQ2_LEVEL) && are_levels(grids::IQ2_XS_LEVELS, IQ2_LEVEL));
static_assert(are_levels(grids::IQ2_S_LEVELS, IQ2_LEVEL) && are_levels(grids::IQ1_LEVELS, IQ1_LEVEL, 0.125f));
static_assert(are_levels(grids::IQ3_XXS_LEVELS, IQ3_XXS_LEVEL) && are_levels(grids::IQ3_S_LEVELS, IQ3_S_LEVEL));

// Four levels of 2 or 4 bits to bytes, and their int8 values, for the tables of cards.
NS_INLINE constexpr u32 bytes_of_2(u32 row) {
  row &= 255;
  row = (row | row << 12) & 0x000f000f;
  return (row | row << 6) & 0x03030303;
}
NS_INLINE constexpr u32 bytes_of_4(u32 row) {
  row = (row | row << 8) & 0x00ff00ff;
  return (row | row << 4) & 0x0f0f0f0f;
}
constexpr u32 iq2_bytes(u32 n) { return 0x08080808 + 17 * n + (n >> 1 & 0x01010101); }
constexpr u32 iq3_xxs_bytes(u32 n) { return 0x04040404 + 8 * n + ((n & n >> 1 & n >> 2 & 0x01010101) << 1); }
constexpr u32 iq3_s_bytes(u32 n) { return 0x01010101 + 2 * n; }
template <i32 N> constexpr bool are_bytes(const i8 (&levels)[N], u32 (*bytes)(u32)) {
  for (i32 i = 0; i < N; i++)
    if (bytes(i * 0x01010101u) != (u32)levels[i] * 0x01010101u) return false;
  return true;
}
static_assert(are_bytes(grids::IQ2_XXS_LEVELS, iq2_bytes) && are_bytes(grids::IQ2_XS_LEVELS, iq2_bytes) && are_bytes(grids::IQ2_S_LEVELS, iq2_bytes));
static_assert(are_bytes(grids::IQ3_XXS_LEVELS, iq3_xxs_bytes) && are_bytes(grids::IQ3_S_LEVELS, iq3_s_bytes));

NS_INLINE u32 even_signs(u32 bits) { // of 7 bits
  u32 odd = bits ^ bits >> 4;
  odd ^= odd >> 2;
  odd ^= odd >> 1;
  return bits | odd << 7;
}

// Part of 8 values.
struct RowsPart {
  u32 first, second; // rows of the table
  u32 signs;         // 8 bits; IQ1: 4 for levels moved down
  f32 scale;
};

// Fields of a block that are together: in the file, or in the planes of the gpu layout.
template <class At> struct PlainFields {
  At at;
  NS_INLINE u32 byte(i32 field, i32 n) const { return at(field)[n]; }
  NS_INLINE u32 word(i32 field, i32 n) const { return ((const u16 *)at(field))[n]; }
  NS_INLINE u32 dword(i32 field, i32 n) const { return word(field, 2 * n) | word(field, 2 * n + 1) << 16; }
  NS_INLINE f32 half(i32 field) const { return half_at(at(field)); }
};
// Those of a lane's row of the cpu layout.
template <class F> struct CpuFields {
  const u8 *b;
  i32 lane;
  NS_INLINE u32 byte(i32 field, i32 n) const { return (b + 16 * (F::FIELDS.f[field].offset + n))[lane]; }
  NS_INLINE u32 word(i32 field, i32 n) const { return ((const u16 *)(b + 16 * (F::FIELDS.f[field].offset + 2 * n)))[lane]; }
  NS_INLINE u32 dword(i32 field, i32 n) const { return ((const u32 *)(b + 16 * (F::FIELDS.f[field].offset + 4 * n)))[lane]; }
  NS_INLINE f32 half(i32 field) const { return (f32)((const f16 *)(b + 16 * F::FIELDS.f[field].offset))[lane]; }
};

// What the formats share. F: FIELDS, ROWS (the table), PAIRS, LEVEL, WIDTH (levels of a row), MOVED, unit(byte of a block), read.
template <class F, i32 SIZE> struct FormatRows {
  static constexpr i32 BLOCK = 256, BYTES = SIZE, PART = 8;
  static constexpr bool HAS_OFFSET = false, FLOAT = false, DESCRIBED = true, ONCE = true, MOVED = false;

  // Value j of a part.
  static NS_INLINE f32 value_of(const RowsPart &part, i32 j) {
    if constexpr (F::MOVED) return F::LEVEL[(F::ROWS[part.first] >> 2 * j & 3) | part.signs];
    else {
      const i32 code = F::WIDTH == 8 ? F::ROWS[part.first] >> 2 * j & 3 : F::ROWS[j < 4 ? part.first : part.second] >> 4 * (j & 3) & 7;
      return part.signs >> j & 1 ? -F::LEVEL[code] : F::LEVEL[code];
    }
  }
  template <class At> static NS_INLINE f32 value(At at, i32 i) {
    RowsPart part;
    F::read(PlainFields<At>{at}, i / 8, part);
    return part.scale * value_of(part, i % 8);
  }
  static void cpu_pack(const u8 *from, u8 *to, i32 lane) {
#pragma nounroll
    for (i32 b = 0; b < SIZE;) {
      const i32 unit = F::unit(b);
      u8 *place = to + 16 * b + unit * lane;
      if (unit == 1) place[0] = from[b];
      else ((u16 *)place)[0] = *(const u16 *)(from + b);
      if (unit == 4) ((u16 *)place)[1] = *(const u16 *)(from + b + 2);
      b += unit;
    }
  }
};

// Word `i` of a table of N, 16 words of which are in the lanes at a time.
template <i32 N> NS_INLINE u32 pick(const u32 *table, u32 i, sycl::sub_group sg, i32 lane) {
  if constexpr (N == 16) return sycl::select_from_group(sg, table[lane], i & 15);
  else {
    const u32 low = pick<N / 2>(table, i, sg, lane), high = pick<N / 2>(table + N / 2, i, sg, lane);
    return i & (N / 2) ? high : low;
  }
}

template <class F> struct CpuRowsPart {
  RowsPart part;
  f32 d, o;
  NS_INLINE CpuRowsPart(const u8 *b, i32 p, i32 lane) : o(0) {
    F::read(CpuFields<F>{b, lane}, p, part);
    d = part.scale;
  }
  NS_INLINE f32 q(i32 j) const { return F::value_of(part, j); }
  template <class G> NS_INLINE void each(G g) const {
    constexpr i32 N = sizeof(F::PAIRS) / 4;
    const auto sg = item().get_sub_group();
    const i32 lane = sg.get_local_linear_id();
    const f32 level = F::LEVEL[lane];
    const auto row = [&](u32 i) __attribute__((always_inline)) { return pick<N>(F::PAIRS.v, i, sg, lane) >> (i & N ? 16 : 0); };
    const u32 first = row(part.first), second = F::WIDTH == 8 ? first >> 8 : row(part.second);
    repeat<8>([&](i32 j) __attribute__((always_inline)) {
      const u32 of = j < 4 ? first : second, code = F::WIDTH == 8 ? of >> 2 * (j & 3) & 3 : of >> 4 * (j & 3) & 7;
      if constexpr (F::MOVED) g(j, sycl::select_from_group(sg, level, code | part.signs));
      else {
        const u32 bits = sycl::bit_cast<u32>(sycl::select_from_group(sg, level, code));
        g(j, sycl::bit_cast<f32>(bits ^ (part.signs << (31 - j) & 0x80000000)));
      }
    });
  }
};

struct FormatIQ3_S : FormatRows<FormatIQ3_S, 110> {
  static constexpr Fields<5> FIELDS{{{0, 2}, {2, 64}, {66, 8}, {74, 32}, {106, 4}}}; // d, rows, their ninth bits, signs, scales
  static constexpr auto &ROWS = grids::IQ3_S;
  static constexpr auto &PAIRS = IQ3_S_PAIRS;
  static constexpr auto &LEVEL = IQ3_S_LEVEL;
  static constexpr i32 WIDTH = 4, TABLE = 512;
  static NS_INLINE u32 table(i32 i) { return iq3_s_bytes(bytes_of_4(ROWS[i])); }
  static constexpr i32 unit(i32 byte) { return byte < 2 ? 2 : 1; }
  template <class At> static NS_INLINE void read(At at, i32 k, RowsPart &part) {
    const u32 ninth = at.byte(2, k / 4) >> 2 * (k & 3);
    part.first = at.byte(1, 2 * k) | (ninth << 8 & 256);
    part.second = at.byte(1, 2 * k + 1) | (ninth << 7 & 256);
    part.signs = at.byte(3, k);
    part.scale = at.half(0) * (f32)(i32)(1 + 2 * (at.byte(4, k / 8) >> (k & 4) & 15));
  }
};

struct FormatIQ3_XXS : FormatRows<FormatIQ3_XXS, 98> {
  static constexpr Fields<3> FIELDS{{{0, 2}, {2, 64}, {66, 32}}}; // d, rows, words of four times 7 signs and 4 bits of scale
  static constexpr auto &ROWS = grids::IQ3_XXS;
  static constexpr auto &PAIRS = IQ3_XXS_PAIRS;
  static constexpr auto &LEVEL = IQ3_XXS_LEVEL;
  static constexpr i32 WIDTH = 4, TABLE = 256;
  static NS_INLINE u32 table(i32 i) { return iq3_xxs_bytes(bytes_of_4(ROWS[i])); }
  static constexpr i32 unit(i32 byte) { return byte < 2 ? 2 : byte < 66 ? 1 : 4; }
  template <class At> static NS_INLINE void read(At at, i32 k, RowsPart &part) {
    const u32 word = at.dword(2, k / 4);
    part.first = at.byte(1, 2 * k);
    part.second = at.byte(1, 2 * k + 1);
    part.signs = even_signs(word >> 7 * (k & 3) & 127);
    part.scale = at.half(0) * (0.5f + (f32)(i32)(word >> 28)) * 0.5f;
  }
};

struct FormatIQ2_S : FormatRows<FormatIQ2_S, 82> {
  static constexpr Fields<5> FIELDS{{{0, 2}, {2, 32}, {34, 32}, {66, 8}, {74, 8}}}; // d, rows, signs, two more bits of rows, scales
  static constexpr auto &ROWS = grids::IQ2_S;
  static constexpr auto &PAIRS = IQ2_S_PAIRS;
  static constexpr auto &LEVEL = IQ2_LEVEL;
  static constexpr i32 WIDTH = 8, TABLE = 2048;
  static NS_INLINE u32 table(i32 i) { return iq2_bytes(bytes_of_2((u32)ROWS[i / 2] >> 8 * (i & 1))); }
  static constexpr i32 unit(i32 byte) { return byte < 2 ? 2 : 1; }
  template <class At> static NS_INLINE void read(At at, i32 k, RowsPart &part) {
    part.first = at.byte(1, k) | (at.byte(3, k / 4) >> 2 * (k & 3) & 3) << 8;
    part.signs = at.byte(2, k);
    part.scale = at.half(0) * (0.5f + (f32)(i32)(at.byte(4, k / 4) >> 2 * (k & 2) & 15)) * 0.25f;
  }
};

struct FormatIQ2_XS : FormatRows<FormatIQ2_XS, 74> {
  static constexpr Fields<3> FIELDS{{{0, 2}, {2, 64}, {66, 8}}}; // d, rows (9 bits) with their signs (7 bits), scales
  static constexpr auto &ROWS = grids::IQ2_XS;
  static constexpr auto &PAIRS = IQ2_XS_PAIRS;
  static constexpr auto &LEVEL = IQ2_LEVEL;
  static constexpr i32 WIDTH = 8, TABLE = 1024;
  static NS_INLINE u32 table(i32 i) { return iq2_bytes(bytes_of_2((u32)ROWS[i / 2] >> 8 * (i & 1))); }
  static constexpr i32 unit(i32 byte) { return byte < 66 ? 2 : 1; }
  template <class At> static NS_INLINE void read(At at, i32 k, RowsPart &part) {
    const u32 word = at.word(1, k);
    part.first = word & 511;
    part.signs = even_signs(word >> 9);
    part.scale = at.half(0) * (0.5f + (f32)(i32)(at.byte(2, k / 4) >> 2 * (k & 2) & 15)) * 0.25f;
  }
};

struct FormatIQ2_XXS : FormatRows<FormatIQ2_XXS, 66> {
  static constexpr Fields<2> FIELDS{{{0, 2}, {2, 64}}}; // d; for 32 values four rows and a word of four times 7 signs and 4 bits of scale
  static constexpr auto &ROWS = grids::IQ2_XXS;
  static constexpr auto &PAIRS = IQ2_XXS_PAIRS;
  static constexpr auto &LEVEL = IQ2_LEVEL;
  static constexpr i32 WIDTH = 8, TABLE = 512;
  static NS_INLINE u32 table(i32 i) { return iq2_bytes(bytes_of_2((u32)ROWS[i / 2] >> 8 * (i & 1))); }
  static constexpr i32 unit(i32 byte) { return byte < 2 ? 2 : (byte - 2) % 8 < 4 ? 1 : 4; }
  template <class At> static NS_INLINE void read(At at, i32 k, RowsPart &part) {
    const u32 word = at.dword(1, k / 4 * 2 + 1);
    part.first = at.byte(1, k / 4 * 8 + (k & 3));
    part.signs = even_signs(word >> 7 * (k & 3) & 127);
    part.scale = at.half(0) * (0.5f + (f32)(i32)(word >> 28)) * 0.25f;
  }
};

// Rows of -1, 0 and 1, moved by an eighth one way or the other. The half d is in the upper nibbles of four words.
NS_INLINE f32 iq1_m_d(u32 a, u32 b, u32 c, u32 d) {
  return (f32)sycl::bit_cast<f16>((u16)(a >> 12 | (b >> 8 & 0xf0) | (c >> 4 & 0xf00) | (d & 0xf000)));
}
struct FormatIQ1_M : FormatRows<FormatIQ1_M, 56> {
  static constexpr Fields<3> FIELDS{{{0, 32}, {32, 16}, {48, 8}}}; // rows, three more bits of rows and the way, scales and d
  static constexpr auto &ROWS = grids::IQ1;
  static constexpr auto &PAIRS = IQ1_PAIRS;
  static constexpr auto &LEVEL = IQ1_LEVEL;
  static constexpr i32 WIDTH = 8, TABLE = 4096;
  static constexpr bool MOVED = true;
  // 8 (level) + 128: with 1 more or less no byte carries
  static NS_INLINE u32 table(i32 i) { return 0x78787878 + 8 * bytes_of_2((u32)ROWS[i / 2] >> 8 * (i & 1)); }
  static constexpr i32 unit(i32 byte) { return byte < 48 ? 1 : 2; }
  template <class At> static NS_INLINE void read(At at, i32 k, RowsPart &part) {
    const u32 more = at.byte(1, k / 2) >> 4 * (k & 1);
    part.first = at.byte(0, k) | (more & 7) << 8;
    part.signs = more >> 1 & 4;
    const f32 d = iq1_m_d(at.word(2, 0), at.word(2, 1), at.word(2, 2), at.word(2, 3));
    part.scale = d * (f32)(i32)(2 * (at.word(2, k / 8) >> 3 * (k / 2 & 3) & 7) + 1);
  }
};

#define NS_CPU_ROWS(F)                                                     \
  template <> struct CpuPart<F> : CpuRowsPart<F> {                          \
    NS_INLINE CpuPart(const u8 *b, i32 p, i32 lane) : CpuRowsPart(b, p, lane) {} \
  };
NS_CPU_ROWS(FormatIQ3_S)
NS_CPU_ROWS(FormatIQ3_XXS)
NS_CPU_ROWS(FormatIQ2_S)
NS_CPU_ROWS(FormatIQ2_XS)
NS_CPU_ROWS(FormatIQ2_XXS)
NS_CPU_ROWS(FormatIQ1_M)
#undef NS_CPU_ROWS
} // namespace ns
