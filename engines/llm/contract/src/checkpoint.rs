//! A session's whole state at one position.

use crate::{Error, ErrorKind, Result};
use std::io::{Read, Write};

const MAGIC: &[u8; 8] = b"NSLLMCP1";
/// No state of a supported model is larger; protects a reader from a damaged length.
const LARGEST: u64 = 1 << 40;

/// A session's state: the tokens read, and the engine's caches as one block of bytes.
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

    /// Writes it: magic, lengths, content, CRC-32 of the content.
    pub fn write_to(&self, out: &mut dyn Write) -> std::io::Result<()> {
        out.write_all(MAGIC)?;
        out.write_all(&(self.fingerprint.len() as u64).to_le_bytes())?;
        out.write_all(&(self.position as u64).to_le_bytes())?;
        out.write_all(&(self.state.len() as u64).to_le_bytes())?;
        out.write_all(self.fingerprint.as_bytes())?;
        out.write_all(&self.state)?;
        out.write_all(&self.crc().to_le_bytes())
    }

    /// Reads what [`Checkpoint::write_to`] wrote; anything else is refused.
    pub fn read_from(input: &mut dyn Read) -> Result<Self> {
        let bad = |what: &str| Error::new(ErrorKind::Checkpoint, format!("not a usable checkpoint: {what}"));
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
        let state = read_block(input, state_len).map_err(|_| bad("too short"))?;
        let mut crc = [0_u8; 4];
        input.read_exact(&mut crc).map_err(|_| bad("too short"))?;
        let checkpoint = Self { fingerprint, position: position as usize, state };
        if checkpoint.crc() != u32::from_le_bytes(crc) {
            return Err(bad("its checksum is wrong"));
        }
        Ok(checkpoint)
    }

    fn crc(&self) -> u32 {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(self.fingerprint.as_bytes());
        hasher.update(&(self.position as u64).to_le_bytes());
        hasher.update(&self.state);
        hasher.finalize()
    }
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
}
