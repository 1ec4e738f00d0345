//! Python's string methods and Jinja's string filters, which keep marks on what came from contents.

use std::ops::Range;

use minijinja::value::{Kwargs, Rest, StringInput, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State};
use minijinja_contrib::pycompat;

use super::json::{self, Style};
use super::marks::{Marked, Marks};

/// The global that holds the two characters of the marks in use.
pub(crate) const MARKS_GLOBAL: &str = "__marks__";

/// The marks in use.
fn marks(state: &State<'_, '_>) -> Option<Marks> {
    let global = state.lookup(MARKS_GLOBAL)?;
    let mut chars = global.as_str()?.chars();
    Some(Marks { open: chars.next()?, close: chars.next()? })
}

fn marked(state: &State<'_, '_>, text: &str) -> Marked {
    Marked::new(text, marks(state))
}

/// A string argument without marks.
fn plain(state: &State<'_, '_>, value: &Value) -> Value {
    match value.as_str() {
        Some(text) => Value::from(marked(state, text).plain),
        None => value.clone(),
    }
}

fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// The stretch left after stripping white space or the given characters.
fn strip(text: &str, chars: Option<&str>, left: bool, right: bool) -> Range<usize> {
    let drop = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
    let start = if left { text.len() - text.trim_start_matches(drop).len() } else { 0 };
    let end = if right { start + text[start..].trim_end_matches(drop).len() } else { text.len() };
    start..end
}

/// The stretches between separators (or runs of white space).
fn split(text: &str, separator: Option<&str>, limit: Option<usize>, from_right: bool) -> Vec<Range<usize>> {
    let mut pieces = Vec::new();
    let limit = limit.unwrap_or(usize::MAX);
    match separator {
        Some(separator) if from_right => {
            let mut end = text.len();
            while pieces.len() < limit {
                let Some(at) = text[..end].rfind(separator) else { break };
                pieces.push(at + separator.len()..end);
                end = at;
            }
            pieces.push(0..end);
            pieces.reverse();
        }
        Some(separator) => {
            let mut start = 0;
            while pieces.len() < limit {
                let Some(at) = text[start..].find(separator) else { break };
                pieces.push(start..start + at);
                start += at + separator.len();
            }
            pieces.push(start..text.len());
        }
        None if from_right => {
            let mut rest = strip(text, None, true, true);
            while !rest.is_empty() {
                let cut = if pieces.len() < limit { text[rest.clone()].rfind(is_space) } else { None };
                let start = cut.map_or(rest.start, |at| {
                    let at = rest.start + at;
                    at + text[at..].chars().next().map_or(1, char::len_utf8)
                });
                pieces.push(start..rest.end);
                rest = rest.start..rest.start + strip(&text[rest.start..start], None, false, true).end;
            }
            pieces.reverse();
        }
        None => {
            let mut rest = strip(text, None, true, false);
            while !rest.is_empty() {
                let cut = if pieces.len() < limit { text[rest.clone()].find(is_space) } else { None };
                let end = cut.map_or(rest.end, |at| rest.start + at);
                pieces.push(rest.start..end);
                rest = end + strip(&text[end..], None, true, false).start..text.len();
            }
        }
    }
    pieces
}

fn lines(text: &str, keep_ends: bool) -> Vec<Range<usize>> {
    let mut pieces = Vec::new();
    let mut start = 0;
    while start < text.len() {
        let end = text[start..].find(['\n', '\r']).map_or(text.len(), |at| start + at);
        let width = if text[end..].starts_with("\r\n") { 2 } else { usize::from(end < text.len()) };
        pieces.push(start..if keep_ends { end + width } else { end });
        start = end + width;
    }
    pieces
}

fn replace(state: &State<'_, '_>, text: &Marked, old: &str, new: &str, limit: Option<usize>) -> Result<String, Error> {
    let mut out = String::new();
    let mut done = 0;
    for (at, found) in text.plain.match_indices(old).take(limit.unwrap_or(usize::MAX)) {
        if !new.is_empty() {
            state.consume_fuel(1 + new.len() as u64 / 64)?;
        }
        out.push_str(&text.slice(done..at));
        out.push_str(new);
        done = at + found.len();
    }
    out.push_str(&text.slice(done..text.plain.len()));
    Ok(out)
}

fn list(text: &Marked, pieces: Vec<Range<usize>>) -> Value {
    pieces.into_iter().map(|piece| Value::from(text.slice(piece))).collect()
}

