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

const size_t budget = setting("NS_NOCARD_VRAM") ? strtoull(setting("NS_NOCARD_VRAM"), nullptr, 10) << 20 : 0;
std::map<uintptr_t, Block> blocks;
std::map<ze_device_handle_t, size_t> used;
ze_mem_dditable_t driver;

ze_result_t alloc_device(ze_context_handle_t context, const ze_device_mem_alloc_desc_t *desc, size_t bytes, size_t alignment,
                         ze_device_handle_t device, void **pointer) {
  Lock lock(mutex);
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
