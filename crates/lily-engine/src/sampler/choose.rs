//! The sampler of one request: penalties over what it has generated, filters, and the choice.

use std::collections::{HashMap, HashSet};

use super::params::SamplingParams;
use super::rng::{fresh_seed, uniform};
use super::select::{Candidate, argmax, best_first, largest, top_k};
use crate::constraint::TokenSet;

/// Tokens whose probability is below e^-27 (2e-12) of the most likely token's are never drawn: all 248,320 of them together
/// weigh less than a f32 rounding step of the sum.
const NEGLIGIBLE: f32 = 27.0;

/// No token may follow: every logit is masked, forbidden or not a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NoCandidate;

/// What the request's state forbids for the next token, besides the parameters.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Restrictions<'a> {
    /// Only these.
    pub mask: Option<&'a TokenSet>,
    /// None of these.
    pub banned: &'a [u32],
}

/// Chooses the tokens of one request.
#[derive(Debug)]
pub(crate) struct Sampler {
    params: SamplingParams,
    seed: u64,
    /// How often each token was generated; filled only if a penalty needs it.
    counts: HashMap<u32, u32>,
    /// Tokens of the prompt; filled only if the repetition penalty needs it.
    prompt: HashSet<u32>,
}

impl Sampler {
    pub fn new(params: SamplingParams, prompt: &[u32]) -> Self {
        let seed = params.seed.unwrap_or_else(fresh_seed);
        let prompt = if params.repetition_penalty == 1.0 { HashSet::new() } else { prompt.iter().copied().collect() };
        Sampler { params, seed, counts: HashMap::new(), prompt }
    }

    /// Whether the choice is the plain argmax of the raw logits.
    pub fn is_plain_greedy(&self) -> bool {
        self.params.temperature == 0.0 && self.params.logit_bias.is_empty() && !self.has_penalties()
    }

    fn has_penalties(&self) -> bool {
        let p = &self.params;
        p.repetition_penalty != 1.0 || p.presence_penalty != 0.0 || p.frequency_penalty != 0.0
    }

    /// Takes note of a generated token.
    pub fn accept(&mut self, id: u32) {
        if self.has_penalties() {
            *self.counts.entry(id).or_default() += 1;
        }
    }

    /// Chooses the token with index `index` in the answer. `logits` (`[vocab]`) are changed.
    pub fn choose(&self, logits: &mut [f32], restrict: Restrictions<'_>, index: u64) -> Result<u32, NoCandidate> {
        self.adjust(logits);
        if let Some(mask) = restrict.mask {
            apply_mask(logits, mask);
        }
        for &id in restrict.banned {
            if let Some(logit) = logits.get_mut(id as usize) {
                *logit = f32::NEG_INFINITY;
            }
        }
        if self.params.temperature == 0.0 {
            return argmax(logits).ok_or(NoCandidate);
        }
        self.draw(logits, uniform(self.seed, index))
    }

    /// Bias and penalties.
    fn adjust(&self, logits: &mut [f32]) {
        let p = &self.params;
        for &(id, bias) in &p.logit_bias {
            if let Some(logit) = logits.get_mut(id as usize) {
                *logit = if bias <= -100.0 { f32::NEG_INFINITY } else { *logit + bias };
            }
        }
        if p.repetition_penalty != 1.0 {
            for id in self.prompt.iter().chain(self.counts.keys().filter(|id| !self.prompt.contains(id))) {
                if let Some(logit) = logits.get_mut(*id as usize) {
                    *logit = if *logit > 0.0 { *logit / p.repetition_penalty } else { *logit * p.repetition_penalty };
                }
            }
        }
        for (&id, &count) in &self.counts {
            if let Some(logit) = logits.get_mut(id as usize) {
                *logit -= p.presence_penalty + p.frequency_penalty * count as f32;
            }
        }
    }

