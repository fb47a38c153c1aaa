//! One parameter's value on its way from raw text to JSON.
//!
//! A value that can only be a string is shown while it arrives; others wait until they are complete, because only then is
//! it known whether they parse. Exactly one newline is dropped on each side.

use super::tool_calls::Ending;
use super::tool_schema::Types;

/// A string that may also be null is shown once it is longer than this.
const NULL_WAIT: usize = 64;

#[derive(Debug)]
pub(crate) struct Value {
    types: Types,
    /// Whether the opening quote was written and the value is a string.
    streaming: bool,
    /// The text that is not shown yet, where `streaming` is false.
    raw: String,
    /// Whether the first character was seen.
    started: bool,
    /// A newline that is dropped if the value ends here.
    newline: bool,
    line_start: bool,
}

impl Value {
    /// The start of a value of one of `types`; writes to `json` what is certain.
    pub fn new(types: Types, json: &mut String) -> Self {
        let streaming = types == Types::STRING;
        if streaming {
            json.push('"');
        }
        Self { types, streaming, raw: String::new(), started: false, newline: false, line_start: true }
    }

    /// Whether the text so far ends at the start of a line.
    pub fn at_line_start(&self) -> bool {
        self.line_start
    }

    /// Takes the next text of the value, which is not empty.
    pub fn push(&mut self, text: &str, json: &mut String) {
        self.line_start = text.ends_with('\n');
        let text = if self.started { text } else { text.strip_prefix('\n').unwrap_or(text) };
        self.started = true;
        if text.is_empty() {
            return;
        }
        if std::mem::take(&mut self.newline) {
            self.show("\n", json);
        }
        let shown = text.strip_suffix('\n');
        self.newline = shown.is_some();
        self.show(shown.unwrap_or(text), json);
    }

    fn show(&mut self, text: &str, json: &mut String) {
        if self.streaming {
            escape(text, json);
            return;
        }
        self.raw.push_str(text);
        let may_be_null = self.raw.len() <= NULL_WAIT && "null".starts_with(self.raw.trim());
        if self.types.within(Types::STRING_OR_NULL) && Types::STRING.within(self.types) && !may_be_null {
            self.streaming = true;
            json.push('"');
            escape(&std::mem::take(&mut self.raw), json);
        }
    }

    /// Ends a complete value.
    pub fn end(&mut self, json: &mut String) {
        match self.types.json(&self.raw) {
            _ if self.streaming => json.push('"'),
            Some(value) => json.push_str(value),
            None => write_string(&self.raw, json),
        }
    }

    /// Ends a value that the output broke off in.
    pub fn finish(mut self, ending: Ending, json: &mut String) {
        if ending == Ending::Stopped {
            return self.end(json);
        }
        if self.newline {
            self.show("\n", json);
        }
        match self.types.json(&self.raw) {
            Some(value) => json.push_str(value),
            None if self.raw.starts_with(['{', '[']) => json.push_str(&self.raw),
            None if self.streaming || self.raw.is_empty() => {}
            None => {
                json.push('"');
                escape(&self.raw, json);
            }
        }
    }
}

/// Writes `text` as a JSON string.
pub(crate) fn write_string(text: &str, json: &mut String) {
    json.push('"');
    escape(text, json);
    json.push('"');
}

/// Writes the characters of a JSON string, without its quotes.
fn escape(text: &str, json: &mut String) {
    use std::fmt::Write as _;
    for c in text.chars() {
        match c {
            '"' => json.push_str("\\\""),
            '\\' => json.push_str("\\\\"),
            '\n' => json.push_str("\\n"),
            '\r' => json.push_str("\\r"),
            '\t' => json.push_str("\\t"),
            // Writing to a string cannot fail.
            '\0'..='\u{1f}' => drop(write!(json, "\\u{:04x}", u32::from(c))),
            _ => json.push(c),
        }
    }
}
