//! Reads Qwen's XML tool calls out of an answer as it streams.
//!
//! ```text
//! <tool_call>
//! <function=NAME>
//! <parameter=KEY>
//! VALUE
//! </parameter>
//! </function>
//! </tool_call>
//! ```
//!
//! becomes the name, then pieces of the arguments' JSON, as OpenAI streams them. Several calls may follow one another. A
//! call needs no wrapper if `<function=NAME>` starts a line and NAME is a tool of the request. `<tool_call>` without a
//! function is text. White space around calls is dropped, that inside values is kept but for one newline each side.
//! What is no call is content, and nothing is lost. The joined events do not depend on how the text was cut, and
//! what is held back is bounded. Thinking must have been split off before (`reasoning.rs`).

use std::sync::Arc;

use super::tool_schema::ToolSchemas;
use super::tool_tags::{
    CALL, CALL_END, FUNCTION_END, Input, Match, function, parameter, tag, value_end, wrapped_function,
};
use super::tool_value::{Value, write_string};

/// What the answer brings next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolEvent {
    /// Text that is no call.
    Content(String),
    /// A call begins. Calls are numbered from 0.
    CallStart {
        /// Which call.
        index: usize,
        /// The function's name, which need not be one of the request's tools.
        name: String,
    },
    /// The next piece of a call's arguments; joined, the pieces are the JSON text of an object.
    Arguments {
        /// Which call.
        index: usize,
        /// The piece.
        json: String,
    },
    /// A call is complete.
    CallEnd {
        /// Which call.
        index: usize,
    },
    /// The output was cut inside a call: its arguments are incomplete JSON.
    CallCut {
        /// Which call.
        index: usize,
    },
}

/// Why the output ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The model ended its turn: a call that it left open is closed.
    Stopped,
    /// A limit cut it off: an open call stays incomplete.
    Cut,
}

/// The parser of one answer.
#[derive(Debug)]
pub struct ToolCallParser {
    schemas: Arc<ToolSchemas>,
    state: State,
    /// Text whose meaning the next piece decides: a few hundred bytes at most.
    pub(super) held: String,
    /// White space after the last content, dropped if a call follows.
    spaces: String,
    /// Whether the current line of content is blank so far.
    line_blank: bool,
    /// Whether any content was shown.
    said: bool,
    /// Calls begun.
    calls: usize,
}

#[derive(Debug)]
enum State {
    Content,
    /// Inside a function, between parameters, of which there were so many.
    Body {
        name: String,
        parameters: usize,
    },
    Value {
        name: String,
        parameters: usize,
        value: Value,
    },
    /// After `</function>`.
    AfterFunction,
}

impl ToolCallParser {
    /// A parser at the start of an answer.
    pub fn new(schemas: Arc<ToolSchemas>) -> Self {
        Self {
            schemas,
            state: State::Content,
            held: String::new(),
            spaces: String::new(),
            line_blank: true,
            said: false,
            calls: 0,
        }
    }

    /// How many calls have begun.
    pub fn calls(&self) -> usize {
        self.calls
    }

    /// Takes the next piece of the answer and appends what it brings to `events`.
    pub fn push(&mut self, text: &str, events: &mut Vec<ToolEvent>) {
        self.read(text, Input::Open, events);
    }

    /// Ends the answer.
    pub fn finish(&mut self, ending: Ending, events: &mut Vec<ToolEvent>) {
        self.read("", Input::Ended, events);
        let index = self.calls.saturating_sub(1);
        let mut json = String::new();
        let parameters = match std::mem::replace(&mut self.state, State::Content) {
            State::Content | State::AfterFunction => {
                if self.calls == 0 {
                    append_content(events, &std::mem::take(&mut self.spaces));
                }
                return;
            }
            State::Body { parameters, .. } => parameters,
            State::Value { parameters, value, .. } => {
                value.finish(ending, &mut json);
                parameters
            }
        };
        if ending == Ending::Stopped {
            json.push_str(if parameters == 0 { "{}" } else { "}" });
        }
        append_arguments(events, index, &json);
        events.push(match ending {
            Ending::Stopped => ToolEvent::CallEnd { index },
            Ending::Cut => ToolEvent::CallCut { index },
        });
    }

    fn read(&mut self, text: &str, input: Input, events: &mut Vec<ToolEvent>) {
        let mut buffer = std::mem::take(&mut self.held);
        buffer.push_str(text);
        let mut rest = buffer.as_str();
        while !rest.is_empty() {
            let step = match self.state {
                State::Content => self.read_content(rest, input, events),
                State::Body { .. } => self.read_body(rest, input, events),
                State::Value { .. } => self.read_value(rest, input, events),
                State::AfterFunction => self.read_after_function(rest, input, events),
            };
            match step {
                Some(consumed) => rest = &rest[consumed..],
                None => break,
            }
        }
        self.held.push_str(rest);
    }

    /// Each `read_*` looks at the start of `rest` and returns how much of it is dealt with; `None` waits for more.
    fn read_content(&mut self, rest: &str, input: Input, events: &mut Vec<ToolEvent>) -> Option<usize> {
        if let Some(length) = before_tag(rest) {
            self.content(&rest[..length], events);
            return Some(length);
        }
        let mut found = wrapped_function(rest);
        if found == Match::No && self.line_blank {
            found = match function(rest) {
                Match::Yes(name, _) if !self.schemas.contains(name) => Match::No,
                bare => bare,
            };
        }
        match found {
            Match::Yes(name, length) => {
                self.start(name, events);
                Some(length)
            }
            Match::Partial if input == Input::Open => None,
            _ => {
                self.content("<", events);
                Some(1)
            }
        }
    }

