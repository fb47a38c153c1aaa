//! Random checkpoints of any geometry in the published layout: for tests, for benchmarks at full size, and for users who
//! want to see what their machine would do before they download 20 GB. The one place that makes random models.
//!
//! A result depends on the config and the seed alone, not on the number of threads.

mod fill;
mod layout;
mod quantize;
mod random;
mod recipe;
mod routing;
mod text;

#[cfg(test)]
mod tests;

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;

pub use quantize::{QuantizedRow, quantize_row};
pub use routing::{LayerRouting, RoutingCounts};
pub use text::Tokenizer;

use crate::checkpoint::{AlignedBytes, Checkpoint, CheckpointError, Storage};
use crate::config::{ConfigError, ModelConfig};
use crate::graph::Model;
use fill::{RowSizes, Rows};
use layout::Layout;

/// Bytes of packed weights drawn at a time by a thread; bounds the memory used.
const CHUNK_BYTES: usize = 4 << 20;

/// Why a synthetic checkpoint could not be made.
#[derive(Debug, thiserror::Error)]
pub enum SynthError {
    /// The geometry is not supported.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A tokenizer that was given is not a tokenizer.json.
    #[error("tokenizer {index} is no tokenizer.json: {reason}")]
    Tokenizer {
        /// Its place in the list.
        index: usize,
        /// What is wrong.
        reason: String,
    },
    /// The folder already has files of a checkpoint, which are not overwritten.
    #[error("{} exists already (accepted: a folder without a checkpoint)", path.display())]
    Exists {
        /// The file found.
        path: PathBuf,
    },
    /// The operating system refused.
    #[error("cannot write {}: {source}", path.display())]
    Io {
        /// File or folder.
        path: PathBuf,
        /// The system's own words.
        source: io::Error,
    },
    /// The checkpoint in memory did not load.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
}

/// What is written beside the geometry.
#[derive(Debug, Clone, Copy, Default)]
pub struct SynthOptions<'a> {
    /// Of all random numbers.
    pub seed: u64,
    /// Contents of tokenizer.json files; the largest that fits the vocabulary is used.
    pub tokenizers: &'a [&'a [u8]],
}

/// How far the weights are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Bytes written.
    pub written: u64,
    /// Bytes of all weights.
    pub total: u64,
}

/// What was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SynthReport {
    /// Bytes of all tensors.
    pub bytes: u64,
    /// Tensors.
    pub tensors: usize,
    /// Shards.
    pub shards: usize,
    /// Which tokenizer it has.
    pub tokenizer: Tokenizer,
}

