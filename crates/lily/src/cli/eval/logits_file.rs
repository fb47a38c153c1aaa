//! The file of logits: safetensors, one tensor `logits`, f32 [positions, vocab]. Written row by row, since all rows of a
//! long text do not fit in memory; read in place.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Context, bail, ensure};
use lily_model::checkpoint::AlignedBytes;
use safetensors::{Dtype, SafeTensors};
use serde_json::json;

const NAME: &str = "logits";

/// Writes rows.
pub(super) struct LogitsWriter {
    file: BufWriter<File>,
    left: usize,
}

impl LogitsWriter {
    /// Starts a file of `positions` rows.
    pub(super) fn create(path: &Path, positions: usize, vocab: usize) -> anyhow::Result<Self> {
        let file = File::create(path).with_context(|| format!("--logits {}", path.display()))?;
        let bytes = positions * vocab * 4;
        let header = json!({NAME: {"dtype": "F32", "shape": [positions, vocab], "data_offsets": [0, bytes]}});
        let mut header = header.to_string();
        // The data begins at a multiple of 8.
        while !header.len().is_multiple_of(8) {
            header.push(' ');
        }
        let mut file = BufWriter::new(file);
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(header.as_bytes())?;
        Ok(LogitsWriter { file, left: positions * vocab })
    }

    /// Writes the next values.
    pub(super) fn write(&mut self, logits: &[f32]) -> anyhow::Result<()> {
        ensure!(logits.len() <= self.left, "more logits than positions");
        self.left -= logits.len();
        Ok(logits.iter().try_for_each(|l| self.file.write_all(&l.to_le_bytes()))?)
    }

    /// Ends the file.
    pub(super) fn finish(mut self) -> anyhow::Result<()> {
        ensure!(self.left == 0, "{} logits are missing", self.left);
        Ok(self.file.flush()?)
    }
}

/// Rows of a file.
pub(super) struct LogitsReader {
    bytes: AlignedBytes,
    start: usize,
    vocab: usize,
}

impl LogitsReader {
    /// Reads a file that has at least `positions` rows.
    pub(super) fn open(path: &Path, positions: usize, vocab: usize) -> anyhow::Result<Self> {
        let place = || format!("--reference {}", path.display());
        let bytes = AlignedBytes::from(std::fs::read(path).with_context(place)?.as_slice());
        let file = SafeTensors::deserialize(bytes.as_slice()).with_context(place)?;
        let tensor = file.tensor(NAME).with_context(|| format!("{}: tensor {NAME:?}", place()))?;
        let shape = tensor.shape();
        if tensor.dtype() != Dtype::F32 || shape.len() != 2 || shape[0] < positions || shape[1] != vocab {
            bail!("{}: {NAME} is {:?} {shape:?} (accepted: F32 [{positions}, {vocab}])", place(), tensor.dtype());
        }
        let start = tensor.data().as_ptr() as usize - bytes.as_slice().as_ptr() as usize;
        Ok(LogitsReader { start, bytes, vocab })
    }

    /// Row `index`.
    pub(super) fn row(&self, index: usize) -> Vec<f32> {
        let from = self.start + index * self.vocab * 4;
        let row = &self.bytes.as_slice()[from..from + self.vocab * 4];
        row.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
    }
}
