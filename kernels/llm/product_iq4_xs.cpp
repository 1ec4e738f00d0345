// Products of packed matrices of format IQ4_XS with many activation rows (prompts).
#define NS_FORMAT FormatIQ4_XS
#define NS_NAME(x) x##_iq4_xs
#include "ns/product_kernels.hpp"
