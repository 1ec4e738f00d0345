// Products of packed matrices of format Q6_K with many activation rows (prompts).
#define NS_FORMAT FormatQ6_K
#define NS_NAME(x) x##_q6_k
#include "ns/product_kernels.hpp"
