// From logits to tokens: argmax, the likeliest candidates, penalties, the draw. One work-group a row everywhere; whatever changes
// between tokens is in device memory, so a recorded graph can be replayed.
//
// A value that is NaN or -inf is never chosen; of equal values the lower id comes first; the result is 0 when nothing can be chosen.
#include "ns/kernel.hpp"
#include "ns/philox.hpp"
#include "ns/reduce.hpp"
#include "ns/rows.hpp"
using namespace ns;

namespace {
using sycl::ext::oneapi::experimental::work_group_static;

constexpr i32 CANDIDATES = 256; // length of a row's list
constexpr f32 NONE = -__builtin_inff();

// How a row's token is chosen; the host writes it as 32 bytes, little-endian.
struct Choice {
  f32 temperature; // <= 0: the likeliest
  f32 top_p, min_p;
  i32 top_k;       // 1..256; 0 = 256
  f32 repeat, frequency, presence;
  i32 window;      // tokens of the row's window that the penalties look at; 0 = no penalties
};
static_assert(sizeof(Choice) == 32);

// Values in their order, then lower ids first, as one number. -0 counts as 0.
constexpr i64 EXCLUDED = -0x7fffffffffffffffL - 1;
NS_INLINE i64 key_of(f32 v, i32 id) {
  if (!(v > NONE)) return EXCLUDED;
  const i32 bits = sycl::bit_cast<i32>(v + 0.0f);
  const i32 ordered = bits >= 0 ? bits : bits ^ 0x7fffffff;
  return (i64)((u64)(u32)ordered << 32 | (u32)(0x7fffffff - id));
}

// key_of(v, id) >= key, without 64-bit arithmetic.
struct Bound {
  f32 value;
  u32 low;
  explicit Bound(i64 key) {
    const i32 ordered = (i32)(key >> 32);
    value = sycl::bit_cast<f32>(ordered >= 0 ? ordered : ordered ^ 0x7fffffff);
    low = ordered == -1 ? 0 : (u32)key; // between -0 and 0 there is no value
  }
  bool passes(f32 v, i32 id) const { return (v > value) | ((v == value) & ((u32)(0x7fffffff - id) >= low)); }
};
// Below the key of every value but -inf, above the keys of -inf.
constexpr i64 LOWEST = (i64)(((u64)0x807fffffu << 32) | 0xffffffffu);

NS_INLINE i64 middle(i64 low, i64 high) { return (i64)((u64)low + (((u64)high - (u64)low) >> 1)); }
} // namespace

// out[row] = the id of the largest value.
NS_KERNEL void argmax_rows(const f32 *logits, i32 *out, i32 n_vocab, i32 ld) {
  const Item it = item();
  const auto sg = it.get_sub_group();
  work_group_static<i64[MOST_SUBGROUPS]> local;
  const i32 lane = sg.get_local_linear_id(), step = sg.get_group_linear_range() * NS_SG;
  logits += (i64)it.get_group(0) * ld;
  f32 best0 = NONE, best1 = NONE;
  i32 id0 = 0, id1 = 0;
  i32 i = sg.get_group_linear_id() * NS_SG + lane;
  for (; i + step < n_vocab; i += 2 * step) {
    const f32 a = logits[i], b = logits[i + step];
    id0 = a > best0 ? i : id0, best0 = a > best0 ? a : best0;
    id1 = b > best1 ? i + step : id1, best1 = b > best1 ? b : best1;
  }
  if (i < n_vocab) {
    const f32 a = logits[i];
    id0 = a > best0 ? i : id0, best0 = a > best0 ? a : best0;
  }
  const i64 a = key_of(best0, id0), b = key_of(best1, id1);
  const i64 best = reduce_group(it, a > b ? a : b, &local[0], sycl::maximum<i64>());
  if (it.get_local_id(0) == 0) out[it.get_group(0)] = best == EXCLUDED ? 0 : 0x7fffffff - (i32)(u32)best;
}

