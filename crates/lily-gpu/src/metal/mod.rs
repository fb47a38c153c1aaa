//! The Metal driver. What can be decided without a GPU is in pure modules that are tested everywhere: which parts of a
//! mapped file become buffers ([`views`]), whether a model fits ([`budget`]), where a step is cut into command buffers
//! ([`split`]), which matrix route runs ([`choice`]), what a compiler message refers to ([`messages`]).

pub mod budget;
pub mod choice;
pub mod messages;
pub mod split;
pub mod views;

/// Name of the device.
pub const NAME: &str = "metal";
