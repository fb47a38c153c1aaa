//! Whole steps of the model against the f32 reference: the same tokens through both devices, logits compared.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lily_cpu::{CpuDevice, CpuOptions, Precision};
use lily_model::checkpoint::Checkpoint;
use lily_model::device::{Capacity, Device, LogitRows, Output, PageId, Segment, SlotId, Step, Tokens};
use lily_model::graph::Phase;

use super::super::eval::compare::Comparison;

/// Mean KL divergence, nats, from which on a device is wrong: matrix inputs in bf16 alone cost random models up to 4e-3.
pub(super) const ALLOWED: f32 = 1e-2;

/// Tokens that both sequences begin with.
const PROMPT: usize = 20;
/// Tokens that are decoded, two sequences at a time.
const DECODED: usize = 4;

/// What a kind of step gave.
pub(super) struct Outcome {
    pub phase: &'static str,
    pub case: String,
    /// Mean KL divergence from the reference, nats.
    pub kl: f32,
    /// Time of all its steps.
    pub time: Duration,
}

/// Sizes that a CPU device needs for these steps, from those of the device under examination.
pub(super) fn capacity(examined: Capacity) -> Capacity {
    Capacity { prefill_rows: 2 * PROMPT, max_seq: PROMPT + DECODED, ..examined }
}

/// Logits of the steps of one phase, and how long they took.
struct Logits {
    values: Vec<f32>,
    time: Duration,
}

/// Runs the steps on the device and on the reference.
pub(super) fn compare(device: &mut dyn Device, checkpoint: &Arc<Checkpoint>) -> anyhow::Result<Vec<Outcome>> {
    let vocab = checkpoint.model().config.vocab_size;
    let options = CpuOptions { threads: 0, precision: Precision::F32, capacity: capacity(device.capacity()) };
    let mut reference = CpuDevice::new(Arc::clone(checkpoint), options)?;
    let (got, want) = (run(device, vocab)?, run(&mut reference, vocab)?);
    let cases = [
        ("prefill", format!("2 sequences of {PROMPT} tokens, logits of all")),
        ("decode", format!("{DECODED} tokens of the 2 sequences together")),
    ];
    let outcomes = cases.into_iter().zip(got.into_iter().zip(want)).map(|((phase, case), (got, want))| {
        let mut comparison = Comparison::default();
        for (want, got) in want.values.chunks_exact(vocab).zip(got.values.chunks_exact(vocab)) {
            comparison.add(want, got);
        }
        let kl = comparison.mean_kl() as f32;
        Outcome { phase, case, kl: if kl.is_nan() { f32::INFINITY } else { kl }, time: got.time }
    });
    Ok(outcomes.collect())
}

/// Prefill of two sequences at once, then their decoding.
fn run(device: &mut dyn Device, vocab: usize) -> anyhow::Result<[Logits; 2]> {
    let token = |i: usize| (i * 2_654_435 % vocab) as u32;
    let pages = [[PageId(1)], [PageId(0)]];
    let segments = |start: usize, rows: usize| {
        [0, 1].map(|i| Segment { slot: SlotId(2 - i as u32), start, rows, pages: &pages[i] })
    };
    for slot in [1, 2] {
        device.clear_slot(SlotId(slot))?;
    }
    let mut step = |phase, ids: &[u32], start: usize, rows: usize| -> anyhow::Result<Logits> {
        let begin = Instant::now();
        device.submit(&Step {
            phase,
            tokens: Tokens::Ids(ids),
            segments: &segments(start, rows),
            logit_rows: LogitRows::All,
            output: Output::Logits,
        })?;
        Ok(Logits { values: device.wait()?.logits, time: begin.elapsed() })
    };
    let prompts: Vec<u32> = (1..=2 * PROMPT).map(token).collect();
    let prefill = step(Phase::Prefill, &prompts, 0, PROMPT)?;
    let mut decode = Logits { values: Vec::new(), time: Duration::ZERO };
    for i in 0..DECODED {
        let one = step(Phase::Decode, &[token(100 + i), token(200 + i)], PROMPT + i, 1)?;
        decode.values.extend(one.values);
        decode.time += one.time;
    }
    Ok([prefill, decode])
}
