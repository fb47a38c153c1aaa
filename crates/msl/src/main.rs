//! The command `msl`: checks, reflects and translates Metal sources on machines without a Mac.
//!
//! Reads files and prints; everything it knows is in the library.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use msl::emulate::{Check, Coverage, Library, Options};
use msl::reflect::{Param, Unit, reflect};
use msl::{Access, Source, Space};

/// Metal Shading Language without a Mac: check, reflect, translate.
#[derive(Parser)]
#[command(name = "msl", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Lints, type-checks and compiles a source, and prints what it declares.
    ///
    /// Exits with 1 when anything is found. Types are checked by g++ (or clang++), and by clang-19 with address spaces
    /// where it is installed; --strict makes a missing clang-19 an error.
    Check {
        #[command(flatten)]
        input: Input,
        /// Fail when clang-19 is not installed instead of saying so.
        #[arg(long)]
        strict: bool,
    },
    /// Prints kernels, their parameters, bindings and threadgroup memory.
    Reflect {
        #[command(flatten)]
        input: Input,
    },
    /// Prints the source translated to CUDA C++ for NVRTC.
    Translate {
        #[command(flatten)]
        input: Input,
        /// The target; CUDA C++ is the only one.
        #[arg(long, required = true)]
        cuda: bool,
    },
}

#[derive(clap::Args)]
struct Input {
    /// Metal files, compiled as one text in this order.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// A constant put in front, as NAME=VALUE (or NAME for 1).
    #[arg(short = 'D', long = "define", value_name = "NAME=VALUE")]
    defines: Vec<String>,
    /// Value of __METAL_VERSION__: 310, 320 or 400.
    #[arg(long, default_value_t = 400, value_parser = clap::value_parser!(u32).range(300..1000))]
    metal_version: u32,
}

impl Input {
    fn source(&self) -> anyhow::Result<Source> {
        let mut source = Source::empty().metal_version(self.metal_version);
        for define in &self.defines {
            let (name, value) = define.split_once('=').unwrap_or((define, "1"));
            source = source.define(name, value);
        }
        for file in &self.files {
            let text = std::fs::read_to_string(file).map_err(|e| anyhow::anyhow!("{}: {e}", file.display()))?;
            source = source.with(file.display().to_string(), text);
        }
        Ok(source)
    }
}

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("msl: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(cli: &Cli) -> anyhow::Result<ExitCode> {
    match &cli.command {
        Command::Reflect { input } => print_unit(&reflect(&input.source()?)?),
        Command::Translate { input, .. } => print!("{}", msl::cuda::translate(&input.source()?)?.text),
        Command::Check { input, strict } => return check(&input.source()?, *strict),
    }
    Ok(ExitCode::SUCCESS)
}

fn check(source: &Source, strict: bool) -> anyhow::Result<ExitCode> {
    let unit = reflect(source)?;
    print_unit(&unit);
    let mut found = 0;
    for finding in msl::lint::lint(&unit) {
        println!("{finding}");
        found += 1;
    }
    for diagnostic in msl::strict::host(source)? {
        println!("{diagnostic} [g++]");
        found += 1;
    }
    match msl::strict::clang(source) {
        Ok(list) => {
            for diagnostic in list {
                println!("{diagnostic} [clang]");
                found += 1;
            }
        }
        Err(missing @ msl::Error::CompilerMissing { .. }) if !strict => {
            println!("address spaces not checked: {missing}");
        }
        Err(error) => return Err(error.into()),
    }
    if found == 0 {
        let options = Options { check: Check::On, coverage: Coverage::Off, threads: 1 };
        let library = Library::compile(source, &options)?;
        println!("{} kernels, no findings; emulated build at {}", library.kernels().len(), library.path().display());
        return Ok(ExitCode::SUCCESS);
    }
    println!("{found} findings");
    Ok(ExitCode::from(1))
}

fn print_unit(unit: &Unit) {
    for kernel in &unit.reflections {
        println!("kernel {}", kernel.name);
        for param in &kernel.params {
            match param {
                Param::Buffer(buffer) => {
                    let space = match buffer.space {
                        Space::Device => "device",
                        Space::Constant => "constant",
                    };
                    let access = match buffer.access {
                        Access::Read => "read",
                        Access::ReadWrite => "read/write",
                    };
                    let mark = if buffer.reference { '&' } else { '*' };
                    println!("  buffer {:2}  {space:8} {access:10} {} {}{mark}", buffer.index, buffer.name, buffer.ty);
                }
                Param::Builtin { attribute, ty, name } => println!("  {attribute}  {name} {ty}"),
            }
        }
        for var in &kernel.threadgroup {
            let bytes = var.bytes.map_or("unknown size".to_string(), |bytes| format!("{bytes} bytes"));
            println!("  threadgroup  {} {bytes}", var.name);
        }
        if let Some(sum) = kernel.threadgroup_bytes().filter(|sum| *sum > 0) {
            println!("  threadgroup memory {sum} bytes");
        }
        if let Some(threads) = kernel.max_threads {
            println!("  at most {threads} threads a threadgroup");
        }
    }
}
