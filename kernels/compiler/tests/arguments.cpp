// A module for nskc's own tests: every kind of argument, comments and promises in every place.
// SPDX-License-Identifier: MIT
#include "tests/kernel.hpp"

struct Pair {
  int a;
  float b;
  const float *p;
  short s;
};

/* All kinds at once.
 * y = everything added up */
KERNEL void all_kinds(const float *x, unsigned char *y, int n, unsigned long m, float f, sycl::half h, Pair pair, sx::work_group_memory<float[]> scratch, short s, signed char c,
                      const sycl::half *halves, void *anything) {
  const int i = se::this_work_item::get_nd_item<1>().get_global_id(0);
  scratch[i & 3] = x[i];
  sycl::group_barrier(se::this_work_item::get_nd_item<1>().get_group());
  y[i] = n + m + f + float(h) + pair.a + pair.b + pair.p[0] + pair.s + scratch[1] + s + c + float(halves[i]) + ((int *)anything)[0];
}

namespace inner {
// Not a kernel, but its comment is its own.
inline float twice(float v) { return 2 * v; }
} // namespace inner

KERNEL void no_comment(float *x) { x[0] = inner::twice(x[1]); }

#define FAMILY(N)                                              \
  KERNEL void family_##N(const i32 *x, f32 *y, u32 count) {    \
    const int i = se::this_work_item::get_nd_item<1>().get_global_id(0); \
    if (i < (int)count) y[i] = x[i] * N;                       \
  }

// y = N x
// arc: load16
FAMILY(1)
FAMILY(2)

FAMILY(3)

// The file it was compiled from, without folders.
KERNEL void file_name(char *out) {
  const char name[] = __FILE__;
  for (unsigned i = 0; i < sizeof name; i++) out[i] = name[i];
}

#ifdef NS_GPU
KERNEL void gpu_only(int *x) { x[0] = 1; }
#endif
