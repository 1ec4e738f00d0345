/* ns.h - the C interface of nextsycl's runtime, libns_sycl.
 *
 * One device ("context"), in-order queues, unified shared memory, kernels from modules that were compiled ahead of time, recorded graphs.
 *
 * Rules that hold for every function:
 *  - It returns NS_OK or an error code; ns_last_error() then has the text (per thread, valid until the next failing call of that thread).
 *    No C++ exception leaves the library.
 *  - Objects are counted: a queue, module, kernel or graph keeps its context alive, a kernel its module. Release order does not matter.
 *    Every ns_*_release accepts NULL.
 *  - Functions are safe to call from any thread; one queue, and one graph being recorded on it, belong to one thread at a time.
 *  - Work on one queue runs in the order it was given. Nothing is ordered between two queues except by ns_queue_after and ns_queue_wait.
 *
 * Environment (all optional): NS_VRAM_MARGIN_MIB memory kept free on a GPU (1024); NS_MODULE_CACHE folder of the module cache
 * ($XDG_CACHE_HOME/nextsycl/modules, or ~/.cache/nextsycl/modules; the word "off" disables it); NS_NATIVE=0 load SPIR-V only, never native code;
 * NS_PROFILE=1 time every kernel; NS_GUARD=off|auto|always aliasing check of big allocations (auto: Level Zero GPUs),
 * NS_GUARD_INJECT=N lets the first N checks of each block fail (tests).
 * The library sets, where the user has not: OCL_ICD_FILENAMES (the CPU device of the runtime it was linked to), SYCL_CACHE_PERSISTENT=0,
 * UR_L0_ENABLE_RELAXED_ALLOCATION_LIMITS=1, ZES_ENABLE_SYSMAN=1, HWLOC_HIDE_ERRORS=2, ZE_ENABLE_ALT_DRIVERS (driver/libze_intel_gpu.so.1 beside this library, if there is
 * one and NixOS has not installed its own), and on processors with one kind of core DPCPP_CPU_SCHEDULE=static.
 *
 * SPDX-License-Identifier: MIT */
#ifndef NS_H
#define NS_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define NS_API __attribute__((visibility("default")))
#else
#define NS_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Grows when a signature or a struct below changes. ns_abi_version() is what the library was built with. */
#define NS_ABI_VERSION 3

typedef enum ns_status {
  NS_OK = 0,
  NS_ERROR = 1,              /* the runtime or the driver failed; the text has its words */
  NS_ERROR_ARGUMENT = 2,     /* a wrong argument of an ns_ function, or of a kernel (the text names kernel and argument index) */
  NS_ERROR_NO_DEVICE = 3,    /* no device fits the selector */
  NS_ERROR_MEMORY = 4,       /* out of memory: does not fit; the text has the sizes */
  NS_ERROR_FILE = 5,         /* a file is missing, unreadable or damaged */
  NS_ERROR_UNKNOWN_KERNEL = 6,
  NS_ERROR_UNSUPPORTED = 7   /* the device or this build cannot do it */
} ns_status;

typedef struct ns_context ns_context;
typedef struct ns_queue ns_queue;
typedef struct ns_module ns_module;
typedef struct ns_kernel ns_kernel;
typedef struct ns_graph ns_graph;

NS_API uint32_t ns_abi_version(void);
/* Text of the last error of this thread; never NULL. */
NS_API const char *ns_last_error(void);

/* ---------------------------------------------------------------- devices
 * Selector: "gpu" every Level Zero GPU, "gpu:N" the N-th, "cpu" the OpenCL CPU device, "all" every device the runtime lists
 * ("all:N", "opencl:N", "cuda:N" ... pick one of those by backend, for measurements only). */
typedef enum ns_class { NS_CLASS_GPU = 0, NS_CLASS_CPU = 1 } ns_class;

typedef struct ns_device_info {
  char name[256];
  char backend[32];       /* "level_zero", "opencl", ... */
  char driver[64];        /* driver version */
  char selector[32];      /* the selector that opens exactly this device */
  char architecture[32];  /* "bmg-g21", "bmg-g31", "acm-g10", "acm-g11", "acm-g12"; "" when not one of those */
  char pci[32];           /* PCI address, "" when unknown */
  uint32_t device_class;  /* ns_class: which module variant it runs */
  uint32_t index;         /* place in the list of its selector family */
  uint32_t vendor_id, device_id;
  uint32_t compute_units;
  uint32_t max_work_group;
  uint32_t sub_group_sizes; /* bit s set: sub-groups of s work-items exist (8, 16, 32) */
  uint32_t has_fp16, has_fp64, has_copy_engine, has_native_graphs;
  uint32_t has_esimd, has_matrix_units; /* kernels of whole hardware threads; units that multiply matrices */
  uint64_t total_memory, free_memory; /* bytes; free is the best figure known now */
  uint64_t max_allocation; /* one block */
  uint64_t local_memory;   /* of one work-group */
} ns_device_info;

