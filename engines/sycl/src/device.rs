//! Devices: finding them, their facts, and what is made from one.

use std::path::Path;
use std::sync::Arc;

use crate::error::Result;
use crate::ffi::{self, Handle, RawDeviceInfo, RawProfileEntry, check};
use crate::memory::{Buffer, HostBuffer};
use crate::module::Module;
use crate::queue::Queue;

/// What decides the variant of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceClass {
    /// A graphics card.
    Gpu,
    /// The processor through OpenCL.
    Cpu,
}

impl DeviceClass {
    /// The name of its module variant: "gpu" or "cpu".
    #[must_use]
    pub fn variant(self) -> &'static str {
        match self {
            Self::Gpu => "gpu",
            Self::Cpu => "cpu",
        }
    }
}

/// Facts of a device.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// Place among the devices of its family.
    pub index: u32,
    /// Name as the driver gives it.
    pub name: String,
    /// "level_zero", "opencl", ...
    pub backend: String,
    /// Driver version.
    pub driver: String,
    /// The selector that opens exactly this device.
    pub selector: String,
    /// Which module variant it runs.
    pub class: DeviceClass,
    /// Bytes of memory in all.
    pub total_memory: u64,
    /// Bytes free when this was read.
    pub free_memory: u64,
    /// Bytes of one block at most (Alchemist gives more than it says).
    pub max_alloc: u64,
    /// Bytes of local memory of a work-group.
    pub local_memory: u64,
    /// Compute units as SYCL counts them.
    pub compute_units: u32,
    /// Largest work-group.
    pub max_work_group: u32,
    /// Sub-group sizes among 8, 16, 32.
    pub sub_group_sizes: Vec<u32>,
    /// PCI address, "" when unknown.
    pub pci: String,
    /// PCI vendor.
    pub vendor_id: u32,
    /// PCI device, 0 when unknown.
    pub device_id: u32,
    /// "bmg-g21", "bmg-g31", "acm-g10" ... or "".
    pub architecture: String,
    /// Computes in half.
    pub has_fp16: bool,
    /// Computes in double.
    pub has_fp64: bool,
    /// Copies beside kernels.
    pub has_copy_engine: bool,
    /// The driver has graphs of its own.
    pub has_native_graphs: bool,
    /// Runs kernels of whole hardware threads (ESIMD).
    pub has_esimd: bool,
    /// Has units that multiply matrices.
    pub has_matrix_units: bool,
}

impl DeviceInfo {
    fn from_raw(raw: &RawDeviceInfo) -> Self {
        Self {
            index: raw.index,
            name: ffi::field_text(&raw.name),
            backend: ffi::field_text(&raw.backend),
            driver: ffi::field_text(&raw.driver),
            selector: ffi::field_text(&raw.selector),
            class: if raw.device_class == 1 { DeviceClass::Cpu } else { DeviceClass::Gpu },
            total_memory: raw.total_memory,
            free_memory: raw.free_memory,
            max_alloc: raw.max_allocation,
            local_memory: raw.local_memory,
            compute_units: raw.compute_units,
            max_work_group: raw.max_work_group,
            sub_group_sizes: [8, 16, 32].into_iter().filter(|s| raw.sub_group_sizes & s != 0).collect(),
            pci: ffi::field_text(&raw.pci),
            vendor_id: raw.vendor_id,
            device_id: raw.device_id,
            architecture: ffi::field_text(&raw.architecture),
            has_fp16: raw.has_fp16 != 0,
            has_fp64: raw.has_fp64 != 0,
            has_copy_engine: raw.has_copy_engine != 0,
            has_native_graphs: raw.has_native_graphs != 0,
            has_esimd: raw.has_esimd != 0,
            has_matrix_units: raw.has_matrix_units != 0,
        }
    }
}

