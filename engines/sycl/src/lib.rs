//! Devices, queues, memory, kernels and graphs of one SYCL runtime.
//!
//! Safe Rust over the C interface of `kernels/runtime/ns.h`. The library behind it (`libns_sycl.so`) is opened when first used, from
//! [`Locations`]; a program that never touches a device never loads it. Open a device before starting threads: the library puts a few
//! settings into the environment when it is opened.
//!
//! ```no_run
//! use ns_sycl::{Arg, Device, Locations};
//! # fn main() -> ns_sycl::Result<()> {
//! let device = Device::open("cpu")?;
//! let queue = device.queue()?;
//! let module = device.load_module(&Locations::discover().kernels.join("llm"), "rows")?;
//! let add = module.kernel("add")?;
//! let (x, y) = (device.alloc(4096)?, device.alloc(4096)?);
//! queue.write_slice(&x, 0, &[1.0f32; 1024])?;
//! queue.write_slice(&y, 0, &[2.0f32; 1024])?;
//! queue.launch(&add, [1024, 1, 1], [64, 1, 1], &[Arg::Buffer(&x, 0), Arg::Buffer(&y, 0), Arg::I32(1024)])?;
//! let sums: Vec<f32> = queue.read_vec(&x, 0, 1024)?;
//! # let _ = sums; Ok(()) }
//! ```

mod device;
mod error;
mod ffi;
mod gemm;
mod locations;
mod memory;
mod module;
mod plain;
mod queue;

pub use device::{Device, DeviceClass, DeviceInfo, KernelTime, devices};
pub use error::{Error, ErrorKind, Result};
pub use gemm::{Batch, ElementType, Gemm, GemmLibrary, Matmul, Operand};
pub use locations::Locations;
pub use memory::{Buffer, HostBuffer, Memory};
pub use module::{Kernel, Module};
pub use plain::{Plain, bytes_of, bytes_of_mut};
pub use queue::{Arg, Graph, Queue};
