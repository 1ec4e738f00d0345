// What the kernels on the matrix units are written in: tiles of 16 lanes, in two forms with the same meaning.
//
//   gpu  ESIMD: a work-item is a hardware thread, a tile is a run of registers, multiply() is dpas on the matrix units.
//   cpu  the twin: a thread is a sub-group of 16 lanes, a tile is a small array in each lane, multiply() is fused multiply-adds in
//        ascending k. Everything above this file (addresses, bounds, order of blocks, scales, masks) is the same code in both.
//
// V<T, S>: S slots of 16 lanes. Rows of 16 halves are the left operand of multiply() (lane = k), 8 rows at a time; Pairs<S>: S slots of two
// halves a lane, the right one (lane = column n, slot p = values k = 2p and 2p + 1), 8 slots for 16 values of k; V<f32, 8> the sums (slot =
// row, lane = column).  Rows<N>: one number for each of N rows.
#pragma once
#include "ns/half.hpp"
#include "ns/kernel.hpp"

#ifdef NS_GPU
#include <sycl/ext/intel/esimd.hpp>

// A kernel on the matrix units. No declared sub-group size: a work-item is a whole thread. 256 registers: the module says "nskc: large-register-file".
#define NS_TILE_KERNEL                                                                                                     \
  extern "C" SYCL_EXT_ONEAPI_FUNCTION_PROPERTY((sycl::ext::oneapi::experimental::nd_range_kernel<1>))                      \
      SYCL_EXTERNAL SYCL_ESIMD_KERNEL
#define NS_TILE inline __attribute__((always_inline)) SYCL_ESIMD_FUNCTION
#define NS_EACH _Pragma("unroll") // tiles stay in registers
#else
#define NS_TILE_KERNEL NS_KERNEL
#define NS_TILE NS_INLINE
#define NS_EACH _Pragma("clang loop unroll(disable)") // as loops they compile in reasonable time
#endif

