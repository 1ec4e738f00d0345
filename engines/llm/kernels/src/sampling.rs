//! From logits to tokens: argmax, candidates, penalties, draws, softmax.

use std::path::Path;

use ns_sycl::{Arg, Device, DeviceClass, Kernel, Queue};

use crate::check::{Check, Strided};
use crate::rows::ROW_STATE;
use crate::{At, Result};

/// Length of a row's candidate list.
pub const CANDIDATES: usize = 256;
/// Bytes of a row's entry in the table of choices.
pub const CHOICE: usize = 32;

/// How a row's token is chosen: one entry of a table in device memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// 0 or less: the likeliest.
    pub temperature: f32,
    /// Smallest prefix of the list with this part of the probability.
    pub top_p: f32,
    /// Least probability, as a part of the likeliest one's.
    pub min_p: f32,
    /// Candidates at most; 0 = all 256.
    pub top_k: u32,
    /// Divides positive and multiplies negative logits of tokens in the window.
    pub repeat: f32,
    /// Taken from a logit for each occurrence in the window.
    pub frequency: f32,
    /// Taken from a logit that occurs in the window.
    pub presence: f32,
    /// Tokens of the window; 0 = no penalties.
    pub window: u32,
}

impl Default for Choice {
    /// Greedy, no penalties.
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_p: 1.0,
            min_p: 0.0,
            top_k: 0,
            repeat: 1.0,
            frequency: 0.0,
            presence: 0.0,
            window: 0,
        }
    }
}

impl Choice {
    /// Its bytes in the table.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; CHOICE] {
        let words = [
            self.temperature.to_bits(),
            self.top_p.to_bits(),
            self.min_p.to_bits(),
            self.top_k.min(CANDIDATES as u32),
            self.repeat.to_bits(),
            self.frequency.to_bits(),
            self.presence.to_bits(),
            self.window.min(i32::MAX as u32),
        ];
        let mut bytes = [0; CHOICE];
        for (to, word) in bytes.chunks_exact_mut(4).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
}

/// Lists of candidates: `[row][256]` of values (float32) and of ids (i32).
#[derive(Clone, Copy, Debug)]
pub struct Lists<'a> {
    /// Values, largest first.
    pub values: At<'a>,
    /// Ids; -1 where a row has fewer candidates.
    pub ids: At<'a>,
}

impl Lists<'_> {
    fn check(&self, c: Check, rows: usize) -> Result<()> {
        c.fits("the lists' values", self.values, rows.saturating_mul(CANDIDATES), 4)?;
        c.fits("the lists' ids", self.ids, rows.saturating_mul(CANDIDATES), 4)
    }
}

/// The kernels of module `sampling`.
pub struct Sampling {
    class: DeviceClass,
    argmax: Kernel,
    top_k: Kernel,
    penalize: Kernel,
    sample: Kernel,
    advance: Kernel,
    philox: Kernel,
    softmax: Kernel,
}

impl Sampling {
    pub(crate) fn load(device: &Device, dir: &Path) -> Result<Self> {
        let m = device.load_module(dir, "sampling")?;
        Ok(Self {
            class: device.class(),
            argmax: m.kernel("argmax_rows")?,
            top_k: m.kernel("top_k_rows")?,
            penalize: m.kernel("penalize_rows")?,
            sample: m.kernel("sample_rows")?,
            advance: m.kernel("advance_rows")?,
            philox: m.kernel("philox_words")?,
            softmax: m.kernel("softmax_rows")?,
        })
    }

    fn row_items(&self) -> usize {
        match self.class {
            DeviceClass::Cpu => 16,
            DeviceClass::Gpu => 512,
        }
    }

    /// The id of each row's largest value into `out` (i32): the lowest of equals, never NaN or -inf, 0 when nothing is left.
    ///
    /// # Errors
    /// An operand does not fit, or the driver failed.
    pub fn argmax(
        &self,
        queue: &Queue,
        logits: Strided<'_>,
        out: At<'_>,
        (rows, n_vocab): (usize, usize),
    ) -> Result<()> {
        let c = Check("argmax_rows");
        c.size("rows", rows)?;
        let ld = c.rows("logits", &logits, rows, n_vocab, 4)?;
        c.fits("out", out, rows, 4)?;
        let items = self.row_items();
        queue.cost(rows * (n_vocab + 1) * 4, rows * n_vocab);
        Ok(queue.launch(
            &self.argmax,
            [rows * items, 1, 1],
            [items, 1, 1],
            &[
                Arg::Buffer(logits.buffer, logits.offset),
                Arg::Buffer(out.0, out.1),
                Arg::I32(c.size("n_vocab", n_vocab)?),
                Arg::I32(ld),
            ],
        )?)
    }

    /// The 256 largest values of each row with their ids: largest first, of equals the lower id; never NaN or -inf.
    ///
    /// # Errors
    /// An operand does not fit, or the driver failed.
    pub fn top_k(
        &self,
        queue: &Queue,
        logits: Strided<'_>,
        lists: Lists<'_>,
        (rows, n_vocab): (usize, usize),
    ) -> Result<()> {
        let c = Check("top_k_rows");
        c.size("rows", rows)?;
        let ld = c.rows("logits", &logits, rows, n_vocab, 4)?;
        lists.check(c, rows)?;
        // as compiled into the kernel
        let items = match self.class {
            DeviceClass::Cpu => 64,
            DeviceClass::Gpu => 256,
        };
        queue.cost(rows * (n_vocab * 4 + CANDIDATES * 8), rows * n_vocab);
        Ok(queue.launch(
            &self.top_k,
            [rows * items, 1, 1],
            [items, 1, 1],
            &[
                Arg::Buffer(logits.buffer, logits.offset),
                Arg::Buffer(lists.values.0, lists.values.1),
                Arg::Buffer(lists.ids.0, lists.ids.1),
                Arg::I32(c.size("n_vocab", n_vocab)?),
                Arg::I32(ld),
            ],
        )?)
    }

