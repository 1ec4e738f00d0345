//! Matrix products of oneMKL and oneDNN.

use crate::device::{Device, DeviceClass};
use crate::error::{Error, ErrorKind, Result};
use crate::ffi::{self, check};
use crate::memory::Buffer;
use crate::queue::{Queue, within};

/// A matrix operand: a block and the byte offset of its first element.
pub type Operand<'a> = (&'a Buffer, usize);

/// Shape of `y[m][n] = x[m][k] * w[n][k]^T`, all row-major.
#[derive(Clone, Copy)]
struct Shape {
    m: usize,
    n: usize,
    k: usize,
}

/// Several products of one shape: operand `i` starts `i * stride` elements further on (a stride of 0 shares it).
#[derive(Clone, Copy, Debug)]
pub struct Batch {
    /// How many products.
    pub count: usize,
    /// Elements from one x to the next.
    pub stride_x: usize,
    /// Elements from one w to the next.
    pub stride_w: usize,
    /// Elements from one y to the next.
    pub stride_y: usize,
}

/// Sizes of a dimension as the C interface takes them.
fn size(value: usize) -> Result<i64> {
    i64::try_from(value).map_err(|_| Error::new(ErrorKind::Argument, format!("a product of size {value}")))
}

/// Checks one operand: `rows` rows of `cols` elements, `ld` apart, `batch` times `stride` apart.
fn operand(
    what: &str,
    op: Operand<'_>,
    (rows, cols, ld): (usize, usize, usize),
    (batch, stride): (usize, usize),
    element: usize,
) -> Result<*mut std::ffi::c_void> {
    let too_big =
        || Error::new(ErrorKind::Argument, format!("operand {what} of a product: {rows} x {cols} is too big"));
    if ld < cols {
        return Err(Error::new(
            ErrorKind::Argument,
            format!("operand {what} of a product: rows are {ld} elements apart but have {cols}"),
        ));
    }
    if !op.1.is_multiple_of(element) {
        return Err(Error::new(
            ErrorKind::Argument,
            format!("operand {what} of a product starts at byte {}, not at an element", op.1),
        ));
    }
    let bytes = (rows - 1)
        .checked_mul(ld)
        .and_then(|n| n.checked_add(cols))
        .and_then(|n| n.checked_add((batch - 1).checked_mul(stride)?))
        .and_then(|n| n.checked_mul(element))
        .ok_or_else(too_big)?;
    within(&op.0.0, op.1, bytes, &format!("operand {what} of a product"))
}

/// The libraries that have matrix products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GemmLibrary {
    /// oneMKL: every device and type.
    OneMkl,
    /// oneDNN: float products only; on processors with AVX-512 it is the faster one.
    OneDnn,
}

/// Matrix products on a device. The first product of a shape can take a while. On the CPU device they cannot be recorded into a graph.
#[derive(Clone)]
pub struct Gemm {
    device: Device,
    library: GemmLibrary,
}

/// Is a library switched off (a pretended card cannot run their kernels)?
fn switched_off(setting: &str, name: &str) -> Result<()> {
    if std::env::var_os(setting).is_some_and(|v| v == "0") {
        return Err(Error::new(ErrorKind::Unsupported, format!("{name} is switched off by {setting}=0")));
    }
    Ok(())
}

impl Gemm {
    /// Opens the library that suits the device: oneDNN on the CPU device where it is installed, else oneMKL.
    ///
    /// # Errors
    /// Neither is installed, or both are switched off by `NS_DNN=0` and `NS_MKL=0`.
    pub fn open(device: &Device) -> Result<Self> {
        if device.class() == DeviceClass::Cpu
            && let Ok(gemm) = Self::open_with(device, GemmLibrary::OneDnn)
        {
            return Ok(gemm);
        }
        Self::open_with(device, GemmLibrary::OneMkl)
    }

    /// Opens one library.
    ///
    /// # Errors
    /// It is not installed, or switched off.
    pub fn open_with(device: &Device, library: GemmLibrary) -> Result<Self> {
        match library {
            GemmLibrary::OneMkl => {
                switched_off("NS_MKL", "oneMKL")?;
                ffi::mkl()?;
            }
            GemmLibrary::OneDnn => {
                switched_off("NS_DNN", "oneDNN")?;
                ffi::dnn()?;
            }
        }
        Ok(Self { device: device.clone(), library })
    }

    /// The library that does float products.
    #[must_use]
    pub fn library(&self) -> GemmLibrary {
        self.library
    }

