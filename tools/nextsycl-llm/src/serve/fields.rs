//! Reading a JSON request field by field, so that nothing is ignored in silence.

use super::error::ApiError;
use serde_json::{Map, Value};
use std::ops::RangeInclusive;

/// The fields of a request object that were not looked at yet. `null` is the same as absent.
pub struct Fields {
    map: Map<String, Value>,
    /// Put before names in messages, for objects inside the request.
    prefix: String,
}

impl Fields {
    /// The fields of a request body.
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        match serde_json::from_slice(body) {
            Ok(Value::Object(map)) => Ok(Self::new(map, "")),
            Ok(_) => Err(ApiError::invalid("the request body must be a JSON object", None)),
            Err(e) => Err(ApiError::invalid(format!("the request body is not JSON: {e}"), None)),
        }
    }

    fn new(map: Map<String, Value>, prefix: &str) -> Self {
        Self { map, prefix: prefix.to_owned() }
    }

    fn name(&self, field: &str) -> String {
        format!("{}{field}", self.prefix)
    }

    fn wrong(&self, field: &str, expected: &str) -> ApiError {
        let name = self.name(field);
        ApiError::invalid(format!("`{name}` must be {expected}"), Some(&name))
    }

    /// Takes a field as it is.
    pub fn take(&mut self, field: &str) -> Option<Value> {
        self.map.shift_remove(field).filter(|v| !v.is_null())
    }

    /// Takes a text.
    pub fn text(&mut self, field: &str) -> Result<Option<String>, ApiError> {
        match self.take(field) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(self.wrong(field, "a string")),
        }
    }

    /// Takes a switch.
    pub fn switch(&mut self, field: &str) -> Result<Option<bool>, ApiError> {
        match self.take(field) {
            None => Ok(None),
            Some(Value::Bool(on)) => Ok(Some(on)),
            Some(_) => Err(self.wrong(field, "true or false")),
        }
    }

    /// Takes a number within bounds.
    pub fn number(&mut self, field: &str, range: RangeInclusive<f64>) -> Result<Option<f32>, ApiError> {
        let Some(value) = self.take(field) else { return Ok(None) };
        match value.as_f64() {
            Some(n) if range.contains(&n) => Ok(Some(n as f32)),
            _ => Err(self.wrong(field, &format!("a number from {} to {}", range.start(), range.end()))),
        }
    }

    /// Takes a whole number within bounds.
    pub fn whole(&mut self, field: &str, range: RangeInclusive<i64>) -> Result<Option<i64>, ApiError> {
        let Some(value) = self.take(field) else { return Ok(None) };
        // Some clients write 5.0 for 5.
        let n =
            value.as_i64().or_else(|| value.as_f64().filter(|f| f.fract() == 0.0 && f.abs() < 9e15).map(|f| f as i64));
        match n {
            Some(n) if range.contains(&n) => Ok(Some(n)),
            _ if *range.end() == i64::MAX && *range.start() > i64::MIN => {
                Err(self.wrong(field, &format!("a whole number of at least {}", range.start())))
            }
            _ if *range.start() == i64::MIN => Err(self.wrong(field, "a whole number")),
            _ => Err(self.wrong(field, &format!("a whole number from {} to {}", range.start(), range.end()))),
        }
    }

    /// Takes an object as fields of their own.
    pub fn object(&mut self, field: &str) -> Result<Option<Fields>, ApiError> {
        match self.take(field) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(Self::new(map, &format!("{}{field}.", self.prefix)))),
            Some(_) => Err(self.wrong(field, "an object")),
        }
    }

    /// Takes one text or a list of texts.
    pub fn texts(&mut self, field: &str, most: usize) -> Result<Vec<String>, ApiError> {
        let expected = format!("a string or a list of at most {most} strings");
        let list = match self.take(field) {
            None => return Ok(Vec::new()),
            Some(Value::String(text)) => return Ok(vec![text]),
            Some(Value::Array(list)) if list.len() <= most => list,
            Some(_) => return Err(self.wrong(field, &expected)),
        };
        list.into_iter()
            .map(|v| match v {
                Value::String(text) => Ok(text),
                _ => Err(self.wrong(field, &expected)),
            })
            .collect()
    }

    /// Drops fields that are accepted without effect.
    pub fn ignore(&mut self, fields: &[&str]) {
        for field in fields {
            self.map.shift_remove(*field);
        }
    }

    /// Refuses a field unless its value is one of those that ask for nothing special.
    pub fn only(&mut self, field: &str, harmless: &[Value]) -> Result<(), ApiError> {
        match self.take(field) {
            Some(value) if !harmless.contains(&value) => {
                let name = self.name(field);
                Err(ApiError::unsupported(format!("`{name}` is not supported with this value"), &name))
            }
            _ => Ok(()),
        }
    }

    /// The fields nobody took.
    pub fn rest(self) -> Map<String, Value> {
        self.map
    }

    /// Refuses fields that nobody took.
    pub fn done(self) -> Result<(), ApiError> {
        match self.map.iter().find(|(_, v)| !v.is_null()) {
            None => Ok(()),
            Some((field, _)) => {
                let name = self.name(field);
                Err(ApiError::unsupported(format!("the field `{name}` is not supported"), &name))
            }
        }
    }
}
