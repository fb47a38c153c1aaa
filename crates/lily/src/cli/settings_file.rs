//! `--settings FILE`: defaults from a TOML file. Each key is a long option's name; it becomes that option's default, so
//! the command line and the environment win over it, and clap checks its value like any other.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Command;
use toml::{Table, Value};

use super::input;

/// Largest settings file.
const MOST_BYTES: u64 = 1 << 20;

/// Gives `command` the defaults of the file that `--settings` or `LILY_SETTINGS` names, if any.
pub(super) fn apply(command: Command) -> anyhow::Result<Command> {
    let Some(path) = path_from(std::env::args_os()).or_else(|| std::env::var_os("LILY_SETTINGS").map(PathBuf::from))
    else {
        return Ok(command);
    };
    let text = input::text("--settings", &path, MOST_BYTES)?;
    with_defaults(command, &text).with_context(|| format!("--settings {}", path.display()))
}

/// The value of `--settings` among raw arguments: it must be known before they can be parsed.
fn path_from(mut args: impl Iterator<Item = OsString>) -> Option<PathBuf> {
    while let Some(arg) = args.next() {
        if arg == "--settings" {
            return args.next().map(PathBuf::from);
        }
        // A path that is not UTF-8 has to follow in an argument of its own.
        if let Some(path) = arg.to_str().and_then(|arg| arg.strip_prefix("--settings=")) {
            return Some(PathBuf::from(path));
        }
    }
    None
}

fn with_defaults(mut command: Command, text: &str) -> anyhow::Result<Command> {
    let table: Table = text.parse()?;
    let commands: Vec<String> = command.get_subcommands().map(|c| c.get_name().to_owned()).collect();
    for (key, value) in &table {
        match value {
            Value::Table(entries) => {
                if !commands.contains(key) {
                    bail!("[{key}] is no command (commands: {})", commands.join(", "));
                }
                for (name, value) in entries {
                    if !has_option(&command, key, name) {
                        bail!("`{name}` in [{key}] is no option of `lily {key}`{}", hint(name));
                    }
                    command = set(command, key, name, value)?;
                }
            }
            _ => {
                let takers: Vec<&String> = commands.iter().filter(|c| has_option(&command, c, key)).collect();
                if takers.is_empty() {
                    bail!("`{key}` is no option of any command{}", hint(key));
                }
                for taker in takers {
                    command = set(command, taker, key, value)?;
                }
            }
        }
    }
    Ok(command)
}

/// Names are those of the options, with hyphens.
fn hint(name: &str) -> String {
    if name.contains('_') {
        format!(" (accepted: names as on the command line, `{}`)", name.replace('_', "-"))
    } else {
        String::new()
    }
}

fn has_option(command: &Command, subcommand: &str, option: &str) -> bool {
    command
        .find_subcommand(subcommand)
        .is_some_and(|c| c.get_arguments().any(|arg| arg.get_long() == Some(option) && option != "settings"))
}

fn set(command: Command, subcommand: &str, option: &str, value: &Value) -> anyhow::Result<Command> {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Integer(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        Value::Boolean(flag) => flag.to_string(),
        other => bail!("`{option}` is a {} (accepted: a string, a number, true or false)", other.type_str()),
    };
    Ok(command.mut_subcommand(subcommand, |c| {
        c.mut_args(|arg| if arg.get_long() == Some(option) { arg.default_value(text.clone()) } else { arg })
    }))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[cfg(unix)]
    #[test]
    fn arguments_that_are_not_utf8_are_passed_over() {
        use std::os::unix::ffi::OsStringExt;
        let odd = OsString::from_vec(vec![0xff]);
        assert_eq!(path_from([odd.clone(), "--settings".into(), odd.clone()].into_iter()), Some(odd.into()));
    }

    fn parse(file: &str, args: &[&str]) -> anyhow::Result<clap::ArgMatches> {
        Ok(with_defaults(super::super::Cli::command(), file)?.try_get_matches_from(args)?)
    }

    fn threads(matches: &clap::ArgMatches) -> Option<u32> {
        matches.subcommand_matches("plan")?.get_one::<u32>("rows").copied()
    }

    #[test]
    fn a_key_of_the_file_is_a_default_and_the_command_line_wins() {
        let file = "[plan]\nrows = 3\n";
        assert_eq!(threads(&parse(file, &["lily", "plan"]).expect("parses")), Some(3));
        assert_eq!(threads(&parse(file, &["lily", "plan", "--rows", "2"]).expect("parses")), Some(2));
    }

    #[test]
    fn unknown_keys_and_commands_are_refused_by_name() {
        for (file, name) in [("speed = 1", "speed"), ("[cook]\nx = 1", "cook"), ("[plan]\nheat = 1", "heat")] {
            let error = parse(file, &["lily", "plan"]).expect_err("refused").to_string();
            assert!(error.contains(name), "{error}");
        }
    }
}
