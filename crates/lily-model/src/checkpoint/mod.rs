//! A checkpoint on disk or in memory: safetensors shards, used in place, in the layout of
//! mlx-community/Qwen3.6-35B-A3B-4bit.
//!
//! Everything is checked at load, so that [`Checkpoint::weight`] cannot fail: config.json is one Lily supports
//! ([`crate::config`]), each tensor it implies is there with its type and shape and lies within its file, none is left
//! over, and no scale, bias or vector has NaN or an infinity. What cannot be checked is that the files stay as they are:
//! a mapped file that is truncated later kills the process (SIGBUS) at the next read.
//!
//! Knows nothing of devices or of what the weights mean.

mod bind;
mod digest;
mod error;
mod files;
mod generation;
mod header;
mod index;
mod scan;
mod storage;
mod view;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

pub use bind::{AffineLocation, Dtype, Span, WeightLocation};
pub use error::CheckpointError;
pub use generation::GenerationConfig;
pub use storage::{AlignedBytes, Storage};
pub use view::{DenseView, FloatView, QuantizedView, WeightView};

use crate::config::{ConfigError, ModelConfig};
use crate::graph::{Model, WeightId, WeightKind};
use crate::json;
use bind::ShardEntries;
pub(crate) use digest::Digest;
use files::Files;

/// Text files kept for [`Checkpoint::text_file`].
const TEXT_FILES: [&str; 5] =
    ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"];

/// A safetensors file.
#[derive(Debug)]
pub struct Shard {
    name: String,
    storage: Storage,
}

impl Shard {
    /// File name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The whole file, header included; spans count from its first byte.
    pub fn bytes(&self) -> &[u8] {
        self.storage.bytes()
    }

    /// Where the bytes are. A mapping starts at a page border and may be read up to the end of its last page.
    pub fn storage(&self) -> &Storage {
        &self.storage
    }
}

/// A loaded checkpoint.
#[derive(Debug)]
pub struct Checkpoint {
    model: Model,
    shards: Vec<Shard>,
    locations: Vec<WeightLocation>,
    texts: Vec<(&'static str, Storage)>,
    generation: GenerationConfig,
    fingerprint: u128,
}

impl Checkpoint {
    /// Opens the checkpoint in a folder. Shards are mapped, not read (but see [`CheckpointError::NotFinite`]: their
    /// scales are, about a ninth of the whole).
    pub fn open(folder: &Path) -> Result<Self, CheckpointError> {
        Self::load(Files::folder(folder)?)
    }

    /// A checkpoint from files by name, under the names they would have in a folder.
    pub fn from_files(files: Vec<(String, Storage)>) -> Result<Self, CheckpointError> {
        Self::load(Files::Memory(files.into_iter().collect()))
    }

