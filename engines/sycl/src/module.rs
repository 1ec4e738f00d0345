//! Modules and kernels.

use std::ffi::c_char;
use std::path::Path;
use std::sync::Arc;

use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::ffi::{self, Handle, check};

struct ModuleInner {
    handle: Handle,
    name: String,
    _device: Device,
}

// SAFETY: module functions of the library may be called from any thread.
unsafe impl Send for ModuleInner {}
// SAFETY: as above.
unsafe impl Sync for ModuleInner {}

impl Drop for ModuleInner {
    fn drop(&mut self) {
        if let Ok(core) = ffi::core() {
            // SAFETY: the handle is ours and is given back once.
            unsafe { (core.ns_module_release)(self.handle) };
        }
    }
}

/// Loaded device code. Clones share it.
#[derive(Clone)]
pub struct Module(Arc<ModuleInner>);

impl Module {
    pub(crate) fn load(device: &Device, dir: &Path, name: &str) -> Result<Self> {
        let core = ffi::core()?;
        let folder = dir
            .to_str()
            .ok_or_else(|| Error::new(ErrorKind::File, format!("{}: the path is not valid UTF-8", dir.display())))?;
        let (folder, text) = (ffi::c_text(folder)?, ffi::c_text(name)?);
        let mut handle = std::ptr::null_mut();
        // SAFETY: the context is live, the texts end with a zero, the handle is written on success.
        check(core, unsafe {
            (core.ns_module_load)(device.handle(), folder.as_ptr(), text.as_ptr(), &raw mut handle)
        })?;
        Ok(Self(Arc::new(ModuleInner { handle, name: name.to_owned(), _device: device.clone() })))
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Where its code came from: "native", "cache" or "spirv".
    ///
    /// # Errors
    /// The runtime cannot be reached.
    pub fn source(&self) -> Result<String> {
        let core = ffi::core()?;
        // SAFETY: the handle is live; the text is static.
        Ok(unsafe { ffi::owned_text((core.ns_module_source)(self.0.handle)) })
    }

    /// Names of its kernels.
    ///
    /// # Errors
    /// The runtime cannot be reached.
    pub fn kernel_names(&self) -> Result<Vec<String>> {
        let core = ffi::core()?;
        let mut names = Vec::new();
        loop {
            // SAFETY: the handle is live; null past the end.
            let text: *const c_char = unsafe { (core.ns_module_kernel_name)(self.0.handle, names.len()) };
            if text.is_null() {
                return Ok(names);
            }
            // SAFETY: a C string that lives as long as the module.
            names.push(unsafe { ffi::owned_text(text) });
        }
    }

    /// One kernel by name.
    ///
    /// # Errors
    /// The module has no such kernel (the text lists those it has), or the device cannot run it.
    pub fn kernel(&self, name: &str) -> Result<Kernel> {
        let core = ffi::core()?;
        let text = ffi::c_text(name)?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the module is live, the text ends with a zero, the handle is written on success.
        check(core, unsafe { (core.ns_kernel_get)(self.0.handle, text.as_ptr(), &raw mut handle) })?;
        Ok(Kernel(Arc::new(KernelInner { handle, name: name.to_owned(), module: self.clone() })))
    }
}

impl std::fmt::Debug for Module {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Module({})", self.0.name)
    }
}

struct KernelInner {
    handle: Handle,
    name: String,
    module: Module,
}

// SAFETY: kernel functions of the library may be called from any thread.
unsafe impl Send for KernelInner {}
// SAFETY: as above.
unsafe impl Sync for KernelInner {}

impl Drop for KernelInner {
    fn drop(&mut self) {
        if let Ok(core) = ffi::core() {
            // SAFETY: the handle is ours and is given back once.
            unsafe { (core.ns_kernel_release)(self.handle) };
        }
    }
}

/// A kernel, ready to launch. Clones share it.
#[derive(Clone)]
pub struct Kernel(Arc<KernelInner>);

impl Kernel {
    pub(crate) fn handle(&self) -> Handle {
        self.0.handle
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The module it is from.
    #[must_use]
    pub fn module(&self) -> &Module {
        &self.0.module
    }

    /// Its declared sub-group size.
    #[must_use]
    pub fn sub_group_size(&self) -> u32 {
        // SAFETY: the handle is live.
        ffi::core().map_or(0, |core| unsafe { (core.ns_kernel_sub_group_size)(self.0.handle) })
    }

    /// How many arguments it takes.
    #[must_use]
    pub fn arg_count(&self) -> usize {
        // SAFETY: the handle is live.
        ffi::core().map_or(0, |core| unsafe { (core.ns_kernel_arg_count)(self.0.handle) })
    }
}

impl std::fmt::Debug for Kernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Kernel({} of {})", self.0.name, self.0.module.0.name)
    }
}
