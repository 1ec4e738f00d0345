//! `bench`: tables of speeds, or passphrases in long prompts, of the running server or of a model in this process.

mod energy;
mod here;
mod needle;
mod running;
mod words;

use crate::cli::Bench;
use crate::failure::{Failure, Outcome};
use crate::local::World;
use crate::out;
use crate::render::table;
use energy::Meter;

/// Prompt sizes of the table of speeds.
const SIZES: [usize; 4] = [20, 2185, 8000, 40_000];
/// Tokens written for it.
const NEW: usize = 256;
/// Clients at once.
const PARALLEL: [usize; 3] = [1, 2, 4];
/// Prompt tokens of each of them.
const SMALL: usize = 20;

/// One measured answer. Rates are tokens a second, times seconds.
#[derive(Debug, Clone, Default)]
struct Answer {
    prompt: usize,
    prompt_rate: f64,
    first: f64,
    decode_rate: f64,
    /// Drafts proposed and accepted.
    drafts: (f64, f64),
    generated: usize,
}

/// What is measured.
trait Target {
    /// The model and where it runs, a line each.
    fn about(&self) -> Vec<String>;
    /// PCI addresses of its devices.
    fn pci(&self) -> Vec<String>;
    /// Tokens that prompt and answer may have together.
    fn context(&self) -> usize;
    /// Forgets every prompt read so far.
    fn clear(&mut self) -> Outcome;
    /// The likeliest continuation, `new` tokens long, of about `size` tokens of a text that has nothing in common with any before.
    fn answer(&mut self, size: usize, new: usize) -> Outcome<Answer>;
    /// `n` such answers at once, and the seconds until all were there; none where so many are not possible.
    fn together(&mut self, n: usize, size: usize, new: usize) -> Outcome<Option<(Vec<Answer>, f64)>>;
    /// The answer to a message, at most `new` tokens long, without thinking first, and the tokens of the prompt.
    fn ask(&mut self, message: &str, new: usize) -> Outcome<(usize, String)>;
    /// Ends the measurement.
    fn finish(&mut self) -> Outcome;
}

/// Whether one size is to be measured in this process, with random tokens.
pub fn is_single(args: &Bench) -> bool {
    args.offline.is_some() && args.sizes.is_empty() && args.parallel.is_empty() && !args.needle && args.out.is_none()
}

/// What is to be measured, as asked for or as usual.
struct Wanted {
    sizes: Vec<usize>,
    new: usize,
    parallel: Vec<usize>,
    depths: Vec<usize>,
}

impl Wanted {
    fn of(args: &Bench) -> Outcome<Self> {
        let or = |given: &[usize], usual: &[usize]| if given.is_empty() { usual.to_vec() } else { given.to_vec() };
        let wanted = Self {
            sizes: or(&args.sizes, if args.needle { &needle::SIZES } else { &SIZES }),
            new: args.new.unwrap_or(if args.needle { needle::NEW } else { NEW }),
            parallel: or(&args.parallel, &PARALLEL),
            depths: if args.depths.is_empty() {
                needle::DEPTHS.to_vec()
            } else {
                args.depths.iter().map(|&d| d as usize).collect()
            },
        };
        for (flag, numbers) in [("sizes", &wanted.sizes), ("new", &vec![wanted.new]), ("parallel", &wanted.parallel)] {
            if numbers.contains(&0) {
                return Err(Failure::usage(format!("--{flag} 0: it takes at least 1")));
            }
        }
        Ok(wanted)
    }
}

/// Runs the command.
pub fn run(world: &World, args: &Bench) -> Outcome {
    let wanted = Wanted::of(args)?;
    let mut target: Box<dyn Target> = match &args.offline {
        Some(model) => Box::new(here::Here::open(world, args, model, &wanted)?),
        None => {
            world.no_options()?;
            Box::new(running::Running::find(world, args)?)
        }
    };
    let mut report = heading(&target.about());
    if args.needle {
        needle::run(&mut *target, &wanted, &mut report)?;
    } else {
        speeds(&mut *target, &wanted, &mut report)?;
    }
    if let Some(folder) = &args.out {
        ns_files::create_dir(folder, false)?;
        let path = folder.join(if args.needle { "needle.md" } else { "bench.md" });
        ns_files::write(&path, report.as_bytes())?;
        out::talk(&format!("the report is in {}", path.display()));
    }
    target.finish()
}

/// The beginning of a report: what was measured, where, when and how.
fn heading(about: &[String]) -> String {
    let now = std::time::UNIX_EPOCH.elapsed().map_or(0.0, |d| d.as_secs_f64());
    let words: Vec<String> = std::env::args().skip(1).collect();
    let mut text = String::new();
    for (i, line) in about.iter().enumerate() {
        text.push_str(&if i == 0 { format!("# {line}\n\n") } else { format!("- {line}\n") });
    }
    text.push_str(&format!("- `nextsycl-llm {}`\n", words.join(" ")));
    let seconds = crate::serve::rfc3339(now);
    text.push_str(&format!("- version {}, {}Z\n", ns_registry::layout::version(), &seconds[..19]));
    text
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

fn left_out(size: usize, new: usize, context: usize) {
    out::talk(&format!("{size} input tokens and {new} new ones do not fit the context of {context}: left out"));
}

fn speeds(target: &mut dyn Target, wanted: &Wanted, report: &mut String) -> Outcome {
    let (context, new) = (target.context(), wanted.new);
    let head =
        ["Input tokens", "PP (tok/s)", "TTFT (s)", "TG (tok/s)", "Drafts accepted (%)", "Energy (J)", "Avg power (W)"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let meter = Meter::of(&target.pci());
    for &size in &wanted.sizes {
        if size + new > context {
            left_out(size, new, context);
            continue;
        }
        target.clear()?;
        let (answer, energy) = meter.around(|| target.answer(size, new))?;
        let answer = answer?;
        let or_dash = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |v| format!("{v:.0}"));
        let drafts = (answer.drafts.0 > 0.0).then(|| answer.drafts.1 / answer.drafts.0 * 100.0);
        rows.push(vec![
            answer.prompt.to_string(),
            format!("{:.1}", answer.prompt_rate),
            format!("{:.2}", answer.first),
            format!("{:.1}", answer.decode_rate),
            or_dash(drafts),
            or_dash(energy.map(|e| e.joules)),
            or_dash(energy.map(|e| e.joules / e.seconds)),
        ]);
    }
    if rows.len() == 1 {
        return Err(Failure::error(format!("no size fits the context of {context} tokens")));
    }
    show(report, &rows)?;
    let head = ["Clients at once", "Tokens/s in all", "First token mean (s)", "First token max (s)"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for &n in &wanted.parallel {
        if SMALL + new > context {
            left_out(SMALL, new, context);
            break;
        }
        target.clear()?;
        let Some((answers, seconds)) = target.together(n, SMALL, new)? else {
            out::talk(&format!("{n} answers at once are not possible here: left out"));
            continue;
        };
        let tokens: usize = answers.iter().map(|a| a.generated).sum();
        let mean = answers.iter().map(|a| a.first).sum::<f64>() / n as f64;
        let max = answers.iter().map(|a| a.first).fold(0.0, f64::max);
        rows.push(vec![
            n.to_string(),
            format!("{:.1}", tokens as f64 / seconds),
            format!("{mean:.2}"),
            format!("{max:.2}"),
        ]);
    }
    if rows.len() > 1 {
        out::data("\n")?;
        show(report, &rows)?;
    }
    Ok(())
}
