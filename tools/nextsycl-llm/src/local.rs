//! A model opened in this process, with one conversation.

use crate::answer::Assembler;
use crate::cli::{OpenArgs, SampleArgs};
use crate::device::{self, Chosen, NoCard};
use crate::engines;
use crate::failure::{Failure, Outcome};
use crate::out;
use crate::serve::Finish;
use crate::text::{self, Text};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use ns_llm::{Engine, LoadOptions, Moment, OptionValues, Registration, Sampling, SessionId};
use ns_registry::{Layout, Model, Settings};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Context of commands that name none, unless the model was trained for less.
pub const DEFAULT_CONTEXT: usize = 8192;

/// What the commands share: settings, folders, engine options of the command line.
pub struct World {
    /// The settings.
    pub settings: Settings,
    /// The folders.
    pub layout: Layout,
    /// `--opt-NAME` values.
    pub options: Vec<(String, String)>,
}

/// A model found, with the engine that takes it.
pub struct Found {
    /// The model.
    pub model: Model,
    /// Its engine.
    pub registration: &'static Registration,
    /// Options checked against the engine.
    pub options: OptionValues,
}

impl World {
    /// Finds a model and its engine, and checks the options; nothing is opened.
    pub fn find(&self, wanted: Option<&str>) -> Outcome<Found> {
        let model = Model::find(wanted, &self.settings, &self.layout)?;
        let registration = engine_of(&model.file)?;
        let registered = model.entry.iter().flat_map(|e| &e.env);
        let registered: Vec<(String, String)> = registered
            .map(|(k, v)| (k.clone(), v.as_str().map_or_else(|| v.to_string(), str::to_owned)))
            .filter(|(k, _)| registration.options.iter().any(|o| o.env == *k))
            .collect();
        let given = registered.iter().chain(&self.options).map(|(k, v)| (k.as_str(), v.as_str()));
        let options = OptionValues::check(registration.options, given, Moment::Load)?.with_environment(
            registration.options,
            Moment::Load,
            &|name| self.settings.engine_option(name).map(str::to_owned),
        )?;
        Ok(Found { model, registration, options })
    }

    /// Refuses engine options where no engine is opened.
    pub fn no_options(&self) -> Outcome {
        match self.options.first() {
            Some((name, _)) => Err(Failure::usage(format!("--opt-{name}: this command opens no engine"))),
            None => Ok(()),
        }
    }
}

/// The engine that takes a file.
pub fn engine_of(file: &Path) -> Outcome<&'static Registration> {
    let architecture = text::architecture(file)?;
    engines::for_architecture(&architecture).ok_or_else(|| {
        let known: Vec<&str> = engines::ENGINES.iter().flat_map(|e| e.architectures.iter().copied()).collect();
        Failure::error(format!(
            "no engine takes the architecture `{}` of {}: there are engines for {}",
            // Nothing of a file reaches the terminal as a control sequence.
            architecture.escape_debug(),
            file.display(),
            known.join(", ")
        ))
    })
}

/// What an engine needs to open a model.
pub fn load_options(
    found: &Found,
    chosen: &Chosen,
    contexts: Vec<usize>,
    open: &OpenArgs,
    draft: bool,
) -> Outcome<LoadOptions> {
    let bytes = |name: &str, gib: Option<f64>| match gib {
        Some(g) if !(0.0..=1e6).contains(&g) => Err(Failure::usage(format!("{name} {g}: it takes a size in GiB"))),
        g => Ok(g.map(|g| (g * (1_u64 << 30) as f64) as u64)),
    };
    Ok(LoadOptions {
        devices: chosen.selectors.clone(),
        contexts,
        draft,
        options: found.options.clone(),
        expert_bytes: bytes("--expert-gib", open.expert_gib)?,
        host_expert_bytes: bytes("--mirror-gib", open.mirror_gib)?,
    })
}

/// A bar on a terminal that shows how much of a model is loaded, when that takes more than a moment.
pub fn loading_bar() -> impl FnMut(u64, u64) {
    let begun = Instant::now();
    let mut bar: Option<ProgressBar> = None;
    move |done, total| {
        if !out::talk_is_terminal() || total == 0 {
            return;
        }
        if bar.is_none() && begun.elapsed() > Duration::from_millis(300) && done < total {
            let new = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
            let form = "Loading the model {bar:30} {bytes} of {total_bytes}, {binary_bytes_per_sec}, {eta} left";
            if let Ok(style) = ProgressStyle::with_template(form) {
                new.set_style(style);
            }
            bar = Some(new);
        }
        if let Some(bar) = &bar {
            bar.set_position(done);
            if done >= total {
                bar.finish_and_clear();
            }
        }
    }
}

