//! The tokenizer of a checkpoint: text to ids and ids to bytes.
//!
//! Byte-level BPE is the `tokenizers` crate's; what this file adds is the rule which text may become a control token.
//! Control strings are found here, by origin, and the stretches between them are encoded by a BPE that has no
//! control tokens at all, so data cannot produce one whatever it says. The stretches are cut only at control
//! tokens, exactly where the reference implementation cuts, so ids of ordinary conversations equal its ids.
//! There is no beginning-of-sequence token. This file does not know the chat format.

use std::collections::HashSet;
use std::fmt;
use std::path::Path;

use ahash::AHashMap;
use aho_corasick::{AhoCorasick, Input, MatchKind};
use tokenizers::PreTokenizerWrapper;
use tokenizers::models::bpe::BPE;

use super::byte_tokens::{ByteTokens, alphabet_char, bytes_of};
use super::marks::ControlLeads;
use super::stretch_cache::StretchCache;
use super::template::Prompt;
use super::tokenizer_file::{AddedToken, Merge, Model, TokenizerFile, Vocab};

/// More ids than any vocabulary has; bounds the table of a hostile file.
const MAX_ID: u32 = 1 << 22;

/// A loaded tokenizer, shared between threads.
pub struct Tokenizer {
    /// Normalizer, pre-tokenizer and BPE, with no added tokens.
    bpe: tokenizers::Tokenizer,
    /// The added tokens, in the order of `finder`'s patterns.
    controls: Vec<Control>,
    finder: AhoCorasick,
    leads: ControlLeads,
    bytes: ByteTokens,
    stretches: StretchCache,
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer").field("vocab_size", &self.vocab_size()).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Control {
    id: u32,
    text: String,
    special: bool,
}

/// Why a tokenizer could not be loaded, or a text not be encoded.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// The file cannot be read.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: std::path::PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// Not a tokenizer.json.
    #[error("tokenizer.json does not parse: {0}")]
    Parse(String),
    /// A tokenizer of another kind than Qwen's.
    #[error("tokenizer.json: {field} is {found}; supported: {supported}")]
    Unsupported {
        /// Which part of the file.
        field: String,
        /// What it is.
        found: String,
        /// What would have been accepted.
        supported: &'static str,
    },
    /// The BPE gave up on a text.
    #[error("the text cannot be tokenized: {0}")]
    Encode(String),
}

fn unsupported(field: impl Into<String>, found: impl Into<String>, supported: &'static str) -> TokenizerError {
    TokenizerError::Unsupported { field: field.into(), found: found.into(), supported }
}

impl Tokenizer {
    /// Reads a tokenizer.json.
    ///
    /// # Errors
    /// An unreadable file, and those of [`Tokenizer::from_bytes`].
    pub fn from_file(path: &Path) -> Result<Self, TokenizerError> {
        let bytes = std::fs::read(path).map_err(|source| TokenizerError::Io { path: path.to_owned(), source })?;
        Self::from_bytes(&bytes)
    }

    /// Loads the contents of a tokenizer.json.
    ///
    /// # Errors
    /// What does not parse, and every kind but byte-level BPE whose added tokens match literally.
    pub fn from_bytes(json: &[u8]) -> Result<Self, TokenizerError> {
        let file: TokenizerFile = serde_json::from_slice(json).map_err(|e| TokenizerError::Parse(e.to_string()))?;
        let controls = controls(file.added_tokens)?;
        check_kind(&file.model, file.pre_tokenizer.as_ref())?;
        let bytes = token_table(&file.model.vocab, &controls)?;
        let bpe = bpe(file.model)?;
        let mut bpe = tokenizers::Tokenizer::new(bpe);
        bpe.with_normalizer(file.normalizer).with_pre_tokenizer(file.pre_tokenizer);
        let finder = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(controls.iter().map(|c| &c.text))
            .map_err(|e| TokenizerError::Parse(e.to_string()))?;
        let leads = ControlLeads::of(controls.iter().map(|c| c.text.as_str()));
        let tokenizer = Self { bpe, controls, finder, leads, bytes, stretches: StretchCache::default() };
        tokenizer.check_controls()?;
        Ok(tokenizer)
    }

