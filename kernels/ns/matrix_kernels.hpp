// The kernels of one matrix format. A module defines NS_FORMAT (for example FormatQ4_1) and NS_NAME(x) (x##_q4_1) and includes this.
#pragma once
#include "activation.hpp"
#include "dot.hpp"
#include "matrix.hpp"

namespace ns {
#ifdef NS_CPU
NS_INLINE void store(f32 *to, f32 value, i32 add) { *to = add ? *to + value : value; }

// y[m][row] (+)= sum_i W[row][i] x_m[i] for the first N activation rows, N <= 4; `row` is the lane's row of the group at w. Every
// row m runs the same operations in the same order, whatever N is: four chains over the values of a part, d times their sum, and o times
// the part's sum of x, which is at sums_at.
template <class F, i32 N>
NS_INLINE void cpu_rows(const u8 *w, const u8 *act, f32 *y, i32 row, i32 rows, i32 cols, i32 act_stride, i32 ldy, i32 add, i32 lane) {
  const i32 nb = blocks_of<F>(cols);
  const i64 sums_at = F::PART == 16 ? act_xh(cols) : act_xs(cols), stride = act_stride;
  f32 sum[N];
  repeat<N>([&](i32 m) __attribute__((always_inline)) { sum[m] = 0; });
  // one loop over all parts: in a loop of blocks around one of parts the compiler would take every lane's addresses one by one
  constexpr i32 PARTS = F::BLOCK / F::PART;
  for (i32 index = 0; index < nb * PARTS; index++) {
    const CpuPart<F> part(w + (i64)(index / PARTS) * (16 * cpu_bytes<F>()), index % PARTS, lane);
    // each value is expanded once for all rows
    f32 a[N][4];
    repeat<N>([&](i32 m) __attribute__((always_inline)) { a[m][0] = a[m][1] = a[m][2] = a[m][3] = 0; });
    const f32 *x = (const f32 *)act + (i64)index * F::PART;
    part.each([&](i32 j, f32 q) __attribute__((always_inline)) {
      repeat<N>([&](i32 m) __attribute__((always_inline)) {
        a[m][j % 4] = sycl::fma(((const f32 *)((const u8 *)x + m * stride))[j], q, a[m][j % 4]);
      });
    });
    repeat<N>([&](i32 m) __attribute__((always_inline)) {
      sum[m] = sycl::fma(part.d, (a[m][0] + a[m][1]) + (a[m][2] + a[m][3]), sum[m]);
      if constexpr (F::HAS_OFFSET) sum[m] = sycl::fma(part.o, ((const f32 *)(act + m * stride + sums_at))[index], sum[m]);
    });
  }
  if (row >= rows) return;
  repeat<N>([&](i32 m) __attribute__((always_inline)) { store(y + m * (i64)ldy + row, sum[m], add); });
}

// The same for any number of rows, each part being expanded once for all of them.
template <class F, i32 M>
NS_INLINE void cpu_rows_once(const u8 *w, const u8 *act, f32 *y, i32 row, i32 rows, i32 cols, i32 act_stride, i32 ldy, i32 add, i32 lane) {
  const i32 nb = blocks_of<F>(cols);
  constexpr i32 PARTS = F::BLOCK / F::PART;
  f32 sum[M];
  repeat<M>([&](i32 m) __attribute__((always_inline)) { sum[m] = 0; });
  for (i32 index = 0; index < nb * PARTS; index++) {
    const CpuPart<F> part(w + (i64)(index / PARTS) * (16 * cpu_bytes<F>()), index % PARTS, lane);
    const f32 *x = (const f32 *)act + (i64)index * F::PART;
    f32 q[F::PART];
    part.each([&](i32 j, f32 value) __attribute__((always_inline)) { q[j] = value; });
    repeat<M>([&](i32 m) __attribute__((always_inline)) {
      const f32 *xm = (const f32 *)((const u8 *)x + m * (i64)act_stride);
      f32 a[4] = {0, 0, 0, 0};
      repeat<F::PART>([&](i32 j) __attribute__((always_inline)) { a[j % 4] = sycl::fma(xm[j], q[j], a[j % 4]); });
      sum[m] = sycl::fma(part.d, (a[0] + a[1]) + (a[2] + a[3]), sum[m]);
    });
  }
  if (row >= rows) return;
  repeat<M>([&](i32 m) __attribute__((always_inline)) { store(y + m * (i64)ldy + row, sum[m], add); });
}

template <class F, i32 M>
NS_INLINE void matvec(const u8 *packed, const u8 *act, f32 *y, i32 rows, i32 cols, i32 act_stride, i32 ldy, i32 add) {
  const Item it = item();
  const auto sg = it.get_sub_group();
  const i32 lane = sg.get_local_linear_id();
  const i32 group = it.get_group(0) * sg.get_group_linear_range() + sg.get_group_linear_id();
  // Groups beyond the rows read those of the last one and store nothing: behind a branch the levels could not go from lane to lane.
  const i32 last = (rows - 1) / 16, there = least(group, last);
  const u8 *w = packed + (i64)there * blocks_of<F>(cols) * 16 * cpu_bytes<F>();
  if constexpr (once<F>()) {
    cpu_rows_once<F, M>(w, act, y, group * 16 + lane, rows, cols, act_stride, ldy, add, lane);
  } else {
    constexpr i32 N = M > 4 ? 4 : M;
    cpu_rows<F, N>(w, act, y, group * 16 + lane, rows, cols, act_stride, ldy, add, lane);
    if constexpr (M > 4)
      cpu_rows<F, M - 4>(w, act + 4 * (i64)act_stride, y + 4 * (i64)ldy, group * 16 + lane, rows, cols, act_stride, ldy, add, lane);
  }
}
#else
// One sub-group a row of the matrix; lanes share the row's 16-byte pieces and their sums are added at the end.
template <class F, i32 M>
NS_INLINE void matvec(const u8 *packed, const u8 *act, f32 *y, i32 rows, i32 cols, i32 act_stride, i32 ldy, i32 add) {
  const Item it = item();
  const auto sg = it.get_sub_group();
  const i32 lane = sg.get_local_linear_id();
  const i64 row = (i64)it.get_group(0) * sg.get_group_linear_range() + sg.get_group_linear_id();
  const u32 *table = nullptr;
  if constexpr (table_words<F>() > 0) { // the format's levels, once a work-group
    sycl::ext::oneapi::experimental::work_group_static<u32[table_words<F>()]> store;
    u32 *words = &store[0];
    for (i32 i = it.get_local_id(0); i < table_words<F>(); i += it.get_local_range(0)) words[i] = F::table(i);
    sycl::group_barrier(it.get_group());
    table = words;
  }
  if (row >= rows) return;
  f32 sum[M];
#pragma unroll
  for (i32 m = 0; m < M; m++) sum[m] = 0;
  gpu_dot<F, M>(packed, act, sum, row, rows, cols, act_stride, lane, table);
#pragma unroll
  for (i32 m = 0; m < M; m++) sum[m] = sycl::reduce_over_group(sg, sum[m], sycl::plus<f32>());
  if (lane == 0) {
#pragma unroll
    for (i32 m = 0; m < M; m++) {
      f32 *to = y + (i64)m * ldy + row;
      *to = add ? *to + sum[m] : sum[m];
    }
  }
}
#endif

// What missing rows are packed from.
struct ZeroBlock {
  alignas(4) u8 v[256];
};
inline constexpr ZeroBlock ZEROS{};

template <class F>
NS_INLINE void pack(const u8 *raw, u8 *packed, i32 first_row, i32 n_rows, i32 rows, i32 cols) {
  const Item it = item();
  const auto sg = it.get_sub_group();
  const i32 lane = sg.get_local_linear_id();
  const i64 nb = blocks_of<F>(cols);
  const i64 unit = (i64)it.get_group(0) * sg.get_group_linear_range() + sg.get_group_linear_id(); // (16 rows, block)
  const i64 group = unit / nb, block = unit % nb;
  const i64 row = first_row + group * 16 + lane - first_row % 16; // lanes are rows of one group of the layout
  const i64 from = row - first_row;
  const i64 last = first_row + n_rows;
  const bool mine = from >= 0 && row < last;
  const bool padding = row >= rows && last == rows;
  if (row >= round_up(rows, 16) || !(mine || padding)) return;
#ifdef NS_CPU
  u8 *to = packed + ((row / 16) * nb + block) * 16 * cpu_bytes<F>();
  if constexpr (F::FLOAT) {
    using V = typename F::Value;
    for (i32 j = 0; j < 32; j++) {
      const i64 col = block * 32 + j;
      ((V *)to)[16 * j + row % 16] = mine && col < cols ? ((const V *)raw)[from * cols + col] : (V)0;
    }
  } else {
    cpu_pack<F>(mine ? raw + (from * nb + block) * F::BYTES : ZEROS.v, to, row % 16);
  }
#else
  if (!mine) return;
  const i64 at = row * nb + block;
  if constexpr (F::FLOAT) {
    using V = typename F::Value;
    for (i32 j = 0; j < 32; j++) {
      const i64 col = block * 32 + j;
      ((V *)packed)[at * 32 + j] = col < cols ? ((const V *)raw)[from * cols + col] : (V)0;
    }
  } else {
    const u16 *b = (const u16 *)(raw + (from * nb + block) * F::BYTES);
    if constexpr (std::is_same_v<F, FormatQ4_K>) {
      for (i32 j = 0; j < F::BYTES / 2; j++) ((u16 *)packed)[at * (F::BYTES / 2) + j] = b[j];
    } else {
#pragma unroll
      for (i32 k = 0; k < F::FIELDS.n; k++) {
        u16 *to = (u16 *)(packed + GpuPlanes<F>::start(k, rows, cols) + at * F::FIELDS.f[k].bytes);
        for (i32 j = 0; j < F::FIELDS.f[k].bytes / 2; j++) to[j] = b[F::FIELDS.f[k].offset / 2 + j];
      }
    }
  }
#endif
}

template <class F> NS_INLINE void embed(const u8 *packed, const i32 *ids, f32 *out, i32 rows, i32 cols) {
  const Item it = item();
  const i64 at = it.get_group(0);
  const i32 row = ids[at];
  for (i32 i = it.get_local_id(0); i < cols; i += it.get_local_range(0))
    out[at * cols + i] = row >= 0 && row < rows ? element<F>(packed, rows, cols, row, i) : 0.0f;
}

template <class F, class T> NS_INLINE void expand(const u8 *packed, T *out, i32 first_row, i32 rows, i32 cols) {
  const Item it = item();
  const i64 r = it.get_group(0);
  for (i32 i = it.get_local_id(0); i < cols; i += it.get_local_range(0))
    out[r * cols + i] = (T)element<F>(packed, rows, cols, first_row + r, i);
}
} // namespace ns

