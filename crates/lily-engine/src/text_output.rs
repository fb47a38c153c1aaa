//! From generated ids to the text a caller may see: whole characters, and nothing that may still become a stop string.

use std::sync::Arc;

use lily_model::text::{Detokenizer, SpecialTokens, StopError, StopMatcher, Tokenizer};

/// Whether stop strings are looked for in a token's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StopSearch {
    On,
    /// In thinking, and before `min_tokens`.
    Off,
}

/// The text side of one generation.
pub(crate) struct TextOutput {
    tokenizer: Arc<Tokenizer>,
    detokenizer: Detokenizer,
    stops: StopMatcher,
    piece: String,
}

impl TextOutput {
    pub fn new(tokenizer: Arc<Tokenizer>, stops: Vec<String>) -> Result<Self, StopError> {
        let stops = StopMatcher::new(stops)?;
        Ok(TextOutput { tokenizer, detokenizer: Detokenizer::new(), stops, piece: String::new() })
    }

    /// Takes the next token: the text that is now certain, and the stop string that it completes.
    pub fn push(&mut self, id: u32, search: StopSearch) -> (String, Option<String>) {
        self.piece.clear();
        self.detokenizer.push(&self.tokenizer, id, SpecialTokens::Hide, &mut self.piece);
        let mut text = String::new();
        match search {
            StopSearch::Off => {
                text.push_str(&self.piece);
                (text, None)
            }
            StopSearch::On => {
                let stop = self.stops.push(&self.piece, &mut text).map(str::to_owned);
                (text, stop)
            }
        }
    }

    /// The text that was held back, at the end of a generation that no stop string ended.
    pub fn finish(&mut self) -> String {
        self.piece.clear();
        self.detokenizer.finish(&mut self.piece);
        let mut text = String::new();
        // A stop string that the replacement of a broken character completes still counts as one: its text is cut.
        if self.stops.push(&self.piece, &mut text).is_none() {
            self.stops.finish(&mut text);
        }
        text
    }

    /// The bytes of a token.
    pub fn bytes(&self, id: u32) -> Vec<u8> {
        self.tokenizer.token_bytes(id).unwrap_or_default().to_vec()
    }
}