/// The devices that fit a selector: "gpu", "gpu:N", "cpu", "all". None is no error.
///
/// # Errors
/// The selector is not known, or the runtime cannot be opened.
pub fn devices(selector: &str) -> Result<Vec<DeviceInfo>> {
    let core = ffi::core()?;
    let text = ffi::c_text(selector)?;
    let mut raw = vec![RawDeviceInfo::EMPTY; 64];
    let mut count = 0;
    // SAFETY: the text ends with a zero; the array has the capacity that is passed.
    check(core, unsafe { (core.ns_devices)(text.as_ptr(), raw.as_mut_ptr(), raw.len(), &raw mut count) })?;
    raw.truncate(count);
    Ok(raw.iter().map(DeviceInfo::from_raw).collect())
}

/// Time of one kernel in one section of the program, summed over its launches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelTime {
    /// The section, as [`crate::Queue::section`] named it; may be empty.
    pub section: String,
    /// The kernel's name; copies and fills are "(copy)" and "(fill)".
    pub name: String,
    /// Launches.
    pub count: u64,
    /// Time on the device in all.
    pub nanoseconds: u64,
    /// Bytes read and written, as [`crate::Queue::cost`] told.
    pub bytes: u64,
    /// Arithmetic operations, likewise.
    pub operations: u64,
}

pub(crate) struct Context {
    pub handle: Handle,
    pub info: DeviceInfo,
}

// SAFETY: every function of the library that takes a context may be called from any thread.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Drop for Context {
    fn drop(&mut self) {
        if let Ok(core) = ffi::core() {
            ffi::dnn_if_open(|dnn| {
                // SAFETY: the handle is live; what oneDNN built for it is built again should it be opened again.
                unsafe { (dnn.ns_dnn_forget)(self.handle) };
            });
            // SAFETY: the handle is ours and is given back once.
            unsafe { (core.ns_context_release)(self.handle) };
        }
    }
}

/// An open device. Clones share it; it closes when the last thing made from it is gone.
#[derive(Clone)]
pub struct Device(pub(crate) Arc<Context>);

impl Device {
    /// Opens the first device of a selector ("gpu", "gpu:N", "cpu"). Opening it twice gives the same memory and modules.
    ///
    /// # Errors
    /// No such device, or the runtime cannot be opened.
    pub fn open(selector: &str) -> Result<Self> {
        let core = ffi::core()?;
        let text = ffi::c_text(selector)?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the text ends with a zero, the handle is written on success.
        check(core, unsafe { (core.ns_context_open)(text.as_ptr(), &raw mut handle) })?;
        Self::from_handle(handle)
    }

    /// Takes over one count of a context.
    pub(crate) fn from_handle(handle: Handle) -> Result<Self> {
        let core = ffi::core()?;
        let mut raw = RawDeviceInfo::EMPTY;
        // SAFETY: the handle is live.
        let status = unsafe { (core.ns_context_info)(handle, &raw mut raw) };
        let context = Context { handle, info: DeviceInfo::from_raw(&raw) };
        check(core, status)?;
        Ok(Self(Arc::new(context)))
    }

    pub(crate) fn handle(&self) -> Handle {
        self.0.handle
    }

    /// Facts, as they were when the device was opened.
    #[must_use]
    pub fn info(&self) -> &DeviceInfo {
        &self.0.info
    }

    /// Which module variant it runs.
    #[must_use]
    pub fn class(&self) -> DeviceClass {
        self.0.info.class
    }

    /// Bytes free now, as far as the driver says.
    ///
    /// # Errors
    /// The driver failed.
    pub fn free_memory(&self) -> Result<u64> {
        let core = ffi::core()?;
        let mut raw = RawDeviceInfo::EMPTY;
        // SAFETY: the handle is live.
        check(core, unsafe { (core.ns_context_info)(self.handle(), &raw mut raw) })?;
        Ok(raw.free_memory)
    }

    /// Bytes this program holds in device memory: now, and at most so far.
    ///
    /// # Errors
    /// The runtime failed.
    pub fn memory_used(&self) -> Result<(u64, u64)> {
        let core = ffi::core()?;
        let (mut now, mut peak) = (0, 0);
        // SAFETY: the handle is live.
        check(core, unsafe { (core.ns_memory_used)(self.handle(), &raw mut now, &raw mut peak) })?;
        Ok((now, peak))
    }

