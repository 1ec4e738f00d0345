// Row-wise kernels of a transformer: norms, activation rows, SwiGLU, rotary embedding with cache store, element-wise.
#include "ns/activation.hpp"
#include "ns/exp.hpp"
#include "ns/kernel.hpp"
#include "ns/kv.hpp"
#include "ns/lanes.hpp"
#include "ns/rows.hpp"
using namespace ns;

namespace {
// Scale of a norm: 1 / sqrt(mean(x^2) + eps), the sum in a fixed order: lane l adds x[l], x[l + N], ... with N work-items.
NS_INLINE f32 norm_scale(const f32 *x, i32 dim, f32 eps, Item it, f32 *local) {
  const auto sg = it.get_sub_group();
  const i32 lane = sg.get_local_linear_id(), group = sg.get_group_linear_id(), groups = sg.get_group_linear_range();
  f32 sum = 0;
  NS_EACH_LANE(i, group * NS_SG, groups * NS_SG, dim, lane, { sum = sycl::fma(x[i], x[i], sum); });
  sum = sycl::reduce_over_group(sg, sum, sycl::plus<f32>());
  if (groups > 1) {
    if (lane == 0) local[group] = sum;
    sycl::group_barrier(it.get_group());
    sum = 0;
    for (i32 g = 0; g < groups; g++) sum += local[g];
  }
  return 1.0f / sycl::sqrt(sum / (f32)dim + eps);
}
} // namespace

// out = x / sqrt(mean(x^2) + eps) * w, one work-group a row, at most 16 sub-groups.
NS_KERNEL void rms_norm(const f32 *x, const f32 *w, f32 *out, i32 dim, i32 ldx, i32 ldo, f32 eps) {
  const Item it = item();
  const auto sg = it.get_sub_group();
  sycl::ext::oneapi::experimental::work_group_static<f32[16]> local;
  const i64 row = it.get_group(0);
  x += row * ldx, out += row * ldo;
  const f32 scale = norm_scale(x, dim, eps, it, &local[0]);
  const i32 lane = sg.get_local_linear_id(), step = sg.get_group_linear_range() * NS_SG;
  NS_EACH_LANE(i, sg.get_group_linear_id() * NS_SG, step, dim, lane, { out[i] = x[i] * scale * w[i]; });
}

// The same into an activation row.
NS_KERNEL void rms_norm_act(const f32 *x, const f32 *w, u8 *act, i32 dim, i32 ldx, i32 act_stride, f32 eps) {
  const Item it = item();
  const auto sg = it.get_sub_group();
  sycl::ext::oneapi::experimental::work_group_static<f32[16]> local;
  const i64 row = it.get_group(0);
  x += row * ldx, act += row * act_stride;
  const f32 scale = norm_scale(x, dim, eps, it, &local[0]);
  finish_act_blocks(act, dim, sg.get_group_linear_id(), sg.get_group_linear_range(), sg,
                    [=](i32 i) { return x[i] * scale * w[i]; });
}

// x as an activation row; a work-group a row.
NS_KERNEL void to_act(const f32 *x, u8 *act, i32 dim, i32 ldx, i32 act_stride) {
  const Item it = item();
  const auto sg = it.get_sub_group();
  const i64 row = it.get_group(0);
  x += row * ldx, act += row * act_stride;
  finish_act_blocks(act, dim, sg.get_group_linear_id(), sg.get_group_linear_range(), sg, [=](i32 i) { return x[i]; });
}

// silu(gate) * up with gate = columns 0..n_ff and up = n_ff..2 n_ff of each row, silu(v) = v / (1 + e^-v).
// Groups run over (row, part of the row): `parts` = groups / rows work-groups share a row, block by block.
NS_KERNEL void swiglu_act(const f32 *gate_up, u8 *act, i32 n_ff, i32 ldx, i32 act_stride, i32 rows) {
  const Item it = item();
  const auto sg = it.get_sub_group();
  const i32 parts = it.get_group_range(0) / rows, row = it.get_group(0) / parts, part = it.get_group(0) % parts;
  const i32 subs = sg.get_group_linear_range();
  const f32 *gate = gate_up + (i64)row * ldx, *up = gate + n_ff;
  finish_act_blocks(act + (i64)row * act_stride, n_ff, part * subs + sg.get_group_linear_id(), parts * subs, sg,
                    [=](i32 i) { return silu(gate[i]) * up[i]; });
}