namespace ns {
// A matrix in memory as the block loads see it: what lies outside is read as zero and never written. Conditions of the hardware: base on
// 64 bytes, width at least 64 bytes and a multiple of 4, pitch a multiple of 16, all at most 2^24.
struct Surface {
  const void *base;
  i32 width, height, pitch; // bytes, rows, bytes
};

#ifdef NS_GPU
namespace es = sycl::ext::intel::esimd;
template <class T, i32 S> using V = es::simd<T, 16 * S>;
template <i32 S> using Pairs = es::simd<f16, 32 * S>;
template <i32 N> using Rows = es::simd<f32, N>;

NS_TILE i32 thread_of_group() { return item().get_local_id(0); }
NS_TILE i32 threads_of_group() { return item().get_local_range(0); }

template <i32 N, class T, i32 S> NS_TILE V<T, N> slots(es::simd<T, S> v, i32 first) {
  return v.template select<16 * N, 1>(16 * first);
}
template <i32 N, class T, i32 S> NS_TILE void put(es::simd<T, S> &v, i32 first, const V<T, N> &part) {
  v.template select<16 * N, 1>(16 * first) = part;
}
template <i32 N, i32 S> NS_TILE Pairs<N> pair_slots(es::simd<f16, S> v, i32 first) {
  return v.template select<32 * N, 1>(32 * first);
}
template <i32 N, i32 S> NS_TILE void put_pairs(es::simd<f16, S> &v, i32 first, const Pairs<N> &part) {
  v.template select<32 * N, 1>(32 * first) = part;
}
NS_TILE Pairs<1> as_pairs(V<u32, 1> words) { return words.bit_cast_view<f16>(); }
// The half in every lane twice.
NS_TILE Pairs<1> twice(V<f16, 1> v) { return as_pairs(es::convert<u32>(V<u16, 1>(v.bit_cast_view<u16>())) * 0x10001u); }
NS_TILE Pairs<1> fma_pairs(Pairs<1> a, Pairs<1> b, Pairs<1> c) { return a * b + c; }

template <class T, class U, i32 S> NS_TILE V<T, S / 16> to(const es::simd<U, S> &v) { return es::convert<T>(v); }
NS_TILE V<f32, 1> as_half(V<u32, 1> words) { // the low half of each word
  return es::convert<f32>(V<f16, 1>(words.bit_cast_view<f16>().select<16, 2>(0)));
}
NS_TILE V<u32, 1> shift_left(V<u32, 1> v, i32 n) { return v << n; }
NS_TILE V<i32, 1> signed_words(V<u32, 1> v) { return v.bit_cast_view<i32>(); }

// Rows y .. of 16 halves from column x on; B = 2: those of columns x + 16 on behind them.
template <i32 R, i32 B> NS_TILE V<f16, R * B> load_rows(Surface s, i32 x, i32 y) {
  return es::load_2d<f16, 16, R, B>((const f16 *)s.base, s.width - 1, s.height - 1, s.pitch - 1, x, y);
}
// 2 P rows of 16 halves as P slots of pairs (rows y + 2p and y + 2p + 1); B = 2: those of columns x + 16 on behind them.
template <i32 P, i32 B> NS_TILE Pairs<P * B> load_pairs(Surface s, i32 x, i32 y) {
  return es::load_2d<f16, 16, 2 * P, B, false, true>((const f16 *)s.base, s.width - 1, s.height - 1, s.pitch - 1, x, y);
}
// Words x .. x + W - 1 of rows y .. y + 15: lane = row.
template <i32 W> NS_TILE V<u32, W> load_words(Surface s, i32 x, i32 y) {
  return es::load_2d<u32, W, 16, 1, true, false>((const u32 *)s.base, s.width - 1, s.height - 1, s.pitch - 1, x, y);
}
NS_TILE V<f32, 8> load_sums(Surface s, i32 x, i32 y) {
  return es::load_2d<f32, 16, 8>((const f32 *)s.base, s.width - 1, s.height - 1, s.pitch - 1, x, y);
}
NS_TILE void store_sums(Surface s, i32 x, i32 y, const V<f32, 8> &v) {
  es::store_2d<f32, 16, 8>((f32 *)s.base, s.width - 1, s.height - 1, s.pitch - 1, x, y, v);
}
// One half a lane: first[lane * step], lanes past `last` read that one.
NS_TILE V<f16, 1> load_halves(const f16 *first, i32 step, i32 last) {
  V<i32, 1> at(0, 1);
  at = es::min<i32>(at, last);
  return es::gather<f16, 16>(first, V<u32, 1>(at * (step * 2)));
}

// c[row] += sum_k a[row][k] b[k] for 8 rows and 16 values of k.
NS_TILE void multiply(V<f32, 8> &c, const V<f16, 8> &a, const Pairs<8> &b) {
  c = es::xmx::dpas<8, 8, f32, f32, f16, f16>(c, b, a);
}

// Local memory of the work-group: NS_LOCAL(bytes, name) in the kernel's function.
#define NS_LOCAL(BYTES, NAME)                                                                                              \
  es::slm_init<BYTES>();                                                                                                   \
  Local NAME
struct Local {
  template <i32 S> NS_TILE void store(i32 at, const V<f16, S> &v) { es::slm_block_store<f16, 16 * S>(at, v); }
  template <i32 S> NS_TILE V<f16, S> load(i32 at) { return es::slm_block_load<f16, 16 * S>(at); }
  template <i32 N> NS_TILE void store_rows(i32 at, const Rows<N> &v) { es::slm_block_store<f32, N>(at, v); }
  template <i32 N> NS_TILE Rows<N> load_rows(i32 at) { return es::slm_block_load<f32, N>(at); }
};
NS_TILE void barrier() { es::barrier(); }

template <i32 N, i32 M> NS_TILE Rows<N> row_part(es::simd<f32, M> r, i32 first) { return r.template select<N, 1>(first); }
template <i32 N, i32 M> NS_TILE void put_rows(es::simd<f32, M> &r, i32 first, const Rows<N> &part) {
  r.template select<N, 1>(first) = part;
}
template <i32 N> NS_TILE Rows<N> max_rows(const Rows<N> &a, const Rows<N> &b) { return es::max<f32>(a, b); }
template <i32 N> NS_TILE Rows<N> exp2_rows(const Rows<N> &a) { return es::exp2(a); }
template <i32 N> NS_TILE Rows<N> inverse_rows(const Rows<N> &a) { return es::inv(a); }
NS_TILE V<f32, 8> exp2_of(const V<f32, 8> &v) { return es::exp2(v); }
NS_TILE V<f32, 8> max_tiles(const V<f32, 8> &a, const V<f32, 8> &b) { return es::max<f32>(a, b); }
// A row's number in all its lanes.
NS_TILE V<f32, 8> spread(Rows<8> r) { return r.replicate_vs_w_hs<8, 1, 16, 0>(0); }
// The largest value and the sum of each row, halving: lanes 0..7 with 8..15, then fours, ...
NS_TILE Rows<8> row_max(V<f32, 8> v) {
  es::simd<f32, 64> a = es::max<f32>(es::simd<f32, 64>(v.replicate_vs_w_hs<8, 16, 8, 1>(0)), es::simd<f32, 64>(v.replicate_vs_w_hs<8, 16, 8, 1>(8)));
  es::simd<f32, 32> b = es::max<f32>(es::simd<f32, 32>(a.replicate_vs_w_hs<8, 8, 4, 1>(0)), es::simd<f32, 32>(a.replicate_vs_w_hs<8, 8, 4, 1>(4)));
  es::simd<f32, 16> c = es::max<f32>(es::simd<f32, 16>(b.replicate_vs_w_hs<8, 4, 2, 1>(0)), es::simd<f32, 16>(b.replicate_vs_w_hs<8, 4, 2, 1>(2)));
  return es::max<f32>(Rows<8>(c.select<8, 2>(0)), Rows<8>(c.select<8, 2>(1)));
}
NS_TILE Rows<8> row_sum(V<f32, 8> v) {
  es::simd<f32, 64> a = v.replicate_vs_w_hs<8, 16, 8, 1>(0) + v.replicate_vs_w_hs<8, 16, 8, 1>(8);
  es::simd<f32, 32> b = a.replicate_vs_w_hs<8, 8, 4, 1>(0) + a.replicate_vs_w_hs<8, 8, 4, 1>(4);
  es::simd<f32, 16> c = b.replicate_vs_w_hs<8, 4, 2, 1>(0) + b.replicate_vs_w_hs<8, 4, 2, 1>(2);
  return c.select<8, 2>(0) + c.select<8, 2>(1);
}
// Lanes with first + lane > limit + row become `other`.
NS_TILE void hide(V<f32, 8> &v, i32 first, i32 limit, f32 other) {
  V<i32, 1> lane(first - limit, 1);
NS_EACH
  for (i32 r = 0; r < 8; r++) {
    V<f32, 1> row = v.select<16, 1>(16 * r);
    row.merge(V<f32, 1>(other), lane > r);
    v.select<16, 1>(16 * r) = row;
  }
}
#else
NS_TILE sycl::sub_group sub_group_of() { return item().get_sub_group(); }
NS_TILE i32 lane_of() { return item().get_sub_group().get_local_linear_id(); }
NS_TILE i32 thread_of_group() { return item().get_sub_group().get_group_linear_id(); }
NS_TILE i32 threads_of_group() { return item().get_sub_group().get_group_linear_range(); }

template <class T, i32 S> struct V {
  T v[S];
  V() = default;
  NS_TILE V(T x) {
    for (i32 s = 0; s < S; s++) v[s] = x;
  }
#define NS_OPERATOR(OP)                                                                                                    \
  friend NS_TILE V operator OP(const V &a, const V &b) {                                                                  \
    V r;                                                                                                                   \
    for (i32 s = 0; s < S; s++) r.v[s] = a.v[s] OP b.v[s];                                                                  \
    return r;                                                                                                              \
  }
  NS_OPERATOR(+) NS_OPERATOR(-) NS_OPERATOR(*) NS_OPERATOR(&) NS_OPERATOR(|) NS_OPERATOR(^)
#undef NS_OPERATOR
  friend NS_TILE V operator>>(const V &a, i32 n) {
    V r;
    for (i32 s = 0; s < S; s++) r.v[s] = a.v[s] >> n;
    return r;
  }
  friend NS_TILE V operator<<(const V &a, i32 n) {
    V r;
    for (i32 s = 0; s < S; s++) r.v[s] = a.v[s] << n;
    return r;
  }
};
template <i32 S> struct Pairs {
  f16 v[S][2];
  Pairs() = default;
  NS_TILE Pairs(f16 x) {
    for (i32 s = 0; s < S; s++) v[s][0] = v[s][1] = x;
  }
#define NS_OPERATOR(OP)                                                                                                    \
  friend NS_TILE Pairs operator OP(const Pairs &a, const Pairs &b) {                                                       \
    Pairs r;                                                                                                               \
    for (i32 s = 0; s < S; s++) r.v[s][0] = a.v[s][0] OP b.v[s][0], r.v[s][1] = a.v[s][1] OP b.v[s][1];                     \
    return r;                                                                                                              \
  }
  NS_OPERATOR(+) NS_OPERATOR(-) NS_OPERATOR(*)
#undef NS_OPERATOR
};
template <i32 N> struct Rows {
  f32 v[N];
  Rows() = default;
  NS_TILE Rows(f32 x) {
    for (i32 s = 0; s < N; s++) v[s] = x;
  }
#define NS_OPERATOR(OP)                                                                                                    \
  friend NS_TILE Rows operator OP(const Rows &a, const Rows &b) {                                                          \
    Rows r;                                                                                                                \
    for (i32 s = 0; s < N; s++) r.v[s] = a.v[s] OP b.v[s];                                                                  \
    return r;                                                                                                              \
  }
  NS_OPERATOR(+) NS_OPERATOR(-) NS_OPERATOR(*)
#undef NS_OPERATOR
};

template <i32 N, class T, i32 S> NS_TILE V<T, N> slots(const V<T, S> &v, i32 first) {
  V<T, N> r;
  for (i32 s = 0; s < N; s++) r.v[s] = v.v[first + s];
  return r;
}
template <i32 N, class T, i32 S> NS_TILE void put(V<T, S> &v, i32 first, const V<T, N> &part) {
  for (i32 s = 0; s < N; s++) v.v[first + s] = part.v[s];
}
template <i32 N, i32 S> NS_TILE Pairs<N> pair_slots(const Pairs<S> &v, i32 first) {
  Pairs<N> r;
  for (i32 s = 0; s < N; s++) r.v[s][0] = v.v[first + s][0], r.v[s][1] = v.v[first + s][1];
  return r;
}
template <i32 N, i32 S> NS_TILE void put_pairs(Pairs<S> &v, i32 first, const Pairs<N> &part) {
  for (i32 s = 0; s < N; s++) v.v[first + s][0] = part.v[s][0], v.v[first + s][1] = part.v[s][1];
}
NS_TILE Pairs<1> as_pairs(V<u32, 1> words) {
  Pairs<1> r;
  r.v[0][0] = sycl::bit_cast<f16>((u16)words.v[0]), r.v[0][1] = sycl::bit_cast<f16>((u16)(words.v[0] >> 16));
  return r;
}
NS_TILE Pairs<1> twice(V<f16, 1> v) { return Pairs<1>(v.v[0]); }
NS_TILE Pairs<1> fma_pairs(Pairs<1> a, Pairs<1> b, Pairs<1> c) {
  Pairs<1> r;
  for (i32 i = 0; i < 2; i++) r.v[0][i] = (f16)sycl::fma((f32)a.v[0][i], (f32)b.v[0][i], (f32)c.v[0][i]);
  return r;
}
template <class T, class U, i32 S> NS_TILE V<T, S> to(const V<U, S> &v) {
  V<T, S> r;
  for (i32 s = 0; s < S; s++) r.v[s] = (T)v.v[s];
  return r;
}
NS_TILE V<f32, 1> as_half(V<u32, 1> words) { return V<f32, 1>((f32)sycl::bit_cast<f16>((u16)words.v[0])); }
NS_TILE V<u32, 1> shift_left(V<u32, 1> v, i32 n) { return v << n; }
NS_TILE V<i32, 1> signed_words(V<u32, 1> v) { return V<i32, 1>((i32)v.v[0]); }

// One value of a surface, zero outside; x counts values.
template <class T> NS_TILE T value_of(Surface s, i32 x, i32 y) {
  const bool inside = y >= 0 && y < s.height && x >= 0 && (i32)((x + 1) * sizeof(T)) <= s.width;
  return inside ? *(const T *)((const u8 *)s.base + (i64)y * s.pitch + (i64)x * sizeof(T)) : (T)0;
}
template <i32 R, i32 B> NS_TILE V<f16, R * B> load_rows(Surface s, i32 x, i32 y) {
  V<f16, R * B> r;
  for (i32 b = 0; b < B; b++)
    for (i32 i = 0; i < R; i++) r.v[b * R + i] = value_of<f16>(s, x + 16 * b + lane_of(), y + i);
  return r;
}
template <i32 P, i32 B> NS_TILE Pairs<P * B> load_pairs(Surface s, i32 x, i32 y) {
  Pairs<P * B> r;
  for (i32 b = 0; b < B; b++)
    for (i32 p = 0; p < P; p++)
      for (i32 i = 0; i < 2; i++) r.v[b * P + p][i] = value_of<f16>(s, x + 16 * b + lane_of(), y + 2 * p + i);
  return r;
}
template <i32 W> NS_TILE V<u32, W> load_words(Surface s, i32 x, i32 y) {
  V<u32, W> r;
  for (i32 w = 0; w < W; w++) r.v[w] = value_of<u32>(s, x + w, y + lane_of());
  return r;
}
NS_TILE V<f32, 8> load_sums(Surface s, i32 x, i32 y) {
  V<f32, 8> r;
  for (i32 i = 0; i < 8; i++) r.v[i] = value_of<f32>(s, x + lane_of(), y + i);
  return r;
}
NS_TILE void store_sums(Surface s, i32 x, i32 y, const V<f32, 8> &v) {
  x += lane_of();
  for (i32 i = 0; i < 8; i++)
    if (y + i < s.height && (x + 1) * 4 <= s.width) *(f32 *)((u8 *)s.base + (i64)(y + i) * s.pitch + (i64)x * 4) = v.v[i];
}
NS_TILE V<f16, 1> load_halves(const f16 *first, i32 step, i32 last) {
  V<f16, 1> r;
  r.v[0] = first[(i64)least(lane_of(), last) * step];
  return r;
}

NS_TILE void multiply(V<f32, 8> &c, const V<f16, 8> &a, const Pairs<8> &b) {
  const auto sg = sub_group_of();
  NS_EACH
  for (i32 r = 0; r < 8; r++)
    NS_EACH
    for (i32 k = 0; k < 16; k++)
      c.v[r] = sycl::fma((f32)sycl::select_from_group(sg, a.v[r], k), (f32)b.v[k / 2][k % 2], c.v[r]);
}

#define NS_LOCAL(BYTES, NAME)                                                                                              \
  sycl::ext::oneapi::experimental::work_group_static<u8[BYTES]> NAME##_bytes;                                              \
  Local NAME { &NAME##_bytes[0] }
struct Local {
  u8 *bytes;
  template <i32 S> NS_TILE void store(i32 at, const V<f16, S> &v) {
    for (i32 s = 0; s < S; s++) ((f16 *)(bytes + at))[16 * s + lane_of()] = v.v[s];
  }
  template <i32 S> NS_TILE V<f16, S> load(i32 at) {
    V<f16, S> r;
    for (i32 s = 0; s < S; s++) r.v[s] = ((const f16 *)(bytes + at))[16 * s + lane_of()];
    return r;
  }
  template <i32 N> NS_TILE void store_rows(i32 at, const Rows<N> &v) {
    if (lane_of() == 0)
      for (i32 i = 0; i < N; i++) ((f32 *)(bytes + at))[i] = v.v[i];
  }
  template <i32 N> NS_TILE Rows<N> load_rows(i32 at) {
    Rows<N> r;
    for (i32 i = 0; i < N; i++) r.v[i] = ((const f32 *)(bytes + at))[i];
    return r;
  }
};
NS_TILE void barrier() { sycl::group_barrier(item().get_group()); }

template <i32 N, i32 M> NS_TILE Rows<N> row_part(const Rows<M> &r, i32 first) {
  Rows<N> p;
  for (i32 i = 0; i < N; i++) p.v[i] = r.v[first + i];
  return p;
}
template <i32 N, i32 M> NS_TILE void put_rows(Rows<M> &r, i32 first, const Rows<N> &part) {
  for (i32 i = 0; i < N; i++) r.v[first + i] = part.v[i];
}
template <i32 N> NS_TILE Rows<N> max_rows(const Rows<N> &a, const Rows<N> &b) {
  Rows<N> r;
  for (i32 i = 0; i < N; i++) r.v[i] = sycl::fmax(a.v[i], b.v[i]);
  return r;
}
template <i32 N> NS_TILE Rows<N> exp2_rows(const Rows<N> &a) {
  Rows<N> r;
  for (i32 i = 0; i < N; i++) r.v[i] = sycl::exp2(a.v[i]);
  return r;
}
template <i32 N> NS_TILE Rows<N> inverse_rows(const Rows<N> &a) {
  Rows<N> r;
  for (i32 i = 0; i < N; i++) r.v[i] = 1.0f / a.v[i];
  return r;
}
NS_TILE V<f32, 8> exp2_of(const V<f32, 8> &v) {
  V<f32, 8> r;
  for (i32 i = 0; i < 8; i++) r.v[i] = sycl::exp2(v.v[i]);
  return r;
}
NS_TILE V<f32, 8> max_tiles(const V<f32, 8> &a, const V<f32, 8> &b) {
  V<f32, 8> r;
  for (i32 i = 0; i < 8; i++) r.v[i] = sycl::fmax(a.v[i], b.v[i]);
  return r;
}
NS_TILE V<f32, 8> spread(const Rows<8> &rows) {
  V<f32, 8> r;
  for (i32 i = 0; i < 8; i++) r.v[i] = rows.v[i];
  return r;
}
NS_TILE Rows<8> row_max(const V<f32, 8> &v) {
  Rows<8> r;
  for (i32 i = 0; i < 8; i++) r.v[i] = sycl::reduce_over_group(sub_group_of(), v.v[i], sycl::maximum<f32>());
  return r;
}
NS_TILE Rows<8> row_sum(const V<f32, 8> &v) {
  Rows<8> r;
  for (i32 i = 0; i < 8; i++) r.v[i] = sycl::reduce_over_group(sub_group_of(), v.v[i], sycl::plus<f32>());
  return r;
}
NS_TILE void hide(V<f32, 8> &v, i32 first, i32 limit, f32 other) {
  for (i32 r = 0; r < 8; r++)
    if (first + lane_of() > limit + r) v.v[r] = other;
}
#endif
} // namespace ns
