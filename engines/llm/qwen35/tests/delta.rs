//! Gated DeltaNet kernels against float64, and against themselves: alone, together, run again, in chunks.

#![allow(clippy::unwrap_used, reason = "tests stop at the first failure")]

#[path = "../../kernels/tests/harness/mod.rs"]
mod harness;
mod reference;

use harness::{Bench, Numbers, bench, bits, error};
use ns_llm_kernels::{act, at};
use ns_llm_qwen35::kernels::delta::{Shape, Taps, conv_taps};
use ns_llm_qwen35::kernels::{Kernels, NO_SLOT, RowSlots, Slots};
use ns_sycl::{Buffer, Locations};
use reference::{Layer, Session};

const SHAPES: [Shape; 4] = [
    Shape { key_heads: 1, value_heads: 1 },
    Shape { key_heads: 2, value_heads: 6 },
    Shape { key_heads: 3, value_heads: 3 },
    Shape { key_heads: 2, value_heads: 18 },
];
const SLOTS: usize = 5;
const KEPT: usize = 8;
const EPS: f32 = 1e-6;

/// One layer on the device, with states of several sessions.
struct Machine<'a> {
    b: &'a Bench,
    kernels: Kernels,
    shape: Shape,
    ld: usize,
    taps: [Buffer; 3],
    state: Buffer,
    history: Buffer,
    kept: Buffer,
}

impl<'a> Machine<'a> {
    /// Slots are NaN but for those of `zero`.
    fn new(b: &'a Bench, layer: &Layer, zero: &[usize]) -> Self {
        let shape = layer.shape;
        let kernels = Kernels::load(b.device, &Locations::discover().kernels).unwrap();
        let m = Self {
            b,
            kernels,
            shape,
            ld: shape.product_cols() + 24,
            taps: [b.put(&conv_taps(&layer.conv)), b.put(&layer.a), b.put(&layer.dt_bias)],
            state: b.poisoned(SLOTS * stride(shape.state_floats())),
            history: b.poisoned(SLOTS * stride(shape.history_floats())),
            kept: b.poisoned(SLOTS * stride(shape.kept_floats(KEPT))),
        };
        for &slot in zero {
            for (buffer, floats) in [(&m.state, shape.state_floats()), (&m.history, shape.history_floats())] {
                b.queue.fill(buffer, slot * stride(floats), floats * 4, 0).unwrap();
            }
        }
        m
    }

    fn states(&self) -> Slots<'_> {
        slots(&self.state, self.shape.state_floats())
    }

    fn histories(&self) -> Slots<'_> {
        slots(&self.history, self.shape.history_floats())
    }

    fn taps(&self) -> Taps<'_> {
        Taps { conv: (&self.taps[0], 0), a: (&self.taps[1], 0), dt_bias: (&self.taps[2], 0) }
    }

    /// The rows' products on the device, NaN between them.
    fn products(&self, rows: &[&[f32]]) -> Buffer {
        let mut all = vec![f32::NAN; rows.len().max(1) * self.ld];
        for (to, row) in all.chunks_exact_mut(self.ld).zip(rows) {
            to[..row.len()].copy_from_slice(row);
        }
        self.b.put(&all)
    }

    /// A decode pass: the outputs of each row.
    fn pass(&self, table: &[RowSlots], products: &[&[f32]]) -> Vec<Vec<f32>> {
        let (b, rows, cols) = (self.b, table.len(), self.shape.value_cols());
        let bytes: Vec<u8> = table.iter().flat_map(RowSlots::to_bytes).collect();
        let (table, product, out) = (b.put(&bytes), self.products(products), b.poisoned(rows * (cols + 16) * 4));
        assert!(products.is_empty() || products.len() == rows);
        let kept = (&slots(&self.kept, self.shape.kept_floats(KEPT)), KEPT);
        let product = if products.is_empty() { b.poisoned(rows * self.ld * 4) } else { product };
        let d = &self.kernels.delta;
        d.conv_rows(
            &b.queue,
            at(&product, self.ld),
            &self.taps(),
            &self.histories(),
            kept,
            (&table, 0),
            self.shape,
            rows,
        )
        .unwrap();
        d.recur_rows(&b.queue, kept, &self.states(), (&table, 0), at(&out, cols + 16), self.shape, rows).unwrap();
        let all: Vec<f32> = b.read(&out, rows * (cols + 16));
        all.chunks_exact(cols + 16)
            .map(|row| {
                assert!(row[cols..].iter().all(|v| v.is_nan()), "nothing is written between the rows");
                row[..cols].to_vec()
            })
            .collect()
    }

    /// A chunk: the outputs of each row.
    fn chunk(&self, (from, to): (usize, usize), products: &[&[f32]]) -> Vec<Vec<f32>> {
        let (b, rows, cols) = (self.b, products.len(), self.shape.value_cols());
        let product = self.products(products);
        let ldm = self.shape.mix_cols() + 8;
        let (mix, out) = (b.poisoned(rows * ldm * 4), b.poisoned(rows * cols * 4));
        let d = &self.kernels.delta;
        let between = (from, to);
        d.conv_chunk(
            &b.queue,
            at(&product, self.ld),
            &self.taps(),
            &self.histories(),
            between,
            at(&mix, ldm),
            self.shape,
            rows,
        )
        .unwrap();
        d.recur_chunk(&b.queue, at(&mix, ldm), &self.states(), between, at(&out, cols), self.shape, rows).unwrap();
        b.read::<f32>(&out, rows * cols).chunks_exact(cols).map(<[f32]>::to_vec).collect()
    }

    /// State and history of a slot, as they are on the device.
    fn slot(&self, slot: usize) -> (Vec<f32>, Vec<f32>) {
        let read =
            |buffer: &Buffer, floats: usize| self.b.queue.read_vec(buffer, slot * stride(floats), floats).unwrap();
        (read(&self.state, self.shape.state_floats()), read(&self.history, self.shape.history_floats()))
    }
}

