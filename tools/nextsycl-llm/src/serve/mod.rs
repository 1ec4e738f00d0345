//! The server: listeners, the model behind them, and stopping in good order.

mod activity;
mod app;
mod cache;
mod chat;
mod clock;
mod completions;
mod deliver;
mod error;
mod fields;
mod job;
mod manager;
mod ollama;
mod records;
mod refuse;
mod request;
mod routes;
mod scheduler;
mod slot;
#[cfg(test)]
mod tests;

pub use cache::{CacheConfig, DiskConfig};
pub use clock::{random, rfc3339};
pub use job::Finish;
pub use refuse::Doors;
pub use slot::rate;

use crate::failure::{Failure, Outcome};
use crate::text::Text;
use app::{App, Ready, Stage};
use cache::{PromptCache, Writer};
use ns_http::cors::Origins;
use ns_http::{Limits, Server, UnixListening, given_tcp, listen_tcp, listen_unix};
use ns_llm::Engine;
use ns_systemd::{Passed, Stage as Told};
use records::Records;
use scheduler::{Pulse, Scheduler};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{oneshot, watch};

/// How to serve.
pub struct Config {
    /// The served name.
    pub name: String,
    /// Further names it answers to.
    pub aliases: Vec<String>,
    /// Sockets the service manager opened; where it did, none is opened here.
    pub passed: Passed,
    /// Ends the server after so long without a request.
    pub idle_exit: Option<Duration>,
    /// Address and port to listen on.
    pub listen: (String, u16),
    /// The control socket.
    pub socket: PathBuf,
    /// Tokens each session holds; one session a number.
    pub contexts: Vec<usize>,
    /// Answer length of requests that name none.
    pub max_tokens: Option<usize>,
    /// Ended requests kept.
    pub keep_requests: usize,
    /// Whether their text is kept.
    pub keep_text: bool,
    /// Allowed browser origins.
    pub origins: Origins,
    /// Limits of requests.
    pub limits: Limits,
    /// The prompt cache; none keeps no states.
    pub cache: Option<CacheConfig>,
}

/// An opened model.
pub struct Loaded {
    /// The engine.
    pub engine: Box<dyn Engine>,
    /// Its tokenizer.
    pub text: Arc<dyn Text>,
    /// What tells the model from others.
    pub identity: [u8; 32],
}

/// Opens the model, telling how far it is.
pub type Loader = Box<dyn FnOnce(&Opening<'_>) -> Outcome<Loaded> + Send>;

/// What a loader tells the server, and is told.
pub struct Opening<'a>(&'a App);

impl Opening<'_> {
    /// How many bytes of how many are loaded.
    pub fn progress(&self, done: u64, total: u64) {
        self.0.set_stage(Stage::Loading(done, total));
    }

    /// The device is not there yet, and why.
    pub fn waiting(&self, reason: &str) {
        self.0.set_stage(Stage::Waiting(reason.into()));
    }

    /// Whether the server ends: waiting is of no use any more.
    pub fn is_stopping(&self) -> bool {
        self.0.is_stopping()
    }
}

/// A server that listens and has not loaded its model.
pub struct Bound {
    server: Server,
    config: Config,
    /// The (first) TCP address.
    pub address: SocketAddr,
    /// The control socket.
    pub socket: PathBuf,
}

/// Opens the listeners that were not passed. Needs a running tokio runtime.
pub async fn bind(mut config: Config) -> Outcome<Bound> {
    let fail = |e: std::io::Error| Failure::error(format!("cannot listen: {e}"));
    let unix = match config.passed.unix.take() {
        Some(unix) => UnixListening::given(unix).map_err(fail)?,
        None => listen_unix(&config.socket)?,
    };
    let mut tcp = Vec::new();
    for listener in &config.passed.tcp {
        tcp.push(given_tcp(listener.try_clone().map_err(fail)?).map_err(fail)?);
    }
    if tcp.is_empty() {
        tcp.push(listen_tcp(&config.listen.0, config.listen.1).await?);
    }
    let address = tcp[0].local_addr().map_err(fail)?;
    let socket = unix.path().unwrap_or_else(|| config.socket.clone());
    let server = Server { tcp, unix: Some(unix), limits: config.limits.clone() };
    Ok(Bound { server, config, address, socket })
}

/// How a server ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// It does not.
    Not,
    /// No connection is accepted any more; those that are there get their answers. Then the scheduler is told.
    Draining,
    /// The scheduler was told: it ends when every request is answered.
    Told,
}

