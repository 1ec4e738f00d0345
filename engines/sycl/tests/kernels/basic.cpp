// Kernels for the tests of ns-sycl: one of every kind of argument and launch geometry. Not part of the product.
// SPDX-License-Identifier: MIT
#include <sycl/sycl.hpp>

namespace sx = sycl::ext::oneapi::experimental;
namespace item = sycl::ext::oneapi::this_work_item;

#define KERNEL(dimensions) extern "C" SYCL_EXT_ONEAPI_FUNCTION_PROPERTY((sx::nd_range_kernel<dimensions>)) SYCL_EXT_ONEAPI_FUNCTION_PROPERTY((sx::sub_group_size<NS_SG>)) void

/// y[i] += a * x[i] for i < n; {n rounded up to 64, 1, 1} in groups of 64.
KERNEL(1) axpy(float a, const float *x, float *y, int n) {
  int i = static_cast<int>(item::get_nd_item<1>().get_global_id(0));
  if (i < n) y[i] = sycl::fma(a, x[i], y[i]);
}

/// out[row * width + column] = 1000 * row + column, row = dimension 0, column = dimension 1; {width, rows, 1}.
KERNEL(2) rows_and_columns(int *out, int width) {
  auto it = item::get_nd_item<2>();
  int row = static_cast<int>(it.get_global_id(0)), column = static_cast<int>(it.get_global_id(1));
  out[row * width + column] = 1000 * row + column;
}

/// out[linear id] = 10000 * dimension 0 + 100 * dimension 1 + dimension 2.
KERNEL(3) three_dimensions(int *out) {
  auto it = item::get_nd_item<3>();
  out[it.get_global_linear_id()] = static_cast<int>(10000 * it.get_global_id(0) + 100 * it.get_global_id(1) + it.get_global_id(2));
}

/// y[group] = sum of its 64 values of x, through local memory.
KERNEL(1) group_sums(const float *x, float *y, sx::work_group_memory<float[]> scratch) {
  auto it = item::get_nd_item<1>();
  size_t l = it.get_local_id(0);
  scratch[l] = x[it.get_global_id(0)];
  for (size_t half = it.get_local_range(0) / 2; half; half /= 2) {
    sycl::group_barrier(it.get_group());
    if (l < half) scratch[l] += scratch[l + half];
  }
  if (l == 0) y[it.get_group(0)] = scratch[0];
}

struct Line {
  int slope;
  float offset;
  long long scale;
};

/// out[i] = (slope * i + offset) * scale: a struct by value.
KERNEL(1) line(Line l, float *out) {
  int i = static_cast<int>(item::get_nd_item<1>().get_global_id(0));
  out[i] = (static_cast<float>(l.slope * i) + l.offset) * static_cast<float>(l.scale);
}

/// out[i] = start + i * step in 64 bits.
KERNEL(1) steps(long long *out, long long start, unsigned long long step) {
  auto i = item::get_nd_item<1>().get_global_id(0);
  out[i] = start + static_cast<long long>(i * step);
}

/// value[0] = value[0] * 3 + 1: order matters, so a replay in another order shows.
KERNEL(1) collatz(unsigned *value) {
  if (item::get_nd_item<1>().get_global_id(0) == 0) value[0] = value[0] * 3 + 1;
}

/// out[i] = x[i] / y[i] and sqrt(x[i]): how exact the device's division and root are.
KERNEL(1) divide_and_root(const float *x, const float *y, float *quotient, float *root, int n) {
  int i = static_cast<int>(item::get_nd_item<1>().get_global_id(0));
  if (i >= n) return;
  quotient[i] = x[i] / y[i];
  root[i] = sycl::sqrt(x[i]);
}
