// Matrix products of plain row-major matrices, for what oneMKL cannot do: y[m][n] (+)= sum_k x[m][k] w[n][k], sums in float32.
#include "ns/product.hpp"

using namespace ns;

// Leading dimensions in elements. cpu: work-groups of 16, ceil(n / 64) times the parts that the rows of x are shared out to (f16 likewise).
// gpu: work-groups of 64, ceil(n / 64) * ceil(m / 32).
#ifdef NS_CPU
#define NS_PRODUCT product<4>
#else
#define NS_PRODUCT product
#endif
NS_KERNEL void gemm_f32(const f32 *x, const f32 *w, f32 *y, i32 m, i32 n, i32 k, i32 ldx, i32 ldw, i32 ldy, i32 add) {
  NS_PRODUCT(RowSource<f32>{w, n, ldw}, x, y, m, n, k, ldx, ldy, add);
}
NS_KERNEL void gemm_f16(const f16 *x, const f16 *w, f32 *y, i32 m, i32 n, i32 k, i32 ldx, i32 ldw, i32 ldy, i32 add) {
  NS_PRODUCT(RowSource<f16>{w, n, ldw}, x, y, m, n, k, ldx, ldy, add);
}
#ifdef NS_CPU
// The same for processors with 16 vector registers: ceil(n / 16) times the parts.
NS_KERNEL void gemm_f32_narrow(const f32 *x, const f32 *w, f32 *y, i32 m, i32 n, i32 k, i32 ldx, i32 ldw, i32 ldy, i32 add) {
  product<1>(RowSource<f32>{w, n, ldw}, x, y, m, n, k, ldx, ldy, add);
}
#endif
