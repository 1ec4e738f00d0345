//! Times the kernels of qwen35 on a device: `times SELECTOR [NAME]`, only those whose name begins with NAME.
//!
//! Each line: a kernel, its shape, microseconds a launch, and GB/s of what it must read and write. The launches of a run go through as
//! many layers as the model has, each with memory of its own; the shortest of several runs counts.

use std::io::Write;
use std::time::{Duration, Instant};

use ns_llm_kernels::attention::{self, Cache, Chunk, Heads, KvPrecision, prompt_scratch_bytes};
use ns_llm_kernels::rows::{RowState, write_states};
use ns_llm_kernels::{Kernels as Shared, Result, act, at};
use ns_llm_qwen35::kernels::delta::{Shape, Taps};
use ns_llm_qwen35::kernels::gated::{QueryKey, product_cols};
use ns_llm_qwen35::kernels::{Kernels, NO_SLOT, RowSlots, Slots};
use ns_sycl::{Buffer, Device, Locations, Queue};

const RUNS: usize = 12;

struct Times {
    device: Device,
    queue: Queue,
    shared: Shared,
    own: Kernels,
    only: String,
}

impl Times {
    fn alloc(&self, bytes: usize) -> Result<Buffer> {
        let buffer = self.device.alloc(bytes)?;
        // halves and singles of about 0.004: nothing is denormal, nothing overflows
        self.queue.fill(&buffer, 0, bytes, 0x1c)?;
        Ok(buffer)
    }

    fn run(&self, name: &str, layers: usize, bytes: usize, mut f: impl FnMut(usize) -> Result<()>) -> Result<()> {
        if !name.starts_with(&self.only) {
            return Ok(());
        }
        let mut shortest = Duration::MAX;
        for _ in 0..RUNS {
            let start = Instant::now();
            (0..layers).try_for_each(&mut f)?;
            self.queue.wait()?;
            shortest = shortest.min(start.elapsed());
        }
        let each = shortest.as_secs_f64() / layers as f64;
        let mut out = std::io::stdout().lock();
        // nothing to be done about a closed pipe
        let _ = writeln!(out, "{name:52} {:9.1} us {:7.1} GB/s", each * 1e6, bytes as f64 / each / 1e9);
        Ok(())
    }

