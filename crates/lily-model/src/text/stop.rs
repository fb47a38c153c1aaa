//! Stop strings: ends the output before the first of up to 16 strings, wherever tokens cut them.
//!
//! The string that is complete first ends the output; of several complete at the same place, the longest. Text that
//! may still become a stop string is held back, and nothing more. Each string is followed by a Knuth-Morris-Pratt
//! automaton, so a character costs the same however long the strings are.

/// How many stop strings a request may have.
pub const MAX_STOPS: usize = 16;

/// The stop strings of one sequence and how far they have matched.
#[derive(Debug, Clone)]
pub struct StopMatcher {
    stops: Vec<Stop>,
    /// The text not yet released: the longest beginning of a stop string that the output ends with.
    held: String,
    stopped: bool,
}

#[derive(Debug, Clone)]
struct Stop {
    text: String,
    /// `fallback[n]`: the longest proper border of the first `n + 1` bytes.
    fallback: Vec<usize>,
    matched: usize,
}

/// Why stop strings are refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StopError {
    /// More than [`MAX_STOPS`].
    #[error("stop has {0} strings; at most {MAX_STOPS} are accepted")]
    TooMany(usize),
    /// An empty string would stop before any text.
    #[error("stop[{0}] is empty")]
    Empty(usize),
}

impl Stop {
    fn new(text: String) -> Self {
        let bytes = text.as_bytes();
        let mut fallback = vec![0; bytes.len()];
        let mut border = 0;
        for at in 1..bytes.len() {
            while border > 0 && bytes[at] != bytes[border] {
                border = fallback[border - 1];
            }
            border += usize::from(bytes[at] == bytes[border]);
            fallback[at] = border;
        }
        Self { text, fallback, matched: 0 }
    }

    /// Follows one byte; true if the string is complete.
    fn advance(&mut self, byte: u8) -> bool {
        let bytes = self.text.as_bytes();
        while self.matched > 0 && bytes[self.matched] != byte {
            self.matched = self.fallback[self.matched - 1];
        }
        self.matched += usize::from(bytes[self.matched] == byte);
        self.matched == bytes.len()
    }
}

impl StopMatcher {
    /// A matcher at the start of a sequence.
    ///
    /// # Errors
    /// Too many strings, or an empty one.
    pub fn new(stops: impl IntoIterator<Item = String>) -> Result<Self, StopError> {
        let stops: Vec<Stop> = stops.into_iter().map(Stop::new).collect();
        if stops.len() > MAX_STOPS {
            return Err(StopError::TooMany(stops.len()));
        }
        match stops.iter().position(|s| s.text.is_empty()) {
            Some(index) => Err(StopError::Empty(index)),
            None => Ok(Self { stops, held: String::new(), stopped: false }),
        }
    }

    /// Takes the next piece of output and appends to `out` what may be shown. Returns the stop string once it is
    /// complete; from then on everything is swallowed.
    pub fn push(&mut self, text: &str, out: &mut String) -> Option<&str> {
        if self.stopped {
            return None;
        }
        let before = self.held.len();
        self.held.push_str(text);
        for (at, &byte) in text.as_bytes().iter().enumerate() {
            let complete =
                self.stops.iter_mut().enumerate().filter_map(|(i, stop)| stop.advance(byte).then_some((i, stop)));
            if let Some((index, _)) = complete.max_by_key(|(_, stop)| stop.text.len()) {
                let stop = &self.stops[index].text;
                out.push_str(&self.held[..before + at + 1 - stop.len()]);
                self.held.clear();
                self.stopped = true;
                return Some(stop);
            }
        }
        let hold = self.stops.iter().map(|s| s.matched).max().unwrap_or(0);
        let release = self.held.len() - hold;
        out.push_str(&self.held[..release]);
        self.held.drain(..release);
        None
    }

    /// Ends the sequence: appends what was held back and did not become a stop string.
    pub fn finish(&mut self, out: &mut String) {
        out.push_str(&self.held);
        self.held.clear();
        self.stopped = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run<'a>(stops: &[&str], pieces: impl IntoIterator<Item = &'a str>) -> (String, Option<String>) {
        let mut matcher = StopMatcher::new(stops.iter().map(|s| s.to_string())).unwrap();
        let mut out = String::new();
        let mut matched = None;
        for piece in pieces {
            if let Some(stop) = matcher.push(piece, &mut out) {
                matched = Some(stop.to_owned());
            }
        }
        matcher.finish(&mut out);
        (out, matched)
    }

    #[test]
    fn a_stop_string_across_pieces_ends_the_text_before_it() {
        assert_eq!(run(&["\nUser:"], ["Hi", "\n", "Us", "er", ": x"]), ("Hi".into(), Some("\nUser:".into())));
        assert_eq!(run(&["\nUser:"], ["Hi\nUs", "a"]), ("Hi\nUsa".into(), None));
        assert_eq!(run(&["aab"], ["aa", "ab", "b"]), ("a".into(), Some("aab".into())));
    }

    #[test]
    fn only_what_may_become_a_stop_string_is_held_back() {
        let mut matcher = StopMatcher::new(["é–x".to_owned()]).unwrap();
        let mut out = String::new();
        assert_eq!(matcher.push("abcé", &mut out), None);
        assert_eq!(out, "abc");
        assert_eq!(matcher.push("–", &mut out), None);
        assert_eq!(matcher.push("é", &mut out), None);
        assert_eq!(out, "abcé–");
    }

    #[test]
    fn the_first_complete_string_wins_and_then_the_longest() {
        assert_eq!(run(&["abc", "b"], ["abc"]), ("a".into(), Some("b".into())));
        assert_eq!(run(&["c", "abc", "bc"], ["xabc"]), ("x".into(), Some("abc".into())));
    }

    #[test]
    fn empty_and_too_many_strings_are_refused() {
        assert_eq!(StopMatcher::new(["a".into(), String::new()]).unwrap_err(), StopError::Empty(1));
        assert_eq!(StopMatcher::new(vec!["a".into(); 17]).unwrap_err(), StopError::TooMany(17));
        assert!(StopMatcher::new(vec!["a".into(); 16]).is_ok());
    }

    proptest! {
        #[test]
        fn any_split_gives_the_same_text_and_stop(
            text in "[abé]{0,30}", stops in prop::collection::vec("[abé]{1,5}", 0..5), cut in 1usize..4,
        ) {
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            let characters: Vec<char> = text.chars().collect();
            let pieces: Vec<String> = characters.chunks(cut).map(|c| c.iter().collect()).collect();
            let found = run(&stops, pieces.iter().map(String::as_str));
            let ends = (0..=text.len()).filter(|&end| text.is_char_boundary(end));
            let longest = |end: usize| stops.iter().filter(|s| text[..end].ends_with(**s)).max_by_key(|s| s.len()).copied();
            let expected = ends.filter_map(|end| longest(end).map(|s| (text[..end - s.len()].to_owned(), Some(s.to_owned())))).next();
            prop_assert_eq!(found, expected.unwrap_or((text.clone(), None)));
        }
    }
}