    #[allow(clippy::too_many_arguments)]
    fn run(
        &self,
        function: ffi::fn_gemm::Plain,
        queue: &Queue,
        shape: Shape,
        (x, ldx): (Operand<'_>, usize),
        (w, ldw): (Operand<'_>, usize),
        (y, ldy): (Operand<'_>, usize),
        (input, output): (usize, usize),
        beta: f32,
    ) -> Result<()> {
        let Shape { m, n, k } = shape;
        self.same_device(queue)?;
        if m == 0 || n == 0 || k == 0 {
            return Ok(());
        }
        let px = operand("x", x, (m, k, ldx), (1, 0), input)?;
        let pw = operand("w", w, (n, k, ldw), (1, 0), input)?;
        let py = operand("y", y, (m, n, ldy), (1, 0), output)?;
        queue.cost((m + n) * k * input + m * n * output, 2 * m * n * k);
        // SAFETY: every operand lies inside its live block; the queue orders the product like a kernel.
        let status = unsafe {
            function(queue.handle(), size(m)?, size(n)?, size(k)?, px, size(ldx)?, pw, size(ldw)?, py, size(ldy)?, beta)
        };
        check(ffi::core()?, status)
    }

    fn same_device(&self, queue: &Queue) -> Result<()> {
        if queue.device().handle() == self.device.handle() {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Argument,
            format!(
                "products opened for {} were given a queue of {}",
                self.device.info().name,
                queue.device().info().name
            ),
        ))
    }

    /// `y = x w^T + beta y` in float. Leading dimensions in elements, offsets in bytes.
    ///
    /// # Errors
    /// An operand is out of bounds, or oneMKL failed.
    #[allow(clippy::too_many_arguments, clippy::many_single_char_names)]
    pub fn f32(
        &self,
        queue: &Queue,
        m: usize,
        n: usize,
        k: usize,
        x: Operand<'_>,
        ldx: usize,
        w: Operand<'_>,
        ldw: usize,
        y: Operand<'_>,
        ldy: usize,
        beta: f32,
    ) -> Result<()> {
        if self.library == GemmLibrary::OneDnn {
            let types = (ElementType::F32, ElementType::F32);
            self.same_device(queue)?;
            return matmul(queue, types, m, n, k, x, ldx, w, ldw, y, ldy, beta);
        }
        let shape = Shape { m, n, k };
        self.run(ffi::mkl()?.f32, queue, shape, (x, ldx), (w, ldw), (y, ldy), (4, 4), beta)
    }

    /// The same with x and w in half and y in float; sums in float.
    ///
    /// # Errors
    /// As [`Gemm::f32`].
    #[allow(clippy::too_many_arguments, clippy::many_single_char_names)]
    pub fn f16(
        &self,
        queue: &Queue,
        m: usize,
        n: usize,
        k: usize,
        x: Operand<'_>,
        ldx: usize,
        w: Operand<'_>,
        ldw: usize,
        y: Operand<'_>,
        ldy: usize,
        beta: f32,
    ) -> Result<()> {
        let shape = Shape { m, n, k };
        self.run(ffi::mkl()?.f16_f32, queue, shape, (x, ldx), (w, ldw), (y, ldy), (2, 4), beta)
    }

    /// The same with x, w and y in half.
    ///
    /// # Errors
    /// As [`Gemm::f32`].
    #[allow(clippy::too_many_arguments, clippy::many_single_char_names)]
    pub fn f16_to_f16(
        &self,
        queue: &Queue,
        m: usize,
        n: usize,
        k: usize,
        x: Operand<'_>,
        ldx: usize,
        w: Operand<'_>,
        ldw: usize,
        y: Operand<'_>,
        ldy: usize,
        beta: f32,
    ) -> Result<()> {
        let shape = Shape { m, n, k };
        self.run(ffi::mkl()?.f16, queue, shape, (x, ldx), (w, ldw), (y, ldy), (2, 2), beta)
    }

    #[allow(clippy::too_many_arguments)]
    fn run_batch(
        &self,
        function: ffi::fn_gemm::Batch,
        queue: &Queue,
        shape: Shape,
        (x, ldx): (Operand<'_>, usize),
        (w, ldw): (Operand<'_>, usize),
        (y, ldy): (Operand<'_>, usize),
        batch: Batch,
        input: usize,
        beta: f32,
    ) -> Result<()> {
        let Shape { m, n, k } = shape;
        self.same_device(queue)?;
        if m == 0 || n == 0 || k == 0 || batch.count == 0 {
            return Ok(());
        }
        let px = operand("x", x, (m, k, ldx), (batch.count, batch.stride_x), input)?;
        let pw = operand("w", w, (n, k, ldw), (batch.count, batch.stride_w), input)?;
        let py = operand("y", y, (m, n, ldy), (batch.count, batch.stride_y), 4)?;
        queue.cost(batch.count * ((m + n) * k * input + m * n * 4), batch.count * 2 * m * n * k);
        // SAFETY: every operand of every product lies inside its live block.
        let status = unsafe {
            function(
                queue.handle(),
                size(m)?,
                size(n)?,
                size(k)?,
                px,
                size(ldx)?,
                size(batch.stride_x)?,
                pw,
                size(ldw)?,
                size(batch.stride_w)?,
                py,
                size(ldy)?,
                size(batch.stride_y)?,
                size(batch.count)?,
                beta,
            )
        };
        check(ffi::core()?, status)
    }

    /// [`Gemm::f32`] several times.
    ///
    /// # Errors
    /// As there.
    #[allow(clippy::too_many_arguments, clippy::many_single_char_names)]
    pub fn batch_f32(
        &self,
        queue: &Queue,
        m: usize,
        n: usize,
        k: usize,
        x: Operand<'_>,
        ldx: usize,
        w: Operand<'_>,
        ldw: usize,
        y: Operand<'_>,
        ldy: usize,
        batch: Batch,
        beta: f32,
    ) -> Result<()> {
        let shape = Shape { m, n, k };
        self.run_batch(ffi::mkl()?.batch_f32, queue, shape, (x, ldx), (w, ldw), (y, ldy), batch, 4, beta)
    }

    /// [`Gemm::f16`] several times.
    ///
    /// # Errors
    /// As there.
    #[allow(clippy::too_many_arguments, clippy::many_single_char_names)]
    pub fn batch_f16(
        &self,
        queue: &Queue,
        m: usize,
        n: usize,
        k: usize,
        x: Operand<'_>,
        ldx: usize,
        w: Operand<'_>,
        ldw: usize,
        y: Operand<'_>,
        ldy: usize,
        batch: Batch,
        beta: f32,
    ) -> Result<()> {
        let shape = Shape { m, n, k };
        self.run_batch(ffi::mkl()?.batch_f16_f32, queue, shape, (x, ldx), (w, ldw), (y, ldy), batch, 2, beta)
    }
}

/// Element types of [`Matmul`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElementType {
    /// 32-bit float.
    F32,
    /// Half.
    F16,
    /// bfloat16.
    Bf16,
    /// 8-bit integer.
    S8,
    /// 32-bit integer.
    S32,
}

impl ElementType {
    fn code(self) -> i32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Bf16 => 2,
            Self::S8 => 3,
            Self::S32 => 4,
        }
    }

    /// Bytes of one.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 | Self::S32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::S8 => 1,
        }
    }
}

