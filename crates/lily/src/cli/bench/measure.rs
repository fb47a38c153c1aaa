//! Runs the contract at one prompt length.

use std::time::Instant;

use anyhow::{Context, ensure};
use indicatif::ProgressBar;
use lily_model::device::{Device, LogitRows, Output, PageId, Segment, SlotId, Step, Tokens};
use lily_model::graph::{Phase, Plan};

/// What every run does.
#[derive(Debug, Clone, Copy)]
pub(super) struct Contract {
    /// Vocabulary.
    pub vocab: usize,
    /// Tokens of a prefill step.
    pub chunk: usize,
    /// Tokens decoded.
    pub decode: usize,
    /// Runs that count.
    pub runs: usize,
}

/// Median and spread (largest minus smallest, over the median).
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Rate {
    /// Tokens/s.
    pub median: f64,
    /// Fraction.
    pub spread: f64,
}

impl Rate {
    fn of(tokens: usize, mut seconds: Vec<f64>) -> Self {
        seconds.sort_by(f64::total_cmp);
        let middle = seconds[seconds.len() / 2];
        Rate { median: tokens as f64 / middle, spread: (seconds[seconds.len() - 1] - seconds[0]) / middle }
    }
}

/// Speeds at one length.
#[derive(Debug, Clone)]
pub(super) struct Measured {
    /// Prompt tokens.
    pub length: usize,
    /// Prompt tokens over the time to the first token.
    pub prefill: Rate,
    /// Decoded tokens over their time.
    pub decode: Rate,
    /// Of the tokens generated, the same in every run.
    pub digest: u64,
}

/// Token `i` of every prompt.
fn token(i: usize, vocab: usize) -> u32 {
    ((i as u64).wrapping_mul(2_654_435_761) % (1 << 32) % vocab as u64) as u32
}

/// FNV-1a over the ids.
fn digest(tokens: &[u32]) -> u64 {
    tokens
        .iter()
        .flat_map(|t| t.to_le_bytes())
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// Runs of the exact shape that do not count: two, since a device keeps two sets of what a step needs.
pub(super) const WARM_UPS: usize = 2;

/// Measures one length: warm-ups, then the runs that count.
pub(super) fn measure(
    device: &mut dyn Device,
    contract: Contract,
    length: usize,
    bar: &ProgressBar,
) -> anyhow::Result<Measured> {
    let prompt: Vec<u32> = (0..length).map(|i| token(i, contract.vocab)).collect();
    let pages: Vec<PageId> = (0..(length + contract.decode).div_ceil(Plan::PAGE_TOKENS) as u32).map(PageId).collect();
    let (mut prefill, mut decode, mut digests) = (Vec::new(), Vec::new(), Vec::new());
    for run in 0..WARM_UPS + contract.runs {
        device.clear_slot(SlotId(0))?;
        let begin = Instant::now();
        let first = read(device, contract, &prompt, &pages)?;
        let read_time = begin.elapsed().as_secs_f64();
        let begin = Instant::now();
        let tokens = generate(device, contract, length, first, &pages)?;
        let decode_time = begin.elapsed().as_secs_f64();
        digests.push(digest(&tokens));
        if run >= WARM_UPS {
            prefill.push(read_time);
            decode.push(decode_time);
        }
        bar.inc(1);
    }
    let digest = digests[0];
    ensure!(
        digests.iter().all(|d| *d == digest),
        "prompt length {length}: the tokens changed between runs (digests {digests:016x?}); no result is reported"
    );
    Ok(Measured { length, prefill: Rate::of(length, prefill), decode: Rate::of(contract.decode, decode), digest })
}

/// Prefills in chunks; the first generated token.
fn read(device: &mut dyn Device, contract: Contract, prompt: &[u32], pages: &[PageId]) -> anyhow::Result<u32> {
    let mut first = None;
    for (index, ids) in prompt.chunks(contract.chunk).enumerate() {
        let start = index * contract.chunk;
        let last = start + ids.len() == prompt.len();
        device.submit(&Step {
            phase: Phase::Prefill,
            tokens: Tokens::Ids(ids),
            segments: &[Segment { slot: SlotId(0), start, rows: ids.len(), pages }],
            logit_rows: if last { LogitRows::Last } else { LogitRows::None },
            output: Output::Argmax,
        })?;
        first = device.wait()?.tokens.first().copied();
    }
    first.context("the device chose no token")
}

/// Decodes greedily, the next step submitted before the last one's token is known.
fn generate(
    device: &mut dyn Device,
    contract: Contract,
    length: usize,
    first: u32,
    pages: &[PageId],
) -> anyhow::Result<Vec<u32>> {
    let first = [first];
    let mut tokens = Vec::with_capacity(contract.decode);
    for step in 0..contract.decode {
        device.submit(&Step {
            phase: Phase::Decode,
            tokens: if step == 0 { Tokens::Ids(&first) } else { Tokens::Previous },
            segments: &[Segment { slot: SlotId(0), start: length + step, rows: 1, pages }],
            logit_rows: LogitRows::Last,
            output: Output::Argmax,
        })?;
        if step > 0 {
            tokens.extend(device.wait()?.tokens);
        }
    }
    tokens.extend(device.wait()?.tokens);
    Ok(tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_follow_the_published_formula() {
        assert_eq!((0..4).map(|i| token(i, 248_320)).collect::<Vec<_>>(), [0, 143_281, 13_666, 156_947]);
    }

    #[test]
    fn a_rate_is_the_median_with_the_spread_of_all_runs() {
        let rate = Rate::of(100, vec![2.0, 1.0, 4.0]);
        assert_eq!((rate.median, rate.spread), (50.0, 1.5));
    }

    #[test]
    fn a_changed_token_changes_the_digest() {
        assert_ne!(digest(&[1, 2, 3]), digest(&[1, 2, 4]));
    }
}
