// Products of packed matrices of format Q8_0 with many activation rows (prompts).
#define NS_FORMAT FormatQ8_0
#define NS_NAME(x) x##_q8_0
#include "ns/product_kernels.hpp"
