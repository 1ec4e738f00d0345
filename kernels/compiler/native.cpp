// Native GPU code: ocloc, its ELF files and their .ze_info.
// SPDX-License-Identifier: MIT
#include "native.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace nskc {
namespace {

struct Section {
  std::string name;
  size_t start, size;
};

std::vector<Section> sections_of(const Bytes &b, const std::string &where) {
  auto bad = [&](const char *why) { fail(where + ": not a native GPU file: " + why); };
  auto number = [&](size_t at, size_t bytes) -> uint64_t {
    if (at > b.size() || bytes > b.size() - at) bad("it is cut off");
    uint64_t v = 0;
    for (size_t i = 0; i < bytes; i++) v |= uint64_t(b[at + i]) << 8 * i;
    return v;
  };
  if (b.size() < 64 || std::memcmp(b.data(), "\x7f" "ELF\x02\x01", 6) != 0) bad("no 64-bit ELF header");
  uint64_t table = number(40, 8), entry = number(58, 2), count = number(60, 2), names = number(62, 2);
  if (entry != 64 || table > b.size() || count * entry > b.size() - table || names >= count) bad("its section table is wrong");
  auto part = [&](uint64_t i) {
    uint64_t start = number(table + i * entry + 24, 8), size = number(table + i * entry + 32, 8);
    if (start > b.size() || size > b.size() - start) bad("a section is cut off");
    return Section{"", static_cast<size_t>(start), static_cast<size_t>(size)};
  };
  Section strings = part(names);
  std::vector<Section> out;
  for (uint64_t i = 0; i < count; i++) {
    if (number(table + i * entry + 4, 4) == 8) continue;  // no bytes in the file
    Section s = part(i);
    uint64_t name = number(table + i * entry, 4);
    if (name >= strings.size) bad("a section name is out of range");
    const char *p = reinterpret_cast<const char *>(b.data()) + strings.start + name;
    s.name.assign(p, strnlen(p, strings.size - name));
    out.push_back(s);
  }
  return out;
}

/// .ze_info is YAML of a fixed form: two spaces a level, "key: value" lines, "- " starts a list entry.
std::vector<NativeKernel> read_info(const std::string &text, const std::string &where) {
  std::vector<NativeKernel> out;
  std::string top, part, entry_usage;
  size_t start = 0;
  while (start < text.size()) {
    size_t end = std::min(text.find('\n', start), text.size());
    std::string line = text.substr(start, end - start);
    start = end + 1;
    size_t indent = line.find_first_not_of(' ');
    if (indent == std::string::npos || line[indent] == '#') continue;
    bool item = line.compare(indent, 2, "- ") == 0;
    std::string body = trim(line.substr(item ? indent + 2 : indent));
    size_t colon = body.find(':');
    if (colon == std::string::npos) continue;
    std::string key = body.substr(0, colon), value = trim(body.substr(colon + 1));
    if (value.size() > 1 && (value[0] == '\'' || value[0] == '"')) value = value.substr(1, value.size() - 2);
    if (indent == 0) {
      top = key;
      continue;
    }
    if (top != "kernels") continue;
    if (item && indent <= 2) {
      if (key != "name") fail(where + ": .ze_info has a kernel that does not begin with its name");
      out.emplace_back();
      out.back().entry = value;
      part.clear();
      continue;
    }
    if (out.empty()) continue;
    NativeKernel &k = out.back();
    if (indent == 4 && !item) {
      part = key;
      continue;
    }
    auto n = [&] { return std::strtoull(value.c_str(), nullptr, 10); };
    if (part == "execution_env") {
      if (key == "simd_size") k.simd = n();
      else if (key == "grf_count") k.grf = n();
      else if (key == "spill_size") k.spill = n();
      else if (key == "private_size") k.private_bytes = n();
      else if (key == "slm_size") k.slm = n();
      else if (key == "barrier_count") k.barriers = n();
      else if (key == "has_dpas") k.dpas = value == "true";
      else if (key == "has_4gb_buffers") k.has_4gb_buffers = value == "true";
    } else if (part == "payload_arguments" && key == "addrmode") k.stateful |= value == "stateful" || value == "bindless" || value == "bindful";
    else if (part == "per_thread_memory_buffers" && key == "size") k.scratch += n();
  }
  return out;
}

} // namespace

