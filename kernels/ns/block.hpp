// What the descriptions of block formats share: fields, the parts of the cpu layout, the planes of the gpu layout.
#pragma once
#include "half.hpp"
#include "kernel.hpp"

namespace ns {
constexpr i64 round_up(i64 n, i64 unit) { return (n + unit - 1) / unit * unit; }

// Fields of a block: offset and bytes in the file.
struct Field {
  i32 offset, bytes;
};
template <i32 N> struct Fields {
  Field f[N];
  static constexpr i32 n = N;
};

// Where the fields of a file block are.
template <class F> struct FileBlock {
  const u8 *b;
  NS_INLINE const u8 *operator()(i32 k) const { return b + F::FIELDS.f[k].offset; }
};

// One part of 16 rows of the cpu layout: d, o and q(j) of the lane's row. `b` is the block's start in its group, p the part within
// the block. each(g) calls g(j, q(j)) for every value, in an order that suits the format.
template <class F> struct CpuPart {
  const typename F::Value *q_;
  f32 d, o;
  NS_INLINE CpuPart(const u8 *b, i32 p, i32 lane) : q_((const typename F::Value *)b + lane), d(1), o(0) {}
  NS_INLINE f32 q(i32 j) const { return F::value(q_[16 * j]); }
  template <class G> NS_INLINE void each(G g) const {
    repeat<32>([&](i32 j) __attribute__((always_inline)) { g(j, q(j)); });
  }
};

// Bytes of a block of one row in the cpu layout.
template <class F> constexpr i32 cpu_bytes() {
  if constexpr (requires { F::CPU_BYTES; }) return F::CPU_BYTES;
  else return F::BYTES;
}

// Formats that describe themselves (formats_*.hpp): they have FIELDS, cpu_pack(from, to, lane) and value(at, i).
template <class F> constexpr bool described() { return requires { F::DESCRIBED; }; }

// Formats that get their levels from other lanes in the cpu layout: what is expanded is used for all activation rows at once.
template <class F> constexpr bool once() { return requires { F::ONCE; }; }
// Words of the table that the gpu kernels of a format keep in local memory: table(i).
template <class F> constexpr i32 table_words() {
  if constexpr (requires { F::TABLE; }) return F::TABLE;
  else return 0;
}

// The 6-bit scale and minimum of group g of a Q4_K or Q5_K block, from its 12 bytes.
NS_INLINE void k4_scale(const u8 *s, i32 g, i32 &scale, i32 &minimum) {
  if (g < 4) {
    scale = s[g] & 63, minimum = s[g + 4] & 63;
  } else {
    scale = (s[g + 4] & 15) | (s[g - 4] >> 6) << 4;
    minimum = (s[g + 4] >> 4) | (s[g] >> 6) << 4;
  }
}
} // namespace ns