    fn load(mut files: Files) -> Result<Self, CheckpointError> {
        let place = files.place();
        let mut texts = Vec::new();
        for name in TEXT_FILES {
            if let Some(storage) = files.text(name)? {
                texts.push((name, storage));
            }
        }
        let text = |name: &str| texts.iter().find(|(n, _)| *n == name).map(|(_, storage)| storage.bytes());
        let Some(config_text) = text("config.json") else {
            return Err(missing(
                &files,
                "config.json",
                "a folder in the MLX layout, config.json and model*.safetensors",
            ));
        };
        let config_value = json::parse(config_text).map_err(ConfigError::NotJson)?;
        let model = Model::new(ModelConfig::from_value(&config_value)?)?;
        let generation = generation::parse(text("generation_config.json"), &config_value, model.config.vocab_size)?;

        let promised = match files.text(index::INDEX)? {
            Some(storage) => index::parse(storage.bytes())?,
            None => BTreeMap::from([(index::SINGLE.to_string(), Vec::new())]),
        };
        let mut shards = Vec::with_capacity(promised.len());
        let mut entries = Vec::with_capacity(promised.len());
        for (name, tensors) in promised {
            let Some(storage) = files.shard(&name)? else {
                return Err(match tensors.into_iter().next() {
                    Some(tensor) => CheckpointError::MissingShard { shard: name, tensor },
                    None => missing(&files, index::INDEX, "or a single model.safetensors"),
                });
            };
            let shard = Shard { name: name.clone(), storage };
            let found = header::read(&name, shard.bytes())?;
            let names: HashSet<&str> = found.iter().map(|e| e.name.as_str()).collect();
            if let Some(tensor) = tensors.iter().find(|t| !names.contains(t.as_str())) {
                let reason = format!("is not in it, although {} says so", index::INDEX);
                return Err(CheckpointError::Entry { shard: name, tensor: tensor.clone(), reason });
            }
            entries.push(ShardEntries { name, entries: found });
            shards.push(shard);
        }
        let locations = bind::bind(&model, &entries)?;
        let floats = scan::scan(&model, &locations, &shards)?;

        let mut digest = Digest::default();
        digest.field(config_text);
        for (shard, entries) in shards.iter().zip(&entries) {
            let header = entries.entries.first().map_or(shard.bytes().len(), |entry| entry.offset);
            digest.field(&shard.bytes()[..header]);
            digest.field(&(shard.bytes().len() as u64).to_le_bytes());
        }
        digest.field(&floats.to_le_bytes());
        tracing::debug!(place, weights = model.weights.len(), shards = shards.len(), "checkpoint loaded");
        Ok(Checkpoint { model, shards, locations, texts, generation, fingerprint: digest.finish() })
    }

    /// The model that config.json describes.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// A weight's bytes, in place.
    pub fn weight(&self, id: WeightId) -> WeightView<'_> {
        let location = self.location(id);
        let weight = self.bytes(location.weight);
        let float = || match location.dtype {
            Dtype::F32 => FloatView::F32(weight),
            _ => FloatView::Bf16(weight),
        };
        match (self.model.weight(id).kind, location.affine) {
            (WeightKind::Matrix { experts, outputs, inputs, quantization: Some(quantization) }, Some(affine)) => {
                WeightView::Quantized(QuantizedView {
                    experts: experts.unwrap_or(1),
                    outputs,
                    inputs,
                    quantization,
                    weight,
                    scales: self.bytes(affine.scales),
                    biases: self.bytes(affine.biases),
                })
            }
            (WeightKind::Matrix { experts, outputs, inputs, .. }, _) => {
                WeightView::Dense(DenseView { experts: experts.unwrap_or(1), outputs, inputs, weight })
            }
            _ => WeightView::Float(float()),
        }
    }

    /// Where a weight's bytes are.
    pub fn location(&self, id: WeightId) -> WeightLocation {
        self.locations[id.0 as usize]
    }

    /// The files with the weights.
    pub fn shards(&self) -> &[Shard] {
        &self.shards
    }

    /// The bytes of a span.
    pub fn bytes(&self, span: Span) -> &[u8] {
        &self.shards[span.shard].bytes()[span.offset..span.offset + span.len]
    }

    /// A text file of the checkpoint: `config.json`, `generation_config.json`, `tokenizer.json`,
    /// `tokenizer_config.json` or `chat_template.jinja`; `None` when it has none of that name.
    pub fn text_file(&self, name: &str) -> Option<&[u8]> {
        self.texts.iter().find(|(n, _)| *n == name).map(|(_, storage)| storage.bytes())
    }

    /// End ids and sampling defaults.
    pub fn generation_config(&self) -> &GenerationConfig {
        &self.generation
    }

    /// Tells checkpoints apart and stays the same from one process to the next: covers config.json, the headers and
    /// sizes of the shards, and all floats that are read at load (so fine-tuned siblings of one geometry differ).
    pub fn fingerprint(&self) -> u128 {
        self.fingerprint
    }
}

/// The error for a missing file; a GGUF file in its place explains more.
fn missing(files: &Files, file: &str, accepted: &str) -> CheckpointError {
    match files.gguf() {
        Some(path) => CheckpointError::Gguf { path },
        None => CheckpointError::MissingFile { file: file.into(), folder: files.place(), accepted: accepted.into() },
    }
}