std::string device_options(const std::string &target, const std::string &wished) {
  std::string o = wished;
  if (starts_with(target, "dg2") || starts_with(target, "acm")) o += std::string(o.empty() ? "" : " ") + "-ze-opt-greater-than-4GB-buffer-required";
  return o;
}

std::string ocloc_identity(const std::string &program) {
  std::vector<std::string> command = program_words(program);
  command.push_back("--version");
  ProgramResult p = run_program(command);
  if (p.status == 127) fail("--ocloc: " + program + " cannot be started: " + trim(p.errors));
  return program + "\n" + trim(p.output);
}

Bytes compile_native(const std::string &program, const std::string &spirv_path, const std::string &target, const std::string &options, const std::string &work) {
  TemporaryFolder folder(absolute_path(work));
  // ocloc puts names of its own into messages only; a fixed file name keeps the output the same everywhere.
  write_file(join(folder.path(), "module.spv"), read_bytes(spirv_path));
  std::vector<std::string> command = program_words(program);
  if (command.empty()) fail("--ocloc: no program given");
  if (command[0].find('/') != std::string::npos) command[0] = absolute_path(command[0]);
  for (const char *w : {"compile", "-file", "module.spv", "-spirv_input", "-device"}) command.push_back(w);
  command.push_back(target);
  for (const char *w : {"-out_dir", "out", "-output", "module", "-q", "-exclude_ir"}) command.push_back(w);
  if (std::string o = device_options(target, options); !o.empty()) command.insert(command.end(), {"-options", o});
  ProgramResult p = run_program(command, folder.path());
  std::string said = trim(p.errors + "\n" + p.output);
  if (p.status != 0) fail(file_name(spirv_path) + ": ocloc for " + target + " ended with code " + std::to_string(p.status) + (said.empty() ? "" : ": " + said));
  // A warning of an undefined function is a kernel that cannot run.
  if (said.find("ndefined function") != std::string::npos) fail(file_name(spirv_path) + ": ocloc for " + target + ": " + said);
  std::string out = join(folder.path(), "out"), found;
  if (is_folder(out))
    for (auto &name : list_folder(out))
      if (ends_with(name, ".bin")) found = join(out, name);
  if (found.empty()) fail(file_name(spirv_path) + ": ocloc for " + target + " wrote no native file");
  return read_bytes(found);
}

std::vector<NativeKernel> read_native(const Bytes &file, const std::string &where) {
  std::vector<Section> sections = sections_of(file, where);
  auto bytes = [&](const Section &s) { return Bytes(file.begin() + static_cast<long>(s.start), file.begin() + static_cast<long>(s.start + s.size)); };
  std::vector<NativeKernel> kernels;
  for (auto &s : sections)
    if (s.name == ".ze_info") {
      Bytes b = bytes(s);
      kernels = read_info(std::string(b.begin(), b.end()), where);
    }
  if (kernels.empty()) fail(where + ": a native GPU file without kernels");
  for (auto &k : kernels) {
    for (auto &s : sections)
      if (s.name == ".text." + k.entry) k.code = bytes(s);
    if (k.code.empty()) fail(where + ": kernel " + k.entry + " has no code");
  }
  // The driver adds kernels of its own for constructors of the program ("Intel_Symbol_Table_Void_Program").
  kernels.erase(std::remove_if(kernels.begin(), kernels.end(), [](const NativeKernel &k) { return starts_with(k.entry, "Intel_"); }), kernels.end());
  return kernels;
}

Json describe(const NativeKernel &k) {
  return Json::map().set("simd", k.simd).set("grf", k.grf).set("spill", k.spill).set("private", k.private_bytes).set("scratch", k.scratch).set("slm", k.slm).set("barriers", k.barriers)
      .set("has_dpas", k.dpas).set("has_4gb_buffers", k.has_4gb_buffers);
}

} // namespace nskc
