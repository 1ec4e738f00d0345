//! `bench`: the running server under load, and its memory for a passphrase in long prompts.

use crate::cli::Bench;
use crate::failure::{Failure, Outcome};
use crate::local::World;
use crate::out;
use crate::render::table;
use crate::server::socket;
use ns_http::Method;
use ns_http::client::Client;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// One measured request.
struct Run {
    prompt: usize,
    prompt_rate: f64,
    first: f64,
    decode_rate: f64,
    drafts: (f64, f64),
    generated: f64,
}

/// Runs the command against the running server.
pub fn run(world: &World, args: &Bench) -> Outcome {
    world.no_options()?;
    let client = Client::new(&socket(world, &args.control));
    let (_, body) = client.request(Method::GET, "/server/status", None, Duration::from_secs(30))?;
    let status: Value = serde_json::from_slice(&body).unwrap_or_default();
    let context = status["context"].as_u64().unwrap_or(0) as usize;
    let n_vocab = status["n_vocab"].as_u64().unwrap_or(0);
    if n_vocab == 0 {
        return Err(Failure::busy("the server is still loading its model: ask again"));
    }
    let mut report =
        format!("# {} on nextsycl-llm {}\n", status["model"].as_str().unwrap_or("-"), ns_registry::layout::version());
    if args.needle {
        report.push_str(&needle(&client, args, context)?);
    } else {
        report.push_str(&speeds(&client, args, context, n_vocab)?);
    }
    if let Some(folder) = &args.out {
        ns_files::create_dir(folder, false)?;
        let path = folder.join(if args.needle { "needle.md" } else { "bench.md" });
        ns_files::write(&path, report.as_bytes())?;
        out::talk(&format!("the report is in {}", path.display()));
    }
    Ok(())
}

/// Shows a table on stdout and adds it to the report as Markdown.
fn show(report: &mut String, rows: &[Vec<String>]) -> Outcome {
    let right = vec![true; rows[0].len()];
    out::data(&table(&right, rows))?;
    report.push('\n');
    for (i, row) in rows.iter().enumerate() {
        report.push_str(&format!("| {} |\n", row.join(" | ")));
        if i == 0 {
            report.push_str(&format!("|{}\n", " ---: |".repeat(row.len())));
        }
    }
    Ok(())
}

fn speeds(client: &Client, args: &Bench, context: usize, n_vocab: u64) -> Outcome<String> {
    let new = args.new.unwrap_or(256);
    let sizes = if args.sizes.is_empty() { vec![20, 2185, 8000, 40000] } else { args.sizes.clone() };
    let mut report = String::new();
    let head =
        ["Input tokens", "PP (tok/s)", "TTFT (s)", "TG (tok/s)", "Drafts accepted (%)", "Energy (J)", "Avg power (W)"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for (i, &size) in sizes.iter().enumerate() {
        if size == 0 || size + new > context {
            out::talk(&format!("{size} input tokens and {new} new ones do not fit the context of {context}: left out"));
            continue;
        }
        let run = request(client, &prompt(size, n_vocab, i as u64), new)?;
        let drafts =
            if run.drafts.0 > 0.0 { format!("{:.0}", run.drafts.1 / run.drafts.0 * 100.0) } else { "-".to_owned() };
        rows.push(vec![
            run.prompt.to_string(),
            format!("{:.1}", run.prompt_rate),
            format!("{:.2}", run.first),
            format!("{:.1}", run.decode_rate),
            drafts,
            "-".to_owned(),
            "-".to_owned(),
        ]);
    }
    if rows.len() == 1 {
        return Err(Failure::error(format!("no size fits the server's context of {context} tokens")));
    }
    show(&mut report, &rows)?;
    let parallel = if args.parallel.is_empty() { vec![1, 2, 4] } else { args.parallel.clone() };
    let size = 20;
    if size + new <= context {
        out::data("\n")?;
        let head = ["Clients at once", "Tokens/s in all", "First token mean (s)", "First token max (s)"];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        for &n in parallel.iter().filter(|&&n| n > 0) {
            rows.push(together(client, n, size, new, n_vocab)?);
        }
        show(&mut report, &rows)?;
    }
    Ok(report)
}

/// `n` clients at once, a row of the table.
fn together(client: &Client, n: usize, size: usize, new: usize, n_vocab: u64) -> Outcome<Vec<String>> {
    let begun = Instant::now();
    let runs: Vec<Outcome<Run>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..n)
            .map(|i| {
                let ids = prompt(size, n_vocab, 1000 + (n * 100 + i) as u64);
                scope.spawn(move || request(client, &ids, new))
            })
            .collect();
        let lost = || Err(Failure::error("a client's thread failed"));
        threads.into_iter().map(|t| t.join().unwrap_or_else(|_| lost())).collect()
    });
    let seconds = begun.elapsed().as_secs_f64();
    let runs: Vec<Run> = runs.into_iter().collect::<Outcome<_>>()?;
    let tokens: f64 = runs.iter().map(|r| r.generated).sum();
    let mean = runs.iter().map(|r| r.first).sum::<f64>() / n as f64;
    let max = runs.iter().map(|r| r.first).fold(0.0, f64::max);
    Ok(vec![n.to_string(), format!("{:.1}", tokens / seconds), format!("{mean:.2}"), format!("{max:.2}")])
}

