//! Queues: transfers, launches, recorded graphs.

use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::ffi::{self, Handle, RawArg, RawValue, check};
use crate::memory::{Block, Buffer, HostBuffer, Memory};
use crate::module::Kernel;
use crate::plain::{Plain, bytes_of, bytes_of_mut};

/// An argument of a kernel.
#[derive(Clone, Copy, Debug)]
pub enum Arg<'a> {
    /// Device memory from a byte offset on.
    Buffer(&'a Buffer, usize),
    /// Pinned host memory from a byte offset on.
    Host(&'a HostBuffer, usize),
    /// A 32-bit integer.
    I32(i32),
    /// A 32-bit integer.
    U32(u32),
    /// A 64-bit integer.
    I64(i64),
    /// A 64-bit integer.
    U64(u64),
    /// A 32-bit float.
    F32(f32),
    /// That many bytes of local memory.
    Local(usize),
    /// A struct, or a value of another size, by its bytes.
    Bytes(&'a [u8]),
}

const MOST_ARGS: usize = 64;

/// Work that a device does in the order it was given. One thread at a time.
pub struct Queue {
    handle: Handle,
    device: Device,
    /// Whether its commands are timed.
    profiled: bool,
    /// While recording: host memory the graph will touch at every replay.
    recorded_hosts: RefCell<Option<Vec<Arc<AtomicBool>>>>,
    /// Not shared between threads.
    _one_thread: std::marker::PhantomData<Cell<()>>,
}

// SAFETY: a queue may move to another thread; it is not Sync, so only one uses it at a time.
unsafe impl Send for Queue {}

impl Drop for Queue {
    fn drop(&mut self) {
        if let Ok(core) = ffi::core() {
            // SAFETY: the handle is ours and is given back once; the library waits for its work first.
            unsafe { (core.ns_queue_release)(self.handle) };
        }
    }
}

impl Queue {
    pub(crate) fn create(device: &Device, copies: bool) -> Result<Self> {
        let core = ffi::core()?;
        let create = if copies { core.ns_queue_create_copy } else { core.ns_queue_create };
        let mut handle = std::ptr::null_mut();
        // SAFETY: the context is live, the handle is written on success.
        check(core, unsafe { create(device.handle(), &raw mut handle) })?;
        Ok(Self::from_handle(handle, device.clone()))
    }

    fn from_handle(handle: Handle, device: Device) -> Self {
        // SAFETY: the handle is live.
        let profiled = ffi::core().is_ok_and(|core| unsafe { (core.ns_queue_profiled)(handle) } != 0);
        Self { handle, device, profiled, recorded_hosts: RefCell::new(None), _one_thread: std::marker::PhantomData }
    }

    /// Joins the in-order queue of a program that uses SYCL itself.
    ///
    /// # Safety
    /// `sycl_queue` must point to a `sycl::queue` of the SYCL library this program has loaded.
    ///
    /// # Errors
    /// The queue is not in order.
    pub unsafe fn from_sycl(sycl_queue: *mut c_void) -> Result<Self> {
        let core = ffi::core()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: promised by the caller; the handle is written on success.
        check(core, unsafe { (core.ns_queue_from_sycl)(sycl_queue, &raw mut handle) })?;
        // SAFETY: the queue is live; its context is counted once more for the Device made here.
        let device = unsafe {
            let context = (core.ns_queue_context)(handle);
            (core.ns_context_retain)(context);
            Device::from_handle(context)
        };
        match device {
            Ok(device) => Ok(Self::from_handle(handle, device)),
            Err(e) => {
                // SAFETY: given back once, nobody else has it.
                unsafe { (core.ns_queue_release)(handle) };
                Err(e)
            }
        }
    }

    pub(crate) fn handle(&self) -> Handle {
        self.handle
    }

    /// The device it is on.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Whether its commands are timed ([`Device::profile_enable`]).
    #[must_use]
    pub fn profiled(&self) -> bool {
        self.profiled
    }

    /// Commands given to the queue from now on count to this section of the profile. Nothing happens without a profile.
    pub fn section(&self, name: &str) {
        if self.profiled
            && let (Ok(core), Ok(text)) = (ffi::core(), ffi::c_text(name))
        {
            // SAFETY: the handle is live, the text ends with a zero. It fails for null arguments alone.
            unsafe { (core.ns_queue_section)(self.handle, text.as_ptr()) };
        }
    }

    /// What the next command reads and writes in bytes, and its arithmetic operations, for the profile. The first call before a
    /// command counts: a caller who knows more than a wrapper calls first. Nothing happens without a profile.
    pub fn cost(&self, bytes: usize, operations: usize) {
        if self.profiled
            && let Ok(core) = ffi::core()
        {
            // SAFETY: the handle is live. It fails for null arguments alone.
            unsafe { (core.ns_queue_cost)(self.handle, bytes as u64, operations as u64) };
        }
    }

    fn use_host(&self, in_use: Option<&Arc<AtomicBool>>) {
        let Some(flag) = in_use else { return };
        flag.store(true, Ordering::Release);
        if let Some(hosts) = self.recorded_hosts.borrow_mut().as_mut() {
            hosts.push(flag.clone());
        }
    }

    /// Copies host bytes into device memory; `host` is free again on return.
    ///
    /// # Errors
    /// Out of bounds, another device, a graph is being recorded, or the driver failed.
    pub fn write(&self, to: &Buffer, offset: usize, host: &[u8]) -> Result<()> {
        let core = ffi::core()?;
        let pointer = within(&to.0, offset, host.len(), "write")?;
        // SAFETY: the range is inside a live block; the library has taken the bytes when it returns.
        check(core, unsafe { (core.ns_queue_write)(self.handle, pointer, host.as_ptr().cast(), host.len()) })
    }

    /// Copies device memory to the host and waits for it (and for everything before it).
    ///
    /// # Errors
    /// Out of bounds, another device, a graph is being recorded, or the driver failed.
    pub fn read(&self, from: &Buffer, offset: usize, host: &mut [u8]) -> Result<()> {
        let core = ffi::core()?;
        let pointer = within(&from.0, offset, host.len(), "read")?;
        // SAFETY: the range is inside a live block; the library has written the bytes when it returns.
        check(core, unsafe { (core.ns_queue_read)(self.handle, host.as_mut_ptr().cast(), pointer, host.len()) })
    }

    /// [`Queue::write`] of numbers.
    ///
    /// # Errors
    /// As there.
    pub fn write_slice<T: Plain>(&self, to: &Buffer, offset: usize, numbers: &[T]) -> Result<()> {
        self.write(to, offset, bytes_of(numbers))
    }

    /// [`Queue::read`] of `count` numbers.
    ///
    /// # Errors
    /// As there.
    pub fn read_vec<T: Plain>(&self, from: &Buffer, offset: usize, count: usize) -> Result<Vec<T>> {
        let mut numbers = vec![T::default(); count];
        self.read(from, offset, bytes_of_mut(&mut numbers))?;
        Ok(numbers)
    }

    /// Copies between two blocks; does not wait.
    ///
    /// # Errors
    /// Out of bounds, another device, or the driver failed.
    pub fn copy(
        &self,
        to: &impl Memory,
        to_offset: usize,
        from: &impl Memory,
        from_offset: usize,
        bytes: usize,
    ) -> Result<()> {
        let core = ffi::core()?;
        let target = within(to.block(), to_offset, bytes, "copy to")?;
        let source = within(from.block(), from_offset, bytes, "copy from")?;
        self.use_host(to.in_use());
        self.use_host(from.in_use());
        self.cost(2 * bytes, 0);
        // SAFETY: both ranges are inside live blocks; a block that is dropped waits for the queues first.
        check(core, unsafe { (core.ns_queue_copy)(self.handle, target, source, bytes) })
    }

    /// Sets bytes; does not wait.
    ///
    /// # Errors
    /// Out of bounds, another device, or the driver failed.
    pub fn fill(&self, to: &Buffer, offset: usize, bytes: usize, byte: u8) -> Result<()> {
        let core = ffi::core()?;
        let pointer = within(&to.0, offset, bytes, "fill")?;
        self.cost(bytes, 0);
        // SAFETY: the range is inside a live block.
        check(core, unsafe { (core.ns_queue_fill)(self.handle, pointer, i32::from(byte), bytes) })
    }

    /// Waits until the queue is empty.
    ///
    /// # Errors
    /// Something on the queue failed, or a graph is being recorded.
    pub fn wait(&self) -> Result<()> {
        let core = ffi::core()?;
        // SAFETY: the handle is live.
        check(core, unsafe { (core.ns_queue_wait)(self.handle) })
    }

    /// What is given to this queue from now on starts after everything given to `other` so far. The host does not wait.
    ///
    /// # Errors
    /// The queues are of different devices, or the driver failed.
    pub fn after(&self, other: &Queue) -> Result<()> {
        let core = ffi::core()?;
        // SAFETY: both handles are live.
        check(core, unsafe { (core.ns_queue_after)(self.handle, other.handle) })
    }

    /// Starts a kernel over `global` work-items in groups of `local`, both `[x, y, z]` with x the fastest: SYCL's last dimension.
    /// An `nd_range_kernel<1>` takes `[n, 1, 1]`; in an `nd_range_kernel<2>`, `get_group(1)` runs along x and `get_group(0)` along y.
    ///
    /// # Errors
    /// Count, kind or size of the arguments, the group sizes or a buffer offset is wrong; nothing was started then. The text names kernel and argument.
    pub fn launch(&self, kernel: &Kernel, global: [usize; 3], local: [usize; 3], args: &[Arg<'_>]) -> Result<()> {
        let core = ffi::core()?;
        let mut raw = [RawArg { kind: 0, size: 0, value: RawValue { bits: 0 }, bytes_used: 0 }; MOST_ARGS];
        if args.len() > MOST_ARGS {
            return Err(wrong(kernel, &format!("takes {} arguments, {} were given", kernel.arg_count(), args.len())));
        }
        for (i, (raw, arg)) in raw.iter_mut().zip(args).enumerate() {
            *raw = self.raw_arg(kernel, i, arg)?;
        }
        // SAFETY: the arguments are checked against the kernel's description and their blocks by the library; what Bytes points to is copied before it returns.
        check(core, unsafe {
            (core.ns_launch)(self.handle, kernel.handle(), global.as_ptr(), local.as_ptr(), raw.as_ptr(), args.len())
        })
    }

    fn raw_arg(&self, kernel: &Kernel, index: usize, arg: &Arg<'_>) -> Result<RawArg> {
        let plain = |kind, size, bits| RawArg { kind, size, value: RawValue { bits }, bytes_used: 0 };
        let small = |n: usize| u32::try_from(n).map_err(|_| wrong(kernel, &format!("argument {index} has {n} bytes")));
        let pointer = |block: &Block, offset: usize| {
            if offset >= block.bytes {
                return Err(wrong(
                    kernel,
                    &format!("argument {index} starts at byte {offset} of a block of {} bytes", block.bytes),
                ));
            }
            Ok(RawArg {
                kind: ffi::ARG_POINTER,
                size: 8,
                value: RawValue {
                    // Inside the block, checked above.
                    pointer: block.pointer.cast::<u8>().wrapping_add(offset).cast(),
                },
                bytes_used: 1,
            })
        };
        Ok(match *arg {
            Arg::Buffer(b, offset) => pointer(&b.0, offset)?,
            Arg::Host(b, offset) => {
                self.use_host(Some(&b.in_use));
                pointer(&b.block, offset)?
            }
            Arg::I32(v) => plain(ffi::ARG_INT, 4, u64::from(v.cast_unsigned())),
            Arg::U32(v) => plain(ffi::ARG_INT, 4, u64::from(v)),
            Arg::I64(v) => plain(ffi::ARG_INT, 8, v.cast_unsigned()),
            Arg::U64(v) => plain(ffi::ARG_INT, 8, v),
            Arg::F32(v) => plain(ffi::ARG_FLOAT, 4, u64::from(v.to_bits())),
            Arg::Local(n) => plain(ffi::ARG_LOCAL, small(n)?, 0),
            Arg::Bytes(b) => RawArg {
                kind: ffi::ARG_BYTES,
                size: small(b.len())?,
                value: RawValue { pointer: b.as_ptr().cast() },
                bytes_used: 0,
            },
        })
    }

    /// From here to [`Queue::end_graph`], launches, copies and fills are recorded and not run.
    ///
    /// # Errors
    /// A graph is being recorded already, or the driver failed.
    pub fn begin_graph(&self) -> Result<()> {
        let core = ffi::core()?;
        // SAFETY: the handle is live.
        check(core, unsafe { (core.ns_graph_begin)(self.handle) })?;
        *self.recorded_hosts.borrow_mut() = Some(Vec::new());
        Ok(())
    }

    /// Ends the recording.
    ///
    /// # Errors
    /// Nothing is being recorded, or the driver failed.
    pub fn end_graph(&self) -> Result<Graph> {
        let core = ffi::core()?;
        let hosts = self.recorded_hosts.borrow_mut().take().unwrap_or_default();
        let mut handle = std::ptr::null_mut();
        // SAFETY: the handle is live; the graph is written on success.
        check(core, unsafe { (core.ns_graph_end)(self.handle, &raw mut handle) })?;
        Ok(Graph { handle, hosts, _device: self.device.clone() })
    }

    /// Drops what was recorded so far; the queue runs its work again. Nothing happens when no graph is being recorded.
    ///
    /// # Errors
    /// The driver failed.
    pub fn cancel_graph(&self) -> Result<()> {
        let core = ffi::core()?;
        self.recorded_hosts.borrow_mut().take();
        // SAFETY: the handle is live.
        check(core, unsafe { (core.ns_graph_cancel)(self.handle) })
    }

    /// Runs a recorded graph; does not wait.
    ///
    /// # Errors
    /// A block that the graph uses was dropped, another device, or the driver failed.
    pub fn replay(&self, graph: &Graph) -> Result<()> {
        let core = ffi::core()?;
        for flag in &graph.hosts {
            flag.store(true, Ordering::Release);
        }
        // SAFETY: both handles are live; the library checks that the graph's memory still is.
        check(core, unsafe { (core.ns_graph_replay)(self.handle, graph.handle) })
    }
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Queue({})", self.device.info().name)
    }
}

fn wrong(kernel: &Kernel, what: &str) -> Error {
    Error::new(ErrorKind::Argument, format!("kernel {} (module {}): {what}", kernel.name(), kernel.module().name()))
}

/// The address of a range that lies inside a block.
pub(crate) fn within(block: &Block, offset: usize, bytes: usize, what: &str) -> Result<*mut c_void> {
    if offset > block.bytes || bytes > block.bytes - offset {
        return Err(Error::new(
            ErrorKind::Argument,
            format!(
                "{what}: {bytes} bytes from byte {offset} on do not fit a block of {} bytes on {}",
                block.bytes,
                block.device.info().name
            ),
        ));
    }
    Ok(block.pointer.cast::<u8>().wrapping_add(offset).cast())
}

/// A recorded graph: launches that are given to the device at once.
pub struct Graph {
    handle: Handle,
    hosts: Vec<Arc<AtomicBool>>,
    _device: Device,
}

// SAFETY: graph functions of the library may be called from any thread.
unsafe impl Send for Graph {}

impl Drop for Graph {
    fn drop(&mut self) {
        if let Ok(core) = ffi::core() {
            // SAFETY: the handle is ours and is given back once; the library waits for replays first.
            unsafe { (core.ns_graph_release)(self.handle) };
        }
    }
}

impl Graph {
    /// Commands in it.
    #[must_use]
    pub fn size(&self) -> usize {
        // SAFETY: the handle is live.
        ffi::core().map_or(0, |core| unsafe { (core.ns_graph_size)(self.handle) })
    }

    /// "native" (the driver's own), "sycl", or "replayed" (launched one by one).
    #[must_use]
    pub fn form(&self) -> String {
        // SAFETY: the handle is live; the text is static.
        ffi::core().map_or_else(|_| String::new(), |core| unsafe { ffi::owned_text((core.ns_graph_form)(self.handle)) })
    }
}

impl std::fmt::Debug for Graph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Graph({} commands, {})", self.size(), self.form())
    }
}
