//! Which lines of a source some emulated dispatch executed, counted by gcov.

use std::collections::BTreeMap;
use std::process::Command;

use super::Library;
use crate::Error;

/// Executions of each line that has code, by part name.
pub type LineCoverage = BTreeMap<String, BTreeMap<u32, u64>>;

/// C++ put behind a counted translation: gcov's counters go to disk when asked, and start again from zero.
pub(super) const FLUSH: &str = "extern \"C\" void __gcov_dump(); extern \"C\" void __gcov_reset();
extern \"C\" __attribute__((visibility(\"default\"))) void msl_coverage_flush() { __gcov_dump(); __gcov_reset(); }
";

/// Writes a library's counters to disk when it is unloaded, where it has any.
pub(super) fn flush(handle: &libloading::Library) {
    // SAFETY: msl_coverage_flush, where present, takes and returns nothing.
    if let Ok(dump) = unsafe { handle.get::<unsafe extern "C" fn()>(b"msl_coverage_flush\0") } {
        // SAFETY: as above; no kernel of this library is running.
        unsafe { dump() };
    }
}

/// Line counts of a library built with [`super::Coverage::On`], summed over all processes that used this cache entry.
///
/// # Errors
/// The library has no counters, or `gcov` (beside g++) is missing or fails.
pub fn coverage(library: &Library) -> Result<LineCoverage, Error> {
    flush(&library.inner.handle);
    let notes = library.path().with_extension("gcno");
    let dir = super::cache_dir();
    let command = Command::new("gcov").args(["--stdout", "--json-format"]).arg(&notes).current_dir(&dir).output();
    let output = command.map_err(|source| Error::Io { path: "gcov".into(), source })?;
    if !output.status.success() {
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(Error::CompileFailed { compiler: "gcov".into(), log });
    }
    let failed = |message: String| Error::CompileFailed { compiler: "gcov".into(), log: message };
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).map_err(|e| failed(e.to_string()))?;
    let mut covered = LineCoverage::new();
    for file in json["files"].as_array().into_iter().flatten() {
        let Some(name) = file["file"].as_str().filter(|name| !name.starts_with("msl/")) else {
            continue;
        };
        let lines = covered.entry(name.to_string()).or_default();
        for line in file["lines"].as_array().into_iter().flatten() {
            if let (Some(number), Some(count)) = (line["line_number"].as_u64(), line["count"].as_u64()) {
                // Template instantiations list a line once each.
                *lines.entry(number as u32).or_default() += count;
            }
        }
    }
    Ok(covered)
}
