//! What the handlers share: the settings, and the model once it is loaded.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use lily_engine::Engine;
use lily_model::text::{ChatTemplate, Tokenizer};
use tokio::sync::{Semaphore, watch};

use super::body::BodyMemory;
use super::error::ApiError;
use super::identity;
use super::origin::Callers;
use crate::model::LoadedModel;

/// Settings of the server.
#[derive(Debug, Clone)]
pub struct ApiSettings {
    /// Key that requests must carry.
    pub api_key: Option<String>,
    /// Whose requests are answered.
    pub callers: Callers,
    /// Origins that browsers may call from; `*` for all.
    pub cors_origins: Vec<String>,
    /// Largest request body, bytes.
    pub max_body: usize,
    /// Longest time a request may take.
    pub request_timeout: Option<Duration>,
    /// How long clients may take to send.
    pub timeouts: ReceiveTimeouts,
    /// Most thinking tokens of a request that does not say.
    pub thinking_budget: Option<usize>,
}

/// How long a client may take to send its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceiveTimeouts {
    /// The head, and the silence before it on a kept connection.
    pub head: Duration,
    /// A pause within the body.
    pub pause: Duration,
    /// The whole body.
    pub body: Duration,
}

impl Default for ReceiveTimeouts {
    fn default() -> Self {
        ReceiveTimeouts {
            head: Duration::from_secs(30),
            pause: Duration::from_secs(15),
            body: Duration::from_secs(120),
        }
    }
}

impl Default for ApiSettings {
    fn default() -> Self {
        ApiSettings {
            api_key: None,
            callers: Callers::Any,
            cors_origins: Vec::new(),
            max_body: 32 << 20,
            request_timeout: None,
            timeouts: ReceiveTimeouts::default(),
            thinking_budget: None,
        }
    }
}

/// Prompts that are rendered and tokenized at once: each takes a processor and up to a hundred times its bytes of memory.
const PREPARED_AT_ONCE: usize = 2;
/// Constraints that are compiled at once: one takes a processor for up to five seconds.
const COMPILED_AT_ONCE: usize = 2;

/// Work that computes for a while before a request can be submitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// Rendering and tokenizing.
    Prompt,
    /// Compiling a constraint.
    Constraint,
}

/// A model that serves.
pub struct Serving {
    /// Name in `/v1/models` and in responses.
    pub name: String,
    /// Unix time of loading.
    pub created: u64,
    /// Runs requests.
    pub engine: Arc<Engine>,
    /// Text to ids.
    pub tokenizer: Arc<Tokenizer>,
    /// Conversations to text.
    pub template: ChatTemplate,
    /// Settings of the server.
    pub settings: ApiSettings,
    /// Id of `</think>`.
    pub think_end: Option<u32>,
    turn_start: Option<u32>,
    assistant: Vec<u32>,
    /// Turns to render and tokenize a prompt.
    preparing: Arc<Semaphore>,
    /// Turns to compile a constraint: slow ones must not keep prompts waiting that have none.
    compiling: Arc<Semaphore>,
}

impl Serving {
    /// Puts together what serves.
    pub fn new(model: LoadedModel, settings: ApiSettings) -> Self {
        let LoadedModel { name, engine, tokenizer, template } = model;
        Serving {
            name,
            created: identity::now(),
            engine,
            think_end: tokenizer.token_id("</think>"),
            turn_start: tokenizer.token_id("<|im_start|>"),
            assistant: tokenizer.encode_text("assistant").unwrap_or_default(),
            tokenizer,
            template,
            settings,
            preparing: Arc::new(Semaphore::new(PREPARED_AT_ONCE)),
            compiling: Arc::new(Semaphore::new(COMPILED_AT_ONCE)),
        }
    }

    /// When a request that arrives now must be done: within its own limit and the server's.
    pub fn deadline(&self, own: Option<Duration>) -> Option<Instant> {
        let limit = self.settings.request_timeout.into_iter().chain(own).min();
        limit.and_then(|limit| Instant::now().checked_add(limit))
    }

    /// Where later requests are likely to leave this prompt: after the system and tools block, and after each turn of the
    /// user (tool results included), before the assistant's opening.
    pub(super) fn branch_points(&self, tokens: &[u32]) -> Vec<usize> {
        let Some(start) = self.turn_start else { return Vec::new() };
        let turns = tokens.iter().enumerate().filter(|(_, id)| **id == start).map(|(at, _)| at);
        turns
            .enumerate()
            .filter(|&(number, at)| number == 1 || (number > 0 && tokens[at + 1..].starts_with(&self.assistant)))
            .map(|(_, at)| at)
            .collect()
    }

    /// Runs work off the async threads, a few of a kind at a time, until `deadline` at most. A caller that goes away while it
    /// waits for its turn starts nothing; work that has begun keeps its turn to its end, whether or not anybody waits.
    pub async fn blocking<T: Send + 'static>(
        &self,
        kind: Work,
        deadline: Option<Instant>,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let turns = match kind {
            Work::Prompt => &self.preparing,
            Work::Constraint => &self.compiling,
        };
        let done = async {
            let turn = Arc::clone(turns).acquire_owned().await;
            let turn = turn.map_err(|_| ApiError::unavailable("shutting down"))?;
            let work = move || {
                let result = work();
                drop(turn);
                result
            };
            tokio::task::spawn_blocking(work).await.map_err(|error| ApiError::internal(error.to_string()))
        };
        match deadline {
            Some(at) => tokio::time::timeout_at(at.into(), done).await.unwrap_or_else(|_| Err(ApiError::deadline())),
            None => done.await,
        }
    }
}

/// What the handlers share.
pub struct App {
    /// Settings of the server.
    pub settings: ApiSettings,
    pub(super) bodies: BodyMemory,
    ending: watch::Sender<bool>,
    serving: OnceLock<Arc<Serving>>,
}

impl App {
    /// A server whose model is still being loaded.
    pub fn new(settings: ApiSettings) -> Arc<Self> {
        let bodies = BodyMemory::new(settings.max_body);
        Arc::new(App { settings, bodies, ending: watch::Sender::new(false), serving: OnceLock::new() })
    }

    /// The model is loaded. Only the first call counts.
    pub fn loaded(&self, serving: Arc<Serving>) {
        self.serving.get_or_init(|| serving);
    }

    /// Requests whose body is not complete are refused from now on.
    pub fn end(&self) {
        self.ending.send_replace(true);
    }

    /// Returns when [`App::end`] has been called.
    pub(super) async fn ended(&self) {
        // The sender lives as long as `self`.
        let _ = self.ending.subscribe().wait_for(|ending| *ending).await;
    }

    /// The model, or 503 while it is being loaded.
    pub fn serving(&self) -> Result<&Arc<Serving>, ApiError> {
        self.serving.get().ok_or_else(ApiError::loading)
    }
}
