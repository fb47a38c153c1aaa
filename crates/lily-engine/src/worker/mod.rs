//! The thread that drives the device. One iteration: take in what callers sent, drop what they gave up, admit what fits,
//! read a bounded part of the prompts that are being read, decode one token of every running stream.

mod admission;
mod decode;
mod pace;
mod prefill;
mod retire;
mod sequence;
mod shared;

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::time::{Duration, Instant};

use tokio::sync::mpsc::UnboundedSender;

use crate::cache::{PrefixCache, Resources};
use crate::engine::Health;
use crate::generation::{Event, FinishReason, Timings, Usage};
use crate::request::Request;
use crate::text_output::TextOutput;
use sequence::Sequence;
pub(crate) use sequence::Vocabulary;
pub(crate) use shared::{FirstToken, Shared};

/// After so many failed steps in a row the device is given up.
const MAX_FAILURES: u32 = 3;
/// How long the engine must have been idle before it writes a snapshot to disk.
const IDLE_BEFORE_STORE: Duration = Duration::from_millis(250);

/// A request on its way to the device.
pub(crate) struct Job {
    pub id: u64,
    pub request: Request,
    /// Made from the request's stop strings.
    pub text: TextOutput,
    pub events: UnboundedSender<Event>,
    pub submitted: Instant,
    /// Most tokens to generate, the context limit heeded.
    pub max_new: usize,
    /// Whether the caller was told that it waits.
    pub told: bool,
}

/// What callers send.
pub(crate) enum Command {
    Submit(Box<Job>),
    /// Finish everything until then, cancel the rest, write the cache to disk, answer, end.
    Drain {
        until: Instant,
        done: Sender<()>,
    },
}

/// Whether the loop goes on.
#[derive(PartialEq, Eq)]
enum Next {
    Tick,
    Stop,
}

/// Rows of a decode step in flight, as indices into `running`: those stay valid until nothing is in flight.
struct Flight {
    rows: Vec<usize>,
    started: Instant,
}

/// See the head of the file.
pub(crate) struct Worker {
    pub resources: Resources,
    pub cache: PrefixCache,
    pub parallel: usize,
    pub vocabulary: Vocabulary,
    pub vocab_size: usize,
    pub shared: Arc<Shared>,
    waiting: VecDeque<Box<Job>>,
    running: Vec<Sequence>,
    flight: VecDeque<Flight>,
    pace: pace::Pace,
    drain: Option<(Instant, Sender<()>)>,
    failures: u32,
}

/// What a worker is made of.
pub(crate) struct WorkerParts {
    pub resources: Resources,
    pub cache: PrefixCache,
    pub parallel: usize,
    pub max_stall: Duration,
    pub vocabulary: Vocabulary,
    pub vocab_size: usize,
    pub shared: Arc<Shared>,
}

impl Worker {
    pub fn new(parts: WorkerParts) -> Self {
        let capacity = parts.resources.device.capacity();
        Worker {
            resources: parts.resources,
            cache: parts.cache,
            parallel: parts.parallel,
            vocabulary: parts.vocabulary,
            vocab_size: parts.vocab_size,
            shared: parts.shared,
            waiting: VecDeque::new(),
            running: Vec::new(),
            flight: VecDeque::new(),
            pace: pace::Pace::new(parts.max_stall, capacity.prefill_rows),
            drain: None,
            failures: 0,
        }
    }

