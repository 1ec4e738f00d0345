//! Sampling kernels against the rules they follow, in float64 where numbers matter.

#![allow(clippy::unwrap_used, reason = "tests stop at the first failure")]

mod harness;

use harness::{Bench, Numbers, bench, bits, error};
use ns_llm_kernels::rows::{RowState, write_states};
use ns_llm_kernels::sampling::{CANDIDATES, Choice, Lists};
use ns_llm_kernels::{Strided, at};
use ns_sycl::Buffer;

const SIZES: [usize; 8] = [1, 5, 255, 257, 1024, 5003, 49_152, 151_936];

/// Ids by value descending, lower id first, NaN and -inf left out.
fn sorted(logits: &[f32]) -> Vec<usize> {
    let mut ids: Vec<usize> = (0..logits.len()).filter(|&i| logits[i] > f32::NEG_INFINITY).collect();
    ids.sort_by(|&a, &b| logits[b].partial_cmp(&logits[a]).unwrap().then(a.cmp(&b)));
    ids
}

/// Rows of every kind of trouble.
fn troubled(n: &mut Numbers, size: usize) -> Vec<(&'static str, Vec<f32>)> {
    let normal = n.normals(size);
    let mut rows = vec![
        ("normal", normal.iter().map(|v| v * 4.0).collect::<Vec<f32>>()),
        ("equal", vec![-2.5; size]),
        ("few values", (0..size).map(|_| (n.word() % 3) as f32 - 1.0).collect()),
        ("signed zeros", (0..size).map(|_| if n.word().is_multiple_of(2) { 0.0 } else { -0.0 }).collect()),
        ("rising", (0..size).map(|i| i as f32 * 1e-3 - 7.0).collect()),
        ("falling", (0..size).map(|i| -(i as f32) * 1e-3).collect()),
        // the largest are all dealt to the same buckets
        ("bucketed", (0..size).map(|i| if i % 1024 < 40 { 5.0 } else { 0.0 } + normal[i] * 1e-3).collect()),
        ("nothing", vec![f32::NEG_INFINITY; size]),
        ("all NaN", vec![f32::NAN; size]),
        ("tiny", normal.iter().map(|v| v * 1e-39).collect()),
    ];
    let mut holes = normal.clone();
    for v in &mut holes {
        match n.word() % 4 {
            0 => *v = f32::NAN,
            1 => *v = f32::NEG_INFINITY,
            _ => {}
        }
    }
    rows.push(("holes", holes));
    let mut few = vec![f32::NEG_INFINITY; size];
    few[size / 2] = 1.0;
    few[size - 1] = f32::INFINITY;
    rows.push(("two", few));
    rows
}

#[test]
fn argmax_and_top_k() {
    let b = bench();
    let mut n = Numbers(21);
    for size in SIZES {
        let rows = troubled(&mut n, size);
        let ld = size + 3;
        let mut all = vec![f32::MAX; rows.len() * ld]; // beyond the vocabulary: must not be seen
        for (r, (_, row)) in rows.iter().enumerate() {
            all[r * ld..][..size].copy_from_slice(row);
        }
        let logits = b.put(&all);
        let out = b.poisoned(rows.len() * 4);
        b.kernels.sampling.argmax(&b.queue, at(&logits, ld), (&out, 0), (rows.len(), size)).unwrap();
        let chosen: Vec<i32> = b.read(&out, rows.len());
        let (values, ids) = (b.poisoned(rows.len() * 1024), b.poisoned(rows.len() * 1024));
        let lists = Lists { values: (&values, 0), ids: (&ids, 0) };
        b.kernels.sampling.top_k(&b.queue, at(&logits, ld), lists, (rows.len(), size)).unwrap();
        let values: Vec<f32> = b.read(&values, rows.len() * CANDIDATES);
        let ids: Vec<i32> = b.read(&ids, rows.len() * CANDIDATES);
        for (r, (name, row)) in rows.iter().enumerate() {
            let order = sorted(row);
            assert_eq!(chosen[r], order.first().map_or(0, |&i| i as i32), "argmax of {size}, {name}");
            let mut want: Vec<(i32, u32)> = order.iter().map(|&i| (i as i32, row[i].to_bits())).collect();
            want.resize(CANDIDATES, (-1, f32::NEG_INFINITY.to_bits()));
            let got: Vec<(i32, u32)> = ids[r * CANDIDATES..][..CANDIDATES]
                .iter()
                .copied()
                .zip(bits(&values[r * CANDIDATES..][..CANDIDATES]))
                .collect();
            assert_eq!(got, want, "top-k of {size}, {name}");
        }
    }
}

