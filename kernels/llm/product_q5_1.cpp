// Products of packed matrices of format Q5_1 with many activation rows (prompts).
#define NS_FORMAT FormatQ5_1
#define NS_NAME(x) x##_q5_1
#include "ns/product_kernels.hpp"
