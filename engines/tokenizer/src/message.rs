//! The messages of a conversation.

use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

/// What a message says. Null, a missing key, `""` and `[]` are all the empty text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Content(
    /// The text; the parts of a list of text parts are joined by line ends.
    pub String,
);

impl From<&str> for Content {
    fn from(text: &str) -> Self {
        Self(text.to_string())
    }
}

impl From<String> for Content {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl Content {
    /// Reads OpenAI's forms: a string, null, or a list of text parts.
    ///
    /// # Errors
    /// Says which part is not text.
    pub fn from_json(value: &Value) -> Result<Self, String> {
        match value {
            Value::Null => Ok(Self::default()),
            Value::String(text) => Ok(Self(text.clone())),
            Value::Array(parts) => {
                let mut texts = Vec::with_capacity(parts.len());
                for (index, part) in parts.iter().enumerate() {
                    let kind = part.get("type").and_then(Value::as_str);
                    let text = match part {
                        Value::String(text) => Some(text.as_str()),
                        _ if matches!(kind, None | Some("text" | "input_text" | "output_text")) => {
                            part.get("text").and_then(Value::as_str)
                        }
                        _ => None,
                    };
                    texts.push(text.ok_or_else(|| {
                        let kind = kind.unwrap_or("unknown");
                        format!("content[{index}] (type \"{kind}\") is not text: only text parts are supported")
                    })?);
                }
                Ok(Self(texts.join("\n")))
            }
            _ => Err("content must be a string, null or a list of text parts".to_string()),
        }
    }
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::from_json(&Value::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

/// A call of a tool that the assistant made.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ToolCall {
    /// Its id, which the tool's answer repeats.
    pub id: Option<String>,
    /// The function's name.
    pub name: String,
    /// The arguments: an object, or text that is not one.
    pub arguments: Value,
}

impl<'de> Deserialize<'de> for ToolCall {
    /// Reads OpenAI's form (`{"id", "type", "function": {"name", "arguments"}}`) or the flat one. Arguments that are
    /// the JSON text of an object become that object.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let call = Map::<String, Value>::deserialize(deserializer)?;
        let function = call.get("function").and_then(Value::as_object).unwrap_or(&call);
        let name = function.get("name").and_then(Value::as_str);
        let name = name.ok_or_else(|| serde::de::Error::custom("a tool call needs a function name"))?;
        let arguments = match function.get("arguments") {
            None | Some(Value::Null) => Value::Object(Map::new()),
            Some(Value::String(text)) if text.trim().is_empty() => Value::Object(Map::new()),
            Some(Value::String(text)) => serde_json::from_str::<Map<String, Value>>(text)
                .map_or_else(|_| Value::String(text.clone()), Value::Object),
            Some(other) => other.clone(),
        };
        Ok(Self { id: call.get("id").and_then(Value::as_str).map(String::from), name: name.to_string(), arguments })
    }
}

/// A message, as OpenAI's chat requests have it.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct Message {
    /// Who speaks: system, developer, user, assistant, tool.
    pub role: String,
    /// What is said.
    #[serde(default)]
    pub content: Content,
    /// The speaker's name, or the tool's.
    #[serde(default)]
    pub name: Option<String>,
    /// The assistant's calls.
    #[serde(default, deserialize_with = "null_as_default")]
    pub tool_calls: Vec<ToolCall>,
    /// The call this message answers.
    #[serde(default)]
    pub tool_call_id: Option<String>,
    /// The assistant's thinking before the content.
    #[serde(default)]
    pub reasoning_content: Option<String>,
}

fn null_as_default<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<ToolCall>, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

impl Message {
    /// A message with a role and a text.
    pub fn new(role: impl Into<String>, text: impl Into<String>) -> Self {
        Self { role: role.into(), content: Content(text.into()), ..Self::default() }
    }
}
