//! `run`: an answer to a prompt, or a conversation.

use crate::cli::{Generate, Run};
use crate::device::NoCard;
use crate::failure::{Failure, Outcome};
use crate::local::{Ask, Local, Speed, World, sampling};
use crate::out;
use ns_llm::Sampling;
use serde_json::{Map, Value, json};
use signal_hook::consts::SIGINT;
use std::io::{BufRead, IsTerminal, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

const HELP: &str = "\
/clear   begins a new conversation
/help    this
/quit    leaves, as Ctrl-D does
Ctrl-C stops an answer. A line that ends in \\ goes on in the next one.";

/// Small models wander at higher temperatures.
fn defaults() -> Sampling {
    Sampling { temperature: 0.2, top_p: 0.9, ..Sampling::default() }
}

/// Runs the command.
pub fn run(world: &World, args: &Run) -> Outcome {
    let mut prompt = (!args.prompt.is_empty()).then(|| args.prompt.join(" "));
    if prompt.is_none() && !std::io::stdin().is_terminal() {
        let mut text = String::new();
        std::io::stdin()
            .read_to_string(&mut text)
            .map_err(|e| Failure::error(format!("cannot read the prompt from stdin: {e}")))?;
        prompt = Some(text.trim_end_matches('\n').to_owned());
    }
    if prompt.as_ref().is_some_and(|p| p.trim().is_empty()) {
        return Err(Failure::usage("the prompt is empty"));
    }
    let draw = sampling(&args.sample, &defaults())?;
    let found = world.find(args.model.as_deref())?;
    let mut talk = Talk { history: Vec::new(), system: args.system.clone(), draw, max: args.sample.max };
    let open = || Local::open(world, &found, &args.open, args.ctx, NoCard::UseCpu);
    match prompt {
        Some(prompt) => {
            let stop = catch()?;
            one_answer(&mut open()?, &mut talk, &prompt, &stop)
        }
        None => {
            let keys = Keys::catch()?;
            conversation(&mut open()?, &mut talk, &found.model.id, &keys)
        }
    }
}

/// The conversation so far.
struct Talk {
    history: Vec<Value>,
    system: Option<String>,
    draw: Sampling,
    max: Option<usize>,
}

impl Talk {
    fn messages(&self) -> Vec<Value> {
        let system = self.system.iter().map(|s| json!({"role": "system", "content": s}));
        system.chain(self.history.iter().cloned()).collect()
    }

    /// Says something and prints the answer as it comes.
    fn say(&mut self, local: &mut Local, words: &str, stop: &AtomicBool) -> Outcome<Speed> {
        self.history.push(json!({"role": "user", "content": words}));
        let prompt = loop {
            let prompt = local.text.chat(&self.messages(), &Map::new()).map_err(|e| Failure::error(e.to_string()))?;
            if prompt.len() + 16 <= local.context || self.history.len() <= 2 {
                break prompt;
            }
            // The oldest exchange goes, so that the newest fits.
            self.history.drain(..2);
            out::talk("(the conversation is longer than the context: its oldest part is left out)");
        };
        let mut answer = String::new();
        let ask = Ask { prompt: &prompt, sampling: self.draw.clone(), max: self.max, ignore_end: false };
        let mut emit = |text: &str| {
            answer.push_str(text);
            out::data(text)
        };
        let result = local.answer(ask, stop, &mut emit, &mut |_| Ok(()));
        match &result {
            Ok(_) => self.history.push(json!({"role": "assistant", "content": answer})),
            Err(_) => {
                self.history.pop();
            }
        }
        result
    }
}

/// Catches Ctrl-C: while the flag is set it ends the program at once, else it sets the flag. The flag is set at first,
/// for the time until something can be stopped.
///
/// To be called before a device is opened: the SYCL runtime's compiler catches signals too, and gives them on to whoever
/// was there before it.
fn catch() -> Outcome<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(true));
    signal_hook::flag::register_conditional_shutdown(SIGINT, 130, flag.clone()).map_err(|e| cannot_catch(&e))?;
    signal_hook::flag::register(SIGINT, flag.clone()).map_err(|e| cannot_catch(&e))?;
    Ok(flag)
}

