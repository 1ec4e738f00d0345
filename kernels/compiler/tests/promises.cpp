// Kernels that keep what they promise.
#include "tests/kernel.hpp"
#include <sycl/ext/oneapi/matrix/matrix.hpp>

using Four = char __attribute__((ext_vector_type(4)));

// sums[i] = dot product of 16 signed bytes
// arc: dp4a, load16
KERNEL void dots(const sycl::uint4 *x, const sycl::uint4 *y, int *sums) {
  const int i = global_id();
  const sycl::uint4 a = x[i], b = y[i];
  int sum = 0;
#pragma unroll
  for (int k = 0; k < 4; k++) {
    const Four u = sycl::bit_cast<Four>(a[k]), v = sycl::bit_cast<Four>(b[k]);
    sum = sum + (int)u[0] * v[0] + (int)u[1] * v[1] + (int)u[2] * v[2] + (int)u[3] * v[3];
  }
  sums[i] = sum;
}

// c = a b for one 8 x 16 tile of half products
// arc: dpas
KERNEL void tile(const sycl::half *a, const sycl::half *b, float *c) {
  namespace mx = sx::matrix;
  auto sg = se::this_work_item::get_nd_item<1>().get_sub_group();
  mx::joint_matrix<sycl::sub_group, float, mx::use::accumulator, 8, 16> mc;
  mx::joint_matrix<sycl::sub_group, sycl::half, mx::use::a, 8, 16, mx::layout::row_major> ma;
  mx::joint_matrix<sycl::sub_group, sycl::half, mx::use::b, 16, 16, mx::layout::row_major> mb;
  auto global = [](auto *p) { return sycl::address_space_cast<sycl::access::address_space::global_space, sycl::access::decorated::no>(p); };
  mx::joint_matrix_fill(sg, mc, 0.0f);
  mx::joint_matrix_load(sg, ma, global(a), 16);
  mx::joint_matrix_load(sg, mb, global(b), 16);
  mx::joint_matrix_mad(sg, mc, ma, mb, mc);
  mx::joint_matrix_store(sg, mc, global(c), 16, mx::layout::row_major);
}

// out[i] = the neighbour's value
// arc: slm
KERNEL void neighbour(const float *x, float *out) {
  sx::work_group_static<float[64]> local;
  const int i = global_id(), l = se::this_work_item::get_nd_item<1>().get_local_id(0);
  (*&local)[l] = x[i];
  sycl::group_barrier(se::this_work_item::get_nd_item<1>().get_group());
  out[i] = (*&local)[l ^ 1];
}
