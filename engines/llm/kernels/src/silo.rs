//! Kernels tuned for one architecture of models on Arc cards: prompt attention and prompt products on the matrix units, and products
//! with few rows.
//!
//! The first two are ESIMD kernels: a work-item is a hardware thread. The cpu variant of their modules is the twin, the same indexing code over
//! plain multiply-adds, which reads the gpu layout of matrices too: it is there for tests, and engines do not take it.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use ns_sycl::{Arg, Buffer, Device, DeviceClass, Kernel, Module, Queue};
use ns_weights::TensorType;

use crate::attention::{Cache, Chunk, Heads, KvPrecision, split_cost};
use crate::check::{Check, Strided};
use crate::matrix::Matrix;
use crate::{Error, Kernels, Result};

/// The types whose prompt products are made on the matrix units.
pub const TYPES: [TensorType; 3] = [TensorType::Q8_0, TensorType::Q4_K, TensorType::Q6_K];

/// Values of a head, as compiled into the attention kernels.
const HEAD: usize = 256;
/// Rows and threads of a head's part of a work-group of the attention kernels.
const ATTENTION_ROWS: usize = 32;
const ATTENTION_THREADS: usize = 8;
/// Columns of a thread's tile, and threads of a work-group, of the products.
const PRODUCT_COLUMNS: usize = 32;
const PRODUCT_THREADS: usize = 16;
/// Threads of 256 registers that a unit holds.
const THREADS_OF_UNIT: usize = 4;
/// What the block loads and stores can address: bytes of a row and numbers of rows.
const MOST: usize = 1 << 24;

/// Sizes of the block for activations in half.
#[derive(Clone, Copy, Debug)]
pub struct SiloScratch {
    /// Most rows of a prompt chunk.
    pub rows: usize,
    /// Widest matrix.
    pub cols: usize,
    /// Query heads.
    pub n_heads: usize,
}

impl SiloScratch {
    /// Bytes on the device.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.cols.max(self.n_heads.saturating_mul(HEAD)).saturating_mul(self.rows).saturating_mul(2)
    }
}

/// The kernels of one architecture's silo.
pub struct Silo {
    device: Device,
    dir: std::path::PathBuf,
    rows: Kernel,
    queries: Kernel,
    /// By heads of a work-group: 1, 2, 4.
    attention: [Kernel; 3],
    /// By rows of a tile: 64, 32.
    products: Mutex<HashMap<TensorType, [Kernel; 2]>>,
    half: Buffer,
}

impl Silo {
    /// The silo of an architecture ("qwen35") where the device has matrix units; `None` elsewhere, and when `NS_SILO=0` switches silos
    /// off. Matrices packed afterwards take its products with few rows too.
    ///
    /// # Errors
    /// A module is missing or damaged, no memory, or the driver failed.
    pub fn open(kernels: &Kernels, architecture: &str, scratch: SiloScratch) -> Result<Option<Self>> {
        if !Self::wanted(kernels.device()) {
            return Ok(None);
        }
        let dir = kernels.dir().join(architecture).join("silo");
        let silo = Self::load(kernels.device(), &dir, scratch)?;
        kernels.matrices.prefer(&dir);
        Ok(Some(silo))
    }

    /// Whether [`Silo::open`] opens one.
    #[must_use]
    pub fn wanted(device: &Device) -> bool {
        let info = device.info();
        // sub-groups of 16 and none of 8: tiles of 16 lanes, as on the Battlemage family
        let fits = device.class() == DeviceClass::Gpu
            && info.has_esimd
            && info.has_matrix_units
            && info.has_fp16
            && info.sub_group_sizes.contains(&16)
            && !info.sub_group_sizes.contains(&8);
        fits && std::env::var_os("NS_SILO").is_none_or(|v| v != "0")
    }

    /// Loads the modules in `dir`, whatever the device: on the CPU device the twins.
    ///
    /// # Errors
    /// A module is missing, the device cannot run it, or no memory.
    pub fn load(device: &Device, dir: &Path, scratch: SiloScratch) -> Result<Self> {
        let rows = device.load_module(dir, "rows")?;
        let attention = device.load_module(dir, "attention")?;
        Ok(Self {
            device: device.clone(),
            dir: dir.to_owned(),
            rows: rows.kernel("rows_f16")?,
            queries: rows.kernel("queries_f16")?,
            attention: [
                attention.kernel("attn_prompt_g1")?,
                attention.kernel("attn_prompt_g2")?,
                attention.kernel("attn_prompt_g4")?,
            ],
            products: Mutex::new(HashMap::new()),
            half: device.alloc(scratch.bytes())?,
        })
    }

