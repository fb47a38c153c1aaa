//! The driver for Apple silicon. Weights are read in place from the mapped shards, a step is one concurrent pass with
//! barriers at the program's stages (a long one is several command buffers), and every command buffer's end is looked at.

mod commands;
mod gpu;
mod memory;
mod pipelines;
mod residency;

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;

use objc2::rc::autoreleasepool;
use objc2_foundation::NSRange;
use objc2_metal::MTLBlitCommandEncoder;

use lily_model::checkpoint::{self, Checkpoint};
use lily_model::device::{Capacity, DeviceError};

use self::commands::{Committed, Resources};
use self::gpu::Gpu;
use self::memory::{Buffer, Contents};
use self::pipelines::Pipeline;
use self::residency::Residency;
use super::views::Place;
use super::{NAME, budget, failed, split};
use crate::GpuDevice;
use crate::driver::{Driver, DriverInfo, Imported, Memory};
use crate::program::{BufferId, Dispatch, Program, ProgramId, Span};
use crate::route::MatrixRoute;
use crate::source::{LibrarySource, WeightAlignment};
use crate::tuning::Tuning;

// Metal finds the default device only in processes that are linked with it.
#[cfg(target_os = "macos")]
#[link(name = "CoreGraphics", kind = "framework")]
unsafe extern "C" {}

/// Buffer indices that a kernel may use.
const BUFFER_INDICES: u32 = 31;

/// Told how many kernels of how many are compiled.
pub type Progress = Arc<dyn Fn(usize, usize) + Send + Sync>;

/// How the driver runs.
#[derive(Clone, Default)]
pub struct MetalOptions {
    /// Insists on a route of the matrix products; else the best one that the Mac has.
    pub route: Option<MatrixRoute>,
    /// Folder that keeps compiled kernels between runs.
    pub archives: Option<PathBuf>,
    /// Called while kernels compile.
    pub progress: Option<Progress>,
}

/// Metal as a driver.
pub struct Metal {
    gpu: Gpu,
    options: MetalOptions,
    unfinished: VecDeque<Submitted>,
    /// Copies and fills committed after the newest program.
    loose: Vec<Committed>,
    programs: Vec<Prepared>,
    pipelines: Vec<Vec<Pipeline>>,
    residency: Residency,
    buffers: HashMap<BufferId, Buffer>,
    next_buffer: u32,
    taken: u64,
    /// Mapped weights: they must outlive `buffers`, which read them in place.
    checkpoints: Vec<Arc<Checkpoint>>,
}

// SAFETY: Metal's objects belong to no thread; command buffers and encoders must be used by one thread at a time, which
// `&mut self` gives. The residency set is shared with its own thread behind a mutex.
unsafe impl Send for Metal {}

/// A program and what its steps took.
struct Prepared {
    program: Arc<Program>,
    guesses: Vec<u64>,
    /// GPU time of the newest finished run, nanoseconds.
    measured: Option<u64>,
}

/// A program that runs.
struct Submitted {
    program: ProgramId,
    /// Copies and fills that were committed before it.
    before: Vec<Committed>,
    parts: Vec<Committed>,
}

/// Opens the device: refuses what does not fit before anything is taken, then compiles.
///
/// # Errors
/// [`DeviceError::Unsupported`] for a Mac or a model that cannot be served, [`DeviceError::OutOfMemory`] with the memory plan
/// where it does not fit, [`DeviceError::Failed`] where Metal refuses a kernel.
pub fn open(
    checkpoint: Arc<Checkpoint>,
    capacity: Capacity,
    options: MetalOptions,
) -> Result<GpuDevice<Metal>, DeviceError> {
    let metal = Metal::new(options)?;
    let limits = metal.gpu.limits;
    let need = budget::measure(&checkpoint, &capacity, limits)?;
    tracing::info!(
        "Metal memory: {need}; {:.2} of {:.2} GB that {} recommends",
        need.total() as f64 / 1e9,
        limits.working_set as f64 / 1e9,
        metal.gpu.name,
    );
    need.fit(limits.working_set)?;
    GpuDevice::new(metal, checkpoint, capacity)
}

