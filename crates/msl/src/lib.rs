//! Metal Shading Language on machines without a Mac.
//!
//! One Metal source, several uses: [`reflect()`](reflect::reflect) lists kernels and bindings without a compiler, [`emulate`] runs them on the
//! CPU (optionally under a checker for races, bounds and initialization), [`cuda`] translates them for NVRTC, [`lint`] and
//! [`strict`] find what Apple's compiler would refuse. The crate knows nothing of models; it works on anybody's kernels
//! that keep to the subset described in `README.md` beside this crate.

pub mod cuda;
pub mod emulate;
mod error;
pub mod fold;
pub mod lex;
pub mod lint;
pub mod preprocess;
pub mod reflect;
mod source;
pub mod strict;
mod translate;

pub use error::Error;
pub use reflect::{Access, BufferParam, KernelReflection, Param, Space};
pub use source::{Part, Source};
