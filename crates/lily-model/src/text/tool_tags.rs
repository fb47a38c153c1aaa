//! The tags of Qwen's XML tool calls, matched at the start of a text that may still grow.

pub(crate) const CALL: &str = "<tool_call>";
pub(crate) const CALL_END: &str = "</tool_call>";
const FUNCTION: &str = "<function=";
pub(crate) const FUNCTION_END: &str = "</function>";
const PARAMETER: &str = "<parameter=";
const PARAMETER_END: &str = "</parameter>";

/// White space that may stand between two tags. More is text, so that nothing is held back without bound.
const MAX_SPACE: usize = 256;
/// The longest name of a function or parameter, in bytes.
const MAX_NAME: usize = 256;

/// Whether more text may follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Input {
    Open,
    Ended,
}

/// What the start of a text is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Match<T> {
    /// It is the thing looked for, which is so many bytes long.
    Yes(T, usize),
    /// It is the beginning of it, as far as the text goes.
    Partial,
    No,
}

impl<T> Match<T> {
    fn longer(self, by: usize) -> Self {
        match self {
            Match::Yes(value, length) => Match::Yes(value, length + by),
            other => other,
        }
    }

    pub fn is_partial(&self) -> bool {
        matches!(self, Match::Partial)
    }
}

/// `tag` itself.
pub(crate) fn tag(text: &str, tag: &str) -> Match<()> {
    if text.starts_with(tag) {
        Match::Yes((), tag.len())
    } else if tag.starts_with(text) {
        Match::Partial
    } else {
        Match::No
    }
}

/// `<function=NAME>`.
pub(crate) fn function(text: &str) -> Match<&str> {
    named(text, FUNCTION)
}

/// `<parameter=KEY>`.
pub(crate) fn parameter(text: &str) -> Match<&str> {
    named(text, PARAMETER)
}

fn named<'a>(text: &'a str, prefix: &str) -> Match<&'a str> {
    let Some(rest) = text.strip_prefix(prefix) else {
        return if prefix.starts_with(text) { Match::Partial } else { Match::No };
    };
    let end = rest.char_indices().find(|&(at, c)| at > MAX_NAME || c == '>' || c == '<' || c.is_control());
    match end {
        None => Match::Partial,
        Some((at, '>')) if !rest[..at].trim().is_empty() => Match::Yes(rest[..at].trim(), prefix.len() + at + 1),
        Some(_) => Match::No,
    }
}

/// `<tool_call>` and the `<function=NAME>` that makes it a call.
pub(crate) fn wrapped_function(text: &str) -> Match<&str> {
    let Match::Yes((), length) = tag(text, CALL) else {
        return if tag(text, CALL).is_partial() { Match::Partial } else { Match::No };
    };
    match after_space(&text[length..]) {
        Some((space, rest)) => function(rest).longer(length + space),
        None => Match::No,
    }
}

/// The end of a parameter's value: how many bytes to skip. `line_start` says whether the text stands at the start of a
/// line.
///
/// A value may quote the tag itself (an XML file, this format's documentation), so `</parameter>` ends it only before
/// another tag of the call. A missing `</parameter>` is forgiven where the call as a whole is closed.
pub(crate) fn value_end(text: &str, line_start: bool, input: Input) -> Match<()> {
    let next = ["<parameter=", FUNCTION_END, CALL_END, CALL];
    match closes(text, PARAMETER_END, &next, input) {
        Match::No if line_start => match closes(text, FUNCTION_END, &[CALL_END], input) {
            Match::Yes((), _) => Match::Yes((), 0),
            other => other,
        },
        found => found,
    }
}

/// `end`, followed by one of `next` or the end of the input.
fn closes(text: &str, end: &str, next: &[&str], input: Input) -> Match<()> {
    let Match::Yes((), length) = tag(text, end) else {
        return tag(text, end);
    };
    let Some((_, rest)) = after_space(&text[length..]) else {
        return Match::No;
    };
    if rest.is_empty() && input == Input::Ended {
        return Match::Yes((), length);
    }
    let mut partial = false;
    for following in next {
        match tag(rest, following) {
            Match::Yes(..) => return Match::Yes((), length),
            Match::Partial => partial = true,
            Match::No => {}
        }
    }
    if partial { Match::Partial } else { Match::No }
}

/// The length of the white space that `text` starts with, and what follows; `None` if it is too long.
fn after_space(text: &str) -> Option<(usize, &str)> {
    let rest = text.trim_start();
    let space = text.len() - rest.len();
    (space <= MAX_SPACE).then_some((space, rest))
}
