//! Which path means what.

use super::app::{App, Stage};
use super::chat::ChatForm;
use super::completions::CompletionForm;
use super::deliver::{Facts, deliver};
use super::error::ApiError;
use super::ollama::{self, LinesForm};
use super::request::{self, Generation, Input};
use super::{clock, records};
use ns_http::{Answer, BodyError, Bytes, Incoming, Method, Request, StatusCode, Via, collect, header, json};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Instant;

/// Answers one request.
pub async fn answer(app: Arc<App>, request: Request<Incoming>, via: Via) -> Answer {
    let request_id = clock::random_id("req-");
    if request.method() == Method::OPTIONS {
        // H03: a preflight request carries no token and needs none.
        return app.origins.preflight(request.headers());
    }
    let _busy = app.activity.busy();
    if app.activated && via != Via::Socket {
        app.loaded().await;
    }
    let head = request.headers().clone();
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let mut answer = match route(&app, request, via, &request_id).await {
        Ok(answer) => answer,
        Err(error) => {
            tracing::info!("{request_id} {method} {path}: {} {}", error.status.as_u16(), error.message);
            if path.starts_with("/api/") { error.plain() } else { error.answer() }
        }
    };
    app.origins.mark(&head, &mut answer);
    if let Ok(value) = header::HeaderValue::from_str(&request_id) {
        answer.headers_mut().insert("x-request-id", value);
    }
    answer
}

async fn route(app: &Arc<App>, request: Request<Incoming>, via: Via, request_id: &str) -> Result<Answer, ApiError> {
    let path = request.uri().path().to_owned();
    // HEAD is GET without the body; the HTTP library leaves it away.
    let method = match request.method() {
        &Method::HEAD => Method::GET,
        other => other.clone(),
    };
    if path.starts_with("/server/") && via != Via::Socket {
        return Err(ApiError::not_found(format!("{path} is answered on the server's Unix socket only")));
    }
    let allowed = match path.as_str() {
        "/health" | "/v1/models" | "/models" | "/status" | "/server/status" | "/server/requests" | "/server/cache" => {
            Method::GET
        }
        "/v1/chat/completions"
        | "/chat/completions"
        | "/v1/completions"
        | "/completions"
        | "/api/chat"
        | "/server/cache/clear"
        | "/server/shutdown" => Method::POST,
        p if p.starts_with("/v1/models/") || p.starts_with("/server/requests/") => Method::GET,
        _ => return Err(ApiError::not_found(format!("no route {method} {path}"))),
    };
    if method != allowed {
        return Err(ApiError::method(method.as_str(), &path, allowed.as_str()));
    }
    match path.as_str() {
        "/health" => app.ready().map(|_| json(StatusCode::OK, &json!({"status": "ok"}))),
        "/v1/models" | "/models" => Ok(json(StatusCode::OK, &json!({"object": "list", "data": [model(app)]}))),
        "/status" => {
            // Often asked for: the engine is not stopped for it.
            let cache = app.cache().map(|cache| cache.totals(&app.last_live_tokens()));
            Ok(json(StatusCode::OK, &json!({"busy": !app.records.active().is_empty(), "prompt_cache": cache})))
        }
        "/v1/chat/completions" | "/chat/completions" => {
            let generation = request::chat(&body(app, request).await?)?;
            generate(app, generation, via, "chat", request_id).await
        }
        "/v1/completions" | "/completions" => {
            let generation = request::completions(&body(app, request).await?)?;
            generate(app, generation, via, "completions", request_id).await
        }
        "/api/chat" => {
            let (model, generation) = request::lines(&body(app, request).await?)?;
            match generation {
                Some(generation) => generate(app, generation, via, "api-chat", request_id).await,
                None => {
                    app.ready()?;
                    app.check_model(model.as_deref())?;
                    Ok(json(StatusCode::OK, &ollama::loaded(&app.name)))
                }
            }
        }
        "/server/status" => Ok(json(StatusCode::OK, &status(app).await)),
        "/server/requests" => {
            let active = app.records.active();
            let value = json!({
                "running": active.first().map(|r| r.id),
                "active": active,
                "done": app.records.done(),
                "keep": app.records.keep(),
            });
            Ok(json(StatusCode::OK, &value))
        }
        "/server/cache" => {
            app.ready()?;
            let live = app.report().await.live_tokens;
            let cache = app.cache().map(|cache| cache.list(&live));
            Ok(json(StatusCode::OK, &cache.unwrap_or_else(|| json!({"entries": [], "off": true}))))
        }
        "/server/cache/clear" => Ok(json(StatusCode::OK, &json!({"dropped": app.clear_cache().await?}))),
        "/server/shutdown" => {
            let running = app.records.active().len();
            app.ask_to_stop();
            Ok(json(StatusCode::OK, &json!({"stopping": true, "running": running})))
        }
        other => {
            if let Some(id) = other.strip_prefix("/v1/models/") {
                app.check_model(Some(&plain(id)))?;
                return Ok(json(StatusCode::OK, &model(app)));
            }
            record(app, other.strip_prefix("/server/requests/").unwrap_or_default())
        }
    }
}

