// Conversions of 16-bit floats by integer operations (bfloat16) and by the native type (IEEE half).
#pragma once
#include "kernel.hpp"

namespace ns {
NS_INLINE f32 half_at(const u8 *p) { return (f32) * (const f16 *)p; }
NS_INLINE f32 bf16_to_f32(u16 bits) { return sycl::bit_cast<f32>((u32)bits << 16); }
} // namespace ns
