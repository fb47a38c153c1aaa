//! `lily bench`: prefill and decode speed at a list of prompt lengths, under one contract that peers can be held to.

mod chart;
mod measure;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use clap::Args;
use lily_cpu::Precision;
use lily_model::checkpoint::Checkpoint;
use lily_model::graph::{Model, Plan, Traffic};
use serde_json::json;

use super::options::{ModelOptions, positive};
use super::progress;
use crate::device::{self, Demand};
use crate::source::Source;
use measure::{Contract, Measured};

/// Measure prefill and decode speed at several prompt lengths
#[derive(Debug, Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "The contract: token i of a prompt is ((i * 2654435761) mod 2^32) mod vocab; every run starts from an \
                        empty state; two warm-ups of the exact shape are not counted; prefill is prompt tokens / time to \
                        the first token; decode is greedy. Medians over --runs. A run whose tokens differ from the \
                        others' is an error, not a result.\n\nExamples:\n  lily bench --model DIR\n  lily bench --model \
                        DIR --lengths 512,4096 --bandwidth 60 --json\n  lily bench --model DIR --svg speed.svg"
)]
pub(super) struct BenchArgs {
    #[command(flatten)]
    model: ModelOptions,
    /// Prompt lengths; those beyond --max-seq are left out, and said so
    #[arg(
        long,
        value_name = "N,N,…",
        value_delimiter = ',',
        default_values_t = [256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072],
        value_parser = clap::value_parser!(u32).range(1..=1_048_576)
    )]
    lengths: Vec<u32>,
    /// Tokens decoded after each prompt
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    decode: u32,
    /// Runs that count, at each length
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,
    /// Tokens of a prefill step [default: 512, on a GPU 4096]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    chunk: Option<u32>,
    /// Memory bandwidth of the device in GB/s, of which decoding reaches a share [default: measured]
    #[arg(long, value_name = "GB/S", value_parser = positive)]
    bandwidth: Option<f64>,
    /// Matrix peak of the device in TFLOP/s, of which prefill reaches a share [default: measured]
    #[arg(long, value_name = "TFLOP/S", value_parser = positive)]
    matrix_peak: Option<f64>,
    /// One JSON object instead of the table
    #[arg(long)]
    json: bool,
    /// Also draw the speeds over the prompt length
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// What speeds are set beside.
#[derive(Debug, Clone, Copy)]
struct Limits {
    /// Bytes a second.
    bandwidth: Option<f64>,
    /// Operations a second.
    matrix_peak: Option<f64>,
}

impl Limits {
    /// The mean of what was measured just before and just after, or what was given.
    fn between(before: Option<device::Limits>, after: Option<device::Limits>, args: &BenchArgs) -> Self {
        let mean = |of: fn(device::Limits) -> f64| Some((of(before?) + of(after?)) / 2.0);
        Limits {
            bandwidth: args.bandwidth.map(|gb| gb * 1e9).or_else(|| mean(|l| l.bandwidth)),
            matrix_peak: args.matrix_peak.map(|t| t * 1e12).or_else(|| mean(|l| l.matrix_peak)),
        }
    }
}

impl std::fmt::Display for Limits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let known = |value: Option<f64>| value.map_or("unknown".to_string(), |v| format!("{v:.2}"));
        let (bandwidth, peak) = (known(self.bandwidth.map(|b| b / 1e9)), known(self.matrix_peak.map(|p| p / 1e12)));
        write!(f, "{bandwidth} GB/s, {peak} TFLOP/s")
    }
}

/// One length's result with its shares of the limits.
struct Line {
    measured: Measured,
    bandwidth_share: Option<f64>,
    matrix_share: Option<f64>,
}

