// Settings, counters and the line of JSON at exit.
// SPDX-License-Identifier: MIT
#include "nocard.hpp"

namespace nocard {

std::recursive_mutex mutex;
Counts counts;

const char *setting(const char *name) {
  const char *value = getenv(name);
  return value && *value ? value : nullptr;
}

const bool executing = setting("NS_NOCARD_EXEC") && atoi(setting("NS_NOCARD_EXEC")) != 0;

namespace {

struct Report {
  ~Report() {
    const char *file = setting("NS_NOCARD_REPORT");
    if (!file) return;
    FILE *out = strcmp(file, "-") != 0 ? fopen(file, "w") : stderr;
    if (!out) return;
    const Counts &c = counts;
    const struct {
      const char *name;
      unsigned long long value;
    } lines[] = {
        {"launches", (unsigned long long)c.launches},
        {"copies", (unsigned long long)c.copies},
        {"fills", (unsigned long long)c.fills},
        {"graph_runs", (unsigned long long)c.graph_runs},
        {"host_event_waits", (unsigned long long)c.event_waits},
        {"host_event_polls", (unsigned long long)c.event_polls},
        {"list_waits", (unsigned long long)c.list_waits},
        {"queue_waits", (unsigned long long)c.queue_waits},
        {"device_allocs", (unsigned long long)c.device_allocs},
        {"device_peak", c.device_peak},
        {"device_left", c.device},
        {"device_refused", (unsigned long long)c.refused},
        {"host_allocs", (unsigned long long)c.host_allocs},
        {"host_peak", c.host_peak},
        {"host_left", c.host},
        {"host_biggest", c.host_biggest},
        {"shared_allocs", (unsigned long long)c.shared_allocs},
        {"modules_spirv", (unsigned long long)c.modules_spirv},
        {"modules_native", (unsigned long long)c.modules_native},
        {"kernels_run", (unsigned long long)c.kernels_run},
        {"kernels_skipped", (unsigned long long)c.kernels_skipped},
    };
    const char *separator = "{";
    for (auto &line : lines) {
      fprintf(out, "%s\"%s\":%llu", separator, line.name, line.value);
      separator = ",";
    }
    fprintf(out, "}\n");
    if (out != stderr) fclose(out);
  }
} report;

} // namespace
} // namespace nocard
