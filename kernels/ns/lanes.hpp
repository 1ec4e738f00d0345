// Loops of a sub-group over a row.
#pragma once
#include "kernel.hpp"

// Inlines a lambda by force, on the CPU: one left as a call keeps what it captures in memory.
#ifdef NS_CPU
#define NS_FORCED __attribute__((always_inline))
#else
#define NS_FORCED
#endif

namespace ns {
// f(i) for i = first + lane, + step, ... below n. Whole vectors apart from the last on the CPU, where a loop that lanes leave one by one
// masks all it does.
template <class F> NS_INLINE void each_lane(i32 first, i32 step, i32 n, i32 lane, F f) {
#ifdef NS_CPU
  i32 i = first;
  for (; i + NS_SG <= n; i += step) f(i + lane);
  if (i + lane < n) f(i + lane);
#else
  for (i32 i = first + lane; i < n; i += step) f(i);
#endif
}
} // namespace ns
