//! A model on the GPU against the CPU, and how long each kernel takes.
//!
//! `cuda_check MODEL_DIR [--prompt TEXT] [--rows N] [--decode N] [--reference f32|fast|none] [--translated]`: logits of a prompt of
//! N rows and of N decoded tokens with native variants, with translated kernels alone and on the CPU; then greedy tokens of
//! prompts cut in chunks. `cuda_check MODEL_DIR --profile CONTEXT,… [--streams N] [--translated]`: the time of each kernel at
//! these contexts, of N sequences that are decoded together.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use lily_cpu::{CpuDevice, CpuOptions, Precision};
use lily_gpu::GpuDevice;
use lily_gpu::cuda::{Cuda, CudaOptions, Kernels};
use lily_gpu::shape::StepShape;
use lily_gpu::table::KERNELS;
use lily_model::checkpoint::Checkpoint;
use lily_model::device::{Capacity, Device, LogitRows, Output, PageId, Segment, SlotId, Step, Tokens};
use lily_model::graph::{Phase, Plan};
use lily_model::text::Tokenizer;

type Outcome<T> = Result<T, Box<dyn Error>>;

struct Arguments {
    model: String,
    rows: usize,
    decode: usize,
    reference: String,
    prompt: Option<String>,
    kernels: Kernels,
    contexts: Vec<usize>,
    streams: usize,
}

fn arguments() -> Outcome<Arguments> {
    let mut found = Arguments {
        model: String::new(),
        rows: 100,
        decode: 20,
        reference: "f32".into(),
        prompt: None,
        kernels: Kernels::Native,
        contexts: Vec::new(),
        streams: 1,
    };
    let mut given = std::env::args().skip(1);
    while let Some(argument) = given.next() {
        let mut value = || given.next().ok_or_else(|| format!("{argument} wants a value"));
        match argument.as_str() {
            "--rows" => found.rows = value()?.parse()?,
            "--streams" => found.streams = value()?.parse()?,
            "--decode" => found.decode = value()?.parse()?,
            "--reference" => found.reference = value()?,
            "--translated" => found.kernels = Kernels::Translated,
            "--prompt" => found.prompt = Some(value()?),
            "--profile" => found.contexts = value()?.split(',').map(str::parse).collect::<Result<_, _>>()?,
            other if other.starts_with("--") => return Err(format!("unknown option {other}").into()),
            _ => found.model = argument,
        }
    }
    if found.model.is_empty() {
        return Err("which checkpoint?".into());
    }
    Ok(found)
}

fn capacity(max_seq: usize, prefill_rows: usize, sequences: usize) -> Capacity {
    let pages = sequences * max_seq.div_ceil(Plan::PAGE_TOKENS);
    Capacity { slots: sequences, pages, prefill_rows, decode_rows: sequences.max(4), max_seq }
}

fn ids(count: usize, vocab: usize) -> Vec<u32> {
    (0..count as u64).map(|i| ((i * 2_654_435_761) % (1 << 32) % vocab as u64) as u32).collect()
}

/// Runs `tokens` from position `start` on and gives the logits of all rows, or of none.
fn step(
    device: &mut dyn Device,
    phase: Phase,
    start: usize,
    tokens: &[u32],
    logit_rows: LogitRows,
    output: Output,
) -> Outcome<(Vec<f32>, Vec<u32>)> {
    let pages: Vec<PageId> = (0..(start + tokens.len()).div_ceil(Plan::PAGE_TOKENS) as u32).map(PageId).collect();
    let segments = [Segment { slot: SlotId(0), start, rows: tokens.len(), pages: &pages }];
    device.submit(&Step { phase, tokens: Tokens::Ids(tokens), segments: &segments, logit_rows, output })?;
    let result = device.wait()?;
    Ok((result.logits, result.tokens))
}

/// Logits of a prompt in one step and of tokens decoded after it, teacher-forced.
fn logits(device: &mut dyn Device, ids: &[u32], rows: usize) -> Outcome<Vec<f32>> {
    device.clear_slot(SlotId(0))?;
    let (mut all, _) = step(device, Phase::Prefill, 0, &ids[..rows], LogitRows::All, Output::Logits)?;
    for at in rows..ids.len() {
        all.extend(step(device, Phase::Decode, at, &ids[at..=at], LogitRows::All, Output::Logits)?.0);
    }
    Ok(all)
}

fn compare(name: &str, ours: &[f32], truth: &[f32], vocab: usize) {
    let (mut mean, mut most, mut same, mut apart) = (0.0f64, 0.0f64, 0usize, 0.0f32);
    let rows = truth.len() / vocab;
    for (a, b) in ours.chunks(vocab).zip(truth.chunks(vocab)) {
        let log_sum = |x: &[f32]| {
            let top = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            f64::from(top) + x.iter().map(|&v| f64::from(v - top).exp()).sum::<f64>().ln()
        };
        let (la, lb) = (log_sum(a), log_sum(b));
        let kl: f64 = a
            .iter()
            .zip(b)
            .map(|(&x, &y)| (f64::from(y) - lb).exp() * ((f64::from(y) - lb) - (f64::from(x) - la)))
            .sum();
        let best = |x: &[f32]| (0..vocab).max_by(|&i, &j| x[i].total_cmp(&x[j]).then(j.cmp(&i)));
        mean += kl / rows as f64;
        most = most.max(kl);
        same += usize::from(best(a) == best(b));
        apart = a.iter().zip(b).map(|(x, y)| (x - y).abs()).fold(apart, f32::max);
        if !kl.is_finite() {
            most = f64::NAN;
        }
    }
    println!("{name}: mean KL {mean:.3e}, max KL {most:.3e}, top-1 {same}/{rows}, largest difference {apart:.3e}");
}

