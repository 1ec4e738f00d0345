//! The three request forms, read into one: what the model reads, how it draws, how the answer is sent.
//!
//! Fields accepted without effect (they ask for nothing that changes the text): see [`HARMLESS`]. Any other field that
//! is not supported is refused by name.
//!
//! `max_completion_tokens` wins over `max_tokens` when both are given.

use super::error::ApiError;
use super::fields::Fields;
use ns_llm::Sampling;
use serde_json::{Map, Value, json};

/// Fields of OpenAI clients that ask for nothing we would have to do.
pub const HARMLESS: &[&str] =
    &["user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "cache_prompt"];

/// Options of Ollama clients that concern loading or other samplers' internals.
const HARMLESS_OLLAMA: &[&str] = &[
    "num_ctx",
    "num_keep",
    "num_batch",
    "num_gpu",
    "main_gpu",
    "num_thread",
    "use_mmap",
    "use_mlock",
    "low_vram",
    "numa",
    "f16_kv",
    "vocab_only",
    "logits_all",
    "penalize_newline",
    "typical_p",
    "tfs_z",
    "mirostat",
    "mirostat_tau",
    "mirostat_eta",
];

/// What the model shall read.
#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    /// A conversation, through the chat template with further variables.
    Chat(Vec<Value>, Map<String, Value>),
    /// A text as it is.
    Text(String),
    /// Token ids.
    Ids(Vec<u32>),
}

/// A request for an answer.
#[derive(Debug, Clone)]
pub struct Generation {
    /// The model asked for.
    pub model: Option<String>,
    /// What the model shall read.
    pub input: Input,
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// Whether the client chose the seed.
    pub seeded: bool,
    /// Longest answer asked for.
    pub max_tokens: Option<usize>,
    /// Texts that end the answer.
    pub stops: Vec<String>,
    /// Goes on after the model's end token.
    pub ignore_end: bool,
    /// Piece by piece.
    pub stream: bool,
    /// A chunk with usage at the end of a stream.
    pub include_usage: bool,
    /// The prompt is repeated before the answer (/v1/completions).
    pub echo: bool,
}

impl Generation {
    /// The settings for the record.
    pub fn settings(&self) -> Map<String, Value> {
        let four = |v: f32| json!((f64::from(v) * 1e4).round() / 1e4);
        let s = &self.sampling;
        let mut map = Map::new();
        map.insert("temperature".into(), four(s.temperature));
        map.insert("top_p".into(), four(s.top_p));
        map.insert("top_k".into(), s.top_k.into());
        map.insert("min_p".into(), four(s.min_p));
        map.insert("seed".into(), s.seed.into());
        map.insert("stream".into(), self.stream.into());
        map.insert("max_tokens".into(), self.max_tokens.into());
        map
    }

    /// Messages of the conversation.
    pub fn messages(&self) -> usize {
        match &self.input {
            Input::Chat(messages, _) => messages.len(),
            _ => 0,
        }
    }

    /// Characters as the client sent them.
    pub fn prompt_chars(&self) -> usize {
        match &self.input {
            Input::Chat(messages, _) => {
                messages.iter().filter_map(|m| m["content"].as_str()).map(|c| c.chars().count()).sum()
            }
            Input::Text(text) => text.chars().count(),
            Input::Ids(_) => 0,
        }
    }

    /// The last thing the user said.
    pub fn last_user(&self) -> Option<String> {
        match &self.input {
            Input::Chat(messages, _) => {
                let last = messages.iter().rev().find(|m| m["role"] == "user")?;
                last["content"].as_str().map(str::to_owned)
            }
            Input::Text(text) => Some(text.clone()),
            Input::Ids(_) => None,
        }
    }
}

