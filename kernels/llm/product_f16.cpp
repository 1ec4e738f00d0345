// Products of packed matrices of format F16 with many activation rows (prompts).
#define NS_FORMAT FormatF16
#define NS_NAME(x) x##_f16
#include "ns/product_kernels.hpp"