impl Bound {
    /// Loads the model and serves until `stop` asks for the end, the socket does, nobody asked for long enough, or the engine
    /// is lost. The second time `stop` asks, running requests are cancelled.
    pub async fn run(self, loader: Loader, mut stop: tokio::sync::mpsc::Receiver<()>) -> Outcome {
        let (commands, inbox) = std::sync::mpsc::channel();
        let records = Arc::new(Records::new(self.config.keep_requests, self.config.keep_text));
        let pulse = Arc::new(Pulse::default());
        let app = Arc::new(App::new(&self.config, commands, records, pulse));
        let (close, closed) = watch::channel(false);
        let handler = {
            let app = app.clone();
            move |request, via| routes::answer(app.clone(), request, via)
        };
        let mut serving = tokio::spawn(self.server.run(handler, closed));
        let (ended, mut engine_end) = oneshot::channel();
        let (contexts, cache) = (self.config.contexts, self.config.cache);
        let thread = {
            let app = app.clone();
            std::thread::Builder::new().name("engine".into()).spawn(move || {
                let result = engine_thread(&app, loader, &contexts, cache.as_ref(), &inbox);
                // The other side is gone only when the program ends anyway.
                let _ = ended.send(result);
            })
        };
        thread.map_err(|e| Failure::error(format!("cannot start a thread: {e}")))?;
        let start = tokio::spawn({
            let app = app.clone();
            async move { manager::follow(&app).await }
        });
        let idle_exit = self.config.idle_exit;
        let mut end = End::Not;
        // Where the service manager has the socket too, whoever comes now is served by the next start: nobody is turned away.
        let leave = |idle: bool| {
            manager::tell(&[Told::Stopping, Told::Status("stopping".to_owned())]);
            if app.activated || idle {
                app.leave();
                let _ = close.send(true);
                End::Draining
            } else {
                app.stop();
                End::Told
            }
        };
        let result = loop {
            tokio::select! {
                result = &mut engine_end => {
                    break result.unwrap_or_else(|_| Err(Failure::error("the engine ended by a fault in the program")));
                }
                Some(()) = stop.recv() => {
                    if end == End::Not {
                        tracing::info!("stopping: {} request(s) are finished first", app.records.active().len());
                        end = leave(false);
                    } else if matches!(app.stage(), Stage::Loading(..)) {
                        break Err(Failure::interrupted());
                    } else {
                        tracing::warn!("asked again to stop: running requests are cancelled");
                        app.cancel_all();
                    }
                }
                () = app.shutdown.notified(), if end == End::Not => {
                    tracing::info!("asked over the socket to stop");
                    end = leave(false);
                }
                () = idle(&app, idle_exit), if end == End::Not => {
                    let seconds = idle_exit.unwrap_or_default().as_secs_f64();
                    tracing::info!("stopping: nothing was asked for {seconds} s");
                    end = leave(true);
                }
                () = answered(&app, &serving), if end == End::Draining => {
                    app.stop();
                    end = End::Told;
                }
            }
        };
        if let Err(failure) = &result
            && !failure.message().is_empty()
        {
            manager::tell(&[Told::Status(format!("failed: {}", failure.message()))]);
        }
        start.abort();
        let _ = close.send(true);
        // Clients that do not read their answer do not keep the server.
        if !serving.is_finished() && tokio::time::timeout(Duration::from_secs(5), &mut serving).await.is_err() {
            serving.abort();
            let _ = serving.await;
        }
        result
    }
}

/// Waits until a loaded server was not asked anything for so long; forever without a limit.
async fn idle(app: &App, limit: Option<Duration>) {
    let Some(limit) = limit else { return std::future::pending().await };
    // The sender lives as long as the app.
    let _ = app.stages().wait_for(|stage| matches!(stage, Stage::Ready(_))).await;
    app.activity.idle_for(limit).await;
}

/// Waits until every connection has its answer; clients that do not read theirs are not waited for.
async fn answered(app: &App, serving: &tokio::task::JoinHandle<()>) {
    let mut quiet = Instant::now();
    while !serving.is_finished() && quiet.elapsed() < Duration::from_secs(5) {
        tokio::time::sleep(Duration::from_millis(20)).await;
        if app.activity.count() > 0 {
            quiet = Instant::now();
        }
    }
}

fn engine_thread(
    app: &App,
    loader: Loader,
    contexts: &[usize],
    cache: Option<&CacheConfig>,
    inbox: &std::sync::mpsc::Receiver<job::Command>,
) -> Outcome {
    let opened = loader(&Opening(app)).and_then(|loaded| {
        let facts = loaded.engine.facts().clone();
        let cache = cache.map(|config| PromptCache::open(config, loaded.identity, &facts.cache_fingerprint));
        let writer = cache.clone().map(Writer::start).transpose();
        let writer = writer.map_err(|e| Failure::error(format!("cannot start a thread: {e}")))?;
        if let Some(cache) = &cache {
            app.set_cache(cache.clone());
        }
        let (records, pulse) = (app.records.clone(), app.pulse.clone());
        let scheduler = Scheduler::new(loaded.engine, loaded.text.clone(), contexts, cache, records, pulse)?;
        Ok((facts, loaded.text, scheduler, writer))
    });
    let (facts, text, scheduler, writer) =
        opened.inspect_err(|failure| app.set_stage(Stage::Failed(failure.message().into())))?;
    tracing::info!("ready: {} ({}), contexts {contexts:?}", app.name, facts.engine);
    app.activity.touch();
    app.set_stage(Stage::Ready(Arc::new(Ready { text, facts, contexts: contexts.to_vec() })));
    let result = scheduler.run(inbox).map_err(|e| Failure::error(format!("the engine is lost: {e}")));
    // What is in memory only goes to disk now.
    drop(writer);
    result
}
