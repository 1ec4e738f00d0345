//! Commands that open a model and measure: `bench --offline` of one size, `logits`, `kernels`, `selftest`.

use crate::checks::verdict;
use crate::cli::{Bench, Logits, ModelOnDevice, Selftest};
use crate::device::{self, NoCard};
use crate::failure::{Failure, Outcome};
use crate::local::{Local, World};
use crate::out;
use crate::render::table;
use ns_llm::Sampling;
use serde_json::{Value, json};
use std::io::Write;
use std::time::Instant;

/// `bench --offline`: prompt and decode speed in this process.
pub fn offline(world: &World, args: &Bench) -> Outcome {
    let found = world.find(args.offline.as_deref())?;
    let new = args.new.unwrap_or(128);
    let size = args.prompt.unwrap_or(512);
    if size == 0 {
        return Err(Failure::usage("--prompt 0: it takes at least 1"));
    }
    let mut local = Local::open(world, &found, &args.open, Some(size + new + 1), NoCard::UseCpu)?;
    let n_vocab = local.engine.facts().n_vocab as u64;
    // Tokens from all over the vocabulary, the same in every run.
    let prompt: Vec<u32> = (0..size as u64).map(|i| ((i * 2_654_435_761 + 12_345) % n_vocab) as u32).collect();
    // One pass of each kind warms up what is compiled or recorded at first use.
    pass(&mut local, &prompt, new.min(2))?;
    let mut runs = Vec::new();
    for _ in 0..args.reps.unwrap_or(3) {
        runs.push(pass(&mut local, &prompt, new)?);
    }
    let median = |which: fn(&(f64, f64)) -> f64| {
        let mut all: Vec<f64> = runs.iter().map(which).collect();
        all.sort_by(f64::total_cmp);
        let middle = all.len() / 2;
        if all.len() % 2 == 1 { all[middle] } else { f64::midpoint(all[middle - 1], all[middle]) }
    };
    let two = |v: f64| (v * 100.0).round() / 100.0;
    let rate = |n: usize, seconds: f64| if n == 0 { Value::Null } else { json!(two(n as f64 / seconds)) };
    let report = json!({
        "model": found.model.id,
        "device": local.chosen.infos.iter().map(|i| i.name.as_str()).collect::<Vec<_>>().join(" + "),
        "prompt": size,
        "new": new,
        "prompt_tok_s": rate(size, median(|r| r.0)),
        "decode_tok_s": rate(new, median(|r| r.1)),
        "load_s": two(local.load_seconds),
        "peak_mb": peak_mb()?,
        "reps": runs.iter().map(|r| json!({"prompt_tok_s": rate(size, r.0), "decode_tok_s": rate(new, r.1)})).collect::<Vec<_>>(),
    });
    local.tell_profile()?;
    if args.json {
        return out::line(format_args!("{report}"));
    }
    let cell = |v: &Value| v.as_f64().map_or_else(|| "-".to_owned(), |n| format!("{n:.1}"));
    out::talk(&format!("{} on {}, median of {} runs", found.model.id, local.chosen.names(), runs.len()));
    let head = ["PROMPT", "NEW", "PROMPT TOK/S", "DECODE TOK/S", "LOAD S", "PEAK MB"].map(str::to_owned).to_vec();
    let row = vec![
        size.to_string(),
        new.to_string(),
        cell(&report["prompt_tok_s"]),
        cell(&report["decode_tok_s"]),
        cell(&report["load_s"]),
        report["peak_mb"].to_string(),
    ];
    out::data(&table(&[true; 6], &[head, row]))
}

/// Reads the prompt and decodes `new` tokens greedily; seconds of each. Every decoded token is one pass of the model.
fn pass(local: &mut Local, prompt: &[u32], new: usize) -> Outcome<(f64, f64)> {
    local.clear()?;
    let session = local.session;
    let begun = Instant::now();
    local.engine.feed_until(session, prompt, &mut || false)?;
    let mut decoder = local.engine.decoder(session, Sampling::greedy(), prompt, true)?;
    let read = begun.elapsed().as_secs_f64();
    let begun = Instant::now();
    let mut drawn = 0;
    while drawn < new {
        drawn += local.engine.step(session, &mut decoder)?.len();
    }
    // Drafts may draw a few more than asked for.
    let seconds = begun.elapsed().as_secs_f64() * new as f64 / drawn.max(1) as f64;
    Ok((read, seconds))
}