    fn read_body(&mut self, rest: &str, input: Input, events: &mut Vec<ToolEvent>) -> Option<usize> {
        let State::Body { name, parameters } = &mut self.state else { return Some(0) };
        let space = rest.len() - rest.trim_start().len();
        if space > 0 {
            self.spaces.push_str(&rest[..space]);
            return Some(space);
        }
        if let Some(length) = before_tag(rest) {
            self.content(&rest[..length], events);
            return Some(length);
        }
        let key = parameter(rest);
        if let Match::Yes(key, length) = key {
            let mut json = String::from(if *parameters == 0 { "{" } else { "," });
            write_string(key, &mut json);
            json.push(':');
            let value = Value::new(self.schemas.types(name, key), &mut json);
            append_arguments(events, self.calls - 1, &json);
            self.spaces.clear();
            self.state = State::Value { name: std::mem::take(name), parameters: *parameters + 1, value };
            return Some(length);
        }
        let ends = [FUNCTION_END, CALL_END, CALL].map(|end| (end, tag(rest, end)));
        for (end, found) in ends {
            if let Match::Yes((), length) = found {
                append_arguments(events, self.calls - 1, if *parameters == 0 { "{}" } else { "}" });
                events.push(ToolEvent::CallEnd { index: self.calls - 1 });
                self.spaces.clear();
                self.line_blank = true;
                self.state = if end == FUNCTION_END { State::AfterFunction } else { State::Content };
                return Some(if end == CALL { 0 } else { length });
            }
        }
        if input == Input::Open && (key.is_partial() || ends.iter().any(|(_, found)| found.is_partial())) {
            return None;
        }
        self.content("<", events);
        Some(1)
    }

    fn read_value(&mut self, rest: &str, input: Input, events: &mut Vec<ToolEvent>) -> Option<usize> {
        let State::Value { name, parameters, value } = &mut self.state else { return Some(0) };
        let mut json = String::new();
        let consumed = match before_tag(rest) {
            Some(length) => {
                value.push(&rest[..length], &mut json);
                length
            }
            None => match value_end(rest, value.at_line_start(), input) {
                Match::Yes((), length) => {
                    value.end(&mut json);
                    self.state = State::Body { name: std::mem::take(name), parameters: *parameters };
                    length
                }
                Match::Partial if input == Input::Open => return None,
                _ => {
                    value.push("<", &mut json);
                    1
                }
            },
        };
        append_arguments(events, self.calls - 1, &json);
        Some(consumed)
    }

    fn read_after_function(&mut self, rest: &str, input: Input, events: &mut Vec<ToolEvent>) -> Option<usize> {
        let space = rest.len() - rest.trim_start().len();
        if space > 0 {
            self.spaces.push_str(&rest[..space]);
            return Some(space);
        }
        match (tag(rest, CALL_END), function(rest)) {
            (Match::Yes((), length), _) => {
                self.spaces.clear();
                self.state = State::Content;
                return Some(length);
            }
            (_, Match::Yes(name, length)) => {
                self.start(name, events);
                return Some(length);
            }
            (Match::Partial, _) | (_, Match::Partial) if input == Input::Open => return None,
            _ => self.state = State::Content,
        }
        Some(0)
    }

    fn start(&mut self, name: &str, events: &mut Vec<ToolEvent>) {
        self.spaces.clear();
        events.push(ToolEvent::CallStart { index: self.calls, name: name.to_owned() });
        self.calls += 1;
        self.state = State::Body { name: name.to_owned(), parameters: 0 };
    }

    /// Shows `text`, keeping back the white space at its end.
    fn content(&mut self, text: &str, events: &mut Vec<ToolEvent>) {
        let line = text.rsplit('\n').next().unwrap_or(text);
        self.line_blank = (self.line_blank || line.len() < text.len()) && line.trim().is_empty();
        let shown = text.trim_end();
        if !shown.is_empty() {
            // White space between a call and the first content is no content, whichever piece brings it.
            let first = !self.said && self.calls > 0;
            if !first {
                append_content(events, &self.spaces);
            }
            self.spaces.clear();
            append_content(events, if first { shown.trim_start() } else { shown });
            self.said = true;
        }
        self.spaces.push_str(&text[shown.len()..]);
    }
}

/// The length of the text before the next `<`; `None` if there is none.
fn before_tag(text: &str) -> Option<usize> {
    match text.find('<') {
        Some(0) => None,
        Some(at) => Some(at),
        None => Some(text.len()),
    }
}

fn append_content(events: &mut Vec<ToolEvent>, text: &str) {
    match events.last_mut() {
        _ if text.is_empty() => {}
        Some(ToolEvent::Content(last)) => last.push_str(text),
        _ => events.push(ToolEvent::Content(text.to_owned())),
    }
}

fn append_arguments(events: &mut Vec<ToolEvent>, index: usize, piece: &str) {
    match events.last_mut() {
        _ if piece.is_empty() => {}
        Some(ToolEvent::Arguments { index: last, json }) if *last == index => json.push_str(piece),
        _ => events.push(ToolEvent::Arguments { index, json: piece.to_owned() }),
    }
}
