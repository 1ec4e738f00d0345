// Matrices of format Q5_K: packing, expansion, embedding rows and products with 1 to 8 activation rows.
#include "ns/kernel.hpp"
#define NS_FORMAT FormatQ5_K
#define NS_NAME(x) x##_q5_k
#define NS_NAME2(x, y) x##_q5_k_##y
#define NS_QUANTS // integer products on cards
#include "ns/matrix_kernels.hpp"
