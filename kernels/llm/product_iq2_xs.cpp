// Products of packed matrices of format IQ2_XS with many activation rows (prompts).
#define NS_FORMAT FormatIQ2_XS
#define NS_NAME(x) x##_iq2_xs
#include "ns/product_kernels.hpp"
