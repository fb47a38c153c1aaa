//! What a caller asks for: tokens in, limits, sampling, and what the text layer knows about the prompt.

use std::time::Instant;

use crate::constraint::TokenMask;
use crate::sampler::SamplingParams;

/// One request. The token list is the whole prompt; what of it is already computed is the engine's business.
pub struct Request {
    /// The prompt, at least one id, each below the model's vocabulary size.
    pub tokens: Vec<u32>,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// Most tokens to generate; more than fits is cut to the context limit, and the memory for them is kept free. `None` =
    /// up to the context limit, or as far as memory goes while others run. 0 reads the prompt into the prefix cache and
    /// generates nothing.
    pub max_tokens: Option<usize>,
    /// End-of-sequence ids and stop strings end the generation only after so many tokens.
    pub min_tokens: usize,
    /// What an end-of-sequence id does.
    pub eos: EosRule,
    /// Strings that end the generation where they first appear in the answer (not in the thinking); they are not part of
    /// the text. At most [`Request::MAX_STOP_STRINGS`], none empty.
    pub stop: Vec<String>,
    /// `Some(n)`: give the chosen token's log probability and those of the `n` most likely tokens (at most
    /// [`Request::MAX_TOP_LOGPROBS`]). They are the log-softmax of the raw logits, before penalties, masks and temperature.
    pub logprobs: Option<usize>,
    /// Whether the prompt ends inside a think block, and how long the block may become.
    pub thinking: Thinking,
    /// Prompt positions (token counts) where later requests are likely to branch off: the end of the system/tools block,
    /// the end of each user turn before the generation prompt. Order and out-of-range entries do not matter.
    pub branch_points: Vec<usize>,
    /// Whether the prefix cache is read and filled.
    pub prefix_cache: PrefixCacheUse,
    /// Restricts the answer (not the thinking). Made by [`crate::Engine::compile_constraint`].
    pub constraint: Option<Box<dyn TokenMask>>,
    /// The request ends with [`crate::FinishReason::Deadline`] at the first step boundary after this moment.
    pub deadline: Option<Instant>,
}

impl Request {
    /// Most stop strings.
    pub const MAX_STOP_STRINGS: usize = 16;
    /// Most alternatives a token can be reported with.
    pub const MAX_TOP_LOGPROBS: usize = 20;

    /// A request for `tokens` with everything else at its plainest: given sampling, no limit but the context, no thinking.
    pub fn new(tokens: Vec<u32>, sampling: SamplingParams) -> Self {
        Request {
            tokens,
            sampling,
            max_tokens: None,
            min_tokens: 0,
            eos: EosRule::Stop,
            stop: Vec::new(),
            logprobs: None,
            thinking: Thinking::Closed,
            branch_points: Vec::new(),
            prefix_cache: PrefixCacheUse::ReadWrite,
            constraint: None,
            deadline: None,
        }
    }
}

/// What an end-of-sequence id does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EosRule {
    /// It ends the generation.
    Stop,
    /// It is a token like any other (benchmarks).
    Ignore,
}

/// State of the think block at the end of the prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Thinking {
    /// Everything generated is the answer.
    Closed,
    /// The prompt ends inside the block: what is generated up to `</think>` is thinking.
    Open {
        /// After so many thinking tokens the engine writes `\n</think>\n\n` itself and the answer begins.
        budget: Option<usize>,
    },
}

/// Whether a request uses the prefix cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrefixCacheUse {
    /// Resumes from the cache and leaves its own prefixes there.
    ReadWrite,
    /// Computes everything and leaves nothing.
    Bypass,
}