#[test]
fn penalties() {
    let b = bench();
    let mut n = Numbers(22);
    let (rows, vocab, ld, window_ld) = (3, 1003, 1010, 70);
    let logits = n.normals(rows * ld);
    let windows: Vec<i32> = (0..rows * window_ld).map(|_| (n.word() % 40) as i32 * 25 - 3).collect();
    let choices = [
        Choice { repeat: 1.3, frequency: 0.25, presence: 0.5, window: 64, ..Choice::default() },
        Choice { repeat: 1.3, frequency: 0.25, presence: 0.5, window: 0, ..Choice::default() },
        Choice { repeat: 0.8, frequency: -0.125, presence: 0.0, window: 1000, ..Choice::default() },
    ];
    let table: Vec<u8> = choices.iter().flat_map(Choice::to_bytes).collect();
    let (dl, dw, dc) = (b.put(&logits), b.put(&windows), b.put(&table));
    b.kernels.sampling.penalize(&b.queue, at(&dl, ld), (&dc, 0), at(&dw, window_ld), (rows, vocab)).unwrap();
    let got: Vec<f32> = b.read(&dl, rows * ld);
    let mut changed = 0;
    for (r, c) in choices.iter().enumerate() {
        let window = &windows[r * window_ld..][..(c.window as usize).min(window_ld)];
        for i in 0..ld {
            let l = logits[r * ld + i];
            let count = if i < vocab { window.iter().filter(|&&t| t == i as i32).count() } else { 0 };
            let want = if count == 0 {
                l
            } else {
                changed += 1;
                (if l > 0.0 { l / c.repeat } else { l * c.repeat }) - (count as f32 * c.frequency + c.presence)
            };
            assert!((got[r * ld + i] - want).abs() <= 1e-6 * want.abs(), "row {r}, id {i}: {} {want}", got[r * ld + i]);
        }
    }
    assert!(changed > 50, "the windows met {changed} ids");
}

#[test]
fn philox_known_answers() {
    let b = bench();
    let counters: [u32; 16] =
        [0, 0, 0, 0, !0, !0, !0, !0, 0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344, 7, 0, 0, 0];
    let keys: [u32; 8] = [0, 0, !0, !0, 0xa409_3822, 0x299f_31d0, 42, 0];
    let (c, k, out) = (b.put(&counters), b.put(&keys), b.poisoned(64));
    b.kernels.sampling.philox(&b.queue, (&c, 0), (&k, 0), (&out, 0), 4).unwrap();
    #[rustfmt::skip]
    let want = [
        0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8, 0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd,
        0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1, 0x5bbd_83b1, 0x6878_4c85, 0x1720_67aa, 0x2e6b_75b7,
    ];
    assert_eq!(b.read::<u32>(&out, 16), want);
}