/* Fills up to `capacity` entries; *count is the number of devices that fit the selector (0 is not an error here). */
NS_API ns_status ns_devices(const char *selector, ns_device_info *infos, size_t capacity, size_t *count);
/* Opens the first device of the selector. Opening the same device twice gives the same context. */
NS_API ns_status ns_context_open(const char *selector, ns_context **context);
NS_API ns_status ns_context_retain(ns_context *context);
NS_API void ns_context_release(ns_context *context);
NS_API ns_status ns_context_info(ns_context *context, ns_device_info *info); /* free_memory is read anew */
/* Variant of modules this context runs: "gpu" or "cpu". */
NS_API const char *ns_context_variant(ns_context *context);

/* ---------------------------------------------------------------- queues */
NS_API ns_status ns_queue_create(ns_context *context, ns_queue **queue);
/* A queue for copies beside kernels: on Battlemage the copy engine, elsewhere a second in-order queue. No kernels on it. */
NS_API ns_status ns_queue_create_copy(ns_context *context, ns_queue **queue);
/* Uses a caller's own queue: pointer to a sycl::queue (of the same SYCL library) that must be in order; it is copied. Its context is joined too, so memory that the
 * caller allocated there can be given to kernels. */
NS_API ns_status ns_queue_from_sycl(void *sycl_queue, ns_queue **queue);
NS_API void ns_queue_release(ns_queue *queue); /* waits for its work first */
NS_API ns_context *ns_queue_context(ns_queue *queue); /* borrowed */
NS_API void *ns_queue_sycl(ns_queue *queue);          /* the sycl::queue inside, borrowed */
NS_API ns_status ns_queue_wait(ns_queue *queue);
/* What is given to `queue` from now on starts after everything given to `other` so far (on the device; the host does not wait). */
NS_API ns_status ns_queue_after(ns_queue *queue, ns_queue *other);

/* ---------------------------------------------------------------- memory
 * An allocation is refused with NS_ERROR_MEMORY when it does not fit into what is free now less the margin. */
typedef enum ns_memory { NS_MEMORY_DEVICE = 0, NS_MEMORY_HOST = 1, NS_MEMORY_SHARED = 2 } ns_memory;
NS_API ns_status ns_alloc(ns_context *context, ns_memory kind, size_t bytes, void **memory);
/* Waits for the context's queues first, so work in flight never sees freed memory. NULL is allowed. */
NS_API ns_status ns_free(ns_context *context, void *memory);
/* The fit check alone: NS_OK when `bytes` of device memory would be given now. */
NS_API ns_status ns_reserve(ns_context *context, uint64_t bytes);
/* Waits for every queue of the context. */
NS_API ns_status ns_context_wait(ns_context *context);
/* Bytes this context holds in device memory now, and the most it ever held. */
NS_API ns_status ns_memory_used(ns_context *context, uint64_t *now, uint64_t *peak);
/* Bytes of the device that allocations leave free. */
NS_API ns_status ns_memory_margin(ns_context *context, uint64_t *bytes);

/* Host bytes may be reused as soon as it returns (small ones are staged, big ones waited for). Not allowed while recording. */
NS_API ns_status ns_queue_write(ns_queue *queue, void *to, const void *host, size_t bytes);
/* Waits for the queue; the bytes are there on return. Not allowed while recording. */
NS_API ns_status ns_queue_read(ns_queue *queue, void *host, const void *from, size_t bytes);
/* Both sides unified shared memory of the context; does not wait. */
NS_API ns_status ns_queue_copy(ns_queue *queue, void *to, const void *from, size_t bytes);
NS_API ns_status ns_queue_fill(ns_queue *queue, void *to, int byte, size_t bytes);

/* ---------------------------------------------------------------- modules and kernels */
/* Loads DIR/NAME.VARIANT.json and what it points to: native code for the card, else this machine's cached build, else SPIR-V. */
NS_API ns_status ns_module_load(ns_context *context, const char *dir, const char *name, ns_module **module);

typedef struct ns_native_blob { const char *architecture; const void *data; size_t bytes; } ns_native_blob;
typedef struct ns_module_blob {
  const char *variant;                /* "gpu" or "cpu" */
  const char *json; size_t json_bytes; /* the reflection file's text */
  const void *spirv; size_t spirv_bytes;
  const ns_native_blob *natives; size_t n_natives;
} ns_module_blob;
/* A module in a program's own memory. `name` and the address of the struct identify it: keep it in static storage. */
typedef struct ns_embedded_module { const char *name; const ns_module_blob *variants; size_t n_variants; } ns_embedded_module;
NS_API ns_status ns_module_load_embedded(ns_context *context, const ns_embedded_module *embedded, ns_module **module);
/* What a generated launcher calls: loads the module once per context, looks the kernel up. *kernel is borrowed (lives as long as the context). */
NS_API ns_status ns_embedded_kernel(ns_queue *queue, const ns_embedded_module *embedded, const char *kernel_name, ns_kernel **kernel);

