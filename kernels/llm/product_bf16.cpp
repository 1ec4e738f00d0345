// Products of packed matrices of format BF16 with many activation rows (prompts).
#define NS_FORMAT FormatBF16
#define NS_NAME(x) x##_bf16
#include "ns/product_kernels.hpp"
