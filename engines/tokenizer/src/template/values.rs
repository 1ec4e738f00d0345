//! The request as template values, with marks around its strings.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use minijinja::value::{Enumerator, Object, ObjectRepr, Value};
use minijinja::{Error, ErrorKind, State};
use serde_json::Value as Json;

use super::ChatRequest;
use super::marks::Marks;
use crate::message::{Message, ToolCall};

/// Roles as the protocols know them: words of ours, not of a user.
const ROLES: [&str; 9] =
    ["system", "developer", "user", "assistant", "tool", "function", "ipython", "observation", "model"];

/// Which strings of the request are marked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Marking {
    /// Every one.
    All,
    /// Those that could take part in a special token.
    Risky,
}

/// Knows which strings could take part in a special token.
#[derive(Debug, Default)]
pub(crate) struct Risk {
    firsts: HashSet<char>,
    texts: Vec<String>,
}

impl Risk {
    pub(crate) fn new<'a>(specials: impl Iterator<Item = &'a str>) -> Self {
        let mut risk = Self::default();
        // Runs of white space are ordinary text to the tokenizer.
        for text in specials.filter(|text| !text.chars().all(char::is_whitespace)) {
            risk.firsts.extend(text.chars().next());
            risk.texts.push(text.to_string());
        }
        risk
    }

    /// Whether a special token could begin in the string, or go on into it from text before it.
    pub(crate) fn of(&self, string: &str) -> bool {
        if string.chars().any(|c| self.firsts.contains(&c)) {
            return true;
        }
        let Some(first) = string.chars().next() else { return false };
        self.texts.iter().any(|text| {
            text.char_indices()
                .skip(1)
                .any(|(at, c)| c == first && (text[at..].starts_with(string) || string.starts_with(&text[at..])))
        })
    }
}

/// A map whose methods win over its keys, as in Python: `schema.items()` works on a schema with a key `items`.
#[derive(Debug)]
struct Dict {
    pairs: Vec<(Value, Value)>,
    /// Places of the keys; the last of equal ones wins.
    places: HashMap<String, usize>,
}

impl Dict {
    fn value(pairs: Vec<(Value, Value)>) -> Value {
        let places = pairs.iter().zip(0..).filter_map(|((k, _), at)| Some((k.as_str()?.to_string(), at))).collect();
        Value::from_object(Self { pairs, places })
    }
}

impl Object for Dict {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Map
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.places.get(key.as_str()?).map(|&at| self.pairs[at].1.clone())
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.pairs.iter().map(|(key, _)| key.clone()).collect())
    }

    fn call_method(self: &Arc<Self>, _state: &mut State<'_, '_>, name: &str, args: &[Value]) -> Result<Value, Error> {
        match name {
            "items" => Ok(self.pairs.iter().map(|(k, v)| Value::from(vec![k.clone(), v.clone()])).collect()),
            "keys" => Ok(self.pairs.iter().map(|(k, _)| k.clone()).collect()),
            "values" => Ok(self.pairs.iter().map(|(_, v)| v.clone()).collect()),
            "get" => {
                let key = args.first().ok_or_else(|| Error::from(ErrorKind::MissingArgument))?;
                Ok(self.get_value(key).or_else(|| args.get(1).cloned()).unwrap_or(Value::from(())))
            }
            _ => Err(Error::from(ErrorKind::UnknownMethod)),
        }
    }
}

/// The inputs of a template.
pub(crate) struct Values<'a> {
    pub(crate) request: &'a ChatRequest,
    pub(crate) bos: &'a str,
    pub(crate) eos: &'a str,
    pub(crate) risk: &'a Risk,
}

type Mark = Option<(Marks, Marking)>;