// The 256 largest values of each row with their ids, largest first; what is missing has id -1 and value -inf.
// values, ids: [row][256]. Work-groups of TOP_K_ITEMS.
//
// 1. The row is dealt to BUCKETS; the largest of each bucket is kept. At least 256 values are as large as the 256th of those.
// 2. Values from that bound on are collected: some 300 in a row without structure. If there are more than MOST, the bound is
//    raised by bisection; keys differ, so that always ends.
// 3. A value's place in the list is the number of collected ones before it.
#ifdef NS_GPU
constexpr i32 TOP_K_ITEMS = 256;
#else
constexpr i32 TOP_K_ITEMS = 64;
#endif
NS_KERNEL void top_k_rows(const f32 *logits, f32 *values, i32 *ids, i32 n_vocab, i32 ld) {
  constexpr i32 BUCKETS = 1024, MOST = 1024, ENOUGH = 320, WIDTH = 4;
  constexpr i32 SUBGROUPS = TOP_K_ITEMS / NS_SG;
  const Item it = item();
  const auto sg = it.get_sub_group();
  const i32 lane = sg.get_local_linear_id(), sub = sg.get_group_linear_id();
  work_group_static<i64[BUCKETS]> keys; // largest of the buckets, then what was collected
  work_group_static<i64[1]> bound_key;
  work_group_static<i32[1]> collected;
  work_group_static<i32[MOST_SUBGROUPS]> local;
  const i64 row = it.get_group(0);
  logits += row * ld, values += row * CANDIDATES, ids += row * CANDIDATES;

  for (i32 g = sub * WIDTH; g < BUCKETS / NS_SG; g += SUBGROUPS * WIDTH) {
    f32 best[WIDTH];
    i32 id[WIDTH];
#pragma unroll
    for (i32 k = 0; k < WIDTH; k++) best[k] = NONE, id[k] = 0;
    i32 base = g * NS_SG;
    for (; base + WIDTH * NS_SG <= n_vocab; base += BUCKETS) {
#pragma unroll
      for (i32 k = 0; k < WIDTH; k++) {
        const i32 i = base + k * NS_SG + lane;
        const f32 v = logits[i];
        id[k] = v > best[k] ? i : id[k], best[k] = v > best[k] ? v : best[k];
      }
    }
#pragma unroll
    for (i32 k = 0; k < WIDTH; k++) {
      const i32 i = base + k * NS_SG + lane;
      const f32 v = i < n_vocab ? logits[i] : NONE;
      id[k] = v > best[k] ? i : id[k], best[k] = v > best[k] ? v : best[k];
      keys[(g + k) * NS_SG + lane] = key_of(best[k], id[k]);
    }
  }
  sycl::group_barrier(it.get_group());
  if (sub == 0) {
    i64 low = EXCLUDED, high = EXCLUDED;
    i32 n = 0;
    for (i32 b = lane; b < BUCKETS; b += NS_SG) {
      const i64 key = keys[b];
      high = key > high ? key : high;
      n += key > EXCLUDED;
    }
    n = sycl::reduce_over_group(sg, n, sycl::plus<i32>());
    high = sycl::reduce_over_group(sg, high, sycl::maximum<i64>());
    low = high;
    for (i32 b = lane; b < BUCKETS; b += NS_SG) {
      const i64 key = keys[b];
      low = key > EXCLUDED && key < low ? key : low;
    }
    low = sycl::reduce_over_group(sg, low, sycl::minimum<i64>());
    if (n < CANDIDATES) low = LOWEST;
    high = high == EXCLUDED ? high : high + 1;
    // low: at least 256 buckets reach it (or it is LOWEST); high: none does
    for (i32 round = 0; round < 64 && n > ENOUGH; round++) {
      const i64 mid = middle(low, high);
      i32 reach = 0;
      for (i32 b = lane; b < BUCKETS; b += NS_SG) reach += keys[b] >= mid;
      reach = sycl::reduce_over_group(sg, reach, sycl::plus<i32>());
      if (reach >= CANDIDATES) low = mid, n = reach;
      else high = mid;
    }
    if (lane == 0) bound_key[0] = low, collected[0] = 0;
  }
  sycl::group_barrier(it.get_group());

  i64 low = bound_key[0], high = 0x7f800001L << 32; // +inf passes low only
  for (i32 round = 0; round <= 64; round++) {
    const bool first = round == 0;
    const i64 mid = first ? low : middle(low, high);
    const Bound bound(mid);
    i32 n = 0;
    for (i32 i = sub * NS_SG + lane; i < n_vocab; i += SUBGROUPS * NS_SG) n += bound.passes(logits[i], i);
    n = reduce_group(it, n, &local[0], sycl::plus<i32>());
    if (first && n <= MOST) break;
    if (!first) {
      if (n >= CANDIDATES) low = mid;
      else high = mid;
      if (n >= CANDIDATES && n <= MOST) break;
    }
  }
  const Bound bound(low);
  for (i32 base = sub * NS_SG; base < n_vocab; base += SUBGROUPS * NS_SG) {
    const i32 i = base + lane;
    const f32 v = i < n_vocab ? logits[i] : NONE;
    const bool in = i < n_vocab && bound.passes(v, i);
    if (sycl::any_of_group(sg, in)) {
      if (in) {
        sycl::atomic_ref<i32, sycl::memory_order::relaxed, sycl::memory_scope::work_group> counter(collected[0]);
        const i32 at = counter.fetch_add(1);
        if (at < MOST) keys[at] = key_of(v, i);
      }
    }
  }
  sycl::group_barrier(it.get_group());
  const i32 n = least(collected[0], MOST);
  for (i32 base = sub * NS_SG; base < n; base += SUBGROUPS * NS_SG) {
    const i32 c = base + lane;
    const i64 key = c < n ? keys[c] : EXCLUDED;
    i32 place = 0;
    for (i32 j = 0; j < n; j++) place += keys[j] > key;
    if (c < n && place < CANDIDATES) {
      const i32 id = 0x7fffffff - (i32)(u32)key;
      values[place] = logits[id];
      ids[place] = id;
    }
  }
  for (i32 c = n + sub * NS_SG + lane; c < CANDIDATES; c += SUBGROUPS * NS_SG) values[c] = NONE, ids[c] = -1;
}

