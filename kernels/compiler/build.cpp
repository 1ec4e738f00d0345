// nskc's main job: sources to modules. One child process per (source, variant): a crash of the compiler is an error line, not the end of the run.
// SPDX-License-Identifier: MIT
#include "commands.hpp"
#include "jit.hpp"
#include "json.hpp"
#include "native.hpp"
#include "source.hpp"
#include "spirv.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <map>
#include <fcntl.h>
#include <set>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

namespace nskc {
namespace {

constexpr const char *kEntryPrefix = "__sycl_kernel_";

struct Job {
  std::string source, module, variant;
  std::vector<SourceFile> files;
  std::vector<std::string> defines, options;
  std::string key;        // of everything the outputs depend on
  std::string pch_key;    // of the headers a precompiled one holds
};

struct Run {
  const BuildOptions &o;
  Toolkit toolkit;
  bool use_public = false;
  std::string work;

  std::string output(const Job &j, const std::string &end) const { return join(o.out, j.module + "." + j.variant + end); }
  std::string note(const Job &j) const { return join(work, j.module + "." + j.variant + ".dep"); }
};

std::string module_of(const std::string &source) {
  std::string name = file_name(source);
  if (!ends_with(name, ".cpp") || name.size() == 4) fail(source + ": a kernel source is named MODULE.cpp");
  name.resize(name.size() - 4);
  for (char c : name)
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '_' && c != '-') fail(source + ": a module name has letters, digits, _ and - only");
  return name;
}

Job make_job(const Run &run, const std::string &source, const std::string &variant, const std::string &tools) {
  Job j;
  j.source = source;
  j.module = module_of(source);
  j.variant = variant;
  j.files = included_files(source, run.o.includes);
  j.defines = {variant == "gpu" ? "NS_GPU=1" : "NS_CPU=1", "NS_SG=16"};
  j.defines.insert(j.defines.end(), run.o.defines.begin(), run.o.defines.end());
  j.options = {"-std=c++20", "-O2", "-ffp-contract=off", "-fsycl-device-code-split=off", "-Wall", "-Wno-pass-failed"};
  Sha256 hash, headers;
  hash.text(kVersion).text(tools).text(j.module).text(variant).text(run.use_public ? "public" : "private");
  for (auto &d : j.defines) j.options.push_back("-D" + d), hash.text("-D" + d);
  for (auto &w : j.options) hash.text(w);
  headers.text(tools).text(run.toolkit.prefix);
  for (auto &f : j.files) {
    hash.text(file_name(f.path)).text(f.text);
    if (&f != &j.files[0]) headers.text(absolute_path(f.path)).text(f.text);
  }
  if (variant == "gpu")
    for (auto &t : run.o.targets) hash.text(t);
  for (auto &i : run.o.includes) j.options.push_back("-I" + i);
  // No folder name reaches the output: __FILE__ is relative to where the source or header was found.
  std::set<std::string> folders{folder_of(source), absolute_path(folder_of(source))};
  for (auto &i : run.o.includes) folders.insert(i), folders.insert(absolute_path(i));
  for (auto &f : folders)
    if (f != ".") j.options.push_back("-ffile-prefix-map=" + f + (ends_with(f, "/") ? "" : "/") + "=");
  j.key = hash.hex();
  j.pch_key = headers.hex().substr(0, 16);
  return j;
}

/// The note of a job: its key, then "sha256 name" of every output.
bool up_to_date(const Run &run, const Job &j) {
  if (!is_file(run.note(j))) return false;
  std::vector<std::string> lines = split(read_text(run.note(j)), '\n');
  if (lines.size() < 3 || lines[0] != j.key) return false;
  for (size_t i = 1; i < lines.size(); i++) {
    size_t gap = lines[i].find(' ');
    if (gap == std::string::npos) return false;
    std::string path = join(run.o.out, lines[i].substr(gap + 1));
    if (!is_file(path) || sha256(read_bytes(path)) != lines[i].substr(0, gap)) return false;
  }
  return true;
}

CompileAnswer compile(const Run &run, const Job &j) {
  CompileRequest request;
  request.path = j.source;
  request.text = j.files[0].text;
  request.options = j.options;
  request.work = run.work;
  if (run.use_public) return compile_public(run.toolkit, request);
  if (run.o.pch.empty()) return compile_private(run.toolkit, request);
  // A precompiled header holds the project's headers too and is refused once they change, so it lives in a folder named by their content.
  std::string folder = join(absolute_path(run.o.pch), j.pch_key);
  make_folders(folder);
  utimensat(AT_FDCWD, folder.c_str(), nullptr, 0);
  request.options.push_back("--persistent-auto-pch=" + folder);
  CompileAnswer a = compile_private(run.toolkit, request);
  if (a.good || a.log.find("precompiled file") == std::string::npos) return a;
  request.options.pop_back();
  remove_tree(folder);
  return compile_private(run.toolkit, request);
}

std::string place(const ModuleText &text, const Job &j, const std::string &name) {
  auto k = text.kernels.find(name);
  return k == text.kernels.end() ? j.source + ": " : k->second.file + ":" + std::to_string(k->second.line) + ": ";
}

/// What no kernel may have; every finding is a line.
void check(const ModuleShape &m, const ModuleText &text, const Job &j) {
  std::string all;
  auto report = [&](const std::string &name, const std::string &what) { all += (all.empty() ? "" : "\n") + place(text, j, name) + "error: kernel " + name + ": " + what; };
  for (auto &k : m.kernels) {
    std::string name = starts_with(k.entry, kEntryPrefix) ? k.entry.substr(std::strlen(kEntryPrefix)) : k.entry;
    if (std::find(k.aspects.begin(), k.aspects.end(), 6u) != k.aspects.end()) report(name, "uses double (aspect 6), which Alchemist cards do not have");
    for (auto &f : k.undefined) {
      if (k.esimd && starts_with(f, "llvm.genx.")) continue; // what the vector compiler itself supplies
      report(name, "calls an undefined function: " + f + (f.find("BF16") != std::string::npos ? " (bfloat16 of the library does not work in a module: convert with integer shifts)" : ""));
    }
    if (k.sub_group_size == 0 && !k.esimd) report(name, "declares no sub-group size (sub_group_size<NS_SG>)");
  }
  if (!all.empty()) fail(all);
}

Json describe_kernel(const KernelShape &k, const ModuleText &text) {
  std::string name = starts_with(k.entry, kEntryPrefix) ? k.entry.substr(std::strlen(kEntryPrefix)) : k.entry;
  auto found = text.kernels.find(name);
  const KernelText *t = found == text.kernels.end() ? nullptr : &found->second;
  bool named = t && t->args.size() == k.args.size();
  Json j = Json::map().set("name", name).set("entry", k.entry).set("sub_group_size", k.sub_group_size);
  if (k.esimd) j.set("esimd", true);
  Json aspects = Json::array(), args = Json::array(), promises = Json::array();
  for (uint32_t a : k.aspects) aspects.items.push_back(a);
  for (size_t i = 0; i < k.args.size(); i++) {
    Json a = Json::map().set("kind", k.args[i].kind);
    if (k.args[i].size) a.set("size", k.args[i].size);
    if (!k.args[i].type.empty()) a.set("type", k.args[i].type);
    if (named && !t->args[i].name.empty()) a.set("name", t->args[i].name);
    if (named) a.set("source", t->args[i].type);
    args.items.push_back(a);
  }
  j.set("aspects", aspects).set("args", args);
  if (t)
    for (auto &p : t->promises) promises.items.push_back(p);
  j.set("promises", promises);
  if (t && !t->comment.empty()) j.set("comment", t->comment);
  return j;
}

/// One object, its lists one entry a line: easy to read and to compare.
std::string print_module(const Json &m) {
  std::string out = "{";
  for (auto &part : m.members) {
    if (out.size() > 1) out += ",";
    out += "\n" + Json(part.first).print() + ":";
    if (part.second.kind == Json::list || (part.first == "native" && part.second.kind == Json::object)) {
      bool list = part.second.kind == Json::list, first = true;
      out += list ? "[" : "{";
      for (auto &i : part.second.items) out += (first ? "\n" : ",\n") + i.print(), first = false;
      for (auto &i : part.second.members) out += (first ? "\n" : ",\n") + Json(i.first).print() + ":" + i.second.print(), first = false;
      out += list ? "\n]" : "\n}";
    } else out += part.second.print();
  }
  return out + "\n}\n";
}

/// Runs in the job's own process. Throws on errors; nothing is in the out folder then.
void run_job(const Run &run, const Job &j) {
  ModuleText text = read_module_text(j.source, run.o.includes, j.defines, j.files, run.work);
  CompileAnswer a = compile(run, j);
  if (!a.good) fail(trim(a.log).empty() ? j.source + ": the compiler failed without a message" : trim(a.log));
  if (!trim(a.log).empty()) std::fprintf(stderr, "%s\n", trim(a.log).c_str());
  if (a.images.empty()) fail(j.source + ": no kernel in it (for variant " + j.variant + ")");
  if (a.images.size() > 1) fail(j.source + ": makes " + std::to_string(a.images.size()) + " images; ESIMD kernels and kernels with a register size of their own need files of their own");
  const Bytes &spirv = a.images[0];
  ModuleShape m = read_spirv(spirv, j.source);
  std::sort(m.kernels.begin(), m.kernels.end(), [](const KernelShape &x, const KernelShape &y) { return x.entry < y.entry; });
  check(m, text, j);

  std::vector<std::pair<std::string, Bytes>> outputs{{file_name(run.output(j, ".spv")), spirv}};
  Json doc = Json::map().set("format", 1).set("module", j.module).set("variant", j.variant);
  doc.set("spirv", Json::map().set("file", outputs[0].first).set("sha256", sha256(spirv)).set("bytes", static_cast<uint64_t>(spirv.size())));
  if (!text.build_options.empty()) doc.set("build_options", text.build_options);
  Json kernels = Json::array();
  for (auto &k : m.kernels) kernels.items.push_back(describe_kernel(k, text));
  doc.set("kernels", kernels);
  if (!run.o.ocloc.empty() && j.variant == "gpu") {
    TemporaryFolder folder(run.work);
    std::string spv = join(folder.path(), j.module + ".spv");
    write_file(spv, spirv);
    Json native = Json::map();
    for (auto &target : run.o.targets) {
      Bytes code = compile_native(run.o.ocloc, spv, target, text.build_options, folder.path());
      std::string name = file_name(run.output(j, "." + target + ".bin"));
      Json facts = Json::map();
      std::vector<NativeKernel> read = read_native(code, name);
      for (auto &k : m.kernels) {
        auto n = std::find_if(read.begin(), read.end(), [&](const NativeKernel &x) { return x.entry == k.entry; });
        if (n == read.end()) fail(j.source + ": kernel " + k.entry + " is missing in the native code for " + target);
        facts.set(starts_with(k.entry, kEntryPrefix) ? k.entry.substr(std::strlen(kEntryPrefix)) : k.entry, describe(*n));
      }
      native.set(target, Json::map().set("file", name).set("sha256", sha256(code)).set("bytes", static_cast<uint64_t>(code.size())).set("kernels", facts));
      outputs.emplace_back(name, std::move(code));
    }
    doc.set("native", native);
  }
  std::string json = print_module(doc);
  outputs.emplace_back(file_name(run.output(j, ".json")), Bytes(json.begin(), json.end()));

  // The note goes first and comes last: a run cut off in between is built again.
  std::remove(run.note(j).c_str());
  std::string note = j.key + "\n";
  std::set<std::string> names;
  for (auto &o : outputs) {
    write_file(join(run.o.out, o.first), o.second);
    note += sha256(o.second) + " " + o.first + "\n";
    names.insert(o.first);
  }
  for (auto &name : list_folder(run.o.out))
    if (starts_with(name, j.module + "." + j.variant + ".") && ends_with(name, ".bin") && !names.count(name)) std::remove(join(run.o.out, name).c_str());
  write_file(run.note(j), note);
  if (!run.o.quiet) std::printf("%s.%s: %zu kernels, %zu bytes of SPIR-V\n", j.module.c_str(), j.variant.c_str(), m.kernels.size(), spirv.size());
}

/// Runs the jobs, at most `jobs` at a time. Messages come out one job at a time. Returns how many failed.
int run_all(const Run &run, const std::vector<Job> &jobs) {
  TemporaryFolder logs(run.work);
  std::map<pid_t, size_t> running;
  size_t next = 0;
  int failed = 0;
  auto log = [&](size_t i, const char *kind) { return join(logs.path(), std::to_string(i) + kind); };
  while (next < jobs.size() || !running.empty()) {
    while (next < jobs.size() && running.size() < static_cast<size_t>(run.o.jobs)) {
      std::fflush(nullptr);
      pid_t child = fork();
      if (child < 0) fail(std::string("a process cannot be started: ") + std::strerror(errno));
      if (child == 0) {
        int code = 0;
        if (!std::freopen(log(next, ".out").c_str(), "w", stdout) || !std::freopen(log(next, ".err").c_str(), "w", stderr)) _exit(1);
        try {
          run_job(run, jobs[next]);
        } catch (const std::exception &e) {
          std::fprintf(stderr, "%s\n", e.what());
          code = 1;
        }
        std::fflush(nullptr);
        _exit(code);
      }
      running[child] = next++;
    }
    int status = 0;
    pid_t done = wait(&status);
    if (done < 0 && errno == EINTR) continue;
    auto job = running.find(done);
    if (job == running.end()) continue;
    size_t i = job->second;
    running.erase(job);
    for (auto &[kind, to] : {std::pair<const char *, FILE *>{".out", stdout}, {".err", stderr}})
      if (std::string text = is_file(log(i, kind)) ? read_text(log(i, kind)) : ""; !text.empty()) std::fputs(text.c_str(), to);
    if (WIFSIGNALED(status))
      std::fprintf(stderr, "%s: error: the compiler crashed (%s) on variant %s\n", jobs[i].source.c_str(), strsignal(WTERMSIG(status)), jobs[i].variant.c_str());
    if (status != 0) failed++;
  }
  return failed;
}

/// Chooses how to compile: the private entry when its self-test is good, else the public interface. The answer is kept per library.
void choose_compiler(Run &run, const std::string &identity) {
  run.use_public = run.o.compiler == "public";
  std::string kept = join(run.work, run.use_public ? "self-test.public" : "self-test");
  if (!run.o.self_test_only && is_file(kept) && trim(read_text(kept)) == identity) return;
  std::string wrong = self_test(run.toolkit, run.work, run.use_public);
  if (!wrong.empty() && run.o.compiler == "auto") {
    std::fprintf(stderr, "nskc: the runtime compiler's own entry fails its self-test (%s); using the public interface, which is slower\n", wrong.c_str());
    run.use_public = true;
    wrong = self_test(run.toolkit, run.work, true);
    if (!wrong.empty()) fail("the public runtime-compilation interface fails its self-test too: " + wrong);
    return;
  }
  if (!wrong.empty()) fail("the runtime compiler fails its self-test: " + wrong);
  write_file(kept, identity + "\n");
}

/// Keeps the sixteen precompiled headers used last (about 40 MB each).
void tidy_precompiled(const std::string &folder) {
  std::vector<std::pair<time_t, std::string>> all;
  for (auto &name : list_folder(folder)) {
    struct stat s;
    std::string path = join(folder, name);
    if (name.size() == 16 && stat(path.c_str(), &s) == 0 && S_ISDIR(s.st_mode)) all.emplace_back(s.st_mtime, path);
  }
  std::sort(all.rbegin(), all.rend());
  for (size_t i = 16; i < all.size(); i++) remove_tree(all[i].second);
}

} // namespace

