// Products of packed matrices of format IQ3_S with many activation rows (prompts).
#define NS_FORMAT FormatIQ3_S
#define NS_NAME(x) x##_iq3_s
#include "ns/product_kernels.hpp"
