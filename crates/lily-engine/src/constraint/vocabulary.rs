//! The tokenizer as llguidance wants to see it: a trie of every token's bytes.

use std::sync::Arc;

use lily_model::text::Tokenizer;
use llguidance::toktrie::{TokRxInfo, TokTrie, TokenId, TokenizerEnv};

/// Added tokens that a grammar's text stands for. All others are no text to a grammar: an answer spells them in letters.
const WORDS: [&str; 2] = ["<tool_call>", "</tool_call>"];

/// A trie over a tokenizer.
pub(super) struct Vocabulary {
    tokenizer: Arc<Tokenizer>,
    trie: TokTrie,
    /// Ids of [`WORDS`].
    words: Vec<(&'static str, TokenId)>,
}

impl Vocabulary {
    /// Builds the trie. `eos` must not be empty.
    pub fn new(tokenizer: Arc<Tokenizer>, eos: &[u32]) -> Self {
        let size = tokenizer.vocab_size() as u32;
        let words = WORDS.iter().filter_map(|&w| tokenizer.token_id(w).map(|id| (w, id)));
        let words: Vec<_> = words.filter(|(_, id)| tokenizer.is_control(*id)).collect();
        let bytes = |id: u32| {
            let bytes = tokenizer.token_bytes(id).unwrap_or_default();
            if tokenizer.is_control(id) && !words.iter().any(|(_, word)| *word == id) {
                [&[TokTrie::SPECIAL_TOKEN_MARKER], bytes].concat()
            } else {
                bytes.to_vec()
            }
        };
        let all: Vec<Vec<u8>> = (0..size).map(bytes).collect();
        let trie = TokTrie::from(&TokRxInfo::new(size, eos[0]), &all).with_eos_tokens(eos);
        Vocabulary { trie, words, tokenizer }
    }
}

impl TokenizerEnv for Vocabulary {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        let Ok(mut text) = std::str::from_utf8(bytes) else {
            return self.trie.greedy_tokenize(bytes);
        };
        let mut ids = Vec::new();
        let plain = |part: &str| {
            self.tokenizer.encode_text(part).unwrap_or_else(|_| self.trie.greedy_tokenize(part.as_bytes()))
        };
        loop {
            let found = self.words.iter().filter_map(|&(word, id)| text.find(word).map(|at| (at, word, id)));
            let Some((at, word, id)) = found.min_by_key(|(at, ..)| *at) else {
                ids.extend(plain(text));
                return ids;
            };
            ids.extend(plain(&text[..at]));
            ids.push(id);
            text = &text[at + word.len()..];
        }
    }
}
