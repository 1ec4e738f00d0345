// nskc gate: reads the native code of every kernel and says where it is not what an Arc card should run.
// SPDX-License-Identifier: MIT
#include "commands.hpp"
#include "json.hpp"
#include "native.hpp"

#include <algorithm>
#include <cstdio>
#include <map>

namespace nskc {
namespace {

using Counts = std::map<std::string, int>;  // by promise word

/// What a memory message moves, from its name: "load.ugm.d32x4.a64" is 16 bytes a lane, "load.ugm.d32x16t.a64" a block for the whole sub-group.
void count_message(const std::string &message, Counts &c) {
  if (message.find(".slm") != std::string::npos) c["slm"]++;
  bool plain = starts_with(message, "load.ugm."), tile = starts_with(message, "load_block2d.ugm.");
  // 32-bit addresses are the launch arguments, not memory of the kernel's own.
  if ((!plain && !tile) || message.find(".a64") == std::string::npos) return;
  size_t d = message.find(".d");
  std::string shape = d == std::string::npos ? "" : message.substr(d + 1, message.find('.', d + 1) - d - 1);
  int bits = 0, count = 1;
  char transposed = 0;
  if (std::sscanf(shape.c_str(), "d%dx%d%c", &bits, &count, &transposed) < 1) return;
  bool block = tile || (transposed == 't' && bits * count >= 512);
  if (block) c["block"]++;
  if (block || (!transposed && bits * count >= 128)) c["load16"]++;
}

/// Counts instructions of iga64's text: "dp4a (16|M0) r1:d ...", "(W) send.ugm (16|M0) ... // wr:2+0, rd:4; load.ugm.d32x4.a64".
Counts count_instructions(const std::string &text) {
  Counts c;
  for (std::string line : split(text, '\n')) {
    std::string note;
    if (size_t comment = line.find("//"); comment != std::string::npos) note = line.substr(comment), line = trim(line.substr(0, comment));
    if (!line.empty() && line[0] == '(') line = trim(line.substr(std::min(line.find(')') + 1, line.size())));
    std::string op = line.substr(0, line.find(' '));
    if (starts_with(op, "dp4a")) c["dp4a"]++;
    else if (starts_with(op, "dpas")) c["dpas"]++;
    else if (starts_with(op, "send")) {
      if (size_t name = note.find("; "); name != std::string::npos) count_message(note.substr(name + 2), c);
    } else if (op.find('.') != std::string::npos) count_message(op, c);
  }
  return c;
}

/// The loops of iga64's text that have no loop inside and at least 32 instructions: " loop=INSTRUCTIONS/MESSAGES" for each, in order.
/// A loop is what lies between a label and a jump back to it; waiting (sync, nop) is not counted.
std::string describe_loops(const std::string &text) {
  struct Loop {
    size_t first, last;
  };
  std::map<std::string, size_t> labels;
  std::vector<char> kinds;  // an instruction each: 'm' message, 'i' other
  std::vector<Loop> loops;
  for (std::string line : split(text, '\n')) {
    if (size_t comment = line.find("//"); comment != std::string::npos) line = line.substr(0, comment);
    line = trim(line);
    if (line.empty()) continue;
    if (line[0] == 'L' && line.back() == ':') {
      labels[line.substr(0, line.size() - 1)] = kinds.size();
      continue;
    }
    if (line[0] == '(') line = trim(line.substr(std::min(line.find(')') + 1, line.size())));
    std::string op = line.substr(0, line.find(' '));
    if (starts_with(op, "sync") || starts_with(op, "nop") || starts_with(op, "illegal")) continue;
    kinds.push_back(starts_with(op, "send") || starts_with(op, "load") || starts_with(op, "store") ? 'm' : 'i');
    if (!starts_with(op, "jmpi") && !starts_with(op, "goto") && !starts_with(op, "while")) continue;
    for (auto &word : split(line, ' '))
      if (auto to = labels.find(word); to != labels.end()) loops.push_back({to->second, kinds.size()});
  }
  std::string out;
  for (auto &l : loops) {
    bool inner = std::none_of(loops.begin(), loops.end(), [&](const Loop &other) { return &other != &l && other.first >= l.first && other.last <= l.last && other.last - other.first < l.last - l.first; });
    if (!inner || l.last - l.first < 32) continue;
    auto messages = std::count(kinds.begin() + static_cast<ptrdiff_t>(l.first), kinds.begin() + static_cast<ptrdiff_t>(l.last), 'm');
    out += " loop=" + std::to_string(l.last - l.first) + "/" + std::to_string(messages);
  }
  return out;
}

struct Checker {
  const GateOptions &o;
  std::string loops;  // of the kernel disassembled last
  TemporaryFolder work{temporary_parent()};
  std::vector<std::string> iga = program_words(o.iga);

