/* What the launcher tests share: seeded random numbers, a comparison that prints what differs, counting. Plain C.
 * SPDX-License-Identifier: MIT */
#ifndef CHECK_H
#define CHECK_H
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nextsycl-llm.h"

static int passed, failed;

static void verdict(const char *what, int good) {
  if (good) passed++;
  else failed++;
  printf("%s %s\n", good ? "ok  " : "FAIL", what);
}
static void need(const char *what, ns_status status) {
  if (status == NS_OK) return;
  printf("FAIL %s: error %d: %s\n%d passed, %d failed, 0 skipped\n", what, (int)status, ns_last_error(), passed, failed + 1);
  exit(1);
}

static uint64_t seed_state = 0x9e3779b97f4a7c15u;
static uint32_t random_bits(void) { /* xorshift64* */
  seed_state ^= seed_state >> 12, seed_state ^= seed_state << 25, seed_state ^= seed_state >> 27;
  return (uint32_t)(seed_state * 2685821657736338717u >> 32);
}
static float random_value(void) { return (float)((double)random_bits() / 2147483648.0 - 1.0); }

/* Largest error relative to the largest expected value; NaN counts as infinite. */
static void compare(const char *what, const float *got, const double *want, size_t n, double tolerance) {
  double peak = 0, worst = 0;
  size_t at = 0, i;
  char line[256];
  for (i = 0; i < n; i++) peak = fmax(peak, fabs(want[i]));
  for (i = 0; i < n; i++) {
    double e = fabs(got[i] - want[i]) / peak;
    if (!(e <= worst)) worst = e, at = i;
    if (worst != worst) break;
  }
  snprintf(line, sizeof line, "%s: relative error %.2e (allowed %.0e; value %zu is %.9g, expected %.9g)", what, worst, tolerance, at, got[at], want[at]);
  verdict(line, peak > 0 && worst <= tolerance);
}
static ns_range line_of(size_t groups, size_t local) {
  ns_range r = {{groups * local, 1, 1}, {local, 1, 1}};
  return r;
}
static const char *selector(void) {
  const char *s = getenv("NS_TEST_SELECTOR");
  return s && *s ? s : "cpu";
}
static int finish(void) {
  printf("%d passed, %d failed, 0 skipped\n", passed, failed);
  return failed || !passed;
}
#endif