int build(const BuildOptions &options) {
  Run run{options, {absolute_path(options.oneapi), options.public_program}, false, ""};
  // The compiler finds its own libraries beside itself; what LD_LIBRARY_PATH says of another toolkit must not win.
  std::string identity = library_identity(run.toolkit);
  if (options.self_test_only) {
    TemporaryFolder folder(temporary_parent());
    run.work = folder.path();
    choose_compiler(run, identity);
    std::printf("self-test passed (%s)\n", run.use_public ? "public interface" : "compileSYCL");
    return 0;
  }
  make_folders(options.out);
  run.work = join(options.out, ".work");
  make_folders(run.work);
  // One run at a time in a folder; what a run that was cut off left behind goes.
  int lock = open(join(run.work, "lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (lock < 0 || flock(lock, LOCK_EX) != 0) fail(join(run.work, "lock") + " cannot be locked: " + std::strerror(errno));
  for (auto &name : list_folder(run.work))
    if (starts_with(name, "run-")) remove_tree(join(run.work, name));
  for (auto &name : list_folder(options.out))
    if (starts_with(name, ".nskc-")) std::remove(join(options.out, name).c_str());
  if (!options.pch.empty()) make_folders(options.pch);
  std::string tools = identity + sha256(read_bytes("/proc/self/exe"));
  if (!options.ocloc.empty()) tools += ocloc_identity(options.ocloc);

  run.use_public = options.compiler == "public";
  std::vector<Job> jobs;
  std::set<std::string> names;
  auto collect = [&] {
    jobs.clear(), names.clear();
    for (auto &s : options.sources)
      for (auto &v : options.variants) {
        Job j = make_job(run, s, v, tools);
        if (!names.insert(j.module + "." + v).second) fail(s + ": there are two sources of module " + j.module);
        if (!up_to_date(run, j)) jobs.push_back(std::move(j));
      }
  };
  collect();
  size_t all = options.sources.size() * options.variants.size();
  if (!jobs.empty()) {
    bool before = run.use_public;
    choose_compiler(run, identity);
    if (run.use_public != before) collect();
    int failed = run_all(run, jobs);
    if (!options.pch.empty()) tidy_precompiled(options.pch);
    if (failed) {
      std::fprintf(stderr, "nskc: %d of %zu builds failed\n", failed, jobs.size());
      return 1;
    }
  }
  if (!options.quiet) std::printf("nskc: %zu built, %zu up to date\n", jobs.size(), all - jobs.size());
  return 0;
}

} // namespace nskc
