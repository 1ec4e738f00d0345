// Reading SPIR-V (Khronos SPIR-V specification 1.6, kernel side): one pass over the instructions, then questions about them.
// SPDX-License-Identifier: MIT
#include "spirv.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <cxxabi.h>
#include <map>
#include <set>

namespace nskc {
namespace {

enum : uint32_t {
  OpEntryPoint = 15, OpExecutionMode = 16, OpCapability = 17, OpTypeVoid = 19, OpTypeInt = 21, OpTypeFloat = 22, OpTypeVector = 23, OpTypeMatrix = 24, OpTypeArray = 28,
  OpTypeStruct = 30, OpTypePointer = 32, OpTypeFunction = 33, OpConstant = 43, OpFunction = 54, OpFunctionParameter = 55, OpFunctionEnd = 56, OpFunctionCall = 57, OpDecorate = 71,
  OpTypeUntypedPointer = 4417
};
enum : uint32_t { ModeSubgroupSize = 35, DecorationCPacked = 10, DecorationFuncParamAttr = 38, DecorationLinkage = 41, DecorationVectorComputeFunction = 5626, ParamByVal = 2, LinkageImport = 1 };
enum : uint32_t { ClassCrossWorkgroup = 5, ClassWorkgroup = 4, ClassFunction = 7, ClassUniformConstant = 0, ClassGeneric = 8, ClassHost = 5936, ClassDevice = 5935 };
enum : uint32_t { CapabilityInt64Atomics = 12 };

struct Type {
  uint32_t op = 0;
  std::vector<uint32_t> words;  // operands after the result id
};
struct Function {
  uint32_t type = 0;
  std::vector<uint32_t> parameters, calls;
  std::set<uint32_t> result_types;
  bool body = false;
};
struct Layout {
  uint64_t size, align;
};

std::string readable(const std::string &name) {
  int status = 0;
  char *text = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status);
  std::string out = status == 0 && text ? text : name;
  std::free(text);
  return out;
}

class Reader {
public:
  Reader(const Bytes &bytes, const std::string &where) : where_(where) {
    if (bytes.size() < 20 || bytes.size() % 4) bad("its length is " + std::to_string(bytes.size()) + " bytes");
    words_.resize(bytes.size() / 4);
    std::memcpy(words_.data(), bytes.data(), bytes.size());
    if (words_[0] != 0x07230203) bad("no magic number");
    bound_ = words_[3];
  }

  ModuleShape all() {
    for (at_ = 5; at_ < words_.size(); at_ += count_) {
      count_ = words_[at_] >> 16;
      if (count_ == 0 || count_ > words_.size() - at_) bad("instruction at word " + std::to_string(at_) + " has the length " + std::to_string(count_));
      instruction(words_[at_] & 0xffff);
    }
    if (current_) bad("a function has no end");
    ModuleShape m;
    for (auto &e : entries_) m.kernels.push_back(kernel(e.first, e.second));
    return m;
  }

private:
  [[noreturn]] void bad(const std::string &why) const { fail(where_ + ": not a readable SPIR-V module: " + why); }
  uint32_t word(uint32_t i) const {
    if (i >= count_) bad("instruction at word " + std::to_string(at_) + " is too short");
    return words_[at_ + i];
  }
  /// A text that starts at operand word i; `next` becomes the word after it.
  std::string text(uint32_t i, uint32_t *next = nullptr) const {
    std::string out;
    for (; i < count_; i++)
      for (int b = 0; b < 4; b++) {
        char c = static_cast<char>(words_[at_ + i] >> 8 * b);
        if (c) out += c;
        else {
          if (next) *next = i + 1;
          return out;
        }
      }
    bad("a text has no end");
  }

