//! Checked launches of the kernels in `kernels/llm/qwen35`.
//!
//! Rows of a pass that belong to one session follow each other. Which state each row continues is told by a table of
//! [`RowSlots`], one entry a row, beside the row table of `ns_llm_kernels`. See [`delta`] for what a slot holds and how a
//! pass is taken back.

pub mod delta;
pub mod gated;

use std::path::Path;

use ns_llm_kernels::{Check, Result};
use ns_sycl::{Buffer, Device};

/// The kernels of one device.
pub struct Kernels {
    /// Gated DeltaNet.
    pub delta: delta::Delta,
    /// Gated attention, and the draft block's input.
    pub gated: gated::Gated,
}

impl Kernels {
    /// Loads them from the folder of compiled kernels (the one with `llm/qwen35/` inside).
    ///
    /// # Errors
    /// A module is missing or the device cannot run it.
    pub fn load(device: &Device, kernels: &Path) -> Result<Self> {
        let dir = kernels.join("llm").join("qwen35");
        Ok(Self { delta: delta::Delta::load(device, &dir)?, gated: gated::Gated::load(device, &dir)? })
    }
}

/// Bytes of an entry of the slot table.
pub const ROW_SLOTS: usize = 32;

/// No slot: nothing is written.
pub const NO_SLOT: i32 = -1;

/// One entry of the slot table: which states a row's session continues from and leaves behind. All rows of a session in one
/// pass have the same entry. With `rows` = 0 the entry belongs to no row: its kept rows are run again and nothing else.
///
/// For a session the kernels do, in this order:
/// 1. take the state in slot `state_in` (recurrent state and conv history),
/// 2. run rows `0..again` of kept slot `kept_in` once more,
/// 3. write the state to slot `state_again`, unless that is [`NO_SLOT`],
/// 4. run the pass's rows `first_row..first_row + rows`, keeping their inputs as rows `0..rows` of kept slot `kept_out`,
/// 5. write the state to slot `state_out`, unless that is [`NO_SLOT`].
///
/// `state_again` and `state_out` may be `state_in` (all of a state is read before it is written) but not each other.
/// `kept_in` and `kept_out` differ where both `again` and `rows` are above 0.
///
/// Two ways to use it; both give the same bits:
/// - *Late*: `state_in` = `state_again` = the session's only slot, `state_out` = [`NO_SLOT`], two kept slots that take turns,
///   `again` = how many rows of the pass before were accepted. A pass reads and writes each state once, taking rows back costs
///   nothing, and a session has one slot. Before a prompt chunk or a save, a pass with `rows` = 0 brings the slot up to date
///   ("settles" it).
/// - *Early*: two slots that take turns as `state_in` and `state_out`, `state_again` = [`NO_SLOT`], `again` = 0, one kept slot.
///   Taking back to `n` rows is a pass with `rows` = 0, `again` = n, `state_again` = the slot to continue from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowSlots {
    /// First row of the session in the pass.
    pub first_row: u32,
    /// Rows of the session in the pass.
    pub rows: u32,
    /// Slot of the state that is continued.
    pub state_in: i32,
    /// Slot for the state after the kept rows.
    pub state_again: i32,
    /// Slot for the state after the pass's rows.
    pub state_out: i32,
    /// Kept slot whose rows are run again.
    pub kept_in: i32,
    /// Rows of it that are run again.
    pub again: u32,
    /// Kept slot for the pass's rows; needed where `rows` is above 0.
    pub kept_out: i32,
}

impl RowSlots {
    /// Its bytes in the table.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; ROW_SLOTS] {
        let words = [
            self.first_row.to_le_bytes(),
            self.rows.to_le_bytes(),
            self.state_in.to_le_bytes(),
            self.state_again.to_le_bytes(),
            self.state_out.to_le_bytes(),
            self.kept_in.to_le_bytes(),
            self.again.to_le_bytes(),
            self.kept_out.to_le_bytes(),
        ];
        let mut bytes = [0; ROW_SLOTS];
        for (to, from) in bytes.chunks_exact_mut(4).zip(words) {
            to.copy_from_slice(&from);
        }
        bytes
    }
}

/// Slots of one layer: slot i starts at byte `offset + i * stride` of the block.
#[derive(Clone, Copy, Debug)]
pub struct Slots<'a> {
    /// The block.
    pub buffer: &'a Buffer,
    /// Byte offset of slot 0; a multiple of 64.
    pub offset: usize,
    /// Bytes from slot to slot; a multiple of 64.
    pub stride: usize,
    /// How many there are. Slot numbers in a table must be below it.
    pub count: usize,
}

impl Slots<'_> {
    /// Checks that every slot has `floats` values; the distance in values.
    fn check(&self, c: Check, name: &str, floats: usize) -> Result<i64> {
        c.that(
            self.offset.is_multiple_of(64) && self.stride.is_multiple_of(64),
            &format!("{name} is not on 64-byte boundaries"),
        )?;
        c.that(
            self.stride / 4 >= floats,
            &format!("slots of {name} are {} bytes apart but have {floats} values", self.stride),
        )?;
        c.size(&format!("the number of slots of {name}"), self.count)?;
        let all = self.count.saturating_sub(1).saturating_mul(self.stride / 4).saturating_add(floats);
        c.fits(name, (self.buffer, self.offset), all, 4)?;
        Ok((self.stride / 4) as i64)
    }

    /// Checks a slot number given by the host.
    fn slot(&self, c: Check, name: &str, slot: usize) -> Result<i32> {
        c.that(slot < self.count, &format!("{name} has {} slots, there is no slot {slot}", self.count))?;
        c.int("the slot", slot)
    }
}