/// Tokens of `count` positions drawn from one list in one launch per 4096 rows.
fn draws(b: &Bench, logits: &[f32], choice: Choice, seed: u64, stream: u32, count: usize) -> Vec<i32> {
    let order = sorted(logits);
    let mut values: Vec<f32> = order.iter().map(|&i| logits[i]).collect();
    let mut ids: Vec<i32> = order.iter().map(|&i| i as i32).collect();
    values.resize(CANDIDATES, f32::NEG_INFINITY);
    ids.resize(CANDIDATES, -1);
    let rows = count.min(4096);
    let (dv, di) = (b.put(&values.repeat(rows)), b.put(&ids.repeat(rows)));
    let dc = b.put(&choice.to_bytes().repeat(rows));
    let (table, out) = (b.poisoned(rows * 32), b.poisoned(rows * 4));
    let mut tokens = Vec::new();
    for first in (0..count).step_by(rows) {
        let states: Vec<RowState> = (first..first + rows)
            .map(|p| RowState { position: p as u32, active: true, seed, draw_stream: stream, ..RowState::default() })
            .collect();
        write_states(&b.queue, &table, 0, &states).unwrap();
        let lists = Lists { values: (&dv, 0), ids: (&di, 0) };
        b.kernels.sampling.sample(&b.queue, lists, (&table, 0), (&dc, 0), (&out, 0), rows).unwrap();
        tokens.extend(b.read::<i32>(&out, rows));
    }
    tokens.truncate(count);
    tokens
}

/// Probability of each id under a choice, in float64.
fn probabilities(logits: &[f32], c: &Choice) -> Vec<f64> {
    let mut order = sorted(logits);
    order.truncate(if c.top_k == 0 { CANDIDATES } else { c.top_k as usize });
    let top = f64::from(logits[order[0]]);
    let weight = |i: usize| ((f64::from(logits[i]) - top) / f64::from(c.temperature)).exp();
    let total: f64 = order.iter().map(|&i| weight(i)).sum();
    let (mut kept, mut sum) = (0, 0.0);
    while kept < order.len() && (kept == 0 || sum < f64::from(c.top_p) * total) {
        sum += weight(order[kept]);
        kept += 1;
    }
    while kept > 1 && weight(order[kept - 1]) < f64::from(c.min_p) {
        kept -= 1;
    }
    let kept_total: f64 = order[..kept].iter().map(|&i| weight(i)).sum();
    let mut p = vec![0.0; logits.len()];
    for &i in &order[..kept] {
        p[i] = weight(i) / kept_total;
    }
    p
}

/// Chi-square of 20,480 draws for each setting of the chain. Bound: mean + 4.5 standard deviations + 5 (false alarm below 1e-4,
/// and the draws are fixed by the seed).
#[test]
fn draws_follow_the_distribution() {
    let b = bench();
    let mut n = Numbers(23);
    let narrow: Vec<f32> = n.normals(11);
    let wide: Vec<f32> = n.normals(700).iter().map(|v| v * 2.0).collect();
    let count = 20_480;
    let base = Choice { temperature: 1.0, ..Choice::default() };
    for (i, c) in [
        base,
        Choice { temperature: 0.6, ..base },
        Choice { temperature: 1.7, ..base },
        Choice { top_k: 4, ..base },
        Choice { top_p: 0.8, ..base },
        Choice { min_p: 0.2, ..base },
        Choice { temperature: 1.3, top_k: 40, top_p: 0.9, min_p: 0.05, ..base },
        Choice { top_k: 1, ..base },
        Choice { top_p: 0.0, ..base },
    ]
    .into_iter()
    .enumerate()
    {
        for logits in [&narrow, &wide] {
            let p = probabilities(logits, &c);
            let mut seen = vec![0.0_f64; logits.len()];
            for token in draws(&b, logits, c, 77 + i as u64, 0, count) {
                seen[token as usize] += 1.0;
            }
            // rare tokens share a bin
            let (mut chi, mut bins, mut rest) = (0.0, 0.0_f64, (0.0, 0.0));
            let mut bin = |seen: f64, wanted: f64| {
                chi += (seen - wanted).powi(2) / wanted;
                bins += 1.0;
            };
            for (seen, p) in seen.iter().zip(&p) {
                let wanted = p * count as f64;
                assert!(*p > 0.0 || *seen == 0.0, "{c:?}: a token outside the kept ones was drawn");
                if wanted < 10.0 { rest = (rest.0 + seen, rest.1 + wanted) } else { bin(*seen, wanted) }
            }
            if rest.1 > 0.0 {
                bin(rest.0, rest.1);
            }
            let freedom = bins - 1.0;
            assert!(
                chi <= freedom + 4.5 * (2.0 * freedom).sqrt() + if freedom > 0.0 { 5.0 } else { 1e-9 },
                "{c:?}: chi-square {chi} with {freedom} degrees of freedom"
            );
        }
    }
}

