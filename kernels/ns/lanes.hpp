// Loops of a sub-group over a row.
#pragma once
#include "kernel.hpp"

// Inlines a lambda by force, on the CPU: one left as a call keeps what it captures in memory.
#ifdef NS_CPU
#define NS_FORCED __attribute__((always_inline))
#else
#define NS_FORCED
#endif

// NS_EACH_LANE(i, first, step, n, lane, { ... }): the braces for i = first + lane, + step, ... below n. On the CPU whole vectors apart
// from the last: a loop that lanes leave one by one masks all it does.
#ifdef NS_CPU
#define NS_EACH_LANE(I, FIRST, STEP, N, LANE, ...) ns::each_lane(FIRST, STEP, N, LANE, [&](ns::i32 I) NS_FORCED __VA_ARGS__)
namespace ns {
template <class F> NS_INLINE void each_lane(i32 first, i32 step, i32 n, i32 lane, F f) {
  i32 i = first;
  for (; i + NS_SG <= n; i += step) f(i + lane);
  if (i + lane < n) f(i + lane);
}
} // namespace ns
#else
#define NS_EACH_LANE(I, FIRST, STEP, N, LANE, ...) for (ns::i32 I = (FIRST) + (LANE); I < (N); I += (STEP)) __VA_ARGS__
#endif
