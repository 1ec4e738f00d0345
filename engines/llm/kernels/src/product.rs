//! Prompt products: many rows of activations with a packed matrix.
//!
//! On the processor our own kernel reads the packed weights directly; expanding them for oneMKL is slower. On a graphics card the
//! weights are expanded to half, a slice of rows at a time, and oneMKL multiplies; without oneMKL our own kernel does it all. A silo goes
//! before both where the card has matrix units.

use std::sync::Arc;

use ns_sycl::{Arg, Buffer, Device, DeviceClass, Gemm, Kernel, Queue};

use crate::check::{Check, Strided};
use crate::matrix::Matrix;
use crate::silo::Silo;
use crate::{Kernels, Result};

/// Whether the processor has fewer than 32 vector registers: it then takes the kernels with fewer sums in flight.
pub(crate) fn narrow() -> bool {
    #[cfg(target_arch = "x86_64")]
    let wide = std::arch::is_x86_feature_detected!("avx512f");
    #[cfg(not(target_arch = "x86_64"))]
    let wide = false;
    !wide
}

/// Work-items of our own products and of a work-group.
fn range(class: DeviceClass, units: usize, narrow: bool, m: usize, n: usize) -> (usize, usize) {
    match class {
        DeviceClass::Cpu => {
            let across = n.div_ceil(if narrow { 16 } else { 64 });
            // several groups a core, but not so few rows that expanding the weights again counts
            let parts = (4 * units).div_ceil(across).clamp(1, m.div_ceil(48));
            (across * parts * 16, 16)
        }
        DeviceClass::Gpu => (n.div_ceil(64) * m.div_ceil(32) * 64, 64),
    }
}

/// What a prompt product needs beside the matrices.
pub struct Products {
    device: Device,
    mkl: Option<Mkl>,
    silo: Option<Arc<Silo>>,
}

struct Mkl {
    gemm: Gemm,
    weights: Buffer,
    rows: Buffer,
}

/// Sizes of the blocks that products through oneMKL need.
#[derive(Clone, Copy, Debug)]
pub struct Scratch {
    /// Most rows of activations of a product.
    pub rows: usize,
    /// Widest matrix.
    pub cols: usize,
    /// Bytes for expanded weights; at least one row of the widest matrix is taken.
    pub weights: usize,
}

impl Scratch {
    fn sizes(&self) -> (usize, usize) {
        let row = self.cols.saturating_mul(2);
        (self.weights.max(row), row.saturating_mul(self.rows))
    }

    /// Bytes on a device of a class.
    #[must_use]
    pub fn bytes(&self, class: DeviceClass) -> usize {
        let (weights, rows) = self.sizes();
        if class == DeviceClass::Gpu { weights.saturating_add(rows) } else { 0 }
    }
}

impl Products {
    /// Our own kernels alone: on any device.
    #[must_use]
    pub fn own(kernels: &Kernels) -> Self {
        Self { device: kernels.device().clone(), mkl: None, silo: None }
    }

    /// The fastest way of the device; without oneMKL (not installed or switched off) our own kernels.
    ///
    /// # Errors
    /// No memory, or the driver failed.
    pub fn open(kernels: &Kernels, scratch: Scratch) -> Result<Self> {
        let device = kernels.device();
        if device.class() == DeviceClass::Cpu {
            return Ok(Self::own(kernels));
        }
        let Ok(gemm) = Gemm::open(device) else { return Ok(Self::own(kernels)) };
        let (weights, rows) = scratch.sizes();
        let mkl = Mkl { gemm, weights: device.alloc(weights)?, rows: device.alloc(rows)? };
        Ok(Self { device: device.clone(), mkl: Some(mkl), silo: None })
    }

    /// The same with a silo before all else, for the products that it takes.
    #[must_use]
    pub fn with_silo(mut self, silo: Option<Arc<Silo>>) -> Self {
        self.silo = silo;
        self
    }

    /// Whether oneMKL is used.
    #[must_use]
    pub fn uses_mkl(&self) -> bool {
        self.mkl.is_some()
    }

