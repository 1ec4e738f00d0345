//! Metadata values.

use std::ops::Range;

/// Nesting of arrays that is still read. Known files have one level.
const DEEPEST: usize = 4;

use super::cursor::Cursor;
use crate::error::Fault;

/// Type of an array's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Element {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    Str,
    Array,
    U64,
    I64,
    F64,
}

impl Element {
    fn from_id(id: u32) -> Option<Self> {
        Some(match id {
            0 => Self::U8,
            1 => Self::I8,
            2 => Self::U16,
            3 => Self::I16,
            4 => Self::U32,
            5 => Self::I32,
            6 => Self::F32,
            7 => Self::Bool,
            8 => Self::Str,
            9 => Self::Array,
            10 => Self::U64,
            11 => Self::I64,
            12 => Self::F64,
            _ => return None,
        })
    }

    fn name(self) -> &'static str {
        match self {
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::U16 => "u16",
            Self::I16 => "i16",
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::F32 => "f32",
            Self::Bool => "bool",
            Self::Str => "string",
            Self::Array => "array",
            Self::U64 => "u64",
            Self::I64 => "i64",
            Self::F64 => "f64",
        }
    }

    /// Bytes of an element of fixed size.
    fn size(self) -> Option<usize> {
        match self {
            Self::U8 | Self::I8 | Self::Bool => Some(1),
            Self::U16 | Self::I16 => Some(2),
            Self::U32 | Self::I32 | Self::F32 => Some(4),
            Self::U64 | Self::I64 | Self::F64 => Some(8),
            Self::Str | Self::Array => None,
        }
    }
}

/// A metadata value. Strings and arrays stay in the map and are read when asked for.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// An unsigned integer of any width.
    Unsigned(u64),
    /// A signed integer of any width.
    Signed(i64),
    /// A number of 32 or 64 bits.
    Float(f64),
    /// A truth value.
    Bool(bool),
    /// A string, as its place in the file.
    Str(Range<usize>),
    /// An array.
    Array(Array),
}

/// An array, as its place in the file.
#[derive(Debug, Clone, PartialEq)]
pub struct Array {
    pub(super) element: Element,
    pub(super) len: usize,
    pub(super) range: Range<usize>,
}

impl Array {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no element.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn fixed<'a>(&self, file: &'a [u8]) -> Option<impl Iterator<Item = &'a [u8]> + use<'a>> {
        Some(file.get(self.range.clone())?.chunks_exact(self.element.size()?))
    }

    pub(super) fn signed(&self, file: &[u8]) -> Option<Vec<i128>> {
        let read: fn(&[u8]) -> i128 = match self.element {
            Element::U8 | Element::U16 | Element::U32 | Element::U64 => |b| i128::from(unsigned(b)),
            Element::I8 | Element::I16 | Element::I32 | Element::I64 => |b| i128::from(signed(b)),
            _ => return None,
        };
        Some(self.fixed(file)?.map(read).collect())
    }

    pub(super) fn floats(&self, file: &[u8]) -> Option<Vec<f64>> {
        match self.element {
            Element::F32 | Element::F64 => Some(self.fixed(file)?.map(float).collect()),
            _ => None,
        }
    }

    pub(super) fn bools(&self, file: &[u8]) -> Option<Vec<bool>> {
        match self.element {
            Element::Bool => Some(self.fixed(file)?.map(|b| b.first() == Some(&1)).collect()),
            _ => None,
        }
    }

    pub(super) fn strings<'a>(&self, file: &'a [u8]) -> Option<Vec<&'a str>> {
        if self.element != Element::Str {
            return None;
        }
        let mut cursor = Cursor::new(file, self.range.start);
        (0..self.len).map(|_| cursor.string("array").ok().and_then(|r| text(file, &r))).collect()
    }
}

