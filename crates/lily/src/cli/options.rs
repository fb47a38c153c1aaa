//! Options that all commands share: which model, computed where.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// What computes the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DeviceKind {
    /// The best device there is in this build, on this machine.
    Auto,
    /// This machine's processor.
    Cpu,
    /// Apple silicon.
    Metal,
    /// An NVIDIA GPU.
    Cuda,
    /// The Metal kernels, interpreted (slow, checks every access).
    Emulated,
}

/// Which model, and computed where.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Model")]
pub struct ModelOptions {
    /// Folder of the checkpoint (config.json, *.safetensors, tokenizer.json, …); without it, the built-in miniature
    #[arg(long, value_name = "DIR", env = "LILY_MODEL")]
    pub model: Option<PathBuf>,
    /// What computes
    #[arg(long, value_enum, default_value_t = DeviceKind::Auto, env = "LILY_DEVICE")]
    pub device: DeviceKind,
    /// Threads of the CPU device [default: one per physical core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024), env = "LILY_THREADS")]
    pub threads: Option<u16>,
    /// Most tokens of one sequence, prompt and answer together [default: what the model was made for]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_048_576), env = "LILY_MAX_SEQ")]
    pub max_seq: Option<u32>,
}
