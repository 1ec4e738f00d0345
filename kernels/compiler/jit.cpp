// SYCL source to SPIR-V images.
// libsycl-jit exports compileSYCL with C linkage but publishes no header for it. The structs below are our own description of its arguments, valid for the pinned wheel; the
// self-test finds out when they are not.
// SPDX-License-Identifier: MIT
#include "jit.hpp"

#include "spirv.hpp"

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

namespace nskc {
namespace {

template <class T> struct Array { T *data; size_t count; };
template <class T> struct View { const T *data; size_t count; };
struct Text { char *data; };
struct MemoryFile { const char *path, *text; };
struct Property { Text name; bool is_number; uint32_t number; Array<uint8_t> bytes; };
struct PropertySet { Text name; Array<Property> values; };
struct Binary { uint32_t format; uint64_t address_bits; const uint8_t *start; uint64_t size; };
struct Image { Binary binary; Array<Text> symbols; Array<PropertySet> properties; };
struct Bundle { Array<Image> images; Text options; };
struct Result {
  int error;
  Bundle bundle;
  Array<char> intermediate;
  Text log;
  ~Result() {}  // not trivial, so that the result comes back through memory as the library does it
};
using CompileSycl = Result (*)(MemoryFile, View<MemoryFile>, View<const char *>, View<char>, bool, uint32_t);
constexpr uint32_t kSpirv = 2;

std::string jit_path(const Toolkit &t) { return join(t.prefix, "lib/libsycl-jit.so"); }

/// Drops the two title lines and the indent that the library puts around clang's messages.
std::string clang_messages(const std::string &log) {
  std::string out;
  size_t start = 0;
  while (start < log.size()) {
    size_t end = std::min(log.find('\n', start), log.size());
    std::string line = log.substr(start, end - start);
    start = end + 1;
    if (!line.empty() && line[0] == '\t') line.erase(0, 1);
    if (line == "Device compilation failed" || line == "Detailed information:") continue;
    out += line + "\n";
  }
  while (ends_with(out, "\n\n")) out.pop_back();
  return out == "\n" ? "" : out;
}

/// Keeps the images that have kernels (bfloat16 library images have none).
void keep_kernels(std::vector<Bytes> &images, const std::string &path) {
  std::vector<Bytes> kept;
  for (auto &i : images)
    if (!read_spirv(i, path).kernels.empty()) kept.push_back(std::move(i));
  images = std::move(kept);
}

} // namespace

std::string library_identity(const Toolkit &toolkit) {
  std::string path = jit_path(toolkit);
  FILE *f = std::fopen(path.c_str(), "rb");
  if (!f) fail(path + " cannot be opened: --oneapi must name the folder with the runtime's include/ and lib/");
  Sha256 hash;
  struct stat s;
  if (fstat(fileno(f), &s) != 0) s.st_size = 0;
  const uint64_t size = static_cast<uint64_t>(s.st_size), pieces = 64;
  hash.add(&size, sizeof size);
  std::vector<char> part(1 << 16);
  for (uint64_t i = 0; i < pieces; i++) {
    std::fseek(f, static_cast<long>(size > part.size() ? (size - part.size()) / (pieces - 1) * i : 0), SEEK_SET);
    hash.add(part.data(), std::fread(part.data(), 1, part.size(), f));
  }
  std::fclose(f);
  return hash.hex();
}

CompileAnswer compile_private(const Toolkit &toolkit, const CompileRequest &request) {
  void *library = dlopen(jit_path(toolkit).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) fail(std::string("the runtime compiler cannot be loaded: ") + dlerror());
  auto compile = reinterpret_cast<CompileSycl>(dlsym(library, "compileSYCL"));
  if (!compile) fail(jit_path(toolkit) + " does not export compileSYCL");
  std::vector<const char *> options;
  for (auto &o : request.options) options.push_back(o.c_str());
  Result r = compile({request.path.c_str(), request.text.c_str()}, {nullptr, 0}, {options.data(), options.size()}, {nullptr, 0}, false, kSpirv);
  CompileAnswer a;
  a.good = r.error == 0;
  a.log = clang_messages(r.log.data ? r.log.data : "");
  if (!a.good) return a;
  for (size_t i = 0; i < r.bundle.images.count; i++) {
    const Binary &b = r.bundle.images.data[i].binary;
    if (b.format != kSpirv || b.address_bits != 64 || !b.start) fail(request.path + ": the runtime compiler returned something else than 64-bit SPIR-V");
    a.images.emplace_back(b.start, b.start + b.size);
  }
  keep_kernels(a.images, request.path);
  return a;
}

CompileAnswer compile_public(const Toolkit &toolkit, const CompileRequest &request) {
  if (toolkit.public_program.empty()) fail("the runtime compiler's own entry cannot be used and nskc-public, the way around it, is not built (kernels/compiler/build.sh builds it)");
  TemporaryFolder folder(absolute_path(request.work));
  // The name for messages goes in as a line directive.
  write_file(join(folder.path(), "source.cpp"), "#line 1 \"" + request.path + "\"\n" + request.text);
  std::string words;
  for (auto &o : request.options) words += o + "\n";
  // Quoted includes beside the source, seen from where the program runs.
  words += "-I\n" + absolute_path(folder_of(request.path)) + "\n";
  write_file(join(folder.path(), "options"), words);
  std::string lib = absolute_path(join(toolkit.prefix, "lib"));
  ProgramResult p = run_program({absolute_path(toolkit.public_program), "source.cpp", "options"}, folder.path(),
                                {"LD_LIBRARY_PATH=" + lib, "OCL_ICD_FILENAMES=" + join(lib, "libintelocl.so"), "SYCL_DUMP_IMAGES=1", "SYCL_CACHE_PERSISTENT=0"});
  CompileAnswer a;
  a.log = clang_messages(p.errors);
  if (p.status > 1) fail(request.path + ": nskc-public ended with code " + std::to_string(p.status) + (a.log.empty() ? "" : ": " + trim(a.log)));
  a.good = p.status == 0;
  if (!a.good) return a;
  for (auto &name : list_folder(folder.path()))
    if (starts_with(name, "sycl_") && ends_with(name, ".spv")) a.images.push_back(read_bytes(join(folder.path(), name)));
  keep_kernels(a.images, request.path);
  return a;
}

std::string self_test(const Toolkit &toolkit, const std::string &work, bool use_public) {
  CompileRequest request;
  request.path = "self-test.cpp";
  request.work = work;
  request.options = {"-std=c++20", "-O2"};
  request.text = "#include <sycl/sycl.hpp>\n"
                 "namespace sx = sycl::ext::oneapi::experimental;\n"
                 "extern \"C\" SYCL_EXT_ONEAPI_FUNCTION_PROPERTY((sx::nd_range_kernel<1>)) SYCL_EXT_ONEAPI_FUNCTION_PROPERTY((sx::sub_group_size<16>))\n"
                 "void nskc_self_test(float *x, int n) { x[n] += 1.0f; }\n";
  TemporaryFolder folder(work);
  std::string verdict = join(folder.path(), "verdict");
  pid_t child = fork();
  if (child < 0) fail("a process cannot be started");
  if (child == 0) {
    // Garbage returned through a changed interface may also loop: the alarm ends it.
    alarm(120);
    std::string text;
    try {
      CompileAnswer a = use_public ? compile_public(toolkit, request) : compile_private(toolkit, request);
      if (!a.good) text = "the one-line kernel does not compile: " + trim(a.log);
      else if (a.images.size() != 1) text = std::to_string(a.images.size()) + " images came back for a one-line kernel";
      else {
        ModuleShape m = read_spirv(a.images[0], "self-test");
        bool right = m.kernels.size() == 1 && m.kernels[0].entry == "__sycl_kernel_nskc_self_test" && m.kernels[0].sub_group_size == 16 && m.kernels[0].args.size() == 2 &&
                     m.kernels[0].args[0].kind == "pointer" && m.kernels[0].args[1].type == "i32";
        if (!right) text = "the one-line kernel came back with another name, sub-group size or arguments";
      }
      write_file(verdict, "=" + text);
    } catch (const std::exception &e) {
      try {
        write_file(verdict, std::string("=") + e.what());
      } catch (...) {
      }
    }
    _exit(0);
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {}
  if (WIFSIGNALED(status)) return "it ended with signal " + std::to_string(WTERMSIG(status)) + " (" + strsignal(WTERMSIG(status)) + ")";
  std::string text = is_file(verdict) ? read_text(verdict) : "";
  return text.empty() ? "it ended without an answer" : text.substr(1);
}

} // namespace nskc
