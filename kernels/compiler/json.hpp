// JSON for module descriptions: values that keep the order of their members, a strict reader, a reproducible writer.
// SPDX-License-Identifier: MIT
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace nskc {

struct Json {
  enum Kind { null, boolean, number, text, list, object };
  Kind kind = null;
  int64_t value = 0;
  std::string string;
  std::vector<Json> items;
  std::vector<std::pair<std::string, Json>> members;

  Json() = default;
  Json(const std::string &s) : kind(text), string(s) {}
  Json(const char *s) : kind(text), string(s) {}
  Json(bool b) : kind(boolean), value(b) {}
  Json(int64_t n) : kind(number), value(n) {}
  Json(uint64_t n) : kind(number), value(static_cast<int64_t>(n)) {}
  Json(uint32_t n) : kind(number), value(n) {}
  Json(int n) : kind(number), value(n) {}
  static Json array() { Json j; return j.kind = list, j; }
  static Json map() { Json j; return j.kind = object, j; }

  Json &set(const std::string &key, Json v);
  const Json *get(const std::string &key) const;  // null when absent
  const Json &at(const std::string &key, Kind kind) const;  // fails when absent or of another kind
  /// One line, no spaces.
  std::string print() const;
};

/// `where` names the file in messages.
Json parse_json(const std::string &text, const std::string &where);

} // namespace nskc
