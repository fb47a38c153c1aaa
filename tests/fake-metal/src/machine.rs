//! The fake machine: what it is set to be, what it saw, and what it objects to.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use msl::emulate::{Check, EmulatedBuffer};

use crate::execute::Work;
use crate::foundation;

/// What the machine is.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Newest Apple GPU family.
    pub family: u32,
    /// Version of macOS.
    pub macos: (isize, isize),
    /// Recommended working set, bytes.
    pub working_set: u64,
    /// Longest buffer, bytes.
    pub max_buffer: usize,
    /// Bytes after which no buffer is given any more, whatever was recommended.
    pub memory: u64,
    /// Threads that a threadgroup may have.
    pub max_threads: usize,
    /// Whether kernels' accesses are checked.
    pub check: Check,
    /// A dispatch that fails.
    pub fault: Option<Fault>,
    /// GPU time of a thread, nanoseconds: the machine's clock does not depend on the one it runs on.
    pub ns_per_thread: f64,
}

/// A dispatch that fails.
#[derive(Debug, Clone)]
pub struct Fault {
    /// Kernel.
    pub kernel: &'static str,
    /// Dispatches of it that still succeed.
    pub after: usize,
    /// Code of the error.
    pub code: isize,
    /// Its words.
    pub words: &'static str,
}

impl Default for Settings {
    /// An M4 with 32 GB.
    fn default() -> Self {
        Settings {
            family: 9,
            macos: (15, 5),
            working_set: 22_906_503_168,
            max_buffer: 16 << 30,
            memory: 22_906_503_168,
            max_threads: 1024,
            check: Check::Off,
            fault: None,
            ns_per_thread: 1.0,
        }
    }
}

/// What the machine has seen.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    /// Command buffers committed.
    pub command_buffers: usize,
    /// Dispatches executed.
    pub dispatches: usize,
    /// Threads of them.
    pub threads: u64,
    /// Barriers executed.
    pub barriers: usize,
    /// Buffers that share the process's memory.
    pub no_copy: usize,
    /// Requests of a residency set.
    pub requests: usize,
    /// Pipelines compiled.
    pub compiled: usize,
    /// Pipelines found in an archive.
    pub from_archive: usize,
    /// Most command buffers committed and not executed at a time.
    pub most_waiting: usize,
}

/// A buffer's memory.
#[derive(Debug)]
pub struct Region {
    /// Number, from 0.
    pub id: usize,
    /// Bytes.
    pub memory: EmulatedBuffer,
}

/// State of the machine.
#[derive(Default)]
pub struct Machine {
    pub settings: Settings,
    pub seen: Seen,
    pub violations: Vec<String>,
    pub allocated: u64,
    pub regions: usize,
    /// Committed and not executed.
    pub queue: VecDeque<Arc<Work>>,
    /// Regions that the queue's residency sets hold, as of their last commit.
    pub resident: HashSet<usize>,
    /// Label of the newest executed encoder, and whether it updated the fence.
    pub last: Option<(String, bool)>,
}

static MACHINE: Mutex<Option<Machine>> = Mutex::new(None);
static TURN: Mutex<()> = Mutex::new(());

/// Runs `body` on the machine.
pub fn with<T>(body: impl FnOnce(&mut Machine) -> T) -> T {
    let mut machine = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    body(machine.get_or_insert_with(Machine::default))
}

/// What the machine is set to be.
pub fn settings() -> Settings {
    with(|machine| machine.settings.clone())
}

/// Objects to something.
pub fn violation(words: impl Into<String>) {
    let words = words.into();
    with(|machine| machine.violations.push(words));
}

/// A fresh machine for one test; tests take turns.
pub struct Session {
    _turn: MutexGuard<'static, ()>,
}

impl Session {
    /// Starts a machine.
    pub fn start(settings: Settings) -> Self {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        foundation::install();
        with(|machine| *machine = Machine { settings, ..Machine::default() });
        Session { _turn: turn }
    }

    /// Changes the settings.
    pub fn set(&self, change: impl FnOnce(&mut Settings)) {
        with(|machine| change(&mut machine.settings));
    }

    /// What was seen so far.
    pub fn seen(&self) -> Seen {
        with(|machine| machine.seen.clone())
    }

    /// What was objected to since the last call.
    pub fn violations(&self) -> Vec<String> {
        with(|machine| std::mem::take(&mut machine.violations))
    }

    /// Bytes in buffers that live.
    pub fn allocated(&self) -> u64 {
        with(|machine| machine.allocated)
    }
}
