//! The page on the kernels of qwen35: bytes, operations and floors from the models' shapes, and what the native code says.

use std::fmt::Write;

use ns_tiny::{Storage, Types};

/// An Arc Pro B70 on paper.
const BANDWIDTH: f64 = 608e9;
const UNITS: f64 = 256.0; // vector engines, each with a matrix unit
const CLOCK: f64 = 2.8e9;
const F16: f64 = UNITS * CLOCK * 256.0; // operations a second on the matrix units, half
const DP4A: f64 = UNITS * CLOCK * 128.0;
const F32: f64 = UNITS * CLOCK * 32.0;
/// Clocks that a dpas.8x8 of half keeps a matrix unit: 8 x 16 x 16 multiply-adds at 128 a clock.
const DPAS_CLOCKS: f64 = 16.0;

/// Cells that the row of a decode step sees, and rows of a prompt chunk at the start of a conversation.
const SEEN: f64 = 4096.0;
const CHUNK: f64 = 512.0;

const SHAPES: [&str; 3] = ["27b", "4b", "0.8b"];

fn mixes() -> [(&'static str, Types); 2] {
    [("Q4_K_M", Types::Q4_K_M), ("Q8_0", Types::Single(Storage::Q8_0))]
}

/// What the gate says of a kernel.
struct Native<'a> {
    target: &'a str,
    /// folder/module.kernel
    name: &'a str,
    words: Vec<&'a str>,
}

impl Native<'_> {
    /// The number behind a word ("grf 128") or after its equals sign ("dpas=64").
    fn number(&self, what: &str) -> usize {
        let behind = self.words.iter().position(|w| *w == what).and_then(|i| self.words.get(i + 1));
        let joined = self.words.iter().find_map(|w| w.strip_prefix(what)?.strip_prefix('='));
        behind.copied().or(joined).and_then(|n| n.parse().ok()).unwrap_or(0)
    }

    /// Instructions and messages of its loops.
    fn loops(&self) -> Vec<(usize, usize)> {
        let loops = self.words.iter().filter_map(|w| w.strip_prefix("loop=")?.split_once('/'));
        loops.filter_map(|(i, m)| Some((i.parse().ok()?, m.parse().ok()?))).collect()
    }

    fn longest(&self) -> usize {
        self.loops().iter().map(|l| l.0).max().unwrap_or(0)
    }
}

fn native() -> Vec<Native<'static>> {
    let line = |line: &'static str| {
        let mut words = line.split_whitespace();
        Some(Native { target: words.next()?, name: words.next()?, words: words.collect() })
    };
    include_str!("gate.txt").lines().skip(1).filter_map(line).collect()
}

fn of<'a>(all: &'a [Native<'static>], name: &str) -> Result<&'a Native<'static>, String> {
    let wanted = |n: &&Native<'_>| n.target == "bmg-g31" && n.name.strip_prefix("llm/") == Some(name);
    all.iter().find(wanted).ok_or_else(|| format!("gate.txt has no kernel {name} for bmg-g31"))
}

/// Launches of one kernel in a pass.
struct Work {
    kernel: String,
    what: String,
    launches: f64,
    bytes: f64,
    operations: f64,
    rate: f64,
}

impl Work {
    fn floor(&self) -> f64 {
        (self.bytes / BANDWIDTH).max(self.operations / self.rate)
    }
}

/// Kernels of a pass in order; the same kernel for the same purpose is one line.
#[derive(Default)]
struct Pass(Vec<Work>);

impl Pass {
    fn add(&mut self, kernel: &str, what: &str, bytes: f64, operations: f64, rate: f64) {
        match self.0.iter_mut().find(|w| w.kernel == kernel && w.what == what) {
            Some(w) => {
                w.launches += 1.0;
                w.bytes += bytes;
                w.operations += operations;
            }
            None => self.0.push(Work {
                kernel: kernel.to_owned(),
                what: what.to_owned(),
                launches: 1.0,
                bytes,
                operations,
                rate,
            }),
        }
    }

    fn seconds(&self) -> f64 {
        self.0.iter().map(Work::floor).sum()
    }
}

/// A matrix of a model.
struct Tensor {
    name: String,
    rows: f64,
    cols: f64,
    ty: Storage,
}

impl Tensor {
    fn bytes(&self) -> f64 {
        self.rows * self.ty.row_bytes(self.cols as usize) as f64
    }
}

