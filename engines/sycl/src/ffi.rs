//! The C interface of `libns_sycl` (`kernels/runtime/ns.h`) and of its optional side libraries, bound when first used.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_LAZY, RTLD_LOCAL, RTLD_NOW};

use crate::error::{Error, ErrorKind, Result};
use crate::locations::Locations;

pub(crate) const ABI_VERSION: u32 = 3;

/// An object of the library; only ever seen through a pointer.
#[repr(C)]
pub(crate) struct Opaque {
    _private: [u8; 0],
}
pub(crate) type Handle = *mut Opaque;

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct RawDeviceInfo {
    pub name: [c_char; 256],
    pub backend: [c_char; 32],
    pub driver: [c_char; 64],
    pub selector: [c_char; 32],
    pub architecture: [c_char; 32],
    pub pci: [c_char; 32],
    pub device_class: u32,
    pub index: u32,
    pub vendor_id: u32,
    pub device_id: u32,
    pub compute_units: u32,
    pub max_work_group: u32,
    pub sub_group_sizes: u32,
    pub has_fp16: u32,
    pub has_fp64: u32,
    pub has_copy_engine: u32,
    pub has_native_graphs: u32,
    pub has_esimd: u32,
    pub has_matrix_units: u32,
    pub total_memory: u64,
    pub free_memory: u64,
    pub max_allocation: u64,
    pub local_memory: u64,
}

impl RawDeviceInfo {
    pub(crate) const EMPTY: Self = Self {
        name: [0; 256],
        backend: [0; 32],
        driver: [0; 64],
        selector: [0; 32],
        architecture: [0; 32],
        pci: [0; 32],
        device_class: 0,
        index: 0,
        vendor_id: 0,
        device_id: 0,
        compute_units: 0,
        max_work_group: 0,
        sub_group_sizes: 0,
        has_fp16: 0,
        has_fp64: 0,
        has_copy_engine: 0,
        has_native_graphs: 0,
        has_esimd: 0,
        has_matrix_units: 0,
        total_memory: 0,
        free_memory: 0,
        max_allocation: 0,
        local_memory: 0,
    };
}

