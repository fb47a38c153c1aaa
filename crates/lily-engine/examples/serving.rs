//! Figures of the engine on the processor with the embedded miniature: throughput by parallel streams, gaps of a running
//! stream with and without a long prompt being read, cached and computed tokens of a ten-turn conversation.
//!
//! `cargo run --release -p lily-engine --example serving [THREADS]`

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lily_cpu::{CpuDevice, CpuOptions, Precision};
use lily_engine::{
    Engine, EngineConfig, EngineParts, EosRule, Event, Generation, GenerationDefaults, PrefixCacheUse, Request,
    SamplingParams,
};
use lily_model::checkpoint::Checkpoint;
use lily_model::device::Capacity;
use lily_model::graph::Plan;
use lily_model::text::Tokenizer;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let threads = std::env::args().nth(1).map_or(Ok(0), |a| a.parse())?;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/mini");
    let checkpoint = Arc::new(Checkpoint::open(&folder)?);
    let tokenizer = Arc::new(Tokenizer::from_file(&folder.join("tokenizer.json"))?);
    let engine = |parallel: usize| -> Result<Engine, Box<dyn std::error::Error>> {
        let capacity =
            Capacity { slots: parallel + 32, pages: 512, prefill_rows: 512, decode_rows: parallel, max_seq: 32_768 };
        let device = CpuDevice::new(checkpoint.clone(), CpuOptions { threads, precision: Precision::Fast, capacity })?;
        let config = &checkpoint.model().config;
        let parts = EngineParts {
            device: Box::new(device),
            tokenizer: tokenizer.clone(),
            defaults: GenerationDefaults {
                eos_token_ids: checkpoint.generation_config().eos_token_ids.clone(),
                sampling: SamplingParams::default(),
            },
            vocab_size: config.vocab_size,
            slot_bytes: config.recurrent_state_bytes() as u64,
            page_bytes: (config.kv_bytes_per_token(2) * Plan::PAGE_TOKENS) as u64,
            fingerprint: format!("{:032x}", checkpoint.fingerprint()),
        };
        Ok(Engine::new(parts, EngineConfig { parallel, ..EngineConfig::default() })?)
    };
    println!("device: {}", engine(1)?.device_info());
    for parallel in [1, 2, 4, 8] {
        println!("{parallel} streams: {:.1} tokens/s", throughput(&engine(parallel)?, parallel));
    }
    gaps("alone", &engine(4)?, None);
    gaps("beside a prompt of 30,000 tokens", &engine(4)?, Some(30_000));
    conversation(&engine(1)?, &tokenizer)?;
    Ok(())
}

fn request(seed: u32, prompt: usize, max_tokens: usize) -> Request {
    let tokens = (0..prompt as u32).map(|i| 300 + (i.wrapping_mul(2_654_435_761).wrapping_add(seed * 977) >> 8) % 7000);
    Request {
        max_tokens: Some(max_tokens),
        eos: EosRule::Ignore,
        prefix_cache: PrefixCacheUse::Bypass,
        ..Request::new(tokens.collect(), SamplingParams::greedy())
    }
}

/// Tokens of a generation, each with the moment it came.
fn read(mut generation: Generation) -> (Vec<u32>, Vec<Instant>, usize) {
    let (mut ids, mut moments, mut cached) = (Vec::new(), Vec::new(), 0);
    while let Some(event) = generation.recv_blocking() {
        match event {
            Event::Token(token) => {
                ids.push(token.id);
                moments.push(Instant::now());
            }
            Event::Finished { usage, .. } => cached = usage.cached,
            _ => {}
        }
    }
    (ids, moments, cached)
}

fn throughput(engine: &Engine, streams: usize) -> f64 {
    let tokens = 256;
    let running: Vec<_> = (0..streams as u32).filter_map(|i| engine.submit(request(i, 64, tokens)).ok()).collect();
    let readers: Vec<_> = running.into_iter().map(|g| std::thread::spawn(move || read(g).1)).collect();
    let moments: Vec<Vec<Instant>> = readers.into_iter().filter_map(|r| r.join().ok()).collect();
    let first = moments.iter().filter_map(|m| m.first()).max();
    let last = moments.iter().filter_map(|m| m.last()).max();
    match (first, last) {
        (Some(first), Some(last)) => {
            let counted: usize = moments.iter().flatten().filter(|m| *m > first).count();
            counted as f64 / (*last - *first).as_secs_f64()
        }
        _ => 0.0,
    }
}

fn gaps(what: &str, engine: &Engine, long: Option<usize>) {
    let Ok(mut stream) = engine.submit(request(1, 64, 20_000)) else { return };
    while !matches!(stream.recv_blocking(), Some(Event::Token(_)) | None) {}
    let start = Instant::now();
    let reader = long.and_then(|n| engine.submit(request(2, n, 1)).ok()).map(|g| std::thread::spawn(move || read(g)));
    let (mut gaps, mut last) = (Vec::new(), Instant::now());
    while reader.as_ref().map_or(start.elapsed() < Duration::from_secs(5), |r| !r.is_finished()) {
        if let Some(Event::Token(_)) = stream.recv_blocking() {
            gaps.push(last.elapsed().as_secs_f64() * 1e3);
            last = Instant::now();
        }
    }
    gaps.sort_by(f64::total_cmp);
    let at = |share: f64| gaps.get((gaps.len() as f64 * share) as usize).copied().unwrap_or(f64::NAN);
    let most = gaps.last().copied().unwrap_or(f64::NAN);
    println!(
        "gap {what}, {} tokens in {:.1} s: median {:.1} ms, p90 {:.1}, p99 {:.1}, most {most:.1}",
        gaps.len(),
        start.elapsed().as_secs_f64(),
        at(0.5),
        at(0.9),
        at(0.99)
    );
}

fn conversation(engine: &Engine, tokenizer: &Tokenizer) -> Result<(), Box<dyn std::error::Error>> {
    let mut history = tokenizer
        .encode_markup("<|im_start|>system\nYou answer in one sentence and tell stories when asked.<|im_end|>\n")?;
    for turn in 1..=10 {
        let user = format!("<|im_start|>user\nTell me part {turn} of a story about a fox and a river.<|im_end|>\n");
        history.extend(tokenizer.encode_markup(&user)?);
        let branch = history.len();
        history.extend(tokenizer.encode_markup("<|im_start|>assistant\n<think>\n\n</think>\n\n")?);
        let prompt = history.len();
        let request = Request {
            max_tokens: Some(60),
            branch_points: vec![branch],
            ..Request::new(history.clone(), SamplingParams::greedy())
        };
        let start = Instant::now();
        let (ids, moments, cached) = read(engine.submit(request)?);
        let first = moments.first().map_or(0.0, |m| (*m - start).as_secs_f64() * 1e3);
        println!(
            "turn {turn}: prompt {prompt}, cached {cached}, computed {}, first token {first:.1} ms",
            prompt - cached
        );
        history.extend(ids);
        history.extend(tokenizer.encode_markup("<|im_end|>\n")?);
    }
    Ok(())
}
