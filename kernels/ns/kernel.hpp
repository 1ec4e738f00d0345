// What every kernel file includes: SYCL, the launch properties and the lane numbering.
#pragma once
#include <sycl/sycl.hpp>
#include <utility>

#ifndef NS_SG
#define NS_SG 16 // work-items of a sub-group; lanes of the CPU layout
#endif

// An ahead-of-time kernel: one-dimensional range, sub-group size fixed. The name in the module is the function's.
#define NS_KERNEL                                                                                                          \
  extern "C" SYCL_EXT_ONEAPI_FUNCTION_PROPERTY((sycl::ext::oneapi::experimental::nd_range_kernel<1>))                      \
      SYCL_EXT_ONEAPI_FUNCTION_PROPERTY((sycl::ext::oneapi::experimental::sub_group_size<NS_SG>))

// Device functions that kernels share are inlined by force: a function left as a call is vectorised apart from its kernel, with every
// address its own in each lane.
#define NS_INLINE inline __attribute__((always_inline))

namespace ns {
using u8 = unsigned char;
using i8 = signed char;
using u16 = unsigned short;
using i32 = int;
using u32 = unsigned int;
using i64 = long;
using u64 = unsigned long;
using f32 = float;
using f16 = sycl::half;

using Item = sycl::nd_item<1>;
// Smaller of two numbers. Not sycl::min: the CPU compiler takes the built-in's result for different in every lane, and then reads
// what depends on it lane by lane.
NS_INLINE i32 least(i32 a, i32 b) { return a < b ? a : b; }

// Calls f(0) .. f(N - 1): what a loop would do, but unrolled for certain, so that arrays indexed by it stay in registers.
template <class F, i32... I> NS_INLINE void repeat_of(F f, std::integer_sequence<i32, I...>) { (f(I), ...); }
template <i32 N, class F> NS_INLINE void repeat(F f) { repeat_of(f, std::make_integer_sequence<i32, N>{}); }

NS_INLINE Item item() { return sycl::ext::oneapi::this_work_item::get_nd_item<1>(); }
} // namespace ns
