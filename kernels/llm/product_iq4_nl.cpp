// Products of packed matrices of format IQ4_NL with many activation rows (prompts).
#define NS_FORMAT FormatIQ4_NL
#define NS_NAME(x) x##_iq4_nl
#include "ns/product_kernels.hpp"
