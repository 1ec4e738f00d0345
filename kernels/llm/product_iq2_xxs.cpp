// Products of packed matrices of format IQ2_XXS with many activation rows (prompts).
#define NS_FORMAT FormatIQ2_XXS
#define NS_NAME(x) x##_iq2_xxs
#include "ns/product_kernels.hpp"
