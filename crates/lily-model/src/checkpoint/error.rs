//! Why a checkpoint is refused: each error names the file, tensor or field, what was found, and what would be accepted.

use std::path::PathBuf;

use crate::config::ConfigError;

/// Why a checkpoint cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// `config.json` does not describe a supported model.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The operating system refused (no such folder, no read permission, ...).
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// File or folder.
        path: PathBuf,
        /// The system's own words.
        source: std::io::Error,
    },
    /// The path is a file, or something else that is not a folder.
    #[error("{} is not a folder (accepted: a folder with config.json and model*.safetensors)", path.display())]
    NotAFolder {
        /// The path given.
        path: PathBuf,
    },
    /// A file of the folder is a folder, pipe or device.
    #[error("{} is not a regular file", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// GGUF weights where safetensors are needed.
    #[error(
        "{} is a GGUF file, which Lily does not read (accepted: a folder in the MLX layout, config.json and \
         model*.safetensors)",
        path.display()
    )]
    Gguf {
        /// The GGUF file.
        path: PathBuf,
    },
    /// A file that every checkpoint has is not there.
    #[error("{file} is missing from {folder} (accepted: {accepted})")]
    MissingFile {
        /// The file.
        file: String,
        /// Where it was looked for.
        folder: String,
        /// What would have been accepted.
        accepted: String,
    },
    /// A text file is larger than any sensible one.
    #[error("{file} is {bytes} bytes (accepted: at most {limit})")]
    FileTooLarge {
        /// The file.
        file: String,
        /// Its size.
        bytes: u64,
        /// Largest accepted size.
        limit: u64,
    },
    /// A JSON file is not UTF-8, not JSON, not of the right form, or repeats a key.
    #[error("{file}: {reason}")]
    Json {
        /// The file.
        file: String,
        /// What is wrong, and where.
        reason: String,
    },
    /// A field of a JSON file has a value that is not supported.
    #[error("{file}: `{field}` is {value} (accepted: {accepted})")]
    Field {
        /// The file.
        file: String,
        /// The field.
        field: String,
        /// The value found, as JSON, shortened.
        value: String,
        /// What would have been accepted.
        accepted: String,
    },
    /// The index puts a tensor into a file that is not a plain name within the folder.
    #[error("{index}: tensor `{tensor}` is said to be in {shard:?} (accepted: a *.safetensors name without a folder)")]
    ShardName {
        /// The index file.
        index: String,
        /// The tensor.
        tensor: String,
        /// The name found.
        shard: String,
    },
    /// The index names a shard that is not there.
    #[error("shard {shard} is missing; tensor `{tensor}` should be in it")]
    MissingShard {
        /// The shard.
        shard: String,
        /// A tensor that needs it.
        tensor: String,
    },
    /// A shard is too short to be safetensors, or its header is malformed.
    #[error("shard {shard}: {reason}")]
    Header {
        /// The shard.
        shard: String,
        /// What is wrong, with the numbers.
        reason: String,
    },
    /// A tensor's entry in a header is malformed or does not fit the file.
    #[error("shard {shard}: tensor `{tensor}` {reason}")]
    Entry {
        /// The shard.
        shard: String,
        /// The tensor.
        tensor: String,
        /// What is wrong, with the numbers.
        reason: String,
    },
    /// A tensor that the model needs is in no shard.
    #[error("tensor `{tensor}` is missing (accepted: {accepted})")]
    MissingTensor {
        /// The tensor.
        tensor: String,
        /// Type and shape it should have.
        accepted: String,
    },
    /// A tensor has a type the model cannot use there.
    #[error("tensor `{tensor}` is {found} (accepted: {accepted})")]
    WrongDtype {
        /// The tensor.
        tensor: String,
        /// Type found.
        found: String,
        /// Types accepted.
        accepted: String,
    },
    /// A tensor has another shape than config.json implies.
    #[error("tensor `{tensor}` has shape {found:?} (accepted: {accepted:?})")]
    WrongShape {
        /// The tensor.
        tensor: String,
        /// Shape found.
        found: Vec<usize>,
        /// Shape that follows from config.json.
        accepted: Vec<usize>,
    },
    /// A tensor that the model does not have and that is not known to be ignorable.
    #[error(
        "shard {shard}: unknown tensor `{tensor}` (accepted: the tensors that config.json implies, `vision_tower.*`, \
         `mtp.*`)"
    )]
    UnknownTensor {
        /// The shard.
        shard: String,
        /// The tensor.
        tensor: String,
    },
    /// A tensor is in two shards.
    #[error("tensor `{tensor}` is both in {first} and in {second}")]
    DuplicateTensor {
        /// The tensor.
        tensor: String,
        /// One shard.
        first: String,
        /// The other.
        second: String,
    },
    /// A tensor has NaN or an infinity.
    #[error("tensor `{tensor}` has {value} at element {index} (accepted: finite numbers)")]
    NotFinite {
        /// The tensor.
        tensor: String,
        /// Position of the first such element.
        index: usize,
        /// `NaN`, `inf` or `-inf`.
        value: f32,
    },
}
