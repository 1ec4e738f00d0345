// A C++ program with a SYCL queue of its own: its copies, kernels of libnextsycl-llm.so and its copies again, all in the order they were given, without a wait in between.
// SPDX-License-Identifier: MIT
#include "check.h"

#include <sycl/sycl.hpp>

#include <vector>

namespace {

void swiglu(sycl::queue &own, ns_queue *queue) {
  constexpr int rows = 4, n_ff = 331, ldx = 700, ldo = 340;
  std::vector<float> x(rows * ldx), out(rows * ldo), got;
  std::vector<double> want;
  for (auto &v : x) v = 4 * random_value();
  float *dx = sycl::malloc_device<float>(x.size(), own), *dout = sycl::malloc_device<float>(out.size(), own);
  own.memset(dout, 0xff, out.size() * sizeof(float));
  own.memcpy(dx, x.data(), x.size() * sizeof(float));
  ns_range range = line_of(rows, 64);
  need("swiglu", ns_llm_swiglu(queue, &range, dx, dout, n_ff, ldx, ldo));
  own.memcpy(out.data(), dout, out.size() * sizeof(float)).wait();
  for (int r = 0; r < rows; r++)
    for (int i = 0; i < n_ff; i++) {
      double gate = x[r * ldx + i], up = x[r * ldx + n_ff + i];
      want.push_back(gate / (1 + std::exp(-gate)) * up);
      got.push_back(out[r * ldo + i]);
    }
  compare("swiglu, 4 rows of 331", got.data(), want.data(), want.size(), 2e-6);
  verdict("swiglu leaves what is beyond a row", std::isnan(out[n_ff]));
  sycl::free(dx, own);
  sycl::free(dout, own);
}

void softmax_of_sum(sycl::queue &own, ns_queue *queue) {
  constexpr int rows = 2, n = 515;
  std::vector<float> x(rows * n), y(rows * n), got(rows * n);
  std::vector<double> want(rows * n);
  for (auto &v : x) v = 6 * random_value();
  for (auto &v : y) v = 6 * random_value();
  for (int r = 0; r < rows; r++) {
    double peak = -1e30, sum = 0;
    for (int i = 0; i < n; i++) peak = std::fmax(peak, double(x[r * n + i]) + y[r * n + i]);
    for (int i = 0; i < n; i++) sum += want[r * n + i] = std::exp(double(x[r * n + i]) + y[r * n + i] - peak);
    for (int i = 0; i < n; i++) want[r * n + i] /= sum;
  }
  float *dx = sycl::malloc_device<float>(x.size(), own), *dy = sycl::malloc_device<float>(y.size(), own), *dout = sycl::malloc_device<float>(got.size(), own);
  own.memset(dout, 0xff, got.size() * sizeof(float));
  own.memcpy(dx, x.data(), x.size() * sizeof(float));
  own.memcpy(dy, y.data(), y.size() * sizeof(float));
  ns_range all = line_of((rows * n + 127) / 128, 128), per_row = line_of(rows, 256);
  need("add", ns_llm_add(queue, &all, dx, dy, rows * n));
  need("softmax_rows", ns_llm_softmax_rows(queue, &per_row, dx, dout, n, n, n));
  own.memcpy(got.data(), dout, got.size() * sizeof(float)).wait();
  compare("add, then softmax_rows, 2 rows of 515", got.data(), want.data(), want.size(), 2e-6);
  sycl::free(dx, own);
  sycl::free(dy, own);
  sycl::free(dout, own);
}

} // namespace

int main() {
  try {
    sycl::device device = std::string(selector()) == "gpu" ? sycl::device{sycl::gpu_selector_v} : sycl::device{sycl::cpu_selector_v};
    sycl::queue own{device, sycl::property::queue::in_order{}};
    std::printf("     on %s\n", device.get_info<sycl::info::device::name>().c_str());
    ns_queue *queue = nullptr;
    need("taking the queue", ns_queue_from_sycl(&own, &queue));
    verdict("it is the same queue inside", *static_cast<sycl::queue *>(ns_queue_sycl(queue)) == own);
    swiglu(own, queue);
    softmax_of_sum(own, queue);
    sycl::queue unordered{device};
    ns_queue *refused = nullptr;
    verdict("a queue that is not in order is refused", ns_queue_from_sycl(&unordered, &refused) == NS_ERROR_ARGUMENT && !refused);
    ns_queue_release(queue);
    // The owner's queue lives on.
    int *p = sycl::malloc_shared<int>(1, own);
    own.memset(p, 0, sizeof(int)).wait();
    verdict("the owner's queue works after the release", *p == 0);
    sycl::free(p, own);
  } catch (const sycl::exception &e) {
    verdict(e.what(), 0);
  }
  return finish();
}
