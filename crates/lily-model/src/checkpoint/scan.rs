//! One pass over a checkpoint's floats at load: refuses NaN and infinities, and digests what it reads.
//!
//! The rule: every scale, bias and vector is read. Dense bf16 matrices are read too when together they are at most
//! [`DENSE_LIMIT`] (the bf16 modules of a quantized checkpoint are; a wholly unquantized one would have to be read from
//! disk twice). Packed values cannot be NaN and are not read.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::bind::{Dtype, Span, WeightLocation};
use super::digest::Digest;
use super::{CheckpointError, Shard};
use crate::graph::{Model, WeightKind};

/// Bytes of dense matrices up to which they are read at load.
const DENSE_LIMIT: usize = 1 << 30;

/// More threads than this gain nothing: the pass waits for memory.
const MAX_THREADS: usize = 8;

/// A tensor to read.
struct Job<'a> {
    weight: usize,
    leaf: &'static str,
    dtype: Dtype,
    bytes: &'a [u8],
}

/// Reads the floats. Returns a digest of them, independent of the number of threads.
pub(super) fn scan(model: &Model, locations: &[WeightLocation], shards: &[Shard]) -> Result<u128, CheckpointError> {
    let jobs = jobs(model, locations, shards);
    let next = AtomicUsize::new(0);
    let worker = || {
        let mut done = Vec::new();
        while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
            done.push((job.weight, job.leaf, read(model, job)?));
        }
        Ok(done)
    };
    let threads = thread::available_parallelism().map_or(1, |n| n.get()).min(MAX_THREADS).min(jobs.len());
    let results: Vec<Result<Vec<_>, CheckpointError>> = if threads <= 1 {
        vec![worker()]
    } else {
        thread::scope(|scope| {
            let handles: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
            handles
                .into_iter()
                .map(|handle| handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect()
        })
    };
    let mut digests = Vec::with_capacity(jobs.len());
    for result in results {
        digests.extend(result?);
    }
    digests.sort_unstable();
    let mut total = Digest::default();
    for (_, _, digest) in digests {
        total.update(&digest.to_le_bytes());
    }
    Ok(total.finish())
}

fn jobs<'a>(model: &Model, locations: &[WeightLocation], shards: &'a [Shard]) -> Vec<Job<'a>> {
    let bytes = |span: Span| &shards[span.shard].bytes()[span.offset..span.offset + span.len];
    let is_dense = |index: usize| matches!(model.weights[index].kind, WeightKind::Matrix { quantization: None, .. });
    let dense: usize =
        locations.iter().enumerate().filter(|(i, _)| is_dense(*i)).fold(0, |sum, (_, l)| sum + l.weight.len);
    let mut jobs = Vec::new();
    for (weight, location) in locations.iter().enumerate() {
        if let Some(affine) = location.affine {
            jobs.push(Job { weight, leaf: "scales", dtype: Dtype::Bf16, bytes: bytes(affine.scales) });
            jobs.push(Job { weight, leaf: "biases", dtype: Dtype::Bf16, bytes: bytes(affine.biases) });
        } else if !is_dense(weight) || dense <= DENSE_LIMIT {
            jobs.push(Job { weight, leaf: "weight", dtype: location.dtype, bytes: bytes(location.weight) });
        }
    }
    jobs
}

fn read(model: &Model, job: &Job<'_>) -> Result<u128, CheckpointError> {
    // Pieces that stay in cache between the check and the digest.
    const PIECE: usize = 16 << 10;
    let mut digest = Digest::default();
    for (index, piece) in job.bytes.chunks(PIECE).enumerate() {
        if let Some((element, value)) = not_finite(job.dtype, piece) {
            let spec = &model.weights[job.weight];
            let tensor = match spec.kind {
                WeightKind::Vector { .. } => spec.name.clone(),
                _ => format!("{}.{}", spec.name, job.leaf),
            };
            let size = if job.dtype == Dtype::Bf16 { 2 } else { 4 };
            return Err(CheckpointError::NotFinite { tensor, index: index * PIECE / size + element, value });
        }
        digest.update(piece);
    }
    Ok(digest.finish())
}

/// The first element of `bytes` that is NaN or infinite, and its value.
fn not_finite(dtype: Dtype, bytes: &[u8]) -> Option<(usize, f32)> {
    match dtype {
        Dtype::U32 => None,
        Dtype::Bf16 => {
            let element = |b: &[u8; 2]| u16::from_le_bytes(*b);
            let (elements, _) = bytes.as_chunks::<2>();
            // A fold without an early exit, so that it compiles to vector compares.
            let any = elements.iter().fold(0u16, |any, b| any | u16::from(element(b) & 0x7f80 == 0x7f80));
            (any != 0).then(|| {
                let index = elements.iter().position(|b| element(b) & 0x7f80 == 0x7f80).unwrap_or(0);
                (index, f32::from_bits(u32::from(element(&elements[index])) << 16))
            })
        }
        Dtype::F32 => {
            let (elements, _) = bytes.as_chunks::<4>();
            let values = elements.iter().map(|b| f32::from_le_bytes(*b));
            values.enumerate().find(|(_, value)| !value.is_finite())
        }
    }
}
