//! Running Metal kernels on the CPU.
//!
//! A [`Library`] is a source compiled by the C++ compiler at hand and loaded into the process. A [`Pass`] runs dispatches
//! of its kernels with the semantics of a concurrent compute encoder: dispatches are unordered until [`Pass::barrier`].
//! With [`Check::On`] every memory access is checked and findings come back as [`Report`]s.
//!
//! Threads are fibres on one stack area a worker; barriers and simdgroup operations are rendezvous of fibres, so results do
//! not depend on timing. Threadgroups are spread over OS threads unless the checker is on.

mod abi;
mod buffer;
mod compile;
mod coverage;
mod pass;
mod report;

use std::ffi::c_void;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

pub use buffer::{Contents, EmulatedBuffer};
pub use compile::{Compiler, cache_dir, compiler};
pub use coverage::{LineCoverage, coverage};
pub use pass::{Binding, Declared, Grid, Pass};
pub use report::{Report, ReportKind};

use crate::reflect::{KernelReflection, reflect};
use crate::translate::{Target, body, host_entries, shim};
use crate::{Error, Source};

/// Whether memory accesses are checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Check {
    /// Plain execution.
    Off,
    /// Every access is checked; 2 to 25 times slower, one OS thread.
    On,
}

/// Whether executed lines are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Coverage {
    /// Not counted.
    Off,
    /// Counted; read them with [`coverage()`].
    On,
}

/// How to build and run a library.
#[derive(Debug, Clone)]
pub struct Options {
    /// Checker.
    pub check: Check,
    /// Line counts.
    pub coverage: Coverage,
    /// OS threads a dispatch may use; 0 means as many as there are cores.
    pub threads: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options { check: Check::Off, coverage: Coverage::Off, threads: 0 }
    }
}

/// A compiled Metal source.
#[derive(Debug, Clone)]
pub struct Library {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    kernels: Vec<KernelReflection>,
    thunks: Vec<abi::Thunk>,
    run: abi::Run,
    worker_new: abi::WorkerNew,
    worker_free: abi::WorkerFree,
    workers: Mutex<Vec<WorkerPtr>>,
    check: Check,
    threads: usize,
    path: PathBuf,
    /// Keeps the code mapped; last, so that it is unloaded after everything else is gone.
    handle: libloading::Library,
}

#[derive(Debug)]
struct WorkerPtr(*mut c_void);
// SAFETY: a worker is used by one thread at a time (it is taken out of the list while in use) and holds no thread's state.
unsafe impl Send for WorkerPtr {}

