//! The GPU device: kernels in Metal, one dispatch table, and the drivers that run it.
//!
//! Knows the plan and no requests. [`GpuDevice`] places memory, writes the inputs of a step and has programs run; a
//! [`driver::Driver`] compiles sources, owns memory and executes [`program::Program`]s. The way of a step: [`shape`] rounds
//! its counts up, [`table`] turns the plan's operations into dispatches over [`memory`], [`program`] derives the stages.

pub mod arena;
pub mod cuda;
pub mod device;
pub mod doctor;
pub mod driver;
pub mod emulated;
pub mod memory;
pub mod metal;
pub mod paper;
pub mod program;
pub mod roles;
pub mod route;
pub mod shape;
pub mod source;
mod steps;
pub mod table;
pub mod tuning;

pub use device::GpuDevice;
pub use driver::Driver;
pub use emulated::{Emulated, EmulatedOptions};
