//! Where a model comes from: a folder, or the miniature compiled into the program.

use std::path::{Path, PathBuf};

use anyhow::Context;
#[cfg(not(feature = "embedded"))]
use anyhow::bail;

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
}

/// The files of the miniature.
#[cfg(feature = "embedded")]
mod embedded {
    pub const CONFIG: &str = include_str!("../../../assets/mini/config.json");
}
