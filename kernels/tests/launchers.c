/* A program in C that runs kernels of libnextsycl-llm.so on a queue of ns.h: norms, a quantised matrix times three rows, the largest logit, and what happens on misuse.
 * SPDX-License-Identifier: MIT */
#include "check.h"

static ns_context *context;
static ns_queue *queue;

static void *device(size_t bytes) {
  void *p = NULL;
  need("allocating", ns_alloc(context, NS_MEMORY_DEVICE, bytes, &p));
  need("poisoning", ns_queue_fill(queue, p, 0xff, bytes)); /* NaN */
  return p;
}
static void *uploaded(const void *data, size_t bytes) {
  void *p = device(bytes);
  need("writing", ns_queue_write(queue, p, data, bytes));
  return p;
}

static void norms(void) {
  enum { rows = 5, dim = 577, ldx = 600, ldo = 580 };
  static float x[rows * ldx], w[dim], out[rows * ldo], got[rows * dim];
  static double want[rows * dim];
  const float eps = 1e-5f;
  int r, i;
  for (i = 0; i < rows * ldx; i++) x[i] = 3 * random_value();
  for (i = 0; i < dim; i++) w[i] = random_value();
  for (r = 0; r < rows; r++) {
    double sum = 0;
    for (i = 0; i < dim; i++) sum += (double)x[r * ldx + i] * x[r * ldx + i];
    for (i = 0; i < dim; i++) want[r * dim + i] = x[r * ldx + i] / sqrt(sum / dim + eps) * w[i];
  }
  float *dx = uploaded(x, sizeof x), *dw = uploaded(w, sizeof w), *dout = device(sizeof out);
  ns_range range = line_of(rows, 64);
  need("rms_norm", ns_llm_rms_norm(queue, &range, dx, dw, dout, dim, ldx, ldo, eps));
  need("reading", ns_queue_read(queue, out, dout, sizeof out));
  for (r = 0; r < rows; r++) memcpy(got + r * dim, out + r * ldo, dim * sizeof(float));
  compare("rms_norm, 5 rows of 577", got, want, rows * dim, 1e-6);
  verdict("rms_norm leaves what is beyond a row", isnan(out[dim]) && isnan(out[ldo + dim + 1]));
  ns_free(context, dx), ns_free(context, dw), ns_free(context, dout);
}

static double half_value(uint16_t h) {
  int exponent = h >> 10 & 31;
  double m = exponent ? 1024 + (h & 1023) : h & 1023;
  return (h & 0x8000 ? -1 : 1) * ldexp(m, (exponent ? exponent : 1) - 25);
}

static void matrix(void) {
  enum { rows = 53, cols = 160, nb = cols / 32, m = 3, ldy = 61, stride = (128 + 12 + 64) * nb + 128 };
  static uint8_t raw[rows * nb * 34];
  static float x[m * cols], y[m * ldy], got[m * rows], dense[rows * cols];
  static double w[rows * cols], want[m * rows];
  int r, i, k;
  for (r = 0; r < rows * nb; r++) {
    uint16_t scale = (uint16_t)(0x2000 + random_bits() % 0x0800);
    memcpy(raw + r * 34, &scale, 2);
    for (i = 0; i < 32; i++) {
      int8_t q = (int8_t)(random_bits() % 255 - 127);
      raw[r * 34 + 2 + i] = (uint8_t)q;
      w[r * 32 + i] = half_value(scale) * q;
    }
  }
  for (i = 0; i < m * cols; i++) x[i] = random_value();
  for (k = 0; k < m; k++)
    for (r = 0; r < rows; r++) {
      want[k * rows + r] = 0;
      for (i = 0; i < cols; i++) want[k * rows + r] += w[r * cols + i] * x[k * cols + i];
    }
  uint8_t *draw = uploaded(raw, sizeof raw), *packed = device((rows + 15) / 16 * 16 * nb * 34), *act = device(m * stride);
  float *dx = uploaded(x, sizeof x), *dy = device(sizeof y), *ddense = device(sizeof dense);
  ns_range pack = line_of((rows + 15) / 16 * nb, 16), per_row = line_of(m, 32), product = line_of((rows + 3) / 4, 64), all_rows = line_of(rows, 32);
  need("pack_q8_0", ns_llm_pack_q8_0(queue, &pack, draw, packed, 0, rows, rows, cols));
  need("dequant_f32_q8_0", ns_llm_dequant_f32_q8_0(queue, &all_rows, packed, ddense, 0, rows, rows, cols));
  need("to_act", ns_llm_to_act(queue, &per_row, dx, act, cols, cols, stride));
  need("matvec_q8_0_r3", ns_llm_matvec_q8_0_r3(queue, &product, packed, act, dy, rows, cols, stride, ldy, 0));
  need("reading", ns_queue_read(queue, dense, ddense, sizeof dense));
  compare("dequant_f32_q8_0, 53 rows of 160", dense, w, rows * cols, 1e-7);
  need("reading", ns_queue_read(queue, y, dy, sizeof y));
  for (k = 0; k < m; k++) memcpy(got + k * rows, y + k * ldy, rows * sizeof(float));
  compare("matvec_q8_0_r3, 53 rows of 160", got, want, m * rows, 1e-4);
  need("matvec_q8_0_r3", ns_llm_matvec_q8_0_r3(queue, &product, packed, act, dy, rows, cols, stride, ldy, 1));
  need("reading", ns_queue_read(queue, y, dy, sizeof y));
  for (k = 0; k < m; k++)
    for (r = 0; r < rows; r++) got[k * rows + r] = y[k * ldy + r], want[k * rows + r] *= 2;
  compare("the same added to what is there", got, want, m * rows, 1e-4);
  ns_free(context, draw), ns_free(context, packed), ns_free(context, act), ns_free(context, dx), ns_free(context, dy), ns_free(context, ddense);
}

