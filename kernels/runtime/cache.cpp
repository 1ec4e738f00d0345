// The cache of built modules: one file a key, written aside and renamed, checked by its own digest, dropped when anything is wrong with it.
// File: "NSMC1" padded to 8 bytes, SHA-256 of the key (64 hex digits), SHA-256 of the content (64 hex digits), length (8 bytes, little-endian), content.
// SPDX-License-Identifier: MIT
#include "internal.hpp"
#include "sha256.hpp"

#include <cstring>
#include <filesystem>
#include <fstream>

#include <fcntl.h>
#include <unistd.h>

namespace fs = std::filesystem;

namespace ns {
namespace {

constexpr char magic[8] = {'N', 'S', 'M', 'C', '1', 0, 0, 0};
constexpr size_t header_bytes = 8 + 64 + 64 + 8;
constexpr uintmax_t highest_total = 512ull << 20;

/// "" when caching is off or there is no place for it.
std::string cache_folder() {
  std::string dir = setting("NS_MODULE_CACHE");
  if (dir == "off") return "";
  if (!dir.empty()) return dir;
  std::string base = setting("XDG_CACHE_HOME");
  if (base.empty() || base[0] != '/') {
    base = setting("HOME");
    if (base.empty()) return "";
    base += "/.cache";
  }
  return base + "/nextsycl/modules";
}

/// Oldest files go when the folder has grown past its limit (a driver update leaves the old builds behind).
void prune(const std::string &folder) {
  struct Entry {
    fs::file_time_type time;
    uintmax_t bytes;
    fs::path path;
  };
  std::vector<Entry> entries;
  uintmax_t total = 0;
  for (auto &e : fs::directory_iterator(folder)) {
    if (!e.is_regular_file() || e.path().extension() != ".nsm") continue;
    entries.push_back({e.last_write_time(), e.file_size(), e.path()});
    total += entries.back().bytes;
  }
  if (total <= highest_total) return;
  std::sort(entries.begin(), entries.end(), [](auto &a, auto &b) { return a.time < b.time; });
  std::error_code ignored;
  for (auto &e : entries) {
    if (total <= highest_total / 2) break;
    if (fs::remove(e.path, ignored)) total -= e.bytes;
  }
}

} // namespace

std::string cache_file(const std::string &key) {
  std::string folder = cache_folder();
  return folder.empty() ? "" : folder + "/" + sha256(key.data(), key.size()) + ".nsm";
}

std::optional<std::vector<unsigned char>> cache_read(const std::string &key) {
  try {
    std::string path = cache_file(key);
    if (path.empty() || !fs::is_regular_file(path)) return {};
    std::vector<unsigned char> all = read_file(path);
    if (all.size() < header_bytes || std::memcmp(all.data(), magic, 8)) return {};
    uint64_t length = 0;
    for (int i = 7; i >= 0; i--) length = length << 8 | all[136 + static_cast<size_t>(i)];
    if (length != all.size() - header_bytes || length == 0) return {};
    auto text = [&](size_t at) { return std::string(reinterpret_cast<char *>(all.data()) + at, 64); };
    if (text(8) != sha256(key.data(), key.size()) || text(72) != sha256(all.data() + header_bytes, length)) return {};
    all.erase(all.begin(), all.begin() + header_bytes);
    return all;
  } catch (...) {
    return {}; // an unreadable cache is no cache
  }
}

void cache_write(const std::string &key, const void *data, size_t bytes) noexcept {
  try {
    std::string path = cache_file(key);
    if (path.empty() || bytes == 0) return;
    std::string folder = path.substr(0, path.rfind('/'));
    fs::create_directories(folder);
    std::string header(magic, 8);
    header += sha256(key.data(), key.size()) + sha256(data, bytes);
    for (int i = 0; i < 8; i++) header += static_cast<char>(uint64_t(bytes) >> (8 * i));
    std::string aside = path + ".XXXXXX";
    int fd = mkstemp(aside.data());
    if (fd < 0) return;
    auto put = [fd](const void *p, size_t n) {
      auto c = static_cast<const char *>(p);
      while (n) {
        ssize_t done = write(fd, c, n);
        if (done <= 0) return false;
        c += done, n -= static_cast<size_t>(done);
      }
      return true;
    };
    bool ok = put(header.data(), header.size()) && put(data, bytes) && fsync(fd) == 0;
    ok = close(fd) == 0 && ok;
    if (!ok || rename(aside.c_str(), path.c_str()) != 0) unlink(aside.c_str());
    prune(folder);
  } catch (...) {
    // the build in hand works without a cache
  }
}

} // namespace ns
