// The exported entry points: the loader asks for tables of functions, the wrapped driver fills them, some slots are replaced.
// Every table that is not exported here the loader finds in the wrapped driver, which this library depends on.
// SPDX-License-Identifier: MIT
#include "nocard.hpp"
#include <dlfcn.h>

namespace nocard {
namespace {

void *driver_function(const char *name) {
  static void *const driver = dlopen("libze_intel_gpu.so.1", RTLD_NOW | RTLD_NOLOAD);
  void *function = driver ? dlsym(driver, name) : nullptr;
  if (!function) {
    fprintf(stderr, "nocard: the driver has no %s\n", name);
    abort();
  }
  return function;
}

template <typename Table> ze_result_t fill_table(const char *name, ze_api_version_t version, Table *table) {
  auto fill = (ze_result_t(*)(ze_api_version_t, Table *))driver_function(name);
  ze_result_t result = fill(version, table);
  if (!result) wrap(table);
  return result;
}

// Residency calls and event queries fail in the mode without a card; a submission is always complete.
ze_result_t resident(ze_context_handle_t, ze_device_handle_t, void *, size_t) { return ZE_RESULT_SUCCESS; }

ze_event_dditable_t event_driver;

ze_result_t wait_event(ze_event_handle_t event, uint64_t timeout) {
  counts.event_waits++;
  return event_driver.pfnHostSynchronize(event, timeout);
}

ze_result_t query_event(ze_event_handle_t) {
  counts.event_polls++;
  return ZE_RESULT_SUCCESS;
}

/// Always 10 us of the 12 MHz clock.
ze_result_t query_timestamp(ze_event_handle_t, ze_kernel_timestamp_result_t *result) {
  result->global.kernelStart = result->context.kernelStart = 12000;
  result->global.kernelEnd = result->context.kernelEnd = 12120;
  return ZE_RESULT_SUCCESS;
}

} // namespace

void wrap(ze_context_dditable_t *table) {
  replace(table->pfnMakeMemoryResident, &resident);
  replace(table->pfnEvictMemory, &resident);
}

void wrap(ze_event_dditable_t *table) {
  event_driver = *table;
  replace(table->pfnHostSynchronize, &wait_event);
  replace(table->pfnQueryStatus, &query_event);
  replace(table->pfnQueryKernelTimestamp, &query_timestamp);
}

} // namespace nocard

#define TABLE(NAME, TYPE)                                                                                                                  \
  extern "C" __attribute__((visibility("default"))) ze_result_t NAME(ze_api_version_t version, TYPE *table) {                              \
    return nocard::fill_table(#NAME, version, table);                                                                                      \
  }

TABLE(zeGetContextProcAddrTable, ze_context_dditable_t)
TABLE(zeGetDeviceProcAddrTable, ze_device_dditable_t)
TABLE(zeGetMemProcAddrTable, ze_mem_dditable_t)
TABLE(zeGetCommandListProcAddrTable, ze_command_list_dditable_t)
TABLE(zeGetCommandListExpProcAddrTable, ze_command_list_exp_dditable_t)
TABLE(zeGetCommandQueueProcAddrTable, ze_command_queue_dditable_t)
TABLE(zeGetModuleProcAddrTable, ze_module_dditable_t)
TABLE(zeGetKernelProcAddrTable, ze_kernel_dditable_t)
TABLE(zeGetEventProcAddrTable, ze_event_dditable_t)
TABLE(zeGetGraphProcAddrTable, ze_graph_dditable_t)
TABLE(zeGetExecutableGraphProcAddrTable, ze_executable_graph_dditable_t)
