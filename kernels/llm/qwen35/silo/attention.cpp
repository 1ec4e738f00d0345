// Causal attention of a prompt chunk on the matrix units, heads of 256 values, cache in half. nskc: large-register-file
//
// out[row][head] = sum_t softmax_t(scale q . k_t) v_t over the session's cells t <= position + row, with a running maximum (online softmax).
// Queries, keys, weights and values are half, sums and the softmax float32.
//
// Eight threads take 32 rows of one head, 256 cells a step: thread t makes the scores of the 32 cells 32 t on (q k^T: 16 slices of 16
// values), the maximum of each row goes round through local memory, then the weights, and thread t adds up the values 32 t .. 32 t + 31 of
// the head over all cells of the step. G heads that share their keys are one work-group, so that these come from the cache near the units.
//
// The keys of 16 cells are [256][16]. As a surface of 64-byte rows (values 2 r and 2 r + 1 of 16 cells) the block load with pairing gives
// (values 4 i and 4 i + 2) from the left half and (4 i + 1, 4 i + 3) from the right one: no instruction is needed for their order when the
// queries have the even values of each 32 first, then the odd ones (queries_f16).
#include "tile.hpp"
using namespace ns;

namespace {
constexpr i32 HEAD = 256, THREADS = 8, ROWS = 32, STEP = 32 * THREADS;
constexpr i32 WEIGHTS = ROWS * STEP * 2, PEAKS = THREADS * ROWS * 4; // bytes of local memory a head
constexpr f32 LEAST = -3.0e38f;
} // namespace

