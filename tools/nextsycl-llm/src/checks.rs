//! Commands that open a model and compare: `spec-check`, `batch-check`, `check`.

use crate::cli::{BatchCheck, Check, SpecCheck};
use crate::device::NoCard;
use crate::failure::{Failure, Outcome};
use crate::local::{Local, World};
use crate::out;
use crate::render::table;
use ns_llm::Sampling;
use ns_llm::checks::{self, RowCheck, TapCheck};
use std::time::Instant;

/// Fails where something is bad.
pub fn verdict(bad: usize, all: usize, what: &str) -> Outcome {
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

/// Prints the tensors of compared passes, a line each with its worst row; returns how many tensors of rows differ.
fn print_taps(results: &[TapCheck], rows: usize) -> Outcome<usize> {
    let place = |t: &TapCheck| t.layer.map_or_else(|| t.name.clone(), |layer| format!("{} of layer {layer}", t.name));
    let mut tensors: Vec<(String, f32, f32, usize)> = Vec::new();
    for t in results {
        let at = tensors.iter().position(|known| known.0 == place(t)).unwrap_or_else(|| {
            tensors.push((place(t), 0.0, 0.0, 0));
            tensors.len() - 1
        });
        let tensor = &mut tensors[at];
        tensor.1 = tensor.1.max(t.max_difference);
        tensor.2 = tensor.2.max(t.max_reference);
        tensor.3 += usize::from(t.max_difference != 0.0);
    }
    let mut lines = vec![["TENSOR", "MAX DIFF", "MAX REF", "ROWS THAT DIFFER"].map(str::to_owned).to_vec()];
    lines.extend(tensors.iter().map(|(place, difference, reference, count)| {
        vec![place.clone(), format!("{difference:.3e}"), format!("{reference:.3}"), count.to_string()]
    }));
    out::data(&table(&[false, true, true, true], &lines))?;
    match results.iter().find(|t| t.max_difference != 0.0) {
        Some(t) => out::line(format_args!(
            "the first tensor that differs is {}, in row {} of the {rows}-row pass at {}: {:.3e}",
            place(t),
            t.row,
            t.step,
            t.max_difference
        ))?,
        None => out::line(format_args!("no tensor differs ({} tensors, {rows}-row passes)", tensors.len()))?,
    }
    Ok(results.iter().filter(|t| t.max_difference != 0.0).count())
}

/// The tokens that a check begins with: the prompt, or as many of them over and over as asked for.
fn context(prompt: &[u32], at: Option<usize>) -> Outcome<Vec<u32>> {
    match at {
        _ if prompt.is_empty() => Err(Failure::usage("the prompt is empty")),
        Some(0) => Err(Failure::usage("--at 0: at least one token of context is needed")),
        Some(n) => Ok(prompt.iter().copied().cycle().take(n).collect()),
        None => Ok(prompt.to_vec()),
    }
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
    let counts = &args.rows.0;
    let (least, most) = (counts[0], counts[counts.len() - 1]);
    if let Some(row) = args.row.filter(|&row| row >= least) {
        return Err(Failure::usage(format!("--row {row}: the passes have rows 0 to {}", least - 1)));
    }
    if args.n == 0 {
        return Err(Failure::usage("--n 0: at least one pass is needed"));
    }
    let found = world.find(Some(&args.model))?;
    let text = crate::text::open(&found.model.file)?;
    let prompt = text.encode(&words).map_err(|e| Failure::error(e.to_string()))?;
    let prompt = context(&prompt, args.at)?;
    let room = prompt.len() + (args.n + 1) * most + 1;
    // The first session of an opened model is its own; the check opens another.
    let mut local = Local::open_with(world, &found, &args.open, vec![1, room], NoCard::Refuse)?;
    if most > local.engine.facts().max_verify {
        let can = local.engine.facts().max_verify;
        return Err(Failure::usage(format!("--rows {most}: this engine verifies at most {can} rows")));
    }
    let shown = |row: usize| args.row.is_none_or(|wanted| wanted == row);
    let (mut bad, mut all) = (0, 0);
    for &rows in counts {
        if args.layers {
            let mut results = checks::verify_layers(&mut *local.engine, &prompt, args.n, rows)?;
            results.retain(|r| shown(r.row));
            bad += print_taps(&results, rows)?;
        }
        let mut results = checks::verify_rows(&mut *local.engine, &prompt, args.n, rows)?;
        results.retain(|r| shown(r.row));
        bad += print_rows(&results, &format!("{rows}-row passes"))?;
        all += results.len();
    }
    local.tell_profile()?;
    if bad == 0 { Ok(()) } else { Err(Failure::error(format!("{bad} difference(s) in {all} rows: they must be 0"))) }
}

/// `batch-check`.
pub fn batch_check(world: &World, args: &BatchCheck) -> Outcome {
    let found = world.find(Some(&args.model))?;
    let text = crate::text::open(&found.model.file)?;
    let encode = |p: &str| text.encode(p).map_err(|e| Failure::error(e.to_string()));
    let prompts: Vec<Vec<u32>> =
        args.prompts.split('|').filter(|p| !p.is_empty()).map(encode).collect::<Outcome<_>>()?;
    if !(2..=8).contains(&prompts.len()) {
        return Err(Failure::usage("--prompts takes two to eight texts apart by |"));
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
    out::line(format_args!(
        "together {together:.1} tok/s in all, alone {alone:.1} tok/s: {:.2} times",
        together / alone
    ))?;
    local.tell_profile()?;
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
