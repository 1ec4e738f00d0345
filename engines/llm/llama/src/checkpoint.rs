//! The parts of the key-value cache that belong to a session, and the bytes of a saved one.

use crate::device_error;
use crate::engine::Llama;
use crate::params::Params;
use crate::session::Logits;
use crate::work::Sizes;
use ns_llm::{CheckpointHead, Error, ErrorKind, Result, SessionId, not_read, not_written};
use ns_llm_kernels::attention::CELL_ALIGN;
use std::io::{Read, Write};

/// Bytes of a state handled at once.
const PIECE: usize = 4 << 20;

/// The first cells of one head in one layer: a run of bytes of the cache.
#[derive(Debug, Clone, Copy)]
pub struct HeadCells {
    base: usize,
    cell_bytes: usize,
    /// Length of the run.
    pub bytes: usize,
}

impl HeadCells {
    /// Where it starts for a session whose first cell is `start`.
    pub fn at(&self, start: usize) -> usize {
        self.base + start * self.cell_bytes
    }
}

/// The runs that hold the first `position` cells of a session, keys in whole blocks.
pub fn heads(p: &Params, sizes: &Sizes, position: usize) -> Vec<HeadCells> {
    if position == 0 {
        return Vec::new();
    }
    let cell_bytes = p.head_dim * sizes.kv_bytes;
    let bytes = position.next_multiple_of(CELL_ALIGN) * cell_bytes;
    (0..p.n_layers * 2 * p.n_kv)
        .map(|head| HeadCells { base: head * sizes.cells * cell_bytes, cell_bytes, bytes })
        .collect()
}

/// Bytes of a state with these runs, without and with logits.
pub fn state_lens(heads: &[HeadCells], n_vocab: usize) -> (u64, u64) {
    let cells = heads.iter().map(|h| h.bytes as u64).sum();
    (cells, cells + n_vocab as u64 * 4)
}

impl Llama {
    /// The cells, then the logits where there are some.
    pub fn write_state(&mut self, session: SessionId, out: &mut dyn Write) -> Result<()> {
        let s = self.sessions.get(session)?;
        let (position, start) = (s.position, s.cells.start);
        let logits = match s.logits {
            Logits::None => None,
            _ => Some(self.session_logits(session)?),
        };
        let heads = heads(&self.p, &self.sizes, position);
        let mut piece = vec![0; heads.first().map_or(0, |h| h.bytes.min(PIECE))];
        for head in heads {
            for from in (0..head.bytes).step_by(PIECE) {
                let piece = &mut piece[..PIECE.min(head.bytes - from)];
                self.queue
                    .read(&self.kv, head.at(start) + from, &mut *piece)
                    .map_err(|e| device_error("cannot save a session", e))?;
                out.write_all(piece).map_err(not_written)?;
            }
        }
        let bytes: Vec<u8> = logits.unwrap_or_default().iter().flat_map(|v| v.to_le_bytes()).collect();
        out.write_all(&bytes).map_err(not_written)
    }

    /// See [`ns_llm::Engine::restore_from`].
    pub fn read_state(&mut self, session: SessionId, head: &CheckpointHead, input: &mut dyn Read) -> Result<()> {
        let foreign = |what: &str| Error::new(ErrorKind::Checkpoint, format!("the checkpoint does not fit: {what}"));
        if head.fingerprint != self.facts.cache_fingerprint {
            return Err(foreign(&format!(
                "it is of `{}`, the model is `{}`",
                head.fingerprint, self.facts.cache_fingerprint
            )));
        }
        let s = self.sessions.get_mut(session)?;
        if head.position > s.limit {
            return Err(Error::new(
                ErrorKind::ContextFull,
                format!("a checkpoint of {} tokens does not fit into a session of {}", head.position, s.limit),
            ));
        }
        let start = s.cells.start;
        let heads = heads(&self.p, &self.sizes, head.position);
        let (without, with) = state_lens(&heads, self.p.n_vocab);
        if head.state_len != without && head.state_len != with {
            return Err(foreign("its size is wrong"));
        }
        // From here on the old content is lost: until all is read, the session is empty.
        s.position = 0;
        s.pass_start = None;
        s.logits = Logits::None;
        let mut piece = vec![0; heads.first().map_or(0, |h| h.bytes.min(PIECE))];
        for run in heads {
            for from in (0..run.bytes).step_by(PIECE) {
                let piece = &mut piece[..PIECE.min(run.bytes - from)];
                input.read_exact(piece).map_err(not_read)?;
                self.queue
                    .write(&self.kv, run.at(start) + from, &*piece)
                    .map_err(|e| device_error("cannot restore a session", e))?;
            }
        }
        let mut logits = Logits::None;
        if head.state_len == with {
            let mut bytes = vec![0; self.p.n_vocab * 4];
            input.read_exact(&mut bytes).map_err(not_read)?;
            logits = Logits::Host(bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect());
        }
        let s = self.sessions.get_mut(session)?;
        s.position = head.position;
        s.logits = logits;
        Ok(())
    }
}
