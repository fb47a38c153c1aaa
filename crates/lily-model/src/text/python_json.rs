//! JSON text as Python's `json.dumps(value, ensure_ascii=False)` writes it: `", "` and `": "` as separators, keys in
//! order, nothing escaped for HTML, floats in Python's notation.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

/// Writes `value`; with `indent`, one item a line as Python does.
///
/// # Errors
/// What serde_json cannot write: keys that are not strings, values of no JSON type.
pub(crate) fn dumps(value: &impl Serialize, indent: Option<usize>) -> serde_json::Result<String> {
    let mut out = Vec::new();
    match indent {
        None => value.serialize(&mut Serializer::with_formatter(&mut out, Python(Spaced)))?,
        Some(width) => {
            // Indents beyond any readable width would only multiply memory.
            let indent = " ".repeat(width.min(16));
            let pretty = PrettyFormatter::with_indent(indent.as_bytes());
            value.serialize(&mut Serializer::with_formatter(&mut out, Python(pretty)))?;
        }
    }
    // serde_json writes UTF-8 only; lossy conversion never replaces anything and cannot fail.
    Ok(String::from_utf8(out).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned()))
}

/// Layout with a space after `,` and `:`.
struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + Write>(&mut self, w: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { w.write_all(b", ") }
    }
    fn begin_object_key<W: ?Sized + Write>(&mut self, w: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { w.write_all(b", ") }
    }
    fn begin_object_value<W: ?Sized + Write>(&mut self, w: &mut W) -> io::Result<()> {
        w.write_all(b": ")
    }
}

/// The layout of `F` with Python's floats.
struct Python<F>(F);

impl<F: Formatter> Formatter for Python<F> {
    fn write_f64<W: ?Sized + Write>(&mut self, w: &mut W, value: f64) -> io::Result<()> {
        w.write_all(python_float(value).as_bytes())
    }
    fn begin_array<W: ?Sized + Write>(&mut self, w: &mut W) -> io::Result<()> {
        self.0.begin_array(w)
    }
    fn end_array<W: ?Sized + Write>(&mut self, w: &mut W) -> io::Result<()> {
        self.0.end_array(w)
    }
    fn begin_array_value<W: ?Sized + Write>(&mut self, w: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_array_value(w, first)
    }
    fn end_array_value<W: ?Sized + Write>(&mut self, w: &mut W) -> io::Result<()> {
        self.0.end_array_value(w)
    }
    fn begin_object<W: ?Sized + Write>(&mut self, w: &mut W) -> io::Result<()> {
        self.0.begin_object(w)
    }
    fn end_object<W: ?Sized + Write>(&mut self, w: &mut W) -> io::Result<()> {
        self.0.end_object(w)
    }
    fn begin_object_key<W: ?Sized + Write>(&mut self, w: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_object_key(w, first)
    }
    fn begin_object_value<W: ?Sized + Write>(&mut self, w: &mut W) -> io::Result<()> {
        self.0.begin_object_value(w)
    }
    fn end_object_value<W: ?Sized + Write>(&mut self, w: &mut W) -> io::Result<()> {
        self.0.end_object_value(w)
    }
}

/// `repr(float)`: shortest digits, exponent form below 1e-4 and from 1e16 with at least two exponent digits.
fn python_float(value: f64) -> String {
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let plain = format!("{value}");
        if plain.contains('.') { plain } else { plain + ".0" }
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn separators_order_and_html_are_as_in_python() {
        let value = json!({"z": [1, true, null, {"é": "<&>'\u{7f}"}], "a": "\u{1}\n\"\\"});
        assert_eq!(
            dumps(&value, None).unwrap(),
            r#"{"z": [1, true, null, {"é": "<&>'"#.to_owned() + "\u{7f}" + r#""}], "a": "\u0001\n\"\\"}"#
        );
        assert_eq!(dumps(&json!([{}, []]), None).unwrap(), "[{}, []]");
        assert_eq!(dumps(&json!({"a": [1, 2]}), Some(2)).unwrap(), "{\n  \"a\": [\n    1,\n    2\n  ]\n}");
    }

    #[test]
    fn floats_are_as_in_python() {
        let cases = [
            (1.0, "1.0"),
            (0.1, "0.1"),
            (-0.0, "-0.0"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e22, "1.5e+22"),
            (1e-4, "0.0001"),
            (1e-5, "1e-05"),
            (-2.5e-7, "-2.5e-07"),
            (1e300, "1e+300"),
            (123456.789, "123456.789"),
        ];
        for (value, text) in cases {
            assert_eq!(dumps(&value, None).unwrap(), text);
        }
    }
}
