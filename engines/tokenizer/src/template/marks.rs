//! Marks around message contents, so that they can be told from the template's own text after rendering.
//!
//! A mark is a pair of private-use characters that occur in none of the inputs; a marked text is `open TEXT close`.
//! Everything a template does to strings through filters and methods goes through [`Marked`], which works on the text
//! without marks and puts them back around exactly the parts that came from contents.

use std::ops::Range;

use super::Segment;

/// The two characters of a mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Marks {
    pub(crate) open: char,
    pub(crate) close: char,
}

impl Marks {
    /// Two private-use characters that none of the texts has.
    pub(crate) fn unused_in<'a>(texts: impl Iterator<Item = &'a str>) -> Option<Self> {
        let mut used = std::collections::HashSet::new();
        for text in texts {
            // Characters of the last two planes begin with these bytes.
            if text.bytes().any(|byte| byte == 0xF3 || byte == 0xF4) {
                used.extend(text.chars().filter(|&c| c >= '\u{F0000}'));
            }
        }
        let mut free =
            ('\u{100000}'..='\u{10FFFD}').rev().chain('\u{F0000}'..='\u{FFFFD}').filter(|c| !used.contains(c));
        Some(Self { open: free.next()?, close: free.next()? })
    }

    /// The text with marks around it.
    pub(crate) fn wrap(&self, text: &str) -> String {
        if text.is_empty() {
            return String::new();
        }
        let mut out = String::with_capacity(text.len() + 8);
        out.push(self.open);
        out.push_str(text);
        out.push(self.close);
        out
    }

    /// Whether the text has marks.
    fn within(&self, text: &str) -> bool {
        text.contains([self.open, self.close])
    }
}

/// A text and the parts of it that came from contents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Marked {
    pub(crate) plain: String,
    /// Ascending, apart.
    parts: Vec<Range<usize>>,
    marks: Option<Marks>,
}

impl Marked {
    /// Takes the marks out of a text. Marks that do not pair up mean that a template cut a text where it is not known
    /// where; then everything counts as content and [`Marked::split`] has failed.
    pub(crate) fn new(text: &str, marks: Option<Marks>) -> Self {
        Self::split(text, marks).unwrap_or_else(|| {
            let plain: String = text.chars().filter(|&c| marks.is_none_or(|m| c != m.open && c != m.close)).collect();
            let parts = Some(0..plain.len()).filter(|part| !part.is_empty()).into_iter().collect();
            Self { plain, parts, marks }
        })
    }

    /// Takes the marks out of a text; `None` if they do not pair up.
    pub(crate) fn split(text: &str, marks: Option<Marks>) -> Option<Self> {
        let Some(m) = marks.filter(|m| m.within(text)) else {
            return Some(Self { plain: text.to_string(), parts: Vec::new(), marks });
        };
        let mut plain = String::with_capacity(text.len());
        let mut parts = Vec::new();
        let mut start = None;
        let mut depth = 0usize;
        for c in text.chars() {
            if c == m.open {
                start = start.or(Some(plain.len()));
                depth += 1;
            } else if c == m.close {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    parts.extend(start.take().map(|start| start..plain.len()));
                }
            } else {
                plain.push(c);
            }
        }
        (depth == 0).then_some(Self { plain, parts, marks })
    }

    /// Whether any of it came from contents.
    pub(crate) fn has_content(&self) -> bool {
        !self.parts.is_empty()
    }

    /// A stretch of the text, marked again.
    pub(crate) fn slice(&self, range: Range<usize>) -> String {
        let (Some(marks), false) = (self.marks, self.parts.is_empty()) else {
            return self.plain[range].to_string();
        };
        let mut out = String::with_capacity(range.len() + 8);
        let mut at = range.start;
        for part in &self.parts {
            let (start, end) = (part.start.max(range.start), part.end.min(range.end));
            if start >= end {
                continue;
            }
            out.push_str(&self.plain[at..start]);
            out.push_str(&marks.wrap(&self.plain[start..end]));
            at = end;
        }
        out.push_str(&self.plain[at.min(range.end)..range.end]);
        out
    }

    /// `text`, marked as a whole if any of this text came from contents.
    pub(crate) fn wrap_like(&self, text: &str) -> String {
        match self.marks {
            Some(marks) if self.has_content() => marks.wrap(text),
            _ => text.to_string(),
        }
    }

    /// The parts in turn: trusted unless they came from contents.
    pub(crate) fn segments(&self) -> Vec<Segment> {
        let mut segments = Vec::new();
        let mut push = |range: Range<usize>, trusted: bool| {
            if !range.is_empty() {
                segments.push(Segment { text: self.plain[range].to_string(), trusted });
            }
        };
        let mut at = 0;
        for part in &self.parts {
            push(at..part.start, true);
            push(part.clone(), false);
            at = part.end;
        }
        push(at..self.plain.len(), true);
        segments
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const M: Marks = Marks { open: '⟦', close: '⟧' };

    #[test]
    fn marks_avoid_what_texts_use() {
        let all: String = ('\u{100000}'..='\u{10FFFD}').skip(1).collect();
        let marks = Marks::unused_in([all.as_str(), "x"].into_iter()).expect("two are free");
        assert_eq!(marks.open, '\u{100000}');
        assert_eq!(marks.close, '\u{F0000}');
    }

    #[test]
    fn slices_keep_what_is_content() {
        let marked = Marked::split("a⟦bcd⟧e⟦f⟧", Some(M)).expect("paired");
        assert_eq!(marked.plain, "abcdef");
        assert_eq!(marked.slice(0..6), "a⟦bcd⟧e⟦f⟧");
        assert_eq!(marked.slice(2..5), "⟦cd⟧e");
        assert_eq!(marked.slice(2..3), "⟦c⟧");
        assert_eq!(marked.slice(4..5), "e");
        assert_eq!(marked.slice(3..3), "");
        let segments = marked.segments();
        let shown: Vec<(&str, bool)> = segments.iter().map(|s| (s.text.as_str(), s.trusted)).collect();
        assert_eq!(shown, [("a", true), ("bcd", false), ("e", true), ("f", false)]);
    }

    #[test]
    fn broken_pairs_are_all_content() {
        for text in ["a⟧b", "a⟦b", "⟦a⟧⟧"] {
            assert_eq!(Marked::split(text, Some(M)), None, "{text}");
            assert!(Marked::new(text, Some(M)).segments().iter().all(|s| !s.trusted), "{text}");
        }
        assert_eq!(Marked::split("⟦a⟦b⟧c⟧d", Some(M)).map(|m| m.slice(0..4)), Some("⟦abc⟧d".to_string()));
    }
}
