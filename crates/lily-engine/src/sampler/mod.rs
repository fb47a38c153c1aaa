//! From logits to a token. Order of what is applied: logit_bias, repetition/presence/frequency penalties, mask, temperature,
//! top_k, top_p, min_p, choice. Knows no request and no device.

mod choose;
mod params;
mod rng;
mod select;

pub(crate) use choose::{Restrictions, Sampler};
pub use params::{SamplingError, SamplingParams};
pub(crate) use select::{log_sum_exp, not_finite, top_k};
