// Work-group reductions in a fixed order: sub-groups first, then their results one after the other.
#pragma once
#include "kernel.hpp"

namespace ns {
constexpr i32 MOST_SUBGROUPS = 64;

// The result of `op` over all work-items, in every work-item. `local` has MOST_SUBGROUPS values; it is free again afterwards.
template <class T, class Op> NS_INLINE T reduce_group(Item it, T v, T *local, Op op) {
  const auto sg = it.get_sub_group();
  v = sycl::reduce_over_group(sg, v, op);
  const i32 groups = sg.get_group_linear_range();
  if (groups == 1) return v;
  if (sg.get_local_linear_id() == 0) local[sg.get_group_linear_id()] = v;
  sycl::group_barrier(it.get_group());
  v = local[0];
  for (i32 g = 1; g < groups; g++) v = op(v, local[g]);
  sycl::group_barrier(it.get_group());
  return v;
}
} // namespace ns
