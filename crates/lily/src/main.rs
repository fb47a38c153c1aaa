//! The program's entry: parses the command line, runs one command, turns its outcome into an exit code. All else is in
//! the library of the same name, where tests can reach it.

use std::process::ExitCode;

fn main() -> ExitCode {
    lily::cli::main()
}
