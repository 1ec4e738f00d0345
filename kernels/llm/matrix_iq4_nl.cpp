// Matrices of format IQ4_NL: packing, expansion, embedding rows and products with 1 to 8 activation rows.
#include "ns/kernel.hpp"
#define NS_FORMAT FormatIQ4_NL
#define NS_NAME(x) x##_iq4_nl
#define NS_NAME2(x, y) x##_iq4_nl_##y
#define NS_TABLE // integer products on cards, levels in local memory
#include "ns/matrix_kernels.hpp"
