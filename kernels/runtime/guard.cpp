// Big device blocks are checked before anyone uses them: on some drivers two blocks, or two parts of one, have come out on the same memory.
// Every 64 KiB of a new block gets a tag (a random number plus the page's index); then every tag must be there, and no page of the context's other big blocks may hold one.
// A block that fails is restored (its memory may be somebody else's), freed, and asked for again behind a spacer; a few times, then it is an error.
// SPDX-License-Identifier: MIT
#include "internal.hpp"

#include <cstdlib>
#include <cstring>
#include <random>

namespace ns {
namespace {

constexpr size_t page = 64 << 10, smallest = 32 << 20, spacer = 64 << 20;
constexpr int attempts = 4;

/// The three kernels as SPIR-V, put together here so that the runtime needs no file beside it:
///   (u64 *base, u64 *table, u64 nonce, u64 first), i = first + global id, p = base + i * 8192
///   tag: table[i] = *p, *p = nonce + i;   probe: table[i] = *p;   restore: *p = table[i]
std::vector<uint32_t> guard_spirv() {
  std::vector<uint32_t> w = {0x07230203, 0x00010000, 0, 0, 0};
  auto op = [&](uint32_t code, std::initializer_list<uint32_t> operands) {
    w.push_back(static_cast<uint32_t>(operands.size() + 1) << 16 | code);
    w.insert(w.end(), operands);
  };
  enum : uint32_t { t_void = 1, t_u64, t_vector, t_input, t_global, t_function, c_words, v_id, f_tag, f_probe, f_restore, first_free };
  auto entry = [&](uint32_t function, const char *name) {
    std::vector<uint32_t> text((std::strlen(name) + 4) / 4);
    std::memcpy(text.data(), name, std::strlen(name));
    w.push_back(static_cast<uint32_t>(4 + text.size()) << 16 | 15);
    w.insert(w.end(), {6, function});
    w.insert(w.end(), text.begin(), text.end());
    w.push_back(v_id);
  };
  op(17, {4}), op(17, {6}), op(17, {11}); // OpCapability Addresses, Kernel, Int64
  op(14, {2, 2});                         // OpMemoryModel Physical64 OpenCL
  entry(f_tag, "ns_guard_tag"), entry(f_probe, "ns_guard_probe"), entry(f_restore, "ns_guard_restore");
  op(71, {v_id, 11, 28}), op(71, {v_id, 22}); // OpDecorate BuiltIn GlobalInvocationId, Constant
  op(19, {t_void}), op(21, {t_u64, 64, 0}), op(23, {t_vector, t_u64, 3});
  op(32, {t_input, 1, t_vector}), op(32, {t_global, 5, t_u64});
  op(33, {t_function, t_void, t_global, t_global, t_u64, t_u64});
  op(43, {t_u64, c_words, page / 8, 0});
  op(59, {t_input, v_id, 1});
  uint32_t next = first_free;
  for (uint32_t f : {f_tag, f_probe, f_restore}) {
    uint32_t base = next++, table = next++, nonce = next++, first = next++, label = next++, id = next++, x = next++, i = next++, words = next++, p = next++, slot = next++, value = next++, tag = next++;
    op(54, {t_void, f, 0, t_function});
    op(55, {t_global, base}), op(55, {t_global, table}), op(55, {t_u64, nonce}), op(55, {t_u64, first});
    op(248, {label});
    op(61, {t_vector, id, v_id}), op(81, {t_u64, x, id, 0});
    op(128, {t_u64, i, x, first}), op(132, {t_u64, words, i, c_words});
    op(70, {t_global, p, base, words}), op(70, {t_global, slot, table, i}); // OpInBoundsPtrAccessChain
    op(61, {t_u64, value, f == f_restore ? slot : p, 2, 8});
    op(62, {f == f_restore ? p : slot, value, 2, 8});
    if (f == f_tag) op(128, {t_u64, tag, nonce, i}), op(62, {p, tag, 2, 8});
    op(253, {}), op(56, {});
  }
  w[3] = next;
  return w;
}

struct Guard {
  ns_context &context;
  sycl::queue queue;
  sycl::kernel tag, probe, restore;
  uint64_t *table;
  size_t capacity;