/// Each draw is the one the rule gives for its uniform: recomputed in float64, unless the uniform is within 1e-6 of a border.
#[test]
fn draws_are_those_of_their_uniforms() {
    let b = bench();
    let mut n = Numbers(24);
    let logits = n.normals(300);
    let c = Choice { temperature: 0.9, top_p: 0.95, ..Choice::default() };
    let (seed, count) = (0x1234_5678_9abc_def0_u64, 2000);
    let p = probabilities(&logits, &c);
    let order = sorted(&logits);
    let mut words = Vec::new();
    for stream in [0_u32, 3] {
        let counters: Vec<u32> = (0..count).flat_map(|i| [i as u32 + 1, 0, stream, 0]).collect();
        let keys = [seed as u32, (seed >> 32) as u32].repeat(count);
        let (dc, dk, out) = (b.put(&counters), b.put(&keys), b.poisoned(count * 16));
        b.kernels.sampling.philox(&b.queue, (&dc, 0), (&dk, 0), (&out, 0), count).unwrap();
        words.push(b.read::<u32>(&out, count * 4));
        let tokens = draws(&b, &logits, c, seed, stream, count);
        let mut compared = 0;
        for (i, &token) in tokens.iter().enumerate() {
            let u = f64::from(words[words.len() - 1][4 * i] >> 8) / f64::from(1 << 24);
            let mut sum = 0.0;
            let mut border = false;
            let mut want = order[0];
            for &id in order.iter().filter(|&&id| p[id] > 0.0) {
                want = id;
                sum += p[id];
                border |= (sum - u).abs() < 1e-6;
                if sum > u {
                    break;
                }
            }
            if !border {
                assert_eq!(token as usize, want, "position {i}, u = {u}");
                compared += 1;
            }
        }
        assert!(compared > count - 20);
    }
    assert_ne!(words[0], words[1], "streams differ");
}

#[test]
fn greedy_and_empty_rows() {
    let b = bench();
    let logits = [1.0, 3.0, f32::NAN, 3.0];
    assert_eq!(draws(&b, &logits, Choice::default(), 1, 0, 3), [1, 1, 1]);
    assert_eq!(draws(&b, &logits, Choice { temperature: f32::NAN, ..Choice::default() }, 1, 0, 1), [1]);
    let nothing = [f32::NAN, f32::NEG_INFINITY];
    assert_eq!(draws(&b, &nothing, Choice { temperature: 1.0, ..Choice::default() }, 1, 0, 2), [0, 0]);
    let two = [f32::INFINITY, 5.0, f32::INFINITY];
    let tokens = draws(&b, &two, Choice { temperature: 1.0, ..Choice::default() }, 1, 0, 64);
    assert!(tokens.iter().all(|&t| t != 1) && tokens.contains(&0) && tokens.contains(&2), "{tokens:?}");
}

