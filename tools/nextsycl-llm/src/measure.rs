//! Commands that open a model and measure or compare: `bench --offline`, `logits`, `kernels`, `spec-check`,
//! `batch-check`, `check`, `selftest`.

use crate::cli::{BatchCheck, Bench, Check, Logits, ModelOnDevice, Selftest, SpecCheck};
use crate::device::{self, NoCard};
use crate::failure::{Failure, Outcome};
use crate::local::{Local, World};
use crate::out;
use crate::render::table;
use ns_llm::Sampling;
use ns_llm::checks::{self, RowCheck};
use serde_json::{Value, json};
use std::io::Write;
use std::time::Instant;

/// `bench --offline`: prompt and decode speed in this process.
pub fn offline(world: &World, args: &Bench) -> Outcome {
    let found = world.find(args.offline.as_deref())?;
    let new = args.new.unwrap_or(128);
    if args.prompt == 0 {
        return Err(Failure::usage("--prompt 0: it takes at least 1"));
    }
    let mut local = Local::open(world, &found, &args.open, Some(args.prompt + new + 1), NoCard::UseCpu)?;
    let n_vocab = local.engine.facts().n_vocab as u64;
    // Tokens from all over the vocabulary, the same in every run.
    let prompt: Vec<u32> = (0..args.prompt as u64).map(|i| ((i * 2_654_435_761 + 12_345) % n_vocab) as u32).collect();
    // One pass of each kind warms up what is compiled or recorded at first use.
    pass(&mut local, &prompt, new.min(2))?;
    let mut runs = Vec::new();
    for _ in 0..args.reps {
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
        "prompt": args.prompt,
        "new": new,
        "prompt_tok_s": rate(args.prompt, median(|r| r.0)),
        "decode_tok_s": rate(new, median(|r| r.1)),
        "load_s": two(local.load_seconds),
        "peak_mb": peak_mb()?,
        "reps": runs.iter().map(|r| json!({"prompt_tok_s": rate(args.prompt, r.0), "decode_tok_s": rate(new, r.1)})).collect::<Vec<_>>(),
    });
    if args.json {
        return out::line(format_args!("{report}"));
    }
    let cell = |v: &Value| v.as_f64().map_or_else(|| "-".to_owned(), |n| format!("{n:.1}"));
    out::talk(&format!("{} on {}, median of {} runs", found.model.id, local.chosen.names(), runs.len()));
    let head = ["PROMPT", "NEW", "PROMPT TOK/S", "DECODE TOK/S", "LOAD S", "PEAK MB"].map(str::to_owned).to_vec();
    let row = vec![
        args.prompt.to_string(),
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

fn verdict(bad: usize, all: usize, what: &str) -> Outcome {
    if bad == 0 { Ok(()) } else { Err(Failure::error(format!("{bad} of {all} {what}"))) }
}

/// Prints compared rows; returns how many differ.
fn print_rows(results: &[RowCheck], rows_a_pass: &str) -> Outcome<usize> {
    let head = ["STEP", "ROW", "MAX DIFF", "MAX REF", "TOP-1", "MARGIN"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for r in results {
        rows.push(vec![
            r.step.to_string(),
            r.row.to_string(),
            format!("{:.3e}", r.max_difference),
            format!("{:.3}", r.max_reference),
            if r.same { "same" } else { "FLIP" }.to_owned(),
            format!("{:.3}", r.margin),
        ]);
    }
    out::data(&table(&[true, true, true, true, false, true], &rows))?;
    let relative = |r: &RowCheck| f64::from(r.max_difference) / f64::from(r.max_reference.max(f32::MIN_POSITIVE));
    let worst = results.iter().map(relative).fold(0.0, f64::max);
    let flips = results.iter().filter(|r| !r.same).count();
    out::line(format_args!(
        "worst max|diff| / max|ref| {worst:.3e}; top-1 differs in {flips} of {} rows ({rows_a_pass})",
        results.len()
    ))?;
    Ok(results.iter().filter(|r| r.max_difference != 0.0 || !r.same).count())
}

/// `spec-check`.
pub fn spec_check(world: &World, args: &SpecCheck) -> Outcome {
    let words = match (&args.prompt, &args.prompt_file) {
        (Some(words), _) => words.clone(),
        (None, Some(path)) => {
            std::fs::read_to_string(path).map_err(|e| Failure::error(format!("cannot read {}: {e}", path.display())))?
        }
        (None, None) => "The capital of France is".to_owned(),
    };
    let rows = usize::try_from(args.rows).unwrap_or(2);
    let found = world.find(Some(&args.model))?;
    let text = crate::text::open(&found.model.file)?;
    let prompt = text.encode(&words).map_err(|e| Failure::error(e.to_string()))?;
    let room = prompt.len() + (args.n + 1) * rows + 1;
    // The first session of an opened model is its own; the check opens another.
    let mut local = Local::open_with(world, &found, &args.open, vec![1, room], NoCard::Refuse)?;
    if rows > local.engine.facts().max_verify {
        let most = local.engine.facts().max_verify;
        return Err(Failure::usage(format!("--rows {rows}: this engine verifies at most {most} rows")));
    }
    let results = checks::verify_rows(&mut *local.engine, &prompt, args.n, rows)?;
    let bad = print_rows(&results, &format!("{rows}-row passes"))?;
    verdict(bad, results.len(), "row(s) differ from their one-token pass")
}

/// `batch-check`.
pub fn batch_check(world: &World, args: &BatchCheck) -> Outcome {
    let found = world.find(Some(&args.model))?;
    let text = crate::text::open(&found.model.file)?;
    let encode = |p: &str| text.encode(p).map_err(|e| Failure::error(e.to_string()));
    let prompts: Vec<Vec<u32>> =
        args.prompts.split('|').filter(|p| !p.is_empty()).map(encode).collect::<Outcome<_>>()?;
    if prompts.len() < 2 {
        return Err(Failure::usage("--prompts takes at least two texts apart by |"));
    }
    let rooms = prompts.iter().map(|p| p.len() + args.n + 1);
    let contexts: Vec<usize> = std::iter::once(1).chain(rooms).collect();
    let mut local = Local::open_with(world, &found, &args.open, contexts, NoCard::Refuse)?;
    if prompts.len() > local.engine.facts().max_verify {
        let most = local.engine.facts().max_verify;
        return Err(Failure::usage(format!("this engine decodes at most {most} conversations together")));
    }
    let results = checks::batch_rows(&mut *local.engine, &prompts, args.n)?;
    let bad = print_rows(&results, &format!("{} conversations together", prompts.len()))?;
    let (together, alone) = speeds(&mut local, &prompts, args.n)?;
    out::line(format_args!("together {together:.1} tok/s in all, alone {alone:.1} tok/s"))?;
    verdict(bad, results.len(), "row(s) differ from their conversation alone")
}

/// Tokens a second of all conversations together, and of the first alone.
fn speeds(local: &mut Local, prompts: &[Vec<u32>], steps: usize) -> Outcome<(f64, f64)> {
    let engine = &mut *local.engine;
    let mut sessions = Vec::new();
    let result = (|| {
        for prompt in prompts {
            let session = engine.open_session(prompt.len() + steps + 1)?;
            sessions.push(session);
            engine.feed_until(session, prompt, &mut || false)?;
        }
        let mut decoders = Vec::new();
        for (&session, prompt) in sessions.iter().zip(prompts) {
            decoders.push(engine.decoder(session, Sampling::greedy(), prompt, false)?);
        }
        let begun = Instant::now();
        for _ in 0..steps {
            let mut rows: Vec<_> = sessions.iter().copied().zip(decoders.iter_mut()).collect();
            engine.step_batch(&mut rows)?;
        }
        let together = (steps * prompts.len()) as f64 / begun.elapsed().as_secs_f64();
        engine.truncate(sessions[0], 0)?;
        engine.feed_until(sessions[0], &prompts[0], &mut || false)?;
        let mut decoder = engine.decoder(sessions[0], Sampling::greedy(), &prompts[0], false)?;
        let begun = Instant::now();
        for _ in 0..steps {
            engine.step(sessions[0], &mut decoder)?;
        }
        Ok((together, steps as f64 / begun.elapsed().as_secs_f64()))
    })();
    for session in sessions {
        engine.close_session(session)?;
    }
    result
}

/// `check`: every row of a reference dump against our pass.
pub fn check(world: &World, args: &Check) -> Outcome {
    let read = |name: &str| {
        let path = args.dump.join(name);
        std::fs::read(&path).map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => Failure::not_found(format!("the dump has no {}", path.display())),
            _ => Failure::error(format!("cannot read {}: {e}", path.display())),
        })
    };
    let ids = crate::run::parse_ids(&String::from_utf8_lossy(&read("ids.txt")?))?;
    let bytes = read("logits.f32")?;
    let reference: Vec<f32> = bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    let found = world.find(Some(&args.model))?;
    let mut local = Local::open(world, &found, &args.open, Some(ids.len() + 1), NoCard::Refuse)?;
    let n_vocab = local.engine.facts().n_vocab;
    let all = ids.len() * n_vocab;
    if ids.is_empty() || (reference.len() != all && reference.len() != n_vocab) || bytes.len() % 4 != 0 {
        return Err(Failure::error(format!(
            "the dump's logits.f32 has {} bytes: {} tokens of {n_vocab} logits are {} bytes, the last row alone {}",
            bytes.len(),
            ids.len(),
            all * 4,
            n_vocab * 4
        )));
    }
    let mut ours = Vec::new();
    for chunk in ids.chunks(local.engine.facts().prefill_chunk.max(1)) {
        ours.extend(local.engine.forward_rows(local.session, chunk, chunk.len())?);
    }
    let first = ids.len() - reference.len() / n_vocab;
    let head = ["STEP", "COSINE", "REL L2", "MAX ABS", "NEXT", "REF NEXT"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let mut bad = 0;
    for (i, (us, them)) in
        ours[first * n_vocab..].chunks_exact(n_vocab).zip(reference.chunks_exact(n_vocab)).enumerate()
    {
        let c = compare(us, them);
        let (next, expected) = (ns_llm::sampler::argmax(us), ns_llm::sampler::argmax(them));
        bad += usize::from(c.cosine.is_nan() || c.cosine <= 0.9999 || next != expected);
        rows.push(vec![
            (first + i).to_string(),
            format!("{:.7}", c.cosine),
            format!("{:.2e}", c.relative),
            format!("{:.2e}", c.max),
            next.to_string(),
            expected.to_string(),
        ]);
    }
    out::data(&table(&[true; 6], &rows))?;
    let last = &ours[ours.len() - n_vocab..];
    let top: Vec<String> = ns_llm::sampler::top_k(last, 5)
        .into_iter()
        .map(|(value, id)| format!("{id} {:?} {value:.3}", local.text.name(id)))
        .collect();
    out::line(format_args!("top logits: {}", top.join(", ")))?;
    verdict(bad, rows.len() - 1, "row(s) have a cosine below 0.9999 or another next token")
}

struct Comparison {
    cosine: f64,
    relative: f64,
    max: f64,
}

fn compare(us: &[f32], them: &[f32]) -> Comparison {
    let (mut dot, mut a2, mut b2, mut d2, mut max) = (0.0, 0.0, 0.0, 0.0, 0.0_f64);
    for (&a, &b) in us.iter().zip(them) {
        let (a, b) = (f64::from(a), f64::from(b));
        dot += a * b;
        a2 += a * a;
        b2 += b * b;
        d2 += (a - b) * (a - b);
        max = max.max((a - b).abs());
    }
    Comparison { cosine: dot / (a2 * b2).sqrt(), relative: (d2 / b2).sqrt(), max }
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
        let args = [ns_sycl::Arg::Buffer(&buffer, 0), ns_sycl::Arg::Buffer(&buffer, 0), ns_sycl::Arg::I64(4)];
        let group = kernel.sub_group_size().max(1) as usize;
        queue.launch(&kernel, [group, 1, 1], [group, 1, 1], &args).map_err(fail)?;
        let output: Vec<f32> = queue.read_vec(&buffer, 0, input.len()).map_err(fail)?;
        let good = output.iter().zip(input).all(|(o, i)| *o == 2.0 * i);
        let card = crate::render::card(&info.name);
        let word = if good { "ok" } else { "WRONG" };
        out::line(format_args!("llm: kernel add on {card} ({selector}): {input:?} x 2 = {output:?} - {word}"))?;
        if !good {
            return Err(Failure::error(format!("{card} computes wrong numbers: check its driver")));
        }
    }
    Ok(())
}
