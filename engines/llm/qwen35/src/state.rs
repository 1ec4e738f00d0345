//! A session's whole state, written and read in pieces.

use crate::checkpoint::{self, Head};
use crate::device_error;
use crate::engine::Qwen35;
use crate::session::Logits;
use crate::work::MAX_ROWS;
use ns_llm::{CheckpointHead, Error, ErrorKind, Result, SessionId, not_read, not_written};
use std::io::{Read, Write};

/// Bytes handled at once.
const PIECE: usize = 4 << 20;

impl Qwen35 {
    /// Bytes of the blocks of all devices: slot, first cell, position and rows behind as in [`checkpoint::blocks`].
    fn block_bytes(&self, at: (usize, usize, usize, usize)) -> u64 {
        let blocks = self.stages.iter().flat_map(|stage| checkpoint::blocks(&self.p, stage, at));
        blocks.map(|b| b.2 as u64).sum()
    }

    /// Bytes that [`Qwen35::write_state`] writes.
    pub(crate) fn state_len(&self, session: SessionId) -> Result<u64> {
        let s = self.sessions.get(session)?;
        let logits = if s.logits == Logits::None { 0 } else { self.p.n_vocab as u64 * 4 };
        let head = 8 + 4 * s.behind.len() as u64;
        Ok(head + self.block_bytes((s.slot, s.cells.start, s.position, s.behind.len())) + logits)
    }

    /// Writes a session's state: what is open, the blocks of each device, then the logits where there are some.
    pub(crate) fn write_state(&mut self, session: SessionId, out: &mut dyn Write) -> Result<()> {
        let logits = match self.sessions.get(session)?.logits {
            Logits::None => Vec::new(),
            _ => self.session_logits(session)?,
        };
        self.settle(session)?;
        let s = self.sessions.get(session)?;
        let at = (s.slot, s.cells.start, s.position, s.behind.len());
        let head = Head { drafted: s.drafted, behind: s.behind.clone() };
        out.write_all(&head.to_bytes()).map_err(not_written)?;
        let mut piece = Vec::new();
        for stage in &self.stages {
            for (buffer, offset, bytes) in checkpoint::blocks(&self.p, stage, at) {
                for from in (0..bytes).step_by(PIECE) {
                    piece.resize(PIECE.min(bytes - from), 0);
                    let read = stage.queue.read(buffer, offset + from, &mut piece);
                    read.map_err(|e| device_error("cannot save a session", e))?;
                    out.write_all(&piece).map_err(not_written)?;
                }
            }
        }
        let logits: Vec<u8> = logits.iter().flat_map(|v| v.to_le_bytes()).collect();
        out.write_all(&logits).map_err(not_written)
    }

    /// Reads what [`Qwen35::write_state`] wrote.
    pub(crate) fn read_state(&mut self, session: SessionId, head: &CheckpointHead, input: &mut dyn Read) -> Result<()> {
        let foreign = |what: &str| Error::new(ErrorKind::Checkpoint, format!("the checkpoint does not fit: {what}"));
        let own = &self.facts.cache_fingerprint;
        if head.fingerprint != *own {
            return Err(foreign(&format!("it is of `{}`, the model is `{own}`", head.fingerprint)));
        }
        let (s, position) = (self.sessions.get(session)?, head.position);
        if position > s.limit {
            return Err(Error::new(
                ErrorKind::ContextFull,
                format!("a checkpoint of {position} tokens does not fit into a session of {}", s.limit),
            ));
        }
        let wrong = || foreign("its size is wrong");
        let mut open = vec![0; 8];
        input.read_exact(&mut open).map_err(|_| wrong())?;
        let behind = open.as_chunks::<4>().0.get(1).map_or(0, |b| u32::from_le_bytes(*b) as usize);
        if behind > MAX_ROWS {
            return Err(wrong());
        }
        open.resize(8 + 4 * behind, 0);
        input.read_exact(&mut open[8..]).map_err(|_| wrong())?;
        let open_len = open.len() as u64;
        let (open, _) = Head::split(&open, position, self.draft).ok_or_else(wrong)?;
        self.check_tokens(&open.behind).map_err(|_| foreign("it names tokens outside the vocabulary"))?;
        let at = (s.slot, s.cells.start, position, behind);
        let logits_len = head.state_len.checked_sub(open_len + self.block_bytes(at)).ok_or_else(wrong)?;
        if logits_len != 0 && logits_len != self.p.n_vocab as u64 * 4 {
            return Err(wrong());
        }
        // From here on the old content is lost: until all is read, the session is empty.
        self.clear(session)?;
        if position == 0 {
            return Ok(());
        }
        let read = self.read_blocks(at, input);
        let mut logits = vec![0; logits_len as usize];
        if let Err(error) = read.and_then(|()| input.read_exact(&mut logits).map_err(not_read)) {
            if error.is_recoverable() {
                self.clear(session)?;
            }
            return Err(error);
        }
        let values = checkpoint::logits(&logits, self.p.n_vocab).ok_or_else(wrong)?;
        let logits = values.map_or(Logits::None, Logits::Host);
        self.sessions.get_mut(session)?.place(position, open.drafted, open.behind, logits);
        Ok(())
    }

    fn read_blocks(&self, at: (usize, usize, usize, usize), input: &mut dyn Read) -> Result<()> {
        let mut piece = Vec::new();
        for stage in &self.stages {
            for (buffer, offset, bytes) in checkpoint::blocks(&self.p, stage, at) {
                for from in (0..bytes).step_by(PIECE) {
                    piece.resize(PIECE.min(bytes - from), 0);
                    input.read_exact(&mut piece).map_err(not_read)?;
                    let written = stage.queue.write(buffer, offset + from, &piece);
                    written.map_err(|e| device_error("cannot restore a session", e))?;
                }
            }
        }
        Ok(())
    }
}
