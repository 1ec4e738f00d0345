// Gated attention around the shared attention kernels, and the draft block's input.
//
// Columns of a row's product: [per query head: q head_dim, gate head_dim | k n_kv head_dim | v n_kv head_dim].
#include "ns/activation.hpp"
#include "ns/attention.hpp"
#include "ns/exp.hpp"
#include "ns/kernel.hpp"
#include "ns/kv.hpp"
#include "ns/lanes.hpp"
#include "ns/rows.hpp"
using namespace ns;

namespace {
constexpr i32 MOST_HEAD = 256;

// 1 / sqrt(mean(x^2) + eps) of one row by one sub-group.
NS_INLINE f32 sub_group_scale(const f32 *x, i32 dim, f32 eps, sycl::sub_group sg) {
  f32 sum = 0;
  NS_EACH_LANE(i, 0, NS_SG, dim, sg.get_local_linear_id(), { sum = sycl::fma(x[i], x[i], sum); });
  return 1.0f / sycl::sqrt(sycl::reduce_over_group(sg, sum, sycl::plus<f32>()) / (f32)dim + eps);
}

// One head of a row: queries to `q`, keys and values to their cells. The first rot_dim values are rotated in pairs (j, j + rot_dim / 2).
template <class KV>
NS_INLINE void prepare(const f32 *product, f32 *q, KV *kv, const u8 *row_state, const f32 *q_norm, const f32 *k_norm, const f32 *inv_freq,
                       i32 ld, i32 ldq, i32 n_heads, i32 n_kv, i32 head_dim, i32 rot_dim, i64 layer_offset, i32 capacity, f32 eps,
                       f32 *local) {
  const Item it = item();
  const auto sg = it.get_sub_group();
  const i32 lane = sg.get_local_linear_id(), units = n_heads + 2 * n_kv;
  const i32 h = it.get_group(0) % units, row = it.get_group(0) / units, half = rot_dim / 2;
  const RowState state = ((const RowState *)row_state)[row];
  product += (i64)row * ld;
  const bool query = h < n_heads;
  const f32 *x = product + (query ? 2 * h : n_heads + h) * head_dim;
  KV *head = kv_at(kv, state.kv_offset + layer_offset + (i64)(query ? 0 : h - n_heads) * capacity * head_dim);
  if (h >= n_heads + n_kv) {
    store_cell<false>(head, state.position, head_dim, x, sg);
    return;
  }
  const f32 *w = query ? q_norm : k_norm;
  f32 *to = query ? q + (i64)row * ldq + h * head_dim : local;
  const f32 scale = sub_group_scale(x, head_dim, eps, sg);
  NS_EACH_LANE(j, 0, NS_SG, half, lane, {
    const Turn t = turn(state.position, inv_freq[j]);
    const f32 a = x[j] * scale * w[j], b = x[j + half] * scale * w[j + half];
    to[j] = a * t.cosine - b * t.sine, to[j + half] = a * t.sine + b * t.cosine;
  });
  NS_EACH_LANE(i, rot_dim, NS_SG, head_dim, lane, { to[i] = x[i] * scale * w[i]; });
  if (query) return;
  sycl::group_barrier(sg);
  store_cell<true>(head, state.position, head_dim, local, sg);
}
} // namespace

#define PREPARE(NAME, KV)                                                                                                  \
  NS_KERNEL void NAME(const f32 *product, f32 *q, void *kv, const u8 *row_state, const f32 *q_norm, const f32 *k_norm,     \
                      const f32 *inv_freq, i32 ld, i32 ldq, i32 n_heads, i32 n_kv, i32 head_dim, i32 rot_dim,              \
                      i64 layer_offset, i32 capacity, f32 eps) {                                                           \
    sycl::ext::oneapi::experimental::work_group_static<f32[MOST_HEAD]> local;                                              \
    prepare<KV>(product, q, (KV *)kv, row_state, q_norm, k_norm, inv_freq, ld, ldq, n_heads, n_kv, head_dim, rot_dim,      \
                layer_offset, capacity, eps, &local[0]);                                                                   \
  }
// Queries of each row to `q`, keys and values to the cache: norm, weight, rotation, store. groups = rows * (n_heads + 2 n_kv).
PREPARE(prepare_kv16, f16)
PREPARE(prepare_kv32, f32)
PREPARE(prepare_kv8, i8)

