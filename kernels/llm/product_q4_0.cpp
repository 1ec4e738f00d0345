// Products of packed matrices of format Q4_0 with many activation rows (prompts).
#define NS_FORMAT FormatQ4_0
#define NS_NAME(x) x##_q4_0
#include "ns/product_kernels.hpp"