/// A model's dimensions and matrices.
struct Model {
    hidden: f64,
    feed_forward: f64,
    vocabulary: f64,
    layers: usize,
    heads: f64,
    kv_heads: f64,
    /// Key and value heads of DeltaNet layers.
    key_heads: f64,
    value_heads: f64,
    tensors: Vec<Tensor>,
}

const HEAD: f64 = 256.0;
const STATE: f64 = 128.0;

impl Model {
    fn new(shape: &str, types: Types) -> Result<Self, String> {
        let table = ns_tiny::shape("qwen35", shape, 0).map_err(|e| e.to_string())?;
        let stored = types.of(&table);
        let tensors: Vec<Tensor> = table
            .tensors
            .iter()
            .zip(stored)
            .filter(|(t, _)| t.shape.len() == 2)
            .map(|(t, ty)| Tensor {
                name: t.name.trim_end_matches(".weight").to_owned(),
                rows: t.shape[0] as f64,
                cols: t.shape[1] as f64,
                ty,
            })
            .collect();
        let size = |name: &str| {
            let found = tensors.iter().find(|t| t.name == name);
            found.map(|t| (t.rows, t.cols)).ok_or_else(|| format!("{shape} has no tensor {name}"))
        };
        let full = (0..).take(8).find(|i| size(&format!("blk.{i}.attn_k")).is_ok()).ok_or("no full-attention layer")?;
        let (vocabulary, hidden) = size("token_embd")?;
        let (inner, _) = size("blk.0.attn_gate")?;
        Ok(Self {
            hidden,
            vocabulary,
            feed_forward: size("blk.0.ffn_gate")?.0,
            // the last block is the draft's
            layers: table.tensors.iter().filter(|t| t.name.ends_with("ffn_gate.weight")).count() - 1,
            heads: size(&format!("blk.{full}.attn_output"))?.1 / HEAD,
            kv_heads: size(&format!("blk.{full}.attn_k"))?.0 / HEAD,
            value_heads: inner / STATE,
            key_heads: (size("blk.0.attn_qkv")?.0 - inner) / 2.0 / STATE,
            tensors,
        })
    }

    /// Those of these roles of a layer that there are.
    fn roles<'a>(&'a self, layer: usize, roles: &[&str]) -> Vec<&'a Tensor> {
        let name = |role: &&str| format!("blk.{layer}.{role}");
        roles.iter().filter_map(|role| self.tensors.iter().find(|t| t.name == name(role))).collect()
    }

    fn head(&self) -> Result<&Tensor, String> {
        let named = |name: &str| self.tensors.iter().find(|t| t.name == name);
        named("output").or_else(|| named("token_embd")).ok_or_else(|| "no output".to_owned())
    }

    /// Bytes of an activation row: float32, sums, scales, two planes of int8.
    fn act(cols: f64) -> f64 {
        cols / 32.0 * (128.0 + 20.0 + 64.0)
    }

    /// Values that a DeltaNet layer's convolution runs over.
    fn channels(&self) -> f64 {
        (2.0 * self.key_heads + self.value_heads) * STATE
    }
}

fn lower(ty: Storage) -> String {
    ty.name().to_ascii_lowercase()
}

/// Neighbours of one type are one matrix.
fn fused(tensors: &[&Tensor]) -> Vec<(Storage, f64, f64, f64)> {
    let mut parts: Vec<(Storage, f64, f64, f64)> = Vec::new();
    for t in tensors {
        match parts.last_mut() {
            Some(last) if last.0 == t.ty => (last.1, last.3) = (last.1 + t.rows, last.3 + t.bytes()),
            _ => parts.push((t.ty, t.rows, t.cols, t.bytes())),
        }
    }
    parts
}

