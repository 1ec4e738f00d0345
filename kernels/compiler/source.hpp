// What a kernel source says besides its code: the files it includes, and for each kernel its place, argument names, comment and promises.
// SPDX-License-Identifier: MIT
#pragma once
#include "files.hpp"

#include <map>
#include <string>
#include <vector>

namespace nskc {

struct SourceFile {
  std::string path, text;
};
/// The source and every project header it includes, directly or not, in a fixed order. A quoted include is looked for beside its file and in the -I folders, an angled one
/// in the -I folders; what is found nowhere belongs to the toolkit. Conditions are not evaluated: rather a file too many.
std::vector<SourceFile> included_files(const std::string &source, const std::vector<std::string> &include_folders);

struct ArgumentText {
  std::string name;  // "" when it has none
  std::string type;  // as written, in one spacing: "const f32 *"
};
struct KernelText {
  std::string file;
  int line = 0;
  std::vector<ArgumentText> args;
  std::string comment;                // of the kernel, markers removed, without the arc: lines
  std::vector<std::string> promises;  // of "arc:" lines
};
struct ModuleText {
  std::map<std::string, KernelText> kernels;  // by function name
  std::string build_options;                  // from words of the source file: "nskc: correctly-rounded-divide-sqrt", "nskc: large-register-file"
};
/// Reads the source after the preprocessor (the C++ compiler of the machine, $CXX or g++), with the toolkit's headers left empty.
ModuleText read_module_text(const std::string &source, const std::vector<std::string> &include_folders, const std::vector<std::string> &defines,
                            const std::vector<SourceFile> &files, const std::string &work);

/// Words that a promise may be.
const std::vector<std::string> &known_promises();

} // namespace nskc
