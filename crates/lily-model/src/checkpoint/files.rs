//! The files of a checkpoint: a folder on disk, or a list in memory. Decides nothing about their content.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use super::{CheckpointError, Storage};

/// Largest text file that is read, in bytes. The published tokenizer.json is 20 MB.
const TEXT_LIMIT: u64 = 256 << 20;

/// Where files are taken from.
pub(super) enum Files {
    /// A folder.
    Folder(PathBuf),
    /// Files in memory by name.
    Memory(HashMap<String, Storage>),
}

impl Files {
    /// A folder, which must be one.
    pub fn folder(path: &Path) -> Result<Self, CheckpointError> {
        let io = |source| CheckpointError::Io { path: path.into(), source };
        if !fs::metadata(path).map_err(io)?.is_dir() {
            return Err(match starts_with_gguf(path) {
                true => CheckpointError::Gguf { path: path.into() },
                false => CheckpointError::NotAFolder { path: path.into() },
            });
        }
        fs::read_dir(path).map_err(io)?;
        Ok(Files::Folder(path.into()))
    }

    /// What the files are called in messages.
    pub fn place(&self) -> String {
        match self {
            Files::Folder(path) => path.display().to_string(),
            Files::Memory(_) => "memory".into(),
        }
    }

    /// A file that is read as a whole; `None` when there is none of that name.
    pub fn text(&mut self, name: &str) -> Result<Option<Storage>, CheckpointError> {
        let (path, file) = match self {
            Files::Memory(files) => return Ok(files.remove(name)),
            Files::Folder(folder) => match open(&folder.join(name))? {
                None => return Ok(None),
                Some(file) => (folder.join(name), file),
            },
        };
        let io = |source| CheckpointError::Io { path: path.clone(), source };
        let bytes = file.metadata().map_err(io)?.len();
        if bytes > TEXT_LIMIT {
            return Err(CheckpointError::FileTooLarge { file: name.into(), bytes, limit: TEXT_LIMIT });
        }
        let mut content = Vec::with_capacity(bytes as usize);
        file.take(TEXT_LIMIT).read_to_end(&mut content).map_err(io)?;
        Ok(Some(Storage::Owned(content.as_slice().into())))
    }

    /// A shard, mapped; `None` when there is none of that name.
    pub fn shard(&mut self, name: &str) -> Result<Option<Storage>, CheckpointError> {
        let folder = match self {
            Files::Memory(files) => return Ok(files.remove(name)),
            Files::Folder(folder) => folder,
        };
        let path = folder.join(name);
        let Some(file) = open(&path)? else { return Ok(None) };
        let io = |source| CheckpointError::Io { path: path.clone(), source };
        if file.metadata().map_err(io)?.len() == 0 {
            return Ok(Some(Storage::Static(&[])));
        }
        // SAFETY: the mapping is read-only. That nobody changes the file while it is mapped is the user's side of the
        // bargain (see `storage.rs`); every mapping of a file rests on it.
        let map = unsafe { Mmap::map(&file) }.map_err(io)?;
        Ok(Some(Storage::Mapped(map)))
    }

    /// A GGUF file lying where safetensors were looked for.
    pub fn gguf(&self) -> Option<PathBuf> {
        match self {
            Files::Folder(folder) => fs::read_dir(folder)
                .ok()?
                .filter_map(|entry| entry.ok().map(|e| e.path()))
                .find(|path| path.extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf"))),
            Files::Memory(files) => files.keys().find(|name| name.ends_with(".gguf")).map(PathBuf::from),
        }
    }
}

/// Opens a regular file (a link to one included). Checks before it opens, since opening a pipe would wait for ever.
fn open(path: &Path) -> Result<Option<File>, CheckpointError> {
    let io = |source| CheckpointError::Io { path: path.into(), source };
    match fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(io(error)),
        Ok(metadata) if !metadata.is_file() => Err(CheckpointError::NotAFile { path: path.into() }),
        Ok(_) => File::open(path).map(Some).map_err(io),
    }
}

fn starts_with_gguf(path: &Path) -> bool {
    let mut magic = [0; 4];
    let Ok(Some(mut file)) = open(path) else { return false };
    file.read_exact(&mut magic).is_ok() && &magic == b"GGUF"
}
