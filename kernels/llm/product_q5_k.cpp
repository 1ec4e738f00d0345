// Products of packed matrices of format Q5_K with many activation rows (prompts).
#define NS_FORMAT FormatQ5_K
#define NS_NAME(x) x##_q5_k
#include "ns/product_kernels.hpp"
