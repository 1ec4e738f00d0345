//! Values as Python writes them: `json.dumps` and `str`.

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};

/// Options of [`dumps`].
#[derive(Debug, Clone)]
pub(crate) struct Style {
    pub(crate) indent: Option<String>,
    pub(crate) item_separator: String,
    pub(crate) key_separator: String,
    pub(crate) ensure_ascii: bool,
    pub(crate) sort_keys: bool,
    /// Characters that are never escaped: the marks.
    pub(crate) exempt: Option<[char; 2]>,
}

impl Style {
    /// Python's defaults, except that other scripts are kept as they are.
    pub(crate) fn new(indent: Option<String>) -> Self {
        let item_separator = if indent.is_some() { "," } else { ", " }.to_string();
        Self {
            indent,
            item_separator,
            key_separator: ": ".to_string(),
            ensure_ascii: false,
            sort_keys: false,
            exempt: None,
        }
    }
}

const MAX_DEPTH: usize = 200;

/// `json.dumps`.
pub(crate) fn dumps(value: &Value, style: &Style) -> Result<String, Error> {
    let mut out = String::new();
    write(&mut out, value, style, 0)?;
    Ok(out)
}

fn write(out: &mut String, value: &Value, style: &Style, depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(Error::new(ErrorKind::InvalidOperation, "tojson: the value is nested too deeply"));
    }
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => number(out, value, false),
        ValueKind::String => quote(out, value.as_str().unwrap_or(""), style),
        ValueKind::Map => {
            let mut keys: Vec<Value> = value.try_iter()?.collect();
            if style.sort_keys {
                keys.sort();
            }
            list(out, style, depth, ('{', '}'), keys.len(), |out, i| {
                let text = keys[i].as_str().map_or_else(|| python_str(&keys[i]), String::from);
                quote(out, &text, style);
                out.push_str(&style.key_separator);
                write(out, &value.get_item(&keys[i])?, style, depth + 1)
            })?;
        }
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Vec<Value> = value.try_iter()?.collect();
            list(out, style, depth, ('[', ']'), items.len(), |out, i| write(out, &items[i], style, depth + 1))?;
        }
        kind => {
            return Err(Error::new(ErrorKind::InvalidOperation, format!("tojson: {kind} is not JSON serializable")));
        }
    }
    Ok(())
}

fn list(
    out: &mut String,
    style: &Style,
    depth: usize,
    (open, close): (char, char),
    n: usize,
    mut item: impl FnMut(&mut String, usize) -> Result<(), Error>,
) -> Result<(), Error> {
    out.push(open);
    let line = |out: &mut String, depth: usize| {
        if let Some(indent) = &style.indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(indent.as_str(), depth));
        }
    };
    for i in 0..n {
        if i > 0 {
            out.push_str(&style.item_separator);
        }
        line(out, depth + 1);
        item(out, i)?;
    }
    if n > 0 {
        line(out, depth);
    }
    out.push(close);
    Ok(())
}

fn quote(out: &mut String, text: &str, style: &Style) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if c < ' ' || (style.ensure_ascii && c > '~' && !style.exempt.is_some_and(|e| e.contains(&c))) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// A number as Python's `repr` (or JSON's names for what is not finite).
fn number(out: &mut String, value: &Value, python: bool) {
    if value.is_integer() {
        out.push_str(&value.to_string());
        return;
    }
    let float = f64::try_from(value.clone()).unwrap_or(f64::NAN);
    if float.is_nan() {
        out.push_str(if python { "nan" } else { "NaN" });
    } else if float.is_infinite() {
        out.push_str(if float < 0.0 { "-" } else { "" });
        out.push_str(if python { "inf" } else { "Infinity" });
    } else {
        out.push_str(&float_repr(float));
    }
}

/// The shortest digits that give the float back, with an exponent where Python writes one.
fn float_repr(float: f64) -> String {
    let scientific = format!("{float:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else { return scientific };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if float != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = format!("{float}");
    if plain.contains('.') { plain } else { format!("{plain}.0") }
}

/// `str(value)`.
pub(crate) fn python_str(value: &Value) -> String {
    match value.kind() {
        ValueKind::String => value.as_str().unwrap_or("").to_string(),
        _ => {
            let mut out = String::new();
            repr(&mut out, value, 0);
            out
        }
    }
}

fn repr(out: &mut String, value: &Value, depth: usize) {
    if depth > MAX_DEPTH {
        out.push_str("...");
        return;
    }
    match value.kind() {
        ValueKind::Undefined => {}
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => number(out, value, true),
        ValueKind::String => {
            let text = value.as_str().unwrap_or("");
            let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
            out.push(quote);
            for c in text.chars() {
                match c {
                    '\\' => out.push_str("\\\\"),
                    '\n' => out.push_str("\\n"),
                    '\r' => out.push_str("\\r"),
                    '\t' => out.push_str("\\t"),
                    c if c == quote => out.extend(['\\', c]),
                    c => out.push(c),
                }
            }
            out.push(quote);
        }
        ValueKind::Map => {
            out.push('{');
            for (i, key) in value.try_iter().into_iter().flatten().enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                repr(out, &key, depth + 1);
                out.push_str(": ");
                repr(out, &value.get_item(&key).unwrap_or_default(), depth + 1);
            }
            out.push('}');
        }
        ValueKind::Seq => {
            out.push('[');
            for (i, item) in value.try_iter().into_iter().flatten().enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                repr(out, &item, depth + 1);
            }
            out.push(']');
        }
        _ => out.push_str(&value.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_as_python_writes_them() {
        // Expected: repr() of Python 3.11.
        let cases = [
            (1.0, "1.0"),
            (-0.0, "-0.0"),
            (0.1, "0.1"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (123456.789, "123456.789"),
        ];
        for (float, expected) in cases {
            assert_eq!(float_repr(float), expected);
        }
    }

    #[test]
    fn strings_as_python_writes_them() {
        let text = Value::from("a\"\\\n\u{1}é🙂\u{7f}");
        // Expected: json.dumps(.., ensure_ascii=False) and with True.
        let mut style = Style::new(None);
        assert_eq!(dumps(&text, &style).expect("a string"), "\"a\\\"\\\\\\n\\u0001é🙂\u{7f}\"");
        style.ensure_ascii = true;
        assert_eq!(dumps(&text, &style).expect("a string"), "\"a\\\"\\\\\\n\\u0001\\u00e9\\ud83d\\ude42\\u007f\"");
    }
}
