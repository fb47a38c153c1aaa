//! The engine: a loaded model on a device, and the thread that drives it.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lily_model::device::{Capacity, Device, DeviceInfo};
use lily_model::graph::Plan;
use lily_model::text::Tokenizer;
use tokio::sync::mpsc::unbounded_channel;

use crate::cache::{CacheLimits, DiskConfig, DiskTier, PagePool, PrefixCache, Resources, SlotPool};
use crate::constraint::{Compiler, ConstraintError, ConstraintSpec, TokenMask};
use crate::defaults::GenerationDefaults;
use crate::error::{EngineError, SubmitError};
use crate::generation::Generation;
use crate::metrics::MetricsSnapshot;
use crate::request::{EosRule, Request, Thinking};
use crate::text_output::TextOutput;
use crate::thinking::ThinkTokens;
use crate::worker::{Command, Job, Shared, Vocabulary, Worker, WorkerParts};

/// What an engine is made of.
pub struct EngineParts {
    /// Computes the model. Its slots beyond [`EngineConfig::parallel`] hold the prefix cache's snapshots.
    pub device: Box<dyn Device>,
    /// Turns ids into text.
    pub tokenizer: Arc<Tokenizer>,
    /// End ids and sampling defaults of the checkpoint.
    pub defaults: GenerationDefaults,
    /// Rows of the logits.
    pub vocab_size: usize,
    /// Bytes of one slot's state (`ModelConfig::recurrent_state_bytes`), for the cache budget.
    pub slot_bytes: u64,
    /// Bytes of one page of keys and values, for the cache budget.
    pub page_bytes: u64,
    /// Says which weights these are; a disk cache of another fingerprint is not read.
    pub fingerprint: String,
}

/// Settings of an engine.
#[derive(Debug, Clone, PartialEq)]
pub struct EngineConfig {
    /// Requests that run at once, 1 to the device's decode rows.
    pub parallel: usize,
    /// Requests that may wait beyond those.
    pub max_waiting: usize,
    /// Bytes the prefix cache may hold in pages and snapshots; 0 = no prefix cache.
    pub cache_bytes: u64,
    /// Where snapshots are kept across restarts.
    pub cache_dir: Option<PathBuf>,
    /// Bytes the files in `cache_dir` may take.
    pub cache_dir_bytes: u64,
    /// While requests decode, a prefill step is kept about this short: its rows follow the speed of the steps before. A
    /// running stream's gap is about one such step (of at least 32 prompt tokens, where those take longer), one decode
    /// step, and the copy of a snapshot where a prompt passes a branch point.
    pub max_stall: Duration,
}

impl Default for EngineConfig {
    fn default() -> Self {
        EngineConfig {
            parallel: 4,
            max_waiting: 64,
            cache_bytes: 2 << 30,
            cache_dir: None,
            cache_dir_bytes: 16 << 30,
            max_stall: Duration::from_millis(300),
        }
    }
}

/// Limits a caller may want to show or check before it submits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelLimits {
    /// Most tokens of prompt and answer together.
    pub max_seq: usize,
    /// Rows of the logits; every token id is below.
    pub vocab_size: usize,
}

/// Whether the engine can serve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// Yes.
    Ready,
    /// It finishes what it has and takes nothing new.
    Draining,
    /// No; why.
    Unhealthy(String),
}

/// A loaded model on a device. Cheap to share behind an `Arc`; dropping the last one cancels what runs, writes the prefix
/// cache to disk if there is a cache directory, and ends the worker thread.
pub struct Engine {
    defaults: GenerationDefaults,
    limits: ModelLimits,
    info: DeviceInfo,
    config: EngineConfig,
    pool_pages: usize,
    tokenizer: Arc<Tokenizer>,
    has_think_block: bool,
    compiler: Compiler,
    shared: Arc<Shared>,
    next_id: AtomicU64,
    worker: Mutex<Option<(Sender<Command>, JoinHandle<()>)>>,
}