impl Value {
    /// What the value is, for messages: `u32`-like names are not kept, only the kind.
    pub fn kind(&self) -> String {
        match self {
            Self::Unsigned(_) | Self::Signed(_) => "an integer".into(),
            Self::Float(_) => "a real number".into(),
            Self::Bool(_) => "a truth value".into(),
            Self::Str(_) => "a string".into(),
            Self::Array(a) => format!("an array of {} x {}", a.len, a.element.name()),
        }
    }
}

pub(super) fn text<'a>(file: &'a [u8], range: &Range<usize>) -> Option<&'a str> {
    std::str::from_utf8(file.get(range.clone())?).ok()
}

/// Little-endian bytes (at most 8) as a number.
fn unsigned(bytes: &[u8]) -> u64 {
    bytes.iter().take(8).enumerate().fold(0, |n, (i, &b)| n | u64::from(b) << (8 * i))
}

fn signed(bytes: &[u8]) -> i64 {
    let unused = 64 - 8 * bytes.len().clamp(1, 8) as u32;
    ((unsigned(bytes) << unused) as i64) >> unused
}

fn float(bytes: &[u8]) -> f64 {
    match bytes.len() {
        4 => f64::from(f32::from_bits(unsigned(bytes) as u32)),
        _ => f64::from_bits(unsigned(bytes)),
    }
}

fn element(cursor: &mut Cursor<'_>, what: &str) -> Result<Element, Fault> {
    let id = cursor.u32(what)?;
    Element::from_id(id).ok_or_else(|| Fault::unsupported(format!("{what}: unknown value type {id}")))
}

/// Reads the value after a key.
pub(super) fn read(cursor: &mut Cursor<'_>, what: &str) -> Result<Value, Fault> {
    let element = element(cursor, what)?;
    Ok(match element {
        Element::Str => {
            let range = cursor.string(what)?;
            check_text(cursor, &range, what)?;
            Value::Str(range)
        }
        Element::Array => Value::Array(array(cursor, what, 1)?),
        _ => {
            let bytes = cursor.take(element.size().unwrap_or(0), what)?;
            match element {
                Element::U8 | Element::U16 | Element::U32 | Element::U64 => Value::Unsigned(unsigned(bytes)),
                Element::F32 | Element::F64 => Value::Float(float(bytes)),
                Element::Bool => Value::Bool(match bytes {
                    [0] => false,
                    [1] => true,
                    _ => return Err(Fault::invalid(format!("{what}: a truth value is neither 0 nor 1"))),
                }),
                _ => Value::Signed(signed(bytes)),
            }
        }
    })
}

fn check_text(cursor: &Cursor<'_>, range: &Range<usize>, what: &str) -> Result<(), Fault> {
    match text(cursor.file(), range) {
        Some(_) => Ok(()),
        None => Err(Fault::invalid(format!("{what}: a string is not UTF-8"))),
    }
}

/// Reads an array's head and walks over its elements.
fn array(cursor: &mut Cursor<'_>, what: &str, depth: usize) -> Result<Array, Fault> {
    if depth > DEEPEST {
        return Err(Fault::invalid(format!("{what}: arrays are nested more than {DEEPEST} deep")));
    }
    let element = element(cursor, what)?;
    let count = cursor.u64(what)?;
    let smallest = element.size().unwrap_or(if element == Element::Str { 8 } else { 12 }) as u64;
    cursor.expect(count.saturating_mul(smallest), what)?;
    let len = count as usize; // fits: the file holds that many bytes
    let start = cursor.at();
    match element {
        Element::Str => {
            for _ in 0..len {
                let range = cursor.string(what)?;
                check_text(cursor, &range, what)?;
            }
        }
        Element::Array => {
            for _ in 0..len {
                array(cursor, what, depth + 1)?;
            }
        }
        _ => {
            let bytes = cursor.take(len * element.size().unwrap_or(0), what)?;
            if element == Element::Bool && bytes.iter().any(|&b| b > 1) {
                return Err(Fault::invalid(format!("{what}: a truth value is neither 0 nor 1")));
            }
        }
    }
    Ok(Array { element, len, range: start..cursor.at() })
}
