//! What a compiler message refers to: Metal gives lines of one text that was put together from parts.

use crate::source::LibrarySource;

/// How Metal's compiler calls a source given as text.
const TEXT: &str = "program_source:";

/// The part and the line in it (from 1) that hold line `line` (from 1) of [`LibrarySource::text`].
pub fn place(source: &LibrarySource, line: usize) -> Option<(&'static str, usize)> {
    let mut left = line.checked_sub(1)?;
    for (name, text) in &source.parts {
        let lines = text.matches('\n').count() + 1;
        if left < lines {
            return Some((name, left + 1));
        }
        left -= lines;
    }
    None
}

/// A message with `program_source:LINE` replaced by the part and its line.
pub fn with_places(source: &LibrarySource, message: &str) -> String {
    let mut pieces = message.split(TEXT);
    let mut result = pieces.next().unwrap_or("").to_string();
    for piece in pieces {
        let digits = piece.len() - piece.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        match piece[..digits].parse().ok().and_then(|line| place(source, line)) {
            Some((name, line)) => result.push_str(&format!("{name}:{line}{}", &piece[digits..])),
            None => result.push_str(&format!("{TEXT}{piece}")),
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source() -> LibrarySource {
        let parts = vec![("constants", "one\ntwo\n".to_string()), ("gemm.metal", "three\nfour".to_string())];
        LibrarySource { parts, metal_version: 320 }
    }

    #[test]
    fn every_line_of_the_text_is_found_in_its_part() {
        let source = source();
        for (i, line) in source.text().lines().enumerate().filter(|(_, line)| !line.is_empty()) {
            let (name, at) = place(&source, i + 1).expect("a line of the text");
            let part = source.parts.iter().find(|(n, _)| *n == name).expect("a part");
            assert_eq!(part.1.lines().nth(at - 1), Some(line));
        }
        assert_eq!(place(&source, 0), None);
        assert_eq!(place(&source, 6), None);
    }

    #[test]
    fn a_message_names_the_file() {
        let message = "program_source:5:9: error: no\nprogram_source:77: note";
        assert_eq!(with_places(&source(), message), "gemm.metal:2:9: error: no\nprogram_source:77: note");
    }
}
