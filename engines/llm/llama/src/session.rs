//! Conversations: their cells, their position and where their logits are.

use ns_llm::{Error, ErrorKind, Result, SessionId};
use ns_llm_kernels::arena::{CellArena, CellRange};
use ns_llm_kernels::attention::CELL_ALIGN;
use std::collections::BTreeMap;

/// Where the logits after a session's last token are.
#[derive(Debug, Clone, PartialEq)]
pub enum Logits {
    /// There are none at this position.
    None,
    /// A row of the device's logits buffer, until the next pass.
    Row(usize),
    /// In host memory.
    Host(Vec<f32>),
}

/// One conversation.
#[derive(Debug)]
pub struct Session {
    /// Its cells of the cache, whole blocks.
    pub cells: CellRange,
    /// Tokens it may hold.
    pub limit: usize,
    /// Tokens read.
    pub position: usize,
    /// Where the last multi-row pass began.
    pub pass_start: Option<usize>,
    /// Logits of the last token.
    pub logits: Logits,
}

impl Session {
    /// Cells left.
    pub fn room(&self) -> usize {
        self.limit - self.position
    }
}

/// All open conversations of one engine.
#[derive(Debug)]
pub struct Sessions {
    arena: CellArena,
    open: BTreeMap<SessionId, Session>,
    next: u32,
}

impl Sessions {
    /// None open, `cells` to share out.
    pub fn new(cells: usize) -> Self {
        Self { arena: CellArena::new(cells), open: BTreeMap::new(), next: 1 }
    }

    /// Opens a session with `len` cells.
    pub fn open(&mut self, len: usize) -> Result<SessionId> {
        if len == 0 {
            return Err(Error::new(ErrorKind::Usage, "a session needs room for at least one token"));
        }
        let Some(cells) = self.arena.take(len.next_multiple_of(CELL_ALIGN)) else {
            return Err(Error::new(
                ErrorKind::Session,
                format!(
                    "no room for a session of {len} tokens: the longest that fits now is {} of {} tokens",
                    self.arena.largest_free(),
                    self.arena.cells()
                ),
            ));
        };
        let id = SessionId(self.next);
        self.next = self.next.wrapping_add(1).max(1);
        self.open.insert(id, Session { cells, limit: len, position: 0, pass_start: None, logits: Logits::None });
        Ok(id)
    }

    /// Closes a session.
    pub fn close(&mut self, id: SessionId) -> Result<()> {
        let session = self.open.remove(&id).ok_or_else(|| unknown(id))?;
        self.arena.give(session.cells);
        Ok(())
    }

    /// An open session.
    pub fn get(&self, id: SessionId) -> Result<&Session> {
        self.open.get(&id).ok_or_else(|| unknown(id))
    }

    /// An open session, to change.
    pub fn get_mut(&mut self, id: SessionId) -> Result<&mut Session> {
        self.open.get_mut(&id).ok_or_else(|| unknown(id))
    }

    /// Sessions whose logits are in the device's buffer, with their rows.
    pub fn on_device(&self) -> Vec<(SessionId, usize)> {
        let row = |s: &Session| if let Logits::Row(row) = s.logits { Some(row) } else { None };
        self.open.iter().filter_map(|(id, s)| row(s).map(|r| (*id, r))).collect()
    }
}

fn unknown(id: SessionId) -> Error {
    Error::new(ErrorKind::Session, format!("session {} is not open", id.0))
}
