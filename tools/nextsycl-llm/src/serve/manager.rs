//! What the service manager is told while the server starts.

use super::app::{App, Stage};
use ns_systemd::Stage as Told;
use std::time::{Duration, Instant};

/// Time between two looks at how far the start is.
const LOOK: Duration = Duration::from_millis(500);
/// Time between two requests for more time, and how much is asked for.
const EXTEND_EVERY: Duration = Duration::from_secs(5);
const EXTEND_BY: Duration = Duration::from_secs(30);
/// A load that makes no progress for so long gets no more time: it is stuck.
const STUCK: Duration = Duration::from_secs(600);

/// Tells the service manager; that it cannot be told is logged, since it then ends the service by itself.
pub fn tell(stages: &[Told]) {
    if let Err(error) = ns_systemd::tell(stages) {
        tracing::warn!("the service manager cannot be told ({stages:?}): {error}");
    }
}

/// One line about a stage, and whether it ends the start.
fn line(app: &App, stage: &Stage) -> (String, bool) {
    match stage {
        Stage::Loading(_, 0) => (format!("opening {}", app.name), false),
        Stage::Loading(done, total) => {
            let percent = u128::from(*done) * 100 / u128::from(*total);
            (format!("loading {}: {percent} % of {}", app.name, crate::render::size(*total)), false)
        }
        Stage::Waiting(reason) => (reason.to_string(), false),
        Stage::Ready(_) => (format!("serving {}", app.name), true),
        Stage::Failed(message) => (format!("failed: {message}"), true),
    }
}

/// Follows the start until the model answers or cannot be loaded: progress, more time, and readiness.
pub async fn follow(app: &App) {
    let mut stages = app.stages();
    let mut last = String::new();
    let mut progress = Instant::now();
    let mut extended: Option<Instant> = None;
    loop {
        let stage = stages.borrow_and_update().clone();
        let (text, ends) = line(app, &stage);
        let mut told = Vec::new();
        if text != last {
            told.push(Told::Status(text.clone()));
            last = text;
        }
        if matches!(stage, Stage::Ready(_)) {
            told.push(Told::Ready);
        }
        if !ends && progress.elapsed() < STUCK && extended.is_none_or(|at| at.elapsed() >= EXTEND_EVERY) {
            told.push(Told::Extend(EXTEND_BY));
            extended = Some(Instant::now());
        }
        if !told.is_empty() {
            tell(&told);
        }
        if ends {
            return;
        }
        let looked = Instant::now();
        if let Ok(Ok(())) = tokio::time::timeout(EXTEND_EVERY, stages.changed()).await {
            progress = Instant::now();
        }
        let ended = |stage: &Stage| matches!(stage, Stage::Ready(_) | Stage::Failed(_));
        if !ended(&stages.borrow()) {
            // A load tells each megabyte; nobody reads that fast.
            let rest = LOOK.saturating_sub(looked.elapsed());
            let _ = tokio::time::timeout(rest, stages.wait_for(|s| ended(s))).await;
        }
    }
}