/// Reads a /v1/chat/completions request.
pub fn chat(body: &[u8]) -> Result<Generation, ApiError> {
    let mut fields = Fields::parse(body)?;
    let model = fields.text("model")?;
    let messages = match fields.take("messages") {
        Some(Value::Array(list)) if !list.is_empty() => messages(list)?,
        Some(_) => {
            return Err(ApiError::invalid("`messages` must be a list with at least one message", Some("messages")));
        }
        None => return Err(ApiError::invalid("`messages` is missing", Some("messages"))),
    };
    let mut variables = match fields.object("chat_template_kwargs")? {
        Some(kwargs) => kwargs.rest(),
        None => Map::new(),
    };
    if let Some(effort) = fields.text("reasoning_effort")? {
        variables.insert("reasoning_effort".into(), json!(effort_of(&effort)?));
    }
    let (mut sampling, seeded) = sampling(&mut fields)?;
    let top = fields.whole("top_logprobs", 0..=20)?;
    sampling.logprobs = match fields.take("logprobs") {
        None | Some(Value::Bool(false)) if top.is_some() => {
            return Err(ApiError::invalid("`top_logprobs` needs `logprobs`: true", Some("top_logprobs")));
        }
        None | Some(Value::Bool(false)) => None,
        Some(Value::Bool(true)) => Some(top.unwrap_or(0) as usize),
        // the older form: a number of alternatives
        Some(Value::Number(n)) if n.as_u64().is_some_and(|n| n <= 20) && top.is_none() => {
            n.as_u64().map(|n| n as usize)
        }
        Some(_) => return Err(ApiError::invalid("`logprobs` must be true or false", Some("logprobs"))),
    };
    let max_tokens = max_tokens(&mut fields)?;
    let stops = stops(&mut fields)?;
    let ignore_end = fields.switch("ignore_eos")?.unwrap_or(false);
    let (stream, include_usage) = streaming(&mut fields)?;
    no_tools(&mut fields)?;
    fields.only("response_format", &[json!({"type": "text"})])?;
    fields.only("modalities", &[json!(["text"])])?;
    fields.only("logit_bias", &[json!({})])?;
    fields.only("n", &[json!(1)])?;
    fields.ignore(HARMLESS);
    fields.done()?;
    let input = Input::Chat(messages, variables);
    Ok(Generation { model, input, sampling, seeded, max_tokens, stops, ignore_end, stream, include_usage, echo: false })
}

/// Reads a /v1/completions request.
pub fn completions(body: &[u8]) -> Result<Generation, ApiError> {
    let mut fields = Fields::parse(body)?;
    let model = fields.text("model")?;
    let expected =
        || ApiError::invalid("`prompt` must be a string, a list with one string, or token ids", Some("prompt"));
    let id = |v: &Value| v.as_u64().and_then(|n| u32::try_from(n).ok()).ok_or_else(expected);
    let input = match fields.take("prompt") {
        None => return Err(ApiError::invalid("`prompt` is missing", Some("prompt"))),
        Some(Value::String(text)) => Input::Text(text),
        Some(Value::Array(list)) => match list.as_slice() {
            [Value::String(text)] => Input::Text(text.clone()),
            [Value::Array(ids)] if !ids.is_empty() => Input::Ids(ids.iter().map(id).collect::<Result<_, _>>()?),
            [Value::Number(_), ..] => Input::Ids(list.iter().map(id).collect::<Result<_, _>>()?),
            _ => return Err(expected()),
        },
        Some(_) => return Err(expected()),
    };
    let (mut sampling, seeded) = sampling(&mut fields)?;
    sampling.logprobs = fields.whole("logprobs", 0..=20)?.map(|n| n as usize);
    let max_tokens = Some(max_tokens(&mut fields)?.unwrap_or(16));
    let stops = stops(&mut fields)?;
    let ignore_end = fields.switch("ignore_eos")?.unwrap_or(false);
    let (stream, include_usage) = streaming(&mut fields)?;
    let echo = fields.switch("echo")?.unwrap_or(false);
    if echo && sampling.logprobs.is_some() {
        return Err(ApiError::unsupported("`echo` together with `logprobs` is not supported", "echo"));
    }
    fields.only("suffix", &[json!("")])?;
    fields.only("best_of", &[json!(1)])?;
    fields.only("logit_bias", &[json!({})])?;
    fields.only("n", &[json!(1)])?;
    fields.ignore(HARMLESS);
    fields.done()?;
    Ok(Generation { model, input, sampling, seeded, max_tokens, stops, ignore_end, stream, include_usage, echo })
}

