//! What a caller gets back: the events of one request, through a channel that sync and async code can both read.

use std::time::Duration;

use tokio::sync::mpsc::UnboundedReceiver;

/// A running request. Dropping it cancels the request: its slot is free within one step.
///
/// [`Generation::recv`] is for async callers, [`Generation::recv_blocking`] for threads (it panics inside an async runtime,
/// as tokio's `blocking_recv` does). After [`Event::Finished`] both give `None`.
#[derive(Debug)]
pub struct Generation {
    pub(crate) id: u64,
    pub(crate) events: UnboundedReceiver<Event>,
}

impl Generation {
    /// Number of the request in this engine, for logs.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The next event.
    pub async fn recv(&mut self) -> Option<Event> {
        self.events.recv().await
    }

    /// The next event; blocks the thread.
    pub fn recv_blocking(&mut self) -> Option<Event> {
        self.events.blocking_recv()
    }

    /// The next event if one is there.
    pub fn try_recv(&mut self) -> Option<Event> {
        self.events.try_recv().ok()
    }
}

/// Something that happened to a request. The order is: `Queued` (only if it had to wait), `PrefillProgress` (one a chunk,
/// the first with `done == cached`), `Token`s, `Finished`. If the engine goes away, the channel closes without `Finished`.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// Others are before it.
    Queued {
        /// Requests that will be admitted first.
        ahead: usize,
    },
    /// A part of the prompt has been read.
    PrefillProgress {
        /// Prompt tokens absorbed, cached ones included.
        done: usize,
        /// Prompt tokens.
        total: usize,
        /// Prompt tokens that came from the prefix cache.
        cached: usize,
    },
    /// A token was generated.
    Token(TokenEvent),
    /// The end. Nothing follows.
    Finished {
        /// Why.
        reason: FinishReason,
        /// Text that was held back (a possible start of a stop string, an unfinished character) and is now certain.
        text: String,
        /// Token counts.
        usage: Usage,
        /// Where the time went.
        timings: Timings,
    },
}

/// A generated token. An end-of-sequence id that ends the generation is counted in [`Usage`] but makes no event.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenEvent {
    /// Its id.
    pub id: u32,
    /// Text that this token makes certain; may be empty, may include text of earlier tokens.
    pub text: String,
    /// The raw bytes of the token alone, for logprobs.
    pub bytes: Vec<u8>,
    /// Log probability of the token, if asked for.
    pub logprob: Option<f32>,
    /// The most likely tokens, best first, if asked for.
    pub top_logprobs: Vec<TokenLogprob>,
}

/// A token and its log probability under the raw logits.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprob {
    /// Token id.
    pub id: u32,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Natural logarithm of its probability.
    pub logprob: f32,
}

/// Why a generation ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FinishReason {
    /// The model produced an end-of-sequence id.
    Eos,
    /// A stop string appeared.
    StopString(String),
    /// `max_tokens` or the context limit is reached.
    Length,
    /// The caller dropped the [`Generation`] or the engine is shutting down.
    Cancelled,
    /// The request's deadline passed.
    Deadline,
    /// The answer's constraint cannot be followed any further; the message says why.
    Constraint(String),
    /// The device failed; the message says how.
    Error(String),
}

/// Token counts of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Prompt tokens.
    pub prompt: usize,
    /// Prompt tokens that came from the prefix cache.
    pub cached: usize,
    /// Generated tokens, end-of-sequence id and thinking included.
    pub completion: usize,
    /// Generated tokens up to and including `</think>`.
    pub reasoning: usize,
}

/// Where the time of a request went.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Timings {
    /// From submission to admission.
    pub queued: Duration,
    /// From admission to the first token.
    pub prefill: Duration,
    /// From the first token to the last.
    pub decode: Duration,
}
