//! Executing committed command buffers, in order, with msl's emulator.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use msl::emulate::{Binding, Grid, Library, Pass};

use crate::machine::{self, Fault, Region, Settings, violation};

/// A reference to a buffer from a command.
#[derive(Clone)]
pub enum Held {
    /// The command buffer keeps it.
    Strong(Arc<Region>),
    /// The host must.
    Weak(Weak<Region>),
}

impl Held {
    fn get(&self, label: &str) -> Option<Arc<Region>> {
        let found = match self {
            Held::Strong(region) => Some(region.clone()),
            Held::Weak(region) => region.upgrade(),
        };
        if found.is_none() {
            violation(format!("{label}: a buffer was released before the command buffer that uses it finished"));
        }
        found
    }
}

/// A kernel of a library.
#[derive(Debug)]
pub struct Kernel {
    pub library: Library,
    pub name: String,
}

/// What an encoder recorded.
pub enum Command {
    Pipeline(Arc<Kernel>),
    Buffer { index: usize, buffer: Held, offset: usize },
    Dispatch { threadgroups: [u32; 3], threads: [u32; 3] },
    Barrier,
    Wait,
    Update,
    Copy { from: Held, at: usize, to: Held, to_at: usize, bytes: usize },
    Fill { buffer: Held, range: Range<usize>, value: u8 },
}

/// An encoder's work.
#[derive(Default)]
pub struct Recorded {
    pub label: String,
    pub commands: Vec<Command>,
    pub ended: bool,
    /// Dispatches may run at the same time.
    pub concurrent: bool,
}

/// How a command buffer ended.
#[derive(Clone)]
pub struct Failure {
    pub code: isize,
    pub words: String,
    /// Index of the encoder that failed.
    pub encoder: usize,
}

/// A command buffer.
#[derive(Default)]
pub struct Work {
    pub state: Mutex<State>,
}

#[derive(Default)]
pub struct State {
    pub label: String,
    pub passes: Vec<Arc<Mutex<Recorded>>>,
    pub committed: bool,
    pub done: bool,
    pub failure: Option<Failure>,
    pub seconds: f64,
    pub unretained: bool,
    pub encoder_status: bool,
}

/// The lock of something nobody leaves broken.
pub fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Executes the queue until `work` is done.
pub fn finish(work: &Arc<Work>) {
    if !locked(&work.state).committed {
        violation("waiting for a command buffer that was not committed");
        return;
    }
    while !locked(&work.state).done {
        let Some(next) = machine::with(|machine| machine.queue.pop_front()) else { return };
        run(&next);
    }
}

fn run(work: &Work) {
    let settings = machine::settings();
    let before = machine::with(|machine| machine.seen.threads);
    let passes = locked(&work.state).passes.clone();
    let mut failure = None;
    for (encoder, pass) in passes.iter().enumerate() {
        let pass = locked(pass);
        order(&pass);
        if let Err(fault) = execute(&pass, &settings) {
            failure = Some(Failure { code: fault.code, words: fault.words.to_string(), encoder });
            break;
        }
    }
    let mut state = locked(&work.state);
    let threads = machine::with(|machine| machine.seen.threads) - before;
    state.seconds = threads as f64 * settings.ns_per_thread * 1e-9;
    state.failure = failure;
    state.done = true;
}

/// Buffers are untracked: an encoder comes after the one before only by a fence.
fn order(pass: &Recorded) {
    let waits = pass.commands.iter().position(|c| matches!(c, Command::Wait));
    let updates = pass.commands.iter().position(|c| matches!(c, Command::Update));
    if let (Some(wait), Some(update)) = (waits, updates)
        && wait > update
    {
        violation(format!("{}: waits for the fence after updating it", pass.label));
    }
    let before = machine::with(|machine| machine.last.replace((pass.label.clone(), updates.is_some())));
    if let Some((label, updated)) = before {
        if !updated {
            violation(format!("{label}: did not update the fence, and {} comes after it", pass.label));
        }
        let first_work = pass
            .commands
            .iter()
            .position(|c| matches!(c, Command::Dispatch { .. } | Command::Copy { .. } | Command::Fill { .. }));
        if waits.is_none_or(|wait| first_work.is_some_and(|work| work < wait)) {
            violation(format!("{}: does not wait for the fence of {label}", pass.label));
        }
    }
}

struct Bound {
    buffer: Held,
    offset: usize,
    /// Set since the last dispatch.
    fresh: bool,
}