/// Reads an /api/chat request: Ollama's form and the flat form in one. `None` asks to load the model only.
pub fn lines(body: &[u8]) -> Result<(Option<String>, Option<Generation>), ApiError> {
    let mut fields = Fields::parse(body)?;
    let model = fields.text("model")?;
    let list = match fields.take("messages") {
        None => Vec::new(),
        Some(Value::Array(list)) => list,
        Some(_) => return Err(ApiError::invalid("`messages` must be a list", Some("messages"))),
    };
    let mut variables = Map::new();
    match fields.take("think") {
        None => {}
        Some(Value::Bool(on)) => {
            variables.insert("enable_thinking".into(), on.into());
        }
        Some(Value::String(effort)) => {
            variables.insert("reasoning_effort".into(), json!(effort_of(&effort)?));
        }
        Some(_) => return Err(ApiError::invalid("`think` must be true, false or an effort", Some("think"))),
    }
    if let Some(effort) = fields.text("effort")? {
        variables.insert("reasoning_effort".into(), json!(effort_of(&effort)?));
    }
    // Ollama's form has the sampling settings in `options`, the flat form beside `messages`.
    let (mut sampling, mut seeded) = sampling(&mut fields)?;
    let mut limit = max_tokens(&mut fields)?;
    let mut stop_list = stops(&mut fields)?;
    if let Some(mut options) = fields.object("options")? {
        let (inner, inner_seeded) = sampling_over(&mut options, &sampling)?;
        sampling = inner;
        seeded |= inner_seeded;
        // -1: no limit, -2: to the context's end; both are ours without a number
        if let Some(n) = options.whole("num_predict", -2..=i64::MAX)? {
            limit = usize::try_from(n).ok();
        }
        let more = stops(&mut options)?;
        if !more.is_empty() {
            stop_list = more;
        }
        options.ignore(HARMLESS_OLLAMA);
        options.done()?;
    }
    let top = fields.whole("top_logprobs", 0..=20)?;
    sampling.logprobs = fields.switch("logprobs")?.unwrap_or(false).then(|| top.unwrap_or(0) as usize);
    let stream = fields.switch("stream")?.unwrap_or(true);
    fields.only("format", &[json!("")])?;
    no_tools(&mut fields)?;
    fields.ignore(&["keep_alive"]);
    fields.done()?;
    if list.is_empty() {
        return Ok((model, None));
    }
    let input = Input::Chat(messages(list)?, variables);
    let generation = Generation {
        model: model.clone(),
        input,
        sampling,
        seeded,
        max_tokens: limit,
        stops: stop_list,
        ignore_end: false,
        stream,
        include_usage: true,
        echo: false,
    };
    Ok((model, Some(generation)))
}

fn sampling(fields: &mut Fields) -> Result<(Sampling, bool), ApiError> {
    sampling_over(fields, &Sampling::default())
}

