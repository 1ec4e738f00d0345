//! Passes over all devices: rows of decode passes, chunks of prompts, and what they leave in the sessions.

use crate::engine::Qwen35;
use crate::passes::Seen;
use crate::session::{Logits, Session};
use crate::stage::Recorded;
use crate::taps::TapFunction;
use crate::work::MAX_ROWS;
use crate::{device_error, kernel_error};
use ns_llm::{Error, ErrorKind, Result, SessionId};
use ns_llm_kernels::attention::{Chunk, splits};
use ns_llm_kernels::rows::RowState;
use ns_sycl::bytes_of;

/// Rows of one session in a decode pass.
pub type Group<'a> = (SessionId, &'a [u32]);

pub fn usage(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Usage, message)
}

/// The table of a decode pass under construction.
#[derive(Default)]
pub struct Table {
    states: Vec<RowState>,
    slots: Vec<u8>,
}

impl Table {
    /// One more row.
    pub fn push(&mut self, state: RowState) {
        self.states.push(state);
    }

    /// Rows so far.
    pub fn rows(&self) -> usize {
        self.states.len()
    }

    /// Pieces of keys for the longest row: few graphs for many lengths, so the next power of two.
    pub fn splits(&self, most: usize) -> usize {
        let longest = self.states.iter().map(|s| s.position as usize).max().unwrap_or(0);
        splits(longest).next_power_of_two().min(most)
    }

    /// Cells that the rows see.
    pub fn keys(&self) -> usize {
        self.states.iter().map(|s| s.position as usize + 1).sum()
    }

    /// Its bytes, in the places of [`crate::work::table`].
    pub fn to_bytes(&self) -> Vec<u8> {
        use crate::work::table;
        let mut bytes = vec![0_u8; if self.slots.is_empty() { table::SLOTS } else { table::SLOTS + self.slots.len() }];
        for (i, state) in self.states.iter().enumerate().take(MAX_ROWS) {
            let entry = state.to_bytes();
            bytes[i * entry.len()..(i + 1) * entry.len()].copy_from_slice(&entry);
            bytes[table::IDS + 4 * i..table::IDS + 4 * i + 4].copy_from_slice(&state.token.to_le_bytes());
        }
        bytes[table::SLOTS..].copy_from_slice(&self.slots);
        bytes
    }
}

impl Qwen35 {
    /// Checks token ids before anything changes.
    pub(crate) fn check_tokens(&self, tokens: &[u32]) -> Result<()> {
        match tokens.iter().find(|&&t| t as usize >= self.p.n_vocab) {
            Some(token) => Err(Error::new(
                ErrorKind::Token,
                format!("token {token} is outside the vocabulary of {}", self.p.n_vocab),
            )),
            None => Ok(()),
        }
    }

    pub(crate) fn check_room(&self, session: SessionId, asked: usize) -> Result<()> {
        let s = self.sessions.get(session)?;
        if asked > s.room() {
            return Err(Error::new(
                ErrorKind::ContextFull,
                format!("{asked} tokens do not fit: the session holds {} of {}", s.position, s.limit),
            ));
        }
        Ok(())
    }

    /// A row of the table: a token in a cell of a session.
    pub(crate) fn row_state(&self, s: &Session, cell: usize, token: u32) -> RowState {
        RowState {
            token,
            position: cell as u32,
            kv_offset: (s.cells.start * self.p.head_dim) as u64,
            active: true,
            draw_stream: 0,
            seed: 0,
        }
    }

    /// Logits in the device's buffer go to host memory where their session is not in the coming pass.
    fn keep_logits(&mut self, coming: impl Fn(SessionId) -> bool) -> Result<()> {
        for (id, row) in self.sessions.on_device() {
            let kept = if coming(id) { Logits::None } else { Logits::Host(self.read_logits(row, 1)?) };
            self.sessions.get_mut(id)?.logits = kept;
        }
        Ok(())
    }