    /// Draws by the number `u` in [0, 1).
    fn draw(&self, logits: &[f32], u: f64) -> Result<u32, NoCandidate> {
        let p = &self.params;
        let (mut kept, best) = if p.top_k > 0 {
            let kept = top_k(logits, p.top_k);
            let best = kept.first().map_or(f32::NEG_INFINITY, |c| c.value);
            (kept, best)
        } else {
            let best = largest(logits);
            let floor = best - NEGLIGIBLE * p.temperature;
            let above = logits.iter().enumerate().filter(|(_, v)| **v >= floor);
            (above.map(|(id, &value)| Candidate { id: id as u32, value }).collect(), best)
        };
        if best == f32::NEG_INFINITY {
            return Err(NoCandidate);
        }
        if best == f32::INFINITY {
            return argmax(logits).ok_or(NoCandidate);
        }
        for candidate in &mut kept {
            candidate.value = ((candidate.value - best) / p.temperature).exp();
        }
        if p.top_p < 1.0 {
            keep_nucleus(&mut kept, p.top_p);
        }
        if p.min_p > 0.0 {
            kept.retain(|c| c.value >= p.min_p);
        }
        let total: f64 = kept.iter().map(|c| f64::from(c.value)).sum();
        let mut left = u * total;
        for candidate in &kept {
            left -= f64::from(candidate.value);
            if left < 0.0 {
                return Ok(candidate.id);
            }
        }
        kept.iter().rev().find(|c| c.value > 0.0).map(|c| c.id).ok_or(NoCandidate)
    }
}

fn apply_mask(logits: &mut [f32], mask: &TokenSet) {
    let words = mask.words();
    for (index, chunk) in logits.chunks_mut(32).enumerate() {
        match words.get(index).copied().unwrap_or(0) {
            u32::MAX => {}
            0 => chunk.fill(f32::NEG_INFINITY),
            word => {
                for (bit, logit) in chunk.iter_mut().enumerate() {
                    if word >> bit & 1 == 0 {
                        *logit = f32::NEG_INFINITY;
                    }
                }
            }
        }
    }
}