/// Text of a fixed field that the library always ends with a zero.
pub(crate) fn field_text(field: &[c_char]) -> String {
    let bytes: Vec<u8> = field.iter().take_while(|c| **c != 0).map(|c| c.cast_unsigned()).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

pub(crate) const ARG_POINTER: u32 = 1;
pub(crate) const ARG_INT: u32 = 2;
pub(crate) const ARG_FLOAT: u32 = 3;
pub(crate) const ARG_BYTES: u32 = 4;
pub(crate) const ARG_LOCAL: u32 = 5;

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct RawArg {
    pub kind: u32,
    pub size: u32,
    pub value: RawValue,
    pub bytes_used: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) union RawValue {
    pub pointer: *const c_void,
    pub bits: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct RawProfileEntry {
    pub section: [c_char; 64],
    pub name: [c_char; 128],
    pub count: u64,
    pub nanoseconds: u64,
    pub bytes: u64,
    pub operations: u64,
}

impl RawProfileEntry {
    pub(crate) const EMPTY: Self =
        Self { section: [0; 64], name: [0; 128], count: 0, nanoseconds: 0, bytes: 0, operations: 0 };
}

/// Declares a table of functions and how to fill it from a library.
macro_rules! table {
    ($(#[$doc:meta])* $name:ident { $($field:ident: fn($($arg:ty),* $(,)?) $(-> $ret:ty)?;)* }) => {
        $(#[$doc])*
        pub(crate) struct $name { $(pub $field: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)* }
        impl $name {
            /// # Safety
            /// `library` must be the library this table describes, of the same ABI version.
            unsafe fn bind(library: &Library, path: &Path) -> Result<Self> {
                Ok(Self { $($field: {
                    let name = concat!(stringify!($field), "\0");
                    // SAFETY: the symbol has this type in ns.h; the library is never closed.
                    let symbol = unsafe { library.get::<unsafe extern "C" fn($($arg),*) $(-> $ret)?>(name.as_bytes()) };
                    *symbol.map_err(|e| Error::new(ErrorKind::Library, format!("{}: {}", path.display(), cause(&e))))?
                },)* })
            }
        }
    };
}

table! {
    /// `libns_sycl.so`.
    Core {
        ns_abi_version: fn() -> u32;
        ns_last_error: fn() -> *const c_char;
        ns_devices: fn(*const c_char, *mut RawDeviceInfo, usize, *mut usize) -> c_int;
        ns_context_open: fn(*const c_char, *mut Handle) -> c_int;
        ns_context_release: fn(Handle);
        ns_context_info: fn(Handle, *mut RawDeviceInfo) -> c_int;
        ns_context_wait: fn(Handle) -> c_int;
        ns_queue_create: fn(Handle, *mut Handle) -> c_int;
        ns_queue_create_copy: fn(Handle, *mut Handle) -> c_int;
        ns_queue_from_sycl: fn(*mut c_void, *mut Handle) -> c_int;
        ns_queue_context: fn(Handle) -> Handle;
        ns_context_retain: fn(Handle) -> c_int;
        ns_queue_release: fn(Handle);
        ns_queue_wait: fn(Handle) -> c_int;
        ns_queue_after: fn(Handle, Handle) -> c_int;
        ns_alloc: fn(Handle, c_int, usize, *mut *mut c_void) -> c_int;
        ns_free: fn(Handle, *mut c_void) -> c_int;
        ns_reserve: fn(Handle, u64) -> c_int;
        ns_memory_used: fn(Handle, *mut u64, *mut u64) -> c_int;
        ns_memory_margin: fn(Handle, *mut u64) -> c_int;
        ns_queue_write: fn(Handle, *mut c_void, *const c_void, usize) -> c_int;
        ns_queue_read: fn(Handle, *mut c_void, *const c_void, usize) -> c_int;
        ns_queue_copy: fn(Handle, *mut c_void, *const c_void, usize) -> c_int;
        ns_queue_fill: fn(Handle, *mut c_void, c_int, usize) -> c_int;
        ns_module_load: fn(Handle, *const c_char, *const c_char, *mut Handle) -> c_int;
        ns_module_release: fn(Handle);
        ns_module_source: fn(Handle) -> *const c_char;
        ns_module_kernel_name: fn(Handle, usize) -> *const c_char;
        ns_kernel_get: fn(Handle, *const c_char, *mut Handle) -> c_int;
        ns_kernel_release: fn(Handle);
        ns_kernel_sub_group_size: fn(Handle) -> u32;
        ns_kernel_arg_count: fn(Handle) -> usize;
        ns_launch: fn(Handle, Handle, *const usize, *const usize, *const RawArg, usize) -> c_int;
        ns_graph_begin: fn(Handle) -> c_int;
        ns_graph_end: fn(Handle, *mut Handle) -> c_int;
        ns_graph_cancel: fn(Handle) -> c_int;
        ns_graph_replay: fn(Handle, Handle) -> c_int;
        ns_graph_size: fn(Handle) -> usize;
        ns_graph_form: fn(Handle) -> *const c_char;
        ns_graph_release: fn(Handle);
        ns_profile_enable: fn(Handle, c_int) -> c_int;
        ns_profile_read: fn(Handle, *mut RawProfileEntry, usize, *mut usize) -> c_int;
        ns_profile_reset: fn(Handle) -> c_int;
        ns_queue_profiled: fn(Handle) -> c_int;
        ns_queue_section: fn(Handle, *const c_char) -> c_int;
        ns_queue_cost: fn(Handle, u64, u64) -> c_int;
    }
}

type Gemm = fn_gemm::Plain;
type GemmBatch = fn_gemm::Batch;
/// Signatures that several products share.
pub(crate) mod fn_gemm {
    use super::{Handle, c_int, c_void};
    pub(crate) type Plain = unsafe extern "C" fn(
        Handle,
        i64,
        i64,
        i64,
        *const c_void,
        i64,
        *const c_void,
        i64,
        *mut c_void,
        i64,
        f32,
    ) -> c_int;
    pub(crate) type Batch = unsafe extern "C" fn(
        Handle,
        i64,
        i64,
        i64,
        *const c_void,
        i64,
        i64,
        *const c_void,
        i64,
        i64,
        *mut c_void,
        i64,
        i64,
        i64,
        f32,
    ) -> c_int;
}

/// `libns_mkl.so`.
pub(crate) struct Mkl {
    pub f32: Gemm,
    pub f16_f32: Gemm,
    pub f16: Gemm,
    pub batch_f32: GemmBatch,
    pub batch_f16_f32: GemmBatch,
}

table! {
    /// `libns_dnn.so`.
    Dnn {
        ns_dnn_matmul: fn(Handle, c_int, c_int, i64, i64, i64, *const c_void, i64, *const c_void, i64, *mut c_void, i64, f32) -> c_int;
        ns_dnn_forget: fn(Handle);
    }
}

/// The loader's own words: they are the source of the error, whose text says only what was tried.
fn cause(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// Opens a library for the rest of the program's life.
fn open(path: &Path, flags: c_int) -> Result<Library> {
    // SAFETY: these are our own libraries and the SYCL runtime; their initialisers only read and set environment variables.
    unsafe { Library::open(Some(path), flags) }.map_err(|e| {
        let hint = if path.exists() {
            ""
        } else {
            " (NS_LIB names the folder of the libns_ libraries, NS_ONEAPI the oneAPI runtime)"
        };
        Error::new(ErrorKind::Library, format!("{}{hint}", cause(&e)))
    })
}

/// Opens libraries of the oneAPI prefix by their full path, so that the ones which need them find them already there.
fn preload(locations: &Locations, names: &[&str]) -> Result<()> {
    for name in names {
        let path: PathBuf = locations.oneapi.join("lib").join(name);
        if path.exists() {
            std::mem::forget(open(&path, RTLD_LAZY | RTLD_GLOBAL)?);
        }
    }
    Ok(())
}

fn load_core() -> Result<Core> {
    let locations = Locations::discover();
    preload(&locations, &["libsycl.so.9"])?;
    let path = locations.lib.join("libns_sycl.so");
    let library = open(&path, RTLD_NOW | RTLD_GLOBAL)?;
    // SAFETY: the library is libns_sycl; its ABI version is checked before anything else is called.
    let core = unsafe { Core::bind(&library, &path)? };
    // SAFETY: takes nothing, touches nothing.
    let version = unsafe { (core.ns_abi_version)() };
    if version != ABI_VERSION {
        return Err(Error::new(
            ErrorKind::Library,
            format!(
                "{} has interface version {version}, this program needs {ABI_VERSION}: both must come from one build",
                path.display()
            ),
        ));
    }
    std::mem::forget(library);
    Ok(core)
}

/// The core library, opened at the first call; the error of a failed try is kept.
pub(crate) fn core() -> Result<&'static Core> {
    static CORE: OnceLock<Result<Core>> = OnceLock::new();
    CORE.get_or_init(load_core).as_ref().map_err(Clone::clone)
}

fn load_mkl() -> Result<Mkl> {
    core()?;
    let locations = Locations::discover();
    preload(
        &locations,
        &[
            "libtbb.so.12",
            "libmkl_core.so.3",
            "libmkl_tbb_thread.so.3",
            "libmkl_intel_ilp64.so.3",
            "libmkl_sycl_blas.so.6",
        ],
    )?;
    let path = locations.lib.join("libns_mkl.so");
    let library = open(&path, RTLD_NOW | RTLD_LOCAL)?;
    let plain = |name: &str| -> Result<Gemm> {
        // SAFETY: the symbol has this type in ns.h; the library is never closed.
        unsafe { library.get::<Gemm>(name.as_bytes()) }
            .map(|s| *s)
            .map_err(|e| Error::new(ErrorKind::Library, format!("{}: {}", path.display(), cause(&e))))
    };
    let batch = |name: &str| -> Result<GemmBatch> {
        // SAFETY: as above.
        unsafe { library.get::<GemmBatch>(name.as_bytes()) }
            .map(|s| *s)
            .map_err(|e| Error::new(ErrorKind::Library, format!("{}: {}", path.display(), cause(&e))))
    };
    let mkl = Mkl {
        f32: plain("ns_mkl_gemm_f32")?,
        f16_f32: plain("ns_mkl_gemm_f16_f32")?,
        f16: plain("ns_mkl_gemm_f16")?,
        batch_f32: batch("ns_mkl_gemm_batch_f32")?,
        batch_f16_f32: batch("ns_mkl_gemm_batch_f16_f32")?,
    };
    std::mem::forget(library);
    Ok(mkl)
}

/// oneMKL's products, opened at the first call.
pub(crate) fn mkl() -> Result<&'static Mkl> {
    static MKL: OnceLock<Result<Mkl>> = OnceLock::new();
    MKL.get_or_init(load_mkl).as_ref().map_err(Clone::clone)
}

fn load_dnn() -> Result<Dnn> {
    core()?;
    let locations = Locations::discover();
    preload(&locations, &["libtbb.so.12", "libintlc.so.5", "libimf.so", "libsvml.so", "libdnnl.so.3"])?;
    let path = locations.lib.join("libns_dnn.so");
    let library = open(&path, RTLD_NOW | RTLD_LOCAL)?;
    // SAFETY: the library is libns_dnn of the same build (it links the libns_sycl that was checked).
    let dnn = unsafe { Dnn::bind(&library, &path)? };
    std::mem::forget(library);
    Ok(dnn)
}

static DNN: OnceLock<Result<Dnn>> = OnceLock::new();

/// oneDNN's products, opened at the first call.
pub(crate) fn dnn() -> Result<&'static Dnn> {
    DNN.get_or_init(load_dnn).as_ref().map_err(Clone::clone)
}

/// Does something with oneDNN where it was opened.
pub(crate) fn dnn_if_open(f: impl FnOnce(&Dnn)) {
    if let Some(Ok(dnn)) = DNN.get() {
        f(dnn);
    }
}

/// A status of the library as a result, with the text of this thread's last error.
pub(crate) fn check(core: &Core, status: c_int) -> Result<()> {
    if status == 0 {
        return Ok(());
    }
    // SAFETY: never null, ended by a zero, valid until the next failing call of this thread.
    let text = unsafe { CStr::from_ptr((core.ns_last_error)()) };
    Err(Error::new(ErrorKind::of_status(status), text.to_string_lossy().into_owned()))
}

/// A C string; a zero inside is an error of the caller.
pub(crate) fn c_text(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::new(ErrorKind::Argument, format!("{text:?} has a zero byte")))
}

/// Text that lives as long as the object it was asked from.
///
/// # Safety
/// `text` must be null or a C string.
pub(crate) unsafe fn owned_text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: promised by the caller.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