static void largest(void) {
  enum { rows = 3, n = 1009, ld = 1024 };
  static float x[rows * ld];
  int32_t ids[rows], want[rows] = {1008, 17, 500};
  int i;
  for (i = 0; i < rows * ld; i++) x[i] = random_value();
  x[1008] = 2, x[1009] = 3; /* beyond the row */
  x[ld + 17] = 2, x[ld + 900] = 2; /* the lower id wins */
  x[2 * ld + 500] = 1.5f, x[2 * ld + 3] = NAN;
  float *dx = uploaded(x, sizeof x);
  int32_t *dids = device(sizeof ids);
  ns_range range = line_of(rows, 256);
  need("argmax_rows", ns_llm_argmax_rows(queue, &range, dx, dids, n, ld));
  need("reading", ns_queue_read(queue, ids, dids, sizeof ids));
  printf("     ids %d %d %d\n", ids[0], ids[1], ids[2]);
  verdict("argmax_rows, 3 rows of 1009", memcmp(ids, want, sizeof ids) == 0);
  ns_free(context, dx), ns_free(context, dids);
}

static void misuse(void) {
  float *x = device(64 * sizeof(float)), *w = device(64 * sizeof(float));
  ns_range range = line_of(1, 64), odd = {{100, 1, 1}, {64, 1, 1}};
  verdict("no range is an error", ns_llm_rms_norm(queue, NULL, x, w, x, 64, 64, 64, 1e-5f) == NS_ERROR_ARGUMENT);
  verdict("no queue is an error", ns_llm_rms_norm(NULL, &range, x, w, x, 64, 64, 64, 1e-5f) != NS_OK);
  verdict("work-items that groups do not divide are an error", ns_llm_rms_norm(queue, &odd, x, w, x, 64, 64, 64, 1e-5f) == NS_ERROR_ARGUMENT);
  ns_status status = ns_llm_rms_norm(queue, &range, NULL, w, x, 64, 64, 64, 1e-5f);
  printf("     %s\n", ns_last_error());
  verdict("a null pointer is an error that names the kernel", status == NS_ERROR_ARGUMENT && strstr(ns_last_error(), "rms_norm") != NULL);
  need("waiting", ns_queue_wait(queue));
  ns_free(context, x), ns_free(context, w);
}

int main(void) {
  ns_device_info info;
  verdict("library and header are of one version", ns_abi_version() == NS_ABI_VERSION);
  need("opening the device", ns_context_open(selector(), &context));
  need("asking the device", ns_context_info(context, &info));
  printf("     on %s (%s)\n", info.name, info.backend);
  need("making a queue", ns_queue_create(context, &queue));
  norms();
  matrix();
  largest();
  misuse();
  ns_queue_release(queue);
  ns_context_release(context);
  return finish();
}
