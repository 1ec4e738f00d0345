// What nskc needs to know of a SPIR-V module: its kernels, their arguments, sub-group sizes, needed aspects, and functions it lacks.
// SPDX-License-Identifier: MIT
#pragma once
#include "files.hpp"

#include <string>
#include <vector>

namespace nskc {

struct ArgumentShape {
  std::string kind;  // "pointer", "value", "local", "struct"
  uint32_t size = 0;  // bytes of a value or struct
  std::string type;   // of a value: i8 i16 i32 i64 f16 f32 f64
};

struct KernelShape {
  std::string entry;  // name of the entry point
  uint32_t sub_group_size = 0;  // 0: not declared
  bool esimd = false;
  std::vector<uint32_t> aspects;  // numbers of sycl::aspect: 5 fp16, 6 fp64, 28 atomic64
  std::vector<ArgumentShape> args;
  std::vector<std::string> undefined;  // functions reachable from here without a body, demangled
};

struct ModuleShape {
  std::vector<KernelShape> kernels;  // in the order of the module
};

/// Reads a module; every length is checked. `where` names it in messages.
ModuleShape read_spirv(const Bytes &module, const std::string &where);

} // namespace nskc