fn stride(floats: usize) -> usize {
    (floats * 4).next_multiple_of(64) + 64
}

fn slots(buffer: &Buffer, floats: usize) -> Slots<'_> {
    Slots { buffer, offset: 0, stride: stride(floats), count: SLOTS }
}

/// A session in slot `slot` that leaves its state where it was; kept slots take turns.
fn late(slot: i32, kept_in: i32, again: u32, first_row: u32, rows: u32) -> RowSlots {
    RowSlots {
        first_row,
        rows,
        state_in: slot,
        state_again: if again > 0 { slot } else { NO_SLOT },
        state_out: NO_SLOT,
        kept_in,
        again,
        kept_out: kept_in ^ 1,
    }
}

fn state_bits(m: &Machine<'_>, slot: usize) -> (Vec<u32>, Vec<u32>) {
    let (state, history) = m.slot(slot);
    (bits(&state), bits(&history))
}

fn all_bits(rows: &[Vec<f32>]) -> Vec<Vec<u32>> {
    rows.iter().map(|r| bits(r)).collect()
}

/// Rows of 24 tokens.
fn tokens(n: &mut Numbers, shape: Shape, count: usize) -> Vec<Vec<f32>> {
    (0..count).map(|_| reference::product(n, shape)).collect()
}

fn views(rows: &[Vec<f32>]) -> Vec<&[f32]> {
    rows.iter().map(Vec::as_slice).collect()
}

#[test]
fn decode_rows_of_several_sessions() {
    let b = bench();
    let mut n = Numbers(31);
    for shape in SHAPES {
        let layer = Layer::new(&mut n, shape);
        let m = Machine::new(&b, &layer, &[0, 1]);
        // two sessions; after each pass some of the last rows are taken back
        let mut exact = [Session::new(&layer), Session::new(&layer)];
        let (mut kept, mut again) = ([0, 2], [0, 0]);
        for (pass, counts) in [[1, 1], [3, 2], [4, 4], [1, 7], [5, 1], [2, 2]].into_iter().enumerate() {
            let products = tokens(&mut n, shape, counts[0] + counts[1]);
            let mut table = Vec::new();
            for s in 0..2 {
                let first = if s == 0 { 0 } else { counts[0] };
                let entry = late(s as i32, kept[s], again[s], first as u32, counts[s] as u32);
                table.extend(vec![entry; counts[s]]);
                kept[s] = entry.kept_out;
            }
            let got = m.pass(&table, &views(&products));
            for s in 0..2 {
                let first = if s == 0 { 0 } else { counts[0] };
                let accepted = counts[s] - (pass + s) % 2 * (counts[s] / 2);
                let mut ahead = exact[s].clone();
                for r in 0..counts[s] {
                    let want = ahead.step(&layer, &products[first + r]);
                    let e = error(&got[first + r], &want, 0.1);
                    assert!(e < 1e-5, "{shape:?} pass {pass}, session {s}, row {r}: error {e:e}");
                    if r + 1 == accepted {
                        exact[s] = ahead.clone();
                    }
                }
                again[s] = accepted as u32;
            }
        }
        // settle both and compare what is left
        let table: Vec<RowSlots> = (0..2).map(|s| late(s, kept[s as usize], again[s as usize], 0, 0)).collect();
        let rest = m.pass(&table, &[]);
        assert!(rest.iter().flatten().all(|v| v.is_nan()), "settling gives no outputs");
        for (s, exact) in exact.iter().enumerate() {
            let (state, history) = m.slot(s);
            let e = error(&state, &exact.state(), 0.1);
            assert!(e < 1e-5, "{shape:?}, state {s}: error {e:e}");
            assert_eq!(bits(&history), bits(&exact.history), "histories are copies");
        }
        for other in 2..SLOTS {
            let (state, history) = m.slot(other);
            assert!(state.iter().chain(&history).all(|v| v.is_nan()), "no other slot is touched");
        }
    }
}

