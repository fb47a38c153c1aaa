//! The driver that runs kernels on the CPU through `msl`: slow, exact, and with a checker that holds every access to what
//! the dispatch table declares.

use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::Arc;

use lily_model::checkpoint::{self, Checkpoint};
use lily_model::device::DeviceError;
use msl::emulate::{self, Binding as Bound, Contents, EmulatedBuffer, Grid, Library, Pass};

use crate::driver::{Driver, DriverInfo, Imported, Memory};
use crate::program::{Access, BufferId, Program, ProgramId, Span};
use crate::route::MatrixRoute;
use crate::source::{LibrarySource, WeightAlignment};
use crate::tuning::Tuning;

pub use msl::emulate::{Check, Coverage};

const NAME: &str = "emulated";

/// How the emulator runs.
#[derive(Debug, Clone, Copy)]
pub struct EmulatedOptions {
    /// Route of the matrix products.
    pub route: MatrixRoute,
    /// Whether every access is checked.
    pub check: Check,
    /// Whether executed lines are counted.
    pub coverage: Coverage,
    /// Thread organisation.
    pub tuning: Tuning,
}

impl Default for EmulatedOptions {
    fn default() -> Self {
        EmulatedOptions {
            route: MatrixRoute::Simdgroup,
            check: Check::Off,
            coverage: Coverage::Off,
            tuning: Tuning::APPLE,
        }
    }
}

/// The emulator as a driver. Programs run when they are submitted.
#[derive(Debug)]
pub struct Emulated {
    options: EmulatedOptions,
    buffers: HashMap<BufferId, EmulatedBuffer>,
    next_buffer: u32,
    libraries: Vec<Library>,
    kernels: Vec<&'static str>,
    programs: Vec<Arc<Program>>,
    /// Mapped weights: they must outlive `buffers`, which read them in place.
    checkpoints: Vec<Arc<Checkpoint>>,
    dispatched: u64,
}

impl Emulated {
    /// An emulator without memory or kernels.
    pub fn new(options: EmulatedOptions) -> Self {
        Emulated {
            options,
            buffers: HashMap::new(),
            next_buffer: 0,
            libraries: Vec::new(),
            kernels: Vec::new(),
            programs: Vec::new(),
            checkpoints: Vec::new(),
            dispatched: 0,
        }
    }

    /// Dispatches run so far.
    pub fn dispatched(&self) -> u64 {
        self.dispatched
    }

    /// The compiled libraries, for coverage.
    pub fn libraries(&self) -> &[Library] {
        &self.libraries
    }

    fn add(&mut self, buffer: EmulatedBuffer) -> BufferId {
        let id = BufferId(self.next_buffer);
        self.next_buffer += 1;
        self.buffers.insert(id, buffer);
        id
    }

    fn buffer(&self, id: BufferId) -> Result<&EmulatedBuffer, DeviceError> {
        self.buffers.get(&id).ok_or_else(|| failed("memory", format!("buffer {} is gone", id.0)))
    }

    /// Runs a program: stage after stage, a barrier between them.
    fn run(&mut self, program: &Program) -> Result<(), DeviceError> {
        if self.options.check == Check::On {
            for span in &program.scratch {
                let range = span.offset as usize..(span.offset + span.bytes) as usize;
                self.buffer(span.buffer)?.poison(range);
            }
        }
        let mut pass = Pass::new();
        for stage in &program.stages {
            for &index in stage {
                let dispatch = &program.dispatches[index];
                let mut bound = Vec::with_capacity(dispatch.bindings.len());
                for binding in &dispatch.bindings {
                    let start = binding.span.offset as usize;
                    let range = start..start + binding.span.bytes as usize;
                    let (reads, writes) = match binding.access {
                        Access::Read => (vec![range], vec![]),
                        Access::Write | Access::WritePart => (vec![], vec![range]),
                        Access::ReadWrite => (vec![range.clone()], vec![range]),
                    };
                    bound.push(
                        Bound::new(binding.index, self.buffer(binding.span.buffer)?).at(start).declare(reads, writes),
                    );
                }
                let grid = Grid { threadgroups: dispatch.grid, threads: [dispatch.threads, 1, 1] };
                let kernel = self.kernels[dispatch.kernel.kernel];
                let library = &self.libraries[dispatch.kernel.library];
                pass.dispatch(library, kernel, grid, &bound).map_err(|e| failed(&dispatch.label(), e.to_string()))?;
                if let Some(report) = pass.reports().first() {
                    return Err(failed(&dispatch.label(), report.to_string()));
                }
                self.dispatched += 1;
            }
            pass.barrier();
        }
        Ok(())
    }
}

fn failed(op: &str, reason: String) -> DeviceError {
    DeviceError::Failed { device: NAME, op: op.to_string(), reason }
}

