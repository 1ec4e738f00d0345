//! The checks for any engine find what they are to find: an engine that is right, and the same with one fault.

#![allow(clippy::unwrap_used, reason = "tests stop at the first failure")]

use ns_llm::checks::{batch_rows, verify_layers, verify_rows};
use ns_llm::{
    Checkpoint, Decoder, DeviceReport, Engine, EngineFacts, Error, ErrorKind, KernelCheck, Result, Sampling, SessionId,
    Tap,
};
use std::collections::BTreeMap;

const VOCABULARY: usize = 7;

/// What the engine does wrong in passes of several rows.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    None,
    /// Tensor `b` of a layer, in a row.
    Tensor(usize, usize),
    /// The logits of a row, a little.
    Logits(usize),
    /// The likeliest token of a row.
    Choice(usize),
    /// A tensor is handed out that single rows have not.
    ExtraTensor,
}

struct Fake {
    facts: EngineFacts,
    sessions: BTreeMap<SessionId, Vec<u32>>,
    opened: u32,
    fault: Fault,
}

impl Fake {
    fn new(fault: Fault) -> Self {
        let facts = EngineFacts {
            engine: "fake",
            architecture: "fake".into(),
            model: "fake".into(),
            n_vocab: VOCABULARY,
            context_length: 100,
            prefill_chunk: 4,
            max_verify: 8,
            truncatable: true,
            draft: false,
            cache_fingerprint: "fake".into(),
        };
        Self { facts, sessions: BTreeMap::new(), opened: 0, fault }
    }

    fn tokens(&mut self, session: SessionId) -> Result<&mut Vec<u32>> {
        self.sessions.get_mut(&session).ok_or_else(|| Error::new(ErrorKind::Session, "not open"))
    }

    /// Numbers that follow from the tokens so far, a row of logits.
    fn row(tokens: &[u32]) -> Vec<f32> {
        let sum: usize = tokens.iter().enumerate().map(|(i, &t)| (i + 1) * (t as usize + 3)).sum();
        (0..VOCABULARY).map(|v| ((sum * 13 + v * 29) % 31) as f32 / 8.0).collect()
    }

    fn pass(&mut self, session: SessionId, tokens: &[u32]) -> Result<Vec<Vec<f32>>> {
        let (fault, many) = (self.fault, tokens.len() > 1);
        let held = self.tokens(session)?;
        let mut rows = Vec::new();
        for (row, &token) in tokens.iter().enumerate() {
            held.push(token);
            let mut logits = Self::row(held);
            match fault {
                Fault::Logits(at) if many && at == row => logits[0] -= 0.001,
                Fault::Choice(at) if many && at == row => logits.reverse(),
                _ => {}
            }
            rows.push(logits);
        }
        Ok(rows)
    }
}

impl Engine for Fake {
    fn facts(&self) -> &EngineFacts {
        &self.facts
    }

    fn devices(&self) -> Vec<DeviceReport> {
        Vec::new()
    }

    fn open_session(&mut self, _: usize) -> Result<SessionId> {
        self.opened += 1;
        self.sessions.insert(SessionId(self.opened), Vec::new());
        Ok(SessionId(self.opened))
    }

    fn close_session(&mut self, session: SessionId) -> Result<()> {
        self.sessions.remove(&session);
        Ok(())
    }

    fn reset(&mut self, session: SessionId) -> Result<()> {
        self.tokens(session)?.clear();
        Ok(())
    }

    fn copy(&mut self, to: SessionId, from: SessionId) -> Result<()> {
        *self.tokens(to)? = self.tokens(from)?.clone();
        Ok(())
    }

    fn position(&self, session: SessionId) -> Result<usize> {
        Ok(self.sessions[&session].len())
    }

    fn max_context(&self, _: SessionId) -> Result<usize> {
        Ok(100)
    }

    fn truncate(&mut self, session: SessionId, position: usize) -> Result<()> {
        self.tokens(session)?.truncate(position);
        Ok(())
    }

    fn save(&mut self, session: SessionId) -> Result<Checkpoint> {
        let state = self.tokens(session)?.iter().map(|&t| t as u8).collect();
        Ok(Checkpoint { fingerprint: "fake".into(), position: self.position(session)?, state })
    }

    fn restore(&mut self, session: SessionId, checkpoint: &Checkpoint) -> Result<()> {
        *self.tokens(session)? = checkpoint.state.iter().map(|&b| u32::from(b)).collect();
        Ok(())
    }

    fn feed_until(&mut self, session: SessionId, tokens: &[u32], _: &mut dyn FnMut() -> bool) -> Result<usize> {
        self.tokens(session)?.extend_from_slice(tokens);
        Ok(tokens.len())
    }

    fn forward_rows(&mut self, session: SessionId, tokens: &[u32], n_out: usize) -> Result<Vec<f32>> {
        let rows = self.pass(session, tokens)?;
        Ok(rows[rows.len() - n_out..].concat())
    }