    /// The DeltaNet kernels of a model with so many such layers.
    fn delta(&self, model: &str, shape: Shape, layers: usize) -> Result<()> {
        let (d, q) = (&self.own.delta, &self.queue);
        let ld = shape.product_cols();
        let floats = [shape.state_floats(), shape.history_floats(), shape.kept_floats(8)];
        let memory = floats.map(|n| self.alloc(layers * 2 * n * 4));
        let [state, history, kept] = memory;
        let (state, history, kept) = (state?, history?, kept?);
        let slots = |buffer, of: usize, layer: usize| Slots {
            buffer,
            offset: layer * 2 * floats[of] * 4,
            stride: floats[of] * 4,
            count: 2,
        };
        let most = 512;
        let product = self.alloc(most * ld * 4)?;
        let mix = self.alloc(most * shape.mix_cols() * 4)?;
        let out = self.alloc(most * shape.value_cols() * 4)?;
        let small = self.alloc(shape.channels() * 16)?;
        let taps = Taps { conv: (&small, 0), a: (&small, 0), dt_bias: (&small, 0) };
        let stride = act::stride(shape.value_cols(), self.device.class());
        let acts = self.alloc(8 * stride)?;
        for (again, rows) in [(0, 1), (1, 1), (0, 4), (2, 4), (0, 8), (8, 8)] {
            let entry = RowSlots {
                first_row: 0,
                rows,
                state_in: 0,
                state_again: if again > 0 { 0 } else { NO_SLOT },
                state_out: if again > 0 { NO_SLOT } else { 0 },
                kept_in: 0,
                again,
                kept_out: 1,
            };
            let bytes: Vec<u8> = (0..rows).flat_map(|_| entry.to_bytes()).collect();
            let table = self.device.alloc(bytes.len())?;
            q.write(&table, 0, &bytes)?;
            let n = rows as usize;
            let case = format!("{model} {again}+{rows} rows");
            let moved = n * (2 * shape.channels() + shape.mix_cols()) * 4;
            self.run(&format!("conv_rows {case}"), layers, moved, |l| {
                let kept = (&slots(&kept, 2, l), 8);
                d.conv_rows(q, at(&product, ld), &taps, &slots(&history, 1, l), kept, (&table, 0), shape, n)
            })?;
            self.run(&format!("recur_rows {case}"), layers, 2 * floats[0] * 4, |l| {
                let kept = (&slots(&kept, 2, l), 8);
                d.recur_rows(q, kept, &slots(&state, 0, l), (&table, 0), at(&out, shape.value_cols()), shape, n)
            })?;
            if again == 0 {
                let (o, p) = (at(&out, shape.value_cols()), at(&product, ld));
                self.run(&format!("norm_act {case}"), layers, n * shape.value_cols() * 12, |_| {
                    d.norm_act(q, o, p, (&small, 0), at(&acts, stride), shape, n, 1e-6)
                })?;
            }
        }
        let rows = most;
        let (m, o) = (at(&mix, shape.mix_cols()), at(&out, shape.value_cols()));
        let moved = rows * (shape.channels() + shape.mix_cols()) * 4;
        self.run(&format!("conv_chunk {model} {rows} rows"), 4, moved, |l| {
            d.conv_chunk(q, at(&product, ld), &taps, &slots(&history, 1, l), (0, 0), m, shape, rows)
        })?;
        let moved = rows * (shape.mix_cols() + shape.value_cols()) * 4;
        self.run(&format!("recur_chunk {model} {rows} rows"), 4, moved, |l| {
            d.recur_chunk(q, m, &slots(&state, 0, l), (0, 0), o, shape, rows)
        })?;
        self.run(&format!("norm {model} {rows} rows"), 4, rows * shape.value_cols() * 12, |_| {
            d.norm(q, o, at(&product, ld), (&small, 0), o, shape, rows, 1e-6)
        })
    }

