//! What all requests share, and how a request gets to the scheduler.

use super::activity::{Activity, Busy};
use super::cache::{LEAST_TOKENS, PromptCache};
use super::clock;
use super::error::ApiError;
use super::job::{Command, Job, Report, Waiting};
use super::records::{Arrival, Records, State};
use super::request::{Generation, Input};
use super::scheduler::Pulse;
use crate::text::{Text, TextError};
use ns_http::cors::Origins;
use ns_http::{Limits, Via};
use ns_llm::EngineFacts;
use ns_tokenizer::Turns;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, mpsc, oneshot, watch};

/// Room an answer without a limit must have at least.
const LEAST_ROOM: usize = 16;

/// An opened model, as the HTTP side sees it.
pub struct Ready {
    /// Its tokenizer.
    pub text: Arc<dyn Text>,
    /// Its facts.
    pub facts: EngineFacts,
    /// Tokens each session holds.
    pub contexts: Vec<usize>,
}

/// How far the server is.
#[derive(Clone)]
pub enum Stage {
    /// The device is not there yet, and why.
    Waiting(Arc<str>),
    /// Bytes done, bytes in all.
    Loading(u64, u64),
    /// It answers.
    Ready(Arc<Ready>),
    /// The model cannot be loaded, and why: the server ends.
    Failed(Arc<str>),
}

/// State of the server.
pub struct App {
    /// The served name.
    pub name: String,
    /// Further names it answers to.
    pub aliases: Vec<String>,
    /// Answer length of requests that name none.
    pub max_tokens: Option<usize>,
    /// Allowed browser origins.
    pub origins: Origins,
    /// Limits of requests.
    pub limits: Limits,
    /// The requests.
    pub records: Arc<Records>,
    /// The scheduler's counters.
    pub pulse: Arc<Pulse>,
    /// When it started.
    pub started: Instant,
    /// Unix time of the start.
    pub created: u64,
    /// Wakes the side that stops the server.
    pub shutdown: Notify,
    /// Requests and open answers.
    pub activity: Arc<Activity>,
    /// The service manager opened the TCP sockets: it starts this program for a request and takes over again afterwards.
    pub activated: bool,
    stage: watch::Sender<Stage>,
    leaving: watch::Sender<bool>,
    stopping: AtomicBool,
    commands: std::sync::mpsc::Sender<Command>,
    report: Mutex<Report>,
    cancels: Mutex<Vec<Weak<AtomicBool>>>,
    cache: OnceLock<Arc<PromptCache>>,
}

/// A request that was taken, with what its answer needs.
pub struct Accepted {
    /// What happens to it.
    pub waiting: Waiting,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// The opened model.
    pub ready: Arc<Ready>,
    /// What was asked for.
    pub generation: Generation,
    /// The answer counts as open until it was given.
    pub busy: Busy,
}

impl App {
    /// A server that is loading.
    pub fn new(
        config: &super::Config,
        commands: std::sync::mpsc::Sender<Command>,
        records: Arc<Records>,
        pulse: Arc<Pulse>,
    ) -> Self {
        Self {
            name: config.name.clone(),
            aliases: config.aliases.clone(),
            max_tokens: config.max_tokens,
            origins: config.origins.clone(),
            limits: config.limits.clone(),
            records,
            pulse,
            started: Instant::now(),
            created: super::records::now() as u64,
            shutdown: Notify::new(),
            activity: Arc::new(Activity::new()),
            activated: !config.passed.tcp.is_empty(),
            stage: watch::Sender::new(Stage::Loading(0, 0)),
            leaving: watch::Sender::new(false),
            stopping: AtomicBool::new(false),
            commands,
            report: Mutex::new(Report::default()),
            cancels: Mutex::new(Vec::new()),
            cache: OnceLock::new(),
        }
    }

    /// How far it is.
    pub fn stage(&self) -> Stage {
        self.stage.borrow().clone()
    }

    /// Tells each change of how far it is.
    pub fn stages(&self) -> watch::Receiver<Stage> {
        self.stage.subscribe()
    }

    /// Tells how far it is.
    pub fn set_stage(&self, stage: Stage) {
        self.stage.send_replace(stage);
    }

    /// Waits until the model is loaded, or something is to be said instead: a client that started the program with its request
    /// gets an answer and no "try again".
    pub async fn loaded(&self) {
        let mut stages = self.stage.subscribe();
        let mut leaving = self.leaving.subscribe();
        // The senders live as long as the app.
        tokio::select! {
            _ = stages.wait_for(|stage| !matches!(stage, Stage::Loading(..))) => {}
            _ = leaving.wait_for(|leaving| *leaving) => {}
        }
    }