// Work-groups of 8 G threads: n_heads / G * ceil(n_rows / 32). q as queries_f16 writes it, [n_rows][n_heads][256].
template <i32 G>
NS_TILE void attn_tile(const f16 *q, const f16 *kv, f32 *out, i32 n_rows, i32 position, i64 kv_offset, i32 ldo, i32 n_heads, i32 n_kv,
                       i64 layer_offset, i32 capacity, f32 scale) {
  NS_LOCAL(G *(WEIGHTS + PEAKS), local);
  const i32 t = thread_of_group() % THREADS, at = thread_of_group() / THREADS * (WEIGHTS + PEAKS), peaks = at + WEIGHTS;
  const i32 group = item().get_group(0), groups = item().get_group_range(0), across = n_heads / G;
  // the longest rows first: they take longest
  const i32 head = group % across * G + thread_of_group() / THREADS, row0 = (groups / across - 1 - group / across) * ROWS;
  const f16 *keys = kv + kv_offset + layer_offset + (i64)(head / (n_heads / n_kv)) * capacity * HEAD;
  const f16 *values = keys + (i64)n_kv * capacity * HEAD;
  const i32 longest = position + least(row0 + ROWS, n_rows); // cells that the last row sees
  const Surface query{q + head * HEAD, HEAD * 2, n_rows, n_heads * HEAD * 2};
  const Surface key{keys, 64, (longest + 15) / 16 * 128, 64}, value{values, HEAD * 2, longest, HEAD * 2};
  const f32 to_base_2 = scale * 1.44269504f;

  V<f32, 8> o[4][2]; // rows 8 i .., values 32 t + 16 j ..
NS_EACH
  for (i32 i = 0; i < 4; i++) o[i][0] = V<f32, 8>(0.0f), o[i][1] = V<f32, 8>(0.0f);
  Rows<ROWS> m(LEAST), l(0.0f); // maximum so far; sum of this thread's weights
  for (i32 first = 0; first < longest; first += STEP) {
    const i32 cell = first + 32 * t;
    const bool mine = cell < longest;
    V<f32, 8> s[4][2]; // rows 8 i .., cells cell + 16 j ..
    Rows<ROWS> peak(LEAST);
    if (mine) {
NS_EACH
      for (i32 i = 0; i < 4; i++) s[i][0] = V<f32, 8>(0.0f), s[i][1] = V<f32, 8>(0.0f);
      for (i32 d = 0; d < HEAD; d += 32) {
        const V<f16, 64> a = load_rows<32, 2>(query, d, row0);
NS_EACH
        for (i32 j = 0; j < 2; j++) {
          const Pairs<16> b = load_pairs<8, 2>(key, 0, (cell / 16 + j) * 128 + d / 2);
NS_EACH
          for (i32 h = 0; h < 2; h++)
NS_EACH
            for (i32 i = 0; i < 4; i++) multiply(s[i][j], slots<8>(a, 32 * h + 8 * i), pair_slots<8>(b, 8 * h));
        }
      }
      const bool whole = cell + 31 <= position + row0; // every row sees every cell
NS_EACH
      for (i32 i = 0; i < 4; i++) {
NS_EACH
        for (i32 j = 0; j < 2; j++) {
          s[i][j] = s[i][j] * V<f32, 8>(to_base_2);
          if (!whole) hide(s[i][j], cell + 16 * j, position + row0 + 8 * i, LEAST);
        }
        put_rows<8>(peak, 8 * i, row_max(max_tiles(s[i][0], s[i][1])));
      }
    }
    local.store_rows<ROWS>(peaks + t * ROWS * 4, peak);
    barrier();
    peak = m;
NS_EACH
    for (i32 i = 0; i < THREADS; i++) peak = max_rows<ROWS>(peak, local.load_rows<ROWS>(peaks + i * ROWS * 4));
    const Rows<ROWS> shrink = exp2_rows<ROWS>(m - peak);
    m = peak;
    l = l * shrink;
    if (mine) {
NS_EACH
      for (i32 i = 0; i < 4; i++) {
        const V<f32, 8> top = spread(row_part<8>(m, 8 * i));
        Rows<8> sum(0.0f);
NS_EACH
        for (i32 j = 0; j < 2; j++) {
          const V<f32, 8> p = exp2_of(s[i][j] - top);
          sum = sum + row_sum(p);
          local.store<8>(at + ((2 * t + j) * ROWS + 8 * i) * 32, to<f16>(p));
        }
        put_rows<8>(l, 8 * i, row_part<8>(l, 8 * i) + sum);
      }
    }
NS_EACH
    for (i32 i = 0; i < 4; i++) {
      const V<f32, 8> by = spread(row_part<8>(shrink, 8 * i));
      o[i][0] = o[i][0] * by, o[i][1] = o[i][1] * by;
    }
    barrier();
    const i32 last = least(STEP, longest - first); // weights past it are zero as far as the next 32, values past it read as zero
    for (i32 c = 0; c < last; c += 16) {
      const Pairs<16> b = load_pairs<8, 2>(value, 32 * t, first + c);
NS_EACH
      for (i32 i = 0; i < 4; i++) {
        const V<f16, 8> a = local.load<8>(at + (c / 16 * ROWS + 8 * i) * 32);
        multiply(o[i][0], a, pair_slots<8>(b, 0)), multiply(o[i][1], a, pair_slots<8>(b, 8));
      }
    }
    barrier();
  }
  // the sums of all threads
  local.store_rows<ROWS>(peaks + t * ROWS * 4, l);
  barrier();
  l = Rows<ROWS>(0.0f);
NS_EACH
  for (i32 i = 0; i < THREADS; i++) l = l + local.load_rows<ROWS>(peaks + i * ROWS * 4);
  const Rows<ROWS> inverse = inverse_rows<ROWS>(l);
  const Surface to_rows{out + head * HEAD, HEAD * 4, n_rows, ldo * 4};
NS_EACH
  for (i32 i = 0; i < 4; i++) {
    const V<f32, 8> by = spread(row_part<8>(inverse, 8 * i));
NS_EACH
    for (i32 j = 0; j < 2; j++) store_sums(to_rows, 32 * t + 16 * j, row0 + 8 * i, o[i][j] * by);
  }
}

#define ATTN_TILE(G)                                                                                                       \
  NS_TILE_KERNEL void attn_prompt_g##G(const f16 *q, const f16 *kv, f32 *out, i32 n_rows, i32 position, i64 kv_offset,     \
                                       i32 ldo, i32 n_heads, i32 n_kv, i64 layer_offset, i32 capacity, f32 scale) {        \
    attn_tile<G>(q, kv, out, n_rows, position, kv_offset, ldo, n_heads, n_kv, layer_offset, capacity, scale);              \
  }
// Row i sees the cells 0 .. position + i of the session at kv_offset; the number in the name is how many heads a work-group takes, and
// divides n_heads / n_kv.
// arc: dpas, block, slm
ATTN_TILE(1)
ATTN_TILE(2)
ATTN_TILE(4)
