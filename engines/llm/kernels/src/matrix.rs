//! Matrices of stored weights on a device: packing, products with few rows, expansion, embedding rows.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use ns_sycl::{Arg, Buffer, Device, DeviceClass, Kernel, Queue};
use ns_weights::TensorType;

use crate::check::{Check, Strided};
use crate::{At, Error, Kernels, Result};

/// Most rows of one launch of a matrix-vector product.
pub const MATVEC_ROWS: usize = 8;

/// Bytes of the block that raw tensors pass through on their way into a matrix (more when one row needs more).
const STAGING: usize = 16 << 20;

/// The types matrices can have.
pub const TYPES: [TensorType; 21] = [
    TensorType::F32,
    TensorType::F16,
    TensorType::BF16,
    TensorType::Q8_0,
    TensorType::Q4_0,
    TensorType::Q4_1,
    TensorType::Q5_0,
    TensorType::Q5_1,
    TensorType::Q6_K,
    TensorType::Q5_K,
    TensorType::Q4_K,
    TensorType::Q3_K,
    TensorType::Q2_K,
    TensorType::IQ4_NL,
    TensorType::IQ4_XS,
    TensorType::IQ3_S,
    TensorType::IQ3_XXS,
    TensorType::IQ2_S,
    TensorType::IQ2_XS,
    TensorType::IQ2_XXS,
    TensorType::IQ1_M,
];

/// Values and bytes of a block of the layouts; floats are kept in blocks of 32.
fn block(ty: TensorType) -> (u64, u64) {
    match ty {
        TensorType::F32 => (32, 128),
        TensorType::F16 | TensorType::BF16 => (32, 64),
        _ => (ty.block_elements() as u64, ty.block_bytes() as u64),
    }
}

/// Bytes that a block of the cpu layout has more than in the file: scales are stored one to a byte.
fn unpacked(ty: TensorType) -> u64 {
    match ty {
        TensorType::Q5_K | TensorType::Q4_K | TensorType::Q3_K => 4,
        TensorType::IQ4_XS => 2,
        _ => 0,
    }
}

/// Bytes of each plane's part of a block in the gpu layout.
fn planes(ty: TensorType) -> &'static [u64] {
    match ty {
        TensorType::F32 => &[128],
        TensorType::F16 | TensorType::BF16 => &[64],
        TensorType::Q8_0 => &[2, 32],
        TensorType::Q4_0 => &[2, 16],
        TensorType::Q4_1 => &[4, 16],
        TensorType::Q5_0 => &[2, 16, 4],
        TensorType::Q5_1 => &[4, 16, 4],
        TensorType::Q6_K => &[128, 64, 16, 2],
        TensorType::Q5_K => &[176],
        TensorType::Q4_K => &[144],
        TensorType::Q3_K => &[32, 64, 12, 2],
        TensorType::Q2_K => &[16, 64, 4],
        TensorType::IQ4_NL => &[2, 16],
        TensorType::IQ4_XS => &[8, 128],
        TensorType::IQ3_S => &[2, 64, 8, 32, 4],
        TensorType::IQ3_XXS => &[2, 64, 32],
        TensorType::IQ2_S => &[2, 32, 32, 8, 8],
        TensorType::IQ2_XS => &[2, 64, 8],
        TensorType::IQ2_XXS => &[2, 64],
        TensorType::IQ1_M => &[32, 16, 8],
        _ => &[],
    }
}

/// Items of a work-group of matrix-vector products on a graphics card. Where each work-group first reads a table of levels there are the
/// more rows in one, the larger the table is.
fn group_items(ty: TensorType) -> usize {
    match ty {
        TensorType::IQ2_S | TensorType::IQ1_M => 512,
        TensorType::IQ4_NL
        | TensorType::IQ4_XS
        | TensorType::IQ3_S
        | TensorType::IQ3_XXS
        | TensorType::IQ2_XS
        | TensorType::IQ2_XXS => 256,
        _ => 64,
    }
}

/// Work-groups of a silo's product: 4 sub-groups, which take 4 pairs of rows, or 2 or 1 where that leaves units without work.
pub(crate) fn pair_groups(rows: usize, units: usize) -> usize {
    let pairs = rows.div_ceil(2);
    let split = match units * 8 {
        threads if pairs >= threads => 1,
        threads if 2 * pairs >= threads => 2,
        _ => 4,
    };
    (pairs * split).div_ceil(4)
}

/// Rows of one stored tensor.
#[derive(Clone, Copy, Debug)]
pub struct RawRows<'a> {
    /// How many.
    pub rows: usize,
    /// Their bytes as in the file.
    pub data: &'a [u8],
}

