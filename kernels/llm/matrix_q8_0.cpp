// Matrices of format Q8_0: packing, expansion, embedding rows and products with 1 to 8 activation rows.
#include "ns/kernel.hpp"
#define NS_FORMAT FormatQ8_0
#define NS_NAME(x) x##_q8_0
#define NS_NAME2(x, y) x##_q8_0_##y
#define NS_QUANTS // integer products on cards
#include "ns/matrix_kernels.hpp"
