//! NVRTC for tests: the PyPI wheel's library, loaded at run time. Needs no GPU and no CUDA installation.

#![allow(missing_docs)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::PathBuf;
use std::process::Command;

type Program = *mut c_void;

/// Directory list of Python's site-packages, where pip puts nvidia/cuda_nvrtc (or nvidia/cu13).
fn library() -> PathBuf {
    let script = "import site,sys;print('\\n'.join(site.getsitepackages()+[site.getusersitepackages()]))";
    let output = Command::new("python3").args(["-c", script]).output();
    let listing = output.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default();
    for site in listing.lines() {
        for dir in ["nvidia/cuda_nvrtc/lib", "nvidia/cu13/lib"] {
            let entries = std::fs::read_dir(PathBuf::from(site).join(dir)).into_iter().flatten().flatten();
            let mut found: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
            found.retain(|path| {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                name.starts_with("libnvrtc.so") && !name.contains("alt")
            });
            if let Some(path) = found.pop() {
                return path;
            }
        }
    }
    panic!("NVRTC is not installed: pip install nvidia-cuda-nvrtc-cu12");
}

/// Compiles CUDA source to a cubin for `architecture` (`sm_90`); panics with NVRTC's log.
pub fn compile(text: &str, architecture: &str) -> Vec<u8> {
    // SAFETY: NVRTC's C interface as documented in its reference; strings live through the calls.
    unsafe {
        let lib = libloading::Library::new(library()).unwrap();
        let create = lib
            .get::<unsafe extern "C" fn(
                *mut Program,
                *const c_char,
                *const c_char,
                c_int,
                *const *const c_char,
                *const *const c_char,
            ) -> c_int>(b"nvrtcCreateProgram")
            .unwrap();
        let build = lib
            .get::<unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int>(b"nvrtcCompileProgram")
            .unwrap();
        type Size = unsafe extern "C" fn(Program, *mut usize) -> c_int;
        type Bytes = unsafe extern "C" fn(Program, *mut c_char) -> c_int;
        let log_size = lib.get::<Size>(b"nvrtcGetProgramLogSize").unwrap();
        let log = lib.get::<Bytes>(b"nvrtcGetProgramLog").unwrap();
        let cubin_size = lib.get::<Size>(b"nvrtcGetCUBINSize").unwrap();
        let cubin = lib.get::<Bytes>(b"nvrtcGetCUBIN").unwrap();

        let source = CString::new(text).unwrap();
        let name = CString::new("kernels.cu").unwrap();
        let mut program: Program = std::ptr::null_mut();
        assert_eq!(create(&mut program, source.as_ptr(), name.as_ptr(), 0, std::ptr::null(), std::ptr::null()), 0);
        let mut options: Vec<CString> = msl::cuda::NVRTC_OPTIONS.iter().map(|o| CString::new(*o).unwrap()).collect();
        options.push(CString::new(format!("--gpu-architecture={architecture}")).unwrap());
        let pointers: Vec<*const c_char> = options.iter().map(|o| o.as_ptr()).collect();
        let status = build(program, pointers.len() as c_int, pointers.as_ptr());
        let mut size = 0;
        log_size(program, &mut size);
        let mut text = vec![0u8; size.max(1)];
        log(program, text.as_mut_ptr().cast());
        let printed = CStr::from_bytes_until_nul(&text).unwrap_or_default().to_string_lossy().into_owned();
        assert_eq!(status, 0, "NVRTC:\n{printed}");
        cubin_size(program, &mut size);
        let mut image = vec![0u8; size];
        cubin(program, image.as_mut_ptr().cast());
        image
    }
}
