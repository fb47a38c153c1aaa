//! What the checker found, in words a kernel author can act on.

use std::ffi::{CStr, c_char};
use std::path::Path;
use std::process::Command;

use super::abi;
use crate::KernelReflection;

/// Sort of finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReportKind {
    /// Device or constant access outside every bound buffer.
    OutOfBounds,
    /// Threadgroup access outside the declared variables.
    ThreadgroupOutOfBounds,
    /// Read of buffer bytes that nothing wrote.
    Uninitialized,
    /// Read of threadgroup bytes that nothing wrote in this threadgroup.
    ThreadgroupUninitialized,
    /// Two threads of a threadgroup on the same buffer bytes, one writing, without a barrier for device memory between.
    Race,
    /// The same for threadgroup memory.
    ThreadgroupRace,
    /// Two threadgroups of a dispatch on the same bytes, one writing.
    CrossThreadgroupRace,
    /// Two dispatches on the same bytes, one writing, with no barrier between them in the pass.
    MissingDispatchBarrier,
    /// Threads of a threadgroup wait at different barriers, or some have returned.
    DivergentBarrier,
    /// A simdgroup operation or collective that not every lane reached.
    PartialSimdgroup,
    /// Read of a bound buffer outside the ranges declared as read.
    UndeclaredRead,
    /// Write of a bound buffer outside the ranges declared as written.
    UndeclaredWrite,
    /// `execution_simdgroups<N>` with N other than the simdgroups of the threadgroup.
    ScopeMismatch,
    /// Threadgroup variables exceed the memory there is.
    ThreadgroupTooLarge,
}

impl ReportKind {
    fn from_abi(kind: u32) -> Self {
        match kind {
            1 => ReportKind::OutOfBounds,
            2 => ReportKind::ThreadgroupOutOfBounds,
            3 => ReportKind::Uninitialized,
            4 => ReportKind::ThreadgroupUninitialized,
            5 => ReportKind::Race,
            6 => ReportKind::ThreadgroupRace,
            7 => ReportKind::CrossThreadgroupRace,
            8 => ReportKind::MissingDispatchBarrier,
            9 => ReportKind::DivergentBarrier,
            10 => ReportKind::PartialSimdgroup,
            11 => ReportKind::UndeclaredRead,
            12 => ReportKind::UndeclaredWrite,
            13 => ReportKind::ScopeMismatch,
            _ => ReportKind::ThreadgroupTooLarge,
        }
    }

    fn words(self) -> &'static str {
        match self {
            ReportKind::OutOfBounds => "access outside every bound buffer",
            ReportKind::ThreadgroupOutOfBounds => "access outside the threadgroup variables",
            ReportKind::Uninitialized => "read of memory that nothing wrote",
            ReportKind::ThreadgroupUninitialized => "read of threadgroup memory that nothing wrote",
            ReportKind::Race => "race in device memory inside a threadgroup",
            ReportKind::ThreadgroupRace => "race in threadgroup memory",
            ReportKind::CrossThreadgroupRace => "race between threadgroups",
            ReportKind::MissingDispatchBarrier => "no barrier between two dispatches",
            ReportKind::DivergentBarrier => "barrier that not all threads reach",
            ReportKind::PartialSimdgroup => "simdgroup operation that not all lanes reach",
            ReportKind::UndeclaredRead => "read outside the declared ranges",
            ReportKind::UndeclaredWrite => "write outside the declared ranges",
            ReportKind::ScopeMismatch => "matmul2d scope differs from the simdgroups of the threadgroup",
            ReportKind::ThreadgroupTooLarge => "threadgroup memory too large",
        }
    }
}