// The same as plain float32 rows; a work-group a row.
NS_KERNEL void swiglu(const f32 *gate_up, f32 *out, i32 n_ff, i32 ldx, i32 ldo) {
  const Item it = item();
  const auto sg = it.get_sub_group();
  const i64 row = it.get_group(0);
  const f32 *gate = gate_up + row * ldx, *up = gate + n_ff;
  out += row * ldo;
  const i32 lane = sg.get_local_linear_id(), step = sg.get_group_linear_range() * NS_SG;
  NS_EACH_LANE(i, sg.get_group_linear_id() * NS_SG, step, n_ff, lane, { out[i] = silu(gate[i]) * up[i]; });
}

// Rotates the queries of each row in place and stores its rotated keys and its values in the cache.
//   pair (a, b) -> (a cos t - b sin t, a sin t + b cos t) * attn_factor,  t = position * inv_freq[j], j < rot_dim / 2
// adjacent: a, b = values 2j, 2j + 1 of the head; neox: j, j + rot_dim / 2. Values beyond rot_dim stay.
// qkv: rows of n_heads + 2 n_kv heads. One sub-group a head and row: groups = rows, sub-groups loop over the heads.
// Cache of a layer: the key heads, then the value heads (see ns/kv.hpp).
template <bool NEOX, class KV>
NS_INLINE void rope_store(f32 *qkv, KV *kv, const RowState *rows, const f32 *inv_freq, i32 ld, i32 n_heads, i32 n_kv, i32 head_dim,
                       i32 rot_dim, i64 layer_offset, i32 capacity, f32 attn_factor) {
  const Item it = item();
  const auto sg = it.get_sub_group();
  const i32 lane = sg.get_local_linear_id();
  const RowState state = rows[it.get_group(0)];
  f32 *row = qkv + (i64)it.get_group(0) * ld;
  const i32 half = rot_dim / 2;
  for (i32 h = sg.get_group_linear_id(); h < n_heads + 2 * n_kv; h += sg.get_group_linear_range()) {
    f32 *x = row + (i64)h * head_dim;
    if (h < n_heads + n_kv)
      for (i32 j = lane; j < half; j += NS_SG) {
        const i32 ia = NEOX ? j : 2 * j, ib = NEOX ? j + half : 2 * j + 1;
        const Turn t = turn(state.position, inv_freq[j]);
        const f32 a = x[ia], b = x[ib];
        x[ia] = (a * t.cosine - b * t.sine) * attn_factor, x[ib] = (a * t.sine + b * t.cosine) * attn_factor;
      }
    if (h < n_heads) continue;
    // of the key or value head among both
    KV *head = kv_at(kv, state.kv_offset + layer_offset + (i64)(h - n_heads) * capacity * head_dim);
    if (h < n_heads + n_kv) {
      sycl::group_barrier(sg);
      store_cell<true>(head, state.position, head_dim, x, sg);
    } else {
      store_cell<false>(head, state.position, head_dim, x, sg);
    }
  }
}

#define ROPE_STORE(NAME, NEOX, KV)                                                                                         \
  NS_KERNEL void NAME(f32 *qkv, void *kv, const u8 *row_state, const f32 *inv_freq, i32 ld, i32 n_heads, i32 n_kv,         \
                      i32 head_dim, i32 rot_dim, i64 layer_offset, i32 capacity, f32 attn_factor) {                        \
    rope_store<NEOX, KV>(qkv, (KV *)kv, (const RowState *)row_state, inv_freq, ld, n_heads, n_kv, head_dim, rot_dim,       \
                         layer_offset, capacity, attn_factor);                                                             \
  }
ROPE_STORE(rope_store_adjacent_kv16, false, f16)
ROPE_STORE(rope_store_adjacent_kv32, false, f32)
ROPE_STORE(rope_store_adjacent_kv8, false, i8)
ROPE_STORE(rope_store_neox_kv16, true, f16)
ROPE_STORE(rope_store_neox_kv32, true, f32)
ROPE_STORE(rope_store_neox_kv8, true, i8)

// x += y over n values.
NS_KERNEL void add(f32 *x, const f32 *y, i64 n) {
  const Item it = item();
  for (i64 i = it.get_global_id(0); i < n; i += it.get_global_range(0)) x[i] += y[i];
}

// out = x rounded to half, n values.
NS_KERNEL void convert_f16(const f32 *x, f16 *out, i64 n) {
  const Item it = item();
  for (i64 i = it.get_global_id(0); i < n; i += it.get_global_range(0)) out[i] = (f16)x[i];
}

// Rows [rows][cols] of x with distance ldx, rounded to half, packed.
NS_KERNEL void convert_rows_f16(const f32 *x, f16 *out, i32 cols, i32 ldx) {
  const Item it = item();
  const i64 row = it.get_group(0);
  for (i32 i = it.get_local_id(0); i < cols; i += it.get_local_range(0)) out[row * cols + i] = (f16)x[row * ldx + i];
}
