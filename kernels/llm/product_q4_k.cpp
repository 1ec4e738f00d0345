// Products of packed matrices of format Q4_K with many activation rows (prompts).
#define NS_FORMAT FormatQ4_K
#define NS_NAME(x) x##_q4_k
#include "ns/product_kernels.hpp"