impl Metal {
    /// The system's GPU, without memory or kernels.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] for a GPU or a system that is too old.
    pub fn new(options: MetalOptions) -> Result<Self, DeviceError> {
        autoreleasepool(|_| {
            let gpu = Gpu::open(options.route)?;
            tracing::info!("{}: {} ({})", gpu.name, gpu.choice.route.name(), gpu.choice.reason);
            let residency = Residency::new(&gpu)?;
            Ok(Metal {
                gpu,
                options,
                unfinished: VecDeque::new(),
                loose: Vec::new(),
                programs: Vec::new(),
                pipelines: Vec::new(),
                residency,
                buffers: HashMap::new(),
                next_buffer: 0,
                taken: budget::RESERVE,
                checkpoints: Vec::new(),
            })
        })
    }

    fn add(&mut self, buffer: Buffer) -> BufferId {
        let id = BufferId(self.next_buffer);
        self.next_buffer += 1;
        self.residency.add(&buffer.raw);
        self.taken += buffer.bytes;
        self.buffers.insert(id, buffer);
        id
    }

    /// A new buffer, refused where the working set is full: Metal would take it and then page weights out.
    fn new_buffer(&mut self, name: &str, bytes: u64, contents: Contents) -> Result<BufferId, DeviceError> {
        budget::check_length(name, bytes, self.gpu.limits)?;
        let available = self.gpu.limits.working_set.saturating_sub(self.taken);
        if bytes > available {
            return Err(DeviceError::OutOfMemory { device: NAME, what: name.into(), needed: bytes, available });
        }
        let buffer = Buffer::new(&self.gpu.device, name, bytes, contents)?;
        Ok(self.add(buffer))
    }

    fn checked(&self, span: Span, op: &str) -> Result<&Buffer, DeviceError> {
        let buffer = self.buffer(span.buffer)?;
        if span.offset + span.bytes > buffer.bytes {
            let reason = format!("bytes {} to {} of {}", span.offset, span.offset + span.bytes, buffer.bytes);
            return Err(failed(op, reason));
        }
        Ok(buffer)
    }

    /// Waits for copies and fills, where no program is unfinished: those before a program are waited for with it.
    fn settle_loose(&mut self) -> Result<(), DeviceError> {
        if self.unfinished.is_empty() {
            for committed in self.loose.drain(..) {
                committed.finish(&self.gpu)?;
            }
        }
        Ok(())
    }

    fn check_dispatch(&self, dispatch: &Dispatch) -> Result<(), DeviceError> {
        let op = dispatch.label();
        let pipeline = self.pipeline(dispatch)?;
        if dispatch.threads as usize > pipeline.max_threads {
            return Err(DeviceError::Unsupported {
                device: NAME,
                what: format!("threadgroup of {op}"),
                value: format!("{} threads", dispatch.threads),
                accepted: format!("at most {} with the registers it takes", pipeline.max_threads),
            });
        }
        for binding in &dispatch.bindings {
            if binding.index >= BUFFER_INDICES {
                return Err(failed(&op, format!("buffer index {} (Metal has 0 to 30)", binding.index)));
            }
            self.checked(binding.span, &op)?;
        }
        Ok(())
    }
}

impl Resources for Metal {
    fn buffer(&self, id: BufferId) -> Result<&Buffer, DeviceError> {
        self.buffers.get(&id).ok_or_else(|| failed("memory", format!("buffer {} is gone", id.0)))
    }

    fn pipeline(&self, dispatch: &Dispatch) -> Result<&Pipeline, DeviceError> {
        let kernel = dispatch.kernel;
        let pipeline = self.pipelines.get(kernel.library).and_then(|library| library.get(kernel.kernel));
        pipeline.ok_or_else(|| failed(&dispatch.label(), "its kernel was not compiled"))
    }
}