fn separator(value: Option<&Value>, state: &State<'_, '_>) -> Result<Option<String>, Error> {
    match value.filter(|value| !value.is_none() && !value.is_undefined()) {
        None => Ok(None),
        Some(value) => match value.as_str().map(|text| marked(state, text).plain) {
            Some(text) if !text.is_empty() => Ok(Some(text)),
            _ => Err(Error::new(ErrorKind::InvalidOperation, "a separator must be a string that is not empty")),
        },
    }
}

fn limit(value: Option<&Value>) -> Option<usize> {
    value.and_then(Value::as_i64).and_then(|n| usize::try_from(n).ok())
}

/// Methods of strings, lists and maps as Python has them.
pub(crate) fn method(state: &mut State<'_, '_>, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    let Some(text) = value.as_str() else {
        return pycompat::unknown_method_callback(state, value, name, args);
    };
    if matches!(name, "join" | "format") {
        return pycompat::unknown_method_callback(state, value, name, args); // these only put texts together
    }
    let text = marked(state, text);
    let (positional, options) = match args.split_last() {
        Some((last, rest)) if last.is_kwargs() => (rest, Some(last)),
        _ => (args, None),
    };
    let argument = |index: usize, option: &str| -> Option<Value> {
        let named = || options.and_then(|options| options.get_attr(option).ok()).filter(|v| !v.is_undefined());
        positional.get(index).cloned().or_else(named)
    };
    match name {
        "strip" | "lstrip" | "rstrip" => {
            let chars = argument(0, "chars").filter(|v| !v.is_none()).map(|chars| plain(state, &chars).to_string());
            let range = strip(&text.plain, chars.as_deref(), name != "rstrip", name != "lstrip");
            Ok(Value::from(text.slice(range)))
        }
        "split" | "rsplit" => {
            let separator = separator(argument(0, "sep").as_ref(), state)?;
            let limit = limit(argument(1, "maxsplit").as_ref());
            Ok(list(&text, split(&text.plain, separator.as_deref(), limit, name == "rsplit")))
        }
        "splitlines" => {
            let keep = argument(0, "keepends").is_some_and(|keep| keep.is_true());
            Ok(list(&text, lines(&text.plain, keep)))
        }
        "partition" | "rpartition" => {
            let between = separator(argument(0, "sep").as_ref(), state)?.unwrap_or_default();
            let at = if name == "partition" { text.plain.find(&between) } else { text.plain.rfind(&between) };
            let n = text.plain.len();
            Ok(match (at, name) {
                (Some(at), _) => list(&text, vec![0..at, at..at + between.len(), at + between.len()..n]),
                (None, "partition") => list(&text, vec![0..n, n..n, n..n]),
                (None, _) => list(&text, vec![0..0, 0..0, 0..n]),
            })
        }
        "removeprefix" | "removesuffix" => {
            let cut = argument(0, "").map(|cut| plain(state, &cut).to_string()).unwrap_or_default();
            let n = text.plain.len();
            let range = match name {
                "removeprefix" if text.plain.starts_with(&cut) => cut.len()..n,
                "removesuffix" if text.plain.ends_with(&cut) => 0..n - cut.len(),
                _ => 0..n,
            };
            Ok(Value::from(text.slice(range)))
        }
        "replace" => {
            let (Some(old), Some(new)) = (positional.first(), positional.get(1)) else {
                return Err(Error::from(ErrorKind::MissingArgument));
            };
            let old = plain(state, old).to_string();
            let new = new.to_string();
            Ok(Value::from(replace(state, &text, &old, &new, limit(argument(2, "count").as_ref()))?))
        }
        _ => {
            let args: Vec<Value> = args.iter().map(|arg| plain_deep(state, arg)).collect();
            let result = pycompat::unknown_method_callback(state, &Value::from(text.plain.as_str()), name, &args)?;
            Ok(match result.as_str() {
                Some(changed) => Value::from(text.wrap_like(changed)),
                None => result,
            })
        }
    }
}

/// A string or a list of strings without marks.
fn plain_deep(state: &State<'_, '_>, value: &Value) -> Value {
    match value.kind() {
        ValueKind::Seq if !value.is_kwargs() => match value.try_iter() {
            Ok(items) => items.map(|item| plain(state, &item)).collect(),
            Err(_) => value.clone(),
        },
        _ => plain(state, value),
    }
}

