//! Device memory and pinned host memory.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::device::Device;
use crate::error::Result;
use crate::ffi::{self, check};

const DEVICE: i32 = 0;
const HOST: i32 = 1;

/// One block of the library.
pub struct Block {
    pub device: Device,
    pub pointer: *mut c_void,
    pub bytes: usize,
}

// SAFETY: a block is an address and a length; the library's calls on it may come from any thread.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl Block {
    fn new(device: &Device, kind: i32, bytes: usize) -> Result<Self> {
        let core = ffi::core()?;
        let mut pointer = std::ptr::null_mut();
        // SAFETY: the context is live, the pointer is written on success.
        check(core, unsafe { (core.ns_alloc)(device.handle(), kind, bytes, &raw mut pointer) })?;
        Ok(Self { device: device.clone(), pointer, bytes })
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Ok(core) = ffi::core() {
            // SAFETY: the block is ours and is freed once; the library waits for work in flight first.
            unsafe { (core.ns_free)(self.device.handle(), self.pointer) };
        }
    }
}

/// Memory of the device. Only queues and kernels reach it.
pub struct Buffer(pub(crate) Block);

impl Buffer {
    pub(crate) fn new(device: &Device, bytes: usize) -> Result<Self> {
        Block::new(device, DEVICE, bytes).map(Self)
    }

    /// Size in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.bytes
    }

    /// Never: a block has at least one byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.bytes == 0
    }

    /// The device it is on.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.0.device
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} bytes)", self.0.bytes)
    }
}

/// Pinned host memory that queues copy from and to without waiting, and that kernels reach over the bus.
///
/// Looking at it waits for the device first when it was given to a queue since the last look.
pub struct HostBuffer {
    pub(crate) block: Block,
    pub(crate) in_use: Arc<AtomicBool>,
}

impl HostBuffer {
    pub(crate) fn new(device: &Device, bytes: usize) -> Result<Self> {
        let block = Block::new(device, HOST, bytes)?;
        // SAFETY: the block is host memory of that size and nobody else has it yet.
        unsafe { std::ptr::write_bytes(block.pointer.cast::<u8>(), 0, bytes) };
        Ok(Self { block, in_use: Arc::new(AtomicBool::new(false)) })
    }

    /// Size in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.block.bytes
    }

    /// Never: a block has at least one byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.block.bytes == 0
    }

    fn settle(&mut self) -> Result<()> {
        if self.in_use.swap(false, Ordering::AcqRel) {
            self.block.device.wait()?;
        }
        Ok(())
    }

    /// The bytes, to read.
    ///
    /// # Errors
    /// The driver failed while the device was waited for.
    pub fn read(&mut self) -> Result<&[u8]> {
        self.settle()?;
        // SAFETY: host memory of that size, initialised; no queue uses it (settled, and giving it to one needs a shared borrow).
        Ok(unsafe { std::slice::from_raw_parts(self.block.pointer.cast(), self.block.bytes) })
    }

    /// The bytes, to write.
    ///
    /// # Errors
    /// The driver failed while the device was waited for.
    pub fn write(&mut self) -> Result<&mut [u8]> {
        self.settle()?;
        // SAFETY: as in read, and the borrow is exclusive.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.block.pointer.cast(), self.block.bytes) })
    }
}

impl std::fmt::Debug for HostBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HostBuffer({} bytes)", self.block.bytes)
    }
}

mod sealed {
    pub trait Sealed {
        fn block(&self) -> &super::Block;
        /// Set whenever a queue is given this memory; `None` for memory the host never looks at.
        fn in_use(&self) -> Option<&std::sync::Arc<std::sync::atomic::AtomicBool>>;
    }
    impl Sealed for super::Buffer {
        fn block(&self) -> &super::Block {
            &self.0
        }
        fn in_use(&self) -> Option<&std::sync::Arc<std::sync::atomic::AtomicBool>> {
            None
        }
    }
    impl Sealed for super::HostBuffer {
        fn block(&self) -> &super::Block {
            &self.block
        }
        fn in_use(&self) -> Option<&std::sync::Arc<std::sync::atomic::AtomicBool>> {
            Some(&self.in_use)
        }
    }
}

/// Memory a queue can copy: [`Buffer`] or [`HostBuffer`].
pub trait Memory: sealed::Sealed {}
impl Memory for Buffer {}
impl Memory for HostBuffer {}