fn range(span: Span) -> std::ops::Range<usize> {
    span.offset as usize..(span.offset + span.bytes) as usize
}

impl Driver for Emulated {
    fn info(&self) -> DriverInfo {
        let hardware = match self.options.check {
            Check::Off => "Metal kernels on the CPU",
            Check::On => "Metal kernels on the CPU, every access checked",
        };
        let (route, tuning) = (self.options.route, self.options.tuning);
        DriverInfo { name: NAME, hardware: hardware.into(), route, tuning }
    }

    fn allocate(&mut self, _name: &str, bytes: u64, memory: Memory) -> Result<BufferId, DeviceError> {
        let undefined = match memory {
            Memory::Scratch | Memory::Download | Memory::Pages => self.options.check == Check::On,
            Memory::State | Memory::Upload => false,
        };
        let buffer = match undefined {
            true => EmulatedBuffer::undefined(bytes as usize),
            false => EmulatedBuffer::zeroed(bytes as usize),
        };
        Ok(self.add(buffer))
    }

    fn release(&mut self, buffer: BufferId) {
        self.buffers.remove(&buffer);
    }

    fn import(&mut self, checkpoint: &Arc<Checkpoint>, wanted: &[checkpoint::Span]) -> Result<Imported, DeviceError> {
        let mut shards = Vec::new();
        for shard in checkpoint.shards() {
            let bytes = shard.bytes();
            let base = NonNull::from(bytes).cast::<u8>();
            // SAFETY: the bytes live as long as the checkpoint, which `self.checkpoints` keeps until after the buffers
            // are dropped; the buffer is read-only.
            let buffer = unsafe { EmulatedBuffer::from_raw(base, bytes.len(), Contents::ReadOnly) };
            shards.push((base.as_ptr() as usize, self.add(buffer)));
        }
        let address = |span: &checkpoint::Span| shards[span.shard].0 + span.offset;
        let mut alignment = WeightAlignment::Sixteen;
        let mut spans = Vec::with_capacity(wanted.len());
        for span in wanted {
            if address(span).is_multiple_of(4) {
                // Scales and biases are read one by one; only words are read 16 bytes at a time.
                if !address(span).is_multiple_of(16) {
                    alignment = WeightAlignment::Four;
                }
                let (buffer, offset) = (shards[span.shard].1, span.offset as u64);
                spans.push(Span { buffer, offset, bytes: span.len as u64 });
            } else {
                let copy = EmulatedBuffer::from_bytes(checkpoint.bytes(*span));
                spans.push(Span { buffer: self.add(copy), offset: 0, bytes: span.len as u64 });
            }
        }
        self.checkpoints.push(checkpoint.clone());
        Ok(Imported { spans, alignment })
    }

    fn compile(&mut self, libraries: &[LibrarySource], kernels: &[&'static str]) -> Result<(), DeviceError> {
        let options = emulate::Options { check: self.options.check, coverage: self.options.coverage, threads: 0 };
        for source in libraries {
            let mut unit = msl::Source::empty().metal_version(source.metal_version);
            for (name, text) in &source.parts {
                unit = unit.with(*name, text.clone());
            }
            let library = Library::compile(&unit, &options).map_err(|e| failed("compilation", e.to_string()))?;
            for kernel in kernels {
                library.kernel(kernel).map_err(|e| failed("compilation", e.to_string()))?;
            }
            self.libraries.push(library);
        }
        self.kernels = kernels.to_vec();
        Ok(())
    }

    fn prepare(&mut self, program: &Arc<Program>) -> Result<ProgramId, DeviceError> {
        self.programs.push(program.clone());
        Ok(ProgramId(self.programs.len() as u32 - 1))
    }

    fn forget_programs(&mut self) {
        self.programs.clear();
    }

    fn submit(&mut self, program: ProgramId) -> Result<(), DeviceError> {
        let program = self.programs[program.0 as usize].clone();
        self.run(&program)
    }

    fn wait(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn write(&mut self, to: Span, bytes: &[u8]) -> Result<(), DeviceError> {
        self.buffer(to.buffer)?.write(to.offset as usize, bytes);
        Ok(())
    }

    fn read(&mut self, from: Span, bytes: &mut [u8]) -> Result<(), DeviceError> {
        bytes.copy_from_slice(&self.buffer(from.buffer)?.bytes()[range(from)]);
        Ok(())
    }

    fn copy(&mut self, from: Span, to: Span) -> Result<(), DeviceError> {
        let bytes = self.buffer(from.buffer)?.bytes()[range(from)].to_vec();
        self.write(to, &bytes)
    }

    fn clear(&mut self, span: Span) -> Result<(), DeviceError> {
        self.write(span, &vec![0; span.bytes as usize])
    }
}