/// One recorded graph serves every token: what changes is in device memory.
#[test]
fn a_recorded_chain_follows_its_tables() {
    let b = bench();
    let mut n = Numbers(25);
    let (rows, vocab) = (2, 4099);
    let logits = b.put(&n.normals(rows * vocab));
    let copy = b.poisoned(rows * vocab * 4);
    let windows = b.put(&[7_i32; 8]);
    let (values, ids) = (b.poisoned(rows * 1024), b.poisoned(rows * 1024));
    let (table, choices, out) = (b.poisoned(rows * 32), b.poisoned(rows * 32), b.poisoned(rows * 4));
    let s = &b.kernels.sampling;
    let lists = Lists { values: (&values, 0), ids: (&ids, 0) };
    let chain = |b: &Bench| {
        b.queue.copy(&copy, 0, &logits, 0, rows * vocab * 4).unwrap();
        s.penalize(&b.queue, at(&copy, vocab), (&choices, 0), at(&windows, 4), (rows, vocab)).unwrap();
        s.top_k(&b.queue, at(&copy, vocab), lists, (rows, vocab)).unwrap();
        s.sample(&b.queue, lists, (&table, 0), (&choices, 0), (&out, 0), rows).unwrap();
        s.advance(&b.queue, (&table, 0), (&out, 0), rows).unwrap();
    };
    let state = |position, active| RowState { position, active, seed: 5, ..RowState::default() };
    let write = |choice: Choice| {
        write_states(&b.queue, &table, 0, &[state(10, true), state(20, false)]).unwrap();
        b.queue.write(&choices, 0, &choice.to_bytes().repeat(2)).unwrap();
    };
    let results = || (b.read::<i32>(&out, rows), b.read::<i32>(&table, 16));
    b.queue.begin_graph().unwrap();
    chain(&b);
    let graph = b.queue.end_graph().unwrap();
    let mut seen = Vec::new();
    for choice in [
        Choice { temperature: 1.5, ..Choice::default() },
        Choice::default(),
        Choice { presence: -100.0, window: 3, ..Choice::default() },
    ] {
        write(choice);
        for _ in 0..3 {
            b.queue.replay(&graph).unwrap();
        }
        let replayed = results();
        write(choice);
        for _ in 0..3 {
            chain(&b);
        }
        assert_eq!(replayed, results(), "{choice:?}");
        let (tokens, table) = replayed;
        assert_eq!((table[0], table[1]), (tokens[0], 13), "an active row moves on");
        assert_eq!((table[8], table[9]), (0, 20), "another one stays");
        seen.push(tokens[0]);
    }
    assert_eq!(seen[2], 7, "the penalty's token");
    assert!(seen[0] != seen[1], "the temperature changes the token");
}

/// Softmax, also in place and with values whose exponentials would overflow.
#[test]
fn softmax() {
    let b = bench();
    let mut n = Numbers(26);
    for size in [1, 17, 1000, 49_152] {
        let ld = size + 1;
        let x: Vec<f32> = (0..2 * ld).map(|i| n.normal() * 3.0 + if i < ld { 500.0 } else { -500.0 }).collect();
        let (dx, out) = (b.put(&x), b.poisoned(2 * size * 4));
        b.kernels.sampling.softmax(&b.queue, at(&dx, ld), at(&out, size), (2, size)).unwrap();
        b.kernels.sampling.softmax(&b.queue, at(&dx, ld), at(&dx, ld), (2, size)).unwrap();
        let (got, same): (Vec<f32>, Vec<f32>) = (b.read(&out, 2 * size), b.read(&dx, 2 * ld));
        for r in 0..2 {
            let row = &x[r * ld..][..size];
            let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let e: Vec<f64> = row.iter().map(|&v| f64::from(v - max).exp()).collect();
            let total: f64 = e.iter().sum();
            let want: Vec<f64> = e.iter().map(|v| v / total).collect();
            let worst = error(&got[r * size..][..size], &want, 1e-35);
            assert!(worst < 2e-6, "softmax of {size}: relative error {worst:e}");
            assert_eq!(bits(&got[r * size..][..size]), bits(&same[r * ld..][..size]));
        }
    }
}

/// A row alone gives what it gives among others.
#[test]
fn rows_are_independent_of_their_number() {
    let b = bench();
    let x = Numbers(27).normals(5 * 3001);
    let logits = b.put(&x);
    let run = |first: usize, rows: usize| -> (Buffer, Buffer) {
        let (values, ids) = (b.poisoned(rows * 1024), b.poisoned(rows * 1024));
        let lists = Lists { values: (&values, 0), ids: (&ids, 0) };
        let from = Strided { buffer: &logits, offset: first * 3001 * 4, ld: 3001 };
        b.kernels.sampling.top_k(&b.queue, from, lists, (rows, 3001)).unwrap();
        (values, ids)
    };
    let all = run(0, 5);
    for r in 0..5 {
        let one = run(r, 1);
        assert_eq!(
            b.read::<i32>(&all.1, 5 * CANDIDATES)[r * CANDIDATES..][..CANDIDATES],
            b.read::<i32>(&one.1, CANDIDATES)
        );
    }
}
