//! The command line: one file a command. Results go to stdout, everything else (statistics, progress, logs, errors) to
//! stderr. Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted.

mod bench;
mod doctor;
mod eval;
mod input;
mod options;
mod plan;
mod progress;
mod run;
mod serve;
mod settings_file;
mod synth;

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Context;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

pub use options::{DeviceKind, ModelOptions};
pub use progress::upload_progress;

/// Lily: a local inference engine for Qwen3.6-35B-A3B and its family.
#[derive(Debug, Parser)]
#[command(name = "lily", version, max_term_width = 100, propagate_version = true)]
#[command(
    after_help = "Every option can also be set in a TOML file named by --settings, and those with [env: LILY_...] in \
                        their command's --help by that variable. The command line wins over the \
                        environment, the environment over the file.\n\nExit codes: 0 done, 1 failed, 2 wrong usage, \
                        130 interrupted."
)]
struct Cli {
    /// TOML file with defaults, keys as the long options (`threads = 8`), in a table per command (`[serve]`) or at the
    /// top for all commands
    #[arg(long, global = true, value_name = "FILE", env = "LILY_SETTINGS")]
    settings: Option<std::path::PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::RunArgs),
    Serve(serve::ServeArgs),
    Eval(eval::EvalArgs),
    Plan(plan::PlanArgs),
    Bench(bench::BenchArgs),
    Doctor(doctor::DoctorArgs),
    Synth(synth::SynthArgs),
}

/// Runs the program with the process's own arguments.
pub fn main() -> ExitCode {
    let command = match settings_file::apply(Cli::command()) {
        Ok(command) => command,
        Err(error) => return fail(&error),
    };
    let matches = match command.try_get_matches() {
        Ok(matches) => matches,
        Err(error) => error.exit(),
    };
    let cli = match Cli::from_arg_matches(&matches) {
        Ok(cli) => cli,
        Err(error) => error.exit(),
    };
    let outcome = match cli.command {
        Command::Run(args) => run::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Synth(args) => synth::run(&args),
        Command::Eval(args) => eval::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Doctor(args) => doctor::run(&args),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => fail(&error),
    }
}

/// Whoever read stdout has gone (`lily … | head`): there is nothing more to do, and nothing wrong.
#[derive(Debug, thiserror::Error)]
#[error("stdout is closed")]
struct StdoutClosed;

/// Writes a part of a command's result to stdout, at once.
fn print_result(text: &str) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(StdoutClosed.into()),
        written => written.context("stdout"),
    }
}

/// Prints an error with its causes.
fn fail(error: &anyhow::Error) -> ExitCode {
    if error.is::<StdoutClosed>() {
        return ExitCode::SUCCESS;
    }
    eprintln!("error: {}", in_words(error));
    ExitCode::FAILURE
}

/// An error and its causes; a cause that the words before it already end in is not said twice.
fn in_words(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1) {
        let cause = cause.to_string();
        if !text.ends_with(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    #[test]
    fn a_cause_that_an_error_already_names_is_not_said_twice() {
        let missing = || std::io::Error::from(std::io::ErrorKind::NotFound);
        let named = Err::<(), _>(missing()).context(format!("cannot read x: {}", missing())).unwrap_err();
        assert_eq!(super::in_words(&named), format!("cannot read x: {}", missing()));
        let unnamed = Err::<(), _>(missing()).context("cannot read x").unwrap_err();
        assert_eq!(super::in_words(&unnamed), format!("cannot read x: {}", missing()));
    }
}