    /// The opened model, or 503.
    pub fn ready(&self) -> Result<Arc<Ready>, ApiError> {
        match self.stage() {
            Stage::Ready(ready) => Ok(ready),
            _ if self.is_stopping() => Err(ApiError::unavailable("the server is stopping", 10)),
            Stage::Loading(..) => Err(ApiError::unavailable("Loading model", 2)),
            Stage::Waiting(reason) => Err(ApiError::unavailable(&*reason, 5)),
            Stage::Failed(_) => Err(ApiError::unavailable("the model cannot be loaded: see the server's log", 60)),
        }
    }

    /// Whether it ends.
    pub fn is_stopping(&self) -> bool {
        *self.leaving.borrow()
    }

    /// Asks the server to end, from a request.
    pub fn ask_to_stop(&self) {
        if !self.activated {
            self.stop();
        }
        self.shutdown.notify_one();
    }

    /// It ends; what was accepted is still answered.
    pub fn leave(&self) {
        self.leaving.send_replace(true);
    }

    /// Takes no new requests from now on, answers the others and ends.
    pub fn stop(&self) {
        self.leave();
        self.stopping.store(true, Ordering::Release);
        // A scheduler that ended already needs no telling.
        let _ = self.commands.send(Command::Stop);
    }

    /// Cancels the running requests too.
    pub fn cancel_all(&self) {
        let cancels = std::mem::take(&mut *self.cancels.lock().unwrap_or_else(PoisonError::into_inner));
        for cancel in cancels.iter().filter_map(Weak::upgrade) {
            cancel.store(true, Ordering::Release);
        }
        let _ = self.commands.send(Command::Wake);
        if let Some(cache) = self.cache() {
            cache.hurry();
        }
    }

    /// The prompt cache, once the model is loaded and unless it is off.
    pub fn cache(&self) -> Option<&Arc<PromptCache>> {
        self.cache.get()
    }

    /// Tells of the prompt cache.
    pub fn set_cache(&self, cache: Arc<PromptCache>) {
        // It is set once, by the thread that opened the model.
        let _ = self.cache.set(cache);
    }

    /// Forgets the prompt cache; how many checkpoints there were.
    pub async fn clear_cache(&self) -> Result<usize, ApiError> {
        let busy = || ApiError::busy("a prompt is being read: ask again");
        self.ready()?;
        if self.records.active().iter().any(|r| r.state == State::Reading) {
            return Err(busy());
        }
        let (sender, receiver) = oneshot::channel();
        self.pulse.arriving.fetch_add(1, Ordering::Relaxed);
        if self.commands.send(Command::Clear(sender)).is_err() {
            self.pulse.arriving.fetch_sub(1, Ordering::Relaxed);
            return Err(ApiError::unavailable("the server is stopping", 10));
        }
        match tokio::time::timeout(Duration::from_secs(20), receiver).await {
            Ok(Ok(Some(dropped))) => Ok(dropped),
            _ => Err(busy()),
        }
    }

