// nskc library: C launchers for every kernel of a kind, with the modules' bytes inside, on top of ns.h.
// SPDX-License-Identifier: MIT
#include "commands.hpp"
#include "json.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>

namespace nskc {
namespace {

struct Blob {
  std::string label, file;
  uint64_t bytes;
};
struct Variant {
  std::string name;  // gpu, cpu
  Json json;
  Blob description, spirv;
  std::vector<std::pair<std::string, Blob>> natives;
};
struct Module {
  std::string name;
  std::vector<Variant> variants;
};

std::string identifier(const std::string &s) {
  std::string out = s;
  for (char &c : out)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  return out;
}

std::vector<Module> read_modules(const std::string &dir) {
  std::map<std::string, Module> modules;
  int blobs = 0;
  auto blob = [&](const std::string &file, const std::string &hash) {
    if (file.find('/') != std::string::npos || file.find('"') != std::string::npos || file.find('\\') != std::string::npos) fail(join(dir, file) + ": not a plain file name");
    Bytes b = read_bytes(join(dir, file));
    if (!hash.empty() && sha256(b) != hash) fail(join(dir, file) + ": is not the file its module description was made with: build the kernels again");
    return Blob{"ns_blob_" + std::to_string(blobs++), file, b.size()};
  };
  for (auto &name : list_folder(dir)) {
    if (!ends_with(name, ".json")) continue;
    Variant v;
    v.json = parse_json(read_text(join(dir, name)), join(dir, name));
    if (v.json.at("format", Json::number).value != 1) fail(join(dir, name) + ": of another format than 1");
    std::string module = v.json.at("module", Json::text).string;
    v.name = v.json.at("variant", Json::text).string;
    if (name != module + "." + v.name + ".json") fail(join(dir, name) + ": describes module " + module + ", variant " + v.name);
    v.description = blob(name, "");
    const Json &spirv = v.json.at("spirv", Json::object);
    v.spirv = blob(spirv.at("file", Json::text).string, spirv.at("sha256", Json::text).string);
    if (const Json *native = v.json.get("native"))
      for (auto &n : native->members) v.natives.emplace_back(n.first, blob(n.second.at("file", Json::text).string, n.second.at("sha256", Json::text).string));
    modules[module].name = module;
    modules[module].variants.push_back(std::move(v));
  }
  if (modules.empty()) fail(dir + ": no module in it");
  std::vector<Module> out;
  for (auto &m : modules) out.push_back(std::move(m.second));
  return out;
}

/// "const f32 *" as C sees it; "" when it is no type that C knows.
std::string c_pointer(const std::string &source) {
  static const std::map<std::string, const char *> known = {
      {"f32", "float"},        {"float", "float"},        {"f16", "uint16_t"},       {"half", "uint16_t"},      {"u8", "uint8_t"},       {"i8", "int8_t"},        {"u16", "uint16_t"},
      {"i16", "int16_t"},      {"u32", "uint32_t"},       {"i32", "int32_t"},        {"u64", "uint64_t"},       {"i64", "int64_t"},      {"int", "int32_t"},      {"unsigned int", "uint32_t"},
      {"unsigned", "uint32_t"}, {"char", "char"},         {"signed char", "int8_t"}, {"unsigned char", "uint8_t"}, {"short", "int16_t"}, {"unsigned short", "uint16_t"}, {"long", "int64_t"},
      {"unsigned long", "uint64_t"}, {"uint8_t", "uint8_t"}, {"int8_t", "int8_t"},   {"uint16_t", "uint16_t"},  {"int16_t", "int16_t"},  {"uint32_t", "uint32_t"}, {"int32_t", "int32_t"},
      {"uint64_t", "uint64_t"}, {"int64_t", "int64_t"},   {"void", "void"}};
  size_t star = source.find('*');
  if (star == std::string::npos || source.find('*', star + 1) != std::string::npos) return "";
  std::string base = trim(source.substr(0, star)), constness;
  if (starts_with(base, "const ")) constness = "const ", base = trim(base.substr(6));
  else if (ends_with(base, " const")) constness = "const ", base = trim(base.substr(0, base.size() - 6));
  if (size_t scope = base.rfind("::"); scope != std::string::npos) base = base.substr(scope + 2);
  auto k = known.find(base);
  return constness + (k == known.end() ? "void" : k->second) + " *";
}

bool is_unsigned(const std::string &source) {
  std::string t = source.substr(source.rfind(':') == std::string::npos ? 0 : source.rfind(':') + 1);
  return starts_with(t, "u") || t == "size_t";
}

struct Parameter {
  std::string declaration, expression, note;
};
Parameter parameter(const Json &arg, size_t index, std::set<std::string> &names) {
  std::string kind = arg.at("kind", Json::text).string;
  const Json *named = arg.get("name"), *source = arg.get("source"), *typed = arg.get("type"), *sized = arg.get("size");
  std::string name = named ? named->string : "arg" + std::to_string(index), text = source ? source->string : "";
  static const std::set<std::string> reserved = {"queue", "range", "args", "register", "auto", "default", "int", "float", "restrict", "inline", "static", "class", "new", "template", "this", "operator"};
  if (reserved.count(name)) name += "_";
  while (!names.insert(name).second) name += "_";
  if (kind == "pointer") {
    std::string t = c_pointer(text);
    return {(t.empty() ? "const void *" : t) + name, "ns_pointer(" + name + ")", text.find("16 *") != std::string::npos || text.find("half") != std::string::npos ? name + ": 16-bit values" : ""};
  }
  if (kind == "local") return {"uint32_t " + name + "_bytes", "ns_local(" + name + "_bytes)", name + "_bytes: local memory of a work-group"};
  std::string size = std::to_string(sized ? sized->value : 0);
  if (kind == "struct") return {"const void *" + name, "ns_bytes(" + name + ", " + size + ")", name + ": address of the " + (text.empty() ? "struct" : text) + ", " + size + " bytes"};
  std::string type = typed ? typed->string : "";
  if (type == "f32") return {"float " + name, "ns_f32(" + name + ")", ""};
  if (type == "f16") return {"uint16_t " + name, "bits(NS_ARG_FLOAT, 2, " + name + ")", name + ": the bits of a half"};
  if (type.size() > 1 && type[0] == 'i') {
    std::string width = type.substr(1);
    bool u = is_unsigned(text);
    std::string declared = (u ? "uint" : "int") + width + "_t " + name;
    if (width == "32" || width == "64") return {declared, std::string("ns_") + (u ? "u" : "i") + width + "(" + name + ")", ""};
    return {declared, "bits(NS_ARG_INT, " + size + ", (uint" + width + "_t)" + name + ")", ""};
  }
  fail("an argument of unknown type \"" + type + "\"");
}

std::string comment_block(const std::string &text) {
  std::string out = "/* ", line;
  for (char c : text) {
    if (c == '\n') out += "\n * ";
    else if (c == '/' && !out.empty() && out.back() == '*') out += " /";
    else out += c;
  }
  return out + " */\n";
}

struct Text {
  std::string header, source;
};

Text generate(const std::string &kind, const std::vector<Module> &modules) {
  std::string guard = "NEXTSYCL_" + identifier(kind) + "_H";
  std::transform(guard.begin(), guard.end(), guard.begin(), [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  std::string library = "libnextsycl-" + kind + ".so";
  Text t;
  t.header = "/* nextsycl-" + kind + ".h - the kernels of " + library + " as C functions. Written by nskc.\n"
             " *\n"
             " * Every function starts one kernel on the queue and returns at once: NS_OK, or an error that ns_last_error() explains. Pointers are unified shared memory of the queue's\n"
             " * context (ns_alloc, or what the owner of a sycl::queue allocated). A queue comes from ns_queue_create, or from ns_queue_from_sycl for a sycl::queue of one's own.\n"
             " * The range is work-items in all and in one work-group, {x, y, z} as in ns_launch; most kernels count along x only: {n, 1, 1}.\n"
             " *\n * SPDX-License-Identifier: MIT */\n"
             "#ifndef " + guard + "\n#define " + guard + "\n\n#include \"ns.h\"\n\n#ifdef __cplusplus\nextern \"C\" {\n#endif\n\n"
             "#ifndef NS_RANGE_DEFINED\n#define NS_RANGE_DEFINED\n/* How many work-items: in all, and in a work-group (global is a multiple of local). */\n"
             "typedef struct ns_range { size_t global[3], local[3]; } ns_range;\n#endif\n";
  t.source = "/* Launchers and embedded modules of " + library + ". Written by nskc; compile it in the folder of the modules (.incbin). */\n"
             "#include \"nextsycl-" + kind + ".h\"\n\n"
             "#define BLOB(label, file) \\\n"
             "  extern const unsigned char label[] __attribute__((visibility(\"hidden\"))); \\\n"
             "  __asm__(\".pushsection .rodata\\n.balign 64\\n\" #label \":\\n.incbin \\\"\" file \"\\\"\\n.byte 0\\n.popsection\\n\")\n\n";
  std::map<std::string, int> users;
  for (auto &m : modules) {
    std::set<std::string> own;
    for (auto &v : m.variants)
      for (auto &k : v.json.at("kernels", Json::list).items) own.insert(k.at("name", Json::text).string);
    for (auto &n : own) users[n]++;
  }
  std::string bodies;
  for (auto &m : modules) {
    std::string id = "module_" + identifier(m.name), lists, variants;
    for (auto &v : m.variants) {
      for (const Blob *b : {&v.description, &v.spirv}) t.source += "BLOB(" + b->label + ", \"" + b->file + "\");\n";
      std::string natives = "0";
      if (!v.natives.empty()) {
        natives = "natives_" + identifier(m.name) + "_" + v.name;
        lists += "static const ns_native_blob " + natives + "[] = {\n";
        for (auto &n : v.natives) {
          t.source += "BLOB(" + n.second.label + ", \"" + n.second.file + "\");\n";
          lists += "  {\"" + n.first + "\", " + n.second.label + ", " + std::to_string(n.second.bytes) + "},\n";
        }
        lists += "};\n";
      }
      variants += "  {\"" + v.name + "\", (const char *)" + v.description.label + ", " + std::to_string(v.description.bytes) + ", " + v.spirv.label + ", " + std::to_string(v.spirv.bytes) + ", " + natives + ", " +
                  std::to_string(v.natives.size()) + "},\n";
    }
    t.source += lists + "static const ns_module_blob variants_" + identifier(m.name) + "[] = {\n" + variants + "};\n" + "static const ns_embedded_module " + id + " = {\"" + m.name + "\", variants_" +
                identifier(m.name) + ", " + std::to_string(m.variants.size()) + "};\n\n";
    t.header += "\n/* ---------------------------------------------------------------- module " + m.name + " */\n";
    std::map<std::string, std::pair<const Json *, std::string>> kernels;  // name -> kernel, variant it is only in
    for (auto &v : m.variants)
      for (auto &k : v.json.at("kernels", Json::list).items) {
        std::string name = k.at("name", Json::text).string;
        auto have = kernels.find(name);
        if (have == kernels.end()) {
          kernels[name] = {&k, m.variants.size() > 1 ? v.name : ""};
          continue;
        }
        auto shapes = [](const Json &j) {
          std::string s;
          for (auto &a : j.at("args", Json::list).items) {
            const Json *size = a.get("size"), *type = a.get("type");
            s += a.at("kind", Json::text).string + (size ? std::to_string(size->value) : "") + (type ? type->string : "") + ",";
          }
          return s;
        };
        if (shapes(k) != shapes(*have->second.first)) fail("kernel " + name + " of module " + m.name + " takes other arguments in variant " + v.name);
        have->second.second.clear();
      }
    for (auto &[name, found] : kernels) {
      const Json &k = *found.first;
      std::string function = "ns_" + identifier(kind) + "_" + (users[name] > 1 ? identifier(m.name) + "_" : "") + identifier(name);
      std::string parameters = "ns_queue *queue, const ns_range *range", values, notes;
      std::set<std::string> names;
      size_t index = 0;
      for (auto &a : k.at("args", Json::list).items) {
        Parameter p = parameter(a, index++, names);
        parameters += ", " + p.declaration;
        values += (values.empty() ? "" : ", ") + p.expression;
        if (!p.note.empty()) notes += "\n" + p.note;
      }
      const Json *comment = k.get("comment");
      std::string doc = comment ? comment->string : "Kernel " + name + " of module " + m.name + ".";
      if (!found.second.empty()) doc += "\nOnly on devices of class " + found.second + ".";
      t.header += "\n" + comment_block(doc + notes) + "NS_API ns_status " + function + "(" + parameters + ");\n";
      bodies += "ns_status " + function + "(" + parameters + ") {\n";
      if (index) bodies += "  const ns_arg args[] = {" + values + "};\n";
      bodies += "  return start(queue, range, &" + id + ", \"" + name + "\", " + (index ? "args" : "0") + ", " + std::to_string(index) + ");\n}\n";
    }
  }
  t.header += "\n#ifdef __cplusplus\n}\n#endif\n#endif\n";
  t.source += "static ns_status start(ns_queue *queue, const ns_range *range, const ns_embedded_module *module, const char *name, const ns_arg *args, size_t n_args) {\n"
              "  ns_kernel *kernel = 0;\n"
              "  ns_status status = ns_embedded_kernel(queue, module, name, &kernel);\n"
              "  if (status != NS_OK) return status;\n"
              "  return ns_launch(queue, kernel, range ? range->global : 0, range ? range->local : 0, args, n_args);\n"
              "}\n";
  if (bodies.find("bits(") != std::string::npos)
    t.source += "static ns_arg bits(uint32_t kind, uint32_t size, uint64_t value) { ns_arg a; a.kind = kind; a.size = size; a.value.bits = value; a.bytes_used = 0; return a; }\n";
  t.source += "\n" + bodies;
  return t;
}

} // namespace

int library(const LibraryOptions &o) {
  if (o.kind.empty() || !std::all_of(o.kind.begin(), o.kind.end(), [](unsigned char c) { return std::isalnum(c) || c == '-' || c == '_'; })) throw Failure("--kind is a word of letters, digits, - and _", 2);
  std::vector<Module> modules = read_modules(o.dir);
  Text t = generate(o.kind, modules);
  make_folders(o.out);
  std::string base = "nextsycl-" + o.kind, library = join(o.out, "lib" + base + ".so"), key_file = join(o.out, "." + base + ".key");
  write_file(join(o.out, base + ".h"), t.header);
  write_file(join(o.out, base + ".c"), t.source);
  if (o.link.empty()) return 0;
  const char *cxx = std::getenv("CXX");
  std::vector<std::string> command = program_words(cxx && *cxx ? cxx : "g++");
  std::string include = absolute_path(o.include.empty() ? o.link : o.include), link = absolute_path(o.link), out = absolute_path(o.out);
  if (!is_file(join(include, "ns.h"))) fail(join(include, "ns.h") + " is missing: --include names the folder of ns.h");
  Sha256 hash;
  hash.text(kVersion).text(t.header).text(t.source).text(command[0]).text(read_text(join(include, "ns.h")));
  // The descriptions hold the hashes of all other files.
  for (auto &m : modules)
    for (auto &v : m.variants) hash.text(read_text(join(o.dir, v.description.file)));
  std::string key = hash.hex();
  if (is_file(library) && is_file(key_file) && trim(read_text(key_file)) == key) return 0;
  std::remove(key_file.c_str());
  TemporaryFolder folder(o.out);
  std::string fresh = join(absolute_path(folder.path()), "lib" + base + ".so");
  for (const char *w : {"-x", "c", "-std=c11", "-O2", "-g0", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-shared", "-Wl,-z,defs", "-Wl,-z,now", "-Wl,--enable-new-dtags", "-Wl,-rpath,$ORIGIN"}) command.push_back(w);
  for (const std::string &w : {"-Wl,-soname,lib" + base + ".so", "-I" + out, "-I" + include, "-ffile-prefix-map=" + out + "=.", std::string("-o"), fresh, join(out, base + ".c"), "-L" + link, std::string("-l:libns_sycl.so")}) command.push_back(w);
  // In the modules' folder, where .incbin finds them.
  ProgramResult p = run_program(command, absolute_path(o.dir));
  if (p.status != 0) fail("lib" + base + ".so: the C++ compiler (" + command[0] + ") failed: " + trim(p.errors));
  if (!trim(p.errors).empty()) std::fprintf(stderr, "%s\n", trim(p.errors).c_str());
  if (std::rename(fresh.c_str(), library.c_str()) != 0) fail(library + ": cannot be written");
  write_file(key_file, key + "\n");
  size_t kernels = 0;
  for (auto &m : modules) kernels += m.variants[0].json.at("kernels", Json::list).items.size();
  std::printf("lib%s.so: %zu modules, %zu kernels\n", base.c_str(), modules.size(), kernels);
  return 0;
}

} // namespace nskc