// Penalties for the tokens of each row's window, in place: with c occurrences in the window,
//   l = (l > 0 ? l / repeat : l * repeat) - (c * frequency + presence).
// windows: [row][window_ld] ids, the first Choice.window of a row count; ids outside the vocabulary are passed over.
NS_KERNEL void penalize_rows(f32 *logits, const u8 *choices, const i32 *windows, i32 n_vocab, i32 ld, i32 window_ld) {
  const Item it = item();
  const i64 row = it.get_group(0);
  const Choice choice = ((const Choice *)choices)[row];
  logits += row * ld, windows += row * window_ld;
  const i32 n = least(choice.window, window_ld);
  for (i32 i = it.get_local_id(0); i < n; i += it.get_local_range(0)) {
    const i32 id = windows[i];
    if (id < 0 || id >= n_vocab) continue;
    i32 count = 0, before = 0;
    for (i32 j = 0; j < n; j++) {
      const i32 same = windows[j] == id;
      count += same, before += same & (j < i);
    }
    if (before) continue; // the first occurrence does the work
    f32 l = logits[id];
    l = l > 0 ? l / choice.repeat : l * choice.repeat;
    logits[id] = l - ((f32)count * choice.frequency + choice.presence);
  }
}

// Draws out[row] from the row's list (top_k_rows): the first top_k; weights e^((v - max) / temperature); the smallest prefix with a
// sum >= top_p of all; of it those with a weight >= min_p (of the largest, which is 1); then the first whose running sum exceeds
// u times the sum of the kept ones. Sums in list order. u is the uniform of Philox4x32-10 with the row's seed as key and counter
// (number of tokens before the drawn one = position + 1, 0, draw_stream, 0). One sub-group a row.
NS_KERNEL void sample_rows(const f32 *values, const i32 *ids, const u8 *row_state, const u8 *choices, i32 *out) {
  const Item it = item();
  const auto sg = it.get_sub_group();
  const i32 lane = sg.get_local_linear_id();
  work_group_static<f32[CANDIDATES]> weights, sums;
  const i64 row = it.get_group(0);
  const Choice choice = ((const Choice *)choices)[row];
  const RowState state = ((const RowState *)row_state)[row];
  values += row * CANDIDATES, ids += row * CANDIDATES;
  const i32 limit = choice.top_k <= 0 || choice.top_k > CANDIDATES ? CANDIDATES : choice.top_k;
  const f32 max = values[0];
  const bool greedy = !(choice.temperature > 0);
  i32 n = 0;
  for (i32 i = lane; i < limit; i += NS_SG) {
    const bool there = ids[i] >= 0;
    n += there;
    const f32 difference = values[i] - max; // NaN when both are +inf: these share the draw
    weights[i] = !there ? 0.0f : values[i] == max ? 1.0f : sycl::exp(difference / choice.temperature);
  }
  n = sycl::reduce_over_group(sg, n, sycl::plus<i32>());
  if (n == 0 || greedy) {
    if (lane == 0) out[row] = n == 0 ? 0 : ids[0];
    return;
  }
  sycl::group_barrier(sg);
  if (lane == 0) {
    f32 sum = 0;
    for (i32 i = 0; i < n; i++) {
      sum += weights[i];
      sums[i] = sum;
    }
  }
  sycl::group_barrier(sg);
  // both conditions hold for a prefix of the list: count it
  const f32 wanted = choice.top_p * sums[n - 1];
  i32 below = 0, large = 0;
  for (i32 i = lane; i < n; i += NS_SG) below += sums[i] < wanted, large += weights[i] >= choice.min_p;
  below = sycl::reduce_over_group(sg, below, sycl::plus<i32>());
  large = sycl::reduce_over_group(sg, large, sycl::plus<i32>());
  i32 kept = least(below + 1, n);
  kept = least(kept, large > 1 ? large : 1);
  const Words words = philox4x32_10({(u32)state.position + 1, 0, (u32)state.draw_stream, 0}, state.seed_lo, state.seed_hi);
  const f32 point = uniform(words.w0) * sums[kept - 1];
  i32 passed = 0;
  for (i32 i = lane; i < kept; i += NS_SG) passed += !(sums[i] > point);
  passed = sycl::reduce_over_group(sg, passed, sycl::plus<i32>());
  if (lane == 0) out[row] = ids[least(passed, kept - 1)];
}