/// Reads sampling settings over those there are; tells whether a seed was among them.
fn sampling_over(fields: &mut Fields, base: &Sampling) -> Result<(Sampling, bool), ApiError> {
    let seed = fields.whole("seed", i64::MIN..=i64::MAX)?;
    let repeat = fields.number("repetition_penalty", 0.01..=10.0)?;
    let window = fields.whole("repeat_last_n", -1..=1 << 20)?;
    let sampling = Sampling {
        temperature: fields.number("temperature", 0.0..=100.0)?.unwrap_or(base.temperature),
        top_p: fields.number("top_p", 0.0..=1.0)?.unwrap_or(base.top_p),
        // -1 means off elsewhere
        top_k: fields.whole("top_k", -1..=1 << 30)?.map_or(base.top_k, |k| u32::try_from(k).unwrap_or(0)),
        min_p: fields.number("min_p", 0.0..=1.0)?.unwrap_or(base.min_p),
        repeat_penalty: fields.number("repeat_penalty", 0.01..=10.0)?.or(repeat).unwrap_or(base.repeat_penalty),
        frequency_penalty: fields.number("frequency_penalty", -2.0..=2.0)?.unwrap_or(base.frequency_penalty),
        presence_penalty: fields.number("presence_penalty", -2.0..=2.0)?.unwrap_or(base.presence_penalty),
        // -1: the whole context
        penalty_window: window.map_or(base.penalty_window, |w| usize::try_from(w).unwrap_or(usize::MAX >> 1)),
        seed: seed.map_or(base.seed, |s| s as u64),
        logprobs: base.logprobs,
    };
    Ok((sampling, seed.is_some()))
}

fn max_tokens(fields: &mut Fields) -> Result<Option<usize>, ApiError> {
    let old = fields.whole("max_tokens", 0..=i64::MAX)?;
    let new = fields.whole("max_completion_tokens", 0..=i64::MAX)?;
    Ok(new.or(old).and_then(|n| usize::try_from(n).ok()))
}

fn stops(fields: &mut Fields) -> Result<Vec<String>, ApiError> {
    let stops = fields.texts("stop", 16)?;
    if stops.iter().any(|s| s.len() > 4096) {
        return Err(ApiError::invalid("a `stop` text is longer than 4096 bytes", Some("stop")));
    }
    Ok(stops)
}

fn streaming(fields: &mut Fields) -> Result<(bool, bool), ApiError> {
    let stream = fields.switch("stream")?.unwrap_or(false);
    let Some(mut options) = fields.object("stream_options")? else { return Ok((stream, false)) };
    if !stream {
        return Err(ApiError::invalid("`stream_options` needs `stream`: true", Some("stream_options")));
    }
    let include_usage = options.switch("include_usage")?.unwrap_or(false);
    options.ignore(&["include_obfuscation"]);
    options.done()?;
    Ok((stream, include_usage))
}

/// Tools may be offered only where they are not to be used.
fn no_tools(fields: &mut Fields) -> Result<(), ApiError> {
    let choice = fields.take("tool_choice");
    let none = choice == Some(json!("none"));
    if let Some(tools) = fields.take("tools")
        && tools != json!([])
        && !none
    {
        return Err(ApiError::unsupported("`tools` are not supported by this model", "tools"));
    }
    if choice.is_some_and(|c| c != json!("none") && c != json!("auto")) {
        return Err(ApiError::unsupported(
            "`tool_choice` needs tools, which this model does not support",
            "tool_choice",
        ));
    }
    fields.ignore(&["parallel_tool_calls"]);
    Ok(())
}

fn effort_of(word: &str) -> Result<&'static str, ApiError> {
    match word {
        "none" | "minimal" | "low" => Ok("low"),
        "medium" | "high" => Ok("high"),
        "xhigh" | "max" => Ok("max"),
        _ => Err(ApiError::invalid(
            "`reasoning_effort` must be none, minimal, low, medium, high, xhigh or max",
            Some("reasoning_effort"),
        )),
    }
}

/// Messages with a role and their text; text parts are joined.
fn messages(list: Vec<Value>) -> Result<Vec<Value>, ApiError> {
    list.into_iter().enumerate().map(|(i, message)| one_message(i, message)).collect()
}