  void instruction(uint32_t op) {
    switch (op) {
    case OpEntryPoint: {
      uint32_t id = word(2);
      std::string name = text(3);
      for (auto &e : entries_)
        if (e.second == name) bad("entry point " + name + " is there twice");
      entries_.emplace_back(id, name);
      return;
    }
    case OpExecutionMode:
      if (word(2) == ModeSubgroupSize) sub_group_[word(1)] = word(3);
      return;
    case OpCapability:
      if (word(1) == CapabilityInt64Atomics) atomics64_ = true;
      return;
    case OpDecorate:
      if (word(2) == DecorationLinkage) {
        uint32_t next = 0;
        std::string name = text(3, &next);
        if (word(next) == LinkageImport) imports_[word(1)] = name;
      } else if (word(2) == DecorationFuncParamAttr && word(3) == ParamByVal) by_value_.insert(word(1));
      else if (word(2) == DecorationCPacked) packed_.insert(word(1));
      else if (word(2) == DecorationVectorComputeFunction) vector_compute_.insert(word(1));
      return;
    case OpConstant: constants_[word(2)] = word(3); return;
    case OpTypeVoid: case OpTypeInt: case OpTypeFloat: case OpTypeVector: case OpTypeMatrix: case OpTypeArray: case OpTypeStruct: case OpTypePointer: case OpTypeFunction: case OpTypeUntypedPointer: {
      Type t;
      t.op = op;
      for (uint32_t i = 2; i < count_; i++) t.words.push_back(words_[at_ + i]);
      static const std::map<uint32_t, size_t> least = {{OpTypeInt, 1}, {OpTypeFloat, 1}, {OpTypeVector, 2}, {OpTypeMatrix, 2}, {OpTypeArray, 2}, {OpTypePointer, 2}, {OpTypeFunction, 1}, {OpTypeUntypedPointer, 1}};
      if (auto l = least.find(op); l != least.end() && t.words.size() < l->second) bad("a type at word " + std::to_string(at_) + " is too short");
      if (word(1) >= bound_) bad("a type id is out of range");
      types_[word(1)] = t;
      return;
    }
    case OpFunction:
      if (current_) bad("a function inside a function");
      current_ = &functions_[word(2)];
      current_->type = word(4);
      break;
    case OpFunctionEnd:
      if (!current_) bad("an end without a function");
      current_ = nullptr;
      return;
    case OpFunctionParameter:
      if (!current_) bad("a parameter outside a function");
      current_->parameters.push_back(word(2));
      break;
    case OpFunctionCall:
      if (!current_) bad("a call outside a function");
      current_->calls.push_back(word(3));
      break;
    default: break;
    }
    if (!current_) return;
    if (op == 248) current_->body = true;  // OpLabel
    // Ids are unique, so the first operand is a type id only where it is the type of the result.
    if (count_ > 1 && types_.count(words_[at_ + 1])) current_->result_types.insert(words_[at_ + 1]);
  }

  const Type &type(uint32_t id) const {
    auto t = types_.find(id);
    if (t == types_.end()) bad("a type that is not declared");
    return t->second;
  }
  bool has_float(uint32_t id, uint32_t width, int depth = 0) const {
    auto found = types_.find(id);
    if (found == types_.end() || depth > 16) return false;
    const Type &t = found->second;
    if (t.op == OpTypeFloat) return t.words[0] == width && t.words.size() == 1;
    if (t.op == OpTypeVector || t.op == OpTypeMatrix || t.op == OpTypeArray) return has_float(t.words[0], width, depth + 1);
    if (t.op == OpTypePointer) return has_float(t.words[1], width, depth + 1);
    if (t.op == OpTypeStruct)
      return std::any_of(t.words.begin(), t.words.end(), [&](uint32_t m) { return has_float(m, width, depth + 1); });
    return false;
  }
  Layout layout(uint32_t id, int depth = 0) const {
    if (depth > 32) bad("a type is nested too deeply");
    const Type &t = type(id);
    switch (t.op) {
    case OpTypeInt: case OpTypeFloat: {
      uint64_t n = t.words[0] / 8;
      if (n != 1 && n != 2 && n != 4 && n != 8) bad("a number of " + std::to_string(t.words[0]) + " bits");
      return {n, n};
    }
    case OpTypePointer: case OpTypeUntypedPointer: return {8, 8};
    case OpTypeVector: {
      Layout l = layout(t.words[0], depth + 1);
      uint64_t n = l.size * (t.words[1] == 3 ? 4 : t.words[1]);
      return {n, n};
    }
    case OpTypeArray: {
      Layout l = layout(t.words[0], depth + 1);
      auto n = constants_.find(t.words[1]);
      if (n == constants_.end()) bad("an array without a length");
      return {l.size * n->second, l.align};
    }
    case OpTypeStruct: {
      bool packed = packed_.count(id) != 0;
      Layout sum{0, 1};
      for (uint32_t m : t.words) {
        Layout l = layout(m, depth + 1);
        if (!packed) sum.size = (sum.size + l.align - 1) / l.align * l.align, sum.align = std::max(sum.align, l.align);
        sum.size += l.size;
        if (sum.size > (1u << 20)) bad("a type of more than a megabyte");
      }
      sum.size = (sum.size + sum.align - 1) / sum.align * sum.align;
      return sum;
    }
    default: bad("an argument of a type without size");
    }
  }

