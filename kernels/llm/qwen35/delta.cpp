// Gated DeltaNet: short convolution, gates, the recurrence, the gated norm.
//
// Columns of a row: its product is [qkv C | z 128 Hv | alpha Hv | beta Hv], its mix [q 128 Hk | k 128 Hk | v 128 Hv | g Hv | beta Hv],
// C = 128 (2 Hk + Hv). Value head h uses key head h mod Hk. A kept row is [qkv C | mix].
// A state is [Hv][8 blocks][128 keys][16 value columns] float32, a history [3][C] (qkv columns of the last rows, the newest last).
#include "ns/activation.hpp"
#include "ns/exp.hpp"
#include "ns/kernel.hpp"
#include "ns/lanes.hpp"
using namespace ns;

namespace {
constexpr i32 HEAD = 128, COLUMNS = 16, BLOCKS = HEAD / COLUMNS, PER_LANE = HEAD / NS_SG;
constexpr i32 BLOCK_FLOATS = HEAD * COLUMNS;
constexpr i32 CONV_ROWS = 32; // rows of a chunk that one sub-group convolves
static_assert(NS_SG == COLUMNS, "a lane is a value column, or a key out of 16");

// Which states a row's session continues from and leaves behind; the host writes it as 32 bytes.
struct RowSlots {
  i32 first_row, rows;
  i32 state_in, state_again, state_out;
  i32 kept_in, again, kept_out;
};
static_assert(sizeof(RowSlots) == 32);

struct Shape {
  i32 hk, hv;
  NS_INLINE i32 heads() const { return 2 * hk + hv; }
  NS_INLINE i32 channels() const { return heads() * HEAD; }
  NS_INLINE i32 kept() const { return 2 * channels() + 2 * hv; }
};

// A row of the table is worked on where its session begins; rows of no session stand for themselves.
NS_INLINE bool leads(const RowSlots &slots, i32 row) { return slots.rows == 0 || slots.first_row == row; }

// The three rows before the one at hand, and the taps, of one head's channels: lane l has l, l + 16, ... A card has too few registers for
// the taps and reads them again for each row.
struct Conv {
  f32 past[3][PER_LANE];
  const f32 *at; // the lane's first tap
  i32 channels;
#ifndef NS_GPU
  f32 near[4][PER_LANE];
#endif
  NS_INLINE void open(const f32 *taps, i32 head, i32 n, i32 lane) {
    at = taps + head * HEAD + lane, channels = n;
#ifndef NS_GPU
    repeat<4>([&](i32 t) { repeat<PER_LANE>([&](i32 j) { near[t][j] = at[t * channels + j * NS_SG]; }); });
#endif
  }
  NS_INLINE f32 tap(i32 t, i32 j) const {
#ifdef NS_GPU
    return at[t * channels + j * NS_SG];
#else
    return near[t][j];
#endif
  }
};

NS_INLINE void load_past(Conv &c, i32 t, const f32 *row, i32 head, i32 lane) {
  repeat<PER_LANE>([&](i32 j) NS_FORCED { c.past[t][j] = row[head * HEAD + j * NS_SG + lane]; });
}

NS_INLINE void store_past(const Conv &c, f32 *history, i32 head, i32 channels, i32 lane) {
  repeat<3>([&](i32 t) {
    repeat<PER_LANE>([&](i32 j) { history[(i64)t * channels + head * HEAD + j * NS_SG + lane] = c.past[t][j]; });
  });
}

// A row's mix of one head from x and the sum of its squares: queries and keys with norm 1, queries divided by sqrt(128).
NS_INLINE void store_mix(const f32 (&x)[PER_LANE], f32 sum, f32 *mix, i32 head, i32 hk, sycl::sub_group sg, i32 lane) {
  f32 scale = 1;
  if (head < 2 * hk) {
    scale = 1.0f / sycl::sqrt(sycl::reduce_over_group(sg, sum, sycl::plus<f32>()) + 1e-6f);
    if (head < hk) scale *= 0.0883883461f;
  }
  repeat<PER_LANE>([&](i32 j) NS_FORCED { mix[head * HEAD + j * NS_SG + lane] = x[j] * scale; });
}

// One row of one head: silu of the convolution, then its mix.
NS_INLINE void conv_row(Conv &c, const f32 *qkv, f32 *mix, i32 head, i32 hk, sycl::sub_group sg, i32 lane) {
  f32 x[PER_LANE], sum = 0;
  repeat<PER_LANE>([&](i32 j) NS_FORCED {
    const f32 now = qkv[head * HEAD + j * NS_SG + lane];
    f32 v = c.tap(0, j) * c.past[0][j];
    v = sycl::fma(c.tap(1, j), c.past[1][j], v);
    v = sycl::fma(c.tap(2, j), c.past[2][j], v);
    v = sycl::fma(c.tap(3, j), now, v);
    c.past[0][j] = c.past[1][j], c.past[1][j] = c.past[2][j], c.past[2][j] = now;
    x[j] = silu(v);
    sum = sycl::fma(x[j], x[j], sum);
  });
  store_mix(x, sum, mix, head, hk, sg, lane);
}

#ifdef NS_CPU
// The same of a row whose three rows before lie in front of it, number for number: they are read again, as there are more of them and
// of the taps than registers. `now` and `taps` start at the lane's first value.
NS_INLINE void conv_row_again(const f32 *taps, i32 channels, const f32 *now, i32 ld, f32 *mix, i32 head, i32 hk, sycl::sub_group sg,
                              i32 lane) {
  f32 x[PER_LANE], sum = 0;
  repeat<PER_LANE>([&](i32 j) NS_FORCED {
    const f32 *row = now - 3 * (i64)ld + j * NS_SG, *tap = taps + j * NS_SG;
    f32 v = tap[0] * row[0];
    v = sycl::fma(tap[channels], row[ld], v);
    v = sycl::fma(tap[2 * channels], row[2 * (i64)ld], v);
    v = sycl::fma(tap[3 * channels], row[3 * (i64)ld], v);
    x[j] = silu(v);
    sum = sycl::fma(x[j], x[j], sum);
  });
  store_mix(x, sum, mix, head, hk, sg, lane);
}
#endif

// g = a softplus(alpha + dt_bias) and beta = sigmoid of a row, from [alpha Hv | beta Hv] to [g Hv | beta Hv].
NS_INLINE void gates_row(const f32 *from, f32 *to, const f32 *a, const f32 *dt_bias, i32 hv, i32 lane) {
  for (i32 h = lane; h < hv; h += NS_SG) {
    const f32 x = from[h] + dt_bias[h];
    to[h] = a[h] * (x > 20.0f ? x : sycl::log1p(sycl::exp(x)));
    to[hv + h] = sigmoid(from[hv + h]);
  }
}

// One head's key, query and value rows, decay and beta of a row's mix; `value` starts at the head's first value.
struct Mix {
  const f32 *query, *key, *value;
  f32 decay, beta;
};
NS_INLINE Mix mix_of(const f32 *mix, const Shape &s, i32 head) {
  const i32 kh = head % s.hk;
  Mix m;
  m.query = mix + kh * HEAD, m.key = m.query + s.hk * HEAD, m.value = mix + (2 * s.hk + head) * HEAD;
  m.decay = sycl::exp(mix[s.channels() + head]), m.beta = mix[s.channels() + s.hv + head];
  return m;
}

// The recurrence on one block of value columns, row by row:
//   delta = beta (v - decay S^T k),  S = decay S + k delta^T,  o = S^T q
// Rows go through `Block` in order; a block keeps its state between them.
#ifdef NS_GPU
// A sub-group has four columns; lane l has keys l, l + 16, ... in registers.
constexpr i32 OWN = 4;
struct Block {
  f32 s[PER_LANE][OWN];
  i32 first; // first of the own columns within the block
};
NS_INLINE i32 own_column(Item it) { return it.get_sub_group().get_group_linear_id() * OWN; }
NS_INLINE void load_block(Block &b, const f32 *state, Item it, i32 lane) {
  b.first = own_column(it);
  repeat<PER_LANE>([&](i32 j) {
    const auto v = *(const sycl::vec<f32, 4> *)(state + (j * NS_SG + lane) * COLUMNS + b.first);
    repeat<OWN>([&](i32 c) { b.s[j][c] = v[c]; });
  });
}
NS_INLINE void store_block(const Block &b, f32 *state, i32 lane) {
  repeat<PER_LANE>([&](i32 j) {
    *(sycl::vec<f32, 4> *)(state + (j * NS_SG + lane) * COLUMNS + b.first) = {b.s[j][0], b.s[j][1], b.s[j][2], b.s[j][3]};
  });
}
// What a row needs, loaded before the row in front of it is done.
struct Ready {
  f32 key[PER_LANE], query[PER_LANE], value[OWN], decay, beta;
};
NS_INLINE Ready ready(const Mix &m, i32 column, i32 lane) {
  Ready r;
  repeat<PER_LANE>([&](i32 j) { r.key[j] = m.key[j * NS_SG + lane], r.query[j] = m.query[j * NS_SG + lane]; });
  repeat<OWN>([&](i32 c) { r.value[c] = m.value[column + c]; });
  r.decay = m.decay, r.beta = m.beta;
  return r;
}
// out: the row's outputs of the block's columns, or null.
NS_INLINE void run_row(Block &b, const Ready &r, f32 *out, sycl::sub_group sg, i32 lane) {
  f32 o[OWN];
  repeat<OWN>([&](i32 c) {
    f32 sum = 0;
    repeat<PER_LANE>([&](i32 j) { sum = sycl::fma(b.s[j][c], r.key[j], sum); });
    const f32 delta = r.beta * sycl::fma(-r.decay, sycl::reduce_over_group(sg, sum, sycl::plus<f32>()), r.value[c]);
    o[c] = 0;
    repeat<PER_LANE>([&](i32 j) {
      b.s[j][c] = sycl::fma(r.key[j], delta, r.decay * b.s[j][c]);
      o[c] = sycl::fma(b.s[j][c], r.query[j], o[c]);
    });
  });
  if (!out) return;
  repeat<OWN>([&](i32 c) { o[c] = sycl::reduce_over_group(sg, o[c], sycl::plus<f32>()); });
  if (lane == 0) *(sycl::vec<f32, 4> *)(out + b.first) = {o[0], o[1], o[2], o[3]};
}
#else
// A lane is a column. S stays in memory close by and is gone through once a row: the row's update also sums up S^T k of the next row.
NS_INLINE f32 first_sum(const f32 *from, const f32 *key, i32 lane) {
  f32 sum = 0;
#pragma unroll 8
  for (i32 i = 0; i < HEAD; i++) sum = sycl::fma(from[i * COLUMNS + lane], key[i], sum);
  return sum;
}
// from -> to (may be the same); returns S^T q, and in `sum` S^T k of the row at hand, then of the next.
NS_INLINE f32 run_row(const f32 *from, f32 *to, const Mix &m, i32 column, const f32 *next_key, f32 &sum, i32 lane) {
  const f32 decay = m.decay, delta = m.beta * sycl::fma(-decay, sum, m.value[column + lane]);
  f32 o = 0, next = 0;
#pragma unroll 4
  for (i32 i = 0; i < HEAD; i++) {
    const f32 s = sycl::fma(m.key[i], delta, decay * from[i * COLUMNS + lane]);
    to[i * COLUMNS + lane] = s;
    o = sycl::fma(s, m.query[i], o);
    next = sycl::fma(s, next_key[i], next);
  }
  sum = next;
  return o;
}
// The same of WIDE blocks side by side, sum for sum: a sum alone waits for its last addition in every step, several hide that, and
// keys and queries are read once for all of them.
constexpr i32 WIDE = 4;
NS_INLINE void run_row_wide(const f32 *from, f32 *to, const Mix &m, i32 column, const f32 *next_key, f32 (&sum)[WIDE], f32 *out,
                            i32 lane) {
  const f32 decay = m.decay;
  f32 delta[WIDE], o[WIDE], next[WIDE];
  repeat<WIDE>([&](i32 b) {
    delta[b] = m.beta * sycl::fma(-decay, sum[b], m.value[column + b * COLUMNS + lane]);
    o[b] = next[b] = 0;
  });
#pragma unroll 2
  for (i32 i = 0; i < HEAD; i++) {
    const f32 key = m.key[i], query = m.query[i], after = next_key[i];
    repeat<WIDE>([&](i32 b) {
      const i32 at = b * BLOCK_FLOATS + i * COLUMNS + lane;
      const f32 s = sycl::fma(key, delta[b], decay * from[at]);
      to[at] = s;
      o[b] = sycl::fma(s, query, o[b]);
      next[b] = sycl::fma(s, after, next[b]);
    });
  }
  repeat<WIDE>([&](i32 b) { sum[b] = next[b], out[b * COLUMNS + lane] = o[b]; });
}
NS_INLINE void copy_block(const f32 *from, f32 *to, i32 lane) {
#pragma unroll 8
  for (i32 i = 0; i < HEAD; i++) to[i * COLUMNS + lane] = from[i * COLUMNS + lane];
}
#endif
} // namespace

