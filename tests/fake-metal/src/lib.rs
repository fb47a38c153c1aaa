//! A Metal that runs on Linux: enough of the Objective-C runtime, Foundation and Metal for the driver of `lily-gpu`, which
//! is compiled here from its own source. Kernels run in msl's emulator, as late as Metal may run them: when somebody waits.
//!
//! What a real Metal answers with a crash, a wrong number or nothing at all is a [`machine::Machine`]'s violation here.

pub mod encoder;
pub mod execute;
pub mod foundation;
pub mod machine;
pub mod metal;
pub mod objects;
pub mod runtime;

// The driver's source names what it uses by these paths.
pub use lily_gpu::{GpuDevice, driver, program, route, source, tuning};
