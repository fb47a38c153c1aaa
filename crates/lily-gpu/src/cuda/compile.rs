//! CUDA C++ text to machine code, by NVRTC, kept on disk between runs.

use std::ffi::{CStr, CString};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::ptr;

use cudarc::nvrtc::sys;
use lily_model::device::DeviceError;

use super::api::{NAME, failed};

/// What to compile.
#[derive(Debug, Clone)]
pub struct Unit {
    /// Name, for messages.
    pub name: String,
    /// CUDA C++ text without includes.
    pub text: String,
    /// Architecture, as `sm_90a`.
    pub architecture: String,
    /// Further options.
    pub options: Vec<String>,
}

/// Machine code of a unit, from the cache where it has been compiled before.
///
/// # Errors
/// NVRTC is not installed, or refuses the text; then with its log.
pub fn machine_code(unit: &Unit) -> Result<Vec<u8>, DeviceError> {
    let path = cached_at(unit);
    if let Some(code) = path.as_deref().and_then(kept) {
        return Ok(code);
    }
    // SAFETY: looks for a library by name, no more.
    if !unsafe { sys::is_culib_present() } {
        return Err(DeviceError::Unsupported {
            device: NAME,
            what: "NVRTC".into(),
            value: "not installed".into(),
            accepted:
                "libnvrtc.so of CUDA 12 or 13 (package cuda-nvrtc, or pip install nvidia-cuda-nvrtc) in LD_LIBRARY_PATH"
                    .into(),
        });
    }
    let code = compile(unit)?;
    if let Some(path) = path {
        // A cache that cannot be written costs the next start some seconds, no more.
        let _ = keep(&path, &code);
    }
    Ok(code)
}

/// What a file of the cache holds, if it is whole: machine code and then its checksum.
fn kept(path: &Path) -> Option<Vec<u8>> {
    let mut code = std::fs::read(path).ok()?;
    let sum = code.split_off(code.len().checked_sub(8)?);
    (code.starts_with(b"\x7fELF") && sum == checksum(&code)).then_some(code)
}

fn checksum(code: &[u8]) -> [u8; 8] {
    let mut hasher = DefaultHasher::new();
    code.hash(&mut hasher);
    hasher.finish().to_le_bytes()
}

fn keep(path: &Path, code: &[u8]) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let partial = path.with_extension(format!("{}.partial", std::process::id()));
    let written =
        std::fs::write(&partial, [code, &checksum(code)].concat()).and_then(|()| std::fs::rename(&partial, path));
    if written.is_err() {
        let _ = std::fs::remove_file(partial);
    }
    written
}

fn cached_at(unit: &Unit) -> Option<PathBuf> {
    let base = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .filter(|path| path.is_absolute())
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")))?;
    let key = |salt: u8| {
        let mut hasher = DefaultHasher::new();
        (salt, &unit.text, &unit.architecture, &unit.options, env!("CARGO_PKG_VERSION")).hash(&mut hasher);
        hasher.finish()
    };
    Some(base.join("lily").join("cuda").join(format!("{}-{:016x}{:016x}.cubin", unit.architecture, key(0), key(1))))
}

fn compile(unit: &Unit) -> Result<Vec<u8>, DeviceError> {
    let at = format!("compilation of {}", unit.name);
    let text = CString::new(unit.text.as_str()).map_err(|e| failed(&at, e.to_string()))?;
    let mut options = vec![format!("--gpu-architecture={}", unit.architecture)];
    options.extend(unit.options.iter().cloned());
    let options: Vec<CString> =
        options.into_iter().map(CString::new).collect::<Result<_, _>>().map_err(|e| failed(&at, e.to_string()))?;
    let pointers: Vec<_> = options.iter().map(|o| o.as_ptr()).collect();
    let mut program = ptr::null_mut();
    // SAFETY: all strings outlive the calls; results are read into buffers of the sizes that NVRTC gave.
    unsafe {
        status(&at, sys::nvrtcCreateProgram(&mut program, text.as_ptr(), ptr::null(), 0, ptr::null(), ptr::null()))?;
        let compiled = sys::nvrtcCompileProgram(program, pointers.len() as i32, pointers.as_ptr());
        let code = if compiled == sys::nvrtcResult::NVRTC_SUCCESS {
            let mut bytes = 0;
            status(&at, sys::nvrtcGetCUBINSize(program, &mut bytes)).and_then(|()| {
                let mut code = vec![0u8; bytes];
                status(&at, sys::nvrtcGetCUBIN(program, code.as_mut_ptr().cast()))?;
                Ok(code)
            })
        } else {
            Err(failed(&at, log(program)))
        };
        sys::nvrtcDestroyProgram(&mut program);
        code
    }
}

/// The compiler's log. The program is live.
unsafe fn log(program: sys::nvrtcProgram) -> String {
    let mut bytes = 0;
    // SAFETY: the buffer has the size that NVRTC gave; the log is terminated.
    unsafe {
        if sys::nvrtcGetProgramLogSize(program, &mut bytes) != sys::nvrtcResult::NVRTC_SUCCESS || bytes == 0 {
            return "no log".into();
        }
        let mut text = vec![0u8; bytes];
        sys::nvrtcGetProgramLog(program, text.as_mut_ptr().cast());
        CStr::from_bytes_until_nul(&text).map_or_else(|_| String::new(), |t| t.to_string_lossy().into_owned())
    }
}

fn status(op: &str, result: sys::nvrtcResult) -> Result<(), DeviceError> {
    match result {
        sys::nvrtcResult::NVRTC_SUCCESS => Ok(()),
        other => Err(failed(op, format!("{other:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_the_cache_that_is_not_whole_counts_as_not_there() {
        let folder = std::env::temp_dir().join(format!("lily-cubin-{}", std::process::id()));
        let path = folder.join("a.cubin");
        keep(&path, b"\x7fELF code").unwrap();
        assert_eq!(kept(&path).as_deref(), Some(&b"\x7fELF code"[..]));
        let whole = std::fs::read(&path).unwrap();
        for length in 0..whole.len() {
            std::fs::write(&path, &whole[..length]).unwrap();
            assert_eq!(kept(&path), None, "{length} bytes");
        }
        std::fs::remove_dir_all(folder).unwrap();
    }
}
