// nskc-public: compiles one SYCL source through the public runtime-compilation interface. nskc starts it when libsycl-jit's own entry cannot be used.
//   nskc-public SOURCE OPTIONS-FILE     (one option a line)
// SYCL_DUMP_IMAGES=1 in the environment makes the runtime write every SPIR-V image to the working folder; this program only has to reach the compiler. Needs the OpenCL CPU
// device of the runtime. Exit code 0: compiled, warnings on stderr; 1: errors on stderr; 2: could not try.
// SPDX-License-Identifier: MIT
#include <sycl/sycl.hpp>

#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace sx = sycl::ext::oneapi::experimental;

int main(int count, char **words) {
  if (count != 3) return std::fputs("nskc-public SOURCE OPTIONS-FILE\n", stderr), 2;
  std::ifstream source(words[1], std::ios::binary), list(words[2]);
  std::stringstream text;
  text << source.rdbuf();
  std::vector<std::string> options;
  for (std::string line; std::getline(list, line);)
    if (!line.empty()) options.push_back(line);
  if (source.fail() || list.bad()) return std::fputs("nskc-public: a file cannot be read\n", stderr), 2;
  std::string log;
  bool made = false;
  try {
    sycl::context context{sycl::device{sycl::cpu_selector_v}};
    auto bundle = sx::create_kernel_bundle_from_source(context, sx::source_language::sycl, text.str());
    made = true;
    auto built = sx::build(bundle, sx::properties{sx::build_options(options), sx::save_log{&log}});
  } catch (const sycl::exception &e) {
    std::fprintf(stderr, "%s\n%s\n", log.c_str(), e.what());
    return made ? 1 : 2;
  }
  std::fputs(log.c_str(), stderr);
  return 0;
}
