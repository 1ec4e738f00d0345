// An ESIMD kernel: one work-item a hardware thread.
#include <sycl/sycl.hpp>
#include <sycl/ext/intel/esimd.hpp>

// y[0..16) += x[0..16)
// arc: block
extern "C" SYCL_EXTERNAL SYCL_EXT_ONEAPI_FUNCTION_PROPERTY((sycl::ext::oneapi::experimental::nd_range_kernel<1>)) void add16(const float *x, float *y) SYCL_ESIMD_KERNEL {
  namespace esimd = sycl::ext::intel::esimd;
  esimd::simd<float, 16> a = esimd::block_load<float, 16>(x), b = esimd::block_load<float, 16>(y);
  esimd::block_store<float, 16>(y, a + b);
}