    pub(crate) fn read_logits(&self, first: usize, rows: usize) -> Result<Vec<f32>> {
        let (n, last) = (self.p.n_vocab, self.last());
        last.queue
            .read_vec(&last.work.logits, first * n * 4, rows * n)
            .map_err(|e| device_error("cannot read the logits", e))
    }

    /// The likeliest tokens of the first rows of the last decode pass.
    pub(crate) fn read_chosen(&self, rows: usize) -> Result<Vec<u32>> {
        let last = self.last();
        let ids: Vec<i32> =
            last.queue.read_vec(&last.work.chosen, 0, rows).map_err(|e| device_error("cannot read the tokens", e))?;
        Ok(ids.into_iter().map(i32::cast_unsigned).collect())
    }

    pub(crate) fn session_logits(&self, session: SessionId) -> Result<Vec<f32>> {
        match &self.sessions.get(session)?.logits {
            Logits::Host(values) => Ok(values.clone()),
            Logits::Row(row) => self.read_logits(*row, 1),
            Logits::None => Err(usage(format!("session {} has no logits: nothing was read since", session.0))),
        }
    }

    /// Brings a session's slot up to date on every device.
    pub(crate) fn settle(&mut self, session: SessionId) -> Result<()> {
        let s = self.sessions.get(session)?;
        if s.settled() {
            return Ok(());
        }
        let bytes = Table { states: Vec::new(), slots: s.slots(0, 0).to_bytes().to_vec() }.to_bytes();
        for stage in self.stages.iter_mut().filter(|s| s.sizes.delta_layers > 0) {
            stage.write_table(&bytes)?;
            stage.decode(&self.p, (Recorded::Settle, Seen::default()), &mut None)?;
        }
        self.sessions.get_mut(session)?.settle();
        Ok(())
    }

