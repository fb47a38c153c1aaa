//! The CUDA driver: the Metal kernels, translated, on an NVIDIA GPU, with native variants where they serve.
//!
//! Three queues: steps on one, inputs of the step to come on another, results of the step before on the third, so that two
//! steps in flight keep the first busy.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use lily_model::checkpoint::{self, Checkpoint};
use lily_model::device::DeviceError;
use msl::cuda::{CudaSource, NVRTC_OPTIONS};

use super::api::{Context, DeviceBuffer, Event, Function, HostBuffer, Module, NAME, Stream, Timing, failed};
use super::compile::{Unit, machine_code};
use super::graph::{Graph, Launch, Waiting, chained, reduced};
use super::native::{self, Constants, Variant};
use super::weights::{self, Progress};
use crate::driver::{Driver, DriverInfo, Imported, Memory};
use crate::program::{BufferId, Dispatch, Program, ProgramId, Span};
use crate::route::MatrixRoute;
use crate::source::{LibrarySource, WeightAlignment};
use crate::tuning::Tuning;

/// Which kernels run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kernels {
    /// Native variants where they serve, translated ones for the rest.
    Native,
    /// Translated ones alone.
    Translated,
}

/// How the driver is set up.
pub struct CudaOptions {
    /// Index of the device.
    pub device: i32,
    /// Which kernels run.
    pub kernels: Kernels,
    /// Told how far the upload of the weights is.
    pub progress: Option<Progress>,
}

impl Default for CudaOptions {
    fn default() -> Self {
        CudaOptions { device: 0, kernels: Kernels::Native, progress: None }
    }
}

/// Input memory: what the host wrote, and how much of it the device has not seen.
struct Shadow {
    host: HostBuffer,
    dirty: std::ops::Range<usize>,
}

/// One kernel of a library, as it is launched.
#[derive(Clone)]
struct Kernel {
    translated: Function,
    /// Buffer indices of its arguments, in order.
    arguments: Vec<u32>,
    native: Vec<Native>,
}

/// A native variant that is loaded.
#[derive(Clone, Copy)]
struct Native {
    variant: Variant,
    function: Function,
    /// What runs before it.
    before: Option<Function>,
}

impl Kernel {
    fn native(&self, dispatch: &Dispatch) -> Option<Native> {
        self.native.iter().copied().find(|native| (native.variant.takes)(dispatch))
    }
}

struct Library {
    constants: Constants,
    kernels: Vec<Kernel>,
    /// Kept for the functions.
    _modules: Vec<Module>,
}

/// A program and what became of it.
struct Prepared {
    program: Arc<Program>,
    graph: Graph,
}

/// An NVIDIA GPU as a driver.
pub struct Cuda {
    // Fields are dropped in order: graphs before modules, everything before the context.
    programs: Vec<Prepared>,
    libraries: Vec<Library>,
    buffers: HashMap<BufferId, DeviceBuffer>,
    shadows: HashMap<BufferId, Shadow>,
    /// Memory between a kernel and the variant that it runs before, and what was too small for it.
    between: Option<DeviceBuffer>,
    outgrown: Vec<DeviceBuffer>,
    next_buffer: u32,
    steps: Stream,
    inputs: Stream,
    results: Stream,
    /// What copies from the device go through: they are several times faster into page-locked memory.
    landing: HostBuffer,
    inputs_there: Event,
    unfinished: VecDeque<Event>,
    spare: Vec<Event>,
    options: CudaOptions,
    capability: u32,
    hardware: String,
    context: Context,
}

/// Thread organisation of translated kernels on NVIDIA GPUs: larger threadgroups than on Apple's, one matrix row a warp.
const TUNING: Tuning = Tuning {
    matvec_out: 4,
    matvec_simds: 4,
    out_proj_out: 2,
    out_proj_simds: 8,
    router_simds: 4,
    expert_simds: 4,
    down_simds: 4,
    lm_head_simds: 4,
    argmax_parts: 128,
    ..Tuning::APPLE
};

/// Bytes of a copy from the device that are under way at once: the logits of eight rows of the published vocabulary.
const LANDING_BYTES: usize = 8 << 20;

