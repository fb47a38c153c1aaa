//! What a checkpoint's `generation_config.json` says about generation, in the engine's terms.

use crate::sampler::SamplingParams;

/// End-of-sequence ids and sampling defaults.
#[derive(Debug, Clone, PartialEq)]
pub struct GenerationDefaults {
    /// Ids that end a generation.
    pub eos_token_ids: Vec<u32>,
    /// Sampling where the request does not say otherwise.
    pub sampling: SamplingParams,
}
