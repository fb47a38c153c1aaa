//! The contents of a tokenizer.json, read in one pass.
//!
//! The `tokenizers` crate reads the same file through an untyped tree, which for Qwen's 250,000 merges takes most of a
//! second longer than this. Only the file's shape is known here; what it means is `tokenizer.rs`'s.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};
use tokenizers::{NormalizerWrapper, PreTokenizerWrapper};

/// A tokenizer.json. Padding, truncation, post-processor and decoder are not used.
#[derive(Deserialize)]
pub(crate) struct TokenizerFile {
    #[serde(default)]
    pub added_tokens: Vec<AddedToken>,
    #[serde(default)]
    pub normalizer: Option<NormalizerWrapper>,
    #[serde(default)]
    pub pre_tokenizer: Option<PreTokenizerWrapper>,
    pub model: Model,
}

/// A token outside the BPE.
#[derive(Deserialize)]
pub(crate) struct AddedToken {
    pub id: u32,
    pub content: String,
    #[serde(default)]
    pub single_word: bool,
    #[serde(default)]
    pub lstrip: bool,
    #[serde(default)]
    pub rstrip: bool,
    #[serde(default)]
    pub normalized: bool,
    #[serde(default)]
    pub special: bool,
}

/// The BPE, with every field that could change its meaning.
#[derive(Deserialize)]
pub(crate) struct Model {
    #[serde(rename = "type")]
    pub kind: Option<String>,
    #[serde(default)]
    pub dropout: Option<f32>,
    #[serde(default)]
    pub unk_token: Option<String>,
    #[serde(default)]
    pub continuing_subword_prefix: Option<String>,
    #[serde(default)]
    pub end_of_word_suffix: Option<String>,
    #[serde(default)]
    pub byte_fallback: bool,
    #[serde(default)]
    pub ignore_merges: bool,
    pub vocab: Vocab,
    #[serde(default)]
    pub merges: Vec<Merge>,
}

/// Entries in BPE's alphabet and their ids, in the file's order.
#[derive(Default)]
pub(crate) struct Vocab(pub Vec<(String, u32)>);

/// Two entries that become one; a pair in newer files, a text with a space between in older ones.
pub(crate) struct Merge(pub String, pub String);

impl<'de> Deserialize<'de> for Vocab {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Vocab;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map from tokens to ids")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vocab, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Vocab(entries))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

impl<'de> Deserialize<'de> for Merge {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pair;
        impl<'de> Visitor<'de> for Pair {
            type Value = Merge;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a pair of tokens, or two tokens with a space between")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Merge, E> {
                match text.split_once(' ') {
                    Some((left, right)) => Ok(Merge(left.to_owned(), right.to_owned())),
                    None => Err(E::invalid_value(serde::de::Unexpected::Str(text), &self)),
                }
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut pair: A) -> Result<Merge, A::Error> {
                match (pair.next_element()?, pair.next_element()?, pair.next_element::<String>()?) {
                    (Some(left), Some(right), None) => Ok(Merge(left, right)),
                    _ => Err(A::Error::custom("a merge has not exactly two tokens")),
                }
            }
        }
        deserializer.deserialize_any(Pair)
    }
}