  static Program &program(ns_context &c) {
    if (!c.guard_program) {
      auto words = guard_spirv();
      c.guard_program = build_program(c, "guard", {}, {words.data(), words.size() * 4}).program;
    }
    return *c.guard_program;
  }
  Guard(ns_context &c, size_t pages)
      : context(c), queue(c.context, c.device, {sycl::property::queue::in_order{}}), tag(program(c).kernel("ns_guard_tag")), probe(program(c).kernel("ns_guard_probe")),
        restore(program(c).kernel("ns_guard_restore")), table(sycl::malloc_device<uint64_t>(pages, c.device, c.context)), capacity(pages) {
    if (!table) fail(NS_ERROR_MEMORY, "out of memory on " + std::string(c.info.name) + ": no room to check a big block");
  }
  ~Guard() {
    try {
      queue.wait();
      sycl::free(table, context.context);
    } catch (...) {
    }
  }
  Guard(const Guard &) = delete;

  void run(const sycl::kernel &k, void *base, uint64_t *out, uint64_t nonce, uint64_t pages) {
    auto part = [&](uint64_t first, uint64_t count, uint64_t group) {
      if (count)
        queue.submit([&](sycl::handler &h) {
          h.set_arg(0, base), h.set_arg(1, static_cast<void *>(out)), h.set_arg(2, nonce), h.set_arg(3, first);
          h.parallel_for(sycl::nd_range<1>{count, group}, k);
        });
    };
    uint64_t whole = pages / 64 * 64;
    part(0, whole, 64);
    part(whole, pages - whole, 1);
  }
  std::vector<uint64_t> read(size_t pages) {
    std::vector<uint64_t> out(pages);
    queue.memcpy(out.data(), table, pages * 8);
    queue.wait();
    return out;
  }

  bool clean(void *block, size_t bytes, const std::vector<std::pair<void *, size_t>> &others) {
    uint64_t pages = bytes / page;
    std::random_device random;
    uint64_t nonce = (uint64_t(random()) << 32 | random()) & ~uint64_t(0xffffffff);
    run(tag, block, table, nonce, pages);
    std::vector<uint64_t> before = read(pages);
    run(probe, block, table, 0, pages);
    std::vector<uint64_t> tags = read(pages);
    uint64_t right = 0;
    for (uint64_t i = 0; i < pages; i++) right += tags[i] == nonce + i;
    // However pages are shared, each keeps the tag that was written last. None at all means that nothing ran: a driver that only pretends a card, about which there is nothing to find out.
    if (right == 0) return true;
    bool good = right == pages;
    uint64_t used = 0;
    auto look = [&] {
      if (!used) return;
      for (uint64_t v : read(used)) good &= !(v - nonce < pages);
      used = 0;
    };
    for (auto &[p, n] : others) {
      uint64_t theirs = n / page;
      if (used + theirs > capacity) look();
      run(probe, p, table + used, 0, theirs);
      used += theirs;
    }
    look();
    if (!good) {
      queue.memcpy(table, before.data(), pages * 8);
      queue.wait();
      run(restore, block, table, 0, pages);
      queue.wait();
    }
    return good;
  }
};

} // namespace

bool wants_guard(ns_context &c, size_t bytes) {
  std::string mode = setting("NS_GUARD");
  if (bytes < smallest || mode == "off") return false;
  return mode == "always" || (is_level_zero(c.device) && c.info.device_class == NS_CLASS_GPU);
}

void *guarded_device_memory(ns_context &c, size_t bytes) {
  std::vector<std::pair<void *, size_t>> others;
  size_t most = bytes / page;
  {
    std::shared_lock lock(c.blocks_mutex);
    for (auto &[p, b] : c.blocks)
      if (b.guarded) {
        others.emplace_back(reinterpret_cast<void *>(p), b.bytes);
        most = std::max(most, b.bytes / page);
      }
  }
  struct Held {
    ns_context &c;
    std::vector<void *> blocks;
    ~Held() {
      for (void *p : blocks) guarded("freeing a spacer", [&] { sycl::free(p, c.context); });
    }
  } spacers{c, {}};
  long injected = std::atol(setting("NS_GUARD_INJECT").c_str());
  for (int attempt = 0; attempt < attempts; attempt++) {
    void *p = sycl::aligned_alloc_device(64, bytes, c.device, c.context);
    if (!p) return nullptr;
    try {
      if (Guard(c, std::max(most, size_t(1) << 16)).clean(p, bytes, others) && attempt >= injected) return p;
    } catch (...) {
      sycl::free(p, c.context);
      throw;
    }
    sycl::free(p, c.context);
    if (void *s = sycl::malloc_device(spacer << attempt, c.device, c.context)) spacers.blocks.push_back(s);
  }
  fail(NS_ERROR_MEMORY, "the driver of " + std::string(c.info.name) + " gave memory that is used twice for a block of " + size_text(bytes) + ", " + std::to_string(attempts) + " times: restart the program");
}

} // namespace ns
