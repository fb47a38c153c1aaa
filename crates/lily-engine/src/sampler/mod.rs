//! From logits to a token. Order of what is applied: logit_bias, repetition/presence/frequency penalties, mask, temperature,
//! top_k, top_p, min_p, choice. Knows no request and no device.

mod params;

pub use params::{SamplingError, SamplingParams};