impl Values<'_> {
    /// Every string of the request.
    pub(crate) fn strings(&self) -> Vec<&str> {
        let mut all = vec![self.bos, self.eos];
        for message in &self.request.messages {
            all.extend([message.role.as_str(), message.content.0.as_str()]);
            all.extend(
                [&message.name, &message.tool_call_id, &message.reasoning_content]
                    .into_iter()
                    .flatten()
                    .map(String::as_str),
            );
            for call in &message.tool_calls {
                all.push(&call.name);
                all.extend(call.id.as_deref());
                json_strings(&call.arguments, &mut all);
            }
        }
        self.request
            .tools
            .iter()
            .chain(self.request.variables.values())
            .for_each(|value| json_strings(value, &mut all));
        all.extend(self.request.variables.keys().map(String::as_str));
        all
    }

    /// The context of a rendering.
    pub(crate) fn context(&self, mark: Mark) -> Value {
        let request = self.request;
        let mut pairs: Vec<(Value, Value)> = Vec::new();
        for (key, value) in &request.variables {
            // These are mostly words that the template compares: only the risky ones are marked.
            pairs.push((Value::from(key.as_str()), self.json(value, mark.map(|(marks, _)| (marks, Marking::Risky)))));
        }
        let mut set = |key: &str, value: Value| {
            pairs.retain(|(k, _)| k.as_str() != Some(key));
            pairs.push((Value::from(key), value));
        };
        set("messages", request.messages.iter().map(|message| self.message(message, mark)).collect());
        let tools: Value = request.tools.iter().map(|tool| self.json(tool, mark)).collect();
        set("tools", if request.tools.is_empty() { Value::from(()) } else { tools });
        set("add_generation_prompt", Value::from(request.add_generation_prompt));
        set("bos_token", Value::from(self.bos));
        set("eos_token", Value::from(self.eos));
        if let Some(thinking) = request.enable_thinking {
            set("enable_thinking", Value::from(thinking));
        }
        Dict::value(pairs)
    }

    fn string(&self, text: &str, mark: Mark) -> Value {
        match mark {
            Some((marks, marking)) if marking == Marking::All || self.risk.of(text) => Value::from(marks.wrap(text)),
            _ => Value::from(text),
        }
    }

    fn message(&self, message: &Message, mark: Mark) -> Value {
        let role_mark = if ROLES.contains(&message.role.as_str()) { None } else { mark };
        let mut pairs = vec![
            (Value::from("role"), self.string(&message.role, role_mark)),
            (Value::from("content"), self.string(&message.content.0, mark)),
        ];
        let optional = [
            ("name", &message.name),
            ("tool_call_id", &message.tool_call_id),
            ("reasoning_content", &message.reasoning_content),
        ];
        for (key, text) in optional {
            if let Some(text) = text {
                pairs.push((Value::from(key), self.string(text, mark)));
            }
        }
        if !message.tool_calls.is_empty() {
            let calls = message.tool_calls.iter().map(|call| self.tool_call(call, mark)).collect();
            pairs.push((Value::from("tool_calls"), calls));
        }
        Dict::value(pairs)
    }

    fn tool_call(&self, call: &ToolCall, mark: Mark) -> Value {
        let function = Dict::value(vec![
            (Value::from("name"), self.string(&call.name, mark)),
            (Value::from("arguments"), self.json(&call.arguments, mark)),
        ]);
        let id = call.id.as_ref().map(|id| (Value::from("id"), self.string(id, mark)));
        let rest = [(Value::from("type"), Value::from("function")), (Value::from("function"), function)];
        Dict::value(id.into_iter().chain(rest).collect())
    }

    fn json(&self, value: &Json, mark: Mark) -> Value {
        match value {
            Json::Null => Value::from(()),
            Json::Bool(b) => Value::from(*b),
            Json::Number(n) => match (n.as_i64(), n.as_u64()) {
                (Some(n), _) => Value::from(n),
                (None, Some(n)) => Value::from(n),
                _ => Value::from(n.as_f64().unwrap_or(f64::NAN)),
            },
            Json::String(text) => self.string(text, mark),
            Json::Array(items) => items.iter().map(|item| self.json(item, mark)).collect(),
            Json::Object(object) => {
                let pairs = object.iter().map(|(key, value)| (self.key(key, mark), self.json(value, mark))).collect();
                Dict::value(pairs)
            }
        }
    }

    /// Keys are looked up by the template, so an ordinary word stays as it is.
    fn key(&self, key: &str, mark: Mark) -> Value {
        let word = key.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '$'));
        let risky = !word || key.chars().any(|c| self.risk.firsts.contains(&c));
        self.string(key, mark.filter(|_| risky))
    }
}

fn json_strings<'a>(value: &'a Json, all: &mut Vec<&'a str>) {
    match value {
        Json::String(text) => all.push(text),
        Json::Array(items) => items.iter().for_each(|item| json_strings(item, all)),
        Json::Object(object) => object.iter().for_each(|(key, value)| {
            all.push(key);
            json_strings(value, all);
        }),
        _ => {}
    }
}