    /// Refuses a vocabulary in which ordinary text can spell an added token.
    fn check_controls(&self) -> Result<(), TokenizerError> {
        for control in &self.controls {
            if self.encode_text(&control.text)?.iter().any(|&id| self.is_control(id)) {
                let field = format!("added token {:?}", control.text);
                return Err(unsupported(field, "also a result of model.merges", "added tokens outside the BPE"));
            }
        }
        Ok(())
    }

    /// Encodes data: no text whatsoever becomes a control token.
    ///
    /// # Errors
    /// [`TokenizerError::Encode`] if the pre-tokenizer's pattern gives up.
    pub fn encode_text(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        let mut ids = Vec::new();
        self.encode_stretch(text, &mut ids)?;
        Ok(ids)
    }

    /// Encodes a rendered conversation: the template's control strings become control tokens, those in data do not.
    ///
    /// # Errors
    /// As [`Tokenizer::encode_text`].
    pub fn encode_prompt(&self, prompt: &Prompt) -> Result<Vec<u32>, TokenizerError> {
        self.encode(prompt.text(), |at| prompt.is_data(at))
    }

    /// Encodes text in which every control string becomes its token: a raw prompt whose author writes the markup.
    ///
    /// # Errors
    /// As [`Tokenizer::encode_text`].
    pub fn encode_markup(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        self.encode(text, |_| false)
    }

    fn encode(&self, text: &str, is_data: impl Fn(usize) -> bool) -> Result<Vec<u32>, TokenizerError> {
        let mut ids = Vec::new();
        let (mut done, mut from) = (0, 0);
        while let Some(found) = self.finder.find(Input::new(text).span(from..text.len())) {
            if is_data(found.start()) {
                from = found.start() + 1;
                continue;
            }
            self.encode_stretch(&text[done..found.start()], &mut ids)?;
            ids.push(self.controls[found.pattern()].id);
            (done, from) = (found.end(), found.end());
        }
        self.encode_stretch(&text[done..], &mut ids)?;
        Ok(ids)
    }

    fn encode_stretch(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), TokenizerError> {
        if let Some(known) = self.stretches.get(text) {
            ids.extend_from_slice(&known);
        } else if !text.is_empty() {
            let encoding = self.bpe.encode_fast(text, false).map_err(|e| TokenizerError::Encode(e.to_string()))?;
            ids.extend_from_slice(encoding.get_ids());
            self.stretches.insert(text, encoding.get_ids());
        }
        Ok(())
    }