/// An opened model with one session.
pub struct Local {
    /// The engine.
    pub engine: Box<dyn Engine>,
    /// Its tokenizer.
    pub text: Arc<dyn Text>,
    /// The session.
    pub session: SessionId,
    /// Tokens the session can hold.
    pub context: usize,
    /// Where it runs.
    pub chosen: Chosen,
    /// Seconds the load took.
    pub load_seconds: f64,
    /// Tokens the session holds.
    tokens: Vec<u32>,
}

/// Figures of one answer.
#[derive(Debug, Clone, Copy)]
pub struct Speed {
    /// Prompt tokens that were read.
    pub read: usize,
    /// Prompt tokens that were there already.
    pub reused: usize,
    /// Seconds of reading.
    pub read_seconds: f64,
    /// Tokens written.
    pub generated: usize,
    /// Seconds of writing.
    pub decode_seconds: f64,
    /// Why it ended; `None` when it was stopped.
    pub finish: Option<Finish>,
}

impl Speed {
    /// Prompt tokens a second.
    pub fn prompt_rate(&self) -> f64 {
        if self.read_seconds > 0.0 { self.read as f64 / self.read_seconds } else { 0.0 }
    }

    /// Answer tokens a second; the first comes with the prompt.
    pub fn decode_rate(&self) -> f64 {
        crate::serve::rate(self.generated, self.decode_seconds)
    }

    /// The one line that ends an answer.
    pub fn line(&self) -> String {
        let reused = if self.reused > 0 { format!(" ({} more were there)", self.reused) } else { String::new() };
        format!(
            "prompt: {} tokens{reused}, {:.1} tok/s; answer: {} tokens, {:.1} tok/s",
            self.read,
            self.prompt_rate(),
            self.generated,
            self.decode_rate()
        )
    }
}

/// How an answer is written.
pub struct Ask<'a> {
    /// What the model reads.
    pub prompt: &'a [u32],
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// Longest answer; to the context's end when absent.
    pub max: Option<usize>,
    /// Goes on after the model's end token.
    pub ignore_end: bool,
}

impl Local {
    /// Opens a model for a command.
    pub fn open(world: &World, found: &Found, open: &OpenArgs, ctx: Option<usize>, no_card: NoCard) -> Outcome<Self> {
        let info = (found.registration.info)(&found.model.file)?;
        let context = match ctx {
            Some(n) if n > info.context_length => {
                let trained = info.context_length;
                return Err(Failure::usage(format!(
                    "a context of {n} tokens was asked for, but the model was trained for {trained}"
                )));
            }
            Some(0) => return Err(Failure::usage("a context holds at least 1 token")),
            Some(n) => n,
            None => DEFAULT_CONTEXT.min(info.context_length),
        };
        Self::open_with(world, found, open, vec![context], no_card)
    }

    /// Opens a model with room for several sessions; the first is opened.
    pub fn open_with(
        world: &World,
        found: &Found,
        open: &OpenArgs,
        contexts: Vec<usize>,
        no_card: NoCard,
    ) -> Outcome<Self> {
        let registered = found.model.entry.as_ref().and_then(|e| e.gpus.as_deref());
        let most = found.registration.max_devices;
        let chosen = device::choose(&open.device, registered, &world.settings, no_card, most)?;
        let draft = !open.no_mtp && world.settings.switch("NS_NO_MTP")? != Some(true);
        let context = contexts.first().copied().unwrap_or(DEFAULT_CONTEXT);
        let options = load_options(found, &chosen, contexts, open, draft)?;
        crate::plan::before_load(found, &options, &out::talk)?;
        let begun = Instant::now();
        let text = text::open(&found.model.file)?;
        let mut engine = (found.registration.load)(&found.model.file, &options, &mut loading_bar())?;
        let session = engine.open_session(context)?;
        let load_seconds = begun.elapsed().as_secs_f64();
        Ok(Self { engine, text, session, context, chosen, load_seconds, tokens: Vec::new() })
    }

    /// Tells the profile, where one was asked for.
    pub fn tell_profile(&mut self) -> Outcome {
        self.engine.profile()?.iter().for_each(|line| out::talk(line));
        Ok(())
    }

