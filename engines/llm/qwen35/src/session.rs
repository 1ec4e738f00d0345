//! Conversations: their cells and slots, their position, what is open behind it, and where their logits are.
//!
//! A session's state at its position is its slot and the `again` first rows of its last decode pass, which the next
//! pass runs again before its own (see [`crate::kernels::RowSlots`]): taking rows back only changes that number.

use crate::kernels::{NO_SLOT, RowSlots};
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

/// The last pass of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LastPass {
    /// Where it began.
    pub start: usize,
    /// Whether its rows can be taken back one by one.
    pub by_row: bool,
}

/// One conversation.
#[derive(Debug)]
pub struct Session {
    /// Its cells of the caches, whole blocks.
    pub cells: CellRange,
    /// Its slot of the DeltaNet states.
    pub slot: usize,
    /// Tokens it may hold.
    pub limit: usize,
    /// Tokens read.
    pub position: usize,
    /// The last pass, while it can be taken back.
    pub pass: Option<LastPass>,
    /// Which of the slot's two kept slots has the rows of the last pass.
    kept: usize,
    /// Rows of it that the state in the slot lacks.
    again: usize,
    /// Cells of the draft block's cache that are right: cell `j` pairs the trunk's row `j` with token `j + 1`.
    pub drafted: usize,
    /// Tokens `drafted..position`, whose rows of the trunk are kept for the draft block.
    pub behind: Vec<u32>,
    /// Logits of the last token.
    pub logits: Logits,
}

impl Session {
    /// Cells left.
    pub fn room(&self) -> usize {
        self.limit - self.position
    }

    /// Whether the state in the slot is that of the position.
    pub fn settled(&self) -> bool {
        self.again == 0
    }

    fn kept_slot(&self, which: usize) -> i32 {
        (2 * self.slot + which) as i32
    }

    /// The table's entry of a decode pass with `rows` rows of this session, or of none to bring the slot up to date.
    pub fn slots(&self, first_row: usize, rows: usize) -> RowSlots {
        RowSlots {
            first_row: first_row as u32,
            rows: rows as u32,
            state_in: self.slot as i32,
            state_again: if self.again > 0 { self.slot as i32 } else { NO_SLOT },
            state_out: NO_SLOT,
            kept_in: self.kept_slot(self.kept),
            again: self.again as u32,
            kept_out: self.kept_slot(1 - self.kept),
        }
    }

    /// After a decode pass of `tokens`.
    pub fn decoded(&mut self, tokens: &[u32], drafts: bool, logits: Logits) {
        self.pass = Some(LastPass { start: self.position, by_row: true });
        self.kept = 1 - self.kept;
        self.again = tokens.len();
        self.position += tokens.len();
        self.logits = logits;
        if drafts {
            self.behind.extend_from_slice(tokens);
        }
    }

    /// After a prompt pass of `tokens`, whose rows but the last went through the draft block.
    pub fn prompted(&mut self, tokens: &[u32], drafts: bool, logits: Logits) {
        self.pass = Some(LastPass { start: self.position, by_row: false });
        self.position += tokens.len();
        self.logits = logits;
        if drafts {
            self.drafted = self.position - 1;
            self.behind = tokens.last().copied().into_iter().collect();
        }
    }

    /// The slot is up to date; the last pass can no longer be taken back.
    pub fn settle(&mut self) {
        self.again = 0;
        self.pass = None;
    }

    /// The draft block has seen every row but the coming one's.
    pub fn caught_up(&mut self) {
        self.drafted = self.position;
        self.behind.clear();
    }

    /// Takes the last pass back to its first `keep` rows.
    pub fn roll_back(&mut self, keep: usize) -> Result<()> {
        let usage = |what: String| Err(Error::new(ErrorKind::Usage, what));
        let Some(pass) = self.pass else { return usage("there is no pass to take back".into()) };
        let rows = self.position - pass.start;
        if keep > rows {
            return usage(format!("the last pass had {rows} rows, {keep} cannot be kept"));
        }
        if keep == rows {
            return Ok(());
        }
        if !pass.by_row {
            return usage(format!("a pass of {rows} rows cannot be taken back: its rows' states are not kept"));
        }
        self.again = keep;
        self.position = pass.start + keep;
        self.behind.truncate(self.position.saturating_sub(self.drafted));
        self.logits = match self.logits {
            Logits::Row(row) if keep > 0 => Logits::Row(row + keep - rows),
            _ => Logits::None,
        };
        Ok(())
    }