/// The kernels of one type. The prompt product is a module of its own, loaded when it is first used.
struct TypeKernels {
    pack: Kernel,
    embed: Kernel,
    dequant_f32: Kernel,
    dequant_f16: Kernel,
    matvec: [Kernel; MATVEC_ROWS],
    /// Whether `matvec` takes two rows a sub-group and several sub-groups a pair (those of a silo).
    pairs: bool,
    product: OnceLock<(Kernel, bool)>,
}

/// The matrix modules of a device, each loaded when a matrix first needs it.
pub struct Matrices {
    device: Device,
    dir: PathBuf,
    types: Mutex<HashMap<TensorType, Arc<TypeKernels>>>,
    staging: Mutex<Option<Buffer>>,
    /// Where modules `matvec_<t>` that go before our own are looked for.
    silo: Mutex<Option<PathBuf>>,
}

impl Matrices {
    pub(crate) fn new(device: &Device, dir: &Path) -> Self {
        Self {
            device: device.clone(),
            dir: dir.to_owned(),
            types: Mutex::new(HashMap::new()),
            staging: Mutex::new(None),
            silo: Mutex::new(None),
        }
    }

    /// Frees the block that tensors are packed through; the next [`Matrix::pack`] makes it again.
    pub fn release_staging(&self) {
        *self.staging.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Takes the matrix-vector products of a silo's folder for the types that it has; for types not used yet.
    pub(crate) fn prefer(&self, silo: &Path) {
        *self.silo.lock().unwrap_or_else(PoisonError::into_inner) = Some(silo.to_owned());
    }

    fn of(&self, ty: TensorType) -> Result<Arc<TypeKernels>> {
        let mut types = self.types.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kernels) = types.get(&ty) {
            return Ok(kernels.clone());
        }
        if !TYPES.contains(&ty) {
            return Err(Error::argument(format!("matrices of type {ty} are not supported")));
        }
        let t = ty.name().to_ascii_lowercase();
        let module = self.device.load_module(&self.dir, &format!("matrix_{t}"))?;
        let silo = self.silo.lock().unwrap_or_else(PoisonError::into_inner);
        let silo = silo.as_ref().filter(|_| crate::silo::TYPES.contains(&ty));
        let products = match silo {
            Some(dir) => self.device.load_module(dir, &format!("matvec_{t}"))?,
            None => module.clone(),
        };
        let r = |m: usize| products.kernel(&format!("matvec_{t}_r{m}"));
        let kernels = Arc::new(TypeKernels {
            pack: module.kernel(&format!("pack_{t}"))?,
            embed: module.kernel(&format!("embed_{t}"))?,
            dequant_f32: module.kernel(&format!("dequant_f32_{t}"))?,
            dequant_f16: module.kernel(&format!("dequant_f16_{t}"))?,
            matvec: [r(1)?, r(2)?, r(3)?, r(4)?, r(5)?, r(6)?, r(7)?, r(8)?],
            pairs: silo.is_some(),
            product: OnceLock::new(),
        });
        types.insert(ty, kernels.clone());
        Ok(kernels)
    }
}

/// A matrix of stored weights in the layout of its device's class: `rows` outputs by `cols` inputs.
pub struct Matrix {
    ty: TensorType,
    rows: usize,
    cols: usize,
    class: DeviceClass,
    units: usize,
    dir: PathBuf,
    packed: Buffer,
    kernels: Arc<TypeKernels>,
}

impl Matrix {
    /// Bytes on a device of a matrix; `None` when matrices cannot have the type or the width.
    #[must_use]
    pub fn packed_bytes(ty: TensorType, rows: usize, cols: usize, class: DeviceClass) -> Option<u64> {
        if !TYPES.contains(&ty) || !cols.is_multiple_of(ty.block_elements()) {
            return None;
        }
        let (values, bytes) = block(ty);
        let blocks = (cols as u64).div_ceil(values);
        match class {
            DeviceClass::Cpu => {
                let bytes = bytes + unpacked(ty);
                (rows as u64).checked_next_multiple_of(16)?.checked_mul(blocks)?.checked_mul(bytes)
            }
            DeviceClass::Gpu => {
                let blocks = blocks.checked_mul(rows as u64)?;
                planes(ty).iter().try_fold(0_u64, |sum, bytes| {
                    sum.checked_add(blocks.checked_mul(*bytes)?.checked_next_multiple_of(256)?)
                })
            }
        }
    }

