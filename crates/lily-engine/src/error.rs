//! Why a request was not taken, and why an engine could not be made.

use std::time::Duration;

use crate::sampler::SamplingError;

/// Why [`crate::Engine::submit`] refused a request.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SubmitError {
    /// A token of the prompt is none of the model's, or there is none.
    #[error("the prompt {problem} (accepted: at least one id, each from 0 to {last})")]
    Prompt {
        /// What is wrong with it.
        problem: String,
        /// The largest id.
        last: usize,
    },
    /// A field of the request is out of range.
    #[error("{field} is {value} (accepted: {accepted})")]
    Invalid {
        /// Field, named as in the OpenAI API where that has it.
        field: &'static str,
        /// Its value, shortened.
        value: String,
        /// What would have been accepted.
        accepted: String,
    },
    /// A sampling parameter is out of range.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    /// The prompt leaves no room for a token.
    #[error("the prompt has {tokens} tokens; the context limit is {limit} tokens, prompt and answer together")]
    PromptTooLong {
        /// Tokens of the prompt.
        tokens: usize,
        /// Most tokens of a sequence.
        limit: usize,
    },
    /// The request can never fit into the KV pool.
    #[error(
        "prompt ({prompt} tokens) and answer (up to {max_tokens}) need {needed_pages} KV pages of 256 tokens; the pool has \
         {pool_pages}"
    )]
    TooLarge {
        /// Tokens of the prompt.
        prompt: usize,
        /// Most tokens to generate.
        max_tokens: usize,
        /// Pages both need.
        needed_pages: usize,
        /// Pages there are.
        pool_pages: usize,
    },
    /// As many requests run and wait as may.
    #[error("{running} requests run and {waiting} wait (limit {limit}); try again in {} s", retry_after.as_secs())]
    QueueFull {
        /// Requests that run.
        running: usize,
        /// Requests that wait.
        waiting: usize,
        /// Most requests that may wait.
        limit: usize,
        /// When a place in the queue is likely free, whole seconds, at least one.
        retry_after: Duration,
    },
    /// The device failed and does not come back.
    #[error("the engine is not healthy: {0}")]
    Unhealthy(String),
    /// The engine drains and takes nothing new.
    #[error("the engine is shutting down")]
    ShuttingDown,
}

/// Why an [`crate::Engine`] could not be made.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// A setting does not go with the device.
    #[error("{field} is {value} (accepted: {accepted})")]
    Config {
        /// Setting.
        field: &'static str,
        /// Its value.
        value: String,
        /// What would have been accepted.
        accepted: String,
    },
    /// The cache directory cannot be used.
    #[error("cache directory {path}: {source}")]
    CacheDir {
        /// The folder.
        path: std::path::PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The worker thread could not be started.
    #[error("cannot start the engine's thread: {0}")]
    Thread(#[source] std::io::Error),
}
