// Activations in the form that the matrix-unit kernels read them.
#include "ns/kernel.hpp"
using namespace ns;

// x rounded to half, [rows][cols] without gaps, the values of each four in the order 0, 2, 1, 3 (see product.hpp). A work-group a row;
// cols is a multiple of 4.
NS_KERNEL void rows_f16(const f32 *x, f16 *out, i32 cols, i32 ldx) {
  const Item it = item();
  const auto sg = it.get_sub_group();
  const i64 row = it.get_group(0);
  const f32 *from = x + row * ldx;
  f16 *to = out + row * cols;
  for (i32 i = (sg.get_group_linear_id() * NS_SG + sg.get_local_linear_id()) * 4; i < cols; i += it.get_local_range(0) * 4) {
    const f32 a = from[i], b = from[i + 1], c = from[i + 2], d = from[i + 3];
    to[i] = (f16)a, to[i + 1] = (f16)c, to[i + 2] = (f16)b, to[i + 3] = (f16)d;
  }
}

// The first `heads` heads of 256 values of each row of q, rounded to half, [rows][heads * 256], the values of each 32 in the order 0, 2, ..,
// 30, 1, 3, .., 31 (see attention.cpp). A work-group a row.
NS_KERNEL void queries_f16(const f32 *q, f16 *out, i32 heads, i32 ldq) {
  const Item it = item();
  const auto sg = it.get_sub_group();
  const i64 row = it.get_group(0);
  const f32 *from = q + row * ldq;
  f16 *to = out + row * heads * 256;
  for (i32 i = (sg.get_group_linear_id() * NS_SG + sg.get_local_linear_id()) * 2; i < heads * 256; i += it.get_local_range(0) * 2) {
    const f32 a = from[i], b = from[i + 1];
    f16 *at = to + i / 32 * 32 + i % 32 / 2;
    at[0] = (f16)a, at[16] = (f16)b;
  }
}