    /// Runs until the engine is dropped, drained or lost.
    pub fn run(mut self, commands: &Receiver<Command>) {
        while self.receive(commands) == Next::Tick {
            // A panic in a device or a grammar must end requests with an error, not leave their callers waiting.
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.tick())) {
                let what = panic_text(&*panic);
                tracing::error!(panic = what, "the engine's thread panicked");
                self.shared.set_health(Health::Unhealthy(format!("the engine panicked: {what}")));
                self.abandon(&FinishReason::Error(format!("the engine panicked: {what}")));
                return;
            }
        }
        self.close();
    }

    /// The orderly end: what still runs is cancelled, and what is worth keeping goes to disk.
    fn close(&mut self) {
        self.running.iter_mut().for_each(|s| s.finish(FinishReason::Cancelled));
        self.settle();
        self.retire();
        self.abandon(&FinishReason::Cancelled);
        while self.cache.store_one(&mut self.resources) {
            self.cache.flush_disk();
        }
        if let Some((_, done)) = self.drain.take() {
            // Whoever asked may have given up waiting.
            let _ = done.send(());
        }
    }

    fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty() && self.flight.is_empty()
    }

    /// Takes in commands; blocks when there is nothing else to do.
    fn receive(&mut self, commands: &Receiver<Command>) -> Next {
        let mut stored_all = !self.cache.has_disk();
        while self.is_idle() {
            if self.drain.is_some() {
                return Next::Stop;
            }
            let command = if stored_all {
                commands.recv().map_err(|_| RecvTimeoutError::Disconnected)
            } else {
                commands.recv_timeout(IDLE_BEFORE_STORE)
            };
            match command {
                Ok(command) => self.take(command),
                Err(RecvTimeoutError::Timeout) => stored_all = !self.cache.store_one(&mut self.resources),
                Err(RecvTimeoutError::Disconnected) => return Next::Stop,
            }
        }
        loop {
            match commands.try_recv() {
                Ok(command) => self.take(command),
                Err(TryRecvError::Empty) => return Next::Tick,
                Err(TryRecvError::Disconnected) => return Next::Stop,
            }
        }
    }

    fn take(&mut self, command: Command) {
        match command {
            Command::Submit(job) => self.waiting.push_back(job),
            Command::Drain { until, done } => self.drain = Some((until, done)),
        }
    }

    fn tick(&mut self) {
        self.sweep();
        if self.must_settle() {
            self.settle();
        }
        if self.flight.is_empty() {
            self.retire();
            self.admit();
            self.prefill();
            self.extend();
            self.retire();
        }
        self.tell_waiting();
        self.decode();
        self.report();
    }

    /// Whether the steps in flight must be waited for before anything else may happen.
    fn must_settle(&self) -> bool {
        let admissible = !self.waiting.is_empty() && self.running.len() < self.parallel;
        admissible || self.running.iter().any(|s| s.finished.is_some() || s.is_prefilling())
    }

    /// Ends requests whose caller has gone or whose time is over.
    fn sweep(&mut self) {
        let now = Instant::now();
        let drained = self.drain.as_ref().is_some_and(|(until, _)| now >= *until);
        let verdict = |gone: bool, deadline: Option<Instant>| {
            if gone || drained {
                Some(FinishReason::Cancelled)
            } else if deadline.is_some_and(|d| now >= d) {
                Some(FinishReason::Deadline)
            } else {
                None
            }
        };
        for sequence in &mut self.running {
            if let Some(reason) = verdict(sequence.events.is_closed(), sequence.deadline) {
                sequence.finish(reason);
            }
        }
        let shared = &self.shared;
        self.waiting.retain(|job| match verdict(job.events.is_closed(), job.request.deadline) {
            Some(reason) => {
                job.refuse(reason, shared);
                false
            }
            None => true,
        });
    }

    /// Ends everything without using the device.
    fn abandon(&mut self, reason: &FinishReason) {
        for job in self.waiting.drain(..) {
            job.refuse(reason.clone(), &self.shared);
        }
        for mut sequence in self.running.drain(..) {
            sequence.finish(reason.clone());
            self.shared.finished(&sequence);
        }
        self.flight.clear();
        self.report();
    }

    fn report(&self) {
        self.shared.report(|m| {
            m.running = self.running.len() as u64;
            m.waiting = self.waiting.len() as u64;
            m.cache_evictions = self.cache.evictions();
            m.cache_snapshots = self.cache.snapshots() as u64;
            m.cache_bytes = self.cache.bytes();
            m.pages_used = self.resources.pages.used() as u64;
        });
    }

    /// Takes note of a step the device failed; gives the device up after several in a row.
    fn step_failed(&mut self, error: &dyn std::fmt::Display) {
        self.failures += 1;
        tracing::error!(%error, failures = self.failures, "a step failed");
        self.shared.report(|m| m.device_errors += 1);
        if self.failures >= MAX_FAILURES {
            let reason = format!("{} steps in a row failed, the last with: {error}", self.failures);
            self.shared.set_health(Health::Unhealthy(reason));
        }
    }

    fn step_succeeded(&mut self) {
        self.failures = 0;
        self.shared.report(|m| m.steps += 1);
    }
}

impl Job {
    /// Ends a request that never ran.
    fn refuse(&self, reason: FinishReason, shared: &Shared) {
        let usage = Usage { prompt: self.request.tokens.len(), ..Usage::default() };
        let timings = Timings { queued: self.submitted.elapsed(), ..Timings::default() };
        shared.count(&reason);
        shared.leave();
        let _ = self.events.send(Event::Finished { reason, text: String::new(), usage, timings });
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}
