//! What a driver must do: own memory, compile libraries, execute programs in order. Metal, CUDA and the emulator are
//! drivers; everything that is the same on them is in [`crate::device`].

use std::sync::Arc;

use lily_model::checkpoint::{self, Checkpoint};
use lily_model::device::DeviceError;

use crate::program::{BufferId, Program, ProgramId, Span};
use crate::route::MatrixRoute;
use crate::source::{LibrarySource, WeightAlignment};
use crate::tuning::Tuning;

/// What a buffer is for; decides where it lives and what it holds at first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Memory {
    /// Read and written by kernels within a step; contents at the start of a step are undefined.
    Scratch,
    /// Read and written by kernels, kept between steps; zeros at first.
    State,
    /// As [`Memory::State`], but nobody reads what was not written: pages of the KV pool.
    Pages,
    /// Written by the host before a step, read by kernels.
    Upload,
    /// Written by kernels, read by the host after a step.
    Download,
}

/// Weights as kernels can read them.
#[derive(Debug)]
pub struct Imported {
    /// Where each wanted range is, in the order asked for.
    pub spans: Vec<Span>,
    /// Alignment that all of them have.
    pub alignment: WeightAlignment,
}

/// What a driver is, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriverInfo {
    /// `metal`, `cuda`, `emulated`.
    pub name: &'static str,
    /// Hardware, in words.
    pub hardware: String,
    /// Route of the matrix products.
    pub route: MatrixRoute,
    /// Thread organisation.
    pub tuning: Tuning,
}

/// A GPU, or what plays one. Programs, copies and fills take effect in the order of the calls.
pub trait Driver: Send {
    /// What it is. Constant over its life.
    fn info(&self) -> DriverInfo;

    /// Takes memory; `name` is for messages.
    fn allocate(&mut self, name: &str, bytes: u64, memory: Memory) -> Result<BufferId, DeviceError>;

    /// Gives memory back. No program that uses it is submitted again.
    fn release(&mut self, buffer: BufferId);

    /// Makes ranges of the checkpoint readable by kernels, in place where that is possible. The driver keeps the
    /// checkpoint alive as long as it reads it.
    fn import(&mut self, checkpoint: &Arc<Checkpoint>, wanted: &[checkpoint::Span]) -> Result<Imported, DeviceError>;

    /// Compiles libraries. Kernel `k` of library `l` is then known as `(l, k)`, k counting `kernels`.
    fn compile(&mut self, libraries: &[LibrarySource], kernels: &[&'static str]) -> Result<(), DeviceError>;

    /// Makes a program ready to be submitted any number of times.
    fn prepare(&mut self, program: &Arc<Program>) -> Result<ProgramId, DeviceError>;

    /// Forgets all programs. None is unfinished.
    fn forget_programs(&mut self);

    /// Starts a program.
    fn submit(&mut self, program: ProgramId) -> Result<(), DeviceError>;

    /// Waits for the oldest submitted program that has not been waited for.
    fn wait(&mut self) -> Result<(), DeviceError>;

    /// Writes [`Memory::Upload`] memory that no unfinished program reads, or any memory while no program is unfinished.
    fn write(&mut self, to: Span, bytes: &[u8]) -> Result<(), DeviceError>;

    /// Reads [`Memory::Download`] memory of a finished program, or any memory while no program is unfinished.
    fn read(&mut self, from: Span, bytes: &mut [u8]) -> Result<(), DeviceError>;

    /// Copies between buffers, ordered like a program.
    fn copy(&mut self, from: Span, to: Span) -> Result<(), DeviceError>;

    /// Fills with zeros, ordered like a program.
    fn clear(&mut self, span: Span) -> Result<(), DeviceError>;
}