using namespace ns;

// Packs file rows into the layout: raw holds n_rows rows, which become rows first_row.. of a matrix of `rows` rows. Raw rows of
// float formats hold `cols` values. One sub-group takes a block of 16 rows of the layout (first_row / 16 on); the rows that fill
// the last 16 are written as zeros in the cpu layout.
NS_KERNEL void NS_NAME(pack)(const u8 *raw, u8 *packed, i32 first_row, i32 n_rows, i32 rows, i32 cols) {
  pack<NS_FORMAT>(raw, packed, first_row, n_rows, rows, cols);
}

// out[n][cols] = rows ids[n] of the matrix; one work-group an id. Ids outside the matrix give zeros.
NS_KERNEL void NS_NAME(embed)(const u8 *packed, const i32 *ids, f32 *out, i32 n, i32 rows, i32 cols) {
  embed<NS_FORMAT>(packed, ids, out, rows, cols);
}

// out[r][cols] = rows first_row + r of the matrix, r < n_rows, row-major; one work-group a row.
NS_KERNEL void NS_NAME(dequant_f32)(const u8 *packed, f32 *out, i32 first_row, i32 n_rows, i32 rows, i32 cols) {
  expand<NS_FORMAT>(packed, out, first_row, rows, cols);
}
NS_KERNEL void NS_NAME(dequant_f16)(const u8 *packed, f16 *out, i32 first_row, i32 n_rows, i32 rows, i32 cols) {
  expand<NS_FORMAT>(packed, out, first_row, rows, cols);
}