impl Cuda {
    /// Opens a GPU.
    ///
    /// # Errors
    /// No driver, one too old, no GPU, or one older than compute capability 8.0.
    pub fn new(options: CudaOptions) -> Result<Self, DeviceError> {
        let context = Context::open(options.device)?;
        let capability = context.capability()?;
        if capability < 80 {
            return Err(DeviceError::Unsupported {
                device: NAME,
                what: "compute capability".into(),
                value: format!("{}.{}", capability / 10, capability % 10),
                accepted: "8.0 or later (A100, RTX 30 series)".into(),
            });
        }
        Ok(Cuda {
            programs: Vec::new(),
            libraries: Vec::new(),
            buffers: HashMap::new(),
            shadows: HashMap::new(),
            between: None,
            outgrown: Vec::new(),
            next_buffer: 0,
            steps: Stream::new()?,
            inputs: Stream::new()?,
            results: Stream::new()?,
            landing: HostBuffer::new(LANDING_BYTES)?,
            inputs_there: Event::new(Timing::Untimed)?,
            unfinished: VecDeque::new(),
            spare: Vec::new(),
            options,
            capability,
            hardware: context.hardware()?,
            context,
        })
    }

    /// Names of the kernels that run as native variants.
    pub fn native_kernels(&self) -> Vec<&'static str> {
        let all = self.libraries.iter().flat_map(|l| &l.kernels);
        let mut names: Vec<_> = all.flat_map(|k| k.native.iter().map(|n| n.variant.name)).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Microseconds that one dispatch of each kernel of a prepared program takes, with how many there are. The program runs
    /// dispatch by dispatch; where a kernel first comes up and its inputs are there, all its dispatches run one after
    /// another, so that a layer's weights are not found in a cache. Leaves the states of sequences undefined.
    pub fn profile(&mut self, program: &Program) -> Result<Vec<KernelTime>, DeviceError> {
        self.context.make_current()?;
        self.grow_between(program)?;
        let mut kinds: BTreeMap<(&'static str, usize), Vec<&Dispatch>> = BTreeMap::new();
        for dispatch in &program.dispatches {
            kinds.entry((dispatch.op, dispatch.kernel.kernel)).or_default().push(dispatch);
        }
        let mut times = Vec::new();
        for dispatch in &program.dispatches {
            self.chain(&[dispatch], 1)?.launch(&self.steps)?;
            let (op, kernel) = (dispatch.op, dispatch.kernel.kernel);
            if let Some(dispatches) = kinds.remove(&(op, kernel)) {
                let native = self.libraries[dispatch.kernel.library].kernels[kernel].native(dispatch).is_some();
                let microseconds = self.time(op, &dispatches)?;
                times.push(KernelTime { op, kernel, native, count: dispatches.len(), microseconds });
            }
        }
        self.steps.synchronize("profile")?;
        Ok(times)
    }

    /// A graph of dispatches one after another, `repeats` times.
    fn chain(&self, dispatches: &[&Dispatch], repeats: usize) -> Result<Graph, DeviceError> {
        let once: Vec<Vec<Launch>> = dispatches.iter().map(|d| self.launches(d)).collect::<Result<_, _>>()?;
        let chain: Vec<Launch> = std::iter::repeat_n(once, repeats).flatten().flatten().collect();
        let edges: Vec<Vec<usize>> = (0..chain.len()).map(|i| i.checked_sub(1).into_iter().collect()).collect();
        Graph::new(&chain, &edges, self.waiting())
    }

    /// Microseconds of one of some dispatches.
    fn time(&self, op: &'static str, dispatches: &[&Dispatch]) -> Result<f64, DeviceError> {
        let repeats = 64usize.div_ceil(dispatches.len());
        let graph = self.chain(dispatches, repeats)?;
        let (start, end) = (Event::new(Timing::Timed)?, Event::new(Timing::Timed)?);
        let mut best = f64::INFINITY;
        for _ in 0..3 {
            start.record(&self.steps)?;
            graph.launch(&self.steps)?;
            end.record(&self.steps)?;
            end.wait(op)?;
            best = best.min(end.since(&start)? / (dispatches.len() * repeats) as f64);
        }
        Ok(best)
    }

    fn waiting(&self) -> Waiting {
        if self.capability >= 90 { Waiting::OnDevice } else { Waiting::Full }
    }

    fn add(&mut self, buffer: DeviceBuffer) -> BufferId {
        let id = BufferId(self.next_buffer);
        self.next_buffer += 1;
        self.buffers.insert(id, buffer);
        id
    }

    fn address(&self, span: Span) -> Result<u64, DeviceError> {
        let buffer = self
            .buffers
            .get(&span.buffer)
            .ok_or_else(|| failed("memory", format!("buffer {} is gone", span.buffer.0)))?;
        if span.offset + span.bytes > buffer.bytes {
            let reason = format!("{} bytes from {} on of a buffer of {}", span.bytes, span.offset, buffer.bytes);
            return Err(failed("memory", reason));
        }
        Ok(buffer.address + span.offset)
    }

    /// The launches of a dispatch: one, or what runs before a variant and the variant.
    fn launches(&self, dispatch: &Dispatch) -> Result<Vec<Launch>, DeviceError> {
        let library = &self.libraries[dispatch.kernel.library];
        let kernel = &library.kernels[dispatch.kernel.kernel];
        let mut arguments: Vec<u64> = kernel
            .arguments
            .iter()
            .map(|&index| {
                let binding = dispatch.bindings.iter().find(|b| b.index == index);
                let binding =
                    binding.ok_or_else(|| failed(&dispatch.label(), format!("nothing is bound to index {index}")))?;
                self.address(binding.span)
            })
            .collect::<Result<_, _>>()?;
        let Some(native) = kernel.native(dispatch) else {
            let (grid, threads) = (dispatch.grid, dispatch.threads);
            return Ok(vec![Launch { function: kernel.translated, grid, threads, shared: 0, arguments }]);
        };
        let mut launches = Vec::new();
        if let (Some(before), Some(function)) = (native.variant.before, native.before) {
            let memory = self.between.as_ref().map_or(0, |buffer| buffer.address);
            arguments.push(memory);
            let shape = (before.shape)(&library.constants, dispatch);
            launches.push(Launch::new(function, shape, before.shared, arguments.clone()));
        }
        let (variant, constants) = (native.variant, &library.constants);
        let shape = (variant.shape)(constants, dispatch);
        launches.push(Launch::new(native.function, shape, (variant.shared)(constants), arguments));
        Ok(launches)
    }

    /// Takes the memory that kernels before variants of a program need. Programs prepared before keep what they knew until they
    /// are forgotten.
    fn grow_between(&mut self, program: &Program) -> Result<(), DeviceError> {
        let bytes = program.dispatches.iter().map(|dispatch| {
            let library = &self.libraries[dispatch.kernel.library];
            let native = library.kernels[dispatch.kernel.kernel].native(dispatch);
            native.and_then(|n| n.variant.before).map_or(0, |before| (before.memory)(&library.constants, dispatch))
        });
        let bytes = bytes.max().unwrap_or(0);
        if self.between.as_ref().map_or(0, |buffer| buffer.bytes) < bytes {
            self.context.synchronize()?;
            let old = self.between.replace(DeviceBuffer::new(&self.context, "factors of the scan", bytes)?);
            // Graphs that were built with the old memory still use it.
            self.outgrown.extend(old);
        }
        Ok(())
    }

    /// Sends what the host wrote since the last step.
    fn send_inputs(&mut self) -> Result<(), DeviceError> {
        let mut sent = false;
        for (id, shadow) in &mut self.shadows {
            if shadow.dirty.is_empty() {
                continue;
            }
            let range = shadow.dirty.clone();
            let to = self.buffers[id].address + range.start as u64;
            // SAFETY: the shadow lives as long as the driver; it is written again only when the step that reads the
            // device's copy has been waited for.
            unsafe { self.inputs.upload(to, &shadow.host.bytes()[range])? };
            shadow.dirty = 0..0;
            sent = true;
        }
        if sent {
            self.inputs_there.record(&self.inputs)?;
            self.steps.wait_for(&self.inputs_there)?;
        }
        Ok(())
    }
}

/// How long a kernel takes.
#[derive(Debug, Clone, Copy)]
pub struct KernelTime {
    /// Operation.
    pub op: &'static str,
    /// Index into [`crate::table::KERNELS`].
    pub kernel: usize,
    /// Whether a native variant ran.
    pub native: bool,
    /// Dispatches of it in the program.
    pub count: usize,
    /// Microseconds of one.
    pub microseconds: f64,
}

/// What is compiled of a library for a GPU: the translated kernels, and native variants where any serves; and what the
/// translation knows of its kernels.
///
/// # Errors
/// The source does not follow the subset that can be translated.
pub fn units(
    source: &LibrarySource,
    capability: u32,
    kernels: Kernels,
) -> Result<(Unit, Option<Unit>, CudaSource), DeviceError> {
    let mut unit = msl::Source::empty().metal_version(source.metal_version);
    for (name, text) in &source.parts {
        unit = unit.with(*name, text.clone());
    }
    let translated = msl::cuda::translate(&unit).map_err(|e| failed("translation", e.to_string()))?;
    // Machine code with a capability's own instructions runs on that capability alone, which is what is wanted.
    let architecture = format!("sm_{capability}{}", if capability >= 90 { "a" } else { "" });
    let mut options: Vec<String> = NVRTC_OPTIONS.iter().map(ToString::to_string).collect();
    if capability >= 90 {
        options.push("-DMSL_DEPENDENT_LAUNCH".into());
    }
    let constants = Constants::of(source);
    let native = (kernels == Kernels::Native && capability == native::CAPABILITY)
        .then(|| Unit {
            name: "native variants".into(),
            text: native::source(source, &constants),
            architecture: architecture.clone(),
            options: NVRTC_OPTIONS.iter().map(ToString::to_string).collect(),
        })
        .filter(|_| !native::serving(&constants).is_empty());
    let translation = Unit { name: "translated kernels".into(), text: translated.text.clone(), architecture, options };
    Ok((translation, native, translated))
}

impl Driver for Cuda {
    fn info(&self) -> DriverInfo {
        DriverInfo { name: NAME, hardware: self.hardware.clone(), route: MatrixRoute::Tensor, tuning: TUNING }
    }

