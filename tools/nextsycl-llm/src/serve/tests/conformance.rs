//! What clients get: forms, stops, limits, errors. The numbers are those of known faults of similar programs.

use super::*;
use serde_json::json;

fn words() -> Script {
    Script::default().say("main", &[b"alpha ", b"be", b"ta ga", b"mma", b" delta"])
}

#[test]
fn a_plain_answer_has_openais_form() {
    let server = Fixture::start(words(), &[100]);
    let got = server.chat(&json!({"model": "scripted"}));
    assert_eq!(got.status, 200);
    assert!(got.head.contains("content-type: application/json") && got.head.contains("x-request-id: req-"));
    let mut v = got.json();
    assert!(v["id"].as_str().unwrap().starts_with("chatcmpl-") && v["created"].as_u64().unwrap() > 1_600_000_000);
    v["timings"].take();
    let choice = json!({"index": 0, "message": {"role": "assistant", "content": "alpha beta gamma delta", "refusal": null},
        "logprobs": null, "finish_reason": "stop"});
    assert_eq!(v["choices"], json!([choice]));
    let usage = json!({"prompt_tokens": 5, "completion_tokens": 5, "total_tokens": 10,
        "prompt_tokens_details": {"cached_tokens": 0}, "completion_tokens_details": {"reasoning_tokens": 0}});
    assert_eq!(v["usage"], usage);
    assert_eq!((v["object"].as_str(), v["model"].as_str()), (Some("chat.completion"), Some("scripted")));
}

