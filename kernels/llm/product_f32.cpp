// Products of packed matrices of format F32 with many activation rows (prompts).
#define NS_FORMAT FormatF32
#define NS_NAME(x) x##_f32
#include "ns/product_kernels.hpp"
