//! Where a model comes from: a folder, or the miniature compiled into the program.

use std::path::{Path, PathBuf};

use anyhow::Context;
#[cfg(not(feature = "embedded"))]
use anyhow::bail;
use lily_model::checkpoint::Checkpoint;

/// Where a model comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A checkpoint folder.
    Folder(PathBuf),
    /// The miniature compiled into the program.
    #[cfg(feature = "embedded")]
    Embedded,
}

impl Source {
    /// The folder given by `--model`, else the miniature; an error in a build without it.
    pub fn from_option(model: Option<&Path>) -> anyhow::Result<Self> {
        match model {
            Some(folder) => Ok(Source::Folder(folder.to_path_buf())),
            #[cfg(feature = "embedded")]
            None => Ok(Source::Embedded),
            #[cfg(not(feature = "embedded"))]
            None => bail!("--model DIR is required: this build has no built-in model (feature `embedded`)"),
        }
    }

    /// Name that the API reports: the folder's own, or `lily-mini`.
    pub fn name(&self) -> String {
        match self {
            Source::Folder(path) => {
                let full = path.canonicalize().unwrap_or_else(|_| path.clone());
                full.file_name().map_or_else(|| "model".into(), |name| name.to_string_lossy().into_owned())
            }
            #[cfg(feature = "embedded")]
            Source::Embedded => "lily-mini".into(),
        }
    }

    /// Text of the model's `config.json`.
    pub fn config_json(&self) -> anyhow::Result<String> {
        match self {
            Source::Folder(folder) => {
                let path = folder.join("config.json");
                std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
            }
            #[cfg(feature = "embedded")]
            Source::Embedded => Ok(embedded::CONFIG.to_owned()),
        }
    }

    /// Opens the checkpoint. Weights stay where they are: in mapped files, or in the program itself.
    pub fn open(&self) -> anyhow::Result<Checkpoint> {
        match self {
            Source::Folder(folder) => Ok(Checkpoint::open(folder)?),
            #[cfg(feature = "embedded")]
            Source::Embedded => Checkpoint::from_files(embedded::files()).context("the built-in model"),
        }
    }
}

/// The miniature's tokenizer.json, in a build that has it.
pub fn embedded_tokenizer() -> Option<&'static [u8]> {
    #[cfg(feature = "embedded")]
    return Some(embedded::TOKENIZER);
    #[cfg(not(feature = "embedded"))]
    None
}

/// The files of the miniature.
#[cfg(feature = "embedded")]
mod embedded {
    use lily_model::checkpoint::Storage;

    pub const CONFIG: &str = include_str!("../../../assets/mini/config.json");

    pub const TOKENIZER: &[u8] = include_bytes!("../../../assets/mini/tokenizer.json");

    /// Gives the weights the alignment that a mapped file would have.
    #[repr(C, align(4096))]
    struct Page<T: ?Sized>(T);

    static WEIGHTS: &Page<[u8]> = &Page(*include_bytes!("../../../assets/mini/model.safetensors"));

    /// All of them, by the names they have in a folder.
    pub fn files() -> Vec<(String, Storage)> {
        let files: [(&str, &'static [u8]); 6] = [
            ("config.json", CONFIG.as_bytes()),
            ("generation_config.json", include_bytes!("../../../assets/mini/generation_config.json")),
            ("tokenizer.json", TOKENIZER),
            ("tokenizer_config.json", include_bytes!("../../../assets/mini/tokenizer_config.json")),
            ("chat_template.jinja", include_bytes!("../../../assets/mini/chat_template.jinja")),
            ("model.safetensors", &WEIGHTS.0),
        ];
        files.map(|(name, bytes)| (name.to_owned(), Storage::Static(bytes))).into()
    }
}
