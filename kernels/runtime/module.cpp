// Modules and kernels.
// SPDX-License-Identifier: MIT
#include "internal.hpp"
#include "sha256.hpp"

#include <cerrno>
#include <cstring>
#include <fstream>

namespace ns {
namespace {

ns_module *new_module(ns_context &c, ModuleShape shape, Built built, bool holds_context) {
  auto m = std::make_unique<ns_module>();
  m->context = &c;
  m->holds_context = holds_context;
  m->shape = std::move(shape);
  m->built = std::move(built);
  if (holds_context) c.references++;
  return m.release();
}

void check_names(const ModuleShape &shape, const std::string &name, const std::string &variant, const std::string &where) {
  if (shape.name != name || shape.variant != variant) fail(NS_ERROR_FILE, where + ": it describes module " + shape.name + "." + shape.variant + ", not " + name + "." + variant);
}

void check_content(const void *data, size_t bytes, const std::string &expected, const std::string &where) {
  if (sha256(data, bytes) != expected) fail(NS_ERROR_FILE, where + ": damaged (its SHA-256 is not the one in the module description): rebuild the kernels");
}

/// Does the device run this kernel at all?
void check_device(const ns_context &c, const ns_module &m, const KernelShape &k) {
  std::string who = "kernel " + k.name + " (module " + m.shape.name + ")";
  if (k.esimd) {
    if (!c.info.has_esimd) fail(NS_ERROR_UNSUPPORTED, who + " is written for the threads of a graphics card, which " + c.info.name + " is not");
  } else if (k.sub_group_size) {
    std::vector<std::string> sizes;
    bool has = false;
    for (size_t s : c.device.get_info<sycl::info::device::sub_group_sizes>()) {
      has |= s == k.sub_group_size;
      sizes.push_back(std::to_string(s));
    }
    if (!has) fail(NS_ERROR_UNSUPPORTED, who + " needs sub-groups of " + std::to_string(k.sub_group_size) + "; " + c.info.name + " has " + join(sizes));
  }
  if (k.needs_fp64 && !c.info.has_fp64) fail(NS_ERROR_UNSUPPORTED, who + " computes in double, which " + std::string(c.info.name) + " cannot");
  if (k.needs_fp16 && !c.info.has_fp16) fail(NS_ERROR_UNSUPPORTED, who + " computes in half, which " + std::string(c.info.name) + " cannot");
}

} // namespace

std::vector<unsigned char> read_file(const std::string &path) {
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  if (!in) fail(NS_ERROR_FILE, path + ": " + std::strerror(errno));
  auto n = in.tellg();
  if (n < 0) fail(NS_ERROR_FILE, path + ": cannot be read");
  std::vector<unsigned char> bytes(static_cast<size_t>(n));
  in.seekg(0);
  if (!in.read(reinterpret_cast<char *>(bytes.data()), n)) fail(NS_ERROR_FILE, path + ": cannot be read");
  return bytes;
}

void release_kernel(ns_kernel *k) {
  if (!k) return;
  ns_module *m = k->module;
  {
    std::lock_guard lock(m->kernels_mutex);
    if (--k->references != 0) return;
    m->kernels.erase(k->shape->name);
    delete k;
  }
  release_module(m);
}

void release_module(ns_module *m) {
  if (!m || --m->references != 0) return;
  ns_context *c = m->holds_context ? m->context : nullptr;
  delete m;
  ns_context_release(c);
}

ns_kernel *get_kernel(ns_module *m, const std::string &name) {
  std::lock_guard lock(m->kernels_mutex);
  if (auto it = m->kernels.find(name); it != m->kernels.end()) return it->second->references++, it->second;
  const KernelShape *shape = nullptr;
  std::vector<std::string> names;
  for (auto &k : m->shape.kernels) {
    if (k.name == name) shape = &k;
    names.push_back(k.name);
  }
  if (!shape) fail(NS_ERROR_UNKNOWN_KERNEL, "module " + m->shape.name + " has no kernel " + name + "; it has: " + join(names));
  check_device(*m->context, *m, *shape);
  sycl::kernel kernel = m->built.program->kernel(shape->entry);
  uint32_t n = kernel.get_info<sycl::info::kernel::num_args>();
  if (n != shape->args.size())
    fail(NS_ERROR_FILE, "kernel " + name + " (module " + m->shape.name + "): the code takes " + std::to_string(n) + " arguments, the module description says " + std::to_string(shape->args.size()) + ": rebuild the kernels");
  auto *k = new ns_kernel(m, shape, std::move(kernel));
  m->kernels[name] = k;
  m->references++;
  return k;
}

ns_module *load_embedded(ns_context &c, const ns_embedded_module &embedded, bool holds_context) {
  std::string variant = ns_context_variant(&c), name = embedded.name ? embedded.name : "";
  for (size_t i = 0; i < embedded.n_variants; i++) {
    const ns_module_blob &v = embedded.variants[i];
    if (variant != v.variant) continue;
    std::string where = "embedded module " + name + "." + variant;
    ModuleShape shape = parse_module(std::string(v.json, v.json_bytes), where);
    check_names(shape, name, variant, where);
    check_content(v.spirv, v.spirv_bytes, shape.spirv_sha256, where);
    Image native;
    for (size_t j = 0; j < v.n_natives; j++)
      if (!std::strcmp(v.natives[j].architecture, c.info.architecture)) native = {v.natives[j].data, v.natives[j].bytes};
    Built built = build_program(c, name, native, {v.spirv, v.spirv_bytes}, shape.large_registers);
    return new_module(c, std::move(shape), std::move(built), holds_context);
  }
  fail(NS_ERROR_UNSUPPORTED, "embedded module " + name + " has no variant \"" + variant + "\" for " + c.info.name);
}

} // namespace ns

