// nskc: compiles SYCL kernel sources to modules, checks their native GPU code, makes libraries of them.
// SPDX-License-Identifier: MIT
#include "commands.hpp"
#include "native.hpp"
#include "spirv.hpp"

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>

using namespace nskc;

namespace {

const char *kUsage =
    R"(nskc --oneapi DIR --out DIR [options] SOURCE.cpp...   compile modules
  --variant gpu|cpu     device class, may be repeated (default: both)
  -I DIR, -D NAME[=X]   as for a compiler
  --pch DIR             keep precompiled headers here between runs
  --ocloc PROGRAM       also make native code for the gpu variant
  --targets A,B         of these devices (default: bmg-g21,bmg-g31)
  --jobs N              compilers at a time (default: 1)
  --compiler auto|private|public   how to reach the compiler: its own entry, or the public interface (default: auto)
  --public PROGRAM      nskc-public, for the public interface (default: beside nskc)
  --quiet               errors and warnings only
nskc --oneapi DIR --self-test [--compiler C]          check that the compiler can be used
nskc gate --dir DIR [--ocloc PROGRAM] [--iga PROGRAM] [--targets A,B] [--table]
                        check the native GPU code of modules
nskc library --kind KIND --dir DIR --out DIR [--include DIR] [--link DIR]
                        nextsycl-KIND.h and .c with launchers, and with --link libnextsycl-KIND.so
nskc inspect FILE.spv|FILE.bin   the kernels of a module, a JSON line each
nskc --version
)";

[[noreturn]] void usage(const std::string &why) { throw Failure(why + " (nskc --help lists the options)", 2); }

/// Options with a value by name; anything else goes to `plain`.
void parse(int count, char **words, const std::map<std::string, std::function<void(const std::string &)>> &values, const std::map<std::string, std::function<void()>> &switches,
           const std::function<void(const std::string &)> &plain) {
  for (int i = 0; i < count; i++) {
    std::string w = words[i], value;
    if (auto s = switches.find(w); s != switches.end()) {
      s->second();
      continue;
    }
    bool attached = false;
    if (size_t eq = w.find('='); starts_with(w, "--") && eq != std::string::npos) value = w.substr(eq + 1), w.resize(eq), attached = true;
    else if (w.size() > 2 && (starts_with(w, "-I") || starts_with(w, "-D"))) value = w.substr(2), w.resize(2), attached = true;
    auto v = values.find(w);
    if (v == values.end()) {
      if (w.size() > 1 && w[0] == '-') usage("unknown option " + w);
      plain(w);
      continue;
    }
    if (!attached) {
      if (++i >= count) usage(w + " needs a value");
      value = words[i];
    }
    if (value.empty()) usage(w + " needs a value");
    v->second(value);
  }
}

void need(const std::string &value, const char *option) {
  if (value.empty()) usage(std::string(option) + " is missing");
}
void no_plain(const std::string &w) { usage("unexpected word " + w); }

int run_build(int count, char **words) {
  BuildOptions o;
  o.public_program = "?";
  parse(count, words,
        {{"--oneapi", [&](auto &v) { o.oneapi = v; }},
         {"--out", [&](auto &v) { o.out = v; }},
         {"--variant",
          [&](auto &v) {
            if (v != "gpu" && v != "cpu") usage("--variant is gpu or cpu, not " + v);
            for (auto &have : o.variants)
              if (have == v) return;
            o.variants.push_back(v);
          }},
         {"-I", [&](auto &v) { o.includes.push_back(v); }},
         {"-D", [&](auto &v) { o.defines.push_back(v); }},
         {"--pch", [&](auto &v) { o.pch = v; }},
         {"--ocloc", [&](auto &v) { o.ocloc = v; }},
         {"--targets", [&](auto &v) { o.targets = split(v, ','); }},
         {"--compiler",
          [&](auto &v) {
            if (v != "auto" && v != "private" && v != "public") usage("--compiler is auto, private or public, not " + v);
            o.compiler = v;
          }},
         {"--public", [&](auto &v) { o.public_program = v; }},
         {"--jobs",
          [&](auto &v) {
            char *end = nullptr;
            long n = std::strtol(v.c_str(), &end, 10);
            if (*end || n < 1 || n > 256) usage("--jobs is a number from 1 to 256, not " + v);
            o.jobs = static_cast<int>(n);
          }}},
        {{"--self-test", [&] { o.self_test_only = true; }}, {"--quiet", [&] { o.quiet = true; }}}, [&](const std::string &w) { o.sources.push_back(w); });
  need(o.oneapi, "--oneapi");
  if (o.public_program == "?") {
    std::string beside = join(folder_of(absolute_path("/proc/self/exe")), "nskc-public");
    o.public_program = is_file(beside) ? beside : "";
  } else if (!is_file(o.public_program)) usage("--public: " + o.public_program + " is not a file");
  if (o.self_test_only) return build(o);
  need(o.out, "--out");
  if (o.sources.empty()) usage("no source given");
  if (o.variants.empty()) o.variants = {"gpu", "cpu"};
  if (o.targets.empty()) o.targets = {"bmg-g21", "bmg-g31"};
  return build(o);
}

