// Matrices of format IQ2_S: packing, expansion, embedding rows and products with 1 to 8 activation rows.
#include "ns/kernel.hpp"
#define NS_FORMAT FormatIQ2_S
#define NS_NAME(x) x##_iq2_s
#define NS_NAME2(x, y) x##_iq2_s_##y
#define NS_TABLE // integer products on cards, levels in local memory
#include "ns/matrix_kernels.hpp"
