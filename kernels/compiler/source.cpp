// Includes, comments and signatures of kernel sources.
// SPDX-License-Identifier: MIT
#include "source.hpp"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <set>

namespace nskc {
namespace {

bool name_char(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

struct Include {
  std::string name;
  bool quoted;
};
/// Include directives outside of comments.
std::vector<Include> includes_of(const SourceFile &file) {
  std::vector<Include> out;
  const std::string &s = file.text;
  bool line_start = true;
  for (size_t i = 0; i < s.size();) {
    if (s.compare(i, 2, "//") == 0) {
      while (i < s.size() && s[i] != '\n') i++;
    } else if (s.compare(i, 2, "/*") == 0) {
      size_t end = s.find("*/", i + 2);
      i = end == std::string::npos ? s.size() : end + 2;
    } else if (s[i] == '"') {
      for (i++; i < s.size() && s[i] != '"' && s[i] != '\n'; i++)
        if (s[i] == '\\') i++;
      i++;
      line_start = false;
    } else if (s[i] == '#' && line_start) {
      size_t end = std::min(s.find('\n', i), s.size()), at = s.find_first_not_of(" \t", i + 1);
      if (at < end && s.compare(at, 7, "include") == 0 && !name_char(s[at + 7])) {
        size_t open = s.find_first_not_of(" \t", at + 7);
        char closing = open < end && s[open] == '<' ? '>' : '"';
        size_t close = open < end ? s.find(closing, open + 1) : std::string::npos;
        if (open >= end || (s[open] != '"' && s[open] != '<') || close >= end)
          fail(file.path + ":" + std::to_string(1 + std::count(s.begin(), s.begin() + static_cast<long>(i), '\n')) + ": an include through a macro cannot be followed: name the file");
        out.push_back({s.substr(open + 1, close - open - 1), closing == '"'});
        i = end;
      } else i++;
      line_start = false;
    } else {
      if (s[i] == '\n') line_start = true;
      else if (s[i] != ' ' && s[i] != '\t') line_start = false;
      i++;
    }
  }
  return out;
}

std::string find_include(const Include &include, const std::string &from, const std::vector<std::string> &folders) {
  if (!include.name.empty() && include.name[0] == '/') return is_file(include.name) ? include.name : "";
  if (include.quoted)
    if (std::string p = join(folder_of(from), include.name); is_file(p)) return p;
  for (auto &f : folders)
    if (std::string p = join(f, include.name); is_file(p)) return p;
  return "";
}

// ------------------------------------------------------------------ tokens of the preprocessed text
struct Token {
  enum Kind { word, sign, literal, comment } kind;
  std::string text;
  std::string file;
  int line, end_line;
};

std::vector<Token> tokens_of(const std::string &s) {
  std::vector<Token> out;
  std::string file;
  int line = 1;
  bool line_start = true;
  auto add = [&](Token::Kind kind, size_t from, size_t to) {
    int first = line;
    line += static_cast<int>(std::count(s.begin() + static_cast<long>(from), s.begin() + static_cast<long>(to), '\n'));
    out.push_back({kind, s.substr(from, to - from), file, first, line});
  };
  for (size_t i = 0; i < s.size();) {
    char c = s[i];
    if (c == '\n') {
      line++, i++, line_start = true;
      continue;
    }
    if (c == ' ' || c == '\t' || c == '\r' || c == '\f' || c == '\v') {
      i++;
      continue;
    }
    if (c == '#' && line_start) {  // # LINE "FILE" FLAGS, or a pragma
      size_t end = std::min(s.find('\n', i), s.size());
      std::string directive = s.substr(i, end - i);
      if (directive.size() > 2 && std::isdigit(static_cast<unsigned char>(directive[2]))) {
        line = std::atoi(directive.c_str() + 2) - 1;
        size_t a = directive.find('"'), b = directive.rfind('"');
        if (a != std::string::npos && b > a) file = directive.substr(a + 1, b - a - 1);
      }
      i = end;
      continue;
    }
    line_start = false;
    size_t from = i;
    if (s.compare(i, 2, "//") == 0) {
      i = std::min(s.find('\n', i), s.size());
      add(Token::comment, from, i);
    } else if (s.compare(i, 2, "/*") == 0) {
      size_t end = s.find("*/", i + 2);
      i = end == std::string::npos ? s.size() : end + 2;
      add(Token::comment, from, i);
    } else if (c == '"' || c == '\'') {
      for (i++; i < s.size() && s[i] != c && s[i] != '\n'; i++)
        if (s[i] == '\\') i++;
      i = std::min(i + 1, s.size());
      add(Token::literal, from, i);
    } else if (name_char(c)) {
      // Digit separators in numbers (1'000) must not open a character.
      while (i < s.size() && (name_char(s[i]) || (s[i] == '\'' && std::isdigit(static_cast<unsigned char>(c)) && i + 1 < s.size() && name_char(s[i + 1])))) i++;
      add(Token::word, from, i);
    } else {
      i += s.compare(i, 2, "::") == 0 ? 2 : 1;
      add(Token::sign, from, i);
    }
  }
  return out;
}

/// The words of a comment: markers and indentation removed, lines kept.
std::string comment_text(const std::string &raw) {
  std::string out;
  std::string body = raw.compare(0, 2, "/*") == 0 ? raw.substr(2, raw.size() >= 4 ? raw.size() - 4 : 0) : raw.substr(2);
  size_t start = 0;
  while (start <= body.size()) {
    size_t end = std::min(body.find('\n', start), body.size());
    std::string line = body.substr(start, end - start);
    while (!line.empty() && (line[0] == '/' || line[0] == '*' || line[0] == '!')) line.erase(0, 1);
    if (raw.compare(0, 2, "/*") == 0) {
      line = trim(line);
      if (!line.empty() && line[0] == '*') line = trim(line.substr(1));
    } else {
      if (!line.empty() && line[0] == ' ') line.erase(0, 1);
      while (!line.empty() && std::isspace(static_cast<unsigned char>(line.back()))) line.pop_back();
    }
    out += (out.empty() ? "" : "\n") + line;
    start = end + 1;
  }
  return out;
}

struct Doc {
  std::string text;
  std::vector<std::string> promises;
};
void take_promises(const std::string &text, const std::string &where, Doc &doc) {
  size_t start = 0;
  while (start <= text.size()) {
    size_t end = std::min(text.find('\n', start), text.size());
    std::string line = text.substr(start, end - start), flat = trim(line);
    start = end + 1;
    if (flat.compare(0, 4, "arc:") != 0) {
      doc.text += (doc.text.empty() ? "" : "\n") + line;
      continue;
    }
    for (auto &p : split(flat.substr(4), ',')) {
      auto &known = known_promises();
      if (std::find(known.begin(), known.end(), p) == known.end()) {
        std::string all;
        for (auto &k : known) all += (all.empty() ? "" : ", ") + k;
        fail(where + ": unknown promise \"" + p + "\" after arc: (known: " + all + ")");
      }
      if (std::find(doc.promises.begin(), doc.promises.end(), p) == doc.promises.end()) doc.promises.push_back(p);
    }
  }
}

std::string spell(const std::vector<Token> &t, size_t from, size_t to) {
  std::string out;
  for (size_t i = from; i < to; i++) {
    if (t[i].kind == Token::comment) continue;
    bool gap = !out.empty() && t[i].kind == Token::word && (name_char(out.back()) || out.back() == '>' || out.back() == '*');
    if (t[i].text == "*" && !out.empty() && out.back() != '*') gap = true;
    if (t[i].kind == Token::word && !out.empty() && out.back() == '*' && t[i].text == "__restrict__") continue;
    out += (gap ? " " : "") + t[i].text;
  }
  return out;
}

ArgumentText argument_text(const std::vector<Token> &t, size_t from, size_t to) {
  while (from < to && t[to - 1].kind == Token::comment) to--;
  ArgumentText a;
  size_t words = 0, last = to;
  int depth = 0;
  for (size_t i = from; i < to; i++) {
    if (t[i].text == "<" || t[i].text == "(") depth++;
    else if (t[i].text == ">" || t[i].text == ")") depth--;
    else if (t[i].text == "=" && depth == 0) {
      to = i;
      break;
    } else if (t[i].kind == Token::word && depth == 0) words++, last = i;
  }
  // The name is the last word, unless that word is the type itself.
  static const std::set<std::string> types = {"int", "float", "char", "short", "long", "unsigned", "signed", "double", "bool", "const"};
  bool has_name = words > 1 && last < to && !types.count(t[last].text) && (last == from || t[last - 1].text != "::");
  if (has_name) {
    a.name = t[last].text;
    a.type = spell(t, from, last);
    for (size_t i = last + 1; i < to; i++) a.type += t[i].kind == Token::comment ? "" : t[i].text;
  } else a.type = spell(t, from, to);
  return a;
}

size_t closing(const std::vector<Token> &t, size_t open, const char *in, const char *out) {
  int depth = 0;
  for (size_t i = open; i < t.size(); i++) {
    if (t[i].kind != Token::sign) continue;
    if (t[i].text == in) depth++;
    else if (t[i].text == out && --depth == 0) return i;
  }
  return t.size();
}

} // namespace

const std::vector<std::string> &known_promises() {
  static const std::vector<std::string> words = {"dp4a", "dpas", "load16", "block", "slm"};
  return words;
}

std::vector<SourceFile> included_files(const std::string &source, const std::vector<std::string> &folders) {
  std::vector<SourceFile> files{{source, read_text(source)}};
  std::set<std::string> seen{absolute_path(source)};
  for (size_t i = 0; i < files.size(); i++)
    for (auto &include : includes_of(files[i]))
      if (std::string path = find_include(include, files[i].path, folders); !path.empty() && seen.insert(absolute_path(path)).second) {
        if (files.size() > 4096) fail(source + ": includes more than 4096 files");
        files.push_back({path, read_text(path)});
      }
  return files;
}

ModuleText read_module_text(const std::string &source, const std::vector<std::string> &folders, const std::vector<std::string> &defines, const std::vector<SourceFile> &files,
                            const std::string &work) {
  TemporaryFolder stubs(work);
  // An empty file for every header of the toolkit or the system: macros of the project expand, nothing else is read.
  for (auto &f : files)
    for (auto &include : includes_of(f))
      if (find_include(include, f.path, folders).empty()) {
        if (include.name.find("..") != std::string::npos || include.name.empty() || include.name[0] == '/') fail(f.path + ": include of " + include.name + " is not found");
        std::string stub = join(stubs.path(), include.name);
        make_folders(folder_of(stub));
        write_file(stub, "");
      }
  const char *cxx = std::getenv("CXX");
  std::vector<std::string> command = program_words(cxx && *cxx ? cxx : "g++");
  for (const char *o : {"-E", "-CC", "-std=c++20", "-nostdinc", "-nostdinc++", "-D__SYCL_DEVICE_ONLY__=1", "-D__SPIR__=1"}) command.push_back(o);
  for (auto &d : defines) command.push_back("-D" + d);
  for (auto &f : folders) command.push_back("-I" + f);
  command.push_back("-I" + stubs.path());
  command.push_back(source);
  ProgramResult p = run_program(command);
  if (p.status != 0) fail(source + ": the C++ preprocessor (" + command[0] + ") failed: " + trim(p.errors));

  ModuleText m;
  const std::pair<const char *, const char *> wishes[] = {{"nskc: correctly-rounded-divide-sqrt", "-cl-fp32-correctly-rounded-divide-sqrt"}, {"nskc: large-register-file", "-ze-opt-large-register-file"}};
  for (auto &[words, option] : wishes)
    if (files[0].text.find(words) != std::string::npos) m.build_options += (m.build_options.empty() ? "" : " ") + std::string(option);
  std::vector<Token> t = tokens_of(p.output);
  Doc doc;
  int doc_end = -10;  // last line of the comment, or of the last function that it went to
  bool doc_open = false;  // nothing but comment lines since it began
  std::string doc_file;
  for (size_t i = 0; i < t.size();) {
    if (t[i].kind == Token::comment) {
      // Comments on consecutive lines are one.
      if (!doc_open || doc_end + 1 < t[i].line || doc_file != t[i].file) doc = Doc();
      doc_open = true;
      take_promises(comment_text(t[i].text), t[i].file + ":" + std::to_string(t[i].line), doc);
      doc_end = t[i].end_line, doc_file = t[i].file;
      i++;
      continue;
    }
    // A declaration at file scope: up to ; or a body.
    doc_open = false;
    size_t begin = i, parens = t.size(), end = i;
    bool kernel = false;
    for (; end < t.size(); end++) {
      if (t[end].kind == Token::comment) {
        if (t[end].text.find("arc:") != std::string::npos) take_promises(comment_text(t[end].text), t[end].file + ":" + std::to_string(t[end].line), doc), doc_end = t[end].end_line, doc_file = t[end].file;
        continue;
      }
      if (t[end].kind == Token::literal && t[end].text == "\"C\"") kernel = true;
      if (t[end].kind != Token::sign) continue;
      if (t[end].text == "(") parens = end, end = closing(t, end, "(", ")");
      else if (t[end].text == ";" || t[end].text == "{" || t[end].text == "}") break;
      if (end >= t.size()) break;
    }
    if (end >= t.size()) break;
    if (t[end].text == "{") {
      // Namespaces and linkage blocks are entered, every other body is skipped.
      bool scope = parens == t.size() && std::any_of(t.begin() + static_cast<long>(begin), t.begin() + static_cast<long>(end), [](const Token &k) { return k.text == "namespace" || k.text == "\"C\""; });
      if (scope) {
        i = end + 1;
        continue;
      }
      size_t close = closing(t, end, "{", "}");
      bool named = parens < end && parens > begin && t[parens - 1].kind == Token::word;
      if (named) {
        KernelText k;
        k.file = t[begin].file;
        k.line = t[parens - 1].line;
        size_t last = closing(t, parens, "(", ")");
        int depth = 0;
        size_t from = parens + 1;
        for (size_t j = parens + 1; j <= last; j++) {
          if (j == last || (depth == 0 && t[j].text == ",")) {
            bool any = std::any_of(t.begin() + static_cast<long>(from), t.begin() + static_cast<long>(j), [](const Token &x) { return x.kind != Token::comment; });
            if (any) k.args.push_back(argument_text(t, from, j));
            from = j + 1;
          } else if (t[j].text == "(" || t[j].text == "<" || t[j].text == "[") depth++;
          else if (t[j].text == ")" || t[j].text == ">" || t[j].text == "]") depth--;
        }
        bool near = doc_file == k.file && t[begin].line <= doc_end + 1 && doc_end >= 0;
        if (near) {
          k.comment = trim(doc.text);
          k.promises = doc.promises;
        }
        if (kernel) m.kernels[t[parens - 1].text] = k;
        // Functions that follow line on line share the comment.
        if (near && close < t.size()) doc_end = t[close].end_line;
      }
      i = close < t.size() ? close + 1 : t.size();
    } else i = end + 1;
  }
  return m;
}

} // namespace nskc
