//! Options an engine declares.

use crate::{Error, ErrorKind, Result};
use std::collections::BTreeMap;

/// When an option can be given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// When the model is opened.
    Load,
    /// With a request.
    Request,
    /// Both; a request's value wins.
    Both,
}

impl Moment {
    /// `load`, `request` or `load / request`.
    pub fn words(self) -> &'static str {
        match self {
            Self::Load => "load",
            Self::Request => "request",
            Self::Both => "load / request",
        }
    }
}

/// One option of an engine.
#[derive(Debug, Clone, Copy)]
pub struct OptionSpec {
    /// Name after `--opt-`.
    pub name: &'static str,
    /// Environment variable that sets it, or empty.
    pub env: &'static str,
    /// Form of its value; empty for a switch (`1` or `0`).
    pub value: &'static str,
    /// The values allowed; empty when any text is.
    pub allowed: &'static [&'static str],
    /// One sentence.
    pub help: &'static str,
    /// When it can be given.
    pub moment: Moment,
}

/// Option values, checked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OptionValues(BTreeMap<String, String>);

impl OptionValues {
    /// Checks `given` (name or environment variable, value) against `specs` at one moment.
    pub fn check<'a>(
        specs: &[OptionSpec],
        given: impl IntoIterator<Item = (&'a str, &'a str)>,
        moment: Moment,
    ) -> Result<Self> {
        let mut values = BTreeMap::new();
        for (name, value) in given {
            let Some(spec) = specs.iter().find(|s| s.name == name || (!s.env.is_empty() && s.env == name)) else {
                let known: Vec<_> = specs.iter().map(|s| s.name).collect();
                let hint = if known.is_empty() {
                    "it takes none".to_owned()
                } else {
                    format!("it takes {}", known.join(", "))
                };
                return Err(Error::new(ErrorKind::Option, format!("the engine has no option `{name}`: {hint}")));
            };
            if spec.moment != Moment::Both && spec.moment != moment {
                return Err(Error::new(
                    ErrorKind::Option,
                    format!("option `{}` belongs to the {} only", spec.name, spec.moment.words()),
                ));
            }
            let allowed: &[&str] = if spec.value.is_empty() { &["0", "1"] } else { spec.allowed };
            if !allowed.is_empty() && !allowed.contains(&value) {
                return Err(Error::new(
                    ErrorKind::Option,
                    format!("option `{}` is `{value}`; it takes {}", spec.name, allowed.join(", ")),
                ));
            }
            values.insert(spec.name.to_owned(), value.to_owned());
        }
        Ok(Self(values))
    }

    /// Fills in values from environment variables where none was given; `lookup` reads one.
    pub fn with_environment(
        mut self,
        specs: &[OptionSpec],
        moment: Moment,
        lookup: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self> {
        for spec in specs.iter().filter(|s| !s.env.is_empty() && (s.moment == moment || s.moment == Moment::Both)) {
            if let (false, Some(value)) = (self.0.contains_key(spec.name), lookup(spec.env)) {
                let checked = Self::check(specs, [(spec.name, value.as_str())], moment)?;
                self.0.extend(checked.0);
            }
        }
        Ok(self)
    }

    /// A value by name.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Whether a switch is on.
    pub fn is_on(&self, name: &str) -> bool {
        self.get(name) == Some("1")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPECS: &[OptionSpec] = &[
        OptionSpec {
            name: "kv",
            env: "NS_KV",
            value: "f16|f32",
            allowed: &["f16", "f32"],
            help: "",
            moment: Moment::Load,
        },
        OptionSpec { name: "trace", env: "", value: "", allowed: &[], help: "", moment: Moment::Request },
    ];

    #[test]
    fn unknown_wrong_moment_and_wrong_value_are_named() {
        let err = |given, moment| OptionValues::check(SPECS, [given], moment).unwrap_err().to_string();
        assert_eq!(err(("kvv", "1"), Moment::Load), "the engine has no option `kvv`: it takes kv, trace");
        assert_eq!(err(("trace", "1"), Moment::Load), "option `trace` belongs to the request only");
        assert_eq!(err(("kv", "q8"), Moment::Load), "option `kv` is `q8`; it takes f16, f32");
        assert_eq!(err(("trace", "yes"), Moment::Request), "option `trace` is `yes`; it takes 0, 1");
    }

    #[test]
    fn environment_fills_in_and_is_checked() {
        let base = OptionValues::check(SPECS, [("NS_KV", "f32")], Moment::Load).unwrap();
        let kept = base.with_environment(SPECS, Moment::Load, &|_| Some("f16".into())).unwrap();
        assert_eq!(kept.get("kv"), Some("f32"));
        let filled = OptionValues::default().with_environment(SPECS, Moment::Load, &|_| Some("f16".into())).unwrap();
        assert_eq!(filled.get("kv"), Some("f16"));
        assert!(OptionValues::default().with_environment(SPECS, Moment::Load, &|_| Some("x".into())).is_err());
    }
}
