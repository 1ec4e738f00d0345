// Products of packed matrices of format Q4_1 with many activation rows (prompts).
#define NS_FORMAT FormatQ4_1
#define NS_NAME(x) x##_q4_1
#include "ns/product_kernels.hpp"
