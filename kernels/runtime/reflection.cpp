// The reflection file of a module (JSON): read once at load, so that a launch is checked against plain tables.
// SPDX-License-Identifier: MIT
#include "internal.hpp"

#include <cctype>
#include <cstdlib>

namespace ns {
namespace {

/// A JSON value; only what reflection files need (numbers are unsigned integers below 2^53).
struct Json {
  enum Kind { null, boolean, number, text, list, object } kind = null;
  double value = 0;
  std::string string;
  std::vector<Json> items;
  std::vector<std::pair<std::string, Json>> members;

  const Json *get(const char *key) const {
    for (auto &m : members)
      if (m.first == key) return &m.second;
    return nullptr;
  }
};

class Reader {
public:
  Reader(const std::string &s, const std::string &where) : s_(s), where_(where) {}
  Json all() {
    Json j = value(0);
    space();
    if (i_ != s_.size()) bad("text after the end");
    return j;
  }

private:
  [[noreturn]] void bad(const char *why) { fail(NS_ERROR_FILE, where_ + ": not a valid module description: " + why + " at byte " + std::to_string(i_)); }
  void space() {
    while (i_ < s_.size() && (s_[i_] == ' ' || s_[i_] == '\n' || s_[i_] == '\r' || s_[i_] == '\t')) i_++;
  }
  char peek() {
    space();
    if (i_ >= s_.size()) bad("it ends too early");
    return s_[i_];
  }
  void expect(char c) {
    if (peek() != c) bad("unexpected character");
    i_++;
  }
  bool word(const char *w) {
    size_t n = std::char_traits<char>::length(w);
    if (s_.compare(i_, n, w) != 0) return false;
    i_ += n;
    return true;
  }
  std::string text() {
    expect('"');
    std::string out;
    for (;;) {
      if (i_ >= s_.size()) bad("a text has no end");
      char c = s_[i_++];
      if (c == '"') return out;
      if (static_cast<unsigned char>(c) < 0x20) bad("a control character in a text");
      if (c != '\\') {
        out += c;
        continue;
      }
      if (i_ >= s_.size()) bad("a text has no end");
      switch (char e = s_[i_++]) {
      case 'n': out += '\n'; break;
      case 't': out += '\t'; break;
      case 'r': out += '\r'; break;
      case 'b': out += '\b'; break;
      case 'f': out += '\f'; break;
      case '"': case '\\': case '/': out += e; break;
      case 'u': {
        unsigned code = 0;
        for (int k = 0; k < 4; k++) {
          if (i_ >= s_.size() || !std::isxdigit(static_cast<unsigned char>(s_[i_]))) bad("a wrong \\u escape");
          char d = s_[i_++];
          code = code * 16 + static_cast<unsigned>(d <= '9' ? d - '0' : (d | 32) - 'a' + 10);
        }
        if (code >= 0xd800 && code < 0xe000) code = 0xfffd; // half of a pair: only comments have such characters
        if (code >= 0x800) out += static_cast<char>(0xe0 | code >> 12);
        if (code >= 0x80) out += static_cast<char>(code >= 0x800 ? 0x80 | (code >> 6 & 63) : 0xc0 | code >> 6);
        out += static_cast<char>(code < 0x80 ? code : 0x80 | (code & 63));
        break;
      }
      default: bad("a wrong escape");
      }
    }
  }
  Json value(int depth) {
    if (depth > 32) bad("nested too deeply");
    Json j;
    char c = peek();
    if (c == '{') {
      i_++;
      j.kind = Json::object;
      if (peek() == '}') return i_++, j;
      for (;;) {
        std::string key = (peek(), text());
        expect(':');
        j.members.emplace_back(std::move(key), value(depth + 1));
        if (peek() == ',') { i_++; continue; }
        expect('}');
        return j;
      }
    }
    if (c == '[') {
      i_++;
      j.kind = Json::list;
      if (peek() == ']') return i_++, j;
      for (;;) {
        j.items.push_back(value(depth + 1));
        if (peek() == ',') { i_++; continue; }
        expect(']');
        return j;
      }
    }
    if (c == '"') return j.kind = Json::text, j.string = text(), j;
    if (word("true")) return j.kind = Json::boolean, j.value = 1, j;
    if (word("false")) return j.kind = Json::boolean, j;
    if (word("null")) return j;
    size_t start = i_;
    while (i_ < s_.size() && (std::isdigit(static_cast<unsigned char>(s_[i_])) || s_[i_] == '-' || s_[i_] == '+' || s_[i_] == '.' || s_[i_] == 'e' || s_[i_] == 'E')) i_++;
    if (i_ == start) bad("unexpected character");
    std::string digits = s_.substr(start, i_ - start);
    char *end = nullptr;
    j.kind = Json::number;
    j.value = std::strtod(digits.c_str(), &end);
    if (*end) bad("a wrong number");
    return j;
  }
  const std::string &s_;
  const std::string &where_;
  size_t i_ = 0;
};

class Checker {
public:
  explicit Checker(const std::string &where) : where_(where) {}
  [[noreturn]] void bad(const std::string &why) { fail(NS_ERROR_FILE, where_ + ": not a valid module description: " + why); }
  const Json &member(const Json &j, const char *key, Json::Kind kind) {
    const Json *m = j.get(key);
    if (!m || m->kind != kind) bad(std::string("\"") + key + "\" is missing or of the wrong kind");
    return *m;
  }
  std::string text(const Json &j, const char *key) { return member(j, key, Json::text).string; }
  std::string text_or(const Json &j, const char *key) {
    const Json *m = j.get(key);
    return m && m->kind == Json::text ? m->string : "";
  }
  uint64_t number(const Json &j, const char *key, uint64_t highest) {
    double v = member(j, key, Json::number).value;
    if (!(v >= 0 && v <= static_cast<double>(highest)) || v != static_cast<double>(static_cast<uint64_t>(v))) bad(std::string("\"") + key + "\" is out of range");
    return static_cast<uint64_t>(v);
  }
  /// A file beside the description, never elsewhere.
  std::string file(const Json &j) {
    std::string f = text(j, "file");
    if (f.empty() || f.find('/') != std::string::npos || f == "." || f == "..") bad("file name \"" + f + "\" is not a plain name");
    return f;
  }

private:
  const std::string &where_;
};

ArgShape argument(Checker &check, const Json &j, const std::string &kernel) {
  std::string name = check.text_or(j, "name");
  std::string kind = check.text(j, "kind");
  if (kind == "pointer") return {NS_ARG_POINTER, 8, name};
  if (kind == "local") return {NS_ARG_LOCAL, 0, name};
  auto size = static_cast<uint32_t>(check.number(j, "size", 4096));
  if (size == 0) check.bad("kernel " + kernel + " has an argument of 0 bytes");
  if (kind == "struct") return {NS_ARG_BYTES, size, name};
  if (kind != "value") check.bad("kernel " + kernel + " has an argument of unknown kind \"" + kind + "\"");
  std::string type = check.text(j, "type");
  bool is_float = !type.empty() && type[0] == 'f';
  if (!is_float && (type.empty() || type[0] != 'i')) check.bad("kernel " + kernel + " has a value of unknown type \"" + type + "\"");
  if (size != 1 && size != 2 && size != 4 && size != 8) check.bad("kernel " + kernel + " has a value of " + std::to_string(size) + " bytes");
  return {static_cast<uint32_t>(is_float ? NS_ARG_FLOAT : NS_ARG_INT), size, name};
}

} // namespace

ModuleShape parse_module(const std::string &text, const std::string &where) {
  Json top = Reader(text, where).all();
  Checker check(where);
  if (top.kind != Json::object) check.bad("it is no object");
  if (uint64_t format = check.number(top, "format", 1u << 20); format != 1) check.bad("format " + std::to_string(format) + ", this runtime reads format 1: rebuild the kernels");
  ModuleShape m;
  m.name = check.text(top, "module");
  m.variant = check.text(top, "variant");
  const Json &spirv = check.member(top, "spirv", Json::object);
  m.spirv_file = check.file(spirv);
  m.spirv_sha256 = check.text(spirv, "sha256");
  if (const Json *options = top.get("build_options")) m.large_registers = options->string.find("-ze-opt-large-register-file") != std::string::npos;
  m.spirv_bytes = check.number(spirv, "bytes", 1ull << 32);
  if (const Json *natives = top.get("native"); natives && natives->kind == Json::object)
    for (auto &n : natives->members) {
      if (n.second.kind != Json::object) check.bad("\"native\" of " + n.first + " is no object");
      m.natives[n.first] = {check.file(n.second), check.text_or(n.second, "sha256")};
    }
  for (const Json &k : check.member(top, "kernels", Json::list).items) {
    if (k.kind != Json::object) check.bad("a kernel is no object");
    KernelShape shape;
    shape.name = check.text(k, "name");
    shape.entry = check.text(k, "entry");
    shape.sub_group_size = static_cast<uint32_t>(check.number(k, "sub_group_size", 256));
    if (const Json *esimd = k.get("esimd")) shape.esimd = esimd->kind == Json::boolean && esimd->value;
    if (const Json *aspects = k.get("aspects"); aspects && aspects->kind == Json::list)
      for (const Json &a : aspects->items) {
        shape.needs_fp16 |= (a.kind == Json::number && a.value == 5) || a.string == "fp16";
        shape.needs_fp64 |= (a.kind == Json::number && a.value == 6) || a.string == "fp64";
      }
    for (const Json &a : check.member(k, "args", Json::list).items) {
      if (a.kind != Json::object) check.bad("an argument of kernel " + shape.name + " is no object");
      shape.args.push_back(argument(check, a, shape.name));
    }
    for (auto &other : m.kernels)
      if (other.name == shape.name) check.bad("kernel " + shape.name + " is there twice");
    m.kernels.push_back(std::move(shape));
  }
  return m;
}

} // namespace ns