impl Engine {
    /// Starts the worker thread. Fails where `config` does not go with the device.
    pub fn new(parts: EngineParts, config: EngineConfig) -> Result<Self, EngineError> {
        let EngineParts { device, tokenizer, defaults, vocab_size, slot_bytes, page_bytes, fingerprint } = parts;
        let (info, capacity) = (device.info(), device.capacity());
        check(&config, &capacity, &defaults, vocab_size)?;
        let fingerprint =
            format!("{fingerprint}|{}|{}|{}|{slot_bytes}", info.name, info.activation_bytes, info.cache_bytes);
        let disk = match &config.cache_dir {
            Some(dir) if config.cache_bytes > 0 => {
                let disk = DiskConfig { dir: dir.clone(), bytes: config.cache_dir_bytes, fingerprint };
                let opened = DiskTier::open(disk);
                Some(opened.map_err(|source| EngineError::CacheDir { path: dir.clone(), source })?)
            }
            _ => None,
        };
        let snapshots = capacity.slots - config.parallel;
        let limits = CacheLimits { bytes: config.cache_bytes, snapshots, page_bytes, slot_bytes };
        let compiler = Compiler::new(Arc::clone(&tokenizer), &defaults.eos_token_ids);
        let think = ThinkTokens::of(&tokenizer);
        let has_think_block = think.is_some();
        let shared = Arc::new(Shared::new(MetricsSnapshot::new(capacity.pages)));
        let worker = Worker::new(WorkerParts {
            resources: Resources { device, pages: PagePool::new(capacity.pages), slots: SlotPool::new(capacity.slots) },
            cache: PrefixCache::new(limits, disk),
            parallel: config.parallel,
            max_stall: config.max_stall,
            vocabulary: Vocabulary { eos: defaults.eos_token_ids.clone(), think },
            vocab_size,
            shared: Arc::clone(&shared),
        });
        let (sender, receiver) = channel();
        let thread = std::thread::Builder::new()
            .name("lily-engine".into())
            .spawn(move || worker.run(&receiver))
            .map_err(EngineError::Thread)?;
        Ok(Engine {
            limits: ModelLimits { max_seq: capacity.max_seq, vocab_size },
            pool_pages: capacity.pages,
            defaults,
            info,
            config,
            tokenizer,
            has_think_block,
            compiler,
            shared,
            next_id: AtomicU64::new(1),
            worker: Mutex::new(Some((sender, thread))),
        })
    }

    /// Takes a request, or says why not. Never blocks on the device.
    pub fn submit(&self, mut request: Request) -> Result<Generation, SubmitError> {
        let max_new = self.check(&request)?;
        let stop = std::mem::take(&mut request.stop);
        let text = TextOutput::new(Arc::clone(&self.tokenizer), stop).map_err(|e| SubmitError::Invalid {
            field: "stop",
            value: e.to_string(),
            accepted: format!("at most {} strings, none empty", Request::MAX_STOP_STRINGS),
        })?;
        match self.health() {
            Health::Ready => {}
            Health::Draining => return Err(SubmitError::ShuttingDown),
            Health::Unhealthy(reason) => return Err(SubmitError::Unhealthy(reason)),
        }
        self.enter()?;
        let (events, receiver) = unbounded_channel();
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let job = Job { id, request, text, events, submitted: Instant::now(), max_new, told: false };
        if !self.send(Command::Submit(Box::new(job))) {
            self.shared.leave();
            return Err(SubmitError::ShuttingDown);
        }
        self.shared.report(|m| m.requests_submitted += 1);
        Ok(Generation { id, events: receiver })
    }

    fn enter(&self) -> Result<(), SubmitError> {
        let EngineConfig { parallel, max_waiting, .. } = self.config;
        self.shared.enter(self.places()).map_err(|present| {
            self.shared.report(|m| m.requests_refused += 1);
            SubmitError::QueueFull {
                running: parallel,
                waiting: present.saturating_sub(parallel),
                limit: max_waiting,
                retry_after: self.shared.retry_after(present, parallel),
            }
        })
    }

