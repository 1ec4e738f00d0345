// Command lists, queues and graphs: what is appended is carried out at once, or when its list or graph runs.
// SPDX-License-Identifier: MIT
#include "nocard.hpp"

namespace nocard {
namespace {

struct List {
  bool immediate = false;
  std::vector<Operation> operations;
  std::map<uint64_t, size_t> updatable; // id of an updatable command -> its operation
  uint64_t next_id = 0;
  bool has_next_id = false;
  bool capturing = false;
  std::vector<Operation> captured;
  void *capture_target = nullptr;
};

std::map<void *, List> lists;
std::map<void *, std::vector<Operation>> graphs, instances;
ze_command_list_dditable_t driver;
ze_command_list_exp_dditable_t exp_driver;
ze_command_queue_dditable_t queue_driver;
ze_graph_dditable_t graph_driver;
ze_executable_graph_dditable_t instance_driver;

void add(void *handle, Operation &&operation) {
  if (!executing) return;
  List &list = lists[handle];
  if (list.capturing) {
    list.captured.push_back(std::move(operation));
  } else if (list.immediate) {
    carry_out(operation);
  } else {
    if (list.has_next_id) list.updatable[list.next_id] = list.operations.size();
    list.has_next_id = false;
    list.operations.push_back(std::move(operation));
  }
}

void run_lists(uint32_t count, ze_command_list_handle_t *handles) {
  counts.graph_runs++;
  if (!executing) return;
  for (uint32_t i = 0; i < count; i++)
    for (auto &operation : lists[handles[i]].operations) carry_out(operation);
}

// ---- lists

ze_result_t create(ze_context_handle_t context, ze_device_handle_t device, const ze_command_list_desc_t *desc, ze_command_list_handle_t *handle) {
  Lock lock(mutex);
  ze_result_t result = driver.pfnCreate(context, device, desc, handle);
  if (!result) lists[*handle] = List{};
  return result;
}

ze_result_t create_immediate(ze_context_handle_t context, ze_device_handle_t device, const ze_command_queue_desc_t *desc,
                             ze_command_list_handle_t *handle) {
  Lock lock(mutex);
  ze_result_t result = driver.pfnCreateImmediate(context, device, desc, handle);
  if (!result) {
    lists[*handle] = List{};
    lists[*handle].immediate = true;
  }
  return result;
}

ze_result_t destroy(ze_command_list_handle_t handle) {
  Lock lock(mutex);
  lists.erase(handle);
  return driver.pfnDestroy(handle);
}

ze_result_t reset(ze_command_list_handle_t handle) {
  Lock lock(mutex);
  lists[handle].operations.clear();
  lists[handle].updatable.clear();
  return driver.pfnReset(handle);
}

Operation copy_of(void *target, const void *source, size_t bytes) {
  Operation operation{Operation::Kind::Copy};
  operation.target = target;
  operation.source = source;
  operation.bytes = bytes;
  return operation;
}

Operation fill_of(void *target, const void *pattern, size_t pattern_bytes, size_t bytes) {
  Operation operation{Operation::Kind::Fill};
  operation.target = target;
  operation.bytes = bytes;
  operation.pattern.assign((const unsigned char *)pattern, (const unsigned char *)pattern + pattern_bytes);
  return operation;
}

ze_result_t copy(ze_command_list_handle_t list, void *target, const void *source, size_t bytes, ze_event_handle_t signal, uint32_t count,
                 ze_event_handle_t *waits) {
  Lock lock(mutex);
  counts.copies++;
  ze_result_t result = driver.pfnAppendMemoryCopy(list, target, source, bytes, signal, count, waits);
  if (!result) add(list, copy_of(target, source, bytes));
  return result;
}

ze_result_t copy_extended(ze_command_list_handle_t list, void *target, const void *source, size_t bytes, const void *next,
                          ze_event_handle_t signal, uint32_t count, ze_event_handle_t *waits) {
  Lock lock(mutex);
  counts.copies++;
  ze_result_t result = driver.pfnAppendMemoryCopyWithParameters(list, target, source, bytes, next, signal, count, waits);
  if (!result) add(list, copy_of(target, source, bytes));
  return result;
}

ze_result_t fill(ze_command_list_handle_t list, void *target, const void *pattern, size_t pattern_bytes, size_t bytes,
                 ze_event_handle_t signal, uint32_t count, ze_event_handle_t *waits) {
  Lock lock(mutex);
  counts.fills++;
  ze_result_t result = driver.pfnAppendMemoryFill(list, target, pattern, pattern_bytes, bytes, signal, count, waits);
  if (!result) add(list, fill_of(target, pattern, pattern_bytes, bytes));
  return result;
}

ze_result_t fill_extended(ze_command_list_handle_t list, void *target, const void *pattern, size_t pattern_bytes, size_t bytes,
                          const void *next, ze_event_handle_t signal, uint32_t count, ze_event_handle_t *waits) {
  Lock lock(mutex);
  counts.fills++;
  ze_result_t result = driver.pfnAppendMemoryFillWithParameters(list, target, pattern, pattern_bytes, bytes, next, signal, count, waits);
  if (!result) add(list, fill_of(target, pattern, pattern_bytes, bytes));
  return result;
}

ze_result_t launch(ze_command_list_handle_t list, ze_kernel_handle_t handle, const ze_group_count_t *groups, ze_event_handle_t signal,
                   uint32_t count, ze_event_handle_t *waits) {
  Lock lock(mutex);
  counts.launches++;
  ze_result_t result = driver.pfnAppendLaunchKernel(list, handle, groups, signal, count, waits);
  if (result || !executing) return result;
  Operation operation{Operation::Kind::Launch};
  operation.kernel = kernel_of(handle);
  operation.count = *groups;
  if (operation.kernel) {
    operation.group = operation.kernel->group;
    operation.args = operation.kernel->args;
  }
  add(list, std::move(operation));
  return result;
}

ze_result_t launch_with_arguments(ze_command_list_handle_t list, ze_kernel_handle_t handle, ze_group_count_t groups, ze_group_size_t size,
                                  void **args, const void *next, ze_event_handle_t signal, uint32_t count, ze_event_handle_t *waits) {
  Lock lock(mutex);
  counts.launches++;
  ze_result_t result = driver.pfnAppendLaunchKernelWithArguments(list, handle, groups, size, args, next, signal, count, waits);
  if (result || !executing) return result;
  Operation operation{Operation::Kind::Launch};
  operation.kernel = kernel_of(handle);
  operation.count = groups;
  operation.group = size;
  if (operation.kernel) {
    const auto &parameters = operation.kernel->parameters();
    const unsigned char zero[8] = {};
    for (size_t i = 0; i < parameters.size(); i++) {
      const size_t bytes = parameters[i].kind == ArgKind::Value ? parameters[i].size : 8;
      const unsigned char *value = args[i] ? (const unsigned char *)args[i] : zero;
      operation.args.emplace_back(value, value + bytes);
    }
  }
  add(list, std::move(operation));
  return result;
}

ze_result_t wait_list(ze_command_list_handle_t handle, uint64_t timeout) {
  counts.list_waits++;
  return driver.pfnHostSynchronize(handle, timeout);
}

// ---- lists inside lists, and updates of their commands

ze_result_t append_lists(ze_command_list_handle_t handle, uint32_t count, ze_command_list_handle_t *appended, ze_event_handle_t signal,
                         uint32_t waits_count, ze_event_handle_t *waits) {
  Lock lock(mutex);
  ze_result_t result = exp_driver.pfnImmediateAppendCommandListsExp(handle, count, appended, signal, waits_count, waits);
  if (!result) run_lists(count, appended);
  return result;
}

ze_result_t keep_id(ze_result_t result, ze_command_list_handle_t handle, const uint64_t *id) {
  if (!result) {
    lists[handle].next_id = *id;
    lists[handle].has_next_id = true;
  }
  return result;
}

ze_result_t next_id(ze_command_list_handle_t handle, const ze_mutable_command_id_exp_desc_t *desc, uint64_t *id) {
  Lock lock(mutex);
  return keep_id(exp_driver.pfnGetNextCommandIdExp(handle, desc, id), handle, id);
}

ze_result_t next_id_with_kernels(ze_command_list_handle_t handle, const ze_mutable_command_id_exp_desc_t *desc, uint32_t count,
                                 ze_kernel_handle_t *kernels, uint64_t *id) {
  Lock lock(mutex);
  return keep_id(exp_driver.pfnGetNextCommandIdWithKernelsExp(handle, desc, count, kernels, id), handle, id);
}

ze_result_t update(ze_command_list_handle_t handle, const ze_mutable_commands_exp_desc_t *desc) {
  Lock lock(mutex);
  ze_result_t result = exp_driver.pfnUpdateMutableCommandsExp(handle, desc);
  if (result || !executing) return result;
  List &list = lists[handle];
  // Every kind of change begins with the same three members: type, next, command.
  for (auto *change = (const ze_mutable_kernel_argument_exp_desc_t *)desc->pNext; change;
       change = (const ze_mutable_kernel_argument_exp_desc_t *)change->pNext) {
    auto found = list.updatable.find(change->commandId);
    if (found == list.updatable.end()) continue;
    Operation &operation = list.operations[found->second];
    if (change->stype == ZE_STRUCTURE_TYPE_MUTABLE_KERNEL_ARGUMENT_EXP_DESC) {
      if (change->argIndex < operation.args.size() && change->pArgValue) {
        Bytes &arg = operation.args[change->argIndex];
        memcpy(arg.data(), change->pArgValue, arg.size());
      }
    } else if (change->stype == ZE_STRUCTURE_TYPE_MUTABLE_GROUP_COUNT_EXP_DESC) {
      if (auto *groups = ((const ze_mutable_group_count_exp_desc_t *)change)->pGroupCount) operation.count = *groups;
    } else if (change->stype == ZE_STRUCTURE_TYPE_MUTABLE_GROUP_SIZE_EXP_DESC) {
      auto *size = (const ze_mutable_group_size_exp_desc_t *)change;
      operation.group = {size->groupSizeX, size->groupSizeY, size->groupSizeZ};
    }
  }
  return result;
}

ze_result_t execute(ze_command_queue_handle_t queue, uint32_t count, ze_command_list_handle_t *executed, ze_fence_handle_t fence) {
  Lock lock(mutex);
  ze_result_t result = queue_driver.pfnExecuteCommandLists(queue, count, executed, fence);
  if (!result) run_lists(count, executed);
  return result;
}

ze_result_t wait_queue(ze_command_queue_handle_t queue, uint64_t timeout) {
  counts.queue_waits++;
  return queue_driver.pfnSynchronize(queue, timeout);
}

// ---- the driver's own graphs (native recording)

void start_capture(ze_command_list_handle_t handle, void *target) {
  List &list = lists[handle];
  list.capturing = true;
  list.captured.clear();
  list.capture_target = target;
}

ze_result_t begin_capture(ze_command_list_handle_t handle, const void *next) {
  Lock lock(mutex);
  ze_result_t result = driver.pfnBeginGraphCaptureExt(handle, next);
  if (!result) start_capture(handle, nullptr);
  return result;
}

ze_result_t begin_capture_into(ze_command_list_handle_t handle, ze_graph_handle_t graph, const void *next) {
  Lock lock(mutex);
  ze_result_t result = driver.pfnBeginCaptureIntoGraphExt(handle, graph, next);
  if (!result) start_capture(handle, graph);
  return result;
}

ze_result_t end_capture(ze_command_list_handle_t handle, const void *next, ze_graph_handle_t *graph) {
  Lock lock(mutex);
  ze_result_t result = driver.pfnEndGraphCaptureExt(handle, next, graph);
  if (result) return result;
  List &list = lists[handle];
  graphs[list.capture_target ? list.capture_target : graph ? (void *)*graph : nullptr] = std::move(list.captured);
  list.captured.clear();
  list.capturing = false;
  return result;
}

ze_result_t append_graph(ze_command_list_handle_t handle, ze_executable_graph_handle_t instance, const void *next, ze_event_handle_t signal,
                         uint32_t count, ze_event_handle_t *waits) {
  Lock lock(mutex);
  ze_result_t result = driver.pfnAppendGraphExt(handle, instance, next, signal, count, waits);
  counts.graph_runs++;
  if (!result && executing)
    for (auto &operation : instances[instance]) carry_out(operation);
  return result;
}

ze_result_t instantiate(ze_graph_handle_t graph, const void *next, ze_executable_graph_handle_t *instance) {
  Lock lock(mutex);
  ze_result_t result = graph_driver.pfnInstantiateExt(graph, next, instance);
  if (!result) instances[*instance] = graphs[graph];
  return result;
}

ze_result_t destroy_graph(ze_graph_handle_t graph) {
  Lock lock(mutex);
  graphs.erase(graph);
  return graph_driver.pfnDestroyExt(graph);
}

ze_result_t destroy_instance(ze_executable_graph_handle_t instance) {
  Lock lock(mutex);
  instances.erase(instance);
  return instance_driver.pfnDestroyExt(instance);
}

} // namespace

void wrap(ze_command_list_dditable_t *table) {
  driver = *table;
  replace(table->pfnCreate, &create);
  replace(table->pfnCreateImmediate, &create_immediate);
  replace(table->pfnDestroy, &destroy);
  replace(table->pfnReset, &reset);
  replace(table->pfnAppendMemoryCopy, &copy);
  replace(table->pfnAppendMemoryCopyWithParameters, &copy_extended);
  replace(table->pfnAppendMemoryFill, &fill);
  replace(table->pfnAppendMemoryFillWithParameters, &fill_extended);
  replace(table->pfnAppendLaunchKernel, &launch);
  replace(table->pfnAppendLaunchKernelWithArguments, &launch_with_arguments);
  replace(table->pfnHostSynchronize, &wait_list);
  replace(table->pfnBeginGraphCaptureExt, &begin_capture);
  replace(table->pfnBeginCaptureIntoGraphExt, &begin_capture_into);
  replace(table->pfnEndGraphCaptureExt, &end_capture);
  replace(table->pfnAppendGraphExt, &append_graph);
}

void wrap(ze_command_list_exp_dditable_t *table) {
  exp_driver = *table;
  replace(table->pfnImmediateAppendCommandListsExp, &append_lists);
  replace(table->pfnGetNextCommandIdExp, &next_id);
  replace(table->pfnGetNextCommandIdWithKernelsExp, &next_id_with_kernels);
  replace(table->pfnUpdateMutableCommandsExp, &update);
}

void wrap(ze_command_queue_dditable_t *table) {
  queue_driver = *table;
  replace(table->pfnExecuteCommandLists, &execute);
  replace(table->pfnSynchronize, &wait_queue);
}

void wrap(ze_graph_dditable_t *table) {
  graph_driver = *table;
  replace(table->pfnInstantiateExt, &instantiate);
  replace(table->pfnDestroyExt, &destroy_graph);
}

void wrap(ze_executable_graph_dditable_t *table) {
  instance_driver = *table;
  replace(table->pfnDestroyExt, &destroy_instance);
}

} // namespace nocard
