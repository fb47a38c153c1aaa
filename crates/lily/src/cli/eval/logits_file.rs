//! The file of logits: safetensors, one tensor `logits`, f32 [positions, vocab]. Written row by row, since all rows of a
//! long text do not fit in memory.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use safetensors::{Dtype, SafeTensors};
use serde_json::json;

const NAME: &str = "logits";

/// Writes rows, into a file beside the one that is wanted: that one appears when it is whole, or stays as it was.
pub(super) struct LogitsWriter {
    file: BufWriter<File>,
    left: usize,
    partial: PathBuf,
    path: PathBuf,
}

impl LogitsWriter {
    /// Starts a file of `positions` rows.
    pub(super) fn create(path: &Path, positions: usize, vocab: usize) -> anyhow::Result<Self> {
        // A device, a pipe or a link is written as it is.
        let in_place = path.symlink_metadata().is_ok_and(|found| !found.is_file());
        let mut partial = path.as_os_str().to_owned();
        if !in_place {
            partial.push(format!(".{}.partial", std::process::id()));
        }
        let partial = PathBuf::from(partial);
        let file = File::create(&partial).with_context(|| format!("--logits {}", path.display()))?;
        let bytes = positions * vocab * 4;
        let header = json!({NAME: {"dtype": "F32", "shape": [positions, vocab], "data_offsets": [0, bytes]}});
        let mut header = header.to_string();
        // The data begins at a multiple of 8.
        while !header.len().is_multiple_of(8) {
            header.push(' ');
        }
        let (file, path) = (BufWriter::new(file), path.to_path_buf());
        let mut writer = LogitsWriter { file, left: positions * vocab, partial, path };
        let length = (header.len() as u64).to_le_bytes();
        writer.put(&[&length[..], header.as_bytes()].concat())?;
        Ok(writer)
    }

    /// Writes the next values.
    pub(super) fn write(&mut self, logits: &[f32]) -> anyhow::Result<()> {
        ensure!(logits.len() <= self.left, "more logits than positions");
        self.left -= logits.len();
        logits.iter().try_for_each(|l| self.put(&l.to_le_bytes()))
    }

    fn put(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        self.file.write_all(bytes).with_context(|| format!("--logits {}", self.path.display()))
    }

    /// Ends the file.
    pub(super) fn finish(mut self) -> anyhow::Result<()> {
        ensure!(self.left == 0, "{} logits are missing", self.left);
        let place = || format!("--logits {}", self.path.display());
        self.file.flush().with_context(place)?;
        if self.partial != self.path {
            std::fs::rename(&self.partial, &self.path).with_context(place)?;
        }
        Ok(())
    }
}

impl Drop for LogitsWriter {
    fn drop(&mut self) {
        if self.partial != self.path {
            // After `finish` there is none.
            let _ = std::fs::remove_file(&self.partial);
        }
    }
}

/// Rows of a file.
pub(super) struct LogitsReader {
    bytes: Vec<u8>,
    start: usize,
    vocab: usize,
}

impl LogitsReader {
    /// Reads a file that has at least `positions` rows.
    pub(super) fn open(path: &Path, positions: usize, vocab: usize) -> anyhow::Result<Self> {
        let place = || format!("--reference {}", path.display());
        // Asked before it is opened, which waits where it is a pipe.
        ensure!(path.metadata().with_context(place)?.is_file(), "{} is no file", place());
        let bytes = std::fs::read(path).with_context(place)?;
        let file = SafeTensors::deserialize(&bytes)
            .with_context(|| format!("{} (accepted: a safetensors file with tensor {NAME:?})", place()))?;
        let tensor = file.tensor(NAME).with_context(|| format!("{}: tensor {NAME:?}", place()))?;
        let shape = tensor.shape();
        if tensor.dtype() != Dtype::F32 || shape.len() != 2 || shape[0] < positions || shape[1] != vocab {
            bail!("{}: {NAME} is {:?} {shape:?} (accepted: F32 [{positions}, {vocab}])", place(), tensor.dtype());
        }
        let start = tensor.data().as_ptr() as usize - bytes.as_ptr() as usize;
        Ok(LogitsReader { start, bytes, vocab })
    }

    /// Row `index`; an error where it has an entry that is no finite number.
    pub(super) fn row(&self, index: usize) -> anyhow::Result<Vec<f32>> {
        let from = self.start + index * self.vocab * 4;
        let row = &self.bytes[from..from + self.vocab * 4];
        let row: Vec<f32> = row.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        if let Some(id) = row.iter().position(|logit| !logit.is_finite()) {
            bail!("--reference: the logit of id {id} at position {index} is {} (accepted: a finite number)", row[id]);
        }
        Ok(row)
    }
}
