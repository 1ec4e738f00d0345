// Products of a packed Q8_0 matrix with many activation rows on the matrix units. nskc: large-register-file
#include "product.hpp"
using namespace ns;

// y[m][row] (+)= sum_k x[m][k] W[row][k]; x as rows_f16 writes it; tiles of 64 (_m32: 32) rows by 32 columns of y a thread.
// arc: dpas, block
NS_TILE_PRODUCT(product_q8_0_m64, SourceQ8_0, 8)
NS_TILE_PRODUCT(product_q8_0_m32, SourceQ8_0, 4)