// Makes the rows ready for their next token: token = tokens[row], one position further. Rows that are not active stay.
NS_KERNEL void advance_rows(u8 *row_state, const i32 *tokens, i32 rows) {
  const Item it = item();
  for (i32 r = it.get_global_id(0); r < rows; r += it.get_global_range(0)) {
    RowState *state = (RowState *)row_state + r;
    if (state->active) state->token = tokens[r], state->position += 1;
  }
}

// Philox words of counters [n][4] with keys [n][2]: out [n][4].
NS_KERNEL void philox_words(const u32 *counters, const u32 *keys, u32 *out, i32 n) {
  const Item it = item();
  for (i32 i = it.get_global_id(0); i < n; i += it.get_global_range(0)) {
    const u32 *c = counters + 4 * i;
    const Words w = philox4x32_10({c[0], c[1], c[2], c[3]}, keys[2 * i], keys[2 * i + 1]);
    out[4 * i] = w.w0, out[4 * i + 1] = w.w1, out[4 * i + 2] = w.w2, out[4 * i + 3] = w.w3;
  }
}

// out = e^(x - max) / sum of those, per row; out may be x.
NS_KERNEL void softmax_rows(const f32 *x, f32 *out, i32 n, i32 ldx, i32 ldo) {
  const Item it = item();
  const auto sg = it.get_sub_group();
  work_group_static<f32[MOST_SUBGROUPS]> local;
  const i32 first = sg.get_group_linear_id() * NS_SG + sg.get_local_linear_id(), step = sg.get_group_linear_range() * NS_SG;
  x += (i64)it.get_group(0) * ldx, out += (i64)it.get_group(0) * ldo;
  f32 max = NONE, sum = 0;
  for (i32 i = first; i < n; i += step) max = sycl::fmax(max, x[i]);
  max = reduce_group(it, max, &local[0], sycl::maximum<f32>());
  for (i32 i = first; i < n; i += step) {
    const f32 e = sycl::exp(x[i] - max);
    out[i] = e;
    sum += e;
  }
  sum = reduce_group(it, sum, &local[0], sycl::plus<f32>());
  const f32 inverse = 1.0f / sum;
  for (i32 i = first; i < n; i += step) out[i] *= inverse;
}
