// The prompt products of one matrix format. A module defines NS_FORMAT (for example FormatQ4_1) and NS_NAME(x) (x##_q4_1) and includes this.
#pragma once
#include "product.hpp"

using namespace ns;

// y[r][row] (+)= sum_k x[r][k] W[row][k] for r < m, straight from the packed matrix; x and y row-major, leading dimensions in elements.
// cpu: work-groups of 16, ceil(rows / 64) times the parts that x is shared out to; _narrow: ceil(rows / 16), for processors with 16 vector
// registers. gpu: work-groups of 64, ceil(rows / 64) * ceil(m / 32).
#define NS_ARGUMENTS const u8 *packed, const f32 *x, f32 *y, i32 m, i32 rows, i32 cols, i32 ldx, i32 ldy, i32 add
#ifdef NS_CPU
NS_KERNEL void NS_NAME(product)(NS_ARGUMENTS) { product<4>(PackedSource<NS_FORMAT>{packed, rows, cols}, x, y, m, rows, cols, ldx, ldy, add); }
NS_KERNEL void NS_NAME(product_narrow)(NS_ARGUMENTS) {
  product<1>(PackedSource<NS_FORMAT>{packed, rows, cols}, x, y, m, rows, cols, ldx, ldy, add);
}
#else
NS_KERNEL void NS_NAME(product)(NS_ARGUMENTS) { product(PackedSource<NS_FORMAT>{packed, rows, cols}, x, y, m, rows, cols, ldx, ldy, add); }
#endif
#undef NS_ARGUMENTS
