// What a device can do at most: the measures a profile is held against.
#include "ns/kernel.hpp"
using namespace ns;

// out[s] = the sum of values s * part .. (s + 1) * part of x, for each sub-group s: reading at full speed. part: a multiple of 256.
// arc: load16
NS_KERNEL void ceiling_read(const f32 *x, f32 *out, i64 part) {
  const Item it = item();
  const auto sg = it.get_sub_group();
  const i64 sub = it.get_group(0) * sg.get_group_linear_range() + sg.get_group_linear_id();
  const i32 lane = sg.get_local_linear_id();
  const f32 *from = x + sub * part;
  f32 sums[4] = {0, 0, 0, 0};
#ifdef NS_GPU
  for (i64 i = 4 * lane; i < part; i += 16 * NS_SG) {
    sycl::vec<f32, 4> v[4];
    repeat<4>([&](i32 j) { v[j] = *(const sycl::vec<f32, 4> *)(from + i + 4 * NS_SG * j); });
    repeat<4>([&](i32 j) { repeat<4>([&](i32 k) { sums[k] += v[j][k]; }); });
  }
#else
  for (i64 i = 0; i < part; i += 4 * NS_SG) repeat<4>([&](i32 k) { sums[k] += from[i + NS_SG * k + lane]; });
#endif
  const f32 sum = sycl::reduce_over_group(sg, (sums[0] + sums[1]) + (sums[2] + sums[3]), sycl::plus<f32>());
  if (lane == 0) out[sub] = sum;
}

// out = x, in the same parts.
// arc: load16
NS_KERNEL void ceiling_copy(const f32 *x, f32 *out, i64 part) {
  const Item it = item();
  const auto sg = it.get_sub_group();
  const i64 first = (it.get_group(0) * sg.get_group_linear_range() + sg.get_group_linear_id()) * part;
  const i32 lane = sg.get_local_linear_id();
#ifdef NS_GPU
  for (i64 i = first + 4 * lane; i < first + part; i += 16 * NS_SG) {
    sycl::vec<f32, 4> v[4];
    repeat<4>([&](i32 j) { v[j] = *(const sycl::vec<f32, 4> *)(x + i + 4 * NS_SG * j); });
    repeat<4>([&](i32 j) { *(sycl::vec<f32, 4> *)(out + i + 4 * NS_SG * j) = v[j]; });
  }
#else
  for (i64 i = first; i < first + part; i += 4 * NS_SG) repeat<4>([&](i32 k) { out[i + NS_SG * k + lane] = x[i + NS_SG * k + lane]; });
#endif
}

// Eight chains of `rounds` times eight fused multiply-adds v = v * a + b in each work-item; out[item] = the sum of its chains, which begin
// at the lane's number and the chain's.
NS_KERNEL void ceiling_fma(f32 *out, f32 a, f32 b, i32 rounds) {
  const Item it = item();
  const i32 lane = it.get_sub_group().get_local_linear_id();
  f32 v[8];
  repeat<8>([&](i32 k) { v[k] = (f32)(lane + k); });
  for (i32 r = 0; r < rounds; r++) repeat<8>([&](i32) { repeat<8>([&](i32 k) { v[k] = sycl::fma(v[k], a, b); }); });
  f32 sum = 0;
  repeat<8>([&](i32 k) { sum += v[k]; });
  out[it.get_global_id(0)] = sum;
}