    /// Packs tensors of one type and width into a matrix, one below the other. The bytes go through a block of bounded size; the
    /// packing is on the queue when this returns, the tensors are no longer needed.
    ///
    /// # Errors
    /// The type or a size does not fit, no memory, or the driver failed.
    pub fn pack(kernels: &Kernels, queue: &Queue, ty: TensorType, cols: usize, parts: &[RawRows<'_>]) -> Result<Self> {
        let c = Check("pack");
        let all = &kernels.matrices;
        let class = all.device.class();
        let rows = parts.iter().fold(0_usize, |n, p| n.saturating_add(p.rows));
        let (n_rows, n_cols) = (c.size("rows", rows)?, c.size("cols", cols)?);
        let too_odd = || Error::argument(format!("a matrix of type {ty} cannot have {rows} rows of {cols} values"));
        let bytes = Self::packed_bytes(ty, rows, cols, class).ok_or_else(too_odd)?;
        let row_bytes = ty.row_bytes(cols).ok_or_else(too_odd)?;
        for part in parts {
            c.that(
                part.rows.checked_mul(row_bytes) == Some(part.data.len()),
                &format!("{} bytes are not {} rows of {cols} values of type {ty}", part.data.len(), part.rows),
            )?;
        }
        let own = all.of(ty)?;
        let packed = all.device.alloc(usize::try_from(bytes).map_err(|_| too_odd())?)?;

        let mut staging = all.staging.lock().unwrap_or_else(PoisonError::into_inner);
        if staging.as_ref().is_none_or(|s| s.len() < row_bytes) {
            *staging = Some(all.device.alloc(row_bytes.max(STAGING))?);
        }
        let Some(staging) = staging.as_ref() else { return Err(too_odd()) };
        let step = staging.len() / row_bytes;
        let blocks = cols.div_ceil(usize::try_from(block(ty).0).map_err(|_| too_odd())?);
        let mut first = 0;
        for part in parts {
            for raw in part.data.chunks(step * row_bytes) {
                let count = raw.len() / row_bytes;
                queue.write(staging, 0, raw)?;
                // one sub-group a block of 16 rows of the layout
                let groups = (first % 16 + count).div_ceil(16) * blocks;
                queue.cost(2 * raw.len(), count * cols);
                queue.launch(
                    &own.pack,
                    [groups.div_ceil(4) * 64, 1, 1],
                    [64, 1, 1],
                    &[
                        Arg::Buffer(staging, 0),
                        Arg::Buffer(&packed, 0),
                        Arg::I32(c.int("first_row", first)?),
                        Arg::I32(c.int("n_rows", count)?),
                        Arg::I32(n_rows),
                        Arg::I32(n_cols),
                    ],
                )?;
                first += count;
            }
        }
        // the block belongs to one queue at a time: another may pack next
        queue.wait()?;
        let units = all.device.info().compute_units.max(1) as usize;
        Ok(Self { ty, rows, cols, class, units, dir: all.dir.clone(), packed, kernels: own })
    }

    /// Outputs.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Inputs.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The stored type.
    #[must_use]
    pub fn ty(&self) -> TensorType {
        self.ty
    }

    /// Bytes on the device.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.packed.len()
    }

    /// Its block on the device.
    #[must_use]
    pub fn packed(&self) -> &Buffer {
        &self.packed
    }

    pub(crate) fn class(&self) -> DeviceClass {
        self.class
    }

    /// Compute units of the device.
    pub(crate) fn units(&self) -> usize {
        self.units
    }

    /// The prompt product's kernel, and whether it is the one for few vector registers.
    pub(crate) fn product_kernel(&self, device: &Device) -> Result<(Kernel, bool)> {
        if let Some(kernel) = self.kernels.product.get() {
            return Ok(kernel.clone());
        }
        let t = self.ty.name().to_ascii_lowercase();
        let module = device.load_module(&self.dir, &format!("product_{t}"))?;
        let narrow = self.class == DeviceClass::Cpu && crate::product::narrow();
        let name = if narrow { format!("product_narrow_{t}") } else { format!("product_{t}") };
        let kernel = (module.kernel(&name)?, narrow);
        Ok(self.kernels.product.get_or_init(|| kernel).clone())
    }