/// Puts the filters and tests that look into strings in place of Jinja's.
pub(crate) fn install(env: &mut Environment<'_>) {
    env.set_unknown_method_callback(method);
    env.set_formatter(|out, _state, value| {
        if value.is_undefined() {
            return Ok(());
        }
        let written = match value.as_str() {
            Some(text) => out.write_str(text),
            None => out.write_str(&json::python_str(value)),
        };
        written.map_err(|_| Error::from(ErrorKind::WriteFailure))
    });
    env.add_filter("string", |value: &Value| json::python_str(value));
    env.add_filter("safe", |value: Value| value);
    env.add_filter("trim", |state: &State<'_, '_>, text: StringInput<'_>, chars: Option<String>| {
        let text = marked(state, text.as_str());
        let range = strip(&text.plain, chars.as_deref(), true, true);
        text.slice(range)
    });
    for name in ["length", "count"] {
        env.add_filter(name, |state: &State<'_, '_>, value: &Value| match value.as_str() {
            Some(text) => Ok(marked(state, text).plain.chars().count()),
            None => minijinja::filters::length(value),
        });
    }
    env.add_filter("replace", |state: &State<'_, '_>, text: StringInput<'_>, old: &Value, new: &Value| {
        let old = plain(state, old).to_string();
        replace(state, &marked(state, text.as_str()), &old, &new.to_string(), None)
    });
    env.add_filter("split", |state: &State<'_, '_>, text: StringInput<'_>, by: Option<Value>, max: Option<i64>| {
        let text = marked(state, text.as_str());
        let by = separator(by.as_ref(), state)?;
        let pieces = split(&text.plain, by.as_deref(), max.and_then(|n| usize::try_from(n).ok()), false);
        Ok::<_, Error>(list(&text, pieces))
    });
    env.add_filter("lines", |state: &State<'_, '_>, text: StringInput<'_>| {
        let text = marked(state, text.as_str());
        let pieces = lines(&text.plain, false);
        list(&text, pieces)
    });
    for name in ["upper", "lower", "title", "capitalize"] {
        env.add_filter(name, move |state: &mut State<'_, '_>, text: StringInput<'_>| {
            method(state, &Value::from(text.as_str()), name, &[])
        });
    }
    for (name, at_end) in [("first", false), ("last", true)] {
        env.add_filter(name, move |state: &State<'_, '_>, value: &Value| match value.as_str() {
            Some(text) => {
                let text = marked(state, text);
                let mut chars = text.plain.char_indices();
                let found = if at_end { chars.next_back() } else { chars.next() };
                Ok(found.map_or(Value::UNDEFINED, |(at, c)| Value::from(text.slice(at..at + c.len_utf8()))))
            }
            None if at_end => minijinja::filters::last(value.clone()),
            None => minijinja::filters::first(value),
        });
    }
    env.add_filter("tojson", tojson);
    // As in Python: strings and what is undefined can be iterated, none cannot.
    env.add_test("iterable", |value: &Value| {
        matches!(
            value.kind(),
            ValueKind::Undefined | ValueKind::String | ValueKind::Seq | ValueKind::Iterable | ValueKind::Map
        )
    });
    env.add_test("sequence", |value: &Value| {
        matches!(value.kind(), ValueKind::Undefined | ValueKind::String | ValueKind::Seq | ValueKind::Map)
    });
    for (name, at_end) in [("startingwith", false), ("endingwith", true)] {
        env.add_test(name, move |state: &State<'_, '_>, text: &str, what: &str| {
            let (text, what) = (marked(state, text).plain, marked(state, what).plain);
            if at_end { text.ends_with(&what) } else { text.starts_with(&what) }
        });
    }
}

#[expect(clippy::needless_pass_by_value, reason = "the form of a filter")]
fn tojson(state: &State<'_, '_>, value: &Value, positional: Rest<Value>, options: Kwargs) -> Result<Value, Error> {
    let indent = options.get::<Option<Value>>("indent")?.or_else(|| positional.first().cloned());
    let indent = match indent.filter(|indent| !indent.is_none()) {
        None => None,
        Some(indent) => match (indent.as_str(), indent.as_usize()) {
            (Some(text), _) => Some(text.to_string()),
            (None, Some(n)) if n <= 64 => Some(" ".repeat(n)),
            _ => return Err(Error::new(ErrorKind::InvalidOperation, "tojson: indent must be a small number")),
        },
    };
    let mut style = Style::new(indent);
    style.ensure_ascii = options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    style.sort_keys = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    if let Some([item, key]) = options.get::<Option<Vec<String>>>("separators")?.as_deref() {
        style.item_separator.clone_from(item);
        style.key_separator.clone_from(key);
    }
    options.assert_all_used()?;
    // Marks stay inside the quotes; JSON's own signs are the template's text.
    style.exempt = marks(state).map(|marks| [marks.open, marks.close]);
    let text = json::dumps(value, &style)?;
    state.consume_fuel(text.len() as u64 / 64)?;
    Ok(Value::from(text))
}