/// Undoes %-escapes of a path segment.
fn plain(segment: &str) -> String {
    let hex = |b: u8| (b as char).to_digit(16).map(|d| d as u8);
    let bytes = segment.as_bytes();
    let mut out = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let escaped = (bytes[at] == b'%' && at + 2 < bytes.len())
            .then(|| Some(hex(bytes[at + 1])? * 16 + hex(bytes[at + 2])?))
            .flatten();
        out.push(escaped.unwrap_or(bytes[at]));
        at += if escaped.is_some() { 3 } else { 1 };
    }
    String::from_utf8_lossy(&out).into_owned()
}

fn record(app: &App, id: &str) -> Result<Answer, ApiError> {
    let found = id.parse::<u64>().ok().and_then(|id| app.records.find(id));
    match found {
        Some(record) => Ok(json(StatusCode::OK, &json!(record))),
        None => Err(ApiError::not_found(format!(
            "there is no request #{id}: the last {} that ended are kept",
            app.records.keep()
        ))),
    }
}

async fn body(app: &App, request: Request<Incoming>) -> Result<Bytes, ApiError> {
    collect(request.into_body(), &app.limits).await.map_err(|e| {
        let status = match e {
            BodyError::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
            BodyError::Slow => StatusCode::REQUEST_TIMEOUT,
            BodyError::Broken(_) => StatusCode::BAD_REQUEST,
        };
        ApiError::body(status, e.to_string())
    })
}

async fn generate(
    app: &Arc<App>,
    generation: Generation,
    via: Via,
    api: &'static str,
    request_id: &str,
) -> Result<Answer, ApiError> {
    let begun = Instant::now();
    let accepted = app.submit(generation, via, api, request_id).await?;
    let asked = &accepted.generation;
    let echo = match (&asked.input, asked.echo) {
        (Input::Text(text), true) => text.clone(),
        (Input::Ids(ids), true) => {
            let bytes: Vec<u8> = ids.iter().flat_map(|&id| accepted.ready.text.bytes(id)).collect();
            String::from_utf8_lossy(&bytes).into_owned()
        }
        _ => String::new(),
    };
    let facts = Facts {
        id: clock::random_id(if api == "completions" { "cmpl-" } else { "chatcmpl-" }),
        created: records::now() as u64,
        model: app.name.clone(),
        prompt_tokens: accepted.prompt_tokens,
        logprobs: asked.sampling.logprobs,
        include_usage: asked.include_usage,
        echo,
        begun,
    };
    match api {
        "completions" => deliver(app.clone(), accepted, facts, CompletionForm::default()).await,
        "api-chat" => deliver(app.clone(), accepted, facts, LinesForm).await,
        _ => deliver(app.clone(), accepted, facts, ChatForm).await,
    }
}

fn model(app: &App) -> Value {
    let (state, context) = match app.stage() {
        Stage::Ready(ready) => ("loaded", ready.contexts.iter().copied().max()),
        Stage::Waiting(_) | Stage::Loading(..) => ("loading", None),
        Stage::Failed(_) => ("failed", None),
    };
    json!({
        "id": app.name, "object": "model", "created": app.created, "owned_by": "nextsycl",
        "status": {"value": state}, "context": context,
    })
}

async fn status(app: &App) -> Value {
    let active = app.records.active();
    let report = app.report().await;
    let gpus: Vec<Value> = report
        .devices
        .iter()
        .map(|d| {
            let mut value = json!(d);
            for sensor in ["watts", "temp_c", "vram_temp_c"] {
                value[sensor] = Value::Null;
            }
            value
        })
        .collect();
    let (loading, ready) = match app.stage() {
        Stage::Ready(ready) => (Value::Null, Some(ready)),
        Stage::Loading(done, total) => (json!({"done": done, "total": total}), None),
        Stage::Waiting(reason) => (json!({"done": 0, "total": 0, "waiting": &*reason}), None),
        Stage::Failed(message) => (json!({"done": 0, "total": 0, "failed": &*message}), None),
    };
    let contexts = ready.as_ref().map(|r| r.contexts.clone()).unwrap_or_default();
    json!({
        "model": app.name,
        "version": ns_registry::layout::version(),
        "pid": std::process::id(),
        "engine": ready.as_ref().map(|r| r.facts.engine),
        "n_vocab": ready.as_ref().map(|r| r.facts.n_vocab),
        "uptime_seconds": app.started.elapsed().as_secs_f64(),
        "loading": loading,
        "context": contexts.iter().max(),
        "contexts": contexts,
        "mtp": ready.as_ref().is_some_and(|r| r.facts.draft),
        "parallel": contexts.len(),
        "gpus": gpus,
        "live_tokens": report.live_tokens,
        "busy": !active.is_empty(),
        "running": active.first(),
        "active": active,
        "waiting": app.pulse.waiting.load(std::sync::atomic::Ordering::Relaxed),
        "served": app.records.served(),
        "prompt_cache": app.cache().map(|cache| cache.totals(&report.live_tokens)),
        "stopping": app.is_stopping(),
        "activated": app.activated,
    })
}
