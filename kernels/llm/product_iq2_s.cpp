// Products of packed matrices of format IQ2_S with many activation rows (prompts).
#define NS_FORMAT FormatIQ2_S
#define NS_NAME(x) x##_iq2_s
#include "ns/product_kernels.hpp"
