//! Chat templates: the file's own Jinja, with message contents kept apart from the template's text.
//!
//! **How contents stay apart.** A template is rendered twice: once with the inputs as they are, once with every
//! string of the request (contents, names, ids, tool descriptions, arguments) between two private-use characters that
//! occur in none of the inputs. The string methods and filters that templates use look through these marks and put
//! them back around exactly what came from the request ([`marks`]). When the second rendering without its marks
//! equals the first, its marks say which parts of the text the template wrote and which the request did: these are
//! the [`Segment`]s, and only in the template's own parts does a special token's text become that token. The text is
//! thus always what the template says, character by character.
//!
//! Where a template looks at a string in a way the marks disturb (a comparison, a slice), the two differ; then only
//! the strings are marked that could take part in a special token at all: that contain a character a special token
//! begins with, or could continue one. If even that disturbs the template, the request is refused
//! ([`Error::Entangled`]): never is a doubtful text passed on.

mod json;
mod marks;
mod strings;
mod time;
mod turns;
mod values;

use std::time::SystemTime;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Rest, Value};
use minijinja::{Environment, ErrorKind};
use serde_json::{Map, Value as Json};

use crate::error::Error;
use crate::message::Message;
use crate::tokenizer::Tokenizer;
use marks::{Marked, Marks};
pub use turns::Turns;
use values::{Marking, Risk, Values};

/// A stretch of a rendered prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// The text.
    pub text: String,
    /// Whether special tokens in it are meant: the template wrote it, not the request.
    pub trusted: bool,
}

/// What a template is rendered with.
#[derive(Debug, Clone, Default)]
pub struct ChatRequest {
    /// The conversation.
    pub messages: Vec<Message>,
    /// Tools the model may call, as the request has them.
    pub tools: Vec<Json>,
    /// Whether the assistant's turn is opened at the end.
    pub add_generation_prompt: bool,
    /// Whether the model should think first; `None` leaves it to the template.
    pub enable_thinking: Option<bool>,
    /// Further variables of the template.
    pub variables: Map<String, Json>,
    /// What `strftime_now` calls now; `None`: the present.
    pub now: Option<SystemTime>,
}

/// ChatML, for files without a template.
const CHATML: &str = "{% for message in messages %}\
{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}\
{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/// Steps a template may take, and more for each byte of the request. Text counts a step for 64 bytes.
const FUEL: u64 = 2_000_000;
const FUEL_PER_BYTE: u64 = 4;
/// A longer template is not one.
const MAX_SOURCE: usize = 1 << 20;

const NAME: &str = "chat_template";

/// A chat template, parsed once.
pub struct ChatTemplate {
    env: Environment<'static>,
    source: String,
    bos: String,
    eos: String,
    risk: Risk,
    built_in: bool,
}

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChatTemplate").field("source", &self.source).finish_non_exhaustive()
    }
}

/// A template's own `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

impl ChatTemplate {
    /// The template of the tokenizer's file, or ChatML if it has none.
    ///
    /// # Errors
    /// If the template cannot be parsed.
    pub fn of(tokenizer: &Tokenizer) -> Result<Self, Error> {
        let mut template = Self::new(tokenizer.chat_template().unwrap_or(CHATML), tokenizer)?;
        template.built_in = tokenizer.chat_template().is_none();
        Ok(template)
    }

    /// Another template for this tokenizer.
    ///
    /// # Errors
    /// If the template cannot be parsed.
    pub fn new(source: &str, tokenizer: &Tokenizer) -> Result<Self, Error> {
        if source.len() > MAX_SOURCE {
            return Err(Error::TemplateSyntax(format!("it has {} bytes", source.len())));
        }
        let mut env = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        env.set_syntax(syntax.map_err(|error| Error::TemplateSyntax(error.to_string()))?);
        strings::install(&mut env);
        env.add_function("raise_exception", |message: &Value| {
            let message = json::python_str(message);
            Err::<Value, _>(minijinja::Error::new(ErrorKind::InvalidOperation, "raised").with_source(Raised(message)))
        });
        env.add_template_owned(NAME, plain_generation_tags(source))
            .map_err(|error| Error::TemplateSyntax(describe(&error)))?;
        let token = |id: Option<u32>| id.and_then(|id| tokenizer.token_text(id)).unwrap_or("").to_string();
        Ok(Self {
            env,
            source: source.to_string(),
            bos: token(tokenizer.bos()),
            eos: token(tokenizer.eos()),
            risk: Risk::new(tokenizer.special_texts()),
            built_in: false,
        })
    }