/// Token ids from all over the vocabulary; another `salt` shares no beginning with it.
fn prompt(size: usize, n_vocab: u64, salt: u64) -> Vec<u64> {
    let salt = salt.wrapping_add(crate::serve::random());
    (0..size as u64)
        .map(|i| {
            ns_llm::philox::philox4x32_10([i as u32, 0, 0, 0], [salt as u32, (salt >> 32) as u32])[0] as u64 % n_vocab
        })
        .collect()
}

/// One greedy request of `new` tokens.
fn request(client: &Client, ids: &[u64], new: usize) -> Outcome<Run> {
    let body = json!({"prompt": ids, "max_tokens": new, "temperature": 0, "ignore_eos": true, "stream": true});
    let begun = Instant::now();
    let mut first = None;
    let mut timings = Value::Null;
    let mut error = None;
    let status = client.lines("/v1/completions", &body, &mut |_, line| {
        let Some(line) = line else { return true };
        let value: Value = serde_json::from_str(line.strip_prefix("data: ").unwrap_or(line)).unwrap_or_default();
        if value["choices"][0]["text"].is_string() {
            first.get_or_insert_with(|| begun.elapsed().as_secs_f64());
        }
        if value["timings"].is_object() {
            timings = value["timings"].clone();
        }
        if let Some(message) = value["error"]["message"].as_str() {
            error = Some(message.to_owned());
        }
        true
    })?;
    if let Some(message) = error {
        return Err(Failure::error(message));
    }
    if status != 200 || timings.is_null() {
        return Err(Failure::error(format!("the server answered {status} without timings")));
    }
    let number = |field: &str| timings[field].as_f64().unwrap_or(0.0);
    Ok(Run {
        prompt: ids.len(),
        prompt_rate: number("prompt_per_second"),
        first: first.unwrap_or_else(|| begun.elapsed().as_secs_f64()),
        decode_rate: number("predicted_per_second"),
        drafts: (number("draft_n"), number("draft_n_accepted")),
        generated: number("predicted_n"),
    })
}

const FILLER: &str = "The grass is green, the sky is wide and the river runs slowly to the sea. ";

/// A passphrase at each depth of each size, asked for at the end.
fn needle(client: &Client, args: &Bench, context: usize) -> Outcome<String> {
    let sizes = if args.sizes.is_empty() { vec![32768, 131_072, 250_000] } else { args.sizes.clone() };
    let depths = if args.depths.is_empty() { vec![10, 50, 90] } else { args.depths.clone() };
    // How many tokens a sentence has here.
    let (few, many) = (ask(client, &FILLER.repeat(4), 1)?.0, ask(client, &FILLER.repeat(36), 1)?.0);
    let sentence = (many - few) / 32.0;
    if sentence <= 0.0 {
        return Err(Failure::error("the server counts no tokens"));
    }
    let mut report = String::new();
    let head = ["Input tokens", "Depth (%)", "Found"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let mut lost = 0;
    for &size in &sizes {
        if size + 100 > context {
            out::talk(&format!("{size} tokens do not fit the context of {context}: left out"));
            continue;
        }
        for &depth in &depths {
            let sentences = ((size as f64 - 80.0) / sentence).max(1.0) as usize;
            let before = sentences * depth.min(100) / 100;
            let word = format!("{:06}", crate::serve::random() % 1_000_000);
            let text = format!(
                "{}The passphrase is {word}. {}\n\nWhat is the passphrase? Answer with the number only.",
                FILLER.repeat(before),
                FILLER.repeat(sentences - before)
            );
            let (tokens, answer) = ask(client, &text, 32)?;
            let found = answer.contains(&word);
            lost += usize::from(!found);
            rows.push(vec![format!("{tokens}"), depth.to_string(), if found { "yes" } else { "NO" }.to_owned()]);
        }
    }
    if rows.len() == 1 {
        return Err(Failure::error(format!("no size fits the server's context of {context} tokens")));
    }
    show(&mut report, &rows)?;
    out::line(format_args!("{} of {} found", rows.len() - 1 - lost, rows.len() - 1))?;
    Ok(report)
}

/// Asks greedily; tokens of the prompt and the answer.
fn ask(client: &Client, text: &str, new: usize) -> Outcome<(f64, String)> {
    let body = json!({"messages": [{"role": "user", "content": text}], "max_tokens": new, "temperature": 0});
    let time = Duration::from_secs(3600);
    let (status, bytes) = client.request(Method::POST, "/v1/chat/completions", Some(&body), time)?;
    let value: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    if status != 200 {
        let message = value["error"]["message"].as_str().unwrap_or("no reason given");
        return Err(Failure::error(format!("the server refused: {message}")));
    }
    let tokens = value["usage"]["prompt_tokens"].as_f64().unwrap_or(0.0);
    Ok((tokens, value["choices"][0]["message"]["content"].as_str().unwrap_or_default().to_owned()))
}
