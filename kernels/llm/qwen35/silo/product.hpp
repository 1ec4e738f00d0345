// Products of a packed matrix with many activation rows on the matrix units: y[m][n] (+)= sum_k x[m][k] w[n][k].
//
// The weights are read in their gpu layout and expanded to half in registers, 16 matrix rows (lanes) by 16 columns at a time; each such
// tile is multiplied with MT * 8 rows of x. Sums in float32, in ascending steps of the format. x is half, [m][cols], with the values of each
// four in the order 0, 2, 1, 3 (rows_f16): two values of a word of quants then come out with one mask.
//
// A Source gives STEP columns at a time as TILES tiles of 16: load(step, n) reads what 16 rows from n on need, tile(t) expands tile t, and
// column(step, t) says which columns of x belong to it.
#pragma once
#include "ns/matrix.hpp"
#include "tile.hpp"

namespace ns {
// 1024 + q as a half, for q in the low bits of both halves of a word.
constexpr u32 BIAS = 0x64006400;

struct SourceQ8_0 {
  static constexpr i32 STEP = 32, TILES = 2;
  Surface q;
  const f16 *d;
  i32 blocks, rows;
  struct Loaded {
    V<u32, 8> q;
    Pairs<1> d;
  };
  NS_TILE SourceQ8_0(const u8 *packed, i32 rows, i32 cols)
      : q{packed + GpuPlanes<FormatQ8_0>::start(1, rows, cols), cols, rows, cols}, d((const f16 *)packed), blocks(cols / 32), rows(rows) {}
  static NS_TILE i32 column(i32 step, i32 t) { return 32 * step + 16 * t; }
  NS_TILE Loaded load(i32 step, i32 n) const {
    Loaded l;
    l.q = load_words<8>(q, 8 * step, n);
    l.d = twice(load_halves(d + (i64)least(n, rows - 1) * blocks + step, blocks, least(15, rows - 1 - least(n, rows - 1))));
    return l;
  }
  NS_TILE static Pairs<8> tile(const Loaded &l, i32 t) {
    Pairs<8> b;
NS_EACH
    for (i32 i = 0; i < 4; i++) {
      const V<u32, 1> w = slots<1>(l.q, 4 * t + i);
      // 1024 + 128 + q, q a signed byte
      put_pairs<1>(b, 2 * i, (as_pairs((w & V<u32, 1>(0x00ff00ff)) ^ V<u32, 1>(0x64806480)) - Pairs<1>((f16)1152.0f)) * l.d);
      put_pairs<1>(b, 2 * i + 1, (as_pairs(((w >> 8) & V<u32, 1>(0x00ff00ff)) ^ V<u32, 1>(0x64806480)) - Pairs<1>((f16)1152.0f)) * l.d);
    }
    return b;
  }
};

struct SourceQ4_K {
  static constexpr i32 STEP = 64, TILES = 4;
  Surface blocks;
  struct Loaded {
    V<u32, 8> q;
    Pairs<1> d[2], m[2];
  };
  NS_TILE SourceQ4_K(const u8 *packed, i32 rows, i32 cols) : blocks{packed, cols / 256 * 144, rows, cols / 256 * 144} {}
  static NS_TILE i32 column(i32 step, i32 t) { return 64 * step + 16 * t; }
  NS_TILE Loaded load(i32 step, i32 n) const {
    const i32 block = step >> 2, g = step & 3;
    const V<u32, 4> head = load_words<4>(blocks, 36 * block, n);
    Loaded l;
    l.q = load_words<8>(blocks, 36 * block + 4 + 8 * g, n);
    const V<u32, 1> s0 = slots<1>(head, 1), s1 = slots<1>(head, 2), s2 = slots<1>(head, 3);
    const i32 shift = (g & 1) * 16;
    V<u32, 1> scales, minima; // of both groups, a byte each
    if (g < 2) {
      scales = (s0 >> shift) & V<u32, 1>(0x3f3f), minima = (s1 >> shift) & V<u32, 1>(0x3f3f);
    } else {
      scales = ((s2 >> shift) & V<u32, 1>(0x0f0f)) | ((s0 >> (shift + 2)) & V<u32, 1>(0x3030));
      minima = ((s2 >> (shift + 4)) & V<u32, 1>(0x0f0f)) | ((s1 >> (shift + 2)) & V<u32, 1>(0x3030));
    }
    const V<f32, 1> d = as_half(slots<1>(head, 0)), m = as_half(slots<1>(head, 0) >> 16);
    l.d[0] = twice(to<f16>(d * to<f32>(scales & V<u32, 1>(63)))), l.d[1] = twice(to<f16>(d * to<f32>(scales >> 8)));
    l.m[0] = twice(to<f16>(V<f32, 1>(0.0f) - m * to<f32>(minima & V<u32, 1>(63))));
    l.m[1] = twice(to<f16>(V<f32, 1>(0.0f) - m * to<f32>(minima >> 8)));
    return l;
  }
  NS_TILE static Pairs<8> tile(const Loaded &l, i32 t) {
    Pairs<8> b;
    const i32 high = t >> 1; // tiles 0, 1: low nibbles; 2, 3: high ones
NS_EACH
    for (i32 i = 0; i < 4; i++) {
      const V<u32, 1> w = slots<1>(l.q, 4 * (t & 1) + i);
      const V<u32, 1> even = high ? w >> 4 : w, odd = w >> (8 + 4 * high);
      const V<u32, 1> mask(0x000f000f), bias(BIAS);
      put_pairs<1>(b, 2 * i, fma_pairs(as_pairs((even & mask) | bias) - Pairs<1>((f16)1024.0f), l.d[high], l.m[high]));
      put_pairs<1>(b, 2 * i + 1, fma_pairs(as_pairs((odd & mask) | bias) - Pairs<1>((f16)1024.0f), l.d[high], l.m[high]));
    }
    return b;
  }
};

// A step is 16 of the 32 places l of a half block (values 128 h + 32 j + l), tile j the values of row j.
struct SourceQ6_K {
  static constexpr i32 STEP = 64, TILES = 4;
  Surface low, high, scales;
  const f16 *d;
  i32 blocks, rows;
  struct Loaded {
    V<u32, 8> low;
    V<u32, 4> high;
    Pairs<1> d[4];
  };
  NS_TILE SourceQ6_K(const u8 *packed, i32 rows, i32 cols)
      : low{packed, cols / 2, rows, cols / 2}, high{packed + GpuPlanes<FormatQ6_K>::start(1, rows, cols), cols / 4, rows, cols / 4},
        scales{packed + GpuPlanes<FormatQ6_K>::start(2, rows, cols), cols / 16, rows, cols / 16},
        d((const f16 *)(packed + GpuPlanes<FormatQ6_K>::start(3, rows, cols))), blocks(cols / 256), rows(rows) {}
  static NS_TILE i32 column(i32 step, i32 t) { return (step >> 1) * 128 + 32 * t + 16 * (step & 1); }
  NS_TILE Loaded load(i32 step, i32 n) const {
    const i32 block = step >> 2, half = step >> 1, e = step & 1;
    Loaded l;
    put<4>(l.low, 0, load_words<4>(low, 16 * half + 4 * e, n));
    put<4>(l.low, 4, load_words<4>(low, 16 * half + 8 + 4 * e, n));
    l.high = load_words<4>(high, 8 * half + 4 * e, n);
    const V<u32, 2> sc = load_words<2>(scales, 2 * half, n);
    const V<f32, 1> scale = to<f32>(load_halves(d + (i64)least(n, rows - 1) * blocks + block, blocks, least(15, rows - 1 - least(n, rows - 1))));
NS_EACH
    for (i32 j = 0; j < 4; j++) {
      const i32 up = (j & 1 ? 8 : 24) - 8 * e; // byte 2 (j % 2) + e to the top
      l.d[j] = twice(to<f16>(scale * to<f32>(signed_words(slots<1>(sc, j >> 1) << up) >> 24)));
    }
    return l;
  }
  NS_TILE static Pairs<8> tile(const Loaded &l, i32 j) {
    Pairs<8> b;
NS_EACH
    for (i32 i = 0; i < 4; i++) {
      const V<u32, 1> w = slots<1>(l.low, 4 * (j & 1) + i), h = slots<1>(l.high, i);
      const i32 a = 4 * (j >> 1); // nibble
NS_EACH
      for (i32 odd = 0; odd < 2; odd++) {
        const i32 s = 2 * j + 8 * odd - 4; // of the two high bits, to bits 4 and 5
        const V<u32, 1> nibble = a + 8 * odd ? w >> (a + 8 * odd) : w, bits = s < 0 ? h << (s < 0 ? -s : 0) : s > 0 ? h >> (s > 0 ? s : 0) : h;
        const V<u32, 1> q = (nibble & V<u32, 1>(0x000f000f)) | V<u32, 1>(BIAS) | (bits & V<u32, 1>(0x00300030));
        put_pairs<1>(b, 2 * i + odd, (as_pairs(q) - Pairs<1>((f16)1056.0f)) * l.d[j]);
      }
    }
    return b;
  }
};

// A thread makes MT * 8 rows by NT * 16 columns of y. Threads of a group are 4 (2, 1 when y has fewer rows) beside one another along the
// rows, so that they share the weights, the others along the columns, so that they share x; groups run along the rows first.
// Work-groups: ceil(tiles of rows / share) * ceil(tiles of columns / (threads / share)).
template <class Source, i32 MT, i32 NT>
NS_TILE void tile_product(const u8 *packed, const f16 *x, f32 *y, i32 m, i32 rows, i32 cols, i32 ldy, i32 add) {
  const i32 tiles = (m + 8 * MT - 1) / (8 * MT), share = tiles > 2 ? 4 : tiles, groups = (tiles + share - 1) / share;
  const i32 group = item().get_group(0), me = thread_of_group(), beside = threads_of_group() / share;
  const i32 m0 = (group % groups * share + me % share) * 8 * MT, n0 = (group / groups * beside + me / share) * 16 * NT;
  if (m0 >= m || n0 >= rows) return;
  const Surface left{x, 2 * cols, m, 2 * cols}, out{y, 4 * rows, m, 4 * ldy};
  const Source source(packed, rows, cols);
  V<f32, 8> c[MT][NT];
NS_EACH
  for (i32 i = 0; i < MT; i++)
NS_EACH
    for (i32 j = 0; j < NT; j++) {
      if (add) c[i][j] = load_sums(out, n0 + 16 * j, m0 + 8 * i);
      else c[i][j] = V<f32, 8>(0.0f);
    }
  const i32 steps = cols / Source::STEP;
  for (i32 step = 0; step < steps; step++) {
    typename Source::Loaded loaded[NT];
NS_EACH
    for (i32 j = 0; j < NT; j++) loaded[j] = source.load(step, n0 + 16 * j);
NS_EACH
    for (i32 t = 0; t < Source::TILES; t++) {
      V<f16, 32> a[MT / 4];
NS_EACH
      for (i32 i = 0; i < MT / 4; i++) a[i] = load_rows<32, 1>(left, Source::column(step, t), m0 + 32 * i);
NS_EACH
      for (i32 j = 0; j < NT; j++) {
        const Pairs<8> b = Source::tile(loaded[j], t);
NS_EACH
        for (i32 i = 0; i < MT; i++) multiply(c[i][j], slots<8>(a[i / 4], i % 4 * 8), b);
      }
    }
  }
NS_EACH
  for (i32 i = 0; i < MT; i++)
NS_EACH
    for (i32 j = 0; j < NT; j++) store_sums(out, n0 + 16 * j, m0 + 8 * i, c[i][j]);
}
} // namespace ns

#define NS_TILE_PRODUCT(NAME, SOURCE, MT)                                                                                  \
  NS_TILE_KERNEL void NAME(const u8 *packed, const f16 *x, f32 *y, i32 m, i32 rows, i32 cols, i32 ldy, i32 add) {          \
    tile_product<SOURCE, MT, 2>(packed, x, y, m, rows, cols, ldy, add);                                                    \
  }