/// The same session row by row, in passes of any width, beside others, run again, with two slots, in chunks: the same bits.
#[test]
fn all_ways_give_the_same_bits() {
    let b = bench();
    let mut n = Numbers(32);
    let shape = SHAPES[1];
    let layer = Layer::new(&mut n, shape);
    let products = tokens(&mut n, shape, 16);
    let rows = views(&products);
    // row by row, two slots in turn
    let m = Machine::new(&b, &layer, &[0]);
    let mut want = Vec::new();
    for (i, row) in rows.iter().enumerate() {
        let early = RowSlots {
            first_row: 0,
            rows: 1,
            state_in: (i % 2) as i32,
            state_again: NO_SLOT,
            state_out: (i + 1) as i32 % 2,
            kept_in: NO_SLOT,
            again: 0,
            kept_out: 0,
        };
        want.extend(m.pass(&[early], &[row]));
    }
    let (want, end) = (all_bits(&want), state_bits(&m, 0));

    // one slot; each row runs again in the next pass
    let m = Machine::new(&b, &layer, &[0]);
    let got: Vec<_> = rows
        .iter()
        .enumerate()
        .flat_map(|(i, row)| m.pass(&[late(0, (i % 2) as i32, u32::from(i > 0), 0, 1)], &[row]))
        .collect();
    assert_eq!(all_bits(&got), want, "late, row by row");
    m.pass(&[late(0, 0, 1, 0, 0)], &[]);
    assert_eq!(state_bits(&m, 0), end);

    // eight rows, of which some are refused, beside another session in front and behind
    for width in 1..=8 {
        let m = Machine::new(&b, &layer, &[0, 1, 2]);
        let other = tokens(&mut n, shape, 2);
        let (mut position, mut kept, mut again) = (0, 0, 0);
        while position < 16 {
            let count = width.min(16 - position);
            let mine = late(0, kept, again, 1, count as u32);
            let mut table = vec![RowSlots { kept_out: 2, ..late(1, 4, 0, 0, 1) }];
            table.extend(vec![mine; count]);
            table.push(RowSlots { kept_out: 3, ..late(2, 4, 0, count as u32 + 1, 1) });
            let mut all = vec![other[0].as_slice()];
            all.extend(&rows[position..position + count]);
            all.push(&other[1]);
            let got = m.pass(&table, &all);
            assert_eq!(all_bits(&got[1..=count]), want[position..position + count], "{width} rows from {position}");
            again = (count as u32 / 2).max(1);
            (position, kept) = (position + again as usize, mine.kept_out);
        }
        m.pass(&[late(0, kept, again, 0, 0)], &[]);
        assert_eq!(state_bits(&m, 0), end, "{width} rows at a time");
    }

    // two slots, back to three rows of eight, then on
    let m = Machine::new(&b, &layer, &[0]);
    let first = RowSlots {
        first_row: 0,
        rows: 8,
        state_in: 0,
        state_again: NO_SLOT,
        state_out: 1,
        kept_in: NO_SLOT,
        again: 0,
        kept_out: 0,
    };
    let got = m.pass(&[first; 8], &rows[..8]);
    assert_eq!(all_bits(&got), want[..8]);
    m.pass(&[RowSlots { rows: 0, state_again: 1, state_out: NO_SLOT, kept_in: 0, again: 3, ..first }], &[]);
    let rest = RowSlots { state_in: 1, state_out: 0, ..first };
    let got = m.pass(&[rest; 8], &rows[3..11]);
    assert_eq!(all_bits(&got), want[3..11]);

    // chunks
    for cuts in [vec![16], vec![1, 2, 3, 10], vec![15, 1]] {
        let m = Machine::new(&b, &layer, &[0]);
        let mut position = 0;
        for count in &cuts {
            let got = m.chunk((0, 0), &rows[position..position + count]);
            assert_eq!(all_bits(&got), want[position..position + count], "chunks {cuts:?}");
            position += count;
        }
        assert_eq!(state_bits(&m, 0), end, "chunks {cuts:?}");
    }
}