  Counts disassemble(const NativeKernel &k, const std::string &target) {
    if (iga.empty()) fail("--iga: no program given");
    std::string file = join(work.path(), "kernel.bin");
    write_file(file, k.code);
    std::vector<std::string> command = iga;
    command.push_back("-d");
    command.push_back(starts_with(target, "dg2") || starts_with(target, "acm") ? "-p=xehpg" : "-p=xe2");
    command.push_back(file);
    ProgramResult p = run_program(command);
    if (p.status != 0) fail("the disassembler (" + o.iga + ", --iga names another) ended with code " + std::to_string(p.status) + ": " + trim(p.errors));
    if (trim(p.output).empty()) fail("the disassembler (" + o.iga + ") gave nothing for kernel " + k.entry);
    loops = describe_loops(p.output);
    return count_instructions(p.output);
  }
};

} // namespace

int gate(const GateOptions &o) {
  Checker checker{o, {}};
  size_t modules = 0, checks = 0, violations = 0, promises = 0;
  for (auto &file : list_folder(o.dir)) {
    if (!ends_with(file, ".gpu.json")) continue;
    std::string where = join(o.dir, file);
    Json module = parse_json(read_text(where), where);
    if (module.at("format", Json::number).value != 1) fail(where + ": of another format than 1");
    std::string name = module.at("module", Json::text).string;
    modules++;
    const Json *wished = module.get("build_options");
    std::string options = wished ? wished->string : "";
    for (auto &target : o.targets) {
      const Json *native = module.get("native"), *entry = native ? native->get(target) : nullptr;
      Bytes code;
      std::string code_name = name + " for " + target;
      if (entry) {
        code_name = entry->at("file", Json::text).string;
        code = read_bytes(join(o.dir, code_name));
        if (sha256(code) != entry->at("sha256", Json::text).string) fail(join(o.dir, code_name) + ": is not the file its module description was made with: build the kernels again");
      } else {
        if (o.ocloc.empty()) fail(where + ": has no native code for " + target + ": give --ocloc");
        code = compile_native(o.ocloc, join(o.dir, module.at("spirv", Json::object).at("file", Json::text).string), target, options, checker.work.path());
      }
      std::vector<NativeKernel> kernels = read_native(code, code_name);
      for (auto &k : module.at("kernels", Json::list).items) {
        std::string kernel = k.at("name", Json::text).string, label = name + "." + kernel + " on " + target;
        auto found = std::find_if(kernels.begin(), kernels.end(), [&](const NativeKernel &x) { return x.entry == k.at("entry", Json::text).string; });
        if (found == kernels.end()) fail(label + ": is not in the native code");
        const NativeKernel &n = *found;
        std::vector<std::string> wrong;
        auto expect = [&](bool good, const std::string &what) {
          if (!good) wrong.push_back(what);
        };
        const Json *esimd = k.get("esimd");
        uint64_t declared = esimd && esimd->value ? 1 : static_cast<uint64_t>(k.at("sub_group_size", Json::number).value);
        expect(n.simd == declared, "runs with SIMD width " + std::to_string(n.simd) + ", declared is " + std::to_string(declared));
        expect(options.find("large-register-file") == std::string::npos || n.grf == 256, "has " + std::to_string(n.grf) + " registers, 256 are wanted");
        expect(n.spill == 0, "spills registers (" + std::to_string(n.spill) + " bytes)");
        expect(n.private_bytes == 0, "keeps an array in memory (private memory, " + std::to_string(n.private_bytes) + " bytes): index it with constants only");
        expect(n.scratch == 0 || n.spill || n.private_bytes, "uses scratch memory (" + std::to_string(n.scratch) + " bytes)");
        expect(n.has_4gb_buffers || declared == 1, "does not address buffers over 4 GiB");
        expect(!n.stateful, "has an argument that is not a plain address (stateful)");
        uint64_t most = starts_with(target, "dg2") || starts_with(target, "acm") ? 65536 : 131072;
        expect(n.slm <= most, "needs " + std::to_string(n.slm) + " bytes of local memory, the card has " + std::to_string(most));
        for (auto &a : k.at("aspects", Json::list).items) expect(a.value != 6, "uses double");
        const Json &promised = k.at("promises", Json::list);
        Counts counts;
        if (!promised.items.empty() || o.table) {
          counts = checker.disassemble(n, target);
        }
        std::string seen;
        for (auto &p : promised.items) {
          promises++;
          expect(counts[p.string] > 0, "promises " + p.string + " and has none");
        }
        for (auto &c : counts)
          if (c.second) seen += " " + c.first + "=" + std::to_string(c.second);
        if (o.table) seen += checker.loops;
        checks++;
        if (o.table)
          std::printf("%-9s %-40s simd %2llu grf %3llu spill %llu private %llu slm %llu%s %s\n", target.c_str(), (name + "." + kernel).c_str(), static_cast<unsigned long long>(n.simd),
                      static_cast<unsigned long long>(n.grf), static_cast<unsigned long long>(n.spill), static_cast<unsigned long long>(n.private_bytes), static_cast<unsigned long long>(n.slm), seen.c_str(),
                      wrong.empty() ? "" : " VIOLATION");
        for (auto &w : wrong) std::fprintf(stderr, "%s: %s\n", label.c_str(), w.c_str());
        violations += wrong.size();
      }
    }
  }
  if (modules == 0) fail(o.dir + ": no module of variant gpu in it");
  std::string targets;
  for (auto &t : o.targets) targets += (targets.empty() ? "" : ", ") + t;
  std::printf("arc gate: %zu modules, %zu kernel checks on %s, %zu promises, %zu violations\n", modules, checks, targets.c_str(), promises, violations);
  return violations ? 1 : 0;
}

} // namespace nskc
