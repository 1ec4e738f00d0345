// The commands of nskc; each returns the exit code.
// SPDX-License-Identifier: MIT
#pragma once
#include "files.hpp"

#include <string>
#include <vector>

namespace nskc {

struct BuildOptions {
  std::string oneapi, out, pch, ocloc, public_program;
  std::string compiler = "auto";  // auto, private, public
  std::vector<std::string> variants, includes, defines, targets, sources;
  int jobs = 1;
  bool self_test_only = false, quiet = false;
};
int build(const BuildOptions &options);

struct GateOptions {
  std::string dir, ocloc, iga = "iga64";
  std::vector<std::string> targets;
  bool table = false;
};
int gate(const GateOptions &options);

struct LibraryOptions {
  std::string kind, dir, out;
  std::string include;  // folder of ns.h
  std::string link;     // folder of libns_sycl.so; "" writes the sources only
};
int library(const LibraryOptions &options);

} // namespace nskc
