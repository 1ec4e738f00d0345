//! A session's whole state at one position.

use crate::{Error, ErrorKind, Result};
use std::io::{Read, Write};

const MAGIC: &[u8; 8] = b"NSLLMCP1";
/// No state of a supported model is larger; protects a reader from a damaged length.
const LARGEST: u64 = 1 << 40;

/// What a checkpoint is of, apart from its state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointHead {
    /// [`crate::EngineFacts::cache_fingerprint`] of the engine that made it.
    pub fingerprint: String,
    /// Number of tokens the state covers.
    pub position: usize,
    /// Bytes of the state.
    pub state_len: u64,
}

/// A session's state: the engine's caches at a position as one block of bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// [`crate::EngineFacts::cache_fingerprint`] of the engine that made it.
    pub fingerprint: String,
    /// Number of tokens the state covers.
    pub position: usize,
    /// The engine's own form.
    pub state: Vec<u8>,
}

impl Checkpoint {
    /// Bytes of memory it takes.
    pub fn size(&self) -> usize {
        self.state.len() + self.fingerprint.len()
    }

    /// What it is of.
    pub fn head(&self) -> CheckpointHead {
        CheckpointHead {
            fingerprint: self.fingerprint.clone(),
            position: self.position,
            state_len: self.state.len() as u64,
        }
    }

    /// Writes it: magic, lengths, content, CRC-32 of the content.
    pub fn write_to(&self, out: &mut dyn Write) -> std::io::Result<()> {
        let mut writer = CheckpointWriter::begin(out, &self.head())?;
        writer.write_all(&self.state)?;
        writer.finish()
    }

    /// Reads what [`Checkpoint::write_to`] wrote; anything else is refused.
    pub fn read_from(input: &mut dyn Read) -> Result<Self> {
        let mut reader = CheckpointReader::begin(input)?;
        let CheckpointHead { fingerprint, position, state_len } = reader.head().clone();
        let state = read_block(&mut reader, state_len).map_err(|_| bad("too short"))?;
        reader.finish()?;
        Ok(Self { fingerprint, position, state })
    }
}

fn bad(what: &str) -> Error {
    Error::new(ErrorKind::Checkpoint, format!("not a usable checkpoint: {what}"))
}

/// Writes a checkpoint whose state comes in pieces.
pub struct CheckpointWriter<'a> {
    out: &'a mut dyn Write,
    crc: crc32fast::Hasher,
    left: u64,
}

impl<'a> CheckpointWriter<'a> {
    /// Writes the head; exactly [`CheckpointHead::state_len`] bytes must follow.
    pub fn begin(out: &'a mut dyn Write, head: &CheckpointHead) -> std::io::Result<Self> {
        out.write_all(MAGIC)?;
        for number in [head.fingerprint.len() as u64, head.position as u64, head.state_len] {
            out.write_all(&number.to_le_bytes())?;
        }
        out.write_all(head.fingerprint.as_bytes())?;
        Ok(Self { out, crc: hasher(head), left: head.state_len })
    }

    /// Ends it with the checksum.
    pub fn finish(self) -> std::io::Result<()> {
        if self.left > 0 {
            return Err(std::io::Error::other(format!("{} bytes of the state are missing", self.left)));
        }
        self.out.write_all(&self.crc.finalize().to_le_bytes())
    }
}

impl Write for CheckpointWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if bytes.len() as u64 > self.left {
            return Err(std::io::Error::other("the state is longer than was said"));
        }
        let n = self.out.write(bytes)?;
        self.crc.update(&bytes[..n]);
        self.left -= n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.out.flush()
    }
}

/// Reads a checkpoint's state in pieces. Whether it was whole is known after [`CheckpointReader::finish`] only.
pub struct CheckpointReader<'a> {
    input: &'a mut dyn Read,
    head: CheckpointHead,
    crc: crc32fast::Hasher,
    left: u64,
}