/// One finding. The same access at the same place is reported once a dispatch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Kernel name.
    pub kernel: String,
    /// Number of the dispatch in its pass, from 0.
    pub dispatch: usize,
    /// What happened.
    pub kind: ReportKind,
    /// Buffer index and parameter name, for findings in a buffer.
    pub buffer: Option<(u32, String)>,
    /// Threadgroup variable, for findings in one.
    pub variable: Option<String>,
    /// Byte offset in the buffer or variable (negative before its start).
    pub offset: i64,
    /// Bytes accessed.
    pub size: u32,
    /// Linear threadgroup index and thread index in it.
    pub thread: (u32, u32),
    /// The other party of a race: threadgroup and thread.
    pub other: Option<(u32, u32)>,
    /// Source part and line, where obtainable.
    pub place: Option<(String, u32)>,
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some((file, line)) = &self.place {
            write!(f, "{file}:{line}: ")?;
        }
        write!(f, "{} (dispatch {}): {}", self.kernel, self.dispatch, self.kind.words())?;
        if let Some((index, name)) = &self.buffer {
            write!(f, ", {} bytes at {} of buffer {index} ({name})", self.size, self.offset)?;
        }
        if let Some(name) = &self.variable {
            write!(f, ", {} bytes at {} of {name}", self.size, self.offset)?;
        }
        write!(f, ", threadgroup {} thread {}", self.thread.0, self.thread.1)?;
        if let Some((group, thread)) = self.other {
            write!(f, ", against threadgroup {group} thread {thread}")?;
        }
        Ok(())
    }
}

/// Turns raw records into reports; `library` is asked for source lines.
pub(super) fn collect(raw: &[abi::Report], kernel: &KernelReflection, dispatch: usize, library: &Path) -> Vec<Report> {
    let lines = source_lines(raw, library);
    raw.iter()
        .zip(lines)
        .map(|(record, line)| {
            let name = kernel.buffers().iter().find(|b| b.index == record.buffer).map(|b| b.name.clone());
            let here = (record.threadgroup, record.thread);
            let other = (record.other_threadgroup, record.other_thread);
            Report {
                kernel: kernel.name.clone(),
                dispatch,
                kind: ReportKind::from_abi(record.kind),
                buffer: (record.buffer != u32::MAX).then(|| (record.buffer, name.unwrap_or_default())),
                variable: text(record.name),
                offset: record.offset as i64,
                size: record.size,
                thread: here,
                other: (other != here).then_some(other),
                place: match text(record.file) {
                    Some(file) if record.line > 0 => Some((file, record.line)),
                    _ => line,
                },
            }
        })
        .collect()
}

fn text(pointer: *const c_char) -> Option<String> {
    // SAFETY: the runtime stores null or a string literal of the loaded library.
    (!pointer.is_null()).then(|| unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned())
}

/// Asks `addr2line` (part of binutils, beside every g++) for the Metal lines of the recorded program counters.
fn source_lines(raw: &[abi::Report], library: &Path) -> Vec<Option<(String, u32)>> {
    let mut command = Command::new("addr2line");
    command.arg("-e").arg(library).arg("-i").arg("-a");
    let wanted: Vec<u64> = raw.iter().filter(|r| r.pc != 0).map(|r| r.pc - 1).collect();
    command.args(wanted.iter().map(|pc| format!("{pc:#x}")));
    let mut answers = Vec::new();
    if !wanted.is_empty()
        && let Ok(output) = command.output()
    {
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            if line.starts_with("0x") {
                answers.push(None);
            } else if let Some(last) = answers.last_mut().filter(|last| last.is_none())
                && let Some((file, number)) = line.rsplit_once(':')
                && let Ok(number) = number.split_whitespace().next().unwrap_or("").parse::<u32>()
                && !file.contains("/msl/")
                && !file.starts_with("msl/")
                && number > 0
            {
                // Names given by #line are relative; addr2line puts the directory of the build in front.
                let directory = library.parent().map(|p| format!("{}/", p.display())).unwrap_or_default();
                let name = file.strip_prefix(&directory).unwrap_or(file);
                *last = Some((name.to_string(), number));
            }
        }
    }
    let mut answers = answers.into_iter();
    raw.iter().map(|record| if record.pc == 0 { None } else { answers.next().flatten() }).collect()
}
