// Matrices of format F16: packing, expansion, embedding rows and products with 1 to 8 activation rows.
#include "ns/kernel.hpp"
#define NS_FORMAT FormatF16
#define NS_NAME(x) x##_f16
#define NS_NAME2(x, y) x##_f16_##y
#include "ns/matrix_kernels.hpp"