    fn allocate(&mut self, name: &str, bytes: u64, memory: Memory) -> Result<BufferId, DeviceError> {
        self.context.make_current()?;
        let buffer = DeviceBuffer::new(&self.context, name, bytes)?;
        match memory {
            Memory::State => self.steps.clear(buffer.address, bytes)?,
            Memory::Upload => {
                self.steps.clear(buffer.address, bytes)?;
                self.steps.synchronize("inputs")?;
            }
            // Keys and values of rows that nobody wrote are read beside those that are, and multiplied by 0: they must be
            // numbers.
            Memory::Pages => self.steps.clear(buffer.address, bytes)?,
            Memory::Scratch | Memory::Download => {}
        }
        let id = self.add(buffer);
        if memory == Memory::Upload {
            self.shadows.insert(id, Shadow { host: HostBuffer::new(bytes as usize)?, dirty: 0..0 });
        }
        Ok(id)
    }

    fn release(&mut self, buffer: BufferId) {
        // Memory is given back to the current context; without one it would stay taken.
        let _ = self.context.make_current();
        self.buffers.remove(&buffer);
        self.shadows.remove(&buffer);
    }

    fn import(&mut self, checkpoint: &Arc<Checkpoint>, wanted: &[checkpoint::Span]) -> Result<Imported, DeviceError> {
        self.context.make_current()?;
        let (offsets, bytes) = weights::layout(wanted);
        let (free, _) = self.context.memory()?;
        if bytes > free {
            return Err(DeviceError::OutOfMemory {
                device: NAME,
                what: "weights".into(),
                needed: bytes,
                available: free,
            });
        }
        let buffer = DeviceBuffer::new(&self.context, "weights", bytes)?;
        let start = Instant::now();
        weights::upload(&self.context, checkpoint, wanted, &offsets, &buffer, self.options.progress.as_ref())?;
        let seconds = start.elapsed().as_secs_f64();
        tracing::info!(gigabytes = bytes as f64 / 1e9, seconds, "weights uploaded");
        let id = self.add(buffer);
        let spans = wanted
            .iter()
            .zip(offsets)
            .map(|(span, offset)| Span { buffer: id, offset, bytes: span.len as u64 })
            .collect();
        Ok(Imported { spans, alignment: WeightAlignment::Sixteen })
    }

