//! Prefill and decode speed on a checkpoint, beside the limits of the machine measured just before and just after.
//!
//! `measure MODEL_DIR [--threads N] [--prefill N] [--decode N] [--repeat N] [--context N]`: prints one line a figure.
//! On a machine that others share, run it at real-time priority and read the ratios.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use lily_cpu::{CpuDevice, CpuOptions, Precision};
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
        let bandwidth = (before.0 + after.0) / 2.0;
        let peak = (before.1 + after.1) / 2.0;
        let used = decode * bytes / 1e9;
        println!(
            "prefill {prefill:.1} tokens/s; decode {decode:.2} tokens/s = {used:.1} GB/s = {:.0} % of {bandwidth:.1} \
             GB/s read (before {:.1}, after {:.1}); integer peak {peak:.0} GMAC/s (before {:.0}, after {:.0})",
            100.0 * used / bandwidth,
            before.0,
            after.0,
            before.1,
            after.1,
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

/// GB/s that `threads` read from memory, and 10^9 multiply-adds a second of 16-bit integers.
fn limits(threads: usize) -> (f64, f64) {
    const WORDS: usize = 1 << 26;
    let on_all = |work: &(dyn Fn(usize) -> u64 + Sync)| {
        let start = Instant::now();
        std::thread::scope(|scope| {
            for thread in 0..threads {
                scope.spawn(move || std::hint::black_box(work(thread)));
            }
        });
        start.elapsed().as_secs_f64()
    };
    let words: Vec<u64> = (0..WORDS as u64).collect();
    let part = WORDS / threads;
    let read = |thread: usize| {
        let mut sums = [0u64; 8];
        for chunk in words[thread * part..(thread + 1) * part].chunks_exact(8) {
            for (sum, word) in sums.iter_mut().zip(chunk) {
                *sum = sum.wrapping_add(*word);
            }
        }
        sums.iter().fold(0, |a, b| a ^ b)
    };
    let seconds = (0..3).map(|_| on_all(&read)).fold(f64::INFINITY, f64::min);
    let bandwidth = (part * threads * 8) as f64 / seconds / 1e9;
    let rounds = 4_000_000;
    let seconds = (0..3).map(|_| on_all(&|_| integer_peak(rounds))).fold(f64::INFINITY, f64::min);
    let peak = (threads * rounds * PRODUCTS * lanes()) as f64 / seconds / 1e9;
    (bandwidth, peak)
}

/// Independent products of a round.
const PRODUCTS: usize = 8;

/// Multiply-adds of one instruction.
fn lanes() -> usize {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512vnni") {
        return 32;
    }
    16
}

fn integer_peak(rounds: usize) -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512vnni") {
            // SAFETY: detected.
            return unsafe { peak_avx512(rounds) };
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: detected.
            return unsafe { peak_avx2(rounds) };
        }
    }
    let mut sums = [1i32; PRODUCTS * 16];
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = sum.wrapping_mul(3).wrapping_add(1);
        }
    }
    sums.iter().fold(0, |a, b| a ^ *b as u64)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vnni")]
fn peak_avx512(rounds: usize) -> u64 {
    use std::arch::x86_64::*;
    let (a, b) = (_mm512_set1_epi16(std::hint::black_box(3)), _mm512_set1_epi16(std::hint::black_box(5)));
    let mut sums = [_mm512_setzero_si512(); PRODUCTS];
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = _mm512_dpwssd_epi32(*sum, a, b);
        }
    }
    sums.iter().map(|s| _mm512_reduce_add_epi32(*s) as u64).fold(0, |a, b| a ^ b)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn peak_avx2(rounds: usize) -> u64 {
    use std::arch::x86_64::*;
    let a = _mm256_set1_epi16(std::hint::black_box(3));
    let mut b = _mm256_set1_epi16(std::hint::black_box(5));
    let mut sums = [_mm256_setzero_si256(); PRODUCTS];
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(a, b));
        }
        // Without a change from round to round the products would be computed once.
        b = _mm256_xor_si256(b, sums[0]);
    }
    sums.iter().map(|s| _mm256_extract_epi32::<0>(*s) as u64).fold(0, |a, b| a ^ b)
}
