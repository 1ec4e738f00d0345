//! Bounds of operands.

use ns_sycl::Buffer;

use crate::{At, Error, Result};

/// Rows of float32 (or of bytes for activation rows) at equal distances.
#[derive(Clone, Copy, Debug)]
pub struct Strided<'a> {
    /// The block.
    pub buffer: &'a Buffer,
    /// Byte offset of the first row.
    pub offset: usize,
    /// Distance of rows in elements.
    pub ld: usize,
}

/// Rows from the start of a block on, `ld` elements apart.
#[must_use]
pub fn at(buffer: &Buffer, ld: usize) -> Strided<'_> {
    Strided { buffer, offset: 0, ld }
}

/// One launch under construction: what its messages name.
#[derive(Clone, Copy)]
pub struct Check(pub &'static str);

impl Check {
    fn error(self, what: &str) -> Error {
        Error::argument(format!("kernel {}: {what}", self.0))
    }

    /// A size as the kernels take it.
    ///
    /// # Errors
    /// It is too large.
    pub fn int(self, name: &str, value: usize) -> Result<i32> {
        i32::try_from(value).map_err(|_| self.error(&format!("{name} is {value}, which is too large")))
    }

    /// A size above zero.
    ///
    /// # Errors
    /// It is zero or too large.
    pub fn size(self, name: &str, value: usize) -> Result<i32> {
        if value == 0 {
            return Err(self.error(&format!("{name} is 0")));
        }
        self.int(name, value)
    }

    /// A condition on sizes.
    ///
    /// # Errors
    /// It does not hold.
    pub fn that(self, condition: bool, what: &str) -> Result<()> {
        if condition { Ok(()) } else { Err(self.error(what)) }
    }

    /// `count` elements of `element` bytes at `at`, which must be aligned to them.
    ///
    /// # Errors
    /// They are not inside the block.
    pub fn fits(self, name: &str, at: At<'_>, count: usize, element: usize) -> Result<()> {
        if !at.1.is_multiple_of(element) {
            return Err(self.error(&format!("{name} starts at byte {}, not at an element of {element} bytes", at.1)));
        }
        let bytes = count.saturating_mul(element);
        if at.0.len().checked_sub(at.1).is_none_or(|room| bytes > room) {
            return Err(self.error(&format!(
                "{name} needs {bytes} bytes from byte {} on, the block has {}",
                at.1,
                at.0.len()
            )));
        }
        Ok(())
    }

    /// `rows` rows of `cols` elements; their distance.
    ///
    /// # Errors
    /// They are not inside the block, or overlap.
    pub fn rows(self, name: &str, x: &Strided<'_>, rows: usize, cols: usize, element: usize) -> Result<i32> {
        self.that(x.ld >= cols, &format!("rows of {name} are {} apart but have {cols} elements", x.ld))?;
        let count = rows.saturating_sub(1).saturating_mul(x.ld).saturating_add(cols);
        self.fits(name, (x.buffer, x.offset), count, element)?;
        self.int(&format!("the distance of rows of {name}"), x.ld)
    }

    /// `rows` activation rows of `cols` values; a distance in bytes.
    ///
    /// # Errors
    /// They are not inside the block, or not on 64-byte boundaries.
    pub fn act(
        self,
        name: &str,
        x: &Strided<'_>,
        rows: usize,
        cols: usize,
        class: ns_sycl::DeviceClass,
    ) -> Result<i32> {
        self.that(
            x.ld.is_multiple_of(64) && x.offset.is_multiple_of(64),
            &format!("{name} is not on 64-byte boundaries"),
        )?;
        self.rows(name, x, rows, crate::act::stride(cols, class), 1)
    }
}