namespace {
// One head of a session's decode rows, or its gates.
NS_INLINE void conv_session(const f32 *product, const f32 *taps, const f32 *a, const f32 *dt_bias, f32 *histories, f32 *kept_rows,
                            const RowSlots &slots, i32 ld, i64 history_stride, i64 kept_stride, const Shape &shape, i32 unit,
                            sycl::sub_group sg, i32 lane) {
  const i32 channels = shape.channels();
  f32 *kept = kept_rows + slots.kept_out * kept_stride;
  if (unit == shape.heads()) {
    for (i32 r = 0; r < slots.rows; r++)
      gates_row(product + (i64)(slots.first_row + r) * ld + channels + shape.hv * HEAD, kept + (i64)r * shape.kept() + 2 * channels, a,
                dt_bias, shape.hv, lane);
    return;
  }
  Conv c;
  c.open(taps, unit, channels, lane);
  repeat<3>([&](i32 t) {
    const i32 again = slots.again - 3 + t; // of the rows that are run again, or before them
    load_past(c, t,
              again < 0 ? histories + slots.state_in * history_stride + (i64)(again + 3) * channels
                        : kept_rows + slots.kept_in * kept_stride + (i64)again * shape.kept(),
              unit, lane);
  });
  if (slots.state_again >= 0) store_past(c, histories + slots.state_again * history_stride, unit, channels, lane);
  for (i32 r = 0; r < slots.rows; r++) {
    const f32 *qkv = product + (i64)(slots.first_row + r) * ld;
    f32 *to = kept + (i64)r * shape.kept();
    repeat<PER_LANE>([&](i32 j) { to[unit * HEAD + j * NS_SG + lane] = qkv[unit * HEAD + j * NS_SG + lane]; });
    conv_row(c, qkv, to + channels, unit, shape.hk, sg, lane);
  }
  if (slots.state_out >= 0) store_past(c, histories + slots.state_out * history_stride, unit, channels, lane);
}

// One block of value columns of a session's decode rows. `local` is used on the CPU only.
NS_INLINE void recur_session(const f32 *kept_rows, f32 *states, f32 *out, const RowSlots &slots, i64 kept_stride, i64 state_stride, i32 ldo,
                             const Shape &shape, i32 block, f32 *local, Item it, i32 lane) {
  const i32 head = block / BLOCKS, column = block % BLOCKS * COLUMNS;
  const i64 place = (i64)block * BLOCK_FLOATS;
  const f32 *in = states + slots.state_in * state_stride + place;
  f32 *again = states + slots.state_again * state_stride + place, *last = states + slots.state_out * state_stride + place;
  const f32 *old = kept_rows + slots.kept_in * kept_stride + shape.channels();
  const f32 *fresh = kept_rows + slots.kept_out * kept_stride + shape.channels();
  f32 *o = out + (i64)slots.first_row * ldo + head * HEAD + column;
  const auto old_mix = [=](i32 i) { return mix_of(old + (i64)i * shape.kept(), shape, head); };
  const auto fresh_mix = [=](i32 i) { return mix_of(fresh + (i64)i * shape.kept(), shape, head); };
#ifdef NS_GPU
  const auto sg = it.get_sub_group();
  Block b;
  load_block(b, in, it, lane);
  for (i32 i = 0; i < slots.again; i++) run_row(b, ready(old_mix(i), column + b.first, lane), nullptr, sg, lane);
  if (slots.state_again >= 0) store_block(b, again, lane);
  for (i32 i = 0; i < slots.rows; i++) run_row(b, ready(fresh_mix(i), column + b.first, lane), o + (i64)i * ldo, sg, lane);
  if (slots.state_out >= 0) store_block(b, last, lane);
#else
  if (slots.again == 0 && slots.state_again >= 0) copy_block(in, again, lane);
  const f32 *from = in;
  if (slots.again + slots.rows > 0) {
    f32 sum = first_sum(in, slots.again > 0 ? old_mix(0).key : fresh_mix(0).key, lane);
    for (i32 i = 0; i < slots.again; i++) {
      f32 *to = i + 1 == slots.again && slots.state_again >= 0 ? again : local;
      // after the last of them comes the first of the pass, or none
      const f32 *next = i + 1 < slots.again || slots.rows == 0 ? old_mix(least(i + 1, slots.again - 1)).key : fresh_mix(0).key;
      run_row(from, to, old_mix(i), column, next, sum, lane);
      from = to;
    }
    for (i32 i = 0; i < slots.rows; i++) {
      f32 *to = i + 1 == slots.rows && slots.state_out >= 0 ? last : local;
      o[(i64)i * ldo + lane] = run_row(from, to, fresh_mix(i), column, fresh_mix(least(i + 1, slots.rows - 1)).key, sum, lane);
      from = to;
    }
  }
  if (slots.rows == 0 && slots.state_out >= 0) copy_block(from, last, lane);
#endif
}
} // namespace

