//! Turning translated text into a loaded library: the C++ compiler on PATH, and a cache keyed by content.
//!
//! The cache lives in the system's temporary directory; an entry is named by a hash of text, flags and compiler, written
//! under another name and renamed, so that processes can share it.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use super::{Check, Coverage};
use crate::Error;

const RUNTIME: &str = include_str!("../../shim/runtime.cpp");
const CHECKER: &str = include_str!("../../shim/checker.inc");
const ABI: &str = include_str!("../../shim/abi.h");

/// A C++ compiler: its program name and the first line of its version.
#[derive(Debug, Clone)]
pub struct Compiler {
    /// Program.
    pub program: String,
    /// Version line, part of the cache key.
    pub version: String,
}

/// The compiler used for host builds: `g++`, else `clang++`.
///
/// # Errors
/// Neither is on PATH.
pub fn compiler() -> Result<&'static Compiler, Error> {
    static FOUND: OnceLock<Option<Compiler>> = OnceLock::new();
    let found = FOUND.get_or_init(|| {
        ["g++", "clang++", "clang++-19", "c++"].iter().find_map(|program| {
            let output = Command::new(program).arg("--version").output().ok().filter(|o| o.status.success())?;
            let version = String::from_utf8_lossy(&output.stdout).lines().next()?.to_string();
            Some(Compiler { program: (*program).to_string(), version })
        })
    });
    found.as_ref().ok_or(Error::CompilerMissing { wanted: "C++ compiler", install: "apt-get install g++" })
}

/// Where the cache of compiled libraries lives.
pub fn cache_dir() -> PathBuf {
    std::env::temp_dir().join("msl-cache")
}

/// Instruction set flags: what the host has, named so that a cache moved to another machine misses.
fn architecture() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    {
        let modern =
            is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
        if modern { "-march=x86-64-v3" } else { "-march=x86-64" }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        "-O2"
    }
}

/// Compiles `text` (a translation with its shim) and the runtime; returns the shared library.
pub(super) fn library(text: &str, check: Check, coverage: Coverage) -> Result<PathBuf, Error> {
    let compiler = compiler()?;
    let mut flags = vec![
        "-std=c++20",
        "-fPIC",
        "-fvisibility=hidden",
        "-fno-exceptions",
        "-fno-rtti",
        "-fno-strict-aliasing",
        "-fno-math-errno",
        "-fno-trapping-math",
        "-ffp-contract=fast",
        "-w",
        "-g1",
        architecture(),
    ];
    match check {
        Check::Off => flags.extend(["-O2", "-ftree-vectorize"]),
        Check::On => flags.extend(["-O2", "-fsanitize=thread", "-fno-tree-loop-distribute-patterns", "-DMSL_CHECK=1"]),
    }
    if coverage == Coverage::On {
        flags.extend(["--coverage", "-fprofile-update=atomic", "-O1"]);
    }
    let dir = cache_dir();
    std::fs::create_dir_all(&dir).map_err(|source| Error::Io { path: dir.clone(), source })?;
    let runtime =
        object(compiler, &dir, "runtime", &[("abi.h", ABI), ("checker.inc", CHECKER), ("runtime.cpp", RUNTIME)])?;
    let key = hash(&(text, &flags, &compiler.version, runtime.file_name().map(|n| n.to_os_string())));
    let library = dir.join(format!("kernels-{key:016x}.so"));
    let lock = lock(key);
    let _held = lock.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if library.exists() {
        return Ok(library);
    }
    // With coverage the object's own name is where the counters' files go, so it must be stable.
    let unique = unique();
    let stem = match coverage {
        Coverage::On => dir.join(format!("kernels-{key:016x}")),
        Coverage::Off => dir.join(format!("kernels-{key:016x}-{unique}")),
    };
    let source = stem.with_extension("cpp");
    write(&source, text)?;
    let object = stem.with_extension("o");
    let staged = dir.join(format!("kernels-{key:016x}-{unique}.so"));
    run(Command::new(&compiler.program).args(&flags).arg("-c").arg(&source).arg("-o").arg(&object).current_dir(&dir))?;
    let mut link = Command::new(&compiler.program);
    link.arg("-shared").arg("-o").arg(&staged).arg(&object).arg(&runtime);
    if coverage == Coverage::On {
        link.arg("--coverage");
    }
    run(&mut link)?;
    rename(&staged, &library)?;
    if coverage == Coverage::Off {
        let _ = std::fs::remove_file(&object);
        let _ = std::fs::remove_file(&source);
    }
    Ok(library)
}

/// The runtime's object file, built once a compiler version.
fn object(compiler: &Compiler, dir: &Path, name: &str, files: &[(&str, &str)]) -> Result<PathBuf, Error> {
    let key = hash(&(files, &compiler.version));
    let object = dir.join(format!("{name}-{key:016x}.o"));
    let lock = lock(key);
    let _held = lock.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if object.exists() {
        return Ok(object);
    }
    let place = dir.join(format!("{name}-{key:016x}-{}", unique()));
    std::fs::create_dir_all(&place).map_err(|source| Error::Io { path: place.clone(), source })?;
    for (file, text) in files {
        write(&place.join(file), text)?;
    }
    let staged = place.join("out.o");
    let flags = ["-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden", "-fno-strict-aliasing", "-w"];
    run(Command::new(&compiler.program).args(flags).arg("-c").arg(place.join("runtime.cpp")).arg("-o").arg(&staged))?;
    rename(&staged, &object)?;
    let _ = std::fs::remove_dir_all(&place);
    Ok(object)
}

/// One lock a cache entry, so that threads of this process wait for each other's build instead of repeating it.
fn lock(key: u64) -> Arc<Mutex<()>> {
    static LOCKS: Mutex<BTreeMap<u64, Arc<Mutex<()>>>> = Mutex::new(BTreeMap::new());
    LOCKS.lock().unwrap_or_else(std::sync::PoisonError::into_inner).entry(key).or_default().clone()
}

/// A name part that no other build uses, in this process or another.
fn unique() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

fn write(path: &Path, text: &str) -> Result<(), Error> {
    std::fs::write(path, text).map_err(|source| Error::Io { path: path.to_path_buf(), source })
}

fn rename(from: &Path, to: &Path) -> Result<(), Error> {
    std::fs::rename(from, to).map_err(|source| Error::Io { path: to.to_path_buf(), source })
}

fn run(command: &mut Command) -> Result<(), Error> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|source| Error::Io { path: program.clone().into(), source })?;
    if output.status.success() {
        return Ok(());
    }
    Err(Error::CompileFailed { compiler: program, log: String::from_utf8_lossy(&output.stderr).into_owned() })
}
