// Matrices of format Q4_1: packing, expansion, embedding rows and products with 1 to 8 activation rows.
#include "ns/kernel.hpp"
#define NS_FORMAT FormatQ4_1
#define NS_NAME(x) x##_q4_1
#define NS_NAME2(x, y) x##_q4_1_##y
#define NS_QUANTS // integer products on cards
#include "ns/matrix_kernels.hpp"