// Convolution, norms and gates of decode rows: mixes into the kept rows, histories moved on. One sub-group a head and one for the
// gates: groups = (heads + 1) * n, n = 1 .. rows, each going through every n-th row of the table.
NS_KERNEL void conv_rows(const f32 *product, const f32 *taps, const f32 *a, const f32 *dt_bias, f32 *histories, f32 *kept_rows,
                         const u8 *table, i32 ld, i64 history_stride, i64 kept_stride, i32 rows, i32 hk, i32 hv) {
  const Item it = item();
  const auto sg = it.get_sub_group();
  const i32 lane = sg.get_local_linear_id();
  const Shape shape{hk, hv};
  const i32 units = shape.heads() + 1, unit = it.get_group(0) % units, step = it.get_group_range(0) / units;
  for (i32 row = it.get_group(0) / units; row < rows; row += step) {
    const RowSlots slots = ((const RowSlots *)table)[row];
    if (leads(slots, row))
      conv_session(product, taps, a, dt_bias, histories, kept_rows, slots, ld, history_stride, kept_stride, shape, unit, sg, lane);
  }
}

// The recurrence of decode rows: rows that are run again, then the pass's own, with their outputs. groups = Hv * 8 * n as above, each a
// block of value columns.
// arc: load16
NS_KERNEL void recur_rows(const f32 *kept_rows, f32 *states, const u8 *table, f32 *out, i64 kept_stride, i64 state_stride, i32 ldo,
                          i32 rows, i32 hk, i32 hv) {
  const Item it = item();
  const i32 lane = it.get_sub_group().get_local_linear_id();
  const Shape shape{hk, hv};
  const i32 blocks = hv * BLOCKS, block = it.get_group(0) % blocks, step = it.get_group_range(0) / blocks;
#ifdef NS_GPU
  f32 *close = nullptr;
#else
  sycl::ext::oneapi::experimental::work_group_static<f32[BLOCK_FLOATS]> local;
  f32 *close = &local[0];
#endif
  for (i32 row = it.get_group(0) / blocks; row < rows; row += step) {
    const RowSlots slots = ((const RowSlots *)table)[row];
    if (leads(slots, row)) recur_session(kept_rows, states, out, slots, kept_stride, state_stride, ldo, shape, block, close, it, lane);
  }
}

