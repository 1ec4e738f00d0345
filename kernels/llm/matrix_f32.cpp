// Matrices of format F32: packing, expansion, embedding rows and products with 1 to 8 activation rows.
#include "ns/kernel.hpp"
#define NS_FORMAT FormatF32
#define NS_NAME(x) x##_f32
#define NS_NAME2(x, y) x##_f32_##y
#include "ns/matrix_kernels.hpp"
