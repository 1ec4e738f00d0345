// Matrices of format BF16: packing, expansion, embedding rows and products with 1 to 8 activation rows.
#include "ns/kernel.hpp"
#define NS_FORMAT FormatBF16
#define NS_NAME(x) x##_bf16
#define NS_NAME2(x, y) x##_bf16_##y
#include "ns/matrix_kernels.hpp"
