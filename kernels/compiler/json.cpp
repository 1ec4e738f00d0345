// JSON for module descriptions. Numbers are integers; that is all these files hold.
// SPDX-License-Identifier: MIT
#include "json.hpp"

#include "files.hpp"

#include <cstdio>

namespace nskc {

Json &Json::set(const std::string &key, Json v) {
  for (auto &m : members)
    if (m.first == key) return m.second = std::move(v), *this;
  members.emplace_back(key, std::move(v));
  return *this;
}
const Json *Json::get(const std::string &key) const {
  for (auto &m : members)
    if (m.first == key) return &m.second;
  return nullptr;
}
const Json &Json::at(const std::string &key, Kind wanted) const {
  const Json *j = get(key);
  if (!j || j->kind != wanted) fail("\"" + key + "\" is missing or of the wrong kind in a module description");
  return *j;
}

namespace {
void print_text(const std::string &s, std::string &out) {
  out += '"';
  for (char c : s) {
    if (c == '"' || c == '\\') out += '\\', out += c;
    else if (c == '\n') out += "\\n";
    else if (c == '\t') out += "\\t";
    else if (static_cast<unsigned char>(c) < 0x20) {
      char code[8];
      std::snprintf(code, sizeof code, "\\u%04x", c);
      out += code;
    } else out += c;
  }
  out += '"';
}
void print_value(const Json &j, std::string &out) {
  bool first = true;
  switch (j.kind) {
  case Json::null: out += "null"; break;
  case Json::boolean: out += j.value ? "true" : "false"; break;
  case Json::number: out += std::to_string(j.value); break;
  case Json::text: print_text(j.string, out); break;
  case Json::list:
    out += '[';
    for (auto &i : j.items) {
      if (!first) out += ',';
      first = false;
      print_value(i, out);
    }
    out += ']';
    break;
  case Json::object:
    out += '{';
    for (auto &m : j.members) {
      if (!first) out += ',';
      first = false;
      print_text(m.first, out);
      out += ':';
      print_value(m.second, out);
    }
    out += '}';
    break;
  }
}

class Reader {
public:
  Reader(const std::string &s, const std::string &where) : s_(s), where_(where) {}
  Json all() {
    Json j = value(0);
    if (space(), i_ != s_.size()) bad("text after the end");
    return j;
  }

private:
  [[noreturn]] void bad(const std::string &why) { fail(where_ + ": not a module description: " + why + " at byte " + std::to_string(i_)); }
  void space() {
    while (i_ < s_.size() && (s_[i_] == ' ' || s_[i_] == '\n' || s_[i_] == '\r' || s_[i_] == '\t')) i_++;
  }
  char peek() {
    if (space(), i_ >= s_.size()) bad("it ends too early");
    return s_[i_];
  }
  bool take(char c) { return peek() == c ? (i_++, true) : false; }
  void expect(char c) {
    if (!take(c)) bad(std::string("'") + c + "' expected");
  }
  bool word(const std::string &w) { return s_.compare(i_, w.size(), w) == 0 ? (i_ += w.size(), true) : false; }
  std::string text() {
    expect('"');
    std::string out;
    while (i_ < s_.size() && s_[i_] != '"') {
      char c = s_[i_++];
      if (static_cast<unsigned char>(c) < 0x20) bad("a control character in a text");
      if (c != '\\') {
        out += c;
        continue;
      }
      if (i_ >= s_.size()) break;
      char e = s_[i_++];
      if (e == 'n') out += '\n';
      else if (e == 't') out += '\t';
      else if (e == '"' || e == '\\' || e == '/') out += e;
      else if (e == 'u' && s_.compare(i_, 2, "00") == 0 && i_ + 4 <= s_.size()) out += static_cast<char>(std::stoi(s_.substr(i_ + 2, 2), nullptr, 16)), i_ += 4;
      else bad("an unknown escape");
    }
    if (i_ >= s_.size()) bad("a text has no end");
    i_++;
    return out;
  }
  Json value(int depth) {
    if (depth > 32) bad("nested too deeply");
    char c = peek();
    if (c == '{') {
      Json j = Json::map();
      i_++;
      if (take('}')) return j;
      do {
        std::string key = (peek(), text());
        expect(':');
        j.members.emplace_back(key, value(depth + 1));
      } while (take(','));
      return expect('}'), j;
    }
    if (c == '[') {
      Json j = Json::array();
      i_++;
      if (take(']')) return j;
      do j.items.push_back(value(depth + 1));
      while (take(','));
      return expect(']'), j;
    }
    if (c == '"') return Json(text());
    if (word("true")) return Json(true);
    if (word("false")) return Json(false);
    if (word("null")) return Json();
    bool minus = word("-");
    if (i_ >= s_.size() || s_[i_] < '0' || s_[i_] > '9') bad("a value expected");
    int64_t n = 0;
    for (; i_ < s_.size() && s_[i_] >= '0' && s_[i_] <= '9'; i_++) {
      if (n > (int64_t(1) << 53)) bad("a number is too big");
      n = n * 10 + (s_[i_] - '0');
    }
    return Json(minus ? -n : n);
  }
  const std::string &s_, &where_;
  size_t i_ = 0;
};
} // namespace

std::string Json::print() const {
  std::string out;
  print_value(*this, out);
  return out;
}
Json parse_json(const std::string &text, const std::string &where) { return Reader(text, where).all(); }

} // namespace nskc