/// One row, at `SEEN` cells.
fn decode(m: &Model) -> Result<Pass, String> {
    let mut pass = Pass::default();
    let d = m.hidden;
    let matvec = |pass: &mut Pass, what: &str, tensors: &[&Tensor], added: f64| {
        for (ty, rows, cols, bytes) in fused(tensors) {
            let t = lower(ty);
            // each weight with the high and with the low plane of the activations
            let operations = 4.0 * rows * cols;
            pass.add(
                &format!("qwen35/silo/matvec_{t}.matvec_{t}_r1"),
                what,
                bytes + Model::act(cols) + rows * (4.0 + added),
                operations,
                DP4A,
            );
        }
    };
    let norm =
        |pass: &mut Pass| pass.add("rows.rms_norm_act", "norm to activations", d * 8.0 + Model::act(d), 7.0 * d, F32);
    let embedding = m.tensors.iter().find(|t| t.name == "token_embd").ok_or("no embedding")?;
    let t = lower(embedding.ty);
    pass.add(&format!("matrix_{t}.embed_{t}"), "embedding", embedding.bytes() / embedding.rows + d * 4.0, d, F32);
    for layer in 0..m.layers {
        norm(&mut pass);
        if m.roles(layer, &["attn_k"]).is_empty() {
            let (inner, c) = (m.value_heads * STATE, m.channels());
            let parts = m.roles(layer, &["attn_qkv", "attn_gate", "ssm_alpha", "ssm_beta"]);
            matvec(&mut pass, "DeltaNet inputs", &parts, 0.0);
            pass.add(
                "qwen35/delta.conv_rows",
                "convolution, q and k norms",
                c * (4.0 + 16.0 + 24.0 + 4.0),
                16.0 * c,
                F32,
            );
            let state = m.value_heads * STATE * STATE;
            pass.add("qwen35/delta.recur_rows", "recurrence", state * 8.0 + (c + inner) * 4.0, 7.0 * state, F32);
            pass.add("qwen35/delta.norm_act", "gated norm", inner * 8.0 + Model::act(inner), 12.0 * inner, F32);
            matvec(&mut pass, "DeltaNet output", &m.roles(layer, &["ssm_out"]), 4.0);
        } else {
            let width = m.heads * HEAD;
            matvec(&mut pass, "attention inputs", &m.roles(layer, &["attn_q", "attn_k", "attn_v"]), 0.0);
            let values = (m.heads + 2.0 * m.kv_heads) * HEAD;
            pass.add("qwen35/gated.prepare_kv16", "q and k norms, rotary, store", values * 10.0, 12.0 * values, F32);
            let (cells, splits) = (2.0 * m.kv_heads * HEAD * SEEN, (SEEN / 256.0).ceil());
            let pieces = m.heads * splits * (HEAD + 2.0) * 4.0;
            pass.add(
                "attention_kv16.attn_split_kv16_h256",
                "attention over 4096 cells",
                cells * 2.0 + width * 4.0 + pieces,
                4.0 * width * SEEN,
                F32,
            );
            pass.add(
                "qwen35/gated.combine_gate_act",
                "pieces together, gate",
                pieces + width * 4.0 + Model::act(width),
                3.0 * width * splits,
                F32,
            );
            matvec(&mut pass, "attention output", &m.roles(layer, &["attn_output"]), 4.0);
        }
        norm(&mut pass);
        matvec(&mut pass, "feed-forward gate and up", &m.roles(layer, &["ffn_gate", "ffn_up"]), 0.0);
        let f = m.feed_forward;
        pass.add("rows.swiglu_act", "SwiGLU to activations", f * 8.0 + Model::act(f), 9.0 * f, F32);
        matvec(&mut pass, "feed-forward down", &m.roles(layer, &["ffn_down"]), 4.0);
    }
    norm(&mut pass);
    matvec(&mut pass, "head", &[m.head()?], 0.0);
    pass.add("sampling.argmax_rows", "likeliest token", m.vocabulary * 4.0, m.vocabulary, F32);
    Ok(pass)
}