impl<'a> CheckpointReader<'a> {
    /// Reads the head.
    pub fn begin(input: &'a mut dyn Read) -> Result<Self> {
        let mut magic = [0_u8; 8];
        input.read_exact(&mut magic).map_err(|_| bad("too short"))?;
        if &magic != MAGIC {
            return Err(bad("wrong magic"));
        }
        let mut number = || -> Result<u64> {
            let mut bytes = [0_u8; 8];
            input.read_exact(&mut bytes).map_err(|_| bad("too short"))?;
            Ok(u64::from_le_bytes(bytes))
        };
        let (name_len, position, state_len) = (number()?, number()?, number()?);
        if name_len > 4096 || position > LARGEST || state_len > LARGEST {
            return Err(bad("a length is out of range"));
        }
        let fingerprint = String::from_utf8(read_block(input, name_len).map_err(|_| bad("too short"))?)
            .map_err(|_| bad("the fingerprint is not text"))?;
        let head = CheckpointHead { fingerprint, position: position as usize, state_len };
        Ok(Self { input, crc: hasher(&head), left: state_len, head })
    }

    /// What it is of.
    pub fn head(&self) -> &CheckpointHead {
        &self.head
    }

    /// Reads what is left of the state and compares the checksum.
    pub fn finish(mut self) -> Result<()> {
        std::io::copy(&mut self, &mut std::io::sink()).map_err(|_| bad("it cannot be read"))?;
        let mut crc = [0_u8; 4];
        if self.left > 0 || self.input.read_exact(&mut crc).is_err() {
            return Err(bad("too short"));
        }
        if self.crc.finalize() != u32::from_le_bytes(crc) {
            return Err(bad("its checksum is wrong"));
        }
        Ok(())
    }
}

impl Read for CheckpointReader<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        let most = bytes.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let n = self.input.read(&mut bytes[..most])?;
        self.crc.update(&bytes[..n]);
        self.left -= n as u64;
        Ok(n)
    }
}

fn hasher(head: &CheckpointHead) -> crc32fast::Hasher {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(head.fingerprint.as_bytes());
    hasher.update(&(head.position as u64).to_le_bytes());
    hasher
}

/// Grows as bytes arrive, so that a wrong length cannot reserve memory that the stream does not fill.
fn read_block(input: &mut dyn Read, len: u64) -> std::io::Result<Vec<u8>> {
    let mut block = Vec::new();
    let got = input.take(len).read_to_end(&mut block)?;
    if got as u64 == len { Ok(block) } else { Err(std::io::ErrorKind::UnexpectedEof.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_and_every_damage_is_refused() {
        let checkpoint = Checkpoint { fingerprint: "llama kv16 v1".into(), position: 3, state: (0..90).collect() };
        let mut bytes = Vec::new();
        checkpoint.write_to(&mut bytes).unwrap();
        assert_eq!(Checkpoint::read_from(&mut bytes.as_slice()).unwrap(), checkpoint);
        for cut in 0..bytes.len() {
            assert!(Checkpoint::read_from(&mut &bytes[..cut]).is_err());
        }
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x40;
            assert!(Checkpoint::read_from(&mut damaged.as_slice()).is_err(), "byte {at}");
        }
    }

    #[test]
    fn pieces_make_the_same_file_and_must_be_complete() {
        let checkpoint = Checkpoint { fingerprint: "f".into(), position: 7, state: (0..200).collect() };
        let mut whole = Vec::new();
        checkpoint.write_to(&mut whole).unwrap();
        let mut pieces = Vec::new();
        let mut writer = CheckpointWriter::begin(&mut pieces, &checkpoint.head()).unwrap();
        for piece in checkpoint.state.chunks(7) {
            writer.write_all(piece).unwrap();
        }
        assert!(writer.write_all(&[1]).is_err(), "longer than it said");
        writer.finish().unwrap();
        assert_eq!(pieces, whole);
        let mut short = Vec::new();
        let mut writer = CheckpointWriter::begin(&mut short, &checkpoint.head()).unwrap();
        writer.write_all(&[1]).unwrap();
        assert!(writer.finish().is_err());
        // A reader that stops in the middle still learns whether the file is whole.
        let mut input = whole.as_slice();
        let mut reader = CheckpointReader::begin(&mut input).unwrap();
        assert_eq!(*reader.head(), checkpoint.head());
        let mut some = [0; 50];
        reader.read_exact(&mut some).unwrap();
        assert_eq!(some, checkpoint.state[..50]);
        reader.finish().unwrap();
    }
}
