// Philox4x32-10, the counter-based generator behind every draw (Salmon et al., SC 2011).
#pragma once
#include "kernel.hpp"

namespace ns {
struct Words {
  u32 w0, w1, w2, w3;
};

NS_INLINE Words philox4x32_10(Words c, u32 k0, u32 k1) {
  for (i32 round = 0; round < 10; round++) {
    const u64 p0 = (u64)0xD2511F53u * c.w0, p1 = (u64)0xCD9E8D57u * c.w2;
    c = {(u32)(p1 >> 32) ^ c.w1 ^ k0, (u32)p1, (u32)(p0 >> 32) ^ c.w3 ^ k1, (u32)p0};
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
  return c;
}

// A uniform in [0, 1) out of a word, a multiple of 2^-24.
NS_INLINE f32 uniform(u32 word) { return (f32)(word >> 8) * (1.0f / 16777216.0f); }
} // namespace ns