    fn compile(&mut self, libraries: &[LibrarySource], kernels: &[&'static str]) -> Result<(), DeviceError> {
        self.context.make_current()?;
        let start = Instant::now();
        for source in libraries {
            let (translation, native_unit, translated) = units(source, self.capability, self.options.kernels)?;
            let (code, native_code) = std::thread::scope(|scope| {
                let native = native_unit.as_ref().map(|unit| scope.spawn(|| machine_code(unit)));
                let code = machine_code(&translation)?;
                let native = native.map(|thread| {
                    thread.join().unwrap_or_else(|_| Err(failed("compilation", "a compiling thread panicked")))
                });
                Ok::<_, DeviceError>((code, native.transpose()?))
            })?;
            let module = Module::load(&code)?;
            let native_module = native_code.map(|code| Module::load(&code)).transpose()?;
            let constants = Constants::of(source);
            let serving = match native_module {
                Some(_) => native::serving(&constants),
                None => Vec::new(),
            };
            let mut found = Vec::new();
            for &name in kernels {
                let entry = translated.entries.iter().find(|e| e.kernel.name == name);
                let entry = entry.ok_or_else(|| failed("compilation", format!("no kernel {name}")))?;
                let arguments = entry.kernel.buffers().iter().map(|b| b.index).collect();
                let mut variants = Vec::new();
                for variant in serving.iter().copied().filter(|v| v.kernel == name) {
                    let Some(module) = &native_module else { break };
                    let function = module.function(&variant.symbol(), (variant.shared)(&constants))?;
                    let before = variant.before.map(|b| module.function(b.symbol, b.shared)).transpose()?;
                    variants.push(Native { variant, function, before });
                }
                found.push(Kernel { translated: module.function(&entry.symbol, 0)?, arguments, native: variants });
            }
            let modules = [Some(module), native_module].into_iter().flatten().collect();
            self.libraries.push(Library { constants, kernels: found, _modules: modules });
        }
        tracing::info!(seconds = start.elapsed().as_secs_f64(), native = ?self.native_kernels(), "kernels compiled");
        Ok(())
    }

    fn prepare(&mut self, program: &Arc<Program>) -> Result<ProgramId, DeviceError> {
        self.context.make_current()?;
        self.grow_between(program)?;
        let groups: Vec<Vec<Launch>> = program.dispatches.iter().map(|d| self.launches(d)).collect::<Result<_, _>>()?;
        let edges = chained(&reduced(&program.edges), &groups.iter().map(Vec::len).collect::<Vec<_>>());
        let launches: Vec<Launch> = groups.into_iter().flatten().collect();
        let graph = Graph::new(&launches, &edges, self.waiting())?;
        self.programs.push(Prepared { program: program.clone(), graph });
        Ok(ProgramId(self.programs.len() as u32 - 1))
    }

    fn forget_programs(&mut self) {
        let _ = self.context.make_current();
        self.programs.clear();
        self.outgrown.clear();
    }

    fn submit(&mut self, program: ProgramId) -> Result<(), DeviceError> {
        self.context.make_current()?;
        self.send_inputs()?;
        let end = match self.spare.pop() {
            Some(event) => event,
            None => Event::new(Timing::Untimed)?,
        };
        let prepared = &self.programs[program.0 as usize];
        prepared.graph.launch(&self.steps)?;
        if let Err(error) = end.record(&self.steps) {
            // A step that nobody waits for must not be left running.
            self.steps.synchronize("step")?;
            return Err(error);
        }
        self.unfinished.push_back(end);
        tracing::trace!(dispatches = prepared.program.dispatches.len(), "step submitted");
        Ok(())
    }

    fn wait(&mut self) -> Result<(), DeviceError> {
        if let Some(end) = self.unfinished.pop_front() {
            end.wait("step")?;
            self.spare.push(end);
        }
        Ok(())
    }

    fn write(&mut self, to: Span, bytes: &[u8]) -> Result<(), DeviceError> {
        if let Some(shadow) = self.shadows.get_mut(&to.buffer) {
            let range = to.offset as usize..to.offset as usize + bytes.len();
            shadow.host.bytes_mut()[range.clone()].copy_from_slice(bytes);
            shadow.dirty = match shadow.dirty.is_empty() {
                true => range,
                false => shadow.dirty.start.min(range.start)..shadow.dirty.end.max(range.end),
            };
            return Ok(());
        }
        self.context.make_current()?;
        let at = self.address(to)?;
        // SAFETY: the copy is waited for before `bytes` can change.
        unsafe { self.steps.upload(at, bytes)? };
        self.steps.synchronize("copy to the device")
    }

    fn read(&mut self, from: Span, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.context.make_current()?;
        if self.unfinished.is_empty() {
            // Copies and fills that were ordered after the last step.
            self.steps.synchronize("step")?;
        }
        let mut at = self.address(from)?;
        for part in bytes.chunks_mut(LANDING_BYTES) {
            let landing = &mut self.landing.bytes_mut()[..part.len()];
            self.results.download(landing, at)?;
            part.copy_from_slice(landing);
            at += part.len() as u64;
        }
        Ok(())
    }

    fn copy(&mut self, from: Span, to: Span) -> Result<(), DeviceError> {
        self.context.make_current()?;
        self.steps.copy(self.address(to)?, self.address(from)?, from.bytes)
    }

    fn clear(&mut self, span: Span) -> Result<(), DeviceError> {
        self.context.make_current()?;
        self.steps.clear(self.address(span)?, span.bytes)
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        // Nothing may run when memory is given back.
        let _ = self.context.make_current().and_then(|()| self.context.synchronize());
    }
}
