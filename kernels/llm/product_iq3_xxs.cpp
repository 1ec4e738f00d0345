// Products of packed matrices of format IQ3_XXS with many activation rows (prompts).
#define NS_FORMAT FormatIQ3_XXS
#define NS_NAME(x) x##_iq3_xxs
#include "ns/product_kernels.hpp"
