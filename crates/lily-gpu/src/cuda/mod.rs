//! The CUDA device: the same kernels as on Apple silicon, translated, on an NVIDIA GPU.
//!
//! The driver and the compiler are loaded at run time: a build with this module runs on machines without either, and
//! [`is_present`] tells. Kernels are translated by `msl`, compiled by NVRTC at start-up and kept in the user's cache; on
//! compute capability 9.0 native variants ([`native`]) stand in for nearly all of them.

mod api;
mod compile;
mod driver;
mod graph;
mod limits;
pub mod native;
mod weights;

pub use compile::{Unit, machine_code};
pub use driver::{Cuda, CudaOptions, KernelTime, Kernels, units};
pub use limits::{Limits, limits, unit as limits_unit};
pub use weights::Progress;

/// Whether there is a GPU that this device can use.
pub fn is_present() -> bool {
    api::capability(0).is_ok_and(|found| found >= 80)
}

/// Whether [`limits`] knows how to measure this machine's GPU.
pub fn measures_limits() -> bool {
    api::capability(0).is_ok_and(|found| found == native::CAPABILITY)
}
