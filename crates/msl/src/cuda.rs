//! Translation of Metal source to CUDA C++ for NVRTC.
//!
//! The result needs no CUDA headers: compile it with `-default-device -std=c++20 --gpu-architecture=sm_80` or later. A
//! simdgroup is a warp; threadgroup memory is `__shared__`.

use crate::reflect::{KernelReflection, reflect};
use crate::translate::{Target, body, cuda_entries, shim};
use crate::{Error, Source};

/// One entry point.
#[derive(Debug, Clone)]
pub struct CudaEntry {
    /// `extern "C"` name: the kernel's name, with characters C does not allow replaced by `_`.
    pub symbol: String,
    /// The kernel. The entry takes one device pointer for each of [`KernelReflection::buffers`], in that order.
    pub kernel: KernelReflection,
}

/// A translated source.
#[derive(Debug, Clone)]
pub struct CudaSource {
    /// CUDA C++ text, self-contained.
    pub text: String,
    /// Its entry points.
    pub entries: Vec<CudaEntry>,
}

/// Options NVRTC needs for a translated source, besides the architecture.
pub const NVRTC_OPTIONS: [&str; 2] = ["-default-device", "-std=c++20"];

/// Translates a source. Kernels with `[[max_total_threads_per_threadgroup(n)]]` get it as their launch bound.
///
/// # Errors
/// The source does not follow the subset, or two kernels get one entry name.
pub fn translate(source: &Source) -> Result<CudaSource, Error> {
    translate_for(source, &|_| None)
}

/// Translates a source whose dispatch sizes are known: `threads` gives the threads per threadgroup a kernel is launched
/// with, which becomes its launch bound, so that the compiler knows how many registers a thread may have.
///
/// # Errors
/// The source does not follow the subset, or two kernels get one entry name.
pub fn translate_for(source: &Source, threads: &dyn Fn(&KernelReflection) -> Option<u32>) -> Result<CudaSource, Error> {
    let unit = reflect(source)?;
    let names: Vec<String> = unit.reflections.iter().map(|kernel| symbol(&kernel.name)).collect();
    for (index, name) in names.iter().enumerate() {
        if names[..index].contains(name) {
            let (file, line) = unit.reflections[index].at;
            let message = format!("entry name {name} is used twice");
            return Err(Error::Syntax { file: source.name(file).to_string(), line, message });
        }
    }
    let text = format!("{}{}{}", shim(Target::Cuda), body(&unit, Target::Cuda), cuda_entries(&unit, &names, threads));
    let entries =
        names.into_iter().zip(unit.reflections).map(|(symbol, kernel)| CudaEntry { symbol, kernel }).collect();
    Ok(CudaSource { text, entries })
}

fn symbol(name: &str) -> String {
    let mut text: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    if text.starts_with(|c: char| c.is_ascii_digit()) {
        text.insert(0, '_');
    }
    text
}