/// Writes a checkpoint to the folder `out`, which is made if it is not there. `progress` is called from several
/// threads, every few MB. Memory use is a few MB a thread whatever the size of the model. After a failure the folder
/// has no config.json, so that nothing takes it for a checkpoint.
pub fn write(
    config: &ModelConfig,
    options: &SynthOptions<'_>,
    out: &Path,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<SynthReport, SynthError> {
    let model = Model::new(config.clone())?;
    let on = |path: &Path| {
        let path = path.to_path_buf();
        move |source| SynthError::Io { path, source }
    };
    fs::create_dir_all(out).map_err(on(out))?;
    for entry in fs::read_dir(out).map_err(on(out))? {
        let path = entry.map_err(on(out))?.path();
        let is_weights = path.extension().is_some_and(|e| e == "safetensors");
        if is_weights || path.file_name().is_some_and(|n| n == "config.json") {
            return Err(SynthError::Exists { path });
        }
    }
    let layout = layout::layout(&model);
    let (texts, tokenizer) = text::files(config, options.tokenizers)?;
    let mut files = Vec::with_capacity(layout.shards.len());
    for shard in &layout.shards {
        let path = out.join(&shard.name);
        let file = File::create_new(&path).map_err(on(&path))?;
        file.set_len(shard.len).map_err(on(&path))?;
        file.write_all_at(&shard.header, 0).map_err(on(&path))?;
        files.push((path, file));
    }
    fill_all(&model, &layout, options.seed, progress, &|shard, offset, bytes| {
        let (path, file) = &files[shard];
        file.write_all_at(bytes, offset).map_err(on(path))
    })?;
    let index = [("model.safetensors.index.json", layout.index.clone().into_bytes())];
    for (name, bytes) in index.into_iter().chain(texts) {
        let path = out.join(name);
        fs::write(&path, bytes).map_err(on(&path))?;
    }
    Ok(report(&layout, tokenizer))
}

/// The checkpoint that [`write`] would write without tokenizers given, in memory.
pub fn in_memory(config: &ModelConfig, seed: u64) -> Result<Checkpoint, SynthError> {
    let model = Model::new(config.clone())?;
    let layout = layout::layout(&model);
    let (texts, _) = text::files(config, &[])?;
    let shards: Vec<Mutex<AlignedBytes>> = layout
        .shards
        .iter()
        .map(|shard| {
            let mut bytes = AlignedBytes::zeroed(shard.len as usize);
            bytes.as_mut_slice()[..shard.header.len()].copy_from_slice(&shard.header);
            Mutex::new(bytes)
        })
        .collect();
    fill_all(&model, &layout, seed, &|_| {}, &|shard, offset, bytes| {
        let mut whole = shards[shard].lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        whole.as_mut_slice()[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    })?;
    let mut files = vec![("model.safetensors.index.json".to_string(), owned(layout.index.as_bytes()))];
    files.extend(texts.iter().map(|(name, bytes)| (name.to_string(), owned(bytes))));
    for (shard, bytes) in layout.shards.iter().zip(shards) {
        let bytes = bytes.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
        files.push((shard.name.clone(), Storage::Owned(bytes)));
    }
    Ok(Checkpoint::from_files(files)?)
}

fn owned(bytes: &[u8]) -> Storage {
    Storage::Owned(bytes.into())
}

fn report(layout: &Layout, tokenizer: Tokenizer) -> SynthReport {
    SynthReport {
        bytes: layout.shards.iter().map(|s| s.len - s.header.len() as u64).sum(),
        tensors: layout.tensors,
        shards: layout.shards.len(),
        tokenizer,
    }
}

/// Takes bytes for a shard at an offset.
type Sink<'a> = dyn Fn(usize, u64, &[u8]) -> Result<(), SynthError> + Sync + 'a;

/// Some rows of a weight.
struct Chunk {
    weight: usize,
    first: usize,
    count: usize,
}

/// Draws all weights, on all cores, and gives them to `sink`.
fn fill_all(
    model: &Model,
    layout: &Layout,
    seed: u64,
    progress: &(dyn Fn(Progress) + Sync),
    sink: &Sink<'_>,
) -> Result<(), SynthError> {
    let recipes = recipe::recipes(model);
    let mut chunks = Vec::new();
    for (weight, spec) in model.weights.iter().enumerate() {
        let sizes = RowSizes::of(spec.kind);
        let step = (CHUNK_BYTES / sizes.weight).max(1);
        chunks.extend((0..sizes.rows).step_by(step).map(|first| Chunk {
            weight,
            first,
            count: step.min(sizes.rows - first),
        }));
    }
    let total = layout.shards.iter().map(|s| s.len - s.header.len() as u64).sum();
    let (next, written) = (AtomicUsize::new(0), AtomicU64::new(0));
    let work = || -> Result<(), SynthError> {
        let mut rows = Rows::default();
        while let Some(chunk) = chunks.get(next.fetch_add(1, Ordering::Relaxed)) {
            let spec = &model.weights[chunk.weight];
            let sizes = RowSizes::of(spec.kind);
            let place = layout.places[chunk.weight];
            rows.clear();
            fill::fill(seed, spec, recipes[chunk.weight], chunk.first, chunk.count, &mut rows);
            let at = |start: u64, row_bytes: usize| start + (chunk.first * row_bytes) as u64;
            sink(place.shard, at(place.weight, sizes.weight), &rows.weight)?;
            if sizes.groups > 0 {
                sink(place.shard, at(place.scales, sizes.groups), &rows.scales)?;
                sink(place.shard, at(place.biases, sizes.groups), &rows.biases)?;
            }
            let bytes = (chunk.count * (sizes.weight + 2 * sizes.groups)) as u64;
            progress(Progress { written: written.fetch_add(bytes, Ordering::Relaxed) + bytes, total });
        }
        Ok(())
    };
    let threads = thread::available_parallelism().map_or(1, |n| n.get()).min(chunks.len());
    if threads <= 1 {
        return work();
    }
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| match worker.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })
}
