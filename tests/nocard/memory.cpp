// Device, host and shared memory: the budget, the counters, and host memory in place of device memory when executing.
// SPDX-License-Identifier: MIT
#include "nocard.hpp"

namespace nocard {
namespace {

enum class Place { Host, Device, Shared };
struct Block {
  size_t bytes;
  Place place;
  ze_device_handle_t device;
};

std::map<uintptr_t, Block> blocks;
std::map<ze_device_handle_t, size_t> used;
std::vector<ze_device_handle_t> cards; // in the driver's order
ze_mem_dditable_t driver;
ze_device_dditable_t device_driver;

/// The budget of a card: its number of NS_NOCARD_VRAM=MiB[,MiB...], or the last one; 0 for none.
size_t budget_of(ze_device_handle_t device) {
  const char *text = setting("NS_NOCARD_VRAM");
  size_t budget = 0;
  for (size_t card = 0; text && *text; card++) {
    char *end = nullptr;
    budget = strtoull(text, &end, 10) << 20;
    if (end == text || !*end || (card < cards.size() && cards[card] == device)) break;
    text = end + 1;
  }
  return budget;
}

ze_result_t get_devices(ze_driver_handle_t handle, uint32_t *count, ze_device_handle_t *devices) {
  Lock lock(mutex);
  ze_result_t result = device_driver.pfnGet(handle, count, devices);
  if (!result && devices) cards.assign(devices, devices + *count);
  return result;
}

/// A card has no more memory than its budget.
ze_result_t memory_properties(ze_device_handle_t device, uint32_t *count, ze_device_memory_properties_t *out) {
  Lock lock(mutex);
  ze_result_t result = device_driver.pfnGetMemoryProperties(device, count, out);
  size_t budget = budget_of(device);
  for (uint32_t i = 0; !result && out && budget && i < *count; i++)
    if (out[i].totalSize > budget) out[i].totalSize = budget;
  return result;
}

ze_result_t alloc_device(ze_context_handle_t context, const ze_device_mem_alloc_desc_t *desc, size_t bytes, size_t alignment,
                         ze_device_handle_t device, void **pointer) {
  Lock lock(mutex);
  const size_t budget = budget_of(device);
  if (budget && used[device] + bytes > budget) {
    counts.refused++;
    return ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY;
  }
  ze_result_t result;
  if (executing) {
    ze_host_mem_alloc_desc_t host = {ZE_STRUCTURE_TYPE_HOST_MEM_ALLOC_DESC, desc ? desc->pNext : nullptr, 0};
    result = driver.pfnAllocHost(context, &host, bytes, alignment, pointer);
  } else {
    result = driver.pfnAllocDevice(context, desc, bytes, alignment, device, pointer);
  }
  if (result) {
    counts.refused++;
    return result;
  }
  blocks[(uintptr_t)*pointer] = {bytes, Place::Device, device};
  used[device] += bytes;
  counts.device_allocs++;
  counts.device += bytes;
  if (counts.device > counts.device_peak) counts.device_peak = counts.device;
  return result;
}

ze_result_t alloc_host(ze_context_handle_t context, const ze_host_mem_alloc_desc_t *desc, size_t bytes, size_t alignment, void **pointer) {
  Lock lock(mutex);
  ze_result_t result = driver.pfnAllocHost(context, desc, bytes, alignment, pointer);
  if (result) return result;
  blocks[(uintptr_t)*pointer] = {bytes, Place::Host, nullptr};
  counts.host_allocs++;
  counts.host += bytes;
  if (counts.host > counts.host_peak) counts.host_peak = counts.host;
  if (bytes > counts.host_biggest) counts.host_biggest = bytes;
  return result;
}

ze_result_t alloc_shared(ze_context_handle_t context, const ze_device_mem_alloc_desc_t *desc, const ze_host_mem_alloc_desc_t *host,
                         size_t bytes, size_t alignment, ze_device_handle_t device, void **pointer) {
  Lock lock(mutex);
  ze_result_t result = executing ? driver.pfnAllocHost(context, host, bytes, alignment, pointer)
                                 : driver.pfnAllocShared(context, desc, host, bytes, alignment, device, pointer);
  if (result) return result;
  blocks[(uintptr_t)*pointer] = {bytes, Place::Shared, device};
  counts.shared_allocs++;
  return result;
}

void forget(void *pointer) {
  auto found = blocks.find((uintptr_t)pointer);
  if (found == blocks.end()) return;
  const Block &block = found->second;
  if (block.place == Place::Device) {
    counts.device -= block.bytes;
    used[block.device] -= block.bytes;
  }
  if (block.place == Place::Host) counts.host -= block.bytes;
  blocks.erase(found);
}

ze_result_t free_memory(ze_context_handle_t context, void *pointer) {
  Lock lock(mutex);
  forget(pointer);
  return driver.pfnFree(context, pointer);
}

ze_result_t free_extended(ze_context_handle_t context, const ze_memory_free_ext_desc_t *desc, void *pointer) {
  Lock lock(mutex);
  forget(pointer);
  return driver.pfnFreeExt(context, desc, pointer);
}

const Block *block_of(const void *pointer) {
  auto next = blocks.upper_bound((uintptr_t)pointer);
  if (next == blocks.begin()) return nullptr;
  --next;
  return (uintptr_t)pointer < next->first + next->second.bytes ? &next->second : nullptr;
}

ze_result_t properties(ze_context_handle_t context, const void *pointer, ze_memory_allocation_properties_t *out, ze_device_handle_t *device) {
  Lock lock(mutex);
  ze_result_t result = driver.pfnGetAllocProperties(context, pointer, out, device);
  if (result || !executing) return result;
  if (const Block *block = block_of(pointer)) {
    out->type = block->place == Place::Device   ? ZE_MEMORY_TYPE_DEVICE
                : block->place == Place::Shared ? ZE_MEMORY_TYPE_SHARED
                                                : ZE_MEMORY_TYPE_HOST;
    if (device && block->place != Place::Host) *device = block->device;
  }
  return result;
}

} // namespace

void wrap(ze_device_dditable_t *table) {
  device_driver = *table;
  replace(table->pfnGet, &get_devices);
  replace(table->pfnGetMemoryProperties, &memory_properties);
}

void wrap(ze_mem_dditable_t *table) {
  driver = *table;
  replace(table->pfnAllocDevice, &alloc_device);
  replace(table->pfnAllocHost, &alloc_host);
  replace(table->pfnAllocShared, &alloc_shared);
  replace(table->pfnFree, &free_memory);
  replace(table->pfnFreeExt, &free_extended);
  replace(table->pfnGetAllocProperties, &properties);
}

} // namespace nocard
