// SYCL source to SPIR-V images: the compile entry of libsycl-jit, or the public runtime-compilation interface through a second program.
// SPDX-License-Identifier: MIT
#pragma once
#include "files.hpp"

#include <string>
#include <vector>

namespace nskc {

struct CompileRequest {
  std::string path;  // as messages show it
  std::string text;
  std::vector<std::string> options;  // words of the command line
  std::string work;  // folder for temporary files
};

struct CompileAnswer {
  bool good = false;
  std::vector<Bytes> images;  // SPIR-V, only those with an entry point
  std::string log;  // the compiler's messages, with file and line
};

class Compiler {
public:
  virtual ~Compiler() = default;
  virtual CompileAnswer compile(const CompileRequest &request) = 0;
};

/// Where the toolkit of this run is.
struct Toolkit {
  std::string prefix;  // has lib/libsycl-jit.so
  std::string public_program;  // nskc-public, "" when there is none
};

/// What the library is, for the keys of built files: its size and samples of its bytes.
std::string library_identity(const Toolkit &toolkit);

/// compileSYCL in this process. Call it in a child process: a crash of the compiler then is an error message.
CompileAnswer compile_private(const Toolkit &toolkit, const CompileRequest &request);
/// The same through nskc-public.
CompileAnswer compile_public(const Toolkit &toolkit, const CompileRequest &request);
/// Compiles a one-line kernel and looks at what comes back; "" when all is well, else what is wrong. Runs in a child process.
std::string self_test(const Toolkit &toolkit, const std::string &work, bool use_public);

} // namespace nskc