/// `CHUNK` rows from the start of a conversation.
fn prompt(m: &Model) -> Result<Pass, String> {
    let mut pass = Pass::default();
    let (d, rows) = (m.hidden, CHUNK);
    let product = |pass: &mut Pass, what: &str, tensors: &[&Tensor], added: f64| {
        for (ty, n, k, bytes) in fused(tensors) {
            let t = lower(ty);
            pass.add("qwen35/silo/rows.rows_f16", "activations to half", rows * k * 6.0, rows * k, F32);
            let large = (rows / 64.0).ceil() * (n / 32.0).ceil() >= UNITS * 4.0;
            let kernel = format!("qwen35/silo/product_{t}.product_{t}_m{}", if large { 64 } else { 32 });
            pass.add(&kernel, what, bytes + rows * (k * 2.0 + n * (4.0 + added)), 2.0 * rows * n * k, F16);
        }
    };
    let norm = |pass: &mut Pass| pass.add("rows.rms_norm", "norm", rows * d * 8.0 + d * 4.0, 4.0 * rows * d, F32);
    let embedding = m.tensors.iter().find(|t| t.name == "token_embd").ok_or("no embedding")?;
    let t = lower(embedding.ty);
    let embedded = rows * (embedding.bytes() / embedding.rows + d * 4.0);
    pass.add(&format!("matrix_{t}.embed_{t}"), "embedding", embedded, rows * d, F32);
    for layer in 0..m.layers {
        norm(&mut pass);
        if m.roles(layer, &["attn_k"]).is_empty() {
            let (inner, c) = (m.value_heads * STATE, m.channels());
            let parts = m.roles(layer, &["attn_qkv", "attn_gate", "ssm_alpha", "ssm_beta"]);
            product(&mut pass, "DeltaNet inputs", &parts, 0.0);
            pass.add("qwen35/delta.conv_chunk", "convolution, q and k norms", rows * c * 8.0, 16.0 * rows * c, F32);
            pass.add("qwen35/delta.conv_history", "last rows of the convolution", 24.0 * c, c, F32);
            let state = m.value_heads * STATE * STATE;
            pass.add(
                "qwen35/delta.recur_chunk",
                "recurrence",
                state * 8.0 + rows * (c + inner) * 4.0,
                7.0 * rows * state,
                F32,
            );
            pass.add("qwen35/delta.norm", "gated norm", rows * inner * 12.0, 12.0 * rows * inner, F32);
            product(&mut pass, "DeltaNet output", &m.roles(layer, &["ssm_out"]), 4.0);
        } else {
            let width = m.heads * HEAD;
            product(&mut pass, "attention inputs", &m.roles(layer, &["attn_q", "attn_k", "attn_v"]), 0.0);
            let values = rows * (m.heads + 2.0 * m.kv_heads) * HEAD;
            pass.add("qwen35/gated.prepare_kv16", "q and k norms, rotary, store", values * 10.0, 12.0 * values, F32);
            pass.add("qwen35/silo/rows.queries_f16", "queries to half", rows * width * 6.0, rows * width, F32);
            let together = [4.0, 2.0].into_iter().find(|g| m.heads / m.kv_heads % g == 0.0).unwrap_or(1.0);
            let bytes = rows * width * 6.0 + 2.0 * m.kv_heads * HEAD * rows * 2.0;
            let pairs = rows * (rows + 1.0) / 2.0;
            pass.add(
                &format!("qwen35/silo/attention.attn_prompt_g{together}"),
                "attention",
                bytes,
                4.0 * width * pairs,
                F16,
            );
            pass.add("qwen35/gated.gate", "gate", rows * width * 12.0, 8.0 * rows * width, F32);
            product(&mut pass, "attention output", &m.roles(layer, &["attn_output"]), 4.0);
        }
        norm(&mut pass);
        product(&mut pass, "feed-forward gate and up", &m.roles(layer, &["ffn_gate", "ffn_up"]), 0.0);
        let f = m.feed_forward;
        pass.add("rows.swiglu", "SwiGLU", rows * f * 12.0, 6.0 * rows * f, F32);
        product(&mut pass, "feed-forward down", &m.roles(layer, &["ffn_down"]), 4.0);
    }
    Ok(pass)
}

fn si(value: f64) -> String {
    let (scale, unit) = match value {
        v if v >= 1e12 => (1e12, "T"),
        v if v >= 1e9 => (1e9, "G"),
        v if v >= 1e6 => (1e6, "M"),
        v if v >= 1e3 => (1e3, "k"),
        _ => (1.0, ""),
    };
    format!("{:.*} {unit}", if unit.is_empty() { 0 } else { 2 }, value / scale).trim_end().to_owned()
}

/// Short name of a kernel: module.kernel, or the kernel alone where it says as much.
fn short(kernel: &str) -> &str {
    kernel.rsplit('.').next().unwrap_or(kernel)
}