    /// Work-items of a thread.
    fn items(&self) -> usize {
        match self.device.class() {
            DeviceClass::Gpu => 1,
            DeviceClass::Cpu => 16,
        }
    }

    fn product_kernels(&self, ty: TensorType) -> Result<[Kernel; 2]> {
        let mut products = self.products.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kernels) = products.get(&ty) {
            return Ok(kernels.clone());
        }
        if !TYPES.contains(&ty) {
            return Err(Error::argument(format!("products of type {ty} on the matrix units are not supported")));
        }
        let t = ty.name().to_ascii_lowercase();
        let module: Module = self.device.load_module(&self.dir, &format!("product_{t}"))?;
        let kernels = [module.kernel(&format!("product_{t}_m64"))?, module.kernel(&format!("product_{t}_m32"))?];
        products.insert(ty, kernels.clone());
        Ok(kernels)
    }

    /// Whether a product with a matrix of this type and size can run here: see [`Silo::product`].
    #[must_use]
    pub fn takes_product(&self, ty: TensorType, m: usize, n: usize, k: usize, y: &Strided<'_>) -> bool {
        // the narrowest plane is one of 2-D block loads: 64 bytes a row at least
        let widths = match ty {
            TensorType::Q8_0 => k.is_multiple_of(32) && k >= 64,
            TensorType::Q4_K => k.is_multiple_of(256) && k > 0,
            TensorType::Q6_K => k.is_multiple_of(256) && k >= 1024,
            _ => false,
        };
        widths
            && (16..=MOST / 4).contains(&n)
            && (1..=MOST).contains(&m)
            && k <= MOST / 2
            && y.ld <= MOST / 4
            && y.ld.is_multiple_of(4)
            && y.offset.is_multiple_of(64)
            && m.checked_mul(k).is_some_and(|v| v <= self.half.len() / 2)
    }

    /// `y[r] (+)= W x[r]` for `r < m`, with `packed` a matrix of n rows and k columns in the gpu layout. Weights and activations are
    /// rounded to half, sums in float32. A row's bits do not depend on m.
    ///
    /// # Errors
    /// [`Silo::takes_product`] is false, an operand does not fit, or the driver failed.
    #[expect(clippy::too_many_arguments, reason = "the operands of the product")]
    pub fn product(
        &self,
        queue: &Queue,
        ty: TensorType,
        packed: &Buffer,
        (m, n, k): (usize, usize, usize),
        x: Strided<'_>,
        y: Strided<'_>,
        add: bool,
    ) -> Result<()> {
        let c = Check("silo product");
        let kernels = self.product_kernels(ty)?;
        let size = [c.size("m", m)?, c.size("rows", n)?, c.size("cols", k)?];
        let ldx = c.rows("x", &x, m, k, 4)?;
        let ldy = c.rows("y", &y, m, n, 4)?;
        c.that(
            self.takes_product(ty, m, n, k, &y),
            &format!("{m} rows with {n} x {k} of type {ty} do not fit its blocks"),
        )?;
        let bytes = Matrix::packed_bytes(ty, n, k, DeviceClass::Gpu).and_then(|b| usize::try_from(b).ok());
        c.that(bytes.is_some_and(|b| b <= packed.len()), "the matrix is smaller than its gpu layout")?;
        queue.cost(m * k * 6, m * k);
        queue.launch(
            &self.rows,
            [m * 256, 1, 1],
            [256, 1, 1],
            &[Arg::Buffer(x.buffer, x.offset), Arg::Buffer(&self.half, 0), Arg::I32(size[2]), Arg::I32(ldx)],
        )?;
        // large tiles where they fill the card
        let across = n.div_ceil(PRODUCT_COLUMNS);
        let threads = self.device.info().compute_units.max(1) as usize * THREADS_OF_UNIT;
        let (kernel, tile) = match m.div_ceil(64) * across {
            full if full >= threads => (&kernels[0], 64),
            _ => (&kernels[1], 32),
        };
        let tiles = m.div_ceil(tile);
        let share = if tiles > 2 { 4 } else { tiles };
        let groups = tiles.div_ceil(share) * across.div_ceil(PRODUCT_THREADS / share);
        let local = PRODUCT_THREADS * self.items();
        queue.cost(packed.len() + m * k * 2 + m * n * if add { 8 } else { 4 }, 2 * m * n * k);
        Ok(queue.launch(
            kernel,
            [groups * local, 1, 1],
            [local, 1, 1],
            &[
                Arg::Buffer(packed, 0),
                Arg::Buffer(&self.half, 0),
                Arg::Buffer(y.buffer, y.offset),
                Arg::I32(size[0]),
                Arg::I32(size[1]),
                Arg::I32(size[2]),
                Arg::I32(ldy),
                Arg::I32(i32::from(add)),
            ],
        )?)
    }

    /// Whether the attention of a chunk can run here: see [`Silo::prompt`].
    #[must_use]
    pub fn takes_prompt(&self, cache: &Cache<'_>, out: &Strided<'_>, chunk: Chunk, heads: Heads) -> bool {
        cache.precision == KvPrecision::F16
            && heads.head_dim == HEAD
            && chunk.rows <= MOST
            && chunk.position.saturating_add(chunk.rows) <= MOST / 8
            && heads.n_heads <= MOST / (2 * HEAD)
            && out.ld <= MOST / 4
            && out.ld.is_multiple_of(4)
            && out.offset.is_multiple_of(64)
            && (chunk.rows * heads.n_heads).checked_mul(2 * HEAD).is_some_and(|v| v <= self.half.len())
    }

    /// Causal attention of a chunk as [`crate::attention::Attention::prompt`]: heads of 256 values, the cache in half. Queries and
    /// weights are rounded to half, sums in float32. A row's bits do not depend on the chunk.
    ///
    /// # Errors
    /// [`Silo::takes_prompt`] is false, an operand does not fit, or the driver failed.
    #[expect(clippy::too_many_arguments, reason = "the operands of the kernel")]
    pub fn prompt(
        &self,
        queue: &Queue,
        q: Strided<'_>,
        cache: &Cache<'_>,
        out: Strided<'_>,
        chunk: Chunk,
        heads: Heads,
        scale: f32,
    ) -> Result<()> {
        let c = Check("silo attn_prompt");
        let rows = c.size("rows", chunk.rows)?;
        heads.check(c)?;
        cache.check(c, heads)?;
        let columns = heads.n_heads * heads.head_dim;
        let ldq = c.rows("q", &q, chunk.rows, columns, 4)?;
        let ldo = c.rows("out", &out, chunk.rows, columns, 4)?;
        chunk.check(c, cache)?;
        c.that(self.takes_prompt(cache, &out, chunk, heads), "this chunk does not fit its blocks")?;
        let n_heads = c.size("n_heads", heads.n_heads)?;
        queue.cost(chunk.rows * columns * 6, chunk.rows * columns);
        queue.launch(
            &self.queries,
            [chunk.rows * 256, 1, 1],
            [256, 1, 1],
            &[Arg::Buffer(q.buffer, q.offset), Arg::Buffer(&self.half, 0), Arg::I32(n_heads), Arg::I32(ldq)],
        )?;
        let (kernel, together) = match heads.n_heads / heads.n_kv {
            n if n.is_multiple_of(4) => (&self.attention[2], 4),
            n if n.is_multiple_of(2) => (&self.attention[1], 2),
            _ => (&self.attention[0], 1),
        };
        let local = together * ATTENTION_THREADS * self.items();
        let groups = heads.n_heads / together * chunk.rows.div_ceil(ATTENTION_ROWS);
        let (bytes, _) = split_cost(heads, cache.precision, chunk.position + chunk.rows);
        let pairs = chunk.rows * chunk.position + chunk.rows * (chunk.rows + 1) / 2;
        queue.cost(chunk.rows * columns * 6 + bytes, 4 * columns * pairs);
        Ok(queue.launch(
            kernel,
            [groups * local, 1, 1],
            [local, 1, 1],
            &[
                Arg::Buffer(&self.half, 0),
                Arg::Buffer(cache.buffer, 0),
                Arg::Buffer(out.buffer, out.offset),
                Arg::I32(rows),
                Arg::I32(c.int("position", chunk.position)?),
                Arg::I64((chunk.first_cell * heads.head_dim) as i64),
                Arg::I32(ldo),
                Arg::I32(n_heads),
                Arg::I32(c.size("n_kv", heads.n_kv)?),
                Arg::I64(cache.layer_offset(heads)),
                Arg::I32(c.size("cells", cache.cells)?),
                Arg::F32(scale),
            ],
        )?)
    }
}