int run_gate(int count, char **words) {
  GateOptions o;
  parse(count, words,
        {{"--dir", [&](auto &v) { o.dir = v; }}, {"--ocloc", [&](auto &v) { o.ocloc = v; }}, {"--iga", [&](auto &v) { o.iga = v; }}, {"--targets", [&](auto &v) { o.targets = split(v, ','); }}},
        {{"--table", [&] { o.table = true; }}}, no_plain);
  need(o.dir, "--dir");
  if (o.targets.empty()) o.targets = {"bmg-g21", "bmg-g31"};
  return gate(o);
}

int run_library(int count, char **words) {
  LibraryOptions o;
  parse(count, words,
        {{"--kind", [&](auto &v) { o.kind = v; }}, {"--dir", [&](auto &v) { o.dir = v; }}, {"--out", [&](auto &v) { o.out = v; }}, {"--include", [&](auto &v) { o.include = v; }}, {"--link", [&](auto &v) { o.link = v; }}},
        {}, no_plain);
  need(o.kind, "--kind");
  need(o.dir, "--dir");
  need(o.out, "--out");
  return library(o);
}

int run_inspect(int count, char **words) {
  std::vector<std::string> files;
  parse(count, words, {}, {}, [&](const std::string &w) { files.push_back(w); });
  if (files.size() != 1) usage("inspect takes one file");
  Bytes bytes = read_bytes(files[0]);
  if (bytes.size() > 4 && bytes[0] == 0x7f && bytes[1] == 'E') {
    for (auto &k : read_native(bytes, files[0])) std::printf("%s\n", describe(k).set("entry", k.entry).print().c_str());
    return 0;
  }
  for (auto &k : read_spirv(bytes, files[0]).kernels) {
    Json args = Json::array(), aspects = Json::array(), undefined = Json::array();
    for (auto &a : k.args) args.items.push_back(a.type.empty() ? a.kind + (a.size ? " " + std::to_string(a.size) : "") : a.type);
    for (auto &a : k.aspects) aspects.items.push_back(a);
    for (auto &f : k.undefined) undefined.items.push_back(f);
    Json j = Json::map().set("entry", k.entry).set("sub_group_size", k.sub_group_size).set("esimd", k.esimd).set("aspects", aspects).set("args", args).set("undefined", undefined);
    std::printf("%s\n", j.print().c_str());
  }
  return 0;
}

} // namespace

int main(int count, char **words) {
  try {
    std::string first = count > 1 ? words[1] : "";
    if (first == "--help" || first == "-h" || first == "help") return std::fputs(kUsage, stdout) < 0;
    if (first == "--version") return std::printf("nskc %s\n", kVersion) < 0;
    if (first == "gate") return run_gate(count - 2, words + 2);
    if (first == "inspect") return run_inspect(count - 2, words + 2);
    if (first == "library") return run_library(count - 2, words + 2);
    if (first.empty()) {
      std::fputs(kUsage, stderr);
      return 2;
    }
    return run_build(count - 1, words + 1);
  } catch (const Failure &e) {
    std::fprintf(stderr, "nskc: %s\n", e.what());
    return e.code;
  } catch (const std::exception &e) {
    std::fprintf(stderr, "nskc: %s\n", e.what());
    return 1;
  }
}