/// Keeps the most likely candidates that together reach `top_p` of the weight, at least one, best first. Sorts only as
/// many as it needs.
fn keep_nucleus(kept: &mut Vec<Candidate>, top_p: f32) {
    let total: f64 = kept.iter().map(|c| f64::from(c.value)).sum();
    let wanted = total * f64::from(top_p);
    let (mut sorted, mut sum) = (0, 0.0);
    let mut batch = 64;
    while sorted < kept.len() {
        let end = (sorted + batch).min(kept.len());
        if end < kept.len() {
            kept[sorted..].select_nth_unstable_by(end - sorted - 1, best_first);
        }
        kept[sorted..end].sort_unstable_by(best_first);
        for index in sorted..end {
            sum += f64::from(kept[index].value);
            if sum >= wanted {
                kept.truncate(index + 1);
                return;
            }
        }
        sorted = end;
        batch *= 4;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampler(params: SamplingParams) -> Sampler {
        Sampler::new(SamplingParams { seed: Some(1), ..params }, &[3])
    }

    /// How often each id is drawn in `n` draws, as shares.
    fn shares(params: SamplingParams, logits: &[f32], n: u64) -> Vec<f64> {
        let sampler = sampler(params);
        let mut counts = vec![0.0; logits.len()];
        for index in 0..n {
            let id = sampler.choose(&mut logits.to_vec(), Restrictions::default(), index).unwrap();
            counts[id as usize] += 1.0 / n as f64;
        }
        counts
    }

    #[test]
    fn draws_follow_the_softmax_at_the_temperature() {
        let logits = [0.0, 1.0, 2.0, -1.0, f32::NEG_INFINITY];
        for temperature in [0.5, 1.0, 2.0] {
            let weights: Vec<f64> = logits.iter().map(|&l| (f64::from(l) / f64::from(temperature)).exp()).collect();
            let total: f64 = weights.iter().sum();
            let found = shares(SamplingParams { temperature, ..Default::default() }, &logits, 40_000);
            for (share, weight) in found.iter().zip(&weights) {
                assert!((share - weight / total).abs() < 0.01, "{found:?}");
            }
        }
    }

    #[test]
    fn filters_keep_exactly_what_they_say() {
        // Probabilities 0.5, 0.3, 0.15, 0.05 at ids 2, 0, 3, 1.
        let logits = [0.3f32.ln(), 0.05f32.ln(), 0.5f32.ln(), 0.15f32.ln()];
        let kept = |params| -> Vec<usize> {
            let found = shares(params, &logits, 4_000);
            (0..4).filter(|&id| found[id] > 0.0).collect()
        };
        let base = SamplingParams::default();
        assert_eq!(kept(SamplingParams { top_k: 2, ..base.clone() }), [0, 2]);
        assert_eq!(kept(SamplingParams { top_p: 0.79, ..base.clone() }), [0, 2]);
        assert_eq!(kept(SamplingParams { top_p: 0.81, ..base.clone() }), [0, 2, 3]);
        assert_eq!(kept(SamplingParams { top_p: 0.0, ..base.clone() }), [2]);
        assert_eq!(kept(SamplingParams { min_p: 0.2, ..base.clone() }), [0, 2, 3]);
        assert_eq!(kept(SamplingParams { top_k: 3, top_p: 0.8, ..base.clone() }), [0, 2]);
        assert_eq!(kept(SamplingParams { logit_bias: vec![(2, -100.0)], ..base.clone() }), [0, 1, 3]);
        assert_eq!(kept(base), [0, 1, 2, 3]);
    }

    #[test]
    fn a_nucleus_of_a_wide_vocabulary_equals_the_sorted_one() {
        let logits: Vec<f32> = (0..5000u64).map(|i| (uniform(9, i) * 6.0) as f32).collect();
        let mut kept: Vec<Candidate> =
            logits.iter().enumerate().map(|(id, v)| Candidate { id: id as u32, value: v.exp() }).collect();
        let mut sorted = kept.clone();
        sorted.sort_by(best_first);
        keep_nucleus(&mut kept, 0.9);
        assert!(kept.len() > 500);
        assert_eq!(kept, sorted[..kept.len()]);
    }

    #[test]
    fn penalties_lower_what_was_said() {
        let mut logits = vec![1.0, 1.0, 1.0, 1.0];
        let mut s = sampler(SamplingParams {
            temperature: 0.0,
            presence_penalty: 0.5,
            frequency_penalty: 0.25,
            repetition_penalty: 2.0,
            ..Default::default()
        });
        s.accept(1);
        s.accept(1);
        assert_eq!(s.choose(&mut logits, Restrictions::default(), 0), Ok(0));
        assert_eq!(logits, [1.0, 0.5 - 0.5 - 0.5, 1.0, 0.5]);
    }

    #[test]
    fn a_mask_and_a_ban_leave_the_rest_and_nothing_left_is_an_error() {
        let s = sampler(SamplingParams::greedy());
        let mut mask = TokenSet::default();
        mask.insert(1);
        mask.insert(40);
        let logits: Vec<f32> = (0..50).map(|i| i as f32).collect();
        let choose = |banned: &[u32]| s.choose(&mut logits.clone(), Restrictions { mask: Some(&mask), banned }, 0);
        assert_eq!(choose(&[]), Ok(40));
        assert_eq!(choose(&[40]), Ok(1));
        assert_eq!(choose(&[40, 1]), Err(NoCandidate));
    }

    #[test]
    fn one_token_in_a_quarter_million_logits_takes_milliseconds() {
        let logits: Vec<f32> = (0..248_320u64).map(|i| (uniform(5, i) * 20.0) as f32).collect();
        let s = sampler(SamplingParams { top_k: 20, top_p: 0.95, ..Default::default() });
        let mut scratch = logits.clone();
        let start = std::time::Instant::now();
        for index in 0..10 {
            scratch.copy_from_slice(&logits);
            s.choose(&mut scratch, Restrictions::default(), index).unwrap();
        }
        // Measured about 0.2 ms a token; the bound leaves room for a loaded machine.
        assert!(start.elapsed().as_millis() < 200, "{:?}", start.elapsed());
    }
}
