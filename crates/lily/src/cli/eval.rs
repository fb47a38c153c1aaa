//! `lily eval`: teacher-forced logits over given tokens, and how far they are from a reference.

pub(super) mod compare;
mod logits_file;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use clap::{Args, ValueEnum};
use lily_cpu::Precision;
use lily_model::device::{Device, LogitRows, Output, PageId, Segment, SlotId, Step, Tokens};
use lily_model::graph::{Phase, Plan};
use serde_json::json;

use super::input;
use super::options::ModelOptions;
use super::progress;
use crate::device::{self, Demand};
use crate::source::Source;
use compare::{Comparison, log_softmax_at};
use logits_file::{LogitsReader, LogitsWriter};

/// Compute logits over given tokens: perplexity, a file of logits, the distance to a reference
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  lily eval --tokens ids.json\n  lily eval --model DIR --tokens ids.json --precision \
                        f32 --logits ref.safetensors\n  lily eval --model DIR --tokens ids.json --reference \
                        ref.safetensors\n\nPrints one JSON object: tokens, nll (mean, nats), perplexity, device, \
                        prefill_tokens_per_s; with --reference also mean_kl, max_kl (nats), top1_agreement, \
                        max_abs_diff."
)]
pub(super) struct EvalArgs {
    #[command(flatten)]
    model: ModelOptions,
    /// JSON file: an array of token ids
    #[arg(long, value_name = "FILE")]
    tokens: PathBuf,
    /// Write the logits: tensor `logits`, f32 [positions, vocab]
    #[arg(long, value_name = "FILE")]
    logits: Option<PathBuf>,
    /// Compare with tensor `logits` of this file
    #[arg(long, value_name = "FILE")]
    reference: Option<PathBuf>,
    /// Tokens of a prefill step [default: as many as keep the logits of a step near 64 MB, at most 512]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    chunk: Option<u32>,
    /// Exact float32, or the device's fast path
    #[arg(long, value_enum, default_value_t = PrecisionArg::Fast)]
    precision: PrecisionArg,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum PrecisionArg {
    F32,
    Fast,
}

/// Largest file of token ids: far more than any context holds.
const MOST_TOKENS_BYTES: u64 = 64 << 20;

/// Reads ids as text, so that an error can name the entry.
fn read_tokens(path: &Path, vocab: usize) -> anyhow::Result<Vec<u32>> {
    let text = input::text("--tokens", path, MOST_TOKENS_BYTES)?;
    let values: Vec<serde_json::Value> = serde_json::from_str(&text)
        .with_context(|| format!("--tokens {}: not a JSON array of token ids", path.display()))?;
    ensure!(!values.is_empty(), "--tokens {}: the array is empty", path.display());
    let id = |(index, value): (usize, &serde_json::Value)| {
        let id = value.as_u64().filter(|&id| id < vocab as u64);
        id.map(|id| id as u32).with_context(|| {
            format!(
                "--tokens {}: entry {index} is {value} (accepted: a whole number from 0 to {})",
                path.display(),
                vocab - 1
            )
        })
    };
    values.iter().enumerate().map(id).collect()
}

/// Whether a path leads to what stdout is, where the system tells.
#[cfg(unix)]
fn is_stdout(path: &Path) -> bool {
    use std::os::fd::AsFd;
    use std::os::unix::fs::MetadataExt;

    let stdout = std::io::stdout().as_fd().try_clone_to_owned().and_then(|fd| std::fs::File::from(fd).metadata());
    matches!((stdout, path.metadata()), (Ok(a), Ok(b)) if (a.dev(), a.ino()) == (b.dev(), b.ino()))
}

#[cfg(not(unix))]
fn is_stdout(_path: &Path) -> bool {
    false
}

/// Whether two paths lead to one file that is there.
fn same_file(a: &Path, b: &Path) -> bool {
    matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
}

/// Runs the command.
pub(super) fn run(args: &EvalArgs) -> anyhow::Result<ExitCode> {
    let source = Source::from_option(args.model.model.as_deref())?;
    let checkpoint = Arc::new(progress::loading(|| source.open())?);
    let vocab = checkpoint.model().config.vocab_size;
    if let Some(logits) = &args.logits {
        if is_stdout(logits) {
            bail!("--logits {} is stdout, which carries the result (accepted: another file)", logits.display());
        }
        let model = args.model.model.iter().flat_map(std::fs::read_dir).flatten().flatten().map(|file| file.path());
        let inputs = model.map(|path| ("--model", path));
        let inputs = inputs.chain([("--tokens", args.tokens.clone())]);
        for (option, path) in inputs.chain(args.reference.clone().map(|path| ("--reference", path))) {
            if same_file(&path, logits) {
                bail!("--logits {} is a file of {option} (accepted: another file)", logits.display());
            }
        }
    }
    let tokens = read_tokens(&args.tokens, vocab)?;
    let most = device::max_seq(&checkpoint, &args.model)?;
    if tokens.len() > most {
        bail!("--tokens {} has {} ids (accepted: at most {most})", args.tokens.display(), tokens.len());
    }
    let fitting = ((64 << 20) / (4 * vocab)).clamp(1, 512);
    let chunk = args.chunk.map_or(fitting, |n| n as usize).min(tokens.len());
    let precision = match args.precision {
        PrecisionArg::F32 => Precision::F32,
        PrecisionArg::Fast => Precision::Fast,
    };
    let capacity = device::capacity(&checkpoint, tokens.len(), Demand::single(chunk));
    let mut device = device::open(Arc::clone(&checkpoint), &args.model, precision, capacity)?;
    let reference = match &args.reference {
        Some(path) => Some(LogitsReader::open(path, tokens.len(), vocab)?),
        None => None,
    };
    let mut writer = match &args.logits {
        Some(path) => Some(LogitsWriter::create(path, tokens.len(), vocab)?),
        None => None,
    };
    let mut comparison = Comparison::default();
    let mut nll = 0f64;
    let mut time = Duration::ZERO;
    let bar = progress::tokens(tokens.len());
    let pages: Vec<PageId> = (0..tokens.len().div_ceil(Plan::PAGE_TOKENS) as u32).map(PageId).collect();
    device.clear_slot(SlotId(0))?;
    for start in (0..tokens.len()).step_by(chunk) {
        let ids = &tokens[start..(start + chunk).min(tokens.len())];
        let begin = Instant::now();
        let logits = step(device.as_mut(), ids, start, &pages)?;
        time += begin.elapsed();
        ensure!(logits.len() == ids.len() * vocab, "the device gave {} logits for {} rows", logits.len(), ids.len());
        if let Some(at) = logits.iter().position(|logit| !logit.is_finite()) {
            let (position, id) = (start + at / vocab, at % vocab);
            bail!("the logit of id {id} at position {position} is {} (accepted: a finite number)", logits[at]);
        }
        for (row, logits) in logits.chunks_exact(vocab).enumerate() {
            if let Some(&next) = tokens.get(start + row + 1) {
                nll -= log_softmax_at(logits, next as usize);
            }
            if let Some(reference) = &reference {
                comparison.add(&reference.row(start + row)?, logits);
            }
        }
        if let Some(writer) = &mut writer {
            writer.write(&logits)?;
        }
        bar.inc(ids.len() as u64);
    }
    bar.finish_and_clear();
    if let Some(writer) = writer {
        writer.finish()?;
    }
    let mean = if tokens.len() > 1 { Some(nll / (tokens.len() - 1) as f64) } else { None };
    let mut value = json!({
        "tokens": tokens.len(),
        "nll": mean,
        "perplexity": mean.map(f64::exp),
        "device": device.info().to_string(),
        "chunk": chunk,
        "prefill_tokens_per_s": tokens.len() as f64 / time.as_secs_f64(),
    });
    if reference.is_some() {
        comparison.report(&mut value);
    }
    super::print_result(&format!("{value:#}\n"))?;
    Ok(ExitCode::SUCCESS)
}

fn step(device: &mut dyn Device, ids: &[u32], start: usize, pages: &[PageId]) -> anyhow::Result<Vec<f32>> {
    let held = (start + ids.len()).div_ceil(Plan::PAGE_TOKENS);
    let segments = [Segment { slot: SlotId(0), start, rows: ids.len(), pages: &pages[..held] }];
    device.submit(&Step {
        phase: Phase::Prefill,
        tokens: Tokens::Ids(ids),
        segments: &segments,
        logit_rows: LogitRows::All,
        output: Output::Logits,
    })?;
    Ok(device.wait()?.logits)
}