NS_API void ns_module_release(ns_module *module);
NS_API const char *ns_module_name(ns_module *module);
/* Where the code came from: "native", "cache" or "spirv". */
NS_API const char *ns_module_source(ns_module *module);
NS_API size_t ns_module_kernel_count(ns_module *module);
NS_API const char *ns_module_kernel_name(ns_module *module, size_t index); /* NULL past the end */

NS_API ns_status ns_kernel_get(ns_module *module, const char *name, ns_kernel **kernel);
NS_API void ns_kernel_release(ns_kernel *kernel);
NS_API const char *ns_kernel_name(ns_kernel *kernel);
NS_API uint32_t ns_kernel_sub_group_size(ns_kernel *kernel);
NS_API size_t ns_kernel_arg_count(ns_kernel *kernel);

typedef enum ns_arg_kind {
  NS_ARG_POINTER = 1, /* value.pointer: unified shared memory of the context */
  NS_ARG_INT = 2,     /* value.bits, `size` bytes (1, 2, 4, 8), signed or not */
  NS_ARG_FLOAT = 3,   /* value.bits, `size` bytes (2, 4) */
  NS_ARG_BYTES = 4,   /* value.bytes: a struct, or a plain value by address, of `size` bytes */
  NS_ARG_LOCAL = 5    /* `size` bytes of local memory */
} ns_arg_kind;

typedef struct ns_arg {
  uint32_t kind; /* ns_arg_kind */
  uint32_t size;
  union { const void *pointer; uint64_t bits; const void *bytes; } value;
  uint64_t bytes_used; /* NS_ARG_POINTER: the kernel touches at most this much; checked against the block, 0 = not known */
} ns_arg;

/* kind (ns_arg_kind) and size of one argument as the reflection has them. */
NS_API ns_status ns_kernel_arg(ns_kernel *kernel, size_t index, uint32_t *kind, uint32_t *size);

/* Starts a kernel over `global` work-items in groups of `local`, both as {x, y, z}: x is the fastest dimension and the LAST one in SYCL's counting. So for an
 * nd_range_kernel<1> use {n, 1, 1}; for an nd_range_kernel<2>, get_group(1) runs along x and get_group(0) along y.
 * Count, kind and size of the arguments, the group sizes and the pointers are checked before anything is started. */
NS_API ns_status ns_launch(ns_queue *queue, ns_kernel *kernel, const size_t global[3], const size_t local[3], const ns_arg *args, size_t n_args);

/* ---------------------------------------------------------------- graphs
 * Between begin and end the queue's launches, copies and fills are recorded, not run. Memory and kernels used must outlive the graph. A block freed since makes the replay an error, not a crash. */
NS_API ns_status ns_graph_begin(ns_queue *queue);
NS_API ns_status ns_graph_end(ns_queue *queue, ns_graph **graph);
/* Drops what was recorded so far. */
NS_API ns_status ns_graph_cancel(ns_queue *queue);
NS_API ns_status ns_graph_replay(ns_queue *queue, ns_graph *graph);
NS_API size_t ns_graph_size(ns_graph *graph); /* recorded commands */
/* "native" (the driver's graph), "sycl", or "replayed" (launched again one by one: profiling, or a device without graphs). */
NS_API const char *ns_graph_form(ns_graph *graph);
NS_API void ns_graph_release(ns_graph *graph);

/* ---------------------------------------------------------------- profiling
 * On with NS_PROFILE=1 or NS_PROFILE=gpu, or with ns_profile_enable before the queues are created. Graphs recorded while it is on are replayed command by command.
 * An entry is one kernel in one section of the program, summed over its launches; bytes and operations are what the launches said they cost. */
typedef struct ns_profile_entry { char section[64]; char name[128]; uint64_t count; uint64_t nanoseconds; uint64_t bytes; uint64_t operations; } ns_profile_entry;
NS_API ns_status ns_profile_enable(ns_context *context, int on);
/* Waits for the context's queues, fills up to `capacity` entries (longest first), sets *count to all there are. */
NS_API ns_status ns_profile_read(ns_context *context, ns_profile_entry *entries, size_t capacity, size_t *count);
NS_API ns_status ns_profile_reset(ns_context *context);
/* Whether the queue's commands are timed; the two functions below do nothing where they are not. */
NS_API int ns_queue_profiled(ns_queue *queue);
/* Commands given to the queue from now on count to this section. */
NS_API ns_status ns_queue_section(ns_queue *queue, const char *section);
/* What the queue's next command reads and writes, and its arithmetic operations. The first call before a command counts, so that a caller who knows better than a
 * library comes first. */