/// Greedy tokens after a prompt that is read in chunks.
fn greedy(device: &mut dyn Device, ids: &[u32], chunk: usize, count: usize) -> Outcome<Vec<u32>> {
    device.clear_slot(SlotId(0))?;
    let mut at = 0;
    let mut last = Vec::new();
    for part in ids.chunks(chunk) {
        last = step(device, Phase::Prefill, at, part, LogitRows::Last, Output::Argmax)?.1;
        at += part.len();
    }
    let mut tokens = last.clone();
    while tokens.len() < count {
        last = step(device, Phase::Decode, at, &last, LogitRows::All, Output::Argmax)?.1;
        tokens.extend(&last);
        at += 1;
    }
    Ok(tokens)
}

fn main() -> Outcome<()> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let arguments = arguments()?;
    let checkpoint = Arc::new(Checkpoint::open(Path::new(&arguments.model))?);
    let vocab = checkpoint.model().config.vocab_size;
    let total = arguments.rows + arguments.decode;
    let ids = ids(total, vocab);
    let sizes = capacity(total.max(1024), 1024, 2);
    let open = |kernels, sizes| -> Outcome<GpuDevice<Cuda>> {
        Ok(GpuDevice::new(Cuda::new(CudaOptions { kernels, ..CudaOptions::default() })?, checkpoint.clone(), sizes)?)
    };
    if arguments.contexts.is_empty() {
        let mut native = open(Kernels::Native, sizes)?;
        println!("{}; native: {}", native.info(), native.driver().native_kernels().join(" "));
        let ours = logits(&mut native, &ids, arguments.rows)?;
        let cut = arguments.rows * vocab;
        let against = |name: &str, device: &mut dyn Device| -> Outcome<()> {
            let truth = logits(device, &ids, arguments.rows)?;
            compare(&format!("native, prefill, against {name}"), &ours[..cut], &truth[..cut], vocab);
            compare(&format!("native, decode, against {name}"), &ours[cut..], &truth[cut..], vocab);
            Ok(())
        };
        against("translated", &mut open(Kernels::Translated, sizes)?)?;
        let precision = match arguments.reference.as_str() {
            "f32" => Some(Precision::F32),
            "fast" => Some(Precision::Fast),
            "none" => None,
            other => return Err(format!("--reference {other} (accepted: f32, fast, none)").into()),
        };
        if let Some(precision) = precision {
            let options = CpuOptions { threads: 0, precision, capacity: sizes };
            against("the CPU", &mut CpuDevice::new(checkpoint.clone(), options)?)?;
        }
        let prompt = match &arguments.prompt {
            Some(text) => {
                let json = checkpoint.text_file("tokenizer.json").ok_or("no tokenizer.json")?;
                Tokenizer::from_bytes(json)?.encode_markup(text)?
            }
            None => ids[..arguments.rows].to_vec(),
        };
        let whole = greedy(&mut native, &prompt, 1024, 24)?;
        for chunk in [1, 3, 63, 64, 65, 256] {
            let tokens = greedy(&mut native, &prompt, chunk, 24)?;
            println!("chunks of {chunk}: greedy tokens {}", if tokens == whole { "equal" } else { "DIFFER" });
        }
    }
    for &context in &arguments.contexts {
        let rows = context.min(4096);
        let mut device = open(arguments.kernels, capacity(context + 8, 4096, arguments.streams))?;
        let each = (context + 8).div_ceil(Plan::PAGE_TOKENS) as u32;
        let pages: Vec<PageId> = (0..each * arguments.streams as u32).map(PageId).collect();
        for (phase, start, rows, sequences) in
            [(Phase::Decode, context, 1, arguments.streams), (Phase::Prefill, context - rows, rows, 1)]
        {
            let tables = pages.chunks(each as usize).take(sequences).enumerate();
            let segments: Vec<_> =
                tables.map(|(i, pages)| Segment { slot: SlotId(i as u32), start, rows, pages }).collect();
            let rows = rows * sequences;
            let tokens: Vec<u32> = (0..rows as u32).map(|i| (i * 7919) % vocab as u32).collect();
            let step = Step {
                phase,
                tokens: Tokens::Ids(&tokens),
                segments: &segments,
                logit_rows: LogitRows::Last,
                output: Output::Argmax,
            };
            // Twice, so that the set of inputs that is profiled holds this step's.
            for _ in 0..2 {
                device.submit(&step)?;
                device.wait()?;
            }
            let program = device.program(StepShape::of(&step, 0));
            let mut times = device.driver_mut().profile(&program)?;
            let sum: f64 = times.iter().map(|t| t.microseconds * t.count as f64).sum();
            println!("{phase:?} of {rows} rows from {start}: {sum:.0} µs in {} dispatches", program.dispatches.len());
            times.sort_by(|a, b| (b.microseconds * b.count as f64).total_cmp(&(a.microseconds * a.count as f64)));
            for t in times {
                let kind = if t.native { "native" } else { "translated" };
                let share = 100.0 * t.microseconds * t.count as f64 / sum;
                println!(
                    "  {:24} {kind:10} {:8.2} µs x {:3} = {share:4.1} %",
                    KERNELS[t.kernel], t.microseconds, t.count
                );
            }
        }
    }
    Ok(())
}