    /// `y[m] (+)= W act[m]` for `m < count`: up to [`MATVEC_ROWS`] rows a launch. The result of a row has the same bits whatever
    /// rows it runs with.
    ///
    /// # Errors
    /// An operand does not fit, or the driver failed.
    pub fn matvec(&self, queue: &Queue, act: Strided<'_>, count: usize, y: Strided<'_>, add: bool) -> Result<()> {
        let c = Check("matvec");
        c.size("rows of activations", count)?;
        let stride = c.act("act", &act, count, self.cols, self.class)?;
        let ldy = c.rows("y", &y, count, self.rows, 4)?;
        let (global, local) = self.matvec_range();
        let mut first = 0;
        while first < count {
            let now = (count - first).min(MATVEC_ROWS);
            let results = now * self.rows * 4 * if add { 2 } else { 1 };
            queue.cost(self.bytes() + now * act.ld + results, 2 * now * self.rows * self.cols);
            queue.launch(
                &self.kernels.matvec[now - 1],
                [global, 1, 1],
                [local, 1, 1],
                &[
                    Arg::Buffer(&self.packed, 0),
                    Arg::Buffer(act.buffer, act.offset + first * act.ld),
                    Arg::Buffer(y.buffer, y.offset + first * y.ld * 4),
                    Arg::I32(c.int("rows", self.rows)?),
                    Arg::I32(c.int("cols", self.cols)?),
                    Arg::I32(stride),
                    Arg::I32(ldy),
                    Arg::I32(i32::from(add)),
                ],
            )?;
            first += now;
        }
        Ok(())
    }

    /// Work-items of a matrix-vector product: a sub-group is 16 rows (cpu) or one row (gpu).
    fn matvec_range(&self) -> (usize, usize) {
        match self.class {
            DeviceClass::Cpu => {
                let groups = self.rows.div_ceil(16);
                let local = (groups / (8 * self.units)).clamp(1, 4) * 16;
                ((groups * 16).next_multiple_of(local), local)
            }
            DeviceClass::Gpu if self.kernels.pairs => {
                let groups = pair_groups(self.rows, self.units);
                (groups * 64, 64)
            }
            DeviceClass::Gpu => {
                let local = group_items(self.ty);
                ((self.rows * 16).next_multiple_of(local), local)
            }
        }
    }

    /// Rows `first..first + count` as float32, row-major without gaps.
    ///
    /// # Errors
    /// An operand does not fit, or the driver failed.
    pub fn dequant_f32(&self, queue: &Queue, out: At<'_>, first: usize, count: usize) -> Result<()> {
        self.dequant(queue, &self.kernels.dequant_f32, out, (first, count), 4)
    }

    /// Rows `first..first + count` as half, row-major without gaps.
    ///
    /// # Errors
    /// An operand does not fit, or the driver failed.
    pub fn dequant_f16(&self, queue: &Queue, out: At<'_>, first: usize, count: usize) -> Result<()> {
        self.dequant(queue, &self.kernels.dequant_f16, out, (first, count), 2)
    }

    fn dequant(
        &self,
        queue: &Queue,
        kernel: &Kernel,
        out: At<'_>,
        (first, count): (usize, usize),
        element: usize,
    ) -> Result<()> {
        let c = Check("dequant");
        c.size("rows", count)?;
        c.that(
            first.checked_add(count).is_some_and(|end| end <= self.rows),
            &format!("rows {first} and {count} more of a matrix of {}", self.rows),
        )?;
        c.fits("out", out, count.saturating_mul(self.cols), element)?;
        let local = self.row_items();
        queue.cost(self.bytes() / self.rows * count + count * self.cols * element, count * self.cols);
        queue.launch(
            kernel,
            [count * local, 1, 1],
            [local, 1, 1],
            &[
                Arg::Buffer(&self.packed, 0),
                Arg::Buffer(out.0, out.1),
                Arg::I32(c.int("first_row", first)?),
                Arg::I32(c.int("n_rows", count)?),
                Arg::I32(c.int("rows", self.rows)?),
                Arg::I32(c.int("cols", self.cols)?),
            ],
        )?;
        Ok(())
    }

    fn row_items(&self) -> usize {
        match self.class {
            DeviceClass::Cpu => 16,
            DeviceClass::Gpu => self.cols.next_multiple_of(16).clamp(16, 256),
        }
    }

    /// `out[i]` = row `ids[i]` as float32, without gaps, for `count` ids (i32 in device memory). An id outside the matrix gives zeros.
    ///
    /// # Errors
    /// An operand does not fit, or the driver failed.
    pub fn embed(&self, queue: &Queue, ids: At<'_>, count: usize, out: At<'_>) -> Result<()> {
        let c = Check("embed");
        let n = c.size("ids", count)?;
        c.fits("ids", ids, count, 4)?;
        c.fits("out", out, count.saturating_mul(self.cols), 4)?;
        let local = self.row_items();
        queue.cost((self.bytes() / self.rows + self.cols * 4) * count, count * self.cols);
        queue.launch(
            &self.kernels.embed,
            [count * local, 1, 1],
            [local, 1, 1],
            &[
                Arg::Buffer(&self.packed, 0),
                Arg::Buffer(ids.0, ids.1),
                Arg::Buffer(out.0, out.1),
                Arg::I32(n),
                Arg::I32(c.int("rows", self.rows)?),
                Arg::I32(c.int("cols", self.cols)?),
            ],
        )?;
        Ok(())
    }
}