impl Driver for Metal {
    fn info(&self) -> DriverInfo {
        let hardware = self.gpu.name.clone();
        DriverInfo { name: NAME, hardware, route: self.gpu.choice.route, tuning: Tuning::APPLE }
    }

    fn allocate(&mut self, name: &str, bytes: u64, memory: Memory) -> Result<BufferId, DeviceError> {
        autoreleasepool(|_| self.new_buffer(name, bytes, memory.into()))
    }

    fn release(&mut self, buffer: BufferId) {
        if let Some(buffer) = self.buffers.remove(&buffer) {
            self.residency.remove(&buffer.raw);
            self.taken -= buffer.bytes;
        }
    }

    fn import(&mut self, checkpoint: &Arc<Checkpoint>, wanted: &[checkpoint::Span]) -> Result<Imported, DeviceError> {
        autoreleasepool(|_| {
            let layouts = budget::lay_out_shards(checkpoint, wanted, self.gpu.limits)?;
            self.checkpoints.push(Arc::clone(checkpoint));
            let mut views = Vec::new();
            let mut copies = Vec::new();
            for (shard, layout) in checkpoint.shards().iter().zip(&layouts.shards) {
                let mut of_shard = Vec::new();
                for pages in &layout.views {
                    // SAFETY: whole pages of the shard's mapping, which `checkpoints` keeps until after the buffers are
                    // dropped; weights are bound for reading only.
                    let view = unsafe { Buffer::in_place(&self.gpu.device, shard.name(), pages.clone()) }?;
                    of_shard.push(self.add(view));
                }
                views.push(of_shard);
                let name = format!("copied weights of {}", shard.name());
                let copied: u64 = layout.copies.iter().sum();
                if copied > 0 {
                    tracing::info!(
                        "{} bytes of {} are copied: not aligned, or at the file's end",
                        copied,
                        shard.name()
                    );
                }
                let of_shard: Result<Vec<BufferId>, DeviceError> =
                    layout.copies.iter().map(|&bytes| self.new_buffer(&name, bytes, Contents::Undefined)).collect();
                copies.push(of_shard?);
            }
            let mut alignment = WeightAlignment::Sixteen;
            let mut spans = Vec::with_capacity(wanted.len());
            for (index, span) in wanted.iter().enumerate() {
                let (buffer, offset) = match layouts.place(index) {
                    Place::View { view, offset } => (views[span.shard][view], offset),
                    Place::Copy { copy, offset } => {
                        let buffer = copies[span.shard][copy];
                        self.buffer(buffer)?.write(offset, checkpoint.bytes(*span));
                        (buffer, offset)
                    }
                };
                if !offset.is_multiple_of(16) {
                    alignment = WeightAlignment::Four;
                }
                spans.push(Span { buffer, offset, bytes: span.len as u64 });
            }
            Ok(Imported { spans, alignment })
        })
    }