/// The most memory this process had at once, in MiB.
fn peak_mb() -> Outcome<u64> {
    let status = std::fs::read_to_string("/proc/self/status")
        .map_err(|e| Failure::error(format!("cannot read /proc/self/status: {e}")))?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    let kib = line.and_then(|l| l.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    kib.map(|k| k / 1024).ok_or_else(|| Failure::error("/proc/self/status has no VmHWM line"))
}

/// `logits`: the last row, or every row, as raw little-endian float32.
pub fn logits(world: &World, args: &Logits) -> Outcome {
    let found = world.find(Some(&args.model))?;
    let mut local = Local::open(world, &found, &args.open, Some(args.ids.len() + 1), NoCard::UseCpu)?;
    let mut file = ns_files::AtomicFile::create(&args.out)?;
    let mut write = |rows: &[f32]| {
        let bytes: Vec<u8> = rows.iter().flat_map(|v| v.to_le_bytes()).collect();
        file.write_all(&bytes).map_err(|e| Failure::error(format!("cannot write {}: {e}", args.out.display())))
    };
    if args.all {
        for chunk in args.ids.chunks(local.engine.facts().prefill_chunk.max(1)) {
            write(&local.engine.forward_rows(local.session, chunk, chunk.len())?)?;
        }
    } else {
        write(&local.engine.feed(local.session, &args.ids)?)?;
    }
    let rows = if args.all { args.ids.len() } else { 1 };
    file.commit()?;
    out::talk(&format!("{rows} row(s) of {} logits in {}", local.engine.facts().n_vocab, args.out.display()));
    Ok(())
}

/// `kernels`: each weight type's kernels against the exact path.
pub fn kernels(world: &World, args: &ModelOnDevice) -> Outcome {
    let found = world.find(Some(&args.model))?;
    let mut local = Local::open(world, &found, &args.open, None, NoCard::Refuse)?;
    let results = local.engine.check_kernels()?;
    if results.is_empty() {
        return Err(Failure::error("the engine has no kernel checks"));
    }
    let mut rows = vec![["KERNEL", "CASE", "ERROR", "BOUND", "RESULT"].map(str::to_owned).to_vec()];
    // written so that NaN is bad
    let good = |error: f64, bound: f64| error <= bound;
    let bad = results.iter().filter(|r| !good(r.error, r.bound)).count();
    for r in &results {
        let word = if good(r.error, r.bound) { "ok" } else { "WRONG" };
        let number = |v: f64| format!("{v:.2e}");
        rows.push(vec![r.kernel.clone(), r.case.clone(), number(r.error), number(r.bound), word.to_owned()]);
    }
    out::data(&table(&[false, false, true, true, false], &rows))?;
    verdict(bad, results.len(), "kernel(s) are outside their bound")
}

/// `selftest`: a doubling kernel on each device.
pub fn selftest(world: &World, args: &Selftest) -> Outcome {
    let chosen = device::choose(&args.device, None, &world.settings, NoCard::Refuse, usize::MAX)?;
    let locations = ns_sycl::Locations::discover();
    for (selector, info) in chosen.selectors.iter().zip(&chosen.infos) {
        let fail = |e: ns_sycl::Error| Failure::error(format!("{}: {e}", info.name));
        let device = ns_sycl::Device::open(selector).map_err(fail)?;
        let queue = device.queue().map_err(fail)?;
        let module = device.load_module(&locations.kernels.join("llm"), "rows").map_err(fail)?;
        let kernel = module.kernel("add").map_err(fail)?;
        let input = [1.0_f32, 2.0, 3.0, 4.0];
        let buffer = device.alloc(size_of_val(&input)).map_err(fail)?;
        queue.write_slice(&buffer, 0, &input).map_err(fail)?;
        let operands = [ns_sycl::Arg::Buffer(&buffer, 0), ns_sycl::Arg::Buffer(&buffer, 0), ns_sycl::Arg::I64(4)];
        let group = kernel.sub_group_size().max(1) as usize;
        queue.launch(&kernel, [group, 1, 1], [group, 1, 1], &operands).map_err(fail)?;
        let output: Vec<f32> = queue.read_vec(&buffer, 0, input.len()).map_err(fail)?;
        let good = output.iter().zip(input).all(|(o, i)| *o == 2.0 * i);
        let card = crate::render::card(&info.name);
        let word = if good { "ok" } else { "WRONG" };
        out::line(format_args!("llm: kernel add on {card} ({selector}): {input:?} x 2 = {output:?} - {word}"))?;
        if !good {
            return Err(Failure::error(format!("{card} computes wrong numbers: check its driver")));
        }
        if args.ceilings {
            let ceilings = ns_llm_kernels::Ceilings::measure(&device, &locations.kernels)
                .map_err(|e| Failure::error(format!("{}: {e}", info.name)))?;
            out::line(format_args!("llm: {card} ({selector}): {}", ceilings.words()))?;
        }
    }
    Ok(())
}