    /// `y[r] (+)= W x[r]` for `r < m`, all float32.
    ///
    /// # Errors
    /// An operand does not fit, or the driver failed.
    #[expect(clippy::too_many_arguments, reason = "the operands of the product")]
    pub fn run(
        &self,
        kernels: &Kernels,
        queue: &Queue,
        matrix: &Matrix,
        x: Strided<'_>,
        m: usize,
        y: Strided<'_>,
        add: bool,
    ) -> Result<()> {
        let c = Check("product");
        let rows = c.size("m", m)?;
        let (n, k) = (matrix.rows(), matrix.cols());
        let ldx = c.rows("x", &x, m, k, 4)?;
        let ldy = c.rows("y", &y, m, n, 4)?;
        if let Some(silo) = &self.silo
            && silo.takes_product(matrix.ty(), m, n, k, &y)
        {
            return silo.product(queue, matrix.ty(), matrix.packed(), (m, n, k), x, y, add);
        }
        let Some(mkl) = &self.mkl else {
            let (kernel, narrow) = matrix.product_kernel(&self.device)?;
            let (global, local) = range(matrix.class(), matrix.units(), narrow, m, n);
            queue.cost(matrix.bytes() + m * (k + if add { 2 * n } else { n }) * 4, 2 * m * n * k);
            return Ok(queue.launch(
                &kernel,
                [global, 1, 1],
                [local, 1, 1],
                &[
                    Arg::Buffer(matrix.packed(), 0),
                    Arg::Buffer(x.buffer, x.offset),
                    Arg::Buffer(y.buffer, y.offset),
                    Arg::I32(rows),
                    Arg::I32(c.int("rows", n)?),
                    Arg::I32(c.int("cols", k)?),
                    Arg::I32(ldx),
                    Arg::I32(ldy),
                    Arg::I32(i32::from(add)),
                ],
            )?);
        };
        c.fits("the block for half rows", (&mkl.rows, 0), m.saturating_mul(k), 2)?;
        kernels.rows.convert_rows_f16(queue, x, (&mkl.rows, 0), (m, k))?;
        let slice = mkl.weights.len() / (2 * k);
        c.that(slice > 0, "the block for expanded weights is smaller than a row")?;
        let beta = if add { 1.0 } else { 0.0 };
        for first in (0..n).step_by(slice) {
            let count = slice.min(n - first);
            matrix.dequant_f16(queue, (&mkl.weights, 0), first, count)?;
            let to = (y.buffer, y.offset + first * 4);
            mkl.gemm.f16(queue, m, count, k, (&mkl.rows, 0), k, (&mkl.weights, 0), k, to, y.ld, beta)?;
        }
        Ok(())
    }
}

/// Products of plain row-major matrices by our own kernels, for what oneMKL cannot do.
pub struct OwnGemm {
    class: DeviceClass,
    units: usize,
    narrow: bool,
    f32: Kernel,
    f16: Kernel,
}

impl OwnGemm {
    /// Loads the module.
    ///
    /// # Errors
    /// It is missing or the device cannot run it.
    pub fn load(kernels: &Kernels) -> Result<Self> {
        let device = kernels.device();
        let class = device.class();
        let narrow = class == DeviceClass::Cpu && narrow();
        let module = device.load_module(kernels.dir(), "gemm")?;
        Ok(Self {
            class,
            units: device.info().compute_units.max(1) as usize,
            narrow,
            f32: module.kernel(if narrow { "gemm_f32_narrow" } else { "gemm_f32" })?,
            f16: module.kernel("gemm_f16")?,
        })
    }

    /// `y[m][n] (+)= x[m][k] w[n][k]^T`, all float32.
    ///
    /// # Errors
    /// An operand does not fit, or the driver failed.
    pub fn f32(
        &self,
        queue: &Queue,
        sizes: (usize, usize, usize),
        x: Strided<'_>,
        w: Strided<'_>,
        y: Strided<'_>,
        add: bool,
    ) -> Result<()> {
        self.run(queue, (&self.f32, self.narrow, 4), sizes, (x, w, y), add)
    }

    /// The same with x and w in half; sums and y in float32.
    ///
    /// # Errors
    /// As there.
    pub fn f16(
        &self,
        queue: &Queue,
        sizes: (usize, usize, usize),
        x: Strided<'_>,
        w: Strided<'_>,
        y: Strided<'_>,
        add: bool,
    ) -> Result<()> {
        self.run(queue, (&self.f16, false, 2), sizes, (x, w, y), add)
    }

    fn run(
        &self,
        queue: &Queue,
        (kernel, narrow, element): (&Kernel, bool, usize),
        (m, n, k): (usize, usize, usize),
        (x, w, y): (Strided<'_>, Strided<'_>, Strided<'_>),
        add: bool,
    ) -> Result<()> {
        let c = Check("gemm");
        let size = [c.size("m", m)?, c.size("n", n)?, c.size("k", k)?];
        let ldx = c.rows("x", &x, m, k, element)?;
        let ldw = c.rows("w", &w, n, k, element)?;
        let ldy = c.rows("y", &y, m, n, 4)?;
        let (global, local) = range(self.class, self.units, narrow, m, n);
        queue.cost((m + n) * k * element + m * n * 4, 2 * m * n * k);
        queue.launch(
            kernel,
            [global, 1, 1],
            [local, 1, 1],
            &[
                Arg::Buffer(x.buffer, x.offset),
                Arg::Buffer(w.buffer, w.offset),
                Arg::Buffer(y.buffer, y.offset),
                Arg::I32(size[0]),
                Arg::I32(size[1]),
                Arg::I32(size[2]),
                Arg::I32(ldx),
                Arg::I32(ldw),
                Arg::I32(ldy),
                Arg::I32(i32::from(add)),
            ],
        )?;
        Ok(())
    }
}
