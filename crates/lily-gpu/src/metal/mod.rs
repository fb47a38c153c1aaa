//! The Metal driver. What can be decided without a GPU is in pure modules that are tested everywhere: which parts of a
//! mapped file become buffers ([`views`]), whether a model fits ([`budget`]), where a step is cut into command buffers
//! ([`split`]), which matrix route runs ([`choice`]), what a compiler message refers to ([`messages`]). `host`
//! talks to Metal and exists on macOS.

pub mod budget;
pub mod choice;
#[cfg(target_os = "macos")]
pub mod host;
pub mod messages;
pub mod split;
pub mod views;

/// Name of the device.
pub const NAME: &str = "metal";

/// A failure of an operation, in the device's own words.
pub fn failed(op: &str, reason: impl std::fmt::Display) -> lily_model::device::DeviceError {
    lily_model::device::DeviceError::Failed { device: NAME, op: op.into(), reason: reason.to_string() }
}

#[cfg(target_os = "macos")]
pub use host::{Metal, MetalOptions, Progress, open};