/// C07: no usage chunk unasked; with it exactly one, with empty choices.
#[test]
fn a_stream_has_openais_form() {
    let server = Fixture::start(words(), &[100]);
    let got = server.chat(&json!({"stream": true}));
    assert!(got.head.contains("content-type: text/event-stream"), "{}", got.head);
    assert!(got.body.ends_with("data: [DONE]\n\n"));
    let events = got.events();
    assert_eq!(events[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    assert!(events.iter().all(|e| e["choices"].as_array().unwrap().len() == 1 && e.get("usage").is_none()));
    assert!(events.iter().all(|e| e["id"] == events[0]["id"] && e["created"] == events[0]["created"]));
    assert_eq!((got.streamed(), got.streamed_finish()), ("alpha beta gamma delta".into(), "stop".into()));
    let got = server.chat(&json!({"stream": true, "stream_options": {"include_usage": true}}));
    let events = got.events();
    let (last, others) = events.split_last().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["completion_tokens"], 5);
    assert!(others.iter().all(|e| e["usage"].is_null() && !e["choices"].as_array().unwrap().is_empty()));
}

/// C01: characters split over tokens, also at the end and with log-probabilities per token.
#[test]
fn characters_split_over_tokens_arrive_whole() {
    let emoji = "😀".as_bytes();
    let kanji = "世".as_bytes();
    let script = Script::default()
        .say("main", &[b"a", &emoji[..2], &emoji[2..], &kanji[..1], &kanji[1..], b"z"])
        .say("cut", &[b"a", &emoji[..2]]);
    let server = Fixture::start(script, &[100]);
    let got = server.chat(&json!({"stream": true, "logprobs": true}));
    assert_eq!(got.streamed(), "a😀世z");
    assert!(!got.body.contains('\u{fffd}') || got.body.contains("\"token\":\"\u{fffd}"));
    let tokens: Vec<Value> = got
        .events()
        .iter()
        .flat_map(|e| e["choices"][0]["logprobs"]["content"].as_array().cloned().unwrap_or_default())
        .collect();
    let bytes: Vec<_> = tokens.iter().map(|t| t["bytes"].clone()).collect();
    assert_eq!(bytes[1..5], [json!(emoji[..2]), json!(emoji[2..]), json!(kanji[..1]), json!(kanji[1..])]);
    assert_eq!(bytes.len(), 6);
    let cut = json!({"messages": [{"role": "user", "content": "cut"}]});
    let mut streamed = cut.clone();
    streamed["stream"] = true.into();
    assert_eq!(server.post("/v1/chat/completions", &streamed).streamed(), "a\u{fffd}");
    let whole = server.post("/v1/chat/completions", &cut).json();
    assert_eq!(whole["choices"][0]["message"]["content"], "a\u{fffd}");
    let limited = server.chat(&json!({"max_tokens": 2})).json();
    assert_eq!(limited["choices"][0]["message"]["content"], "a\u{fffd}");
}

/// C03, C05, C21: stops over token borders, nothing leaked, nothing twice, the same streamed and not.
#[test]
fn stops_and_limits_are_the_same_both_ways() {
    let server = Fixture::start(words().say("partial", &[b"DEF", b"GHI", b"X"]), &[100]);
    for (extra, text, finish) in [
        (json!({"stop": ["beta gamma"]}), "alpha ", "stop"),
        (json!({"stop": "a g"}), "alpha bet", "stop"),
        (json!({"stop": ["zzz", "ta", "ta gamma d", "gam"]}), "alpha be", "stop"),
        (json!({"stop": "delta!"}), "alpha beta gamma delta", "stop"),
        (json!({"max_tokens": 2}), "alpha be", "length"),
        (json!({"max_completion_tokens": 3}), "alpha beta ga", "length"),
        (json!({"max_completion_tokens": 3, "max_tokens": 1}), "alpha beta ga", "length"),
        (json!({"max_tokens": 0}), "", "length"),
        (json!({"max_tokens": 3, "stop": "ta ga"}), "alpha be", "stop"),
        (json!({"messages": [{"content": "partial"}], "stop": "DEFGHIJ"}), "DEFGHIX", "stop"),
    ] {
        let whole = server.chat(&extra).json();
        let choice = &whole["choices"][0];
        assert_eq!(
            (choice["message"]["content"].as_str(), choice["finish_reason"].as_str()),
            (Some(text), Some(finish)),
            "{extra}"
        );
        let mut streamed = extra.clone();
        streamed["stream"] = true.into();
        let got = server.chat(&streamed);
        assert_eq!((got.streamed().as_str(), got.streamed_finish().as_str()), (text, finish), "{extra}");
    }
}

/// C19: log-probabilities in each form.
#[test]
fn logprobs_have_their_form() {
    let server = Fixture::start(words(), &[100]);
    for top in [0, 20] {
        let v = server.chat(&json!({"logprobs": true, "top_logprobs": top, "max_tokens": 1})).json();
        let entry = &v["choices"][0]["logprobs"]["content"][0];
        assert_eq!((entry["token"].as_str(), entry["bytes"].clone()), (Some("alpha "), json!(b"alpha ")));
        assert!(entry["logprob"].as_f64().unwrap().abs() < 1e-6);
        assert_eq!(entry["top_logprobs"].as_array().unwrap().len(), top);
    }
    let v = server.chat(&json!({})).json();
    assert_eq!(v["choices"][0]["logprobs"], Value::Null);
    let got = server.chat(&json!({"logprobs": true, "top_logprobs": 21}));
    assert_eq!((got.status, got.json()["error"]["param"].as_str()), (400, Some("top_logprobs")));
    let v = server.post("/v1/completions", &json!({"prompt": "main", "temperature": 0, "logprobs": 2})).json();
    let logprobs = &v["choices"][0]["logprobs"];
    assert_eq!(logprobs["tokens"], json!(["alpha ", "be", "ta ga", "mma", " delta"]));
    assert_eq!(logprobs["text_offset"], json!([0, 6, 8, 13, 16]));
    assert_eq!(logprobs["top_logprobs"][0].as_object().unwrap().len(), 2);
    assert_eq!(logprobs["token_logprobs"].as_array().unwrap().len(), 5);
}

#[test]
fn completions_take_text_and_ids() {
    let server = Fixture::start(words(), &[100]);
    let of = |body: Value| server.post("/v1/completions", &body);
    let v = of(json!({"prompt": "main", "temperature": 0})).json();
    assert_eq!(
        (v["object"].as_str(), v["choices"][0]["text"].as_str()),
        (Some("text_completion"), Some("alpha beta gamma delta"))
    );
    let ids: Vec<u32> = b"main".iter().map(|&b| u32::from(b)).chain([scripted::ASK]).collect();
    let v = of(json!({"prompt": ids, "temperature": 0, "max_tokens": 1, "echo": true})).json();
    assert_eq!(
        (v["choices"][0]["text"].as_str(), v["choices"][0]["finish_reason"].as_str()),
        (Some("mainalpha "), Some("length"))
    );
    let got = of(json!({"prompt": "main", "temperature": 0, "stream": true, "echo": true}));
    let text: String =
        got.events().iter().filter_map(|e| e["choices"][0]["text"].as_str().map(str::to_owned)).collect();
    assert_eq!(text, "mainalpha beta gamma delta");
    let got = of(json!({"prompt": [1, 99_999]}));
    assert_eq!(got.status, 400);
    assert!(got.body.contains("99999"), "{}", got.body);
}

#[test]
fn json_lines_have_both_forms() {
    let server = Fixture::start(words(), &[100]);
    let body = json!({"model": "scripted:latest", "messages": [{"role": "user", "content": "main"}],
        "options": {"temperature": 0, "num_predict": 4, "num_ctx": 2048}});
    let got = server.post("/api/chat", &body);
    assert!(got.head.contains("content-type: application/x-ndjson"));
    let lines = got.events();
    let (last, pieces) = lines.split_last().unwrap();
    let flat: String = pieces.iter().map(|l| l["content"].as_str().unwrap()).collect();
    let nested: String = pieces.iter().map(|l| l["message"]["content"].as_str().unwrap()).collect();
    assert_eq!((flat.as_str(), nested.as_str()), ("alpha beta gamma", "alpha beta gamma"));
    assert!(pieces.iter().all(|l| l["done"] == false));
    assert_eq!(
        (last["done"].as_bool(), last["done_reason"].as_str(), last["finish"].as_str()),
        (Some(true), Some("length"), Some("length"))
    );
    assert_eq!((last["eval_count"].as_u64(), last["prompt_eval_count"].as_u64()), (Some(4), Some(5)));
    let mut whole = body.clone();
    whole["stream"] = false.into();
    let v = server.post("/api/chat", &whole).json();
    assert_eq!((v["message"]["content"].as_str(), v["done"].as_bool()), (Some("alpha beta gamma"), Some(true)));
    let v = server.post("/api/chat", &json!({"model": "scripted"})).json();
    assert_eq!(v["done_reason"], "load");
    let got = server.post("/api/chat", &json!({"model": "nope", "messages": []}));
    assert_eq!(got.status, 404);
    assert!(got.json()["error"].is_string());
}

#[test]
fn errors_have_openais_form() {
    let server = Fixture::start(words(), &[64, 40]);
    let error = |got: &Got| got.json()["error"].clone();
    let got = server.chat(&json!({"model": "gpt-4"}));
    assert_eq!(got.status, 404);
    assert_eq!((error(&got)["code"].as_str(), error(&got)["param"].as_str()), (Some("model_not_found"), Some("model")));
    assert_eq!(server.chat(&json!({"model": "other-name"})).status, 200);
    let got = server.post("/v1/chat/completions", &chat_body(&json!({"messages": [{"content": "x".repeat(48)}]})));
    assert_eq!((got.status, error(&got)["code"].as_str()), (400, Some("context_length_exceeded")));
    let message = error(&got)["message"].as_str().unwrap().to_owned();
    assert!(message.contains("49 tokens") && message.contains("64 tokens"), "{message}");
    let got = server.raw("POST", "/v1/chat/completions", "", "{\"messages\":");
    assert_eq!((got.status, error(&got)["type"].as_str()), (400, Some("invalid_request_error")));
    let got = server.chat(&json!({"n": 2}));
    assert_eq!((got.status, error(&got)["param"].as_str()), (400, Some("n")));
    let got = server.chat(&json!({"messages": [{"role": "tool", "content": "x"}]}));
    assert_eq!(got.status, 400);
    assert!(error(&got)["message"].as_str().unwrap().contains("no tools here"));
    for (method, path, status) in [
        ("GET", "/nope", 404),
        ("GET", "/v1/chat/completions", 405),
        ("POST", "/health", 405),
        ("GET", "/server/status", 404),
        ("POST", "/server/shutdown", 404),
        ("GET", "/v1/models/nope", 404),
        ("GET", "/v1/models/scripted", 200),
        ("HEAD", "/health", 200),
    ] {
        assert_eq!(server.raw(method, path, "", "").status, status, "{method} {path}");
    }
    // nothing was read for any refused request
    assert_eq!(server.control(ns_http::Method::GET, "/server/status").1["served"], 1);
}

/// H03: preflight requests, and which origins may read answers.
#[test]
fn cors_names_allowed_origins_only() {
    let server = Fixture::start(words(), &[100]);
    for (origin, allowed) in [
        ("http://localhost:3000", true),
        ("https://chat.example", true),
        ("https://evil.example", false),
        ("http://localhost.evil.example", false),
    ] {
        let header = format!("Origin: {origin}\r\nAccess-Control-Request-Method: POST\r\n");
        let got = server.raw("OPTIONS", "/v1/chat/completions", &header, "");
        assert_eq!(got.status, 204);
        let expected = format!("access-control-allow-origin: {origin}");
        assert_eq!(got.head.contains(&expected), allowed, "{}", got.head);
        assert_eq!(got.head.contains("access-control-allow-methods"), allowed);
        assert!(got.head.contains("vary: Origin"));
        for path in ["/v1/models", "/nope"] {
            let got = server.raw("GET", path, &format!("Origin: {origin}\r\n"), "");
            assert_eq!(got.head.contains(&expected), allowed, "{path}");
        }
    }
}