// Convolution, norms and gates of a chunk of one session whose history starts at `history`: its rows' mixes. One sub-group a head (one
// for the gates) and 32 rows: groups = ceil(rows / 32) * (heads + 1).
NS_KERNEL void conv_chunk(const f32 *product, const f32 *taps, const f32 *a, const f32 *dt_bias, const f32 *histories, f32 *mix, i32 ld,
                          i32 ldm, i64 history, i32 rows, i32 hk, i32 hv) {
  const Item it = item();
  const auto sg = it.get_sub_group();
  const i32 lane = sg.get_local_linear_id();
  const Shape shape{hk, hv};
  const i32 units = shape.heads() + 1, channels = shape.channels();
  const i32 unit = it.get_group(0) % units, first = it.get_group(0) / units * CONV_ROWS, end = least(first + CONV_ROWS, rows);
  if (unit == shape.heads()) {
    for (i32 r = first; r < end; r++)
      gates_row(product + (i64)r * ld + channels + hv * HEAD, mix + (i64)r * ldm + channels, a, dt_bias, hv, lane);
    return;
  }
#ifdef NS_CPU
  if (first > 0) {
    const i32 at = unit * HEAD + lane;
    for (i32 r = first; r < end; r++)
      conv_row_again(taps + at, channels, product + (i64)r * ld + at, ld, mix + (i64)r * ldm, unit, hk, sg, lane);
    return;
  }
#endif
  Conv c;
  c.open(taps, unit, channels, lane);
  repeat<3>([&](i32 t) {
    const i32 row = first - 3 + t;
    load_past(c, t, row < 0 ? histories + history + (i64)(row + 3) * channels : product + (i64)row * ld, unit, lane);
  });
  for (i32 r = first; r < end; r++) conv_row(c, product + (i64)r * ld, mix + (i64)r * ldm, unit, hk, sg, lane);
}

