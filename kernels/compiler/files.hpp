// Files, programs and hashes for nskc: whole-file reads, atomic writes, folders of a run that vanish, SHA-256.
// SPDX-License-Identifier: MIT
#pragma once
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace nskc {

inline constexpr const char *kVersion = "1";

/// What ends a command: one line for the user, and the exit code (1 error, 2 bad usage).
struct Failure : std::runtime_error {
  explicit Failure(const std::string &message, int code = 1) : std::runtime_error(message), code(code) {}
  int code;
};
[[noreturn]] inline void fail(const std::string &message) { throw Failure(message); }

using Bytes = std::vector<uint8_t>;

bool is_file(const std::string &path);
bool is_folder(const std::string &path);
std::string read_text(const std::string &path);
Bytes read_bytes(const std::string &path);
/// Writes beside the target and renames. Does nothing when the file already has these bytes.
void write_file(const std::string &path, const void *data, size_t bytes);
inline void write_file(const std::string &path, const std::string &text) { write_file(path, text.data(), text.size()); }
inline void write_file(const std::string &path, const Bytes &b) { write_file(path, b.data(), b.size()); }
void make_folders(const std::string &path);
void remove_tree(const std::string &path);
/// Names in a folder, sorted, without "." and "..".
std::vector<std::string> list_folder(const std::string &path);
/// Absolute path without links; the path itself when it does not exist.
std::string absolute_path(const std::string &path);
std::string folder_of(const std::string &path);  // "." when there is none
std::string file_name(const std::string &path);
std::string join(const std::string &folder, const std::string &name);
bool ends_with(const std::string &text, const std::string &end);
bool starts_with(const std::string &text, const std::string &start);
std::vector<std::string> split(const std::string &text, char separator);  // trimmed, no empty pieces
std::string trim(const std::string &text);

/// A folder that exists as long as the object does.
class TemporaryFolder {
public:
  explicit TemporaryFolder(const std::string &parent);
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder &) = delete;
  TemporaryFolder &operator=(const TemporaryFolder &) = delete;
  const std::string &path() const { return path_; }

private:
  std::string path_;
};

struct ProgramResult {
  int status;  // exit code, 128 + signal when killed, 127 when it could not start
  std::string output;  // stdout
  std::string errors;  // stderr
};
/// Runs a program (looked up in PATH) and waits. `folder`: where it runs ("" here). `environment`: NAME=VALUE added.
ProgramResult run_program(const std::vector<std::string> &command, const std::string &folder = "", const std::vector<std::string> &environment = {});
/// A program named by an option: a path as it is, or words ("wrapper ocloc") when no file has the whole name.
std::vector<std::string> program_words(const std::string &option);

class Sha256 {
public:
  Sha256();
  Sha256 &add(const void *data, size_t bytes);
  /// Length first, so that two lists of texts never hash alike by accident.
  Sha256 &text(const std::string &s);
  std::string hex();

private:
  void block(const uint8_t *p);
  uint32_t state_[8];
  uint8_t tail_[64];
  size_t filled_ = 0;
  uint64_t total_ = 0;
};
std::string sha256(const void *data, size_t bytes);
inline std::string sha256(const Bytes &b) { return sha256(b.data(), b.size()); }
inline std::string sha256(const std::string &s) { return sha256(s.data(), s.size()); }

} // namespace nskc
