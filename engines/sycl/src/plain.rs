//! Numbers as bytes, for transfers.

mod sealed {
    pub trait Sealed {}
}

/// Numbers that any bytes make a valid value of, without padding.
pub trait Plain: sealed::Sealed + Copy + Default + 'static {}

macro_rules! plain {
    ($($t:ty)*) => { $(impl sealed::Sealed for $t {} impl Plain for $t {})* };
}
plain!(u8 i8 u16 i16 u32 i32 u64 i64 f32 f64);

/// The bytes of numbers.
#[must_use]
pub fn bytes_of<T: Plain>(numbers: &[T]) -> &[u8] {
    // SAFETY: Plain types have no padding; a u8 needs no alignment; the length is that of the slice.
    unsafe { std::slice::from_raw_parts(numbers.as_ptr().cast(), std::mem::size_of_val(numbers)) }
}

/// The bytes of numbers, to be written.
pub fn bytes_of_mut<T: Plain>(numbers: &mut [T]) -> &mut [u8] {
    // SAFETY: as in bytes_of, and every bit pattern is a valid value of a Plain type.
    unsafe { std::slice::from_raw_parts_mut(numbers.as_mut_ptr().cast(), std::mem::size_of_val(numbers)) }
}