    fn compile(&mut self, libraries: &[LibrarySource], kernels: &[&'static str]) -> Result<(), DeviceError> {
        self.pipelines = autoreleasepool(|_| pipelines::compile(&self.gpu, &self.options, libraries, kernels))?;
        Ok(())
    }

    fn prepare(&mut self, program: &Arc<Program>) -> Result<ProgramId, DeviceError> {
        for dispatch in &program.dispatches {
            self.check_dispatch(dispatch)?;
        }
        let guesses = split::stage_guesses(program);
        self.programs.push(Prepared { program: Arc::clone(program), guesses, measured: None });
        Ok(ProgramId(self.programs.len() as u32 - 1))
    }

    fn forget_programs(&mut self) {
        self.programs.clear();
    }

    fn submit(&mut self, program: ProgramId) -> Result<(), DeviceError> {
        let Some(prepared) = self.programs.get(program.0 as usize) else {
            return Err(failed("submit", format!("program {} is gone", program.0)));
        };
        self.residency.ready();
        let cuts = split::cut(&prepared.guesses, prepared.measured, split::TARGET_NS);
        let mut parts = Vec::with_capacity(cuts.len());
        let encoded = cuts.into_iter().try_for_each(|stages| {
            parts.push(autoreleasepool(|_| commands::submit(&self.gpu, self, &prepared.program, stages))?);
            Ok(())
        });
        if let Err(error) = encoded {
            // What was committed refers to buffers without keeping them.
            parts.iter().for_each(Committed::settle);
            return Err(error);
        }
        let before = std::mem::take(&mut self.loose);
        self.unfinished.push_back(Submitted { program, before, parts });
        Ok(())
    }

    fn wait(&mut self) -> Result<(), DeviceError> {
        let Some(submitted) = self.unfinished.pop_front() else {
            return Err(failed("wait", "nothing was submitted"));
        };
        autoreleasepool(|_| {
            // All parts end before an error is returned: none may run on once the step counts as over.
            submitted.parts.iter().for_each(Committed::settle);
            for committed in &submitted.before {
                committed.finish(&self.gpu)?;
            }
            let took: Result<u64, DeviceError> = submitted.parts.iter().map(|part| part.finish(&self.gpu)).sum();
            let prepared = &mut self.programs[submitted.program.0 as usize];
            match took {
                Ok(ns) => {
                    prepared.measured = Some(ns);
                    Ok(())
                }
                Err(error @ DeviceError::Failed { .. }) => {
                    let program = Arc::clone(&prepared.program);
                    self.unfinished.iter().flat_map(|later| &later.parts).for_each(Committed::settle);
                    Err(commands::find_fault(&self.gpu, self, &program).unwrap_or(error))
                }
                Err(error) => Err(error),
            }
        })
    }

    fn write(&mut self, to: Span, bytes: &[u8]) -> Result<(), DeviceError> {
        self.settle_loose()?;
        self.checked(to, "write")?.write(to.offset, &bytes[..bytes.len().min(to.bytes as usize)]);
        Ok(())
    }

    fn read(&mut self, from: Span, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.settle_loose()?;
        self.checked(from, "read")?.read(from.offset, bytes);
        Ok(())
    }

    fn copy(&mut self, from: Span, to: Span) -> Result<(), DeviceError> {
        let (source, target) = (self.checked(from, "copy")?, self.checked(to, "copy")?);
        self.residency.ready();
        let committed = autoreleasepool(|_| {
            commands::blit(&self.gpu, "copy of a state", |encoder| {
                let (start, at, bytes) = (from.offset as usize, to.offset as usize, from.bytes as usize);
                // SAFETY: both ranges were checked; the command buffer keeps the buffers, the fence orders accesses.
                unsafe {
                    encoder.copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size(
                        &source.raw,
                        start,
                        &target.raw,
                        at,
                        bytes,
                    );
                }
            })
        })?;
        self.loose.push(committed);
        Ok(())
    }

    fn clear(&mut self, span: Span) -> Result<(), DeviceError> {
        let buffer = self.checked(span, "clear")?;
        self.residency.ready();
        let range = NSRange { location: span.offset as usize, length: span.bytes as usize };
        let committed = autoreleasepool(|_| {
            commands::blit(&self.gpu, "clearing of a state", |encoder| {
                encoder.fillBuffer_range_value(&buffer.raw, range, 0);
            })
        })?;
        self.loose.push(committed);
        Ok(())
    }
}

impl Drop for Metal {
    fn drop(&mut self) {
        // Programs refer to buffers and pipelines without keeping them.
        let unfinished = self.unfinished.iter().flat_map(|step| step.before.iter().chain(&step.parts));
        unfinished.chain(&self.loose).for_each(Committed::settle);
    }
}
