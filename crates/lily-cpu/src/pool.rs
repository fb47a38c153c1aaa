//! Fork-join over a fixed set of threads, for stages that last microseconds.
//!
//! The calling thread is thread 0. Workers spin a while for the next job, then sleep. Within a job threads meet at
//! [`Team::barrier`] and share work through [`Team::claim`]. Knows nothing about what is computed.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;

/// Turns of the spin loop before a worker sleeps: some 100 microseconds, far above the gap between two stages.
const SPINS_BEFORE_SLEEP: u32 = 20_000;
/// Turns of a barrier before it gives its time slice away: another process may hold the core that we wait for.
const SPINS_BEFORE_YIELD: u32 = 500;

type Job = *const (dyn Fn(&Team<'_>) + Sync);

struct Shared {
    threads: usize,
    /// Number of the current job; workers run each number once.
    generation: AtomicUsize,
    /// The job of the current generation. Valid from the store of `generation` until all workers are done.
    job: Mutex<Option<SendJob>>,
    wake: Condvar,
    sleepers: AtomicUsize,
    done: AtomicUsize,
    stop: AtomicBool,
    panicked: AtomicBool,
    barrier_arrived: AtomicUsize,
    barrier_phase: AtomicUsize,
    /// Next unclaimed item, one counter for each phase between barriers (used alternately).
    claims: [AtomicUsize; 2],
}

#[derive(Clone, Copy)]
struct SendJob(Job);
// SAFETY: the pointee is `Sync`, and `Pool::run` does not return before every worker is done with it.
unsafe impl Send for SendJob {}

/// A set of threads.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

/// One thread's view of a job.
pub struct Team<'a> {
    /// Index of this thread, `0..threads`.
    pub thread: usize,
    /// Threads of the job.
    pub threads: usize,
    shared: &'a Shared,
    phase: Cell<usize>,
}

impl Pool {
    /// A pool of `threads` (at least 1), the caller included.
    pub fn new(threads: usize) -> std::io::Result<Self> {
        let threads = threads.max(1);
        let shared = Arc::new(Shared {
            threads,
            generation: AtomicUsize::new(0),
            job: Mutex::new(None),
            wake: Condvar::new(),
            sleepers: AtomicUsize::new(0),
            done: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            panicked: AtomicBool::new(false),
            barrier_arrived: AtomicUsize::new(0),
            barrier_phase: AtomicUsize::new(0),
            claims: [AtomicUsize::new(0), AtomicUsize::new(0)],
        });
        let mut pool = Pool { shared, workers: Vec::with_capacity(threads - 1) };
        for thread in 1..threads {
            let shared = Arc::clone(&pool.shared);
            pool.workers.push(
                std::thread::Builder::new().name(format!("lily-cpu-{thread}")).spawn(move || work(&shared, thread))?,
            );
        }
        Ok(pool)
    }

    /// Threads, the caller included.
    pub fn threads(&self) -> usize {
        self.shared.threads
    }

    /// Runs `job` once on every thread and returns when all are done. A panic in any thread becomes one here.
    pub fn run(&mut self, job: impl Fn(&Team<'_>) + Sync) {
        let shared = &*self.shared;
        shared.done.store(0, Ordering::Relaxed);
        shared.barrier_arrived.store(0, Ordering::Relaxed);
        shared.claims[0].store(0, Ordering::Relaxed);
        shared.claims[1].store(0, Ordering::Relaxed);
        let local: &(dyn Fn(&Team<'_>) + Sync) = &job;
        // SAFETY: only the lifetime is erased; this function waits for every worker before `job` goes away.
        let erased = SendJob(unsafe { std::mem::transmute::<*const (dyn Fn(&Team<'_>) + Sync + '_), Job>(local) });
        *lock(&shared.job) = Some(erased);
        shared.generation.fetch_add(1, Ordering::SeqCst);
        if shared.sleepers.load(Ordering::SeqCst) > 0 {
            let _guard = lock(&shared.job);
            shared.wake.notify_all();
        }
        let phase = Cell::new(shared.barrier_phase.load(Ordering::Relaxed));
        let team = Team { thread: 0, threads: shared.threads, shared, phase };
        let outcome = catch_unwind(AssertUnwindSafe(|| local(&team)));
        if outcome.is_err() {
            shared.panicked.store(true, Ordering::SeqCst);
        }
        let mut spins = 0;
        while shared.done.load(Ordering::Acquire) + 1 < shared.threads {
            pause(&mut spins);
        }
        let panicked = shared.panicked.swap(false, Ordering::SeqCst);
        match outcome {
            Err(payload) => resume_unwind(payload),
            Ok(()) if panicked => panic!("a worker thread of the CPU device panicked"),
            Ok(()) => {}
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.generation.fetch_add(1, Ordering::SeqCst);
        {
            let _guard = lock(&self.shared.job);
            self.shared.wake.notify_all();
        }
        for worker in self.workers.drain(..) {
            // A worker's panic has been reported by the job that met it.
            let _ = worker.join();
        }
    }
}

impl Team<'_> {
    /// Waits for the other threads. What they wrote before is visible after, and claims start again from item 0.
    pub fn barrier(&self) {
        let shared = self.shared;
        let phase = self.phase.get();
        if shared.barrier_arrived.fetch_add(1, Ordering::AcqRel) + 1 == shared.threads {
            shared.barrier_arrived.store(0, Ordering::Relaxed);
            // The counter of the phase that ends; the other one was reset a phase ago and is in use from here on.
            shared.claims[phase & 1].store(0, Ordering::Relaxed);
            shared.barrier_phase.store(phase.wrapping_add(1), Ordering::Release);
        } else {
            let mut spins = 0;
            while shared.barrier_phase.load(Ordering::Acquire) == phase {
                assert!(!shared.panicked.load(Ordering::Relaxed), "another thread of the CPU device panicked");
                pause(&mut spins);
            }
        }
        self.phase.set(phase.wrapping_add(1));
    }

    /// The next range of the `items` of this phase, at least `least` long (but for the end): long ranges first, short
    /// ones towards the end, so that threads finish together whatever else runs on their cores.
    pub fn claim(&self, items: usize, least: usize) -> Option<std::ops::Range<usize>> {
        let counter = &self.shared.claims[self.phase.get() & 1];
        let mut start = counter.load(Ordering::Relaxed);
        loop {
            if start >= items {
                return None;
            }
            let left = items - start;
            let take = (left / (2 * self.threads)).max(least).min(left);
            match counter.compare_exchange_weak(start, start + take, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(start..start + take),
                Err(now) => start = now,
            }
        }
    }

    /// Runs `body` for each of `items`, shared among the threads.
    pub fn for_each(&self, items: usize, least: usize, mut body: impl FnMut(usize)) {
        while let Some(range) = self.claim(items, least) {
            for item in range {
                body(item);
            }
        }
    }
}

fn work(shared: &Shared, thread: usize) {
    let mut seen = 0;
    loop {
        let mut spins = 0;
        while shared.generation.load(Ordering::Acquire) == seen {
            spins += 1;
            if spins < SPINS_BEFORE_SLEEP {
                std::hint::spin_loop();
                continue;
            }
            let mut guard = lock(&shared.job);
            shared.sleepers.fetch_add(1, Ordering::SeqCst);
            while shared.generation.load(Ordering::SeqCst) == seen {
                guard = shared.wake.wait(guard).unwrap_or_else(std::sync::PoisonError::into_inner);
            }
            shared.sleepers.fetch_sub(1, Ordering::SeqCst);
        }
        seen = shared.generation.load(Ordering::Acquire);
        if shared.stop.load(Ordering::SeqCst) {
            return;
        }
        let job = *lock(&shared.job);
        if let Some(SendJob(job)) = job {
            let phase = Cell::new(shared.barrier_phase.load(Ordering::Relaxed));
            let team = Team { thread, threads: shared.threads, shared, phase };
            // SAFETY: `Pool::run` keeps the closure alive until `done` says that this worker has finished.
            let job = unsafe { &*job };
            if catch_unwind(AssertUnwindSafe(|| job(&team))).is_err() {
                shared.panicked.store(true, Ordering::SeqCst);
            }
        }
        shared.done.fetch_add(1, Ordering::AcqRel);
    }
}

fn pause(spins: &mut u32) {
    *spins += 1;
    if *spins < SPINS_BEFORE_YIELD {
        std::hint::spin_loop();
    } else {
        std::thread::yield_now();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_of_every_phase_is_claimed_once() {
        let mut pool = Pool::new(3).expect("threads start");
        for items in [0, 1, 7, 1000] {
            let counts: Vec<[AtomicUsize; 3]> = (0..items).map(|_| Default::default()).collect();
            pool.run(|team| {
                for phase in 0..3 {
                    team.for_each(items, 2, |item| {
                        counts[item][phase].fetch_add(1, Ordering::Relaxed);
                    });
                    team.barrier();
                    assert!(counts.iter().all(|c| c[phase].load(Ordering::Relaxed) == 1));
                }
            });
        }
    }

    #[test]
    fn a_worker_that_slept_takes_the_next_job() {
        let mut pool = Pool::new(2).expect("threads start");
        for _ in 0..3 {
            let ran = AtomicUsize::new(0);
            pool.run(|_| {
                ran.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(ran.load(Ordering::Relaxed), 2);
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }

    #[test]
    fn a_panic_in_a_worker_reaches_the_caller_and_the_pool_stays_usable() {
        let mut pool = Pool::new(2).expect("threads start");
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            pool.run(|team| {
                assert!(team.thread == 0, "told to fail");
                team.barrier();
            });
        }));
        assert!(outcome.is_err());
        let ran = AtomicUsize::new(0);
        pool.run(|_| {
            ran.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(ran.load(Ordering::Relaxed), 2);
    }
}