NS_API ns_status ns_queue_cost(ns_queue *queue, uint64_t bytes, uint64_t operations);

/* ---------------------------------------------------------------- argument helpers */
static inline ns_arg ns_pointer(const void *p) { ns_arg a; a.kind = NS_ARG_POINTER; a.size = 8; a.value.bits = 0; a.value.pointer = p; a.bytes_used = 0; return a; }
static inline ns_arg ns_i32(int32_t v) { ns_arg a; a.kind = NS_ARG_INT; a.size = 4; a.value.bits = (uint32_t)v; a.bytes_used = 0; return a; }
static inline ns_arg ns_u32(uint32_t v) { ns_arg a; a.kind = NS_ARG_INT; a.size = 4; a.value.bits = v; a.bytes_used = 0; return a; }
static inline ns_arg ns_i64(int64_t v) { ns_arg a; a.kind = NS_ARG_INT; a.size = 8; a.value.bits = (uint64_t)v; a.bytes_used = 0; return a; }
static inline ns_arg ns_u64(uint64_t v) { ns_arg a; a.kind = NS_ARG_INT; a.size = 8; a.value.bits = v; a.bytes_used = 0; return a; }
static inline ns_arg ns_f32(float v) { ns_arg a; union { float f; uint32_t u; } b; b.f = v; a.kind = NS_ARG_FLOAT; a.size = 4; a.value.bits = b.u; a.bytes_used = 0; return a; }
static inline ns_arg ns_bytes(const void *p, uint32_t n) { ns_arg a; a.kind = NS_ARG_BYTES; a.size = n; a.value.bits = 0; a.value.bytes = p; a.bytes_used = 0; return a; }
static inline ns_arg ns_local(uint32_t n) { ns_arg a; a.kind = NS_ARG_LOCAL; a.size = n; a.value.bits = 0; a.bytes_used = 0; return a; }

/* ---------------------------------------------------------------- libns_mkl (optional, opened at run time)
 * On the CPU device a product cannot be recorded into a graph (NS_ERROR_UNSUPPORTED).
 * Row-major: y[m][n] = beta * y[m][n] + sum over k of x[m][k] * w[n][k]. Leading dimensions in elements. Order on the queue as for a kernel. */
NS_API ns_status ns_mkl_gemm_f32(ns_queue *queue, int64_t m, int64_t n, int64_t k, const float *x, int64_t ldx, const float *w, int64_t ldw, float *y, int64_t ldy, float beta);
/* x, w half (IEEE binary16), y float / half, sums in float. */
NS_API ns_status ns_mkl_gemm_f16_f32(ns_queue *queue, int64_t m, int64_t n, int64_t k, const void *x, int64_t ldx, const void *w, int64_t ldw, float *y, int64_t ldy, float beta);
NS_API ns_status ns_mkl_gemm_f16(ns_queue *queue, int64_t m, int64_t n, int64_t k, const void *x, int64_t ldx, const void *w, int64_t ldw, void *y, int64_t ldy, float beta);
/* `batch` products of equal shape, operand b at base + b * stride (elements; stride 0 shares the operand). */
NS_API ns_status ns_mkl_gemm_batch_f32(ns_queue *queue, int64_t m, int64_t n, int64_t k, const float *x, int64_t ldx, int64_t stride_x, const float *w, int64_t ldw, int64_t stride_w, float *y, int64_t ldy, int64_t stride_y, int64_t batch, float beta);
NS_API ns_status ns_mkl_gemm_batch_f16_f32(ns_queue *queue, int64_t m, int64_t n, int64_t k, const void *x, int64_t ldx, int64_t stride_x, const void *w, int64_t ldw, int64_t stride_w, float *y, int64_t ldy, int64_t stride_y, int64_t batch, float beta);

/* ---------------------------------------------------------------- libns_dnn (optional, opened at run time) */
typedef enum ns_type { NS_F32 = 0, NS_F16 = 1, NS_BF16 = 2, NS_S8 = 3, NS_S32 = 4 } ns_type;
/* y = x w^T + beta y as above, with oneDNN. xw is the type of x and w, y the type of y. NS_ERROR_UNSUPPORTED when this device has no implementation. */
NS_API ns_status ns_dnn_matmul(ns_queue *queue, ns_type xw, ns_type y_type, int64_t m, int64_t n, int64_t k, const void *x, int64_t ldx, const void *w, int64_t ldw, void *y, int64_t ldy, float beta);
/* Drops the implementations kept for this context (they are built once per shape); call before the context goes. */
NS_API void ns_dnn_forget(ns_context *context);

#ifdef __cplusplus
}
#endif
#endif
