// e^x and the gates made of it.
#pragma once
#include "kernel.hpp"

namespace ns {
#ifdef NS_CPU
// e^x to within 1.1 units in the last place for -87.3 <= x <= 88.3; 0 below, infinite above. The CPU's library takes several times as
// long. x = n ln 2 + r with whole n, |r| < 0.3466; e^r - 1 - r is r^2 times a polynomial through e^r at Chebyshev's points.
NS_INLINE f32 exp_of(f32 x) {
  constexpr f32 WHOLE = 12582912.0f; // 1.5 * 2^23: what is added to it is rounded to a whole number, found in its low bits
  const f32 t = sycl::fma(x, 1.44269502f, WHOLE), n = t - WHOLE;
  const f32 r = sycl::fma(n, 1.90465421e-09f, sycl::fma(n, -0.693147182f, x));
  f32 p = sycl::fma(0.00139261922f, r, 0.00836318638f);
  p = sycl::fma(p, r, 0.0416665561f);
  p = sycl::fma(p, r, 0.166665763f);
  p = sycl::fma(p, r, 0.5f);
  p = 1.0f + sycl::fma(p * r, r, r);
  const f32 power = sycl::bit_cast<f32>((sycl::bit_cast<u32>(t) << 23) + 0x3f800000u); // 2^n
  p *= power;
  p = x < -87.3f ? 0.0f : p;
  return x > 88.3f ? __builtin_inff() : p;
}
#else
NS_INLINE f32 exp_of(f32 x) { return sycl::exp(x); }
#endif

NS_INLINE f32 sigmoid(f32 v) { return 1.0f / (1.0f + exp_of(-v)); }
NS_INLINE f32 silu(f32 v) { return v / (1.0f + exp_of(-v)); }
} // namespace ns