    /// The attention kernels of a model with so many full layers, at a position.
    fn gated(&self, model: &str, heads: Heads, layers: usize, position: usize) -> Result<()> {
        let (g, a, q) = (&self.own.gated, &self.shared.attention, &self.queue);
        let (ld, cols) = (product_cols(heads), heads.n_heads * heads.head_dim);
        let most = 512;
        let product = self.alloc(most * ld * 4)?;
        let queries = self.alloc(most * cols * 4)?;
        let out = self.alloc(most * cols * 4)?;
        let small = self.alloc(1024)?;
        let stride = act::stride(cols, self.device.class());
        let acts = self.alloc(8 * stride)?;
        let cells = (position + most).next_multiple_of(16);
        let n_splits = attention::splits(position + 8);
        let partial = self.alloc(attention::partial_bytes(8, heads.n_heads, heads.head_dim, n_splits))?;
        let table = self.device.alloc(most * 32)?;
        let states: Vec<RowState> =
            (0..most).map(|r| RowState { position: (position + r) as u32, ..RowState::default() }).collect();
        write_states(q, &table, 0, &states)?;
        let how = QueryKey {
            q_norm: (&small, 0),
            k_norm: (&small, 0),
            eps: 1e-6,
            rot_dim: heads.head_dim / 4,
            inv_freq: (&small, 0),
        };
        for (name, precision) in [("f32", KvPrecision::F32), ("f16", KvPrecision::F16), ("q8", KvPrecision::Q8)] {
            let values = 2 * heads.n_kv * heads.head_dim * cells;
            let memory = self.alloc(precision.size(values) * layers)?;
            let cache = |layer| Cache { buffer: &memory, precision, cells, layer };
            let (p, x) = (at(&product, ld), at(&queries, cols));
            for rows in [1, 4, 8] {
                let case = format!("{model} {name} {rows} rows at {position}");
                let moved = rows * ld * 4;
                self.run(&format!("prepare {case}"), layers, moved, |l| {
                    g.prepare(q, p, x, &cache(l), (&table, 0), &how, heads, rows)
                })?;
                let moved = precision.size(2 * heads.n_kv * heads.head_dim * (position + 1).next_multiple_of(16));
                self.run(&format!("split {case}"), layers, moved, |l| {
                    let scale = 1.0 / 16.0;
                    a.split(q, x, &cache(l), (&table, 0), (&partial, 0), heads, (rows, n_splits), scale)
                })?;
                let moved = rows * heads.n_heads * (n_splits + 2) * heads.head_dim * 4;
                self.run(&format!("combine_act {case}"), layers, moved, |_| {
                    g.combine_act(q, (&partial, 0), p, (&table, 0), at(&acts, stride), heads, (rows, n_splits))
                })?;
            }
            let bytes = prompt_scratch_bytes(self.device.class(), precision, heads, cells);
            let scratch = self.alloc(bytes.max(4))?;
            let chunk = Chunk { rows: most, position, first_cell: 0 };
            let flops = most * heads.n_heads * heads.head_dim * 4 * (position + most / 2);
            self.run(&format!("prompt {model} {name} {most} rows at {position} (GFLOP/s)"), 1, flops, |l| {
                let scratch = Some((&scratch, 0));
                a.prompt(q, x, &cache(l), scratch, at(&out, cols), chunk, heads, 1.0 / 16.0)
            })?;
        }
        self.run(&format!("gate {model} {most} rows"), 4, most * cols * 12, |_| {
            g.gate(q, at(&out, cols), at(&product, ld), heads, most)
        })
    }

    fn copy(&self) -> Result<()> {
        let n = 64 << 20;
        let (x, y) = (self.alloc(n)?, self.alloc(n)?);
        self.run("copy 64 MiB by adding (reads two, writes one)", 1, 3 * n, |_| {
            self.shared.rows.add(&self.queue, (&x, 0), (&y, 0), n / 4)
        })
    }

    fn pair(&self, dim: usize) -> Result<()> {
        let x = self.alloc(8 * dim * 4)?;
        let stride = act::stride(2 * dim, self.device.class());
        let acts = self.alloc(8 * stride)?;
        for rows in [1, 4] {
            self.run(&format!("norm_pair_act {dim}, {rows} rows"), 32, rows * dim * 16, |_| {
                let row = (at(&x, dim), (&x, 0));
                self.own.gated.norm_pair_act(&self.queue, row, row, at(&acts, stride), (rows, dim), 1e-6)
            })?;
        }
        Ok(())
    }
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let Some(selector) = args.next() else {
        return Err("times SELECTOR [NAME]".into());
    };
    let device = Device::open(&selector)?;
    let queue = device.queue()?;
    let kernels = Locations::discover().kernels;
    let (shared, own) = (Shared::load(&device, &kernels)?, Kernels::load(&device, &kernels)?);
    let t = Times { device, queue, shared, own, only: args.next().unwrap_or_default() };
    t.copy()?;
    t.delta("0.8B", Shape { key_heads: 16, value_heads: 16 }, 18)?;
    t.delta("27B", Shape { key_heads: 16, value_heads: 48 }, 48)?;
    for position in [100, 4000] {
        t.gated("0.8B", Heads { n_heads: 8, n_kv: 2, head_dim: 256 }, 6, position)?;
    }
    t.gated("27B", Heads { n_heads: 24, n_kv: 4, head_dim: 256 }, 16, 4000)?;
    t.pair(1024)?;
    Ok(t.pair(5120)?)
}