    fn forward_batch(&mut self, rows: &[(SessionId, u32)]) -> Result<Vec<f32>> {
        let mut all = Vec::new();
        for (row, &(session, token)) in rows.iter().enumerate() {
            let mut logits = self.pass(session, &[token])?.concat();
            if self.fault == Fault::Logits(row) {
                logits[0] -= 0.001;
            }
            all.extend(logits);
        }
        Ok(all)
    }

    fn forward_tapped(&mut self, session: SessionId, tokens: &[u32], tap: &mut dyn FnMut(Tap<'_>)) -> Result<Vec<f32>> {
        let rows = self.pass(session, tokens)?;
        for layer in 0..3 {
            for name in ["a", "b"] {
                let mut values: Vec<f32> =
                    rows.iter().flat_map(|row| row[..2].iter().map(|v| v + layer as f32)).collect();
                if let Fault::Tensor(at, row) = self.fault
                    && (at, name, true) == (layer, "b", tokens.len() > 1)
                {
                    values[2 * row + 1] += 0.5;
                }
                tap(Tap { name, layer: Some(layer), columns: 2, values: &values });
            }
        }
        if self.fault == Fault::ExtraTensor && tokens.len() > 1 {
            tap(Tap { name: "more", layer: None, columns: 1, values: &vec![0.0; tokens.len()] });
        }
        Ok(rows.concat())
    }

    fn logits(&mut self, session: SessionId) -> Result<Vec<f32>> {
        Ok(Self::row(self.tokens(session)?))
    }

    fn decoder(&mut self, _: SessionId, sampling: Sampling, _: &[u32], _: bool) -> Result<Decoder> {
        Ok(Decoder::new(sampling, &[], 0, false))
    }

    fn step(&mut self, _: SessionId, _: &mut Decoder) -> Result<Vec<u32>> {
        Ok(Vec::new())
    }

    fn step_batch(&mut self, _: &mut [(SessionId, &mut Decoder)]) -> Result<Vec<u32>> {
        Ok(Vec::new())
    }

    fn rollback(&mut self, _: SessionId, _: usize) -> Result<()> {
        Ok(())
    }

    fn check_kernels(&mut self) -> Result<Vec<KernelCheck>> {
        Ok(Vec::new())
    }
}

#[test]
fn rows_that_differ_are_found() {
    let check = |fault| {
        let mut engine = Fake::new(fault);
        let rows = verify_rows(&mut engine, &[1, 2, 3], 2, 4).unwrap();
        assert!(engine.sessions.is_empty());
        rows
    };
    let right = check(Fault::None);
    assert_eq!(
        right.iter().map(|r| (r.step, r.row)).collect::<Vec<_>>(),
        [3, 7].map(|s| [0, 1, 2, 3].map(|r| (s, r))).concat()
    );
    assert!(right.iter().all(|r| r.max_difference == 0.0 && r.same && r.max_reference > 0.0 && r.margin > 0.0));
    let wrong = check(Fault::Logits(2));
    for r in &wrong {
        assert_eq!(r.max_difference > 0.0, r.row == 2, "{r:?}");
        assert!(r.same);
    }
    let flipped = check(Fault::Choice(1));
    assert!(flipped.iter().all(|r| r.row == 1 || (r.same && r.max_difference == 0.0)));
    assert!(flipped.iter().any(|r| r.row == 1 && !r.same));
}

#[test]
fn the_tensor_that_differs_is_found() {
    let check = |fault| verify_layers(&mut Fake::new(fault), &[1, 2, 3], 2, 3);
    let right = check(Fault::None).unwrap();
    // two tensors in three layers and the logits, for three rows of two passes
    assert_eq!(right.len(), 7 * 3 * 2);
    assert!(right.iter().all(|t| t.max_difference == 0.0));
    let last = right.last().unwrap();
    assert_eq!((last.name.as_str(), last.layer, last.row), ("logits", None, 2));
    let wrong = check(Fault::Tensor(1, 2)).unwrap();
    let first = wrong.iter().find(|t| t.max_difference != 0.0).unwrap();
    assert_eq!((first.name.as_str(), first.layer, first.row, first.step), ("b", Some(1), 2, 3));
    assert!(wrong.iter().all(|t| (t.max_difference == 0.5) == (t.name == "b" && t.layer == Some(1) && t.row == 2)));
    let error = check(Fault::ExtraTensor).unwrap_err().to_string();
    assert!(error.contains("hand out different tensors"), "{error}");
}

#[test]
fn conversations_that_differ_are_found() {
    let prompts = [vec![1, 2], vec![3], vec![5, 5, 5]];
    let check = |fault| batch_rows(&mut Fake::new(fault), &prompts, 2).unwrap();
    let right = check(Fault::None);
    assert_eq!(right.len(), 9);
    assert!(right.iter().all(|r| r.max_difference == 0.0 && r.same));
    // step 0 is the prompts', read alone
    let wrong = check(Fault::Logits(1));
    assert!(wrong.iter().all(|r| (r.max_difference > 0.0) == (r.row == 1 && r.step > 0)));
}
