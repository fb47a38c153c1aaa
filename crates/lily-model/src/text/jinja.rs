//! The Jinja dialect that chat templates of the Hugging Face world are written in.
//!
//! Python's string methods, `tojson` as `json.dumps(ensure_ascii=False)`, `raise_exception`, `strip` with Python's
//! idea of white space. Methods that cut or compare strings see through the marks of `marks.rs`, so a template
//! behaves exactly as on unmarked text. Knows nothing about messages or any particular template.

use std::fmt;

use minijinja::value::{Kwargs, Rest, from_args};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::marks::{MARK, Unmarked, plain};
use super::python_json;

/// What a template passed to `raise_exception`; found in the source chain of the render error.
#[derive(Debug)]
pub(crate) struct Raised(pub String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

/// An environment with the settings of transformers' `apply_chat_template` and no template in it.
/// Instructions of one rendering: a template that loops on and on fails after some seconds. A published template needs about
/// a hundred for a message.
const MAX_INSTRUCTIONS: u64 = 200_000_000;

pub(crate) fn environment() -> Environment<'static> {
    let mut env = Environment::new();
    env.set_fuel(Some(MAX_INSTRUCTIONS));
    env.set_trim_blocks(true);
    env.set_lstrip_blocks(true);
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_unknown_method_callback(method);
    env.add_filter("tojson", to_json);
    env.add_filter("trim", trim);
    env.add_filter("safe", |value: Value| value);
    env.add_function("raise_exception", raise);
    env
}

fn raise(message: &str) -> Result<Value, Error> {
    let message = plain(message).into_owned();
    Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
}

fn to_json(value: &Value, indent: Option<usize>, kwargs: Kwargs) -> Result<String, Error> {
    let indent = match indent {
        Some(indent) => Some(indent),
        None => kwargs.get("indent")?,
    };
    if kwargs.get::<Option<bool>>("ensure_ascii")? == Some(true) {
        return Err(Error::new(ErrorKind::InvalidOperation, "tojson(ensure_ascii=true) is not supported"));
    }
    kwargs.assert_all_used()?;
    python_json::dumps(value, indent)
        .map_err(|e| Error::new(ErrorKind::InvalidOperation, "value cannot be written as JSON").with_source(e))
}

fn trim(value: &Value, chars: Option<&str>) -> Value {
    match value.as_str() {
        Some(text) => strip(text, chars, Side::Both),
        None => strip(&value.to_string(), chars, Side::Both),
    }
}

fn method(state: &State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    let Some(text) = value.as_str() else {
        return unknown_method_callback(state, value, name, args);
    };
    let side = match name {
        "strip" => Side::Both,
        "lstrip" => Side::Left,
        "rstrip" => Side::Right,
        "split" if text.contains(MARK) => return split(state, value, text, args),
        "startswith" | "endswith" | "find" | "rfind" | "count" => {
            let text = Value::from(plain(text).into_owned());
            let args: Vec<Value> = args.iter().map(|a| unmark_argument(a.clone())).collect();
            return unknown_method_callback(state, &text, name, &args);
        }
        _ => return unknown_method_callback(state, value, name, args),
    };
    let (chars,): (Option<&str>,) = from_args(args)?;
    Ok(strip(text, chars, side))
}

fn unmark_argument(argument: Value) -> Value {
    match argument.as_str() {
        Some(text) if text.contains(MARK) => Value::from(plain(text).into_owned()),
        _ => argument,
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Side {
    Left,
    Right,
    Both,
}

/// `str.isspace` of Python: Unicode white space and the four information separators.
fn is_python_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

fn strip(text: &str, chars: Option<&str>, side: Side) -> Value {
    let chars = chars.map(plain);
    let cut = |c: char| match &chars {
        Some(set) => set.contains(c),
        None => is_python_space(c),
    };
    let range = |text: &str| {
        let start = if side == Side::Right { 0 } else { text.len() - text.trim_start_matches(cut).len() };
        let end = if side == Side::Left { text.len() } else { text.trim_end_matches(cut).len() };
        start..end.max(start)
    };
    if text.contains(MARK) {
        let unmarked = Unmarked::of(text);
        Value::from(unmarked.slice(range(&unmarked.plain)))
    } else {
        Value::from(&text[range(text)])
    }
}

fn split(state: &State, value: &Value, text: &str, args: &[Value]) -> Result<Value, Error> {
    let (separator, limit, Rest(extra)): (Option<&str>, Option<i64>, Rest<Value>) = from_args(args)?;
    let Some(separator) = separator else {
        return unknown_method_callback(state, value, "split", args);
    };
    if !extra.is_empty() || separator.is_empty() {
        return Err(Error::new(ErrorKind::InvalidOperation, "split takes a separator that is not empty and a limit"));
    }
    let separator = plain(separator);
    let limit = limit.and_then(|n| usize::try_from(n).ok()).map_or(usize::MAX, |n| n.saturating_add(1));
    let unmarked = Unmarked::of(text);
    let mut start = 0;
    let pieces = unmarked.plain.splitn(limit, &*separator).map(|piece| {
        let range = start..start + piece.len();
        start = range.end + separator.len();
        Value::from(unmarked.slice(range))
    });
    Ok(pieces.collect())
}

#[cfg(test)]
mod tests {
    use super::super::marks::{ControlLeads, mark};
    use super::*;
    use minijinja::context;
    use proptest::prelude::*;

    fn render(source: &str, text: &str) -> String {
        environment().render_str(source, context! { text }).unwrap_or_else(|e| panic!("{source}: {e}"))
    }

    #[test]
    fn strip_follows_python_white_space() {
        assert_eq!(render("[{{ text | trim }}]", "\u{1c}\u{a0} x \u{85}\u{1f}"), "[x]");
        assert_eq!(render("[{{ text.lstrip('\\n') }}]", "\n\n x\n"), "[ x\n]");
        assert_eq!(render("[{{ text.rstrip('\\n') }}]", "\n x\n\n"), "[\n x]");
    }

    #[test]
    fn raise_exception_carries_its_message_as_the_source() {
        let error = environment().render_str("{{ raise_exception('no') }}", ()).unwrap_err();
        let source = std::error::Error::source(&error).and_then(|s| s.downcast_ref::<Raised>());
        assert_eq!(source.map(|r| r.0.as_str()), Some("no"));
    }

    proptest! {
        #[test]
        fn marked_text_behaves_as_unmarked_text(
            text in "(<a>|</a>|<|a|\n| |\u{FDD0}|\u{FDD1}|é){0,16}",
            operation in prop::sample::select(vec![
                "text.split('</a>')[0]", "text.split('</a>')[-1]", "text.split('</a>', 1)[-1]", "text.split('a>')[-1]",
                "text | trim", "text.strip('<>a\\n')", "text.lstrip('\\n')", "text.rstrip('\\n')", "text.split()[0]",
                "text.startswith('<a>')", "text.endswith('</a>')", "text.find('a>')", "text.count('<')", "'<a>' in text",
                "text.split('</a>')[0].rstrip('\\n').split('<a>')[-1].lstrip('\\n')", "text | tojson",
            ]),
        ) {
            let source = format!("{{{{ {operation} }}}}");
            let leads = ControlLeads::of(["<a>", "</a>"]);
            let marked = render(&source, &mark(&text, &leads));
            // On the unmarked side the noncharacters are ordinary text; keep them away from mark handling.
            let reference = render(&source, &text.replace('\u{FDD0}', "\u{E000}")).replace('\u{E000}', "\u{FDD0}");
            prop_assert_eq!(Unmarked::of(&marked).plain, reference);
        }
    }
}