/// Runs the command.
pub(super) fn run(args: &BenchArgs) -> anyhow::Result<ExitCode> {
    let source = Source::from_option(args.model.model.as_deref())?;
    let checkpoint = Arc::new(progress::loading(|| source.open())?);
    let most = device::max_seq(&checkpoint, &args.model)?;
    let decode = args.decode as usize;
    let (lengths, beyond): (Vec<usize>, Vec<usize>) =
        args.lengths.iter().map(|&n| n as usize).partition(|n| n + decode <= most);
    if !beyond.is_empty() {
        eprintln!("left out, with {decode} decoded tokens beyond the limit of {most}: {beyond:?}");
    }
    let longest = lengths.iter().copied().max().context("no prompt length fits the model's limit")? + decode;
    let chunk = args.chunk.map_or_else(|| device::prefill_rows(args.model.device, Precision::Fast), |n| n as usize);
    let capacity = device::capacity(&checkpoint, longest, Demand::single(chunk));
    let limits = || match (args.bandwidth, args.matrix_peak) {
        (Some(_), Some(_)) => Ok(None),
        _ => device::limits(&args.model),
    };
    let before = limits()?;
    let mut device = device::open(Arc::clone(&checkpoint), &args.model, Precision::Fast, capacity)?;
    let info = device.info();
    eprintln!("{}: {info}", source.name());
    let contract = Contract { vocab: checkpoint.model().config.vocab_size, chunk, decode, runs: args.runs as usize };
    let bar = progress::steps(lengths.len() * (contract.runs + measure::WARM_UPS));
    let mut results = Vec::with_capacity(lengths.len());
    for &length in &lengths {
        results.push(measure::measure(device.as_mut(), contract, length, &bar)?);
    }
    drop(device);
    // What was measured before is better than nothing.
    let after = limits().unwrap_or_else(|error| {
        eprintln!("limits after the runs: {error:#}");
        before
    });
    let limits = Limits::between(before, after, args);
    let lines: Vec<Line> = results
        .into_iter()
        .map(|measured| {
            let decode_bytes = decode_bytes(&checkpoint, measured.length, info.activation_bytes, info.cache_bytes);
            let flops = prefill_flops(checkpoint.model(), measured.length);
            Line {
                bandwidth_share: limits.bandwidth.map(|limit| measured.decode.median * decode_bytes / limit),
                matrix_share: limits.matrix_peak.map(|limit| measured.prefill.median * flops / limit),
                measured,
            }
        })
        .collect();
    bar.finish_and_clear();
    eprintln!("limits: {limits}");
    if let Some(path) = &args.svg {
        let measured: Vec<&Measured> = lines.iter().map(|l| &l.measured).collect();
        std::fs::write(path, chart::svg(&format!("{} on {info}", source.name()), &measured))
            .with_context(|| format!("--svg {}", path.display()))?;
    }
    let text =
        if args.json { as_json(&source.name(), &info.to_string(), contract, limits, &lines) } else { table(&lines) };
    super::print_result(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Bytes of weights and state that one decoded token needs at a context.
fn decode_bytes(checkpoint: &Checkpoint, context: usize, activation_bytes: usize, cache_bytes: usize) -> f64 {
    let model = checkpoint.model();
    let plan = Plan::decode(model, 1);
    let traffic = Traffic { rows: 1, logit_rows: 1, context, activation_bytes, cache_bytes };
    plan.ops.iter().map(|op| plan.op_bytes(model, op, traffic).memory()).sum()
}

/// Operations of one prompt token: two for each weight it meets, and attention over half of the prompt on average.
fn prefill_flops(model: &Model, length: usize) -> f64 {
    let c = &model.config;
    let attention_layers = c.layers_of(lily_model::config::LayerType::FullAttention);
    let per_layer: usize = model
        .layers
        .iter()
        .flat_map(|layer| layer.matrices())
        .map(|id| model.weight(id))
        .map(|spec| match spec.kind {
            lily_model::graph::WeightKind::Matrix { experts, outputs, inputs, .. } => {
                outputs * inputs * if experts.is_some() { c.num_experts_per_tok } else { 1 }
            }
            _ => 0,
        })
        .sum();
    2.0 * per_layer as f64 + (4 * c.attention_dim() * attention_layers) as f64 * length as f64 / 2.0
}

fn table(lines: &[Line]) -> String {
    let mut text = String::from("  prompt   prefill tok/s  spread   decode tok/s  spread");
    let shares = lines.iter().any(|l| l.bandwidth_share.is_some() || l.matrix_share.is_some());
    if shares {
        text.push_str("   of bandwidth  of matrix peak");
    }
    text.push_str("  digest\n");
    let share = |s: Option<f64>| s.map_or("-".to_string(), |s| format!("{:.1} %", s * 100.0));
    for line in lines {
        let m = &line.measured;
        text.push_str(&format!(
            "{:>8} {:>15.1} {:>6.1}% {:>14.1} {:>6.1}%",
            m.length,
            m.prefill.median,
            m.prefill.spread * 100.0,
            m.decode.median,
            m.decode.spread * 100.0
        ));
        if shares {
            text.push_str(&format!("{:>15}{:>16}", share(line.bandwidth_share), share(line.matrix_share)));
        }
        text.push_str(&format!("  {:016x}\n", m.digest));
    }
    text
}

fn as_json(model: &str, device: &str, contract: Contract, limits: Limits, lines: &[Line]) -> String {
    let results: Vec<_> = lines
        .iter()
        .map(|line| {
            let m = &line.measured;
            json!({
                "prompt_tokens": m.length,
                "prefill_tokens_per_s": m.prefill.median,
                "prefill_spread": m.prefill.spread,
                "decode_tokens_per_s": m.decode.median,
                "decode_spread": m.decode.spread,
                "bandwidth_share": line.bandwidth_share,
                "matrix_share": line.matrix_share,
                "digest": format!("{:016x}", m.digest),
            })
        })
        .collect();
    let report = json!({
        "model": model,
        "device": device,
        "chunk": contract.chunk,
        "decode_tokens": contract.decode,
        "runs": contract.runs,
        "bandwidth_gb_per_s": limits.bandwidth.map(|b| b / 1e9),
        "matrix_tflop_per_s": limits.matrix_peak.map(|p| p / 1e12),
        "results": results,
    });
    format!("{report:#}\n")
}
