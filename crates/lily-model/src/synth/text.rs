//! Text files of a synthetic checkpoint: a tokenizer that fits its vocabulary, the chat template, generation defaults.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::SynthError;
use crate::config::ModelConfig;

/// Our own template, which prints what the published one prints.
const CHAT_TEMPLATE: &str = include_str!("../../../../assets/mini/chat_template.jinja");

/// Added tokens of the family in the order of their ids, and whether each is special.
const ADDED_TOKENS: [(&str, bool); 26] = [
    ("<|endoftext|>", true),
    ("<|im_start|>", true),
    ("<|im_end|>", true),
    ("<|object_ref_start|>", true),
    ("<|object_ref_end|>", true),
    ("<|box_start|>", true),
    ("<|box_end|>", true),
    ("<|quad_start|>", true),
    ("<|quad_end|>", true),
    ("<|vision_start|>", true),
    ("<|vision_end|>", true),
    ("<|vision_pad|>", true),
    ("<|image_pad|>", true),
    ("<|video_pad|>", true),
    ("<tool_call>", false),
    ("</tool_call>", false),
    ("<|fim_prefix|>", false),
    ("<|fim_middle|>", false),
    ("<|fim_suffix|>", false),
    ("<|fim_pad|>", false),
    ("<|repo_name|>", false),
    ("<|file_sep|>", false),
    ("<tool_response>", false),
    ("</tool_response>", false),
    ("<think>", false),
    ("</think>", false),
];

/// Ids the byte-level tokenizer needs.
const BYTE_LEVEL_VOCAB: usize = 256 + ADDED_TOKENS.len();

/// Which tokenizer a synthetic checkpoint got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tokenizer {
    /// One of those given, by its place in the list.
    Given(usize),
    /// One token a byte, and the family's added tokens.
    ByteLevel,
    /// None: the vocabulary has no room for 256 bytes and the added tokens. Ids still work.
    None,
}

/// A file's name and content.
pub(super) type TextFile = (&'static str, Vec<u8>);

/// Files by name, and which tokenizer is among them.
pub(super) fn files(config: &ModelConfig, tokenizers: &[&[u8]]) -> Result<(Vec<TextFile>, Tokenizer), SynthError> {
    let mut best: Option<(usize, Summary)> = None;
    for (index, bytes) in tokenizers.iter().enumerate() {
        let summary = Summary::read(bytes).map_err(|reason| SynthError::Tokenizer { index, reason })?;
        let larger = best.as_ref().is_none_or(|(_, b)| summary.vocab_size > b.vocab_size);
        if summary.vocab_size <= config.vocab_size && larger {
            best = Some((index, summary));
        }
    }
    let (tokenizer, json, added) = match best {
        Some((index, summary)) => (Tokenizer::Given(index), Cow::Borrowed(tokenizers[index]), summary.added),
        None if config.vocab_size >= BYTE_LEVEL_VOCAB => {
            let added = (256..).zip(ADDED_TOKENS).map(|(id, (content, special))| Added::new(id, content, special));
            let added: Vec<Added> = added.collect();
            (Tokenizer::ByteLevel, Cow::Owned(byte_level(&added)), added)
        }
        None => return Ok((vec![("config.json", config.to_json().into())], Tokenizer::None)),
    };
    let id = |content: &str| added.iter().find(|t| t.content == content).map(|t| t.id);
    let (end, pad) = (id("<|im_end|>"), id("<|endoftext|>"));
    let generation = json!({
        "bos_token_id": null,
        "eos_token_id": end.into_iter().chain(pad).collect::<Vec<_>>(),
        "pad_token_id": pad,
        "do_sample": true,
        "temperature": 1.0,
        "top_k": 20,
        "top_p": 0.95,
    });
    let files = vec![
        ("tokenizer.json", json.into_owned()),
        ("tokenizer_config.json", tokenizer_config(&added, config.max_position_embeddings)),
        ("chat_template.jinja", CHAT_TEMPLATE.into()),
        ("generation_config.json", format!("{generation:#}\n").into()),
        // Last: a folder without it is not a checkpoint, so one that was cut short is not taken for one.
        ("config.json", config.to_json().into()),
    ];
    Ok((files, tokenizer))
}

/// What is needed of a tokenizer.json.
struct Summary {
    vocab_size: usize,
    added: Vec<Added>,
}

/// An added token.
#[derive(Debug, Deserialize)]
struct Added {
    id: u32,
    content: String,
    #[serde(default)]
    special: bool,
}

impl Added {
    fn new(id: u32, content: &str, special: bool) -> Self {
        Added { id, content: content.into(), special }
    }

    fn flags(&self) -> Map<String, Value> {
        let mut map = Map::new();
        map.insert("content".into(), self.content.clone().into());
        for flag in ["lstrip", "normalized", "rstrip", "single_word"] {
            map.insert(flag.into(), false.into());
        }
        map.insert("special".into(), self.special.into());
        map
    }
}

impl Summary {
    fn read(bytes: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct File {
            added_tokens: Vec<Added>,
            model: Vocab,
        }
        #[derive(Deserialize)]
        struct Vocab {
            vocab: std::collections::HashMap<String, u32>,
        }
        let file: File = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
        let ids = file.model.vocab.values().copied().chain(file.added_tokens.iter().map(|t| t.id));
        Ok(Summary { vocab_size: ids.max().map_or(0, |id| id as usize + 1), added: file.added_tokens })
    }
}

fn tokenizer_config(added: &[Added], positions: usize) -> Vec<u8> {
    let decoder: Map<String, Value> = added.iter().map(|t| (t.id.to_string(), Value::Object(t.flags()))).collect();
    let special: Vec<&str> = added.iter().filter(|t| t.special).map(|t| t.content.as_str()).collect();
    let config = json!({
        "add_bos_token": false,
        "add_prefix_space": false,
        "added_tokens_decoder": decoder,
        "additional_special_tokens": special,
        "bos_token": null,
        "clean_up_tokenization_spaces": false,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": positions,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": false,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": null,
    });
    format!("{config:#}\n").into()
}

/// A tokenizer.json whose ids 0..256 are the bytes.
fn byte_level(added: &[Added]) -> Vec<u8> {
    let vocab: Map<String, Value> = (0..=255u8).map(|b| (byte_char(b).to_string(), b.into())).collect();
    let added: Vec<Value> = added
        .iter()
        .map(|token| {
            let mut flags = token.flags();
            flags.insert("id".into(), token.id.into());
            Value::Object(flags)
        })
        .collect();
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false});
    let tokenizer = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": null,
        "pre_tokenizer": byte_level,
        "post_processor": null,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": null,
            "unk_token": null,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": false,
            "byte_fallback": false,
            "vocab": vocab,
            "merges": [],
        },
    });
    tokenizer.to_string().into()
}

/// The printable character that stands for a byte in byte-level BPE vocabularies (GPT-2's table).
fn byte_char(byte: u8) -> char {
    let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    match printable(byte) {
        true => byte.into(),
        false => {
            let nth = (0..byte).filter(|&b| !printable(b)).count() as u32;
            char::from_u32(256 + nth).unwrap_or(char::REPLACEMENT_CHARACTER)
        }
    }
}