    /// Forgets all tokens; the slot has to be cleared before it is used.
    pub fn clear(&mut self) {
        self.position = 0;
        self.pass = None;
        self.again = 0;
        self.drafted = 0;
        self.behind.clear();
        self.logits = Logits::None;
    }

    /// A state put in place from outside: the slot is up to date.
    pub fn place(&mut self, position: usize, drafted: usize, behind: Vec<u32>, logits: Logits) {
        self.clear();
        self.position = position;
        self.drafted = drafted;
        self.behind = behind;
        self.logits = logits;
    }
}

/// All open conversations of one engine.
#[derive(Debug)]
pub struct Sessions {
    arena: CellArena,
    free_slots: Vec<usize>,
    slots: usize,
    open: BTreeMap<SessionId, Session>,
    next: u32,
}

impl Sessions {
    /// None open, `cells` and `slots` to share out.
    pub fn new(cells: usize, slots: usize) -> Self {
        let free_slots = (0..slots).rev().collect();
        Self { arena: CellArena::new(cells), free_slots, slots, open: BTreeMap::new(), next: 1 }
    }

    /// Opens a session with `len` cells; its slot has to be cleared before it is used.
    pub fn open(&mut self, len: usize) -> Result<SessionId> {
        let none = |what: String| Err(Error::new(ErrorKind::Session, what));
        if len == 0 {
            return Err(Error::new(ErrorKind::Usage, "a session needs room for at least one token"));
        }
        if self.free_slots.is_empty() {
            let slots = self.slots;
            return none(format!("no room for another session: {slots} are open, which is what was planned for"));
        }
        let Some(cells) = self.arena.take(len.next_multiple_of(CELL_ALIGN)) else {
            return none(format!(
                "no room for a session of {len} tokens: the longest that fits now is {} of {} tokens",
                self.arena.largest_free(),
                self.arena.cells()
            ));
        };
        let id = SessionId(self.next);
        self.next = self.next.wrapping_add(1).max(1);
        let session = Session {
            cells,
            slot: self.free_slots.pop().unwrap_or_default(),
            limit: len,
            position: 0,
            pass: None,
            kept: 0,
            again: 0,
            drafted: 0,
            behind: Vec::new(),
            logits: Logits::None,
        };
        self.open.insert(id, session);
        Ok(id)
    }

    /// Closes a session.
    pub fn close(&mut self, id: SessionId) -> Result<()> {
        let session = self.open.remove(&id).ok_or_else(|| unknown(id))?;
        self.arena.give(session.cells);
        self.free_slots.push(session.slot);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_taken_back_are_run_again_up_to_the_kept_one() {
        let mut sessions = Sessions::new(64, 2);
        let id = sessions.open(40).unwrap();
        let s = sessions.get_mut(id).unwrap();
        assert_eq!(s.slots(0, 3).state_again, NO_SLOT);
        s.decoded(&[5, 6, 7], true, Logits::Row(2));
        s.roll_back(1).unwrap();
        assert_eq!((s.position, s.again, s.behind.as_slice()), (1, 1, [5].as_slice()));
        assert_eq!(s.logits, Logits::Row(0));
        let entry = s.slots(4, 2);
        assert_eq!((entry.again, entry.state_again, entry.rows, entry.first_row), (1, 0, 2, 4));
        assert_ne!(entry.kept_in, entry.kept_out);
        assert!(s.roll_back(2).is_err());
        s.prompted(&[1; 20], true, Logits::None);
        assert_eq!((s.drafted, s.behind.len()), (20, 1));
        assert!(s.roll_back(3).is_err());
        s.roll_back(20).unwrap();
    }

    #[test]
    fn slots_and_cells_run_out_with_reasons() {
        let mut sessions = Sessions::new(64, 2);
        assert!(sessions.open(0).is_err());
        let a = sessions.open(16).unwrap();
        assert!(sessions.open(64).unwrap_err().to_string().contains("longest"));
        sessions.open(16).unwrap();
        assert!(sessions.open(16).unwrap_err().to_string().contains("2 are open"));
        sessions.close(a).unwrap();
        sessions.open(48).unwrap_err();
        sessions.open(16).unwrap();
    }
}
