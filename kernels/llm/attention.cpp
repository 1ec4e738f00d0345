// Around the attention kernels (attention_kv16, attention_kv32, attention_kv8): joining pieces, expanding a cache.
#include "ns/activation.hpp"
#include "ns/attention.hpp"
#include "ns/kernel.hpp"
#include "ns/kv.hpp"
#include "ns/rows.hpp"
using namespace ns;

// Joins the pieces of each head into an activation row of n_heads * head_dim values. groups = rows * parts, `parts` share a row.
NS_KERNEL void attn_combine_act(const f32 *partial, const u8 *row_state, u8 *act, i32 n_heads, i32 head_dim, i32 act_stride,
                                i32 n_splits, i32 rows) {
  const Item it = item();
  const auto sg = it.get_sub_group();
  const i32 parts = it.get_group_range(0) / rows, row = it.get_group(0) / parts, part = it.get_group(0) % parts;
  const i32 subs = sg.get_group_linear_range();
  const i32 n = ((const RowState *)row_state)[row].position / SPLIT_KEYS + 1;
  const i32 width = head_dim + 2;
  const f32 *heads = partial + (i64)row * n_heads * n_splits * width;
  finish_act_heads(act + (i64)row * act_stride, n_heads, head_dim, part * subs + sg.get_group_linear_id(), parts * subs, sg,
                   [=](i32 h, i32 d) { return join_pieces(heads + (i64)h * n_splits * width, d, n, width); });
}

// The first `cells` cells (a multiple of 16) of a session's layer as float32, [key, value][n_kv][cells][head_dim] in the cache's order.
// One work-group a head and part of it: groups = 2 n_kv * parts.
NS_KERNEL void expand_kv(const f16 *kv, f32 *out, i64 kv_offset, i64 layer_offset, i32 n_kv, i32 head_dim, i32 capacity, i32 cells) {
  const Item it = item();
  const i32 parts = it.get_group_range(0) / (2 * n_kv), head = it.get_group(0) / parts, part = it.get_group(0) % parts;
  const f16 *from = kv + kv_offset + layer_offset + (i64)head * capacity * head_dim;
  f32 *to = out + (i64)head * cells * head_dim;
  const i64 n = (i64)cells * head_dim, step = (i64)parts * it.get_local_range(0);
  const auto sg = it.get_sub_group();
  for (i64 i = (i64)part * it.get_local_range(0) + sg.get_group_linear_id() * NS_SG + sg.get_local_linear_id(); i < n; i += step)
    to[i] = (f32)from[i];
}

// The same of eight-bit values. One sub-group a work-group.
NS_KERNEL void expand_kv8(const void *kv, f32 *out, i64 kv_offset, i64 layer_offset, i32 n_kv, i32 head_dim, i32 capacity, i32 cells) {
  const Item it = item();
  const i32 parts = it.get_group_range(0) / (2 * n_kv), head = it.get_group(0) / parts, part = it.get_group(0) % parts;
  const i32 lane = it.get_sub_group().get_local_linear_id(), size = CELLS * head_dim;
  for (i32 block = part; block < cells / CELLS; block += parts) {
    const i8 *from = kv_at((const i8 *)kv, kv_offset + layer_offset + (i64)head * capacity * head_dim + (i64)block * size);
    f32 *to = out + (i64)head * cells * head_dim + (i64)block * size;
    const f16 *scales = scales_of(from, head_dim);
    if (head < n_kv) {
      for (i32 d = 0; d < head_dim; d += 4) {
        const i32 four = ((const i32 *)from)[d / 4 * CELLS + lane];
        const f32 scale = (f32)scales[d / 32 * CELLS + lane];
        repeat<4>([&](i32 i) { to[(d + i) * CELLS + lane] = byte_of(four, i) * scale; });
      }
    } else {
      for (i32 d = 0; d < head_dim; d += 16)
        for (i32 t = 0; t < CELLS; t += 4) {
          const i32 four = ((const i32 *)from)[t / 4 * head_dim + d + lane];
          repeat<4>([&](i32 i) { to[(t + i) * head_dim + d + lane] = byte_of(four, i) * (f32)scales[d / 32 * CELLS + t + i]; });
        }
    }
  }
}