fn cannot_catch(error: &std::io::Error) -> Failure {
    Failure::error(format!("cannot catch Ctrl-C: {error}"))
}

fn one_answer(local: &mut Local, talk: &mut Talk, prompt: &str, stop: &AtomicBool) -> Outcome {
    stop.store(false, Ordering::Release);
    let speed = talk.say(local, prompt, stop)?;
    out::data("\n")?;
    local.tell_profile()?;
    out::talk(&speed.line());
    if speed.finish.is_none() { Err(Failure::interrupted()) } else { Ok(()) }
}

/// Ctrl-C in a conversation.
struct Keys {
    /// Set when an answer shall end.
    stop: Arc<AtomicBool>,
    /// What Ctrl-C means now.
    phase: Arc<AtomicU8>,
}

/// The model is loaded: Ctrl-C ends the program.
const LOADING: u8 = 0;
/// The user is to write: Ctrl-C says how to leave.
const ASKING: u8 = 1;
/// An answer is written: Ctrl-C ends it.
const ANSWERING: u8 = 2;

impl Keys {
    fn catch() -> Outcome<Self> {
        let keys = Self { stop: Arc::new(AtomicBool::new(false)), phase: Arc::new(AtomicU8::new(LOADING)) };
        let mut signals = signal_hook::iterator::Signals::new([SIGINT]).map_err(|e| cannot_catch(&e))?;
        let (stop, phase) = (keys.stop.clone(), keys.phase.clone());
        std::thread::spawn(move || {
            for _ in signals.forever() {
                match phase.load(Ordering::Acquire) {
                    LOADING => signal_hook::low_level::exit(130),
                    ANSWERING => stop.store(true, Ordering::Release),
                    _ => ask_for("\n(Ctrl-D or /quit leaves)\n> "),
                }
            }
        });
        Ok(keys)
    }
}

fn conversation(local: &mut Local, talk: &mut Talk, name: &str, keys: &Keys) -> Outcome {
    keys.phase.store(ASKING, Ordering::Release);
    out::talk(&format!("{name} on {}. /help shows what there is besides talking.", local.chosen.names()));
    let mut input = std::io::stdin().lock();
    loop {
        ask_for("> ");
        let Some(words) = read_words(&mut input)? else {
            out::talk("");
            return local.tell_profile();
        };
        match words.trim() {
            "" => {}
            "/quit" | "/exit" | "/bye" => return local.tell_profile(),
            "/help" | "/?" => out::talk(HELP),
            "/clear" => {
                talk.history.clear();
                local.clear()?;
                out::talk("(a new conversation)");
            }
            command if command.starts_with('/') && !command.contains(char::is_whitespace) => {
                out::talk(&format!("There is no {command}; /help shows what there is."));
            }
            words => {
                keys.stop.store(false, Ordering::Release);
                keys.phase.store(ANSWERING, Ordering::Release);
                let result = talk.say(local, words, &keys.stop);
                keys.phase.store(ASKING, Ordering::Release);
                out::data("\n")?;
                match result {
                    Ok(speed) if speed.finish.is_none() => out::talk(&format!("(stopped) {}", speed.line())),
                    Ok(speed) => out::talk(&speed.line()),
                    Err(failure) if !failure.message().is_empty() => out::talk(failure.message()),
                    Err(failure) => return Err(failure),
                }
            }
        }
    }
}

fn ask_for(text: &str) {
    let mut err = std::io::stderr().lock();
    // A closed stderr ends nothing: the answers still go to stdout.
    let _ = err.write_all(text.as_bytes()).and_then(|()| err.flush());
}

