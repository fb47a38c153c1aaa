//! The one error type of the crate.

use std::path::PathBuf;

/// What can go wrong between a Metal source and a finished dispatch.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The source does not follow the subset.
    #[error("{file}:{line}: {message}")]
    Syntax {
        /// Part name.
        file: String,
        /// 1-based line.
        line: u32,
        /// What is wrong and what would be accepted.
        message: String,
    },
    /// No compiler on PATH.
    #[error("no {wanted} found on PATH: {install}")]
    CompilerMissing {
        /// Program names looked for.
        wanted: &'static str,
        /// How to get it.
        install: &'static str,
    },
    /// The C++ compiler refused the translation.
    #[error("{compiler} refused the translated source:\n{log}")]
    CompileFailed {
        /// Program that failed.
        compiler: String,
        /// What it printed; lines refer to the Metal source.
        log: String,
    },
    /// A file of the build cache could not be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// File or directory.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
    /// The compiled library could not be loaded.
    #[error("cannot load {}: {message}", path.display())]
    Load {
        /// Library.
        path: PathBuf,
        /// Loader's message.
        message: String,
    },
    /// No kernel of that name.
    #[error("no kernel named {name}; there are: {known}")]
    UnknownKernel {
        /// Name asked for.
        name: String,
        /// Names that exist.
        known: String,
    },
    /// A dispatch that Metal's validation would refuse.
    #[error("dispatch of {kernel}: {message}")]
    Dispatch {
        /// Kernel.
        kernel: String,
        /// What is wrong and what would be accepted.
        message: String,
    },
    /// A kernel misused the machine although no checker was asked for (a divergent barrier, for example).
    #[error("{0}")]
    Fault(Box<crate::emulate::Report>),
}