fn one_message(i: usize, message: Value) -> Result<Value, ApiError> {
    let at = |field: &str| format!("messages[{i}]{field}");
    let Value::Object(mut map) = message else {
        return Err(ApiError::invalid(format!("`{}` must be an object", at("")), Some("messages")));
    };
    let role = map.entry("role").or_insert_with(|| json!("user"));
    match role.as_str() {
        Some("system" | "user" | "assistant" | "tool") => {}
        Some("developer") => *role = json!("system"),
        _ => {
            let message = format!("`{}` must be system, developer, user, assistant or tool", at(".role"));
            return Err(ApiError::invalid(message, Some("messages")));
        }
    }
    // B07: null, missing, "" and [] are the same
    let content = match map.shift_remove("content") {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text,
        Some(Value::Array(parts)) => {
            let mut text = String::new();
            for part in parts {
                match (part["type"].as_str(), part["text"].as_str()) {
                    (Some("text" | "input_text" | "output_text"), Some(piece)) => text.push_str(piece),
                    (kind, _) => {
                        let kind = kind.unwrap_or("without type").to_owned();
                        let message = format!("`{}` has a part {kind}: this model takes text only", at(".content"));
                        return Err(ApiError::unsupported(message, "messages"));
                    }
                }
            }
            text
        }
        Some(_) => {
            return Err(ApiError::invalid(
                format!("`{}` must be a string or text parts", at(".content")),
                Some("messages"),
            ));
        }
    };
    map.insert("content".into(), content.into());
    if map.get("images").is_some_and(|v| !v.is_null() && *v != json!([])) {
        return Err(ApiError::unsupported(format!("`{}`: this model takes text only", at(".images")), "messages"));
    }
    if let Some(thinking) = map.shift_remove("thinking") {
        map.entry("reasoning_content").or_insert(thinking);
    }
    map.retain(|_, v| !v.is_null());
    Ok(Value::Object(map))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chat_of(extra: &Value) -> Result<Generation, ApiError> {
        let mut body = json!({"messages": [{"role": "user", "content": "hi"}]});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        chat(body.to_string().as_bytes())
    }

    /// C15: nothing is ignored in silence.
    #[test]
    fn unsupported_fields_are_named() {
        for (extra, param) in [
            (json!({"n": 2}), "n"),
            (json!({"response_format": {"type": "json_object"}}), "response_format"),
            (json!({"response_format": {"type": "json_schema", "json_schema": {}}}), "response_format"),
            (json!({"tools": [{"type": "function"}]}), "tools"),
            (json!({"tool_choice": "required"}), "tool_choice"),
            (json!({"functions": []}), "functions"),
            (json!({"logit_bias": {"5": 1}}), "logit_bias"),
            (json!({"audio": {}}), "audio"),
            (json!({"prediction": {"type": "content"}}), "prediction"),
            (json!({"web_search_options": {}}), "web_search_options"),
            (json!({"verbosity": "low"}), "verbosity"),
            (json!({"temprature": 1}), "temprature"),
            (json!({"top_logprobs": 21, "logprobs": true}), "top_logprobs"),
            (json!({"top_logprobs": 2}), "top_logprobs"),
            (json!({"temperature": "hot"}), "temperature"),
            (json!({"temperature": -1}), "temperature"),
            (json!({"max_tokens": -1}), "max_tokens"),
            (json!({"max_tokens": 1.5}), "max_tokens"),
            (json!({"stop": 3}), "stop"),
            (json!({"stream_options": {"include_usage": true}}), "stream_options"),
            (json!({"stream": true, "stream_options": {"frob": true}}), "stream_options.frob"),
            (json!({"reasoning_effort": "huge"}), "reasoning_effort"),
            (json!({"messages": []}), "messages"),
            (json!({"messages": [{"role": "wizard", "content": ""}]}), "messages"),
            (json!({"messages": [{"content": [{"type": "image_url"}]}]}), "messages"),
        ] {
            let error = chat_of(&extra).map(|_| ()).expect_err(&extra.to_string());
            assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some(param)), "{}", error.message);
        }
    }

    #[test]
    fn harmless_forms_pass() {
        let g = chat_of(&json!({
            "n": 1, "user": "x", "metadata": {}, "store": false, "tools": [], "tool_choice": "none",
            "response_format": {"type": "text"}, "logit_bias": {}, "seed": -3, "stop": null, "audio": null
        }))
        .unwrap();
        assert_eq!((g.sampling.seed, g.seeded), ((-3_i64) as u64, true));
        assert!(chat_of(&json!({"tools": [{"type": "function"}], "tool_choice": "none"})).is_ok());
    }

    /// C17: either name, and both.
    #[test]
    fn the_newer_limit_wins() {
        assert_eq!(chat_of(&json!({"max_tokens": 5})).unwrap().max_tokens, Some(5));
        assert_eq!(chat_of(&json!({"max_completion_tokens": 5})).unwrap().max_tokens, Some(5));
        assert_eq!(chat_of(&json!({"max_completion_tokens": 5, "max_tokens": 9})).unwrap().max_tokens, Some(5));
        assert_eq!(chat_of(&json!({})).unwrap().max_tokens, None);
    }

    /// C19: each form of asking for log-probabilities.
    #[test]
    fn logprobs_in_their_forms() {
        let of = |v| chat_of(&v).unwrap().sampling.logprobs;
        assert_eq!(of(json!({"logprobs": true})), Some(0));
        assert_eq!(of(json!({"logprobs": true, "top_logprobs": 20})), Some(20));
        assert_eq!(of(json!({"logprobs": true, "top_logprobs": 0})), Some(0));
        assert_eq!(of(json!({"logprobs": false})), None);
        assert_eq!(of(json!({"logprobs": 5})), Some(5));
    }

    /// B07: four ways of saying nothing.
    #[test]
    fn empty_content_has_four_forms() {
        let list = json!([{"role": "assistant", "content": null}, {"role": "assistant"},
            {"role": "assistant", "content": ""}, {"role": "assistant", "content": []}]);
        let g = chat_of(&json!({"messages": list})).unwrap();
        let Input::Chat(messages, _) = g.input else { panic!() };
        assert!(messages.iter().all(|m| *m == json!({"role": "assistant", "content": ""})), "{messages:?}");
    }

    #[test]
    fn prompts_are_text_or_ids() {
        let of = |v: Value| completions(json!({"prompt": v}).to_string().as_bytes()).map(|g| g.input);
        assert_eq!(of(json!("a")).unwrap(), Input::Text("a".into()));
        assert_eq!(of(json!(["a"])).unwrap(), Input::Text("a".into()));
        assert_eq!(of(json!([1, 2])).unwrap(), Input::Ids(vec![1, 2]));
        assert_eq!(of(json!([[1, 2]])).unwrap(), Input::Ids(vec![1, 2]));
        for bad in [json!(["a", "b"]), json!([]), json!([[]]), json!([1, "a"]), json!([-1]), json!(7), json!(null)] {
            assert!(of(bad.clone()).is_err(), "{bad}");
        }
        assert_eq!(completions(br#"{"prompt": "a"}"#).unwrap().max_tokens, Some(16));
    }

    #[test]
    fn ollamas_options_are_settings_or_refused() {
        let of = |options: Value| {
            lines(json!({"model": "m", "messages": [{"content": "x"}], "options": options}).to_string().as_bytes())
        };
        let g = of(json!({"num_predict": 7, "temperature": 0.5, "num_ctx": 4096, "repeat_last_n": -1, "stop": ["a"]}));
        let g = g.unwrap().1.unwrap();
        assert_eq!((g.max_tokens, g.sampling.temperature, g.stream), (Some(7), 0.5, true));
        assert_eq!(g.stops, ["a"]);
        assert_eq!(of(json!({"num_predict": -1})).unwrap().1.unwrap().max_tokens, None);
        assert_eq!(of(json!({"frob": 1})).unwrap_err().param.as_deref(), Some("options.frob"));
        assert!(lines(br#"{"model": "m", "messages": []}"#).unwrap().1.is_none());
    }
}