/// A line, with those it goes on in; `None` at the end of input.
fn read_words(input: &mut dyn BufRead) -> Outcome<Option<String>> {
    let mut words = String::new();
    loop {
        let mut line = String::new();
        let n = input.read_line(&mut line).map_err(|e| Failure::error(format!("cannot read from stdin: {e}")))?;
        let ended = n == 0;
        let line = line.trim_end_matches(['\n', '\r']);
        match line.strip_suffix('\\') {
            Some(part) if !ended => {
                words.push_str(part);
                words.push('\n');
                ask_for(". ");
            }
            _ => {
                words.push_str(line);
                return Ok((!ended || !words.is_empty()).then_some(words));
            }
        }
    }
}

/// `generate`: a text is continued.
pub fn generate(world: &World, args: &Generate) -> Outcome {
    let read = |path: &std::path::Path| {
        std::fs::read_to_string(path).map_err(|e| Failure::error(format!("cannot read {}: {e}", path.display())))
    };
    let words = match (&args.prompt, &args.prompt_file) {
        (Some(words), _) => Some(words.clone()),
        (None, Some(path)) => Some(read(path)?),
        (None, None) => None,
    };
    let ids = match &args.ids {
        None => None,
        Some(given) => {
            let path = std::path::Path::new(given);
            let list = if path.is_file() { read(path)? } else { given.clone() };
            Some(parse_ids(&list)?)
        }
    };
    let draw = sampling(&args.sample, &Sampling::default())?;
    let found = world.find(Some(&args.model))?;
    let stop = catch()?;
    let mut local = Local::open(world, &found, &args.open, args.ctx, NoCard::Refuse)?;
    let prompt = match (words, ids) {
        (_, Some(ids)) => Ok(ids),
        (Some(words), None) if args.chat => {
            let mut variables = Map::new();
            if let Some(effort) = &args.effort {
                variables.insert("reasoning_effort".into(), json!(effort));
            }
            local.text.chat(&[json!({"role": "user", "content": words})], &variables)
        }
        (words, None) => local.text.encode(&words.unwrap_or_default()),
    };
    let prompt = prompt.map_err(|e| Failure::error(e.to_string()))?;
    stop.store(false, Ordering::Release);
    let ask = Ask { prompt: &prompt, sampling: draw, max: args.sample.max, ignore_end: args.ignore_eos };
    let mut first = true;
    let mut emit = |text: &str| if args.print_ids { Ok(()) } else { out::data(text) };
    let mut token = |id: u32| {
        if !args.print_ids {
            return Ok(());
        }
        let text = if first { id.to_string() } else { format!(",{id}") };
        first = false;
        out::data(&text)
    };
    let speed = local.answer(ask, &stop, &mut emit, &mut token)?;
    out::data("\n")?;
    local.tell_profile()?;
    out::talk(&speed.line());
    if speed.finish.is_none() { Err(Failure::interrupted()) } else { Ok(()) }
}

/// Token ids apart by commas or white space.
pub fn parse_ids(text: &str) -> Outcome<Vec<u32>> {
    text.split(|c: char| c == ',' || c.is_whitespace())
        .filter(|s| !s.is_empty())
        .map(|s| s.parse().map_err(|_| Failure::usage(format!("`{s}` is no token id"))))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_go_on_after_a_backslash() {
        let mut input: &[u8] = b"one\ntwo \\\nthree\r\nlast";
        let mut next = || read_words(&mut input).unwrap();
        assert_eq!(next().as_deref(), Some("one"));
        assert_eq!(next().as_deref(), Some("two \nthree"));
        assert_eq!(next().as_deref(), Some("last"));
        assert_eq!(next(), None);
    }

    #[test]
    fn ids_in_both_forms() {
        assert_eq!(parse_ids("1, 2\n3\t4,").unwrap(), [1, 2, 3, 4]);
        assert!(parse_ids("1,x").is_err() && parse_ids("-1").is_err());
    }
}
