// The entry points of a SPIR-V module and the kind and size of their parameters.
// SPDX-License-Identifier: MIT
#include "nocard.hpp"
#include <algorithm>
#include <set>

namespace nocard {
namespace {

// Opcodes, storage classes and decorations of the SPIR-V specification.
constexpr uint32_t magic = 0x07230203;
constexpr uint32_t op_entry_point = 15, op_type_bool = 20, op_type_int = 21, op_type_float = 22, op_type_vector = 23, op_type_array = 28,
                   op_type_struct = 30, op_type_pointer = 32, op_constant = 43, op_function = 54, op_function_parameter = 55,
                   op_decorate = 71;
constexpr uint32_t first_type = 19, last_type = 39, model_kernel = 6, storage_workgroup = 4, storage_function = 7,
                   decoration_func_param_attr = 38, attribute_byval = 2;

struct Layout {
  size_t size = 0, alignment = 1;
};

struct Reader {
  std::map<uint32_t, std::vector<uint32_t>> types; // id -> opcode, id, operands
  std::map<uint32_t, uint64_t> constants;
  std::map<uint32_t, std::vector<std::pair<uint32_t, uint32_t>>> parameters; // function -> (id, type)
  std::vector<std::pair<uint32_t, std::string>> entries;
  std::set<uint32_t> by_value;

  void read(const std::vector<uint32_t> &words) {
    uint32_t function = 0;
    for (size_t at = 5; at < words.size();) {
      const uint32_t length = words[at] >> 16, opcode = words[at] & 0xffff, *word = &words[at];
      if (length == 0 || at + length > words.size()) return;
      if (opcode == op_entry_point && length > 3 && word[1] == model_kernel) {
        const char *name = (const char *)(word + 3);
        entries.push_back({word[2], std::string(name, strnlen(name, (length - 3) * 4))});
      }
      if (opcode >= first_type && opcode <= last_type && length >= 2) {
        types[word[1]].assign(word, word + length);
        types[word[1]][0] = opcode;
      }
      if (opcode == op_constant && length > 3) constants[word[2]] = length > 4 ? word[3] | (uint64_t)word[4] << 32 : word[3];
      if (opcode == op_decorate && length > 3 && word[2] == decoration_func_param_attr && word[3] == attribute_byval)
        by_value.insert(word[1]);
      if (opcode == op_function) function = word[2];
      if (opcode == op_function_parameter) parameters[function].push_back({word[2], word[1]});
      at += length;
    }
  }

  Layout layout(uint32_t id) const {
    auto found = types.find(id);
    if (found == types.end()) return {};
    const auto &type = found->second;
    switch (type[0]) {
    case op_type_bool:
      return {1, 1};
    case op_type_int:
    case op_type_float:
      return {type[2] / 8, type[2] / 8};
    case op_type_pointer:
      return {8, 8};
    case op_type_vector: {
      const size_t size = layout(type[2]).size * (type[3] == 3 ? 4 : type[3]);
      return {size, size};
    }
    case op_type_array: {
      const Layout element = layout(type[2]);
      auto count = constants.find(type[3]);
      return {count == constants.end() ? 0 : element.size * count->second, element.alignment};
    }
    case op_type_struct: {
      Layout whole;
      for (size_t i = 2; i < type.size(); i++) {
        const Layout member = layout(type[i]);
        whole.alignment = std::max(whole.alignment, member.alignment);
        whole.size = (whole.size + member.alignment - 1) / member.alignment * member.alignment + member.size;
      }
      whole.size = (whole.size + whole.alignment - 1) / whole.alignment * whole.alignment;
      return whole;
    }
    default:
      return {};
    }
  }

  Parameter parameter(uint32_t id, uint32_t type_id) const {
    auto found = types.find(type_id);
    if (found == types.end() || found->second[0] != op_type_pointer || found->second.size() < 4)
      return {ArgKind::Value, layout(type_id).size};
    const auto &pointer = found->second;
    if (pointer[2] == storage_workgroup) return {ArgKind::Local, 0};
    if (by_value.count(id) || pointer[2] == storage_function) return {ArgKind::Value, layout(pointer[3]).size};
    return {ArgKind::Pointer, 8};
  }
};

} // namespace

std::map<std::string, std::vector<Parameter>> entry_points(const std::vector<uint32_t> &words) {
  std::map<std::string, std::vector<Parameter>> kernels;
  if (words.size() < 5 || words[0] != magic) return kernels;
  Reader reader;
  reader.read(words);
  for (auto &[function, name] : reader.entries)
    for (auto &[id, type] : reader.parameters[function]) kernels[name].push_back(reader.parameter(id, type));
  return kernels;
}

} // namespace nocard
