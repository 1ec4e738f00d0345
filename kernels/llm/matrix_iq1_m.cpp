// Matrices of format IQ1_M: packing, expansion, embedding rows and products with 1 to 8 activation rows.
#include "ns/kernel.hpp"
#define NS_FORMAT FormatIQ1_M
#define NS_NAME(x) x##_iq1_m
#define NS_NAME2(x, y) x##_iq1_m_##y
#define NS_TABLE // integer products on cards, levels in local memory
#include "ns/matrix_kernels.hpp"
