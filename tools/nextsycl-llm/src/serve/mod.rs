//! The server: listeners, the model behind them, and stopping in good order.

mod app;
mod chat;
mod clock;
mod completions;
mod deliver;
mod error;
mod fields;
mod job;
mod ollama;
mod records;
mod request;
mod routes;
mod scheduler;
#[cfg(test)]
mod tests;

pub use clock::random;
pub use job::Finish;
pub use scheduler::rate;

use crate::failure::{Failure, Outcome};
use crate::text::Text;
use app::{App, Ready, Stage};
use ns_http::cors::Origins;
use ns_http::{Limits, Server, listen_tcp, listen_unix};
use ns_llm::Engine;
use records::Records;
use scheduler::{Pulse, Scheduler};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{oneshot, watch};

/// How to serve.
pub struct Config {
    /// The served name.
    pub name: String,
    /// Further names it answers to.
    pub aliases: Vec<String>,
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
}

/// An opened model.
pub struct Loaded {
    /// The engine.
    pub engine: Box<dyn Engine>,
    /// Its tokenizer.
    pub text: Arc<dyn Text>,
}

/// Opens the model, telling how far it is.
pub type Loader = Box<dyn FnOnce(&mut dyn FnMut(u64, u64)) -> Outcome<Loaded> + Send>;

/// A server that listens and has not loaded its model.
pub struct Bound {
    server: Server,
    config: Config,
    /// The TCP address.
    pub address: SocketAddr,
}

/// Opens the listeners. Needs a running tokio runtime.
pub async fn bind(config: Config) -> Outcome<Bound> {
    let unix = listen_unix(&config.socket)?;
    let tcp = listen_tcp(&config.listen.0, config.listen.1).await?;
    let address = tcp.local_addr().map_err(|e| Failure::error(format!("cannot listen: {e}")))?;
    let server = Server { tcp: vec![tcp], unix: Some(unix), limits: config.limits.clone() };
    Ok(Bound { server, config, address })
}

impl Bound {
    /// Loads the model and serves until `stop` asks for the end, the socket does, or the engine is lost. The second
    /// time `stop` asks, running requests are cancelled.
    pub async fn run(self, loader: Loader, mut stop: tokio::sync::mpsc::Receiver<()>) -> Outcome {
        let (commands, inbox) = std::sync::mpsc::channel();
        let records = Arc::new(Records::new(self.config.keep_requests, self.config.keep_text));
        let pulse = Arc::new(Pulse::default());
        let app = Arc::new(App::new(&self.config, commands, records.clone(), pulse.clone()));
        let (close, closed) = watch::channel(false);
        let handler = {
            let app = app.clone();
            move |request, via| routes::answer(app.clone(), request, via)
        };
        let mut serving = tokio::spawn(self.server.run(handler, closed));
        let (ended, mut engine_end) = oneshot::channel();
        let contexts = self.config.contexts;
        let thread = {
            let app = app.clone();
            std::thread::Builder::new().name("engine".into()).spawn(move || {
                let result = engine_thread(&app, loader, &contexts, records, pulse, &inbox);
                // The other side is gone only when the program ends anyway.
                let _ = ended.send(result);
            })
        };
        thread.map_err(|e| Failure::error(format!("cannot start a thread: {e}")))?;
        let mut asked = false;
        let result = loop {
            tokio::select! {
                result = &mut engine_end => {
                    break result.unwrap_or_else(|_| Err(Failure::error("the engine ended by a fault in the program")));
                }
                Some(()) = stop.recv() => {
                    if asked && matches!(app.stage(), Stage::Loading(..)) {
                        break Err(Failure::interrupted());
                    }
                    if asked {
                        tracing::warn!("asked again to stop: running requests are cancelled");
                        app.cancel_all();
                    } else {
                        tracing::info!("stopping: {} request(s) are finished first", app.records.active().len());
                        app.stop();
                    }
                    asked = true;
                }
                () = app.shutdown.notified(), if !asked => {
                    asked = true;
                    tracing::info!("asked over the socket to stop");
                }
            }
        };
        let _ = close.send(true);
        // Clients that do not read their answer do not keep the server.
        if tokio::time::timeout(Duration::from_secs(5), &mut serving).await.is_err() {
            serving.abort();
            let _ = serving.await;
        }
        result
    }
}

fn engine_thread(
    app: &App,
    loader: Loader,
    contexts: &[usize],
    records: Arc<Records>,
    pulse: Arc<Pulse>,
    inbox: &std::sync::mpsc::Receiver<job::Command>,
) -> Outcome {
    let loaded = loader(&mut |done, total| app.set_stage(Stage::Loading(done, total)))?;
    let facts = loaded.engine.facts().clone();
    let scheduler = Scheduler::new(loaded.engine, loaded.text.clone(), contexts, records, pulse)?;
    tracing::info!("ready: {} ({}), contexts {contexts:?}", app.name, facts.engine);
    app.set_stage(Stage::Ready(Arc::new(Ready { text: loaded.text, facts, contexts: contexts.to_vec() })));
    scheduler.run(inbox).map_err(|e| Failure::error(format!("the engine is lost: {e}")))
}
