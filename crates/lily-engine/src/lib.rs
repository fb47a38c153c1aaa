//! What happens to a request: admission, prefix cache, scheduling, sampling, constraints, text decoding.
//!
//! Two public nouns: an [`Engine`] is a loaded model on a device, and a [`Generation`] is one request's timeline. Callers
//! hand over the full token list; the engine decides what to reuse. Nothing here knows HTTP or a kernel.

mod cache;
mod defaults;
mod engine;
mod error;
mod generation;
mod metrics;
mod request;
mod text_output;
mod thinking;
mod worker;

pub mod constraint;
pub mod sampler;

pub use defaults::GenerationDefaults;
pub use engine::{Engine, EngineConfig, EngineParts, Health, ModelLimits};
pub use error::{EngineError, SubmitError};
pub use generation::{Event, FinishReason, Generation, Timings, TokenEvent, TokenLogprob, Usage};
pub use metrics::{Histogram, MetricsSnapshot};
pub use request::{EosRule, PrefixCacheUse, Request, Thinking};
pub use sampler::{SamplingError, SamplingParams};