    /// Penalties for the tokens of each row's window, in place. `windows` holds i32 rows; the first [`Choice::window`] count.
    ///
    /// # Errors
    /// An operand does not fit, or the driver failed.
    pub fn penalize(
        &self,
        queue: &Queue,
        logits: Strided<'_>,
        choices: At<'_>,
        windows: Strided<'_>,
        (rows, n_vocab): (usize, usize),
    ) -> Result<()> {
        let c = Check("penalize_rows");
        c.size("rows", rows)?;
        let ld = c.rows("logits", &logits, rows, n_vocab, 4)?;
        c.fits("choices", choices, rows.saturating_mul(CHOICE / 4), 4)?;
        let window_ld = c.rows("windows", &windows, rows, windows.ld, 4)?;
        let items = match self.class {
            DeviceClass::Cpu => 16,
            DeviceClass::Gpu => 128,
        };
        queue.cost(rows * windows.ld * 12, rows * windows.ld * 4);
        Ok(queue.launch(
            &self.penalize,
            [rows * items, 1, 1],
            [items, 1, 1],
            &[
                Arg::Buffer(logits.buffer, logits.offset),
                Arg::Buffer(choices.0, choices.1),
                Arg::Buffer(windows.buffer, windows.offset),
                Arg::I32(c.size("n_vocab", n_vocab)?),
                Arg::I32(ld),
                Arg::I32(window_ld),
            ],
        )?)
    }

    /// Draws each row's token from its list into `out` (i32): top-k, temperature, top-p, min-p, then the uniform of the row's
    /// seed, stream and count of tokens (position + 1).
    ///
    /// # Errors
    /// An operand does not fit, or the driver failed.
    pub fn sample(
        &self,
        queue: &Queue,
        lists: Lists<'_>,
        row_state: At<'_>,
        choices: At<'_>,
        out: At<'_>,
        rows: usize,
    ) -> Result<()> {
        let c = Check("sample_rows");
        c.size("rows", rows)?;
        lists.check(c, rows)?;
        c.fits("the row table", row_state, rows.saturating_mul(ROW_STATE / 8), 8)?;
        c.fits("choices", choices, rows.saturating_mul(CHOICE / 4), 4)?;
        c.fits("out", out, rows, 4)?;
        queue.cost(rows * CANDIDATES * 8, rows * CANDIDATES * 8);
        Ok(queue.launch(
            &self.sample,
            [rows * 16, 1, 1],
            [16, 1, 1],
            &[
                Arg::Buffer(lists.values.0, lists.values.1),
                Arg::Buffer(lists.ids.0, lists.ids.1),
                Arg::Buffer(row_state.0, row_state.1),
                Arg::Buffer(choices.0, choices.1),
                Arg::Buffer(out.0, out.1),
            ],
        )?)
    }

    /// Makes active rows ready for their next token: `tokens[row]` (i32), one position further.
    ///
    /// # Errors
    /// An operand does not fit, or the driver failed.
    pub fn advance(&self, queue: &Queue, row_state: At<'_>, tokens: At<'_>, rows: usize) -> Result<()> {
        let c = Check("advance_rows");
        let n = c.size("rows", rows)?;
        c.fits("the row table", row_state, rows.saturating_mul(ROW_STATE / 8), 8)?;
        c.fits("tokens", tokens, rows, 4)?;
        let args = [Arg::Buffer(row_state.0, row_state.1), Arg::Buffer(tokens.0, tokens.1), Arg::I32(n)];
        Ok(queue.launch(&self.advance, [rows.next_multiple_of(16), 1, 1], [16, 1, 1], &args)?)
    }

    /// Philox4x32-10 words, `[n][4]` u32, of counters `[n][4]` and keys `[n][2]`.
    ///
    /// # Errors
    /// An operand does not fit, or the driver failed.
    pub fn philox(&self, queue: &Queue, counters: At<'_>, keys: At<'_>, out: At<'_>, n: usize) -> Result<()> {
        let c = Check("philox_words");
        let count = c.size("n", n)?;
        c.fits("counters", counters, n.saturating_mul(4), 4)?;
        c.fits("keys", keys, n.saturating_mul(2), 4)?;
        c.fits("out", out, n.saturating_mul(4), 4)?;
        let args = [
            Arg::Buffer(counters.0, counters.1),
            Arg::Buffer(keys.0, keys.1),
            Arg::Buffer(out.0, out.1),
            Arg::I32(count),
        ];
        Ok(queue.launch(&self.philox, [n.next_multiple_of(16), 1, 1], [16, 1, 1], &args)?)
    }

    /// Softmax of each row; `out` may be `x`.
    ///
    /// # Errors
    /// An operand does not fit, or the driver failed.
    pub fn softmax(&self, queue: &Queue, x: Strided<'_>, out: Strided<'_>, (rows, n): (usize, usize)) -> Result<()> {
        let c = Check("softmax_rows");
        c.size("rows", rows)?;
        let ldx = c.rows("x", &x, rows, n, 4)?;
        let ldo = c.rows("out", &out, rows, n, 4)?;
        let items = self.row_items();
        queue.cost(rows * n * 8, 5 * rows * n);
        Ok(queue.launch(
            &self.softmax,
            [rows * items, 1, 1],
            [items, 1, 1],
            &[
                Arg::Buffer(x.buffer, x.offset),
                Arg::Buffer(out.buffer, out.offset),
                Arg::I32(c.size("n", n)?),
                Arg::I32(ldx),
                Arg::I32(ldo),
            ],
        )?)
    }
}
