//! `lily synth`: a random checkpoint of any geometry in the published layout.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::bail;
use clap::Args;
use lily_cpu::{CpuDevice, CpuOptions, Precision};
use lily_model::checkpoint::Checkpoint;
use lily_model::config::ModelConfig;
use lily_model::device::{Device, LogitRows, Output, PageId, Segment, SlotId, Step, Tokens};
use lily_model::graph::Phase;
use lily_model::synth::{self, SynthOptions, Tokenizer};
use lily_model::text::qwen36_tokenizer_json;

use super::input;
use super::plan::Preset;
use super::progress;
use crate::device::{self, Demand};

/// Write a random checkpoint in the published layout
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  lily synth --preset 35b --out /tmp/35b            # 19.5 GB\n  lily synth --preset \
                        35b --layers 4 --out /tmp/4layers\n  lily synth --config my/config.json --out /tmp/mine \
                        --seed 7\n\nPrints what was written and how evenly each layer's router spreads random \
                        tokens over the experts."
)]
pub(super) struct SynthArgs {
    /// config.json of the geometry
    #[arg(long, value_name = "FILE", required_unless_present = "preset", conflicts_with = "preset")]
    config: Option<PathBuf>,
    /// A geometry known by name, instead of --config
    #[arg(long, value_enum)]
    preset: Option<Preset>,
    /// Folder to write; made if it is not there, must have no checkpoint
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Of all random numbers
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Another number of layers than the geometry has
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    layers: Option<u16>,
}

/// Largest config.json.
const MOST_CONFIG_BYTES: u64 = 16 << 20;

/// Tokens that the routing is measured over.
const ROUTED_TOKENS: usize = 256;

/// How evenly the routers of a new checkpoint spread random tokens over the experts, a line a layer.
fn routing(folder: &Path, seed: u64) -> anyhow::Result<String> {
    let checkpoint = Arc::new(Checkpoint::open(folder)?);
    let config = &checkpoint.model().config;
    let vocab = config.vocab_size as u64;
    let tokens = ROUTED_TOKENS.min(config.max_position_embeddings);
    // Different tokens: one that repeats goes to the same experts in any model.
    let ids: Vec<u32> =
        (0..tokens as u64).map(|i| (i.wrapping_add(seed).wrapping_mul(2_654_435_761) % vocab) as u32).collect();
    let capacity = device::capacity(&checkpoint, tokens, Demand::single(tokens));
    let options = CpuOptions { threads: 0, precision: Precision::Fast, capacity };
    let mut device = CpuDevice::new(Arc::clone(&checkpoint), options)?;
    device.count_routing();
    device.submit(&Step {
        phase: Phase::Prefill,
        tokens: Tokens::Ids(&ids),
        segments: &[Segment { slot: SlotId(0), start: 0, rows: tokens, pages: &[PageId(0)] }],
        logit_rows: LogitRows::None,
        output: Output::Argmax,
    })?;
    device.wait()?;
    Ok(device.take_routing().map(|counts| counts.to_string()).unwrap_or_default())
}

/// Runs the command.
pub(super) fn run(args: &SynthArgs) -> anyhow::Result<ExitCode> {
    let config = match (&args.config, args.preset) {
        (Some(path), _) => ModelConfig::from_json(&input::text("--config", path, MOST_CONFIG_BYTES)?)?,
        (None, Some(preset)) => preset.config(),
        (None, None) => bail!("--config or --preset is required"),
    };
    let config = match args.layers {
        Some(layers) => config.with_layers(layers.into()),
        None => config,
    };
    let qwen = qwen36_tokenizer_json()?;
    let mut tokenizers: Vec<&[u8]> = vec![&qwen];
    tokenizers.extend(crate::source::embedded_tokenizer());
    let bar = progress::bytes(0);
    let report = synth::write(
        &config,
        &SynthOptions { seed: args.seed, tokenizers: &tokenizers },
        &args.out,
        &|at: synth::Progress| {
            bar.set_length(at.total);
            bar.set_position(at.written);
        },
    )?;
    bar.finish_and_clear();
    let tokenizer = match report.tokenizer {
        Tokenizer::Given(0) => "the published tokenizer",
        Tokenizer::Given(_) => "the miniature's tokenizer",
        Tokenizer::ByteLevel => "a tokenizer of bytes",
        Tokenizer::None => "no tokenizer: its vocabulary is too small",
    };
    let routing = routing(&args.out, args.seed)?;
    super::print_result(&format!(
        "{}: {} tensors in {} shard{}, {:.2} GB, with {tokenizer}\n{routing}",
        args.out.display(),
        report.tensors,
        report.shards,
        if report.shards == 1 { "" } else { "s" },
        report.bytes as f64 / 1e9
    ))?;
    Ok(ExitCode::SUCCESS)
}