    /// The template's source.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Whether this is the built-in ChatML, the file having no template.
    pub fn is_built_in(&self) -> bool {
        self.built_in
    }

    /// Renders a conversation.
    ///
    /// # Errors
    /// [`Error::Refused`] with the template's own words if it raises an exception; others if it fails or takes too
    /// long.
    pub fn render(&self, request: &ChatRequest) -> Result<Vec<Segment>, Error> {
        let values = Values { request, bos: &self.bos, eos: &self.eos, risk: &self.risk };
        let now = request.now.unwrap_or_else(SystemTime::now);
        let mut bytes = 0;
        let marks = Marks::unused_in(values.strings().into_iter().chain([self.source.as_str()]).inspect(|text| {
            bytes += text.len();
        }));
        let marks = marks.ok_or(Error::Entangled)?;
        let fuel = FUEL.saturating_add(FUEL_PER_BYTE.saturating_mul(bytes as u64));
        let truth = self.run(values.context(None), None, fuel, now)?;
        for marking in [Marking::All, Marking::Risky] {
            let context = values.context(Some((marks, marking)));
            let Ok(text) = self.run(context, Some(marks), fuel.saturating_mul(2), now) else { continue };
            match Marked::split(&text, Some(marks)) {
                Some(marked) if marked.plain == truth => return Ok(marked.segments()),
                _ => {}
            }
        }
        Err(Error::Entangled)
    }

    /// The token ids of a conversation: [`ChatTemplate::render`], then [`Tokenizer::encode_segments`].
    ///
    /// Exactly the template's tokens: a beginning-of-sequence token only where the template writes one (the built-in
    /// ChatML writes none: there it is put in front when the file wants one).
    ///
    /// # Errors
    /// As [`ChatTemplate::render`].
    pub fn encode(&self, tokenizer: &Tokenizer, request: &ChatRequest) -> Result<Vec<u32>, Error> {
        let mut ids = tokenizer.encode_segments(&self.render(request)?);
        if let Some(bos) = tokenizer.bos().filter(|_| self.built_in && tokenizer.adds_bos())
            && ids.first() != Some(&bos)
        {
            ids.insert(0, bos);
        }
        Ok(ids)
    }

    fn run(&self, context: Value, marks: Option<Marks>, fuel: u64, now: SystemTime) -> Result<String, Error> {
        let mut env = self.env.clone();
        env.set_fuel(Some(fuel));
        if let Some(marks) = marks {
            env.add_global(strings::MARKS_GLOBAL, Value::from(String::from_iter([marks.open, marks.close])));
        }
        env.add_function("strftime_now", move |format: &str, _rest: Rest<Value>| time::strftime(now, format));
        let template = env.get_template(NAME).map_err(|error| Error::TemplateSyntax(describe(&error)))?;
        template.render(context).map_err(|error| {
            let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
            while let Some(at) = cause {
                if let Some(Raised(message)) = at.downcast_ref() {
                    return Error::Refused(message.clone());
                }
                if at.downcast_ref::<minijinja::Error>().is_some_and(|e| e.kind() == ErrorKind::OutOfFuel) {
                    return Error::TemplateTooLong;
                }
                cause = at.source();
            }
            Error::TemplateFailed(describe(&error))
        })
    }
}

/// An error in one line.
fn describe(error: &minijinja::Error) -> String {
    let mut text = error.to_string();
    if let Some(at) = text.find(" (in chat_template:") {
        text.truncate(at);
    }
    match error.line() {
        Some(line) => format!("line {line}: {text}"),
        None => text,
    }
}

/// `{% generation %} .. {% endgeneration %}` only marks text for training: an `if true` here.
fn plain_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(open) = rest.find("{%") {
        let (before, tag) = rest.split_at(open + 2);
        out.push_str(before);
        let Some(close) = tag.find("%}") else {
            rest = tag;
            break;
        };
        let inside = &tag[..close];
        let word = inside.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+');
        match word {
            "generation" => out.push_str(&inside.replace("generation", "if true")),
            "endgeneration" => out.push_str(&inside.replace("endgeneration", "endif")),
            _ => out.push_str(inside),
        }
        rest = &tag[close..];
    }
    out.push_str(rest);
    out
}
