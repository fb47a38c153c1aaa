//! A driver whose kernels have faults: what it compiles is changed first.

use std::sync::Arc;

use lily_gpu::driver::{Driver, DriverInfo, Imported, Memory};
use lily_gpu::program::{BufferId, Program, ProgramId, Span};
use lily_gpu::source::LibrarySource;
use lily_model::checkpoint::{self, Checkpoint};
use lily_model::device::DeviceError;

/// A kernel file, a text that it has, and what stands there instead.
pub type Fault = (&'static str, &'static str, &'static str);

/// See the head of the file.
pub struct Spoiled<D> {
    inner: D,
    faults: Vec<Fault>,
}

impl<D: Driver> Spoiled<D> {
    pub fn new(inner: D, faults: &[Fault]) -> Self {
        Spoiled { inner, faults: faults.to_vec() }
    }
}

impl<D: Driver> Driver for Spoiled<D> {
    fn info(&self) -> DriverInfo {
        self.inner.info()
    }

    fn allocate(&mut self, name: &str, bytes: u64, memory: Memory) -> Result<BufferId, DeviceError> {
        self.inner.allocate(name, bytes, memory)
    }

    fn release(&mut self, buffer: BufferId) {
        self.inner.release(buffer);
    }

    fn import(&mut self, checkpoint: &Arc<Checkpoint>, wanted: &[checkpoint::Span]) -> Result<Imported, DeviceError> {
        self.inner.import(checkpoint, wanted)
    }

    fn compile(&mut self, libraries: &[LibrarySource], kernels: &[&'static str]) -> Result<(), DeviceError> {
        let mut libraries = libraries.to_vec();
        for library in &mut libraries {
            for &(file, from, to) in &self.faults {
                let part = library.parts.iter_mut().find(|part| part.0 == file).expect("the file is there");
                assert!(part.1.contains(from), "{file} has no {from:?}");
                part.1 = part.1.replace(from, to);
            }
        }
        self.inner.compile(&libraries, kernels)
    }

    fn prepare(&mut self, program: &Arc<Program>) -> Result<ProgramId, DeviceError> {
        self.inner.prepare(program)
    }

    fn forget_programs(&mut self) {
        self.inner.forget_programs();
    }

    fn submit(&mut self, program: ProgramId) -> Result<(), DeviceError> {
        self.inner.submit(program)
    }

    fn wait(&mut self) -> Result<(), DeviceError> {
        self.inner.wait()
    }

    fn write(&mut self, to: Span, bytes: &[u8]) -> Result<(), DeviceError> {
        self.inner.write(to, bytes)
    }

    fn read(&mut self, from: Span, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.inner.read(from, bytes)
    }

    fn copy(&mut self, from: Span, to: Span) -> Result<(), DeviceError> {
        self.inner.copy(from, to)
    }

    fn clear(&mut self, span: Span) -> Result<(), DeviceError> {
        self.inner.clear(span)
    }
}
