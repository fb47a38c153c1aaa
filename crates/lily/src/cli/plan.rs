//! `lily plan`: what one step of the model does, before any weight is read. Operations, stages, bytes that must move, and
//! the tokens/s that a memory bandwidth allows at most.

mod report;

use std::process::ExitCode;

use anyhow::bail;
use clap::{Args, ValueEnum};
use lily_gpu::paper::{self, PaperStep};
use lily_gpu::tuning::Tuning;
use lily_model::config::ModelConfig;
use lily_model::graph::{Model, Phase, Plan, Traffic};

use super::options::{DeviceKind, positive};
use crate::source::Source;
use report::Report;

/// Show the execution plan of a model: operations, stages, bytes, and the speed they allow
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  lily plan --preset 35b --device metal\n  lily plan --preset 35b --phase prefill --rows 512 \
                        --bandwidth 546\n  lily plan --model ~/Qwen3.6-35B-A3B-4bit --json\n  lily plan --dot | dot \
                        -Tsvg > plan.svg"
)]
pub(super) struct PlanArgs {
    /// Folder with a config.json (no weights needed); without it and --preset, the built-in miniature
    #[arg(long, value_name = "DIR", env = "LILY_MODEL")]
    model: Option<std::path::PathBuf>,
    /// A geometry known by name, instead of --model
    #[arg(long, value_enum, conflicts_with = "model")]
    preset: Option<Preset>,
    /// With metal or emulated, count also the dispatches that this device's table gives and the bytes that they move; nothing
    /// is run on it
    #[arg(long, value_enum, default_value_t = DeviceKind::Auto, env = "LILY_DEVICE")]
    device: DeviceKind,
    /// One token of each sequence, or a chunk of a prompt
    #[arg(long, value_enum, default_value_t = PhaseArg::Decode)]
    phase: PhaseArg,
    /// Rows of the step: sequences (decode, 1 to 16) or prompt tokens (prefill, 1 to 4096) [default: 1, or 512]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    rows: Option<u32>,
    /// Tokens that each sequence already has in its KV cache
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1_048_576))]
    context: u32,
    /// Memory bandwidth to compute the floor for, GB/s
    #[arg(long, value_name = "GB/S", value_parser = positive)]
    bandwidth: Option<f64>,
    /// Print JSON (keys dispatches, levels, bytes, …, ops)
    #[arg(long, conflicts_with = "dot")]
    json: bool,
    /// Print a Graphviz graph of the operations and what each waits for
    #[arg(long)]
    dot: bool,
}

/// Geometries known by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Preset {
    /// Qwen3.6-35B-A3B, 4 bits.
    #[value(name = "35b")]
    Qwen36A3b35b,
}

impl Preset {
    /// The geometry.
    pub(super) fn config(self) -> ModelConfig {
        match self {
            Preset::Qwen36A3b35b => ModelConfig::qwen36_35b_a3b(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum PhaseArg {
    Decode,
    Prefill,
}

/// Bytes of a matrix input, and of a key or value: bf16 on the fast path of every device.
const ELEMENT_BYTES: usize = 2;

/// Prints the plan.
pub(super) fn run(args: &PlanArgs) -> anyhow::Result<ExitCode> {
    let (name, config) = match args.preset {
        Some(preset) => ("Qwen3.6-35B-A3B".to_owned(), preset.config()),
        None => {
            let source = Source::from_option(args.model.as_deref())?;
            (source.name(), ModelConfig::from_json(&source.config_json()?)?)
        }
    };
    let model = Model::new(config)?;
    let (plan, rows) = match args.phase {
        PhaseArg::Decode => {
            let rows = args.rows.unwrap_or(1) as usize;
            if rows > Plan::MAX_DECODE_ROWS {
                bail!("--rows is {rows} (accepted with --phase decode: 1 to {})", Plan::MAX_DECODE_ROWS);
            }
            (Plan::decode(&model, rows), rows)
        }
        PhaseArg::Prefill => {
            let rows = args.rows.unwrap_or(512) as usize;
            (Plan::prefill(&model, rows), rows)
        }
    };
    let traffic = Traffic {
        rows,
        logit_rows: if plan.phase == Phase::Decode { rows } else { 1 },
        context: args.context as usize,
        activation_bytes: ELEMENT_BYTES,
        cache_bytes: ELEMENT_BYTES,
    };
    let mut report = Report::new(&name, &model, &plan, traffic, args.bandwidth);
    if let DeviceKind::Metal | DeviceKind::Emulated = args.device {
        let step = PaperStep { phase: plan.phase, rows, context: traffic.context };
        report = report.with_dispatches(paper::dispatches(&model, &Tuning::APPLE, step)?);
    }
    let text = if args.json {
        report.json()
    } else if args.dot {
        report.dot()
    } else {
        report.table()
    };
    super::print_result(&text)?;
    Ok(ExitCode::SUCCESS)
}
