// The few Level Zero types and functions that libns_sycl uses, declared here because the oneAPI runtime comes without that header.
// Names, values and layouts follow the Level Zero 1.x specification; the handle types are SYCL's forward declarations.
// SPDX-License-Identifier: MIT
#pragma once
#include <cstddef>
#include <cstdint>
#include <sycl/sycl.hpp>
#include <sycl/ext/oneapi/backend/level_zero.hpp>

namespace ns::ze {
using result = int32_t; // 0 is success
typedef struct module_build_log_t *module_build_log;

constexpr uint32_t type_queue_group_properties = 0x6, type_queue_desc = 0xe, type_module_desc = 0x1b, type_kernel_desc = 0x1d;
constexpr uint32_t format_spirv = 0, format_native = 1;
constexpr uint32_t group_compute = 1, group_copy = 2, queue_in_order = 2, queue_asynchronous = 2;

struct module_desc {
  uint32_t type;
  const void *next;
  uint32_t format;
  size_t bytes;
  const uint8_t *data;
  const char *flags;
  const void *constants;
};
struct kernel_desc {
  uint32_t type;
  const void *next;
  uint32_t flags;
  const char *name;
};
struct queue_group_properties {
  uint32_t type;
  void *next;
  uint32_t flags;
  size_t max_fill_pattern;
  uint32_t queues;
};
struct queue_desc {
  uint32_t type;
  const void *next;
  uint32_t ordinal, index, flags, mode, priority;
};

using module_create = result (*)(ze_context_handle_t, ze_device_handle_t, const module_desc *, ze_module_handle_t *, module_build_log *);
using module_destroy = result (*)(ze_module_handle_t);
using module_get_native = result (*)(ze_module_handle_t, size_t *, uint8_t *);
using log_get_string = result (*)(module_build_log, size_t *, char *);
using log_destroy = result (*)(module_build_log);
using kernel_create = result (*)(ze_module_handle_t, const kernel_desc *, ze_kernel_handle_t *);
using kernel_destroy = result (*)(ze_kernel_handle_t);
using queue_groups = result (*)(ze_device_handle_t, uint32_t *, queue_group_properties *);
using list_create_immediate = result (*)(ze_context_handle_t, ze_device_handle_t, const queue_desc *, ze_command_list_handle_t *);
} // namespace ns::ze
