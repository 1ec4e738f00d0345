// Attention over a key-value cache: decode rows (keys split by each row's own length) and prompt chunks (causal).
// Softmax with the maximum subtracted, sums in float32. For the cache of one head see kv.hpp. A session starts on a block:
// row.kv_offset is a multiple of 16 head_dim.
//
// A module holds the kernels of one cache precision, ATTENTION(kv16, f16): those of decode rows per head width, _h64, _h128, _h256,
// and _hx for any multiple of 16 (eight bits: of 32) up to 256.
#pragma once
#include "attention.hpp"
#include "exp.hpp"
#include "kernel.hpp"
#include "kv.hpp"
#include "rows.hpp"

namespace ns {
constexpr i32 BLOCK = CELLS; // keys of a cache block

// NJ vectors of 16 values hold a head; EXACT when head_dim = 16 NJ, else head_dim <= 16 NJ.
template <i32 NJ, bool EXACT> NS_INLINE bool has(i32 j, i32 head_dim) { return EXACT || j * 16 < head_dim; }

// One value of a register vector for all lanes; `lane` is a constant after unrolling.
NS_INLINE f32 pick(sycl::sub_group sg, f32 v, i32 lane) { return sycl::select_from_group(sg, v, lane); }

// The sum of q[d] k[d] over d < n for the lane's key of a block: four partial sums.
template <class KV> NS_INLINE f32 dot_keys(const f32 *q, const KV *k, i32 n) {
  f32 s0 = 0, s1 = 0, s2 = 0, s3 = 0;
#pragma unroll 4
  for (i32 d = 0; d < n; d += 4) {
    s0 = sycl::fma(q[d], (f32)k[d * BLOCK], s0);
    s1 = sycl::fma(q[d + 1], (f32)k[(d + 1) * BLOCK], s1);
    s2 = sycl::fma(q[d + 2], (f32)k[(d + 2) * BLOCK], s2);
    s3 = sycl::fma(q[d + 3], (f32)k[(d + 3) * BLOCK], s3);
  }
  return (s0 + s1) + (s2 + s3);
}

// The same of eight-bit keys, 32 of their values; a lane reads four at once.
NS_INLINE f32 dot_keys8(const f32 *q, const i32 *k) {
  f32 s[4] = {0, 0, 0, 0};
#pragma unroll 2
  for (i32 d = 0; d < 32; d += 4) {
    const i32 four = k[d / 4 * BLOCK];
    repeat<4>([&](i32 i) { s[i] = sycl::fma(q[d + i], byte_of(four, i), s[i]); });
  }
  return (s[0] + s[1]) + (s[2] + s[3]);
}

// f(t, weights of cells t .. t + 3) for t = 0, 4, 8, 12; lane t has the weight of cell t. Not unrolled: a kernel of more than some two
// hundred multiply-adds in a row is ten times slower on the CPU.
template <class F> NS_INLINE void by_fours(sycl::sub_group sg, f32 weights, F f) {
  const i32 lane = sg.get_local_linear_id();
#pragma unroll 1
  for (i32 t = 0; t < BLOCK; t += 4) {
    const f32 four[4] = {pick(sg, weights, 0), pick(sg, weights, 1), pick(sg, weights, 2), pick(sg, weights, 3)};
    f(t, four);
    weights = sycl::select_from_group(sg, weights, (lane + 4) % BLOCK);
  }
}

// Partial attention of one (row, head, piece): scores s_t = scale q . k_t for the piece's cells t <= position,
// partial = [sum_t e^(s_t - m) v_t (head_dim), m, sum_t e^(s_t - m)]. Layout [row][head][n_splits][head_dim + 2].
// One sub-group each, groups = rows * n_heads * n_splits; pieces past the row's last do nothing.
template <i32 NJ, bool EXACT, class KV>
NS_INLINE void attn_split(const f32 *q, const KV *kv, const RowState *rows, f32 *partial, i32 ldq, i32 n_heads, i32 n_kv, i32 head_dim,
                       i64 layer_offset, i32 capacity, f32 scale, i32 n_splits) {
  const Item it = item();
  const auto sg = it.get_sub_group();
  const i32 lane = sg.get_local_linear_id();
  const i64 group = it.get_group(0);
  // what reads the same piece of a session follows each other: the heads of a key head, the rows
  const i32 sharing = n_heads / n_kv, n_rows = it.get_group_range(0) / (n_heads * n_splits);
  const i32 row = group / sharing % n_rows, split = group / sharing / n_rows % n_splits, kv_head = group / sharing / n_rows / n_splits;
  const i32 head = kv_head * sharing + group % sharing;
  const RowState state = rows[row];
  const i32 length = state.position + 1, first = split * SPLIT_KEYS;
  if (first >= length) return;
  const i32 last = least(length, first + SPLIT_KEYS);
  const KV *keys = kv_at(kv, state.kv_offset + layer_offset + (i64)kv_head * capacity * head_dim);
  const KV *values = kv_at(keys, (i64)n_kv * capacity * head_dim);
  q += (i64)row * ldq + (i64)head * head_dim;
  f32 acc[NJ];
#pragma unroll
  for (i32 j = 0; j < NJ; j++) acc[j] = 0;
  f32 m = -3.0e38f, l = 0;
  for (i32 block = first; block < last; block += BLOCK) {
    const KV *k = kv_at(keys, (i64)block * head_dim);
    f32 dot = 0;
    if constexpr (std::is_same_v<KV, i8>) {
      const f16 *scales = scales_of(k, head_dim) + lane;
      for (i32 g = 0; g < head_dim / 32; g++)
        dot = sycl::fma(dot_keys8(q + g * 32, (const i32 *)k + g * 8 * BLOCK + lane), (f32)scales[g * BLOCK], dot);
    } else {
      dot = dot_keys(q, k + lane, head_dim);
    }
    const bool seen = block + lane < last;
    const f32 s = seen ? dot * scale : -3.0e38f;
    const f32 peak = sycl::fmax(m, sycl::reduce_over_group(sg, s, sycl::maximum<f32>()));
    const f32 shrink = sycl::exp(m - peak), p = seen ? sycl::exp(s - peak) : 0.0f;
    m = peak;
    l = l * shrink + p; // per lane; summed over the lanes at the end
#pragma unroll
    for (i32 j = 0; j < NJ; j++) acc[j] *= shrink;
    // cells past the end have weight 0; what is stored behind it may be NaN
    const KV *v = kv_at(values, (i64)block * head_dim);
    if constexpr (std::is_same_v<KV, i8>) {
      const f16 *scales = scales_of(v, head_dim) + lane;
      const i32 *fours = (const i32 *)v + lane;
#pragma unroll
      for (i32 j = 0; j < NJ; j += 2)
        if (has<NJ, EXACT>(j, head_dim))
          by_fours(sg, seen ? p * (f32)scales[j / 2 * BLOCK] : 0.0f, [&](i32 t, const f32(&weight)[4]) {
            const i32 low = fours[t / 4 * head_dim + j * 16], high = fours[t / 4 * head_dim + j * 16 + 16];
            repeat<4>([&](i32 i) {
              acc[j] = sycl::fma(weight[i], byte_of(low, i), acc[j]);
              acc[j + 1] = sycl::fma(weight[i], byte_of(high, i), acc[j + 1]);
            });
          });
    } else {
      const i32 most = last - block - 1; // the others are read from the last one
      by_fours(sg, p, [&](i32 t, const f32(&weight)[4]) {
#pragma unroll
        for (i32 j = 0; j < NJ; j++)
          if (has<NJ, EXACT>(j, head_dim))
            repeat<4>([&](i32 i) {
              acc[j] = sycl::fma(weight[i], (f32)v[(i64)least(t + i, most) * head_dim + j * 16 + lane], acc[j]);
            });
      });
    }
  }
  l = sycl::reduce_over_group(sg, l, sycl::plus<f32>());
  f32 *out = partial + (((i64)row * n_heads + head) * n_splits + split) * (head_dim + 2);
#pragma unroll
  for (i32 j = 0; j < NJ; j++)
    if (has<NJ, EXACT>(j, head_dim)) out[j * 16 + lane] = acc[j];
  if (lane == 0) out[head_dim] = m, out[head_dim + 1] = l;
}

// Causal attention of a chunk: row i of the chunk sees the session's cells 0..position + i.
// out[row][head] = sum_t softmax_t(scale q . k_t) v_t, 32 keys a step with a running maximum.
//
// A lane is LANE_ROWS rows: keys and values are read by all lanes at once, and every lane keeps its queries, sums and weights in its
// own columns of local memory, so nothing is exchanged and no barrier is needed. One sub-group takes NS_SG * LANE_ROWS rows of one
// head; groups = ceil(n_rows / that) * n_heads; local memory (2 head_dim + 32) * NS_SG * LANE_ROWS floats.
// On the CPU give it the float32 form of a half cache (expand_kv), of which there is another form below.
#ifdef NS_GPU
constexpr i32 LANE_ROWS = 1; // local memory is what limits it
#else
constexpr i32 LANE_ROWS = 2; // each broadcast key feeds two vectors
#endif
template <i32 KEYS, i32 R, i32 WIDTH, class KV>
NS_INLINE void score_keys(const f32 *query, const KV *block, i32 cell, i32 from, i32 to, f32 (&s)[KEYS][R]) {
#pragma unroll 2
  for (i32 d = from; d < to; d++) {
    f32 a[R];
#pragma unroll
    for (i32 r = 0; r < R; r++) a[r] = query[d * WIDTH + r * NS_SG];
#pragma unroll
    for (i32 t = 0; t < KEYS; t++) {
      const f32 b = (f32)block[std::is_same_v<KV, i8> ? key_place(d, cell + t) : d * BLOCK + cell + t];
#pragma unroll
      for (i32 r = 0; r < R; r++) s[t][r] = sycl::fma(a[r], b, s[t][r]);
    }
  }
}
template <class KV>
NS_INLINE void attn_prompt(const f32 *q, const KV *kv, f32 *out, i32 n_rows, i32 position, i64 kv_offset, i32 ldq, i32 ldo, i32 n_heads,
                        i32 n_kv, i32 head_dim, i64 layer_offset, i32 capacity, f32 scale, f32 *local) {
  constexpr i32 STEP = 32, KEYS = 8, COLUMNS = 8, R = LANE_ROWS, WIDTH = NS_SG * R;
  const Item it = item();
  const auto sg = it.get_sub_group();
  const i32 lane = sg.get_local_linear_id();
  // the longest rows first: they take longest
  const i32 group = it.get_group(0), groups = it.get_group_range(0);
  const i32 head = group % n_heads, row0 = (groups / n_heads - 1 - group / n_heads) * WIDTH;
  const KV *keys = kv_at(kv, kv_offset + layer_offset + (i64)(head / (n_heads / n_kv)) * capacity * head_dim);
  const KV *values = kv_at(keys, (i64)n_kv * capacity * head_dim);
  f32 *query = local + lane, *acc = query + head_dim * WIDTH, *weight = acc + head_dim * WIDTH;
  f32 m[R], l[R];
  i32 length[R]; // cells that the row sees
#pragma unroll
  for (i32 r = 0; r < R; r++) {
    const i32 row = row0 + r * NS_SG + lane;
    const f32 *own = q + (i64)least(row, n_rows - 1) * ldq + (i64)head * head_dim;
    for (i32 d = 0; d < head_dim; d++) query[d * WIDTH + r * NS_SG] = own[d] * scale, acc[d * WIDTH + r * NS_SG] = 0;
    m[r] = -3.0e38f, l[r] = 0, length[r] = position + row + 1;
  }
  const i32 longest = least(position + row0 + WIDTH, position + n_rows);
  const i32 last_block = (longest - 1) / BLOCK;
  for (i32 first = 0; first < longest; first += STEP) {
    f32 peak[R];
#pragma unroll
    for (i32 r = 0; r < R; r++) peak[r] = m[r];
    for (i32 t0 = 0; t0 < STEP; t0 += KEYS) {
      // keys past the end come from the last block; they are masked
      const i32 at = first + t0, block = least(at / BLOCK, last_block);
      const KV *start = kv_at(keys, (i64)block * BLOCK * head_dim);
      f32 s[KEYS][R];
#pragma unroll
      for (i32 t = 0; t < KEYS; t++)
#pragma unroll
        for (i32 r = 0; r < R; r++) s[t][r] = 0;
      if constexpr (std::is_same_v<KV, i8>) {
        const f16 *scales = scales_of(start, head_dim) + at % BLOCK;
        for (i32 g = 0; g < head_dim / 32; g++) {
          f32 part[KEYS][R];
#pragma unroll
          for (i32 t = 0; t < KEYS; t++)
#pragma unroll
            for (i32 r = 0; r < R; r++) part[t][r] = 0;
          score_keys<KEYS, R, WIDTH>(query, start, at % BLOCK, g * 32, g * 32 + 32, part);
#pragma unroll
          for (i32 t = 0; t < KEYS; t++) {
            const f32 b = (f32)scales[g * BLOCK + t];
#pragma unroll
            for (i32 r = 0; r < R; r++) s[t][r] = sycl::fma(part[t][r], b, s[t][r]);
          }
        }
      } else {
        score_keys<KEYS, R, WIDTH>(query, start, at % BLOCK, 0, head_dim, s);
      }
#pragma unroll
      for (i32 t = 0; t < KEYS; t++)
#pragma unroll
        for (i32 r = 0; r < R; r++) {
          const f32 v = at + t < length[r] ? s[t][r] : -3.0e38f;
          peak[r] = sycl::fmax(peak[r], v);
          weight[(t0 + t) * WIDTH + r * NS_SG] = v;
        }
    }
    const i32 n = least(STEP, longest - first);
    f32 shrink[R];
#pragma unroll
    for (i32 r = 0; r < R; r++) {
      shrink[r] = sycl::exp(m[r] - peak[r]);
      m[r] = peak[r];
      l[r] *= shrink[r];
    }
    for (i32 t = 0; t < n; t++) {
#pragma unroll
      for (i32 r = 0; r < R; r++) {
        f32 *w = weight + t * WIDTH + r * NS_SG;
        const f32 p = first + t < length[r] ? sycl::exp(*w - peak[r]) : 0.0f;
        *w = p;
        l[r] += p;
      }
    }
    const KV *v = kv_at(values, (i64)first * head_dim);
    for (i32 d = 0; d < head_dim; d += COLUMNS) {
      f32 a[COLUMNS][R];
#pragma unroll
      for (i32 i = 0; i < COLUMNS; i++)
#pragma unroll
        for (i32 r = 0; r < R; r++) a[i][r] = acc[(d + i) * WIDTH + r * NS_SG] * shrink[r];
#pragma unroll 2
      for (i32 t = 0; t < n; t++) {
        f32 p[R];
#pragma unroll
        for (i32 r = 0; r < R; r++) p[r] = weight[t * WIDTH + r * NS_SG];
        const KV *cell = v + (i64)t * head_dim + d;
        constexpr i32 APART = std::is_same_v<KV, i8> ? 4 : 1;
        if constexpr (std::is_same_v<KV, i8>) {
          const i8 *start = kv_at(v, (i64)(t / BLOCK) * BLOCK * head_dim);
          cell = start + value_place(d, t % BLOCK, head_dim);
          const f32 scale_of_cell = (f32)scales_of(start, head_dim)[d / 32 * BLOCK + t % BLOCK];
#pragma unroll
          for (i32 r = 0; r < R; r++) p[r] *= scale_of_cell;
        }
#pragma unroll
        for (i32 i = 0; i < COLUMNS; i++) {
          const f32 b = (f32)cell[i * APART];
#pragma unroll
          for (i32 r = 0; r < R; r++) a[i][r] = sycl::fma(p[r], b, a[i][r]);
        }
      }
#pragma unroll
      for (i32 i = 0; i < COLUMNS; i++)
#pragma unroll
        for (i32 r = 0; r < R; r++) acc[(d + i) * WIDTH + r * NS_SG] = a[i][r];
    }
  }
#pragma unroll
  for (i32 r = 0; r < R; r++) {
    const i32 row = row0 + r * NS_SG + lane;
    const f32 inverse = 1.0f / l[r];
    if (row < n_rows)
      for (i32 d = 0; d < head_dim; d++) out[(i64)row * ldo + (i64)head * head_dim + d] = acc[d * WIDTH + r * NS_SG] * inverse;
  }
}

#ifdef NS_CPU
// The same of a float32 cache on the CPU, as two small products: scores, where a lane is a key, and sums of values, where a lane is a
// value; queries and weights are read by all lanes at once. A sub-group takes TILE rows of one head, STEP cells at a time; local
// memory TILE (2 MOST_HEAD + STEP + 48) floats.
constexpr i32 MOST_HEAD = 256, PROMPT_STEP = 64, EIGHT = 8;

// s[r][c] += sum of a[r][i] b[c][i] over i < n: EIGHT rows, APART floats from each other, and COLUMNS vectors of columns, whose rows are
// `step` floats apart. END: with nothing in place of rows of `b` from `end` on. n is a constant or an argument of the kernel: with a bound
// that depends on the work-group the CPU compiler goes through the loop lane by lane.
template <i32 APART, bool END, i32 COLUMNS>
NS_INLINE void add_products(const f32 *a, const f32 *const (&b)[COLUMNS], i32 step, i32 n, i32 end, f32 (&s)[EIGHT][COLUMNS]) {
#pragma unroll 2
  for (i32 i = 0; i < n; i++) {
    f32 x[COLUMNS];
#pragma unroll
    for (i32 c = 0; c < COLUMNS; c++) {
      x[c] = b[c][i * step];
      if constexpr (END) x[c] = i < end ? x[c] : 0.0f;
    }
#pragma unroll
    for (i32 r = 0; r < EIGHT; r++) {
      const f32 v = a[r * APART + i];
#pragma unroll
      for (i32 c = 0; c < COLUMNS; c++) s[r][c] = sycl::fma(v, x[c], s[r][c]);
    }
  }
}

// Adds n weighted values to the sums of EIGHT rows, after these shrank.
template <bool END, i32 COLUMNS>
NS_INLINE void add_values(f32 *acc, const f32 *shrinks, const f32 *weight, const f32 *values, i32 head_dim, i32 n, i32 end) {
  f32 s[EIGHT][COLUMNS];
  const f32 *from[COLUMNS];
#pragma unroll
  for (i32 c = 0; c < COLUMNS; c++) from[c] = values + c * BLOCK;
#pragma unroll
  for (i32 r = 0; r < EIGHT; r++)
#pragma unroll
    for (i32 c = 0; c < COLUMNS; c++) s[r][c] = acc[r * MOST_HEAD + c * BLOCK] * shrinks[r * BLOCK];
  add_products<PROMPT_STEP, END>(weight, from, head_dim, n, end, s);
#pragma unroll
  for (i32 r = 0; r < EIGHT; r++)
#pragma unroll
    for (i32 c = 0; c < COLUMNS; c++) acc[r * MOST_HEAD + c * BLOCK] = s[r][c];
}

// The same of all columns and rows.
template <bool END>
NS_INLINE void add_cells(f32 *acc, const f32 *shrinks, const f32 *weight, const f32 *values, i32 head_dim, i32 rows, i32 n, i32 end) {
  i32 d = 0;
  for (; d + BLOCK < head_dim; d += 2 * BLOCK)
    for (i32 r = 0; r < rows; r += EIGHT)
      add_values<END, 2>(acc + r * MOST_HEAD + d, shrinks + r * BLOCK, weight + r * PROMPT_STEP, values + d, head_dim, n, end);
  if (d < head_dim)
    for (i32 r = 0; r < rows; r += EIGHT)
      add_values<END, 1>(acc + r * MOST_HEAD + d, shrinks + r * BLOCK, weight + r * PROMPT_STEP, values + d, head_dim, n, end);
}

template <>
NS_INLINE void attn_prompt(const f32 *q, const f32 *kv, f32 *out, i32 n_rows, i32 position, i64 kv_offset, i32 ldq, i32 ldo,
                           i32 n_heads, i32 n_kv, i32 head_dim, i64 layer_offset, i32 capacity, f32 scale, f32 *local) {
  constexpr i32 TILE = 32, STEP = PROMPT_STEP, VECTORS = STEP / BLOCK;
  const Item it = item();
  const auto sg = it.get_sub_group();
  const i32 lane = sg.get_local_linear_id();
  // the longest rows first: they take longest
  const i32 group = it.get_group(0), groups = it.get_group_range(0);
  const i32 head = group % n_heads, row0 = (groups / n_heads - 1 - group / n_heads) * TILE;
  const f32 *keys = kv + kv_offset + layer_offset + (i64)(head / (n_heads / n_kv)) * capacity * head_dim;
  const f32 *values = keys + (i64)n_kv * capacity * head_dim;
  f32 *query = local, *acc = query + TILE * MOST_HEAD, *weight = acc + TILE * MOST_HEAD;
  // of each row, one for each lane: the peak, the sum of weights, what the last step shrank by
  f32 *peaks = weight + TILE * STEP + lane, *sums = peaks + TILE * BLOCK, *shrinks = sums + TILE * BLOCK;
  q += (i64)row0 * ldq + (i64)head * head_dim, out += (i64)row0 * ldo + (i64)head * head_dim;
  position += row0;
  const i32 rows = least(TILE, n_rows - row0);
  for (i32 r = 0; r < TILE; r++) {
    const f32 *own = q + (i64)least(r, rows - 1) * ldq;
    for (i32 d = 0; d < head_dim; d += BLOCK) {
      query[r * MOST_HEAD + d + lane] = own[d + lane] * scale;
      acc[r * MOST_HEAD + d + lane] = 0;
    }
    peaks[r * BLOCK] = -3.0e38f, sums[r * BLOCK] = 0;
  }
  const i32 longest = position + rows, last_block = (longest - 1) / BLOCK;
  for (i32 first = 0; first < longest; first += STEP) {
    sycl::group_barrier(sg);
    for (i32 t = 0; t < STEP && first + t < longest; t += 2 * BLOCK) {
      // keys past the end come from the last block; they are masked
      const i32 block = (first + t) / BLOCK;
      const f32 *const k[2] = {keys + (i64)least(block, last_block) * BLOCK * head_dim + lane,
                               keys + (i64)least(block + 1, last_block) * BLOCK * head_dim + lane};
      for (i32 r = 0; r < rows; r += EIGHT) {
        f32 s[EIGHT][2];
        repeat<EIGHT>([&](i32 i) { s[i][0] = s[i][1] = 0; });
        add_products<MOST_HEAD, false>(query + r * MOST_HEAD, k, BLOCK, head_dim, head_dim, s);
        f32 *to = weight + r * STEP + t + lane;
        repeat<EIGHT>([&](i32 i) { to[i * STEP] = s[i][0], to[i * STEP + BLOCK] = s[i][1]; });
      }
    }
    for (i32 r = 0; r < rows; r++) {
      f32 *w = weight + r * STEP + lane;
      const i32 seen = position + r + 1 - first - lane;
      f32 s[VECTORS], m = -3.0e38f, sum = 0;
      repeat<VECTORS>([&](i32 v) {
        const f32 score = w[v * BLOCK];
        s[v] = v * BLOCK < seen ? score : -3.0e38f;
        m = sycl::fmax(m, s[v]);
      });
      const f32 before = peaks[r * BLOCK], peak = sycl::fmax(before, sycl::reduce_over_group(sg, m, sycl::maximum<f32>()));
#pragma unroll
      for (i32 v = 0; v < VECTORS; v++) {
        const f32 e = exp_of(s[v] - peak), p = v * BLOCK < seen ? e : 0.0f;
        w[v * BLOCK] = p, sum += p;
      }
      const f32 shrink = exp_of(before - peak);
      peaks[r * BLOCK] = peak, shrinks[r * BLOCK] = shrink;
      sums[r * BLOCK] = sycl::fma(sums[r * BLOCK], shrink, sum);
    }
    sycl::group_barrier(sg);
    const f32 *v = values + (i64)first * head_dim + lane;
    if (first + STEP <= longest) {
      add_cells<false>(acc + lane, shrinks, weight, v, head_dim, rows, STEP, STEP);
      continue;
    }
    for (i32 t = 0; t < STEP && first + t < longest; t += BLOCK) {
      add_cells<true>(acc + lane, shrinks, weight + t, v + (i64)t * head_dim, head_dim, rows, BLOCK, longest - first - t);
      for (i32 r = 0; r < TILE; r++) shrinks[r * BLOCK] = 1; // they have shrunk
    }
  }
  for (i32 r = 0; r < rows; r++) {
    const f32 inverse = 1.0f / sycl::reduce_over_group(sg, sums[r * BLOCK], sycl::plus<f32>());
    for (i32 d = 0; d < head_dim; d += BLOCK) out[(i64)r * ldo + d + lane] = acc[r * MOST_HEAD + d + lane] * inverse;
  }
}
#endif
} // namespace ns

