// Native GPU code: compiling SPIR-V with ocloc, and reading what the result says about each kernel.
// SPDX-License-Identifier: MIT
#pragma once
#include "files.hpp"
#include "json.hpp"

#include <string>
#include <vector>

namespace nskc {

struct NativeKernel {
  std::string entry;
  uint64_t simd = 0, grf = 0, spill = 0, private_bytes = 0, scratch = 0, slm = 0, barriers = 0;
  bool dpas = false, has_4gb_buffers = false, stateful = false;
  Bytes code;  // of its .text section
};

/// Options of the device compiler that every user of the SPIR-V should pass too.
std::string device_options(const std::string &target, const std::string &wished);
/// The identity of the program for keys of built files.
std::string ocloc_identity(const std::string &program);
/// Native code for one target without the SPIR-V inside (what is shipped).
Bytes compile_native(const std::string &program, const std::string &spirv_path, const std::string &target, const std::string &options, const std::string &work);
/// Reads the ELF file of ocloc; every offset is checked.
std::vector<NativeKernel> read_native(const Bytes &file, const std::string &where);
Json describe(const NativeKernel &k);

} // namespace nskc