// The joined pieces of each head times the sigmoid of its gate, as activation rows. groups = rows * parts, `parts` share a row.
NS_KERNEL void combine_gate_act(const f32 *partial, const f32 *product, const u8 *row_state, u8 *act, i32 ld, i32 n_heads, i32 head_dim,
                                i32 act_stride, i32 n_splits, i32 rows) {
  const Item it = item();
  const auto sg = it.get_sub_group();
  const i32 parts = it.get_group_range(0) / rows, row = it.get_group(0) / parts, part = it.get_group(0) % parts;
  const i32 subs = sg.get_group_linear_range();
  const i32 n = ((const RowState *)row_state)[row].position / SPLIT_KEYS + 1;
  const i32 width = head_dim + 2;
  const f32 *heads = partial + (i64)row * n_heads * n_splits * width;
  product += (i64)row * ld;
  finish_act_heads(act + (i64)row * act_stride, n_heads, head_dim, part * subs + sg.get_group_linear_id(), parts * subs, sg,
                   [=](i32 h, i32 d) {
                     return join_pieces(heads + (i64)h * n_splits * width, d, n, width) * sigmoid(product[(2 * h + 1) * head_dim + d]);
                   });
}

// attn *= sigmoid(gate). One sub-group a row and head.
NS_KERNEL void gate(f32 *attn, const f32 *product, i32 lda, i32 ld, i32 n_heads, i32 head_dim) {
  const Item it = item();
  const i32 lane = it.get_sub_group().get_local_linear_id(), h = it.get_group(0) % n_heads, row = it.get_group(0) / n_heads;
  attn += (i64)row * lda + h * head_dim, product += (i64)row * ld + (2 * h + 1) * head_dim;
  NS_EACH_LANE(i, 0, NS_SG, head_dim, lane, { attn[i] *= sigmoid(product[i]); });
}

namespace {
// 1 / sqrt(mean(x^2) + eps), the sum in a fixed order.
NS_INLINE f32 norm_scale(const f32 *x, i32 dim, f32 eps, Item it, f32 *local) {
  const auto sg = it.get_sub_group();
  const i32 lane = sg.get_local_linear_id(), group = sg.get_group_linear_id(), groups = sg.get_group_linear_range();
  f32 sum = 0;
  for (i32 i = group * NS_SG + lane; i < dim; i += groups * NS_SG) sum = sycl::fma(x[i], x[i], sum);
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

// [rms(e) enorm | rms(h) hnorm] of each row as an activation row of 2 dim values (dim a multiple of 32): groups = 2 rows, at most 16
// sub-groups; the even ones take e.
NS_KERNEL void norm_pair_act(const f32 *e, const f32 *enorm, const f32 *h, const f32 *hnorm, u8 *act, i32 dim, i32 lde, i32 ldh,
                             i32 act_stride, f32 eps) {
  const Item it = item();
  const auto sg = it.get_sub_group();
  sycl::ext::oneapi::experimental::work_group_static<f32[16]> local;
  const i64 row = it.get_group(0) / 2;
  const bool second = it.get_group(0) % 2;
  const f32 *x = second ? h + row * ldh : e + row * lde, *w = second ? hnorm : enorm;
  const f32 scale = norm_scale(x, dim, eps, it, &local[0]);
  const i32 first = second ? dim / 32 : 0, blocks = dim / 32, subs = sg.get_group_linear_range();
  for (i32 b = sg.get_group_linear_id(); b < blocks; b += subs)
    finish_act_blocks(act + row * act_stride, 2 * dim, first + b, 2 * blocks, sg, [=](i32 i) {
      const i32 k = i - first * 32;
      return x[k] * scale * w[k];
    });
}

// The same as float32 rows.
NS_KERNEL void norm_pair(const f32 *e, const f32 *enorm, const f32 *h, const f32 *hnorm, f32 *out, i32 dim, i32 lde, i32 ldh, i32 ldo,
                         f32 eps) {
  const Item it = item();
  const auto sg = it.get_sub_group();
  sycl::ext::oneapi::experimental::work_group_static<f32[16]> local;
  const i64 row = it.get_group(0) / 2;
  const bool second = it.get_group(0) % 2;
  const f32 *x = second ? h + row * ldh : e + row * lde, *w = second ? hnorm : enorm;
  const f32 scale = norm_scale(x, dim, eps, it, &local[0]);
  out += row * ldo + (second ? dim : 0);
  const i32 lane = sg.get_local_linear_id(), step = sg.get_group_linear_range() * NS_SG;
  for (i32 i = sg.get_group_linear_id() * NS_SG + lane; i < dim; i += step) out[i] = x[i] * scale * w[i];
}
