//! Options that all commands share: which model, computed where.

use std::path::PathBuf;
use std::str::FromStr;

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
    /// The Metal kernels on this machine's processor: thousands of times slower than a GPU, needs g++.
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

/// Reads a number above 0.
pub(super) fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() && number > 0.0 => Ok(number),
        _ => Err("accepted: a number above 0".into()),
    }
}

/// A number of bytes as people write it: `512MiB`, `2GB`, `1000000`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ByteSize(pub u64);

impl ByteSize {
    /// Reads a size of at least `least` bytes.
    pub(super) fn at_least(least: u64, text: &str) -> Result<Self, String> {
        let size: ByteSize = text.parse()?;
        if size.0 >= least { Ok(size) } else { Err(format!("accepted: at least {least} bytes")) }
    }
}

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let accepted = "accepted: a number of bytes, or one with k, M, G, T (KiB, MiB, GiB, TiB for powers of 1024)";
        let at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(at);
        let unit = unit.trim().to_ascii_lowercase();
        let factor: u64 = match unit.as_str() {
            "" | "b" => 1,
            "k" | "kb" => 1000,
            "m" | "mb" => 1_000_000,
            "g" | "gb" => 1_000_000_000,
            "t" | "tb" => 1_000_000_000_000,
            "ki" | "kib" => 1 << 10,
            "mi" | "mib" => 1 << 20,
            "gi" | "gib" => 1 << 30,
            "ti" | "tib" => 1 << 40,
            _ => return Err(accepted.into()),
        };
        match number.parse::<f64>() {
            Ok(number) if number * (factor as f64) < 1e18 => Ok(ByteSize((number * factor as f64) as u64)),
            _ => Err(accepted.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_decimal_and_binary_units() {
        for (text, bytes) in [("0", 0), ("1500", 1500), ("2GiB", 2 << 30), ("1.5MB", 1_500_000), ("3 k", 3000)] {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
        for text in ["", "x", "-1", "1XB", "9e9", "1e30G"] {
            assert!(text.parse::<ByteSize>().is_err(), "{text}");
        }
    }
}
