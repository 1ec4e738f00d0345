//! Devices, queues, memory, kernels and graphs of one SYCL runtime.
