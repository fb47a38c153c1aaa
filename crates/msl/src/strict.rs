//! Strict checks: what a C++ compiler can say about a Metal source without running it.
//!
//! Two compilers, two strengths. The host compiler (g++) sees the class-based shim: explicit conversions to 16-bit floats and
//! between vectors, operand types of simdgroup and tensor operations, functions that Metal lacks. clang in its OpenCL C++
//! mode also knows address spaces: `device`, `constant`, `threadgroup` and `thread` become its own qualifiers.

use std::process::{Command, Stdio};

use crate::emulate::compiler;
use crate::reflect::reflect;
use crate::translate::{Target, body, host_entries, shim, strict_entries};
use crate::{Error, Source};

/// One complaint of a compiler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    /// Source part, or a shim header (`msl/...`) for an error inside an instantiation.
    pub file: String,
    /// 1-based line.
    pub line: u32,
    /// The compiler's words.
    pub message: String,
}

impl std::fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.message)
    }
}

/// Type-checks with the host compiler, warnings about lossy or suspicious code included.
///
/// # Errors
/// The source does not follow the subset, or there is no C++ compiler.
pub fn host(source: &Source) -> Result<Vec<Diagnostic>, Error> {
    let unit = reflect(source)?;
    let text = format!("{}{}{}", shim(Target::Host), body(&unit, Target::Host), host_entries(&unit));
    let flags = [
        "-std=c++20",
        "-fsyntax-only",
        "-x",
        "c++",
        "-Wall",
        "-Wdouble-promotion",
        "-Wno-unused",
        "-Wno-maybe-uninitialized",
        "-",
    ];
    diagnostics(&compiler()?.program, &flags, &text)
}

/// Type-checks with clang 19 or later in OpenCL C++ mode, address spaces included.
///
/// # Errors
/// The source does not follow the subset, or clang is not installed.
pub fn clang(source: &Source) -> Result<Vec<Diagnostic>, Error> {
    let program = ["clang-19", "clang-20", "clang-21", "clang"].into_iter().find(|program| {
        let version = Command::new(program).arg("--version").output().map(|o| o.stdout).unwrap_or_default();
        let version = String::from_utf8_lossy(&version).into_owned();
        let major = version.split("version ").nth(1).and_then(|rest| rest.split('.').next()?.parse::<u32>().ok());
        major.is_some_and(|major| major >= 19)
    });
    let program = program.ok_or(Error::CompilerMissing { wanted: "clang-19", install: "apt-get install clang-19" })?;
    let unit = reflect(source)?;
    let text = format!("{}{}{}", shim(Target::Strict), body(&unit, Target::Strict), strict_entries(&unit));
    let extensions = "-cl-ext=-cl_khr_fp64,-__opencl_c_fp64,-__opencl_c_device_enqueue,-__opencl_c_pipes";
    let flags = [
        "-x",
        "clcpp",
        "-cl-std=CLC++2021",
        "-cl-no-stdinc",
        "-cl-single-precision-constant",
        "-fsyntax-only",
        "-ferror-limit=0",
        "-Wno-unused",
        "-Xclang",
        extensions,
        "-",
    ];
    diagnostics(program, &flags, &text)
}

fn diagnostics(program: &str, flags: &[&str], text: &str) -> Result<Vec<Diagnostic>, Error> {
    use std::io::Write as _;
    let failed = |source: std::io::Error| Error::Io { path: program.into(), source };
    let mut command = Command::new(program);
    command.args(flags).env("LC_ALL", "C").stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(failed)?;
    // The compiler reads all of its input before it writes much; a reader thread keeps the pipe from filling up anyway.
    let mut input = child.stdin.take();
    let output = std::thread::scope(|scope| {
        scope.spawn(move || input.as_mut().map(|pipe| pipe.write_all(text.as_bytes())));
        child.wait_with_output()
    });
    let output = output.map_err(failed)?;
    let log = String::from_utf8_lossy(&output.stderr);
    let found = parse(&log);
    if found.is_empty() && !output.status.success() {
        return Err(Error::CompileFailed { compiler: program.to_string(), log: log.into_owned() });
    }
    Ok(found)
}

/// Reads what g++ and clang print. An error inside the shim is moved to the line that asked for the instantiation, which g++
/// names before the error and clang in a note after it.
fn parse(log: &str) -> Vec<Diagnostic> {
    let mut found: Vec<Diagnostic> = Vec::new();
    let mut asked: Option<(String, u32)> = None;
    for line in log.lines() {
        if let Some(origin) = line.split_once(":   required from").map(|(place, _)| place) {
            asked = position(origin).filter(|(file, _)| !file.starts_with("msl/")).or(asked);
            continue;
        }
        if let Some((origin, note)) = line.split_once(": note: ") {
            if let Some(last) = found.last_mut().filter(|last| last.file.starts_with("msl/"))
                && note.contains("requested here")
                && let Some((file, number)) = position(origin).filter(|(file, _)| !file.starts_with("msl/"))
            {
                last.file = file;
                last.line = number;
            }
            continue;
        }
        let marks = [": fatal error: ", ": error: ", ": warning: "];
        let split = marks.iter().find_map(|mark| line.split_once(mark).map(|parts| (mark, parts)));
        let Some((mark, (place, rest))) = split else { continue };
        let Some((mut file, mut number)) = position(place) else { continue };
        if let Some((other, line)) = asked.take().filter(|_| file.starts_with("msl/")) {
            file = other;
            number = line;
        }
        found.push(Diagnostic { file, line: number, message: format!("{}{rest}", &mark[2..]) });
    }
    found
}

/// `file:line:column` or `file:line`.
fn position(place: &str) -> Option<(String, u32)> {
    let (rest, last) = place.rsplit_once(':')?;
    if let Some((file, line)) = rest.rsplit_once(':')
        && let Ok(line) = line.parse()
    {
        return Some((file.to_string(), line));
    }
    Some((rest.to_string(), last.parse().ok()?))
}