    /// The bytes of a token; `None` for an id that has no token, such as the padding up to the model's vocabulary.
    /// A token's bytes need not be whole characters.
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        self.bytes.get(id)
    }

    /// One more than the largest id that has a token. The model's logits may be wider (248,320 for 248,077).
    pub fn vocab_size(&self) -> usize {
        self.bytes.len()
    }

    /// Whether `id` is an added token: `<|im_end|>`, and also `<think>` or `<tool_call>`.
    pub fn is_control(&self, id: u32) -> bool {
        self.control(id).is_some()
    }

    /// Whether `id` is an added token marked special, which decoded text leaves out: `<|im_end|>`, but not `<think>`.
    pub fn is_special(&self, id: u32) -> bool {
        self.control(id).is_some_and(|c| c.special)
    }

    fn control(&self, id: u32) -> Option<&Control> {
        self.controls.binary_search_by_key(&id, |c| c.id).ok().map(|at| &self.controls[at])
    }

    /// The id of an added token by its text (`"<|im_end|>"`), or of a vocabulary entry in BPE's alphabet (`"Ġfox"`).
    pub fn token_id(&self, token: &str) -> Option<u32> {
        let control = self.controls.iter().find(|c| c.text == token).map(|c| c.id);
        control.or_else(|| self.bpe.token_to_id(token))
    }

    /// The added tokens, by ascending id.
    pub fn controls(&self) -> impl Iterator<Item = (u32, &str)> {
        self.controls.iter().map(|c| (c.id, c.text.as_str()))
    }

    /// What a [`ChatTemplate`](super::ChatTemplate) has to mark in data.
    pub fn control_leads(&self) -> &ControlLeads {
        &self.leads
    }

    /// The text of `ids`, special tokens included.
    pub fn decode(&self, ids: &[u32]) -> String {
        let bytes: Vec<u8> = ids.iter().flat_map(|&id| self.token_bytes(id).unwrap_or_default()).copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// The added tokens, sorted by id. Those that would change or cut the text around them are refused.
fn controls(added: Vec<AddedToken>) -> Result<Vec<Control>, TokenizerError> {
    let mut controls = Vec::with_capacity(added.len());
    for token in added {
        if token.lstrip || token.rstrip || token.single_word || token.normalized {
            let field = format!("added token {:?}", token.content);
            return Err(unsupported(
                field,
                "matched with lstrip, rstrip, single_word or normalized",
                "literal matching",
            ));
        }
        // An empty one would be found everywhere; the reference implementation ignores it as well.
        if !token.content.is_empty() {
            controls.push(Control { id: token.id, text: token.content, special: token.special });
        }
    }
    controls.sort_unstable_by_key(|c| c.id);
    Ok(controls)
}

/// Accepts byte-level BPE only: every text has ids, and they have exactly its bytes (after normalization).
fn check_kind(model: &Model, pre_tokenizer: Option<&PreTokenizerWrapper>) -> Result<(), TokenizerError> {
    const SUPPORTED: &str = "byte-level BPE";
    if let Some(kind) = model.kind.as_ref().filter(|kind| *kind != "BPE") {
        return Err(unsupported("model.type", kind, SUPPORTED));
    }
    let is_set = |text: &Option<String>| text.as_ref().is_some_and(|t| !t.is_empty());
    if model.dropout.is_some() || model.byte_fallback || is_set(&model.unk_token) {
        return Err(unsupported("model", "a BPE with dropout, byte_fallback or unk_token", SUPPORTED));
    }
    if is_set(&model.continuing_subword_prefix) || is_set(&model.end_of_word_suffix) {
        return Err(unsupported("model", "a BPE with continuing_subword_prefix or end_of_word_suffix", SUPPORTED));
    }
    let is_byte_level = |p: &PreTokenizerWrapper| matches!(p, PreTokenizerWrapper::ByteLevel(b) if !b.add_prefix_space);
    let byte_level = match pre_tokenizer {
        Some(PreTokenizerWrapper::Sequence(steps)) => steps.as_ref().iter().any(is_byte_level),
        Some(one) => is_byte_level(one),
        None => false,
    };
    if !byte_level {
        return Err(unsupported("pre_tokenizer", "without ByteLevel (add_prefix_space false)", SUPPORTED));
    }
    let single: HashSet<&str> =
        model.vocab.0.iter().map(|(entry, _)| entry.as_str()).filter(|e| e.len() <= 2).collect();
    if let Some(byte) = (0..=255).find(|&b| !single.contains(alphabet_char(b).to_string().as_str())) {
        return Err(unsupported("model.vocab", format!("without a token for byte {byte}"), SUPPORTED));
    }
    Ok(())
}

fn bpe(model: Model) -> Result<BPE, TokenizerError> {
    let merges = model.merges.into_iter().map(|Merge(left, right)| (left, right)).collect();
    BPE::builder()
        .vocab_and_merges(model.vocab.0.into_iter().collect::<AHashMap<_, _>>(), merges)
        .ignore_merges(model.ignore_merges)
        .build()
        .map_err(|e| TokenizerError::Parse(e.to_string()))
}

fn token_table(vocab: &Vocab, controls: &[Control]) -> Result<ByteTokens, TokenizerError> {
    // Where ids coincide, the last token stays: the added one.
    let entries = vocab.0.iter().map(|(entry, id)| (*id, entry.as_str(), bytes_of(entry)));
    let controls = controls.iter().map(|c| (c.id, c.text.as_str(), None));
    let mut tokens: Vec<_> = entries.chain(controls).collect();
    tokens.sort_by_key(|(id, ..)| *id);
    if let Some((id, ..)) = tokens.last().filter(|(id, ..)| *id >= MAX_ID) {
        return Err(unsupported("model.vocab", format!("with id {id}"), "ids below 4194304"));
    }
    let last_of_id = tokens.chunk_by(|a, b| a.0 == b.0).filter_map(|same| same.last());
    Ok(ByteTokens::new(last_of_id.map(|(id, text, bytes)| (*id, bytes.as_deref().unwrap_or(text.as_bytes())))))
}