// The history after a chunk, from `from` to `to` (may be the same). One sub-group 128 channels.
NS_KERNEL void conv_history(const f32 *product, f32 *histories, i32 ld, i64 from, i64 to, i32 rows, i32 channels) {
  const Item it = item();
  const i32 lane = it.get_sub_group().get_local_linear_id(), head = it.get_group(0);
  Conv c;
  repeat<3>([&](i32 t) {
    const i32 row = rows - 3 + t;
    load_past(c, t, row < 0 ? histories + from + (i64)(row + 3) * channels : product + (i64)row * ld, head, lane);
  });
  store_past(c, histories + to, head, channels, lane);
}

// arc: load16
// The recurrence over a chunk of one session, from the state at `from` to `to` (may be the same). groups = Hv * 8; on the CPU Hv * 8 /
// WIDE, each so many blocks.
NS_KERNEL void recur_chunk(const f32 *mix, f32 *states, f32 *out, i32 ldm, i64 from_at, i64 to_at, i32 ldo, i32 rows, i32 hk, i32 hv) {
  const Item it = item();
  const auto sg = it.get_sub_group();
  const i32 lane = sg.get_local_linear_id();
  const Shape shape{hk, hv};
#ifdef NS_GPU
  const i32 block = it.get_group(0), head = block / BLOCKS, column = block % BLOCKS * COLUMNS;
  const i64 place = (i64)block * BLOCK_FLOATS;
  const f32 *in = states + from_at + place;
  f32 *last = states + to_at + place, *o = out + head * HEAD + column;
  Block b;
  load_block(b, in, it, lane);
  Ready now = ready(mix_of(mix, shape, head), column + b.first, lane);
  for (i32 i = 0; i < rows; i++) {
    const Ready next = ready(mix_of(mix + (i64)least(i + 1, rows - 1) * ldm, shape, head), column + b.first, lane);
    run_row(b, now, o + (i64)i * ldo, sg, lane);
    now = next;
  }
  store_block(b, last, lane);
#else
  const i32 block = it.get_group(0) * WIDE, head = block / BLOCKS, column = block % BLOCKS * COLUMNS;
  const i64 place = (i64)block * BLOCK_FLOATS;
  const f32 *from = states + from_at + place;
  f32 *last = states + to_at + place, *o = out + head * HEAD + column;
  sycl::ext::oneapi::experimental::work_group_static<f32[WIDE * BLOCK_FLOATS]> local;
  f32 sum[WIDE];
  const f32 *key = mix_of(mix, shape, head).key;
  repeat<WIDE>([&](i32 b) { sum[b] = first_sum(from + b * BLOCK_FLOATS, key, lane); });
  for (i32 i = 0; i < rows; i++) {
    f32 *to = i + 1 == rows ? last : &local[0];
    const Mix m = mix_of(mix + (i64)i * ldm, shape, head);
    const f32 *next_key = mix_of(mix + (i64)least(i + 1, rows - 1) * ldm, shape, head).key;
    run_row_wide(from, to, m, column, next_key, sum, o + (i64)i * ldo, lane);
    from = to;
  }
#endif
}