    /// Forgets the conversation.
    pub fn clear(&mut self) -> Outcome {
        self.engine.reset(self.session)?;
        self.tokens.clear();
        Ok(())
    }

    /// Reads a prompt, taking over what the session holds of it, and writes the answer: `emit` gets its text, `token`
    /// its tokens. Setting `stop` ends it early.
    pub fn answer(
        &mut self,
        ask: Ask<'_>,
        stop: &AtomicBool,
        emit: &mut dyn FnMut(&str) -> Outcome,
        token: &mut dyn FnMut(u32) -> Outcome,
    ) -> Outcome<Speed> {
        let prompt = ask.prompt;
        if prompt.is_empty() {
            return Err(Failure::error("the prompt is empty"));
        }
        if prompt.len() >= self.context {
            return Err(Failure::error(format!(
                "the prompt has {} tokens, but the context holds {} including the answer: use --ctx",
                prompt.len(),
                self.context
            )));
        }
        let max = ask.max.unwrap_or(usize::MAX).min(self.context - prompt.len());
        let shared = self.tokens.iter().zip(prompt).take_while(|(a, b)| a == b).count().min(prompt.len() - 1);
        let reused = if shared == self.tokens.len() || self.engine.facts().truncatable { shared } else { 0 };
        self.engine.truncate(self.session, reused)?;
        self.tokens.truncate(reused);
        let begun = Instant::now();
        let read = self.engine.feed_until(self.session, &prompt[reused..], &mut || stop.load(Ordering::Relaxed))?;
        self.tokens.extend_from_slice(&prompt[reused..reused + read]);
        let mut speed = Speed {
            read,
            reused,
            read_seconds: begun.elapsed().as_secs_f64(),
            generated: 0,
            decode_seconds: 0.0,
            finish: None,
        };
        if reused + read < prompt.len() {
            return Ok(speed);
        }
        if max == 0 {
            speed.finish = Some(Finish::Length);
            return Ok(speed);
        }
        let mut decoder = self.engine.decoder(self.session, ask.sampling, prompt, true)?;
        speed.read_seconds = begun.elapsed().as_secs_f64();
        let decoding = Instant::now();
        let mut assembler = Assembler::new(&[]);
        let mut drawn = vec![decoder.pending];
        let mut next = 0;
        'answer: loop {
            while next < drawn.len() {
                let id = drawn[next];
                next += 1;
                if self.text.is_end(id) && !ask.ignore_end {
                    speed.finish = Some(Finish::Stop);
                    break 'answer;
                }
                speed.generated += 1;
                speed.decode_seconds = decoding.elapsed().as_secs_f64();
                token(id)?;
                let (piece, _) = assembler.push(&self.text.bytes(id), None);
                if !piece.text.is_empty() {
                    emit(&piece.text)?;
                }
                if speed.generated >= max {
                    speed.finish = Some(Finish::Length);
                    break 'answer;
                }
            }
            if stop.load(Ordering::Relaxed) {
                break;
            }
            drawn.extend(self.engine.step(self.session, &mut decoder)?);
        }
        let (rest, _) = assembler.finish();
        if !rest.text.is_empty() {
            emit(&rest.text)?;
        }
        self.tokens.extend(drawn);
        self.tokens.truncate(self.engine.position(self.session)?);
        Ok(speed)
    }
}

/// Sampling of the flags over a command's own defaults.
pub fn sampling(flags: &SampleArgs, base: &Sampling) -> Outcome<Sampling> {
    let within = |name: &str, value: Option<f32>, low: f32, high: f32| match value {
        Some(v) if !(low..=high).contains(&v) => {
            Err(Failure::usage(format!("--{name} {v}: it takes a number from {low} to {high}")))
        }
        v => Ok(v),
    };
    Ok(Sampling {
        temperature: within("temp", flags.temp, 0.0, 100.0)?.unwrap_or(base.temperature),
        top_p: within("top-p", flags.top_p, 0.0, 1.0)?.unwrap_or(base.top_p),
        top_k: flags.top_k.unwrap_or(base.top_k),
        min_p: within("min-p", flags.min_p, 0.0, 1.0)?.unwrap_or(base.min_p),
        repeat_penalty: within("repeat-penalty", flags.repeat_penalty, 0.01, 10.0)?.unwrap_or(base.repeat_penalty),
        seed: flags.seed.unwrap_or_else(crate::serve::random),
        ..base.clone()
    })
}
