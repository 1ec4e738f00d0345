// Products of packed matrices of format Q2_K with many activation rows (prompts).
#define NS_FORMAT FormatQ2_K
#define NS_NAME(x) x##_q2_k
#include "ns/product_kernels.hpp"
