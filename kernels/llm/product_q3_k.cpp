// Products of packed matrices of format Q3_K with many activation rows (prompts).
#define NS_FORMAT FormatQ3_K
#define NS_NAME(x) x##_q3_k
#include "ns/product_kernels.hpp"
