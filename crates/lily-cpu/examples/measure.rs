//! Prefill and decode speed on a checkpoint, beside the limits of the machine measured just before and just after.
//!
//! `measure MODEL_DIR [--threads N] [--prefill N] [--decode N] [--repeat N] [--context N]`: prints one line a figure.
//! On a machine that others share, run it at real-time priority and read the ratios.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use lily_cpu::{CpuDevice, CpuOptions, Precision, limits};
use lily_model::checkpoint::Checkpoint;
use lily_model::device::{Capacity, Device, LogitRows, Output, PageId, Segment, SlotId, Step, Tokens};
use lily_model::graph::{Phase, Plan, Traffic};

struct Arguments {
    model: String,
    threads: usize,
    prefill: usize,
    decode: usize,
    repeat: usize,
}

fn arguments() -> Result<Arguments, Box<dyn Error>> {
    let mut found = Arguments { model: String::new(), threads: 2, prefill: 512, decode: 64, repeat: 3 };
    let mut given = std::env::args().skip(1);
    while let Some(argument) = given.next() {
        let mut number = || -> Result<usize, Box<dyn Error>> {
            Ok(given.next().ok_or_else(|| format!("{argument} wants a number"))?.parse()?)
        };
        match argument.as_str() {
            "--threads" => found.threads = number()?,
            "--prefill" => found.prefill = number()?,
            "--decode" => found.decode = number()?,
            "--repeat" => found.repeat = number()?,
            _ => found.model = argument,
        }
    }
    if found.model.is_empty() {
        return Err("which checkpoint? usage: measure MODEL_DIR [--threads N] [--prefill N] [--decode N]".into());
    }
    Ok(found)
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = arguments()?;
    let checkpoint = Arc::new(Checkpoint::open(Path::new(&arguments.model))?);
    let max_seq = arguments.prefill + arguments.decode + 1;
    let capacity = Capacity {
        slots: 1,
        pages: max_seq.div_ceil(Plan::PAGE_TOKENS),
        prefill_rows: arguments.prefill,
        decode_rows: 1,
        max_seq,
    };
    let options = CpuOptions { threads: arguments.threads, precision: Precision::Fast, capacity };
    let mut device = CpuDevice::new(Arc::clone(&checkpoint), options)?;
    println!("device: {}", device.info());
    let model = checkpoint.model();
    let plan = Plan::decode(model, 1);
    let traffic = Traffic { rows: 1, logit_rows: 1, context: arguments.prefill, activation_bytes: 2, cache_bytes: 2 };
    let bytes: f64 = plan.ops.iter().map(|op| plan.op_bytes(model, op, traffic).memory()).sum();
    let ids: Vec<u32> =
        (0..arguments.prefill as u64).map(|i| (i * 2_654_435_761 % model.config.vocab_size as u64) as u32).collect();
    let pages: Vec<PageId> = (0..capacity.pages as u32).map(PageId).collect();
    // Once without the clock: pages of a mapped checkpoint are read from disk at their first touch.
    run(&mut device, &ids, &pages, 2)?;
    for _ in 0..arguments.repeat {
        let before = limits(arguments.threads);
        let (prefill, decode) = run(&mut device, &ids, &pages, arguments.decode)?;
        let after = limits(arguments.threads);
        let bandwidth = (before.bandwidth + after.bandwidth) / 2.0 / 1e9;
        let peak = (before.products + after.products) / 2.0 / 1e9;
        let used = decode * bytes / 1e9;
        println!(
            "prefill {prefill:.1} tokens/s; decode {decode:.2} tokens/s = {used:.1} GB/s = {:.0} % of {bandwidth:.1} \
             GB/s read (before {:.1}, after {:.1}); integer peak {peak:.0} GMAC/s (before {:.0}, after {:.0})",
            100.0 * used / bandwidth,
            before.bandwidth / 1e9,
            after.bandwidth / 1e9,
            before.products / 1e9,
            after.products / 1e9,
        );
    }
    Ok(())
}

/// Tokens a second of a prompt, and of greedy tokens after it.
fn run(device: &mut CpuDevice, ids: &[u32], pages: &[PageId], decode: usize) -> Result<(f64, f64), Box<dyn Error>> {
    device.clear_slot(SlotId(0))?;
    let mut step = |start: usize, tokens: Tokens<'_>, rows: usize| -> Result<(), Box<dyn Error>> {
        let phase = if start == 0 { Phase::Prefill } else { Phase::Decode };
        let segments = [Segment { slot: SlotId(0), start, rows, pages }];
        device.submit(&Step {
            phase,
            tokens,
            segments: &segments,
            logit_rows: LogitRows::Last,
            output: Output::Argmax,
        })?;
        device.wait()?;
        Ok(())
    };
    let start = Instant::now();
    step(0, Tokens::Ids(ids), ids.len())?;
    let prefill = ids.len() as f64 / start.elapsed().as_secs_f64();
    let start = Instant::now();
    for i in 0..decode {
        step(ids.len() + i, Tokens::Previous, 1)?;
    }
    Ok((prefill, decode as f64 / start.elapsed().as_secs_f64()))
}