#define ATTN_SPLIT(NAME, NJ, EXACT, KV)                                                                                    \
  NS_KERNEL void NAME(const f32 *q, const void *kv, const u8 *row_state, f32 *partial, i32 ldq, i32 n_heads, i32 n_kv,     \
                      i32 head_dim, i64 layer_offset, i32 capacity, f32 scale, i32 n_splits) {                             \
    attn_split<NJ, EXACT, KV>(q, (const KV *)kv, (const RowState *)row_state, partial, ldq, n_heads, n_kv,                 \
                              EXACT ? NJ * 16 : head_dim, layer_offset, capacity, scale, n_splits);                        \
  }
#define ATTN_PROMPT(NAME, KV)                                                                                              \
  NS_KERNEL void NAME(const f32 *q, const void *kv, f32 *out, i32 n_rows, i32 position, i64 kv_offset, i32 ldq, i32 ldo,   \
                      i32 n_heads, i32 n_kv, i32 head_dim, i64 layer_offset, i32 capacity, f32 scale,                      \
                      sycl::ext::oneapi::experimental::work_group_memory<f32[]> local) {                                   \
    attn_prompt<KV>(q, (const KV *)kv, out, n_rows, position, kv_offset, ldq, ldo, n_heads, n_kv, head_dim, layer_offset,  \
                    capacity, scale, &local[0]);                                                                           \
  }

#define ATTENTION(PRECISION, KV)                                                                                           \
  /* Partial attention of decode rows: groups = rows * n_heads * n_splits. */                                              \
  ATTN_SPLIT(attn_split_##PRECISION##_h64, 4, true, KV)                                                                    \
  ATTN_SPLIT(attn_split_##PRECISION##_h128, 8, true, KV)                                                                   \
  ATTN_SPLIT(attn_split_##PRECISION##_h256, 16, true, KV)                                                                  \
  ATTN_SPLIT(attn_split_##PRECISION##_hx, 16, false, KV)                                                                   \
  /* Causal attention of a chunk: groups = ceil(n_rows / rows of a sub-group) * n_heads. */                                \
  ATTN_PROMPT(attn_prompt_##PRECISION, KV)