fn table(out: &mut String, all: &[Native<'static>], pass: &Pass) -> Result<(), String> {
    *out += "| kernel | what | launches | bytes | operations | floor | bound by |\n| --- | --- | --- | --- | --- | --- | --- |\n";
    for w in &pass.0 {
        of(all, &w.kernel)?;
        let bound = match w.rate {
            _ if w.bytes / BANDWIDTH >= w.operations / w.rate => "memory",
            F16 => "matrix units",
            DP4A => "dp4a",
            _ => "vector units",
        };
        let (bytes, operations) = (si(w.bytes), si(w.operations));
        let micros = w.floor() * 1e6;
        writeln!(
            out,
            "| {} | {} | {} | {bytes}B | {operations} | {micros:.1} us | {bound} |",
            short(&w.kernel),
            w.what,
            w.launches
        )
        .map_err(|e| e.to_string())?;
    }
    Ok(())
}

/// Weights that one turn of the loop of a matrix-vector kernel takes: 16 lanes, and bytes of them.
fn turn(ty: Storage, rows: f64) -> f64 {
    let values = if ty == Storage::Q8_0 { 16.0 } else { 32.0 };
    16.0 * values * rows * ty.row_bytes(256) as f64 / 256.0
}

fn assembly(out: &mut String, all: &[Native<'static>]) -> Result<(), String> {
    let e = |e: std::fmt::Error| e.to_string();
    *out += "## Products with few rows\n\
        Instructions of the inner loop for 16 bytes of weights, ours of the silo and the shared ones; what the units can issue then, as bytes of weights a \
        second (one instruction a clock and unit, nothing waits), against the 608 GB/s of the memory. Below about twice that, issuing is in the way.\n\n\
        | type | rows | instructions a 16 bytes | shared kernel | GB/s of weights at full issue | shared kernel | messages of a loop turn |\n\
        | --- | --- | --- | --- | --- | --- | --- |\n";
    for ty in [Storage::Q4_K, Storage::Q6_K, Storage::Q8_0] {
        let t = lower(ty);
        for rows in 1..=8 {
            let silo = of(all, &format!("qwen35/silo/matvec_{t}.matvec_{t}_r{rows}"))?;
            let shared = of(all, &format!("matrix_{t}.matvec_{t}_r{rows}"))?;
            let (a, b) = (silo.longest() as f64 / turn(ty, 2.0), shared.longest() as f64 / turn(ty, 1.0));
            let speed = |per_byte: f64| UNITS * CLOCK / per_byte / 1e9;
            let messages = silo.loops().iter().max().map_or(0, |l| l.1);
            writeln!(
                out,
                "| {} | {rows} | {:.1} | {:.1} | {:.0} | {:.0} | {messages} |",
                ty.name(),
                a * 16.0,
                b * 16.0,
                speed(a),
                speed(b)
            )
            .map_err(e)?;
        }
    }
    *out += "\n## Products of prompts\n\
        A thread's tile is 64 (m64) or 32 (m32) rows by 32 columns of y. The dpas of a loop turn keep the matrix unit for 16 clocks each; the other instructions \
        of the loop (expanding the weights, above all) are issued beside them by the unit's other threads.\n\n\
        | kernel | dpas | clocks of the matrix unit | other instructions | share of the issue slots | registers | spilled |\n\
        | --- | --- | --- | --- | --- | --- | --- |\n";
    for ty in [Storage::Q4_K, Storage::Q6_K, Storage::Q8_0] {
        let t = lower(ty);
        for tile in [64, 32] {
            let n = of(all, &format!("qwen35/silo/product_{t}.product_{t}_m{tile}"))?;
            let dpas = n.number("dpas");
            let (clocks, others) = (dpas as f64 * DPAS_CLOCKS, n.longest() - dpas);
            writeln!(
                out,
                "| {} | {dpas} | {clocks:.0} | {others} | {:.0} % | {} | {} |",
                short(n.name),
                others as f64 / clocks * 100.0,
                n.number("grf"),
                n.number("spill")
            )
            .map_err(e)?;
        }
    }
    Ok(())
}

/// Every kernel of the passes, on both chips.
fn every(out: &mut String, all: &[Native<'static>], passes: &[Pass]) -> Result<(), String> {
    *out += "| kernel | SIMD | registers | spilled | local memory | dpas | dp4a | 16-byte loads | loops: instructions/messages | bmg-g21 |\n\
        | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n";
    let used =
        |name: &str| passes.iter().any(|p| p.0.iter().any(|w| name.strip_prefix("llm/") == Some(w.kernel.as_str())));
    let silo = |name: &str| name.contains("/silo/");
    for n in all.iter().filter(|n| n.target == "bmg-g31" && (used(n.name) || silo(n.name))) {
        let other = all
            .iter()
            .find(|o| o.target == "bmg-g21" && o.name == n.name)
            .ok_or_else(|| format!("gate.txt has no {} for bmg-g21", n.name))?;
        let same = if other.words == n.words { "the same" } else { "differs" };
        let loops: Vec<String> = n.loops().iter().map(|(i, m)| format!("{i}/{m}")).collect();
        let numbers: Vec<String> =
            ["simd", "grf", "spill", "slm", "dpas", "dp4a", "load16"].map(|w| n.number(w).to_string()).into();
        writeln!(out, "| {} | {} | {} | {same} |", short(n.name), numbers.join(" | "), loops.join(" "))
            .map_err(|e| e.to_string())?;
    }
    Ok(())
}

/// The page.
pub fn page() -> Result<String, String> {
    let all = native();
    let tools = include_str!("gate.txt").lines().next().and_then(|l| l.split_once("; ")).map_or("", |l| l.1);
    let mut out = format!(
        "# Kernels of qwen35 on an Arc Pro B70, on paper\n\
        Made by `cargo run --release -p ns-llm-qwen35 --example kernels_page > docs/kernels.md` from the models' shapes and from what the native code says \
        (`engines/llm/qwen35/examples/kernels_page/gate.txt`, {tools}; gate.sh beside it makes it again). Do not edit it. Nothing here was measured on a card: a floor is what no \
        program can beat, not what ours reaches.\n\n\
        The card: 608 GB/s; 32 Xe cores of 8 units at 2.8 GHz. A unit does 256 operations a clock in half on its matrix unit ({} Tops; int8 twice that, 367 Tops, which is Intel's \
        figure for this card), 128 with dp4a ({:.0} Tops), 32 in float32 ({:.1} Tops). Those rates a clock are those of Intel's descriptions of Xe2; the clock is what makes them Intel's 367 Tops.\n\n\
        Bytes are what has to pass the memory once: weights, activations, results, caches and states. A floor is the longer of bytes over bandwidth and operations over the rate of the units the kernel \
        uses; a pass is the sum, without gaps between kernels. Decode: one row at {SEEN} cells, cache in half. Prompt: {CHUNK} rows at the start. The sizes of 0.8B and 4B are partly \
        assumed (tests/tiny/src/shapes/qwen35.rs); types as llama-quantize gives them. The draft block is not in these passes.\n\n## Floors\n\
        | model | types | weights of a step | decode | tokens/s at most | {CHUNK} prompt rows | tokens/s at most |\n| --- | --- | --- | --- | --- | --- | --- |\n",
        (F16 / 1e12).round(),
        DP4A / 1e12,
        F32 / 1e12,
    );
    let (mut passes, mut tables) = (Vec::new(), String::new());
    for shape in SHAPES {
        for (mix, types) in mixes() {
            let m = Model::new(shape, types)?;
            let (step, chunk) = (decode(&m)?, prompt(&m)?);
            let weights: f64 = step.0.iter().filter(|w| w.kernel.contains("matvec")).map(|w| w.bytes).sum();
            let (a, b) = (step.seconds(), chunk.seconds());
            writeln!(
                out,
                "| {} | {mix} | {}B | {:.2} ms | {:.1} | {:.1} ms | {:.0} |",
                shape.to_uppercase(),
                si(weights),
                a * 1e3,
                1.0 / a,
                b * 1e3,
                CHUNK / b
            )
            .map_err(|e| e.to_string())?;
            for (title, pass) in [("a decode step", &step), ("a prompt chunk", &chunk)] {
                write!(tables, "\n## {}, {mix}: {title}\n", shape.to_uppercase()).map_err(|e| e.to_string())?;
                table(&mut tables, &all, pass)?;
            }
            passes.extend([step, chunk]);
        }
    }
    out += "\n# What the native code says\n";
    assembly(&mut out, &all)?;
    out += "\n## Every kernel\nCounts of the whole kernel; loops are the innermost ones of 32 instructions and more. ESIMD kernels have SIMD width 1: a work-item is a hardware thread.\n\n";
    every(&mut out, &all, &passes)?;
    out += "\n# Kernel by kernel\n";
    out += &tables;
    Ok(out)
}
