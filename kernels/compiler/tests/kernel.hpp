// What the test modules share.
#pragma once
#include <sycl/sycl.hpp>
namespace se = sycl::ext::oneapi;
namespace sx = sycl::ext::oneapi::experimental;
using f32 = float;
using i32 = int;
using u32 = unsigned int;
#define RANGE SYCL_EXT_ONEAPI_FUNCTION_PROPERTY((sx::nd_range_kernel<1>))
#define KERNEL extern "C" RANGE SYCL_EXT_ONEAPI_FUNCTION_PROPERTY((sx::sub_group_size<NS_SG>))
inline int global_id() { return se::this_work_item::get_nd_item<1>().get_global_id(0); }