  ArgumentShape argument(uint32_t type_id, uint32_t parameter, const std::string &kernel_name) const {
    const Type &t = type(type_id);
    ArgumentShape a;
    if (t.op == OpTypePointer || t.op == OpTypeUntypedPointer) {
      uint32_t storage = t.words[0];
      if (by_value_.count(parameter)) {
        if (t.op != OpTypePointer) bad("kernel " + kernel_name + " takes a struct of unknown layout");
        a.kind = "struct";
        a.size = static_cast<uint32_t>(layout(t.words[1]).size);
      } else if (storage == ClassWorkgroup) a.kind = "local";
      else if (storage == ClassCrossWorkgroup || storage == ClassUniformConstant || storage == ClassGeneric || storage == ClassHost || storage == ClassDevice) a.kind = "pointer";
      else bad("kernel " + kernel_name + " has a pointer into storage class " + std::to_string(storage));
      return a;
    }
    a.size = static_cast<uint32_t>(layout(type_id).size);
    if (t.op == OpTypeInt || t.op == OpTypeFloat) {
      a.kind = "value";
      a.type = (t.op == OpTypeInt ? "i" : "f") + std::to_string(8 * a.size);
    } else a.kind = "struct";
    return a;
  }

  KernelShape kernel(uint32_t id, const std::string &name) const {
    auto f = functions_.find(id);
    if (f == functions_.end()) bad("entry point " + name + " has no function");
    KernelShape k;
    k.entry = name;
    if (auto s = sub_group_.find(id); s != sub_group_.end()) k.sub_group_size = s->second;
    k.esimd = vector_compute_.count(id) != 0;
    const Type &signature = type(f->second.type);
    if (signature.op != OpTypeFunction || signature.words.size() != f->second.parameters.size() + 1) bad("entry point " + name + " does not have the parameters of its type");
    for (size_t i = 0; i < f->second.parameters.size(); i++) k.args.push_back(argument(signature.words[i + 1], f->second.parameters[i], name));

    std::set<uint32_t> seen{id}, used;
    std::set<std::string> missing;
    std::vector<uint32_t> open{id};
    while (!open.empty()) {
      uint32_t now = open.back();
      open.pop_back();
      auto g = functions_.find(now);
      if (g == functions_.end()) bad("a call to a function that is not there");
      used.insert(g->second.result_types.begin(), g->second.result_types.end());
      if (!g->second.body) {
        auto i = imports_.find(now);
        std::string n = i == imports_.end() ? "a function without name" : i->second;
        if (n.find("__spirv_") == std::string::npos) missing.insert(readable(n));
      }
      for (uint32_t c : g->second.calls)
        if (seen.insert(c).second) open.push_back(c);
    }
    k.undefined.assign(missing.begin(), missing.end());
    auto uses = [&](uint32_t width) { return std::any_of(used.begin(), used.end(), [&](uint32_t t) { return has_float(t, width); }); };
    if (uses(16)) k.aspects.push_back(5);
    if (uses(64)) k.aspects.push_back(6);
    if (atomics64_) k.aspects.push_back(28);
    return k;
  }

  const std::string &where_;
  std::vector<uint32_t> words_;
  size_t at_ = 0;
  uint32_t count_ = 0, bound_ = 0;
  std::vector<std::pair<uint32_t, std::string>> entries_;
  std::map<uint32_t, uint32_t> sub_group_, constants_;
  std::map<uint32_t, std::string> imports_;
  std::set<uint32_t> by_value_, packed_, vector_compute_;
  std::map<uint32_t, Type> types_;
  std::map<uint32_t, Function> functions_;
  Function *current_ = nullptr;
  bool atomics64_ = false;
};

} // namespace

ModuleShape read_spirv(const Bytes &module, const std::string &where) { return Reader(module, where).all(); }

} // namespace nskc
