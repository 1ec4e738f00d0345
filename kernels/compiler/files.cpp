// Files, programs and hashes for nskc.
// SPDX-License-Identifier: MIT
#include "files.hpp"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

namespace nskc {
namespace {
[[noreturn]] void fail_system(const std::string &what, const std::string &path) { fail(path + ": " + what + ": " + std::strerror(errno)); }

struct Descriptor {
  int fd = -1;
  ~Descriptor() {
    if (fd >= 0) close(fd);
  }
};
} // namespace

bool is_file(const std::string &path) {
  struct stat s;
  return stat(path.c_str(), &s) == 0 && S_ISREG(s.st_mode);
}
bool is_folder(const std::string &path) {
  struct stat s;
  return stat(path.c_str(), &s) == 0 && S_ISDIR(s.st_mode);
}

std::string read_text(const std::string &path) {
  Descriptor d{open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (d.fd < 0) fail_system("cannot be read", path);
  std::string text;
  char part[1 << 16];
  for (;;) {
    ssize_t n = read(d.fd, part, sizeof part);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_system("cannot be read", path);
    if (n == 0) return text;
    text.append(part, static_cast<size_t>(n));
  }
}
Bytes read_bytes(const std::string &path) {
  std::string text = read_text(path);
  return Bytes(text.begin(), text.end());
}

void write_file(const std::string &path, const void *data, size_t bytes) {
  if (is_file(path)) {
    std::string now = read_text(path);
    if (now.size() == bytes && std::memcmp(now.data(), data, bytes) == 0) return;
  }
  std::string pattern = join(folder_of(path), ".nskc-" + file_name(path) + "-XXXXXX");
  std::vector<char> name(pattern.begin(), pattern.end());
  name.push_back(0);
  Descriptor d{mkstemp(name.data())};
  if (d.fd < 0) fail_system("cannot be written", path);
  const char *p = static_cast<const char *>(data);
  bool good = fchmod(d.fd, 0644) == 0;
  while (good && bytes) {
    ssize_t n = write(d.fd, p, bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) good = false;
    else p += n, bytes -= static_cast<size_t>(n);
  }
  if (good) good = fsync(d.fd) == 0 && rename(name.data(), path.c_str()) == 0;
  if (good) return;
  int kept = errno;
  unlink(name.data());
  errno = kept;
  fail_system("cannot be written", path);
}

void make_folders(const std::string &path) {
  for (size_t i = 1; i <= path.size(); i++)
    if (i == path.size() || path[i] == '/') {
      std::string part = path.substr(0, i);
      if (mkdir(part.c_str(), 0755) != 0 && errno != EEXIST) fail_system("folder cannot be made", part);
    }
  if (!is_folder(path)) fail(path + ": is not a folder");
}

void remove_tree(const std::string &path) {
  struct stat s;
  if (lstat(path.c_str(), &s) != 0) return;
  if (S_ISDIR(s.st_mode))
    for (auto &name : list_folder(path)) remove_tree(join(path, name));
  std::remove(path.c_str());
}

std::vector<std::string> list_folder(const std::string &path) {
  DIR *d = opendir(path.c_str());
  if (!d) fail_system("cannot be listed", path);
  std::vector<std::string> names;
  while (dirent *e = readdir(d))
    if (std::string n = e->d_name; n != "." && n != "..") names.push_back(n);
  closedir(d);
  std::sort(names.begin(), names.end());
  return names;
}

std::string absolute_path(const std::string &path) {
  char resolved[PATH_MAX];
  return realpath(path.c_str(), resolved) ? resolved : path;
}
std::string folder_of(const std::string &path) {
  size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}
std::string file_name(const std::string &path) {
  size_t slash = path.rfind('/');
  return slash == std::string::npos ? path : path.substr(slash + 1);
}
std::string join(const std::string &folder, const std::string &name) {
  if (folder.empty() || folder == ".") return name;
  return folder.back() == '/' ? folder + name : folder + "/" + name;
}
bool ends_with(const std::string &text, const std::string &end) { return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0; }
bool starts_with(const std::string &text, const std::string &start) { return text.compare(0, start.size(), start) == 0; }
std::string trim(const std::string &text) {
  size_t a = text.find_first_not_of(" \t\r\n"), b = text.find_last_not_of(" \t\r\n");
  return a == std::string::npos ? "" : text.substr(a, b - a + 1);
}
std::vector<std::string> split(const std::string &text, char separator) {
  std::vector<std::string> out;
  size_t start = 0;
  for (size_t i = 0; i <= text.size(); i++)
    if (i == text.size() || text[i] == separator) {
      if (std::string piece = trim(text.substr(start, i - start)); !piece.empty()) out.push_back(piece);
      start = i + 1;
    }
  return out;
}

TemporaryFolder::TemporaryFolder(const std::string &parent) {
  std::string pattern = join(parent, "run-XXXXXX");
  std::vector<char> name(pattern.begin(), pattern.end());
  name.push_back(0);
  if (!mkdtemp(name.data())) fail_system("folder for temporary files cannot be made", parent);
  path_ = name.data();
}
TemporaryFolder::~TemporaryFolder() { remove_tree(path_); }

ProgramResult run_program(const std::vector<std::string> &command, const std::string &folder, const std::vector<std::string> &environment) {
  int out[2], err[2];
  if (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0) fail("a pipe cannot be made: " + std::string(std::strerror(errno)));
  pid_t child = fork();
  if (child < 0) fail("a process cannot be started: " + std::string(std::strerror(errno)));
  if (child == 0) {
    dup2(out[1], 1);
    dup2(err[1], 2);
    int nothing = open("/dev/null", O_RDONLY);
    if (nothing >= 0) dup2(nothing, 0);
    if (!folder.empty() && chdir(folder.c_str()) != 0) _exit(126);
    for (auto &e : environment)
      if (size_t eq = e.find('='); eq != std::string::npos) setenv(e.substr(0, eq).c_str(), e.c_str() + eq + 1, 1);
    std::vector<char *> words;
    for (auto &w : command) words.push_back(const_cast<char *>(w.c_str()));
    words.push_back(nullptr);
    execvp(words[0], words.data());
    dprintf(2, "%s: %s\n", words[0], std::strerror(errno));
    _exit(127);
  }
  close(out[1]);
  close(err[1]);
  Descriptor a{out[0]}, b{err[0]};
  ProgramResult r{0, "", ""};
  pollfd fds[2] = {{a.fd, POLLIN, 0}, {b.fd, POLLIN, 0}};
  std::string *texts[2] = {&r.output, &r.errors};
  for (int open_ends = 2; open_ends > 0;) {
    if (poll(fds, 2, -1) < 0 && errno != EINTR) break;
    for (int i = 0; i < 2; i++) {
      if (fds[i].fd < 0 || !fds[i].revents) continue;
      char part[1 << 15];
      ssize_t n = read(fds[i].fd, part, sizeof part);
      if (n > 0) texts[i]->append(part, static_cast<size_t>(n));
      else if (n == 0 || errno != EINTR) fds[i].fd = -1, open_ends--;
    }
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {}
  r.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return r;
}

std::vector<std::string> program_words(const std::string &option) {
  if (is_file(option)) return {option.find('/') == std::string::npos ? "./" + option : option};
  return split(option, ' ');
}

// SHA-256 as in FIPS 180-4.
namespace {
const uint32_t kRound[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74,
    0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d,
    0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e,
    0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5,
    0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
uint32_t turn(uint32_t x, int n) { return x >> n | x << (32 - n); }
} // namespace

Sha256::Sha256() {
  const uint32_t start[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::copy(start, start + 8, state_);
}
void Sha256::block(const uint8_t *p) {
  uint32_t w[64], v[8];
  for (int i = 0; i < 16; i++) w[i] = uint32_t(p[4 * i]) << 24 | uint32_t(p[4 * i + 1]) << 16 | uint32_t(p[4 * i + 2]) << 8 | p[4 * i + 3];
  for (int i = 16; i < 64; i++) w[i] = w[i - 16] + (turn(w[i - 15], 7) ^ turn(w[i - 15], 18) ^ w[i - 15] >> 3) + w[i - 7] + (turn(w[i - 2], 17) ^ turn(w[i - 2], 19) ^ w[i - 2] >> 10);
  std::copy(state_, state_ + 8, v);
  for (int i = 0; i < 64; i++) {
    uint32_t a = v[7] + (turn(v[4], 6) ^ turn(v[4], 11) ^ turn(v[4], 25)) + ((v[4] & v[5]) ^ (~v[4] & v[6])) + kRound[i] + w[i];
    uint32_t b = (turn(v[0], 2) ^ turn(v[0], 13) ^ turn(v[0], 22)) + ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
    std::copy_backward(v, v + 7, v + 8);
    v[4] += a;
    v[0] = a + b;
  }
  for (int i = 0; i < 8; i++) state_[i] += v[i];
}
Sha256 &Sha256::add(const void *data, size_t bytes) {
  const uint8_t *p = static_cast<const uint8_t *>(data);
  total_ += bytes;
  while (bytes) {
    if (filled_ == 0 && bytes >= 64) {
      block(p);
      p += 64, bytes -= 64;
      continue;
    }
    size_t n = std::min(bytes, 64 - filled_);
    std::memcpy(tail_ + filled_, p, n);
    p += n, bytes -= n, filled_ += n;
    if (filled_ == 64) block(tail_), filled_ = 0;
  }
  return *this;
}
Sha256 &Sha256::text(const std::string &s) {
  uint64_t n = s.size();
  return add(&n, sizeof n).add(s.data(), s.size());
}
std::string Sha256::hex() {
  uint64_t bits = total_ * 8;
  uint8_t pad[72] = {0x80};
  size_t n = (filled_ < 56 ? 56 : 120) - filled_;
  for (int i = 0; i < 8; i++) pad[n + static_cast<size_t>(i)] = static_cast<uint8_t>(bits >> (56 - 8 * i));
  add(pad, n + 8);
  char text[65];
  for (int i = 0; i < 8; i++) std::snprintf(text + 8 * i, 9, "%08x", state_[i]);
  return text;
}
std::string sha256(const void *data, size_t bytes) { return Sha256().add(data, bytes).hex(); }

} // namespace nskc
