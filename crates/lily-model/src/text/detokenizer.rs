//! From token ids to text, one token at a time.
//!
//! A token may end in the middle of a character. The decoder keeps those bytes until the character is whole, and
//! replaces bytes that cannot become one by U+FFFD as soon as that is certain, so it holds back at most three
//! bytes and never stalls. However a sequence is cut, the pieces join to `String::from_utf8_lossy` of all its bytes.

use super::tokenizer::Tokenizer;

/// The incremental decoder of one sequence.
#[derive(Debug, Clone, Default)]
pub struct Detokenizer {
    /// The start of a character, at most three bytes.
    pending: [u8; 3],
    held: usize,
}

/// What to do with special tokens (`<|im_end|>`, …; not `<think>` or `<tool_call>`) in the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpecialTokens {
    /// Leave them out, as a chat answer does.
    Hide,
    /// Print them, as `/detokenize` does.
    Show,
}

impl Detokenizer {
    /// A decoder at the start of a sequence.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends to `out` the text that token `id` completes. Ids without a token print nothing.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32, special: SpecialTokens, out: &mut String) {
        if special == SpecialTokens::Hide && tokenizer.is_special(id) {
            return;
        }
        self.push_bytes(tokenizer.token_bytes(id).unwrap_or_default(), out);
    }

    /// Appends to `out` the text that `bytes` complete.
    pub fn push_bytes(&mut self, mut bytes: &[u8], out: &mut String) {
        while self.held > 0 {
            let Some((&next, rest)) = bytes.split_first() else {
                return;
            };
            let mut window = [0; 4];
            window[..self.held].copy_from_slice(&self.pending[..self.held]);
            window[self.held] = next;
            let window = &window[..self.held + 1];
            match std::str::from_utf8(window) {
                Ok(character) => {
                    out.push_str(character);
                    self.held = 0;
                    bytes = rest;
                }
                Err(error) if error.error_len().is_none() => {
                    self.pending[self.held] = next;
                    self.held += 1;
                    bytes = rest;
                }
                // `next` does not continue the character: that one is broken, and `next` is looked at afresh.
                Err(_) => {
                    out.push(char::REPLACEMENT_CHARACTER);
                    self.held = 0;
                }
            }
        }
        loop {
            match std::str::from_utf8(bytes) {
                Ok(text) => {
                    out.push_str(text);
                    return;
                }
                Err(error) => {
                    let (valid, rest) = bytes.split_at(error.valid_up_to());
                    out.push_str(&String::from_utf8_lossy(valid));
                    match error.error_len() {
                        Some(length) => {
                            out.push(char::REPLACEMENT_CHARACTER);
                            bytes = &rest[length..];
                        }
                        None => {
                            self.pending[..rest.len()].copy_from_slice(rest);
                            self.held = rest.len();
                            return;
                        }
                    }
                }
            }
        }
    }

    /// Ends the sequence: an unfinished character becomes U+FFFD.
    pub fn finish(&mut self, out: &mut String) {
        if self.held > 0 {
            out.push(char::REPLACEMENT_CHARACTER);
            self.held = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_character_appears_with_its_last_byte() {
        let mut decoder = Detokenizer::new();
        let mut out = String::new();
        for &byte in &"🦊".as_bytes()[..3] {
            decoder.push_bytes(&[byte], &mut out);
            assert_eq!(out, "");
        }
        decoder.push_bytes(&"🦊".as_bytes()[3..], &mut out);
        assert_eq!(out, "🦊");
    }

    #[test]
    fn invalid_bytes_do_not_wait() {
        let mut decoder = Detokenizer::new();
        let mut out = String::new();
        decoder.push_bytes(&[0xff, 0xe2], &mut out);
        assert_eq!(out, "\u{fffd}");
        decoder.push_bytes(b"a", &mut out);
        assert_eq!(out, "\u{fffd}\u{fffd}a");
        decoder.push_bytes(&[0xf0, 0x9f], &mut out);
        decoder.finish(&mut out);
        assert_eq!(out, "\u{fffd}\u{fffd}a\u{fffd}");
    }

    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            "\\PC{0,3}".prop_map(String::into_bytes),
            proptest::collection::vec(any::<u8>(), 0..4),
            ("\\PC", 0usize..4).prop_map(|(c, n)| c.as_bytes()[..n.min(c.len())].to_vec()),
        ];
        proptest::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn any_split_gives_the_text_of_the_whole(bytes in bytes(), cuts in proptest::collection::vec(1usize..6, 1..40)) {
            let (mut decoder, mut text, mut rest) = (Detokenizer::new(), String::new(), &bytes[..]);
            let mut cuts = cuts.iter().cycle();
            while !rest.is_empty() {
                let (piece, after) = rest.split_at((*cuts.next().unwrap()).min(rest.len()));
                decoder.push_bytes(piece, &mut text);
                prop_assert!(decoder.held < 4);
                rest = after;
            }
            decoder.finish(&mut text);
            prop_assert_eq!(text, String::from_utf8_lossy(&bytes));
        }
    }
}