namespace {
// rms(o) weight silu(z) of one head: value(i), i < 128.
NS_INLINE f32 head_scale(const f32 *o, f32 eps, sycl::sub_group sg, i32 lane) {
  f32 sum = 0;
  repeat<PER_LANE>([&](i32 j) {
    const f32 v = o[j * NS_SG + lane];
    sum = sycl::fma(v, v, sum);
  });
  return 1.0f / sycl::sqrt(sycl::reduce_over_group(sg, sum, sycl::plus<f32>()) / (f32)HEAD + eps);
}
NS_INLINE f32 gated(f32 o, f32 scale, f32 w, f32 z) { return o * scale * w * silu(z); }
} // namespace

// rms(o; eps) * weight * silu(z) of each value head, as activation rows of 128 Hv values. One sub-group a row and head.
NS_KERNEL void norm_act(const f32 *out, const f32 *z, const f32 *weight, u8 *act, i32 ldo, i32 ldz, i32 act_stride, i32 hv, f32 eps) {
  const Item it = item();
  const auto sg = it.get_sub_group();
  const i32 lane = sg.get_local_linear_id(), head = it.get_group(0) % hv, row = it.get_group(0) / hv;
  out += (i64)row * ldo, z += (i64)row * ldz, act += (i64)row * act_stride;
  const f32 scale = head_scale(out + head * HEAD, eps, sg, lane);
  const i32 cols = hv * HEAD;
  for (i32 b = head * (HEAD / 32); b < (head + 1) * (HEAD / 32); b++)
    finish_act_blocks(act, cols, b, cols, sg, [=](i32 i) { return gated(out[i], scale, weight[i % HEAD], z[i]); });
}

// The same as float32 rows; `y` may be `out`.
NS_KERNEL void norm(const f32 *out, const f32 *z, const f32 *weight, f32 *y, i32 ldo, i32 ldz, i32 ldy, i32 hv, f32 eps) {
  const Item it = item();
  const auto sg = it.get_sub_group();
  const i32 lane = sg.get_local_linear_id(), head = it.get_group(0) % hv, row = it.get_group(0) / hv;
  out += (i64)row * ldo + head * HEAD, z += (i64)row * ldz + head * HEAD, y += (i64)row * ldy + head * HEAD;
  const f32 scale = head_scale(out, eps, sg, lane);
  repeat<PER_LANE>([&](i32 j) NS_FORCED {
    const i32 i = j * NS_SG + lane;
    y[i] = gated(out[i], scale, weight[i], z[i]);
  });
}
