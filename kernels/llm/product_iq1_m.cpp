// Products of packed matrices of format IQ1_M with many activation rows (prompts).
#define NS_FORMAT FormatIQ1_M
#define NS_NAME(x) x##_iq1_m
#include "ns/product_kernels.hpp"