using namespace ns;

extern "C" {

ns_status ns_module_load(ns_context *c, const char *dir, const char *name, ns_module **out) {
  return guarded("loading a module", [&] {
    if (!c || !dir || !name || !out) fail(NS_ERROR_ARGUMENT, "ns_module_load: a null argument");
    std::string module = name, variant = ns_context_variant(c), folder = dir;
    if (module.empty() || module.find('/') != std::string::npos) fail(NS_ERROR_ARGUMENT, "module name \"" + module + "\" is not a plain name");
    std::string where = folder + "/" + module + "." + variant + ".json";
    auto text = read_file(where);
    ModuleShape shape = parse_module(std::string(text.begin(), text.end()), where);
    check_names(shape, module, variant, where);
    std::string spirv_path = folder + "/" + shape.spirv_file;
    auto spirv = read_file(spirv_path);
    check_content(spirv.data(), spirv.size(), shape.spirv_sha256, spirv_path);
    std::vector<unsigned char> native;
    if (auto it = shape.natives.find(c->info.architecture); is_level_zero(c->device) && it != shape.natives.end() && setting("NS_NATIVE") != "0") {
      std::string path = folder + "/" + it->second.file;
      native = read_file(path);
      if (!it->second.sha256.empty()) check_content(native.data(), native.size(), it->second.sha256, path);
    }
    Built built = build_program(*c, module, {native.data(), native.size()}, {spirv.data(), spirv.size()}, shape.large_registers);
    *out = new_module(*c, std::move(shape), std::move(built), true);
  });
}

ns_status ns_module_load_embedded(ns_context *c, const ns_embedded_module *embedded, ns_module **out) {
  return guarded("loading an embedded module", [&] {
    if (!c || !embedded || !out) fail(NS_ERROR_ARGUMENT, "ns_module_load_embedded: a null argument");
    *out = load_embedded(*c, *embedded, true);
  });
}

ns_status ns_embedded_kernel(ns_queue *q, const ns_embedded_module *embedded, const char *kernel_name, ns_kernel **out) {
  return guarded("loading an embedded kernel", [&] {
    if (!q || !embedded || !kernel_name || !out) fail(NS_ERROR_ARGUMENT, "ns_embedded_kernel: a null argument");
    ns_context &c = *q->context;
    std::lock_guard lock(c.embedded_mutex);
    std::pair<const ns_embedded_module *, std::string> key(embedded, kernel_name);
    if (auto it = c.embedded_kernels.find(key); it != c.embedded_kernels.end()) {
      *out = it->second;
      return;
    }
    ns_module *&m = c.embedded[embedded];
    if (!m) m = load_embedded(c, *embedded, false);
    ns_kernel *k = get_kernel(m, kernel_name);
    c.embedded_kernels[key] = k;
    *out = k;
  });
}

void ns_module_release(ns_module *m) {
  guarded("releasing a module", [&] { release_module(m); });
}

const char *ns_module_name(ns_module *m) { return m ? m->shape.name.c_str() : ""; }
const char *ns_module_source(ns_module *m) { return m ? m->built.source : ""; }
size_t ns_module_kernel_count(ns_module *m) { return m ? m->shape.kernels.size() : 0; }
const char *ns_module_kernel_name(ns_module *m, size_t i) { return m && i < m->shape.kernels.size() ? m->shape.kernels[i].name.c_str() : nullptr; }

ns_status ns_kernel_get(ns_module *m, const char *name, ns_kernel **out) {
  return guarded("looking up a kernel", [&] {
    if (!m || !name || !out) fail(NS_ERROR_ARGUMENT, "ns_kernel_get: a null argument");
    *out = get_kernel(m, name);
  });
}

void ns_kernel_release(ns_kernel *k) {
  guarded("releasing a kernel", [&] { release_kernel(k); });
}

const char *ns_kernel_name(ns_kernel *k) { return k ? k->shape->name.c_str() : ""; }
uint32_t ns_kernel_sub_group_size(ns_kernel *k) { return k ? k->shape->sub_group_size : 0; }
size_t ns_kernel_arg_count(ns_kernel *k) { return k ? k->shape->args.size() : 0; }

ns_status ns_kernel_arg(ns_kernel *k, size_t i, uint32_t *kind, uint32_t *size) {
  return guarded("ns_kernel_arg", [&] {
    if (!k || !kind || !size) fail(NS_ERROR_ARGUMENT, "ns_kernel_arg: a null argument");
    if (i >= k->shape->args.size()) fail(NS_ERROR_ARGUMENT, "kernel " + k->shape->name + " has no argument " + std::to_string(i));
    *kind = k->shape->args[i].kind;
    *size = k->shape->args[i].size;
  });
}

} // extern "C"