    /// Runs a decode pass; logits and choices are on the last device afterwards, in the order of the rows. Everything was
    /// checked. The sessions have not moved: [`Qwen35::commit_rows`] does that.
    pub(crate) fn run_rows(&mut self, groups: &[Group<'_>], mut tap: Option<TapFunction<'_>>) -> Result<()> {
        self.keep_logits(|id| groups.iter().any(|g| g.0 == id))?;
        for (id, tokens) in groups {
            if self.draft && self.sessions.get(*id)?.behind.len() + tokens.len() > MAX_ROWS {
                self.catch_up(*id, tokens[0], false)?;
            }
        }
        let (mut table, mut again) = (Table::default(), 0);
        for (id, tokens) in groups {
            let s = self.sessions.get(*id)?;
            let slots = s.slots(table.rows(), tokens.len());
            again += slots.again as usize;
            let entry = slots.to_bytes();
            for (i, &token) in tokens.iter().enumerate() {
                table.push(self.row_state(s, s.position + i, token));
                table.slots.extend_from_slice(&entry);
            }
        }
        let (bytes, rows, d) = (table.to_bytes(), table.rows(), self.p.hidden_size);
        let seen = Seen { keys: table.keys(), sessions: groups.len(), again };
        let n_splits = table.splits(self.last().sizes.max_splits);
        let mut handed: Option<Vec<f32>> = None;
        for stage in &mut self.stages {
            stage.write_table(&bytes)?;
            if let Some(x) = handed.take() {
                stage.write_x(&x)?;
            }
            let mut lent = tap.as_mut().map(|t| &mut **t as TapFunction<'_>);
            stage.decode(&self.p, (Recorded::Rows(rows, n_splits), seen), &mut lent)?;
            if !stage.share.last {
                handed = Some(stage.read_x(rows, d)?);
            }
        }
        if self.draft {
            let (mut first, last) = (0, self.last());
            for (id, tokens) in groups {
                let s = self.sessions.get(*id)?;
                last.keep_rows(&self.p, s.slot, s.behind.len(), first, tokens.len())?;
                first += tokens.len();
            }
        }
        Ok(())
    }

    /// Moves the sessions of a decode pass; their logits are rows of the device's buffer.
    pub(crate) fn commit_rows(&mut self, groups: &[Group<'_>]) -> Result<()> {
        let mut row = 0;
        for (id, tokens) in groups {
            row += tokens.len();
            self.sessions.get_mut(*id)?.decoded(tokens, self.draft, Logits::Row(row - 1));
        }
        Ok(())
    }

    /// One run of a session, at most a chunk; returns the logits of the last `n_out` rows, or none for 0.
    pub(crate) fn run(
        &mut self,
        session: SessionId,
        tokens: &[u32],
        n_out: usize,
        tap: Option<TapFunction<'_>>,
    ) -> Result<Vec<f32>> {
        if tokens.is_empty() || tokens.len() > self.plan.chunk || n_out > tokens.len() {
            return Err(usage(format!(
                "a pass of {} rows with {n_out} results is not possible (1 to {} rows)",
                tokens.len(),
                self.plan.chunk
            )));
        }
        self.check_tokens(tokens)?;
        self.check_room(session, tokens.len())?;
        if tokens.len() > MAX_ROWS {
            let out = self.run_prompt(session, tokens, n_out, tap)?;
            // a failure of the device shows here
            self.last().queue.wait().map_err(|e| device_error("a prompt pass failed", e))?;
            return Ok(out);
        }
        let group = [(session, tokens)];
        self.run_rows(&group, tap)?;
        let out = if n_out > 0 { self.read_logits(tokens.len() - n_out, n_out)? } else { Vec::new() };
        self.last().queue.wait().map_err(|e| device_error("a decode pass failed", e))?;
        self.commit_rows(&group)?;
        Ok(out)
    }

    /// A chunk of a prompt; what it starts may still run on the last device when this returns.
    pub(crate) fn run_prompt(
        &mut self,
        session: SessionId,
        tokens: &[u32],
        n_out: usize,
        mut tap: Option<TapFunction<'_>>,
    ) -> Result<Vec<f32>> {
        self.keep_logits(|id| id == session)?;
        self.settle(session)?;
        if self.draft && !self.sessions.get(session)?.behind.is_empty() {
            self.catch_up(session, tokens[0], false)?;
        }
        let s = self.sessions.get(session)?;
        let (slot, rows, d) = (s.slot, tokens.len(), self.p.hidden_size);
        let chunk = Chunk { rows, position: s.position, first_cell: s.cells.start };
        let states: Vec<u8> = (0..rows).flat_map(|i| self.row_state(s, s.position + i, tokens[i]).to_bytes()).collect();
        // the states change from here on: a failed pass must not be continued
        self.sessions.get_mut(session)?.logits = Logits::None;
        // the draft block wants every row
        let wanted = if self.draft { rows } else { n_out.max(1) };
        let mut handed: Option<Vec<f32>> = None;
        for stage in &self.stages {
            let written = stage.queue.write(&stage.work.states, 0, &states);
            written
                .and_then(|()| stage.queue.write(&stage.work.ids, 0, bytes_of(tokens)))
                .map_err(|e| device_error("cannot write the rows", e))?;
            if let Some(x) = handed.take() {
                stage.write_x(&x)?;
            }
            let mut lent = tap.as_mut().map(|t| &mut **t as TapFunction<'_>);
            stage
                .prompt(&self.p, (chunk, slot, wanted), &mut lent)
                .map_err(|e| kernel_error("a prompt pass failed", e))?;
            if !stage.share.last {
                handed = Some(stage.read_x(rows, d)?);
            }
        }
        let mut out = Vec::with_capacity(n_out * self.p.n_vocab);
        let (mut first, mut count) = (rows - n_out.max(1), 0);
        while first < rows {
            count = MAX_ROWS.min(rows - first);
            self.last().head(&self.p, first, count)?;
            if n_out > 0 {
                out.extend(self.read_logits(0, count)?);
            }
            first += count;
        }
        if self.draft {
            let last = self.last();
            last.keep_rows(&self.p, slot, 0, rows - 1, 1)?;
            last.draft_prompt(&self.p, Chunk { rows: rows - 1, ..chunk })?;
        }
        self.sessions.get_mut(session)?.prompted(tokens, self.draft, Logits::Row(count - 1));
        Ok(out)
    }
}
