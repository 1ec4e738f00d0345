//! Which cells of the key-value cache belong to which session.
//!
//! The cache is one buffer of `[layer][key, value][kv_head][cells][head_dim]`; a session owns a range of cells. Ranges
//! are handed out first fit and joined again when they are freed.

/// A contiguous range of cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CellRange {
    /// First cell.
    pub start: usize,
    /// Number of cells.
    pub len: usize,
}

/// Free ranges of a cache of fixed size, sorted by start, never touching each other.
#[derive(Debug)]
pub struct CellArena {
    cells: usize,
    free: Vec<CellRange>,
}

impl CellArena {
    /// An arena of `cells` free cells.
    pub fn new(cells: usize) -> Self {
        Self { cells, free: vec![CellRange { start: 0, len: cells }] }
    }

    /// Cells in all.
    pub fn cells(&self) -> usize {
        self.cells
    }

    /// The longest range that [`CellArena::take`] can still give.
    pub fn largest_free(&self) -> usize {
        self.free.iter().map(|r| r.len).max().unwrap_or(0)
    }

    /// Takes `len` cells from the smallest free range that holds them.
    pub fn take(&mut self, len: usize) -> Option<CellRange> {
        let at = (0..self.free.len()).filter(|&i| self.free[i].len >= len).min_by_key(|&i| self.free[i].len)?;
        let taken = CellRange { start: self.free[at].start, len };
        self.free[at].start += len;
        self.free[at].len -= len;
        if self.free[at].len == 0 {
            self.free.remove(at);
        }
        Some(taken)
    }

    /// Gives a range back.
    pub fn give(&mut self, range: CellRange) {
        let at = self.free.partition_point(|r| r.start < range.start);
        self.free.insert(at, range);
        if at + 1 < self.free.len() && self.free[at].start + self.free[at].len == self.free[at + 1].start {
            self.free[at].len += self.free[at + 1].len;
            self.free.remove(at + 1);
        }
        if at > 0 && self.free[at - 1].start + self.free[at - 1].len == self.free[at].start {
            self.free[at - 1].len += self.free[at].len;
            self.free.remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_ranges_join_and_the_smallest_fit_is_taken() {
        let mut arena = CellArena::new(100);
        let (a, b, c) = (arena.take(10).unwrap(), arena.take(30).unwrap(), arena.take(60).unwrap());
        assert!(arena.take(1).is_none());
        arena.give(a);
        arena.give(c);
        assert_eq!(arena.largest_free(), 60);
        assert_eq!(arena.take(8).unwrap().start, 0);
        arena.give(CellRange { start: 0, len: 8 });
        arena.give(b);
        assert_eq!(arena.take(100), Some(CellRange { start: 0, len: 100 }));
    }
}