/// oneDNN's product; the bounds of every operand are checked here.
#[allow(clippy::too_many_arguments, clippy::many_single_char_names)]
fn matmul(
    queue: &Queue,
    (input, output): (ElementType, ElementType),
    m: usize,
    n: usize,
    k: usize,
    x: Operand<'_>,
    ldx: usize,
    w: Operand<'_>,
    ldw: usize,
    y: Operand<'_>,
    ldy: usize,
    beta: f32,
) -> Result<()> {
    if m == 0 || n == 0 || k == 0 {
        return Ok(());
    }
    let px = operand("x", x, (m, k, ldx), (1, 0), input.bytes())?;
    let pw = operand("w", w, (n, k, ldw), (1, 0), input.bytes())?;
    let py = operand("y", y, (m, n, ldy), (1, 0), output.bytes())?;
    queue.cost((m + n) * k * input.bytes() + m * n * output.bytes(), 2 * m * n * k);
    // SAFETY: every operand lies inside its live block; the queue orders the product like a kernel.
    let status = unsafe {
        (ffi::dnn()?.ns_dnn_matmul)(
            queue.handle(),
            input.code(),
            output.code(),
            size(m)?,
            size(n)?,
            size(k)?,
            px,
            size(ldx)?,
            pw,
            size(ldw)?,
            py,
            size(ldy)?,
            beta,
        )
    };
    check(ffi::core()?, status)
}

/// oneDNN's matrix product on a device for any pair of element types it has; builds one implementation a shape and keeps it.
pub struct Matmul {
    device: Device,
}

impl Matmul {
    /// Opens oneDNN.
    ///
    /// # Errors
    /// The library is not installed, or `NS_DNN=0` switched it off.
    pub fn open(device: &Device) -> Result<Self> {
        switched_off("NS_DNN", "oneDNN")?;
        ffi::dnn()?;
        Ok(Self { device: device.clone() })
    }

    /// `y = x w^T + beta y`: x and w of one type, y of another.
    ///
    /// # Errors
    /// An operand is out of bounds, or this device has no implementation for the types ([`Error::is_unsupported`]).
    #[allow(clippy::too_many_arguments, clippy::many_single_char_names)]
    pub fn run(
        &self,
        queue: &Queue,
        types: (ElementType, ElementType),
        m: usize,
        n: usize,
        k: usize,
        x: Operand<'_>,
        ldx: usize,
        w: Operand<'_>,
        ldw: usize,
        y: Operand<'_>,
        ldy: usize,
        beta: f32,
    ) -> Result<()> {
        if queue.device().handle() != self.device.handle() {
            return Err(Error::new(
                ErrorKind::Argument,
                "products opened for one device were given a queue of another",
            ));
        }
        matmul(queue, types, m, n, k, x, ldx, w, ldw, y, ldy, beta)
    }
}