    /// The devices' state: now, or when the engine is in a long pass the last known one.
    pub async fn report(&self) -> Report {
        let (sender, receiver) = oneshot::channel();
        self.pulse.arriving.fetch_add(1, Ordering::Relaxed);
        if matches!(self.stage(), Stage::Ready(_)) && self.commands.send(Command::Report(sender)).is_ok() {
            if let Ok(Ok(report)) = tokio::time::timeout(Duration::from_secs(1), receiver).await {
                *self.report.lock().unwrap_or_else(PoisonError::into_inner) = report;
            }
        } else {
            self.pulse.arriving.fetch_sub(1, Ordering::Relaxed);
        }
        self.report.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Tokens the sessions held when that was last asked for.
    pub fn last_live_tokens(&self) -> Vec<usize> {
        self.report.lock().unwrap_or_else(PoisonError::into_inner).live_tokens.clone()
    }

    /// Whether a request for this model is for us.
    pub fn check_model(&self, wanted: Option<&str>) -> Result<(), ApiError> {
        let Some(wanted) = wanted else { return Ok(()) };
        let bare = wanted.strip_suffix(":latest").unwrap_or(wanted);
        if bare == self.name || wanted == self.name || self.aliases.iter().any(|a| a == bare) {
            return Ok(());
        }
        Err(ApiError::no_model(wanted, &self.name))
    }

    /// Takes a request: checks it, makes tokens of it and hands it to the scheduler.
    pub async fn submit(
        &self,
        mut generation: Generation,
        via: Via,
        api: &'static str,
        request_id: &str,
    ) -> Result<Accepted, ApiError> {
        if self.stopping.load(Ordering::Acquire) {
            return Err(ApiError::unavailable("the server is stopping", 10));
        }
        let ready = self.ready()?;
        self.check_model(generation.model.as_deref())?;
        if !generation.seeded {
            generation.sampling.seed = clock::random();
        }
        let (text, input) = (ready.text.clone(), generation.input.clone());
        let cached = self.cache().is_some();
        // A long text takes a while: not on the threads that serve everybody.
        let tokens = tokio::task::spawn_blocking(move || {
            let prompt = to_tokens(&*text, &input)?;
            let marks = if cached { marks(&*text, &input, &prompt) } else { Vec::new() };
            Ok::<_, ApiError>((prompt, marks))
        });
        let (prompt, marks) = tokens.await.map_err(|_| ApiError::server("the prompt could not be read"))??;
        let longest = ready.contexts.iter().copied().max().unwrap_or(0);
        if let Some(id) = prompt.iter().find(|&&id| id as usize >= ready.facts.n_vocab) {
            let message = format!("the token id {id} is outside the vocabulary of {}", ready.facts.n_vocab);
            return Err(ApiError::invalid(message, Some("prompt")));
        }
        if prompt.is_empty() {
            return Err(ApiError::invalid("the prompt is empty", Some("prompt")));
        }
        let asked = generation.max_tokens.or(self.max_tokens);
        if prompt.len() + asked.unwrap_or(LEAST_ROOM).clamp(1, LEAST_ROOM) > longest {
            return Err(ApiError::too_long(prompt.len(), longest));
        }
        let max_tokens = asked.unwrap_or(usize::MAX).min(longest - prompt.len());
        let room = prompt.len() + if asked.is_some() { max_tokens.max(1) } else { LEAST_ROOM };
        let prompt_tokens = prompt.len();
        let id = self.records.open(Arrival {
            request_id: request_id.to_owned(),
            via: match via {
                Via::Socket => "socket",
                Via::Tcp(_) if api == "api-chat" => "web",
                Via::Tcp(_) => "tcp",
            },
            api,
            model: self.name.clone(),
            settings: generation.settings(),
            messages: generation.messages(),
            prompt_chars: generation.prompt_chars(),
            last_user: generation.last_user(),
            prompt_tokens,
            max_tokens,
        });
        let (events, receiver) = mpsc::unbounded_channel();
        let cancelled = Arc::new(AtomicBool::new(false));
        {
            let mut cancels = self.cancels.lock().unwrap_or_else(PoisonError::into_inner);
            cancels.retain(|c| c.strong_count() > 0);
            cancels.push(Arc::downgrade(&cancelled));
        }
        let waiting = Waiting {
            id,
            events: receiver,
            cancelled: cancelled.clone(),
            records: self.records.clone(),
            wake: self.commands.clone(),
        };
        let job = Job {
            id,
            prompt,
            marks,
            room,
            sampling: generation.sampling.clone(),
            max_tokens,
            ignore_end: generation.ignore_end,
            stops: generation.stops.clone(),
            events,
            cancelled,
        };
        self.pulse.arriving.fetch_add(1, Ordering::Relaxed);
        if self.commands.send(Command::Job(Box::new(job))).is_err() {
            return Err(ApiError::unavailable("the server is stopping", 10));
        }
        Ok(Accepted { waiting, prompt_tokens, ready, generation, busy: self.activity.busy() })
    }
}

fn to_tokens(text: &dyn Text, input: &Input) -> Result<Vec<u32>, ApiError> {
    let result = match input {
        Input::Ids(ids) => Ok(ids.clone()),
        Input::Text(words) => text.encode(words),
        Input::Chat(messages, variables) => text.chat(messages, variables),
    };
    result.map_err(|e| match e {
        TextError::Template(_) | TextError::Other(_) => ApiError::invalid(e.to_string(), Some("messages")),
    })
}

/// Where checkpoints of a prompt are worth making: behind the first turn, before the last user's, and at the end. The end is
/// before what opens the answer: later prompts of a conversation that thinks go on differently from there. One token at least
/// is left to read for who asks the same again.
fn marks(text: &dyn Text, input: &Input, prompt: &[u32]) -> Vec<usize> {
    if prompt.len() <= LEAST_TOKENS {
        return Vec::new();
    }
    let turns = match input {
        Input::Chat(messages, variables) => text.turns(messages, variables, prompt),
        _ => Turns::default(),
    };
    let end = turns.answer.unwrap_or(prompt.len() - 1);
    let mut marks: Vec<usize> = [turns.first_end, turns.last_user, Some(end)].into_iter().flatten().collect();
    marks.retain(|&mark| (LEAST_TOKENS..prompt.len()).contains(&mark));
    marks.sort_unstable();
    marks.dedup();
    marks
}