impl Library {
    /// Translates, compiles (or finds in the cache) and loads a source.
    ///
    /// # Errors
    /// The source does not follow the subset, no compiler is there, or it refuses the translation.
    pub fn compile(source: &Source, options: &Options) -> Result<Self, Error> {
        let unit = reflect(source)?;
        let mut text = format!("{}{}{}", shim(Target::Host), body(&unit, Target::Host), host_entries(&unit));
        if options.coverage == Coverage::On {
            text.push_str(coverage::FLUSH);
        }
        let path = compile::library(&text, options.check, options.coverage)?;
        let load = |message: libloading::Error| Error::Load { path: path.clone(), message: message.to_string() };
        // SAFETY: the library was built from our runtime and a translated source; it has no initialisers of its own.
        let handle = unsafe { libloading::Library::new(&path) }.map_err(load)?;
        let mut thunks = Vec::new();
        for index in 0..unit.reflections.len() {
            let name = format!("msl_kernel_{index}\0");
            // SAFETY: the translation defines this symbol with this signature.
            thunks.push(*unsafe { handle.get::<abi::Thunk>(name.as_bytes()) }.map_err(load)?);
        }
        // SAFETY: the runtime defines these symbols with these signatures (shim/runtime.cpp).
        let (run, worker_new, worker_free) = unsafe {
            (
                *handle.get::<abi::Run>(b"msl_run\0").map_err(load)?,
                *handle.get::<abi::WorkerNew>(b"msl_worker_new\0").map_err(load)?,
                *handle.get::<abi::WorkerFree>(b"msl_worker_free\0").map_err(load)?,
            )
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = match (options.check, options.threads) {
            (Check::On, _) => 1,
            (Check::Off, 0) => cores,
            (Check::Off, threads) => threads,
        };
        Ok(Library {
            inner: Arc::new(Inner {
                kernels: unit.reflections,
                thunks,
                run,
                worker_new,
                worker_free,
                workers: Mutex::new(Vec::new()),
                check: options.check,
                threads,
                path,
                handle,
            }),
        })
    }

    /// The kernels of the source.
    pub fn kernels(&self) -> &[KernelReflection] {
        &self.inner.kernels
    }

    /// The kernel called `name` and its position in [`Library::kernels`].
    ///
    /// # Errors
    /// There is none; the message lists the names there are.
    pub fn kernel(&self, name: &str) -> Result<(usize, &KernelReflection), Error> {
        let found = self.inner.kernels.iter().enumerate().find(|(_, kernel)| kernel.name == name);
        found.ok_or_else(|| Error::UnknownKernel {
            name: name.to_string(),
            known: self.inner.kernels.iter().map(|k| k.name.as_str()).collect::<Vec<_>>().join(", "),
        })
    }

    /// Whether it was built with the checker.
    pub fn check(&self) -> Check {
        self.inner.check
    }

    /// The shared library on disk.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }
}

impl Inner {
    /// Runs all threadgroups of `job`, over several OS threads when there is enough to do.
    fn execute(&self, job: &mut abi::Dispatch) -> bool {
        let total = job.last;
        let work = total * job.size.iter().map(|n| u64::from(*n)).product::<u64>();
        let threads = if work < 2048 { 1 } else { self.threads.min(total as usize) };
        let job = JobPtr(job);
        if threads <= 1 {
            return self.with_worker(|worker| {
                // SAFETY: job and everything it points to outlive the call; the worker is this thread's alone.
                unsafe { (self.run)(worker, job.0, 0, total) }
            });
        }
        let next = std::sync::atomic::AtomicU64::new(0);
        let fine = std::sync::atomic::AtomicBool::new(true);
        let step = (total / (threads as u64 * 8)).max(1);
        let share = || {
            let job = &job;
            self.with_worker(|worker| {
                loop {
                    let first = next.fetch_add(step, std::sync::atomic::Ordering::Relaxed);
                    if first >= total {
                        return true;
                    }
                    // SAFETY: as above; threads share the job read-only except for its atomic report count.
                    if !unsafe { (self.run)(worker, job.0, first, (first + step).min(total)) } {
                        fine.store(false, std::sync::atomic::Ordering::Relaxed);
                        next.store(total, std::sync::atomic::Ordering::Relaxed);
                        return false;
                    }
                }
            });
        };
        std::thread::scope(|scope| {
            for _ in 1..threads {
                scope.spawn(share);
            }
            share();
        });
        fine.into_inner()
    }

    fn with_worker(&self, body: impl FnOnce(*mut c_void) -> bool) -> bool {
        let taken = self.workers.lock().unwrap_or_else(std::sync::PoisonError::into_inner).pop();
        // SAFETY: plain constructor of the runtime.
        let worker = taken.unwrap_or_else(|| WorkerPtr(unsafe { (self.worker_new)() }));
        assert!(!worker.0.is_null(), "no address space for the stacks of 1,024 threads");
        let fine = body(worker.0);
        self.workers.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(worker);
        fine
    }
}

struct JobPtr(*mut abi::Dispatch);
// SAFETY: the runtime only reads the job, apart from the report list, which it updates atomically.
unsafe impl Sync for JobPtr {}

impl Drop for Inner {
    fn drop(&mut self) {
        let workers = self.workers.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        for worker in workers.drain(..) {
            // SAFETY: the worker came from worker_new and nobody uses it any more.
            unsafe { (self.worker_free)(worker.0) };
        }
        coverage::flush(&self.handle);
    }
}