#define NS_MATVEC(M)                                                                                                       \
  NS_KERNEL void NS_NAME2(matvec, r##M)(const u8 *packed, const u8 *act, f32 *y, i32 rows, i32 cols, i32 act_stride,       \
                                        i32 ldy, i32 add) {                                                                \
    ns::matvec<NS_FORMAT, M>(packed, act, y, rows, cols, act_stride, ldy, add);                                             \
  }
#if defined NS_TABLE
// y[m][row] (+)= W x_m for m < the number in the name; act rows as activation.hpp. cpu: a sub-group is 16 rows; gpu: one row, and the more of
// them a work-group has the fewer times the table of levels is read.
// arc: load16, dp4a, slm
NS_MATVEC(1)
NS_MATVEC(2)
NS_MATVEC(3)
NS_MATVEC(4)
NS_MATVEC(5)
NS_MATVEC(6)
NS_MATVEC(7)
NS_MATVEC(8)
#elif defined NS_QUANTS
// y[m][row] (+)= W x_m for m < the number in the name; act rows as activation.hpp. cpu: a sub-group is 16 rows; gpu: one row.
// arc: load16, dp4a
NS_MATVEC(1)
NS_MATVEC(2)
NS_MATVEC(3)
NS_MATVEC(4)
NS_MATVEC(5)
NS_MATVEC(6)
NS_MATVEC(7)
NS_MATVEC(8)
#else
// y[m][row] (+)= W x_m for m < the number in the name; act rows as activation.hpp. cpu: a sub-group is 16 rows; gpu: one row.
// arc: load16
NS_MATVEC(1)
NS_MATVEC(2)
NS_MATVEC(3)
NS_MATVEC(4)
NS_MATVEC(5)
NS_MATVEC(6)
NS_MATVEC(7)
NS_MATVEC(8)
#endif