/// A long chunk stays with float64, from one slot to another.
#[test]
fn chunks() {
    let b = bench();
    let mut n = Numbers(33);
    for (shape, lengths) in [(SHAPES[1], [77, 130]), (SHAPES[0], [2, 33]), (SHAPES[3], [1, 64])] {
        let layer = Layer::new(&mut n, shape);
        let m = Machine::new(&b, &layer, &[3]);
        let mut exact = Session::new(&layer);
        for (length, between) in lengths.into_iter().zip([(3, 1), (1, 1)]) {
            let products = tokens(&mut n, shape, length);
            let got = m.chunk(between, &views(&products));
            for (r, product) in products.iter().enumerate() {
                let e = error(&got[r], &exact.step(&layer, product), 0.1);
                assert!(e < 1e-5, "{shape:?}, row {r} of {length}: error {e:e}");
            }
        }
        let (state, history) = m.slot(1);
        let e = error(&state, &exact.state(), 0.1);
        assert!(e < 1e-5, "{shape:?}: error of the state {e:e}");
        assert_eq!(bits(&history), bits(&exact.history));
    }
}

#[test]
fn gated_norm() {
    let b = bench();
    let mut n = Numbers(34);
    for shape in SHAPES {
        let layer = Layer::new(&mut n, shape);
        let m = Machine::new(&b, &layer, &[]);
        let (rows, cols) = (5, shape.value_cols());
        let products = tokens(&mut n, shape, rows);
        let product = m.products(&views(&products));
        let o: Vec<f32> = n.normals(rows * (cols + 16)).iter().map(|v| v * 1e-3).collect();
        let weight = n.normals(128);
        let (out, w) = (b.put(&o), b.put(&weight));
        let stride = act::stride(cols, b.device.class());
        let (acts, plain) = (b.poisoned(rows * stride), b.poisoned(rows * cols * 4));
        let (o_rows, p_rows) = (at(&out, cols + 16), at(&product, m.ld));
        let d = &m.kernels.delta;
        d.norm_act(&b.queue, o_rows, p_rows, (&w, 0), at(&acts, stride), shape, rows, EPS).unwrap();
        d.norm(&b.queue, o_rows, p_rows, (&w, 0), at(&plain, cols), shape, rows, EPS).unwrap();
        let (acts_all, plain): (Vec<u8>, Vec<f32>) = (b.read(&acts, rows * stride), b.read(&plain, rows * cols));
        // what the shared kernel makes of the same values
        let again = b.poisoned(rows * stride);
        let rows_again = b.put(&plain);
        b.kernels.rows.to_act(&b.queue, at(&rows_again, cols), at(&again, stride), (rows, cols)).unwrap();
        let again: Vec<u8> = b.read(&again, rows * stride);
        for r in 0..rows {
            let want = reference::gated_norm(shape, &o[r * (cols + 16)..][..cols], &products[r], &weight, EPS);
            let got = &plain[r * cols..][..cols];
            let e = error(got, &want, 0.1);
            assert!(e < 2e-6, "{shape:?} row {r}: error {e:e}");
            let used = act::stride(cols, b.device.class()) - 64;
            assert_eq!(acts_all[r * stride..][..used], again[r * stride..][..used], "as activation rows");
        }
        d.norm(&b.queue, o_rows, p_rows, (&w, 0), o_rows, shape, rows, EPS).unwrap();
        let in_place: Vec<f32> = b.read(&out, rows * (cols + 16));
        for r in 0..rows {
            assert_eq!(bits(&in_place[r * (cols + 16)..][..cols]), bits(&plain[r * cols..][..cols]), "in place");
        }
    }
}

#[test]
fn wrong_shapes_are_refused() {
    let b = bench();
    let mut n = Numbers(35);
    let layer = Layer::new(&mut n, SHAPES[1]);
    let m = Machine::new(&b, &layer, &[0]);
    let d = &m.kernels.delta;
    let small = b.poisoned(4096);
    let shape = Shape { key_heads: 4, value_heads: 6 };
    let kept = (&m.states(), 1);
    let e = d.recur_rows(&b.queue, kept, &m.states(), (&small, 0), at(&small, 768), shape, 1).unwrap_err().to_string();
    assert_eq!(e, "kernel recur_rows: 6 value heads cannot share 4 key heads");
    let e = d
        .recur_chunk(&b.queue, at(&small, 1300), &m.states(), (0, 5), at(&small, 768), SHAPES[1], 1)
        .unwrap_err()
        .to_string();
    assert!(e.contains("mix needs"), "{e}");
    let mix = b.poisoned(m.shape.mix_cols() * 4);
    let e = d
        .recur_chunk(&b.queue, at(&mix, m.shape.mix_cols()), &m.states(), (0, 5), at(&small, 768), SHAPES[1], 1)
        .unwrap_err()
        .to_string();
    assert_eq!(e, "kernel recur_chunk: states has 5 slots, there is no slot 5");
    let few = Slots { stride: 64, ..m.states() };
    let e = d
        .recur_rows(&b.queue, (&m.states(), 8), &few, (&small, 0), at(&small, 768), SHAPES[1], 1)
        .unwrap_err()
        .to_string();
    assert!(e.contains("slots of the states are 64 bytes apart"), "{e}");
}