    /// Bytes of its memory that allocations leave free.
    ///
    /// # Errors
    /// The setting for it cannot be read.
    pub fn margin(&self) -> Result<u64> {
        let core = ffi::core()?;
        let mut bytes = 0;
        // SAFETY: the handle is live.
        check(core, unsafe { (core.ns_memory_margin)(self.handle(), &raw mut bytes) })?;
        Ok(bytes)
    }

    /// A queue that runs its work in order.
    ///
    /// # Errors
    /// The driver failed.
    pub fn queue(&self) -> Result<Queue> {
        Queue::create(self, false)
    }

    /// A queue for copies beside kernels: the copy engine where there is one, else a second queue.
    ///
    /// # Errors
    /// The driver failed.
    pub fn copy_queue(&self) -> Result<Queue> {
        Queue::create(self, true)
    }

    /// Device memory; freed when dropped. Its content is undefined at first.
    ///
    /// # Errors
    /// It does not fit.
    pub fn alloc(&self, bytes: usize) -> Result<Buffer> {
        Buffer::new(self, bytes)
    }

    /// Pinned host memory, zeroed; freed when dropped.
    ///
    /// # Errors
    /// The driver refuses it (Alchemist: more than 4 GiB in one block).
    pub fn alloc_host(&self, bytes: usize) -> Result<HostBuffer> {
        HostBuffer::new(self, bytes)
    }

    /// Would that much device memory be given now?
    ///
    /// # Errors
    /// It does not fit; the text has the sizes.
    pub fn reserve(&self, bytes: u64) -> Result<()> {
        let core = ffi::core()?;
        // SAFETY: the handle is live.
        check(core, unsafe { (core.ns_reserve)(self.handle(), bytes) })
    }

    /// Loads `DIR/NAME.VARIANT.json` and its code: native for the card, else this machine's cache, else SPIR-V.
    ///
    /// # Errors
    /// A file is missing or damaged, or the driver refuses the code.
    pub fn load_module(&self, dir: &Path, name: &str) -> Result<Module> {
        Module::load(self, dir, name)
    }

    /// Waits until every queue of the device is empty.
    ///
    /// # Errors
    /// The driver failed.
    pub fn wait(&self) -> Result<()> {
        let core = ffi::core()?;
        // SAFETY: the handle is live.
        check(core, unsafe { (core.ns_context_wait)(self.handle()) })
    }

    /// Times every kernel of the queues created from now on (`NS_PROFILE=1` or `gpu` does it from the start). Slows everything down.
    ///
    /// # Errors
    /// The runtime failed.
    pub fn profile_enable(&self, on: bool) -> Result<()> {
        let core = ffi::core()?;
        // SAFETY: the handle is live.
        check(core, unsafe { (core.ns_profile_enable)(self.handle(), i32::from(on)) })
    }

    /// Times so far, the longest first.
    ///
    /// # Errors
    /// The driver failed.
    pub fn profile(&self) -> Result<Vec<KernelTime>> {
        let core = ffi::core()?;
        let mut raw = vec![RawProfileEntry::EMPTY; 4096];
        let mut count = 0;
        // SAFETY: the array has the capacity that is passed.
        check(core, unsafe { (core.ns_profile_read)(self.handle(), raw.as_mut_ptr(), raw.len(), &raw mut count) })?;
        raw.truncate(count);
        Ok(raw
            .iter()
            .map(|e| KernelTime {
                section: ffi::field_text(&e.section),
                name: ffi::field_text(&e.name),
                count: e.count,
                nanoseconds: e.nanoseconds,
                bytes: e.bytes,
                operations: e.operations,
            })
            .collect())
    }

    /// Forgets the times so far.
    ///
    /// # Errors
    /// The driver failed.
    pub fn profile_reset(&self) -> Result<()> {
        let core = ffi::core()?;
        // SAFETY: the handle is live.
        check(core, unsafe { (core.ns_profile_reset)(self.handle()) })
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Device({}, {})", self.0.info.selector, self.0.info.name)
    }
}