fn execute(pass: &Recorded, settings: &Settings) -> Result<(), Fault> {
    let mut emulated = Pass::new();
    let mut kernel: Option<Arc<Kernel>> = None;
    let mut bound: HashMap<usize, Bound> = HashMap::new();
    for command in &pass.commands {
        match command {
            Command::Pipeline(pipeline) => kernel = Some(pipeline.clone()),
            Command::Buffer { index, buffer, offset } => {
                bound.insert(*index, Bound { buffer: buffer.clone(), offset: *offset, fresh: true });
            }
            Command::Barrier => {
                emulated.barrier();
                machine::with(|machine| machine.seen.barriers += 1);
            }
            Command::Dispatch { threadgroups, threads } => {
                let Some(kernel) = &kernel else {
                    violation(format!("{}: a dispatch without a pipeline", pass.label));
                    continue;
                };
                fault(&kernel.name)?;
                let grid = Grid { threadgroups: *threadgroups, threads: *threads };
                dispatch(pass, settings, kernel, grid, &bound, &mut emulated);
                bound.values_mut().for_each(|bound| bound.fresh = false);
                if !pass.concurrent {
                    emulated.barrier();
                }
            }
            Command::Copy { from, at, to, to_at, bytes } => {
                if let (Some(from), Some(to)) = (from.get(&pass.label), to.get(&pass.label)) {
                    resident(&pass.label, &[&from, &to]);
                    let copied = from.memory.bytes()[*at..*at + *bytes].to_vec();
                    to.memory.write(*to_at, &copied);
                }
            }
            Command::Fill { buffer, range, value } => {
                if let Some(region) = buffer.get(&pass.label) {
                    resident(&pass.label, &[&region]);
                    region.memory.write(range.start, &vec![*value; range.len()]);
                }
            }
            Command::Wait | Command::Update => {}
        }
    }
    for report in emulated.finish() {
        violation(format!("{}: {report}", pass.label));
    }
    Ok(())
}

fn fault(kernel: &str) -> Result<(), Fault> {
    machine::with(|machine| match &mut machine.settings.fault {
        Some(fault) if fault.kernel == kernel && fault.after == 0 => Err(fault.clone()),
        Some(fault) if fault.kernel == kernel => {
            fault.after -= 1;
            Ok(())
        }
        _ => Ok(()),
    })
}

fn resident(label: &str, regions: &[&Arc<Region>]) {
    for region in regions {
        if machine::with(|machine| !machine.resident.contains(&region.id)) {
            violation(format!("{label}: buffer {} is in no committed residency set", region.id));
        }
    }
}

fn dispatch(
    pass: &Recorded,
    settings: &Settings,
    kernel: &Kernel,
    grid: Grid,
    bound: &HashMap<usize, Bound>,
    emulated: &mut Pass,
) {
    let label = format!("{}: {}", pass.label, kernel.name);
    if grid.threads.iter().product::<u32>() as usize > settings.max_threads {
        violation(format!("{label}: {:?} threads, at most {}", grid.threads, settings.max_threads));
    }
    let Ok((_, reflection)) = kernel.library.kernel(&kernel.name) else { return };
    let mut regions = Vec::new();
    for param in reflection.buffers() {
        match bound.get(&(param.index as usize)) {
            None => violation(format!("{label}: buffer {} ({}) is unbound", param.index, param.name)),
            Some(found) => {
                if !found.fresh {
                    violation(format!(
                        "{label}: buffer {} ({}) was bound for an earlier dispatch",
                        param.index, param.name
                    ));
                }
                if let Some(region) = found.buffer.get(&label) {
                    regions.push((param.index, region, found.offset));
                }
            }
        }
    }
    if regions.len() < reflection.buffers().len() {
        return;
    }
    resident(&label, &regions.iter().map(|(_, region, _)| region).collect::<Vec<_>>());
    let bindings: Vec<Binding<'_>> =
        regions.iter().map(|(index, region, offset)| Binding::new(*index, &region.memory).at(*offset)).collect();
    if let Err(error) = emulated.dispatch(&kernel.library, &kernel.name, grid, &bindings) {
        violation(format!("{label}: {error}"));
    }
    machine::with(|machine| {
        machine.seen.dispatches += 1;
        let sizes = grid.threadgroups.iter().chain(&grid.threads);
        machine.seen.threads += sizes.map(|&n| u64::from(n)).product::<u64>();
    });
}
