// Products of packed matrices of format Q5_0 with many activation rows (prompts).
#define NS_FORMAT FormatQ5_0
#define NS_NAME(x) x##_q5_0
#include "ns/product_kernels.hpp"