    /// Checks a request and gives the most tokens it may generate.
    fn check(&self, request: &Request) -> Result<usize, SubmitError> {
        request.sampling.validate()?;
        let ModelLimits { max_seq, vocab_size } = self.limits;
        let last = vocab_size - 1;
        let foreign = |id: &u32| *id as usize > last;
        if let Some(index) = request.tokens.iter().position(foreign) {
            let problem = format!("has the id {} at {index}", request.tokens[index]);
            return Err(SubmitError::Prompt { problem, last });
        }
        if let Some((id, _)) = request.sampling.logit_bias.iter().find(|(id, _)| foreign(id)) {
            return Err(invalid("logit_bias", format!("for the id {id}"), format!("ids from 0 to {last}")));
        }
        let prompt = request.tokens.len();
        if prompt == 0 {
            return Err(SubmitError::Prompt { problem: "is empty".into(), last });
        }
        let room_needed = usize::from(request.max_tokens != Some(0));
        if prompt + room_needed > max_seq {
            return Err(SubmitError::PromptTooLong { tokens: prompt, limit: max_seq });
        }
        if let Some(n) = request.logprobs.filter(|n| *n > Request::MAX_TOP_LOGPROBS) {
            return Err(invalid("top_logprobs", n, format!("0 to {}", Request::MAX_TOP_LOGPROBS)));
        }
        if matches!(request.thinking, Thinking::Open { .. }) && !self.has_think_block {
            return Err(invalid("thinking", "open", "closed: this tokenizer has no </think> token"));
        }
        if request.constraint.is_some() && request.eos == EosRule::Ignore {
            return Err(invalid("ignore_eos", "true", "false together with a constraint"));
        }
        if request.constraint.is_some() && request.min_tokens > 0 {
            return Err(invalid("min_tokens", request.min_tokens, "0 together with a constraint"));
        }
        let pool = self.pool_pages * Plan::PAGE_TOKENS;
        let longest = max_seq - prompt;
        let max_new = match request.max_tokens {
            Some(n) => n.min(longest),
            None => longest.min(pool.saturating_sub(prompt).max(1)),
        };
        let needed_pages = (prompt + max_new).div_ceil(Plan::PAGE_TOKENS);
        if needed_pages > self.pool_pages {
            return Err(SubmitError::TooLarge {
                prompt,
                max_tokens: max_new,
                needed_pages,
                pool_pages: self.pool_pages,
            });
        }
        Ok(max_new)
    }

    fn send(&self, command: Command) -> bool {
        let worker = self.worker.lock().unwrap_or_else(PoisonError::into_inner);
        worker.as_ref().is_some_and(|(sender, _)| sender.send(command).is_ok())
    }

    /// Compiles a constraint for [`Request::constraint`]; blocks for up to a few seconds (call it off the async threads).
    pub fn compile_constraint(&self, spec: &ConstraintSpec) -> Result<Box<dyn TokenMask>, ConstraintError> {
        self.compiler.compile(spec)
    }

    /// End ids and sampling defaults of the checkpoint.
    pub fn defaults(&self) -> &GenerationDefaults {
        &self.defaults
    }

    /// Limits of the model on this device.
    pub fn limits(&self) -> ModelLimits {
        self.limits
    }

    /// The tokenizer it decodes with.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// What computes.
    pub fn device_info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Most requests that run and wait at once.
    pub fn places(&self) -> usize {
        self.config.parallel + self.config.max_waiting
    }

    /// Whether requests are served.
    pub fn health(&self) -> Health {
        self.shared.health()
    }

    /// Counters at this moment.
    pub fn metrics(&self) -> MetricsSnapshot {
        self.shared.metrics()
    }

    /// Takes nothing new from now on; what runs and waits is finished. Returns when all is done; what still runs after
    /// `patience` is cancelled. Writes the prefix cache to disk if there is a cache directory.
    pub fn drain(&self, patience: Duration) {
        self.shared.set_health(Health::Draining);
        let (done, finished) = channel();
        if self.send(Command::Drain { until: Instant::now() + patience, done }) {
            // An error means that the thread is gone, and with it what there was to wait for.
            let _ = finished.recv();
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let worker = self.worker.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((sender, thread)) = worker {
            drop(sender);
            if thread.join().is_err() {
                tracing::error!("the engine's thread panicked at its end");
            }
        }
    }
}

fn check(
    config: &EngineConfig,
    capacity: &Capacity,
    defaults: &GenerationDefaults,
    vocab_size: usize,
) -> Result<(), EngineError> {
    let most = capacity.decode_rows.min(capacity.slots).min(Plan::MAX_DECODE_ROWS);
    let bad = |field, value: String, accepted: String| Err(EngineError::Config { field, value, accepted });
    if !(1..=most).contains(&config.parallel) {
        return bad("parallel", config.parallel.to_string(), format!("1 to {most} on this device"));
    }
    if capacity.pages == 0 || capacity.max_seq == 0 || capacity.prefill_rows == 0 {
        return bad("device capacity", format!("{capacity:?}"), "at least one page, position and prefill row".into());
    }
    if let Some(id) = defaults.eos_token_ids.iter().find(|id| **id as usize >= vocab_size) {
        return bad("eos_token_id", id.to_string(), format!("ids below {vocab_size}"));
    }
    Ok(())
}

fn invalid(field: &'static str, value: impl ToString, accepted: impl Into<String>) -> SubmitError {
    SubmitError::Invalid { field, value: value.to_string(), accepted: accepted.into() }
}
