//! Stop strings over any borders between pieces.

/// What a [`StopMatcher`] lets through.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StopOutput {
    /// Text that is certainly before any stop string. Each byte is given once.
    pub text: String,
    /// Index of the stop string that ended the text, once one has.
    pub stopped: Option<usize>,
}

/// Cuts a stream of text exactly before the first stop string.
///
/// First is the one that begins earliest; of those that begin together, the shortest. Text that may yet turn out to
/// begin a stop string is held back, so nothing of a stop string is ever let through.
#[derive(Debug, Clone, Default)]
pub struct StopMatcher {
    /// Stop strings with their index, shortest first.
    stops: Vec<(String, usize)>,
    held: String,
    stopped: Option<usize>,
}

impl StopMatcher {
    /// A matcher of these strings; empty ones match nothing.
    pub fn new<S: AsRef<str>>(stops: &[S]) -> Self {
        let mut stops: Vec<(String, usize)> =
            stops.iter().map(AsRef::as_ref).map(String::from).zip(0..).filter(|(stop, _)| !stop.is_empty()).collect();
        stops.sort_by_key(|(stop, index)| (stop.len(), *index));
        Self { stops, held: String::new(), stopped: None }
    }

    /// Takes text, returns what is certain now. After a stop string everything is dropped.
    pub fn push(&mut self, text: &str) -> StopOutput {
        if self.stopped.is_none() {
            self.held.push_str(text);
        }
        self.take(false)
    }

    /// Ends the text: what was held back is either a stop string after all, or let through.
    pub fn finish(&mut self) -> StopOutput {
        self.take(true)
    }

    /// Whether a stop string was found.
    pub fn stopped(&self) -> Option<usize> {
        self.stopped
    }

    fn take(&mut self, at_end: bool) -> StopOutput {
        if self.stopped.is_some() {
            return StopOutput { text: String::new(), stopped: self.stopped };
        }
        let mut cut = self.held.len();
        for (at, _) in self.held.char_indices() {
            let rest = &self.held[at..];
            if let Some((_, index)) = self.stops.iter().find(|(stop, _)| rest.starts_with(stop.as_str())) {
                self.stopped = Some(*index);
                cut = at;
                break;
            }
            if !at_end && self.stops.iter().any(|(stop, _)| stop.starts_with(rest)) {
                cut = at;
                break;
            }
        }
        let mut text = std::mem::take(&mut self.held);
        let rest = text.split_off(cut);
        if self.stopped.is_none() {
            self.held = rest;
        }
        StopOutput { text, stopped: self.stopped }
    }
}
