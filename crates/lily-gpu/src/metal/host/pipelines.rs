//! Pipelines: sources to libraries, kernels to pipelines on several threads, and the archive that keeps compiled code
//! between runs.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_foundation::{NSArray, NSString, NSURL};
use objc2_metal::{
    MTLBinaryArchive, MTLBinaryArchiveDescriptor, MTLComputePipelineDescriptor, MTLComputePipelineState, MTLDevice,
    MTLLibrary, MTLPipelineOption,
};

use lily_model::device::DeviceError;

use super::super::{NAME, failed, messages};
use super::MetalOptions;
use super::gpu::{Gpu, library, words};
use crate::source::LibrarySource;

/// Lanes of a simdgroup that the kernels are written for.
const LANES: usize = 32;

/// A kernel ready to run.
pub(super) struct Pipeline {
    pub raw: Retained<ProtocolObject<dyn MTLComputePipelineState>>,
    /// Most threads of a threadgroup.
    pub max_threads: usize,
}

/// A reference that several threads use.
struct Shared<T>(T);
// SAFETY: Metal's devices, libraries, functions, archives and pipeline states may be used from any thread; an archive is
// only looked into while several threads have it.
unsafe impl<T> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Shared<T> {}

type Library = Retained<ProtocolObject<dyn MTLLibrary>>;
type BinaryArchive = Retained<ProtocolObject<dyn MTLBinaryArchive>>;

/// Compiles every kernel of every source: `[source][kernel]`.
pub(super) fn compile(
    gpu: &Gpu,
    options: &MetalOptions,
    sources: &[LibrarySource],
    kernels: &[&'static str],
) -> Result<Vec<Vec<Pipeline>>, DeviceError> {
    let libraries = parallel(
        sources.len(),
        |index| {
            let source = &sources[index];
            library(&gpu.device, &source.text(), source.metal_version)
                .map(Shared)
                .map_err(|error| failed("compilation", messages::with_places(source, &words(&error))))
        },
        &mut |_| {},
    )?;
    let archive = options.archives.as_deref().map(|folder| Archive::open(gpu, folder, sources, kernels)).transpose()?;
    let total = sources.len() * kernels.len();
    let device = Shared(&*gpu.device);
    let lookup = archive.as_ref().map(|archive| Shared(&*archive.raw));
    let lookup = lookup.as_ref();
    let pipelines = parallel(
        total,
        |index| {
            let (device, lookup) = (&device, lookup);
            let (source, kernel) = (index / kernels.len(), kernels[index % kernels.len()]);
            let descriptor = descriptor(&libraries[source].0, kernel, lookup.map(|archive| archive.0))?;
            pipeline(device.0, &descriptor, kernel).map(Shared)
        },
        &mut |done| {
            if let Some(report) = &options.progress {
                report(done, total);
            }
        },
    )?;
    if let Some(archive) = archive.filter(|archive| archive.is_new) {
        archive.keep(&libraries, kernels);
    }
    let mut pipelines = pipelines.into_iter().map(|pipeline| pipeline.0);
    Ok(sources.iter().map(|_| pipelines.by_ref().take(kernels.len()).collect()).collect())
}

fn descriptor(
    library: &Library,
    kernel: &str,
    archive: Option<&ProtocolObject<dyn MTLBinaryArchive>>,
) -> Result<Retained<MTLComputePipelineDescriptor>, DeviceError> {
    let name = NSString::from_str(kernel);
    let function = library.newFunctionWithName(&name);
    let function = function.ok_or_else(|| failed("compilation", format!("the library has no kernel {kernel}")))?;
    let descriptor = MTLComputePipelineDescriptor::new();
    descriptor.setLabel(Some(&name));
    descriptor.setComputeFunction(Some(&function));
    if let Some(archive) = archive {
        descriptor.setBinaryArchives(Some(&NSArray::from_slice(&[archive])));
    }
    Ok(descriptor)
}

fn pipeline(
    device: &ProtocolObject<dyn MTLDevice>,
    descriptor: &MTLComputePipelineDescriptor,
    kernel: &str,
) -> Result<Pipeline, DeviceError> {
    let raw = device
        .newComputePipelineStateWithDescriptor_options_reflection_error(descriptor, MTLPipelineOption::None, None)
        .map_err(|error| failed(&format!("compilation of {kernel}"), words(&error)))?;
    let lanes = raw.threadExecutionWidth();
    if lanes != LANES {
        let (what, value) = (format!("simdgroup of kernel {kernel}"), format!("{lanes} lanes"));
        return Err(DeviceError::Unsupported { device: NAME, what, value, accepted: format!("{LANES} lanes") });
    }
    let max_threads = raw.maxTotalThreadsPerThreadgroup();
    Ok(Pipeline { raw, max_threads })
}

/// Runs `task` for 0..`count` on as many threads as there are cores; results in order, or the first error.
fn parallel<T: Send>(
    count: usize,
    task: impl Fn(usize) -> Result<T, DeviceError> + Sync,
    done: &mut dyn FnMut(usize),
) -> Result<Vec<T>, DeviceError> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(count);
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<Option<Result<T, DeviceError>>>> = Mutex::new((0..count).map(|_| None).collect());
    let (told, heard) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let (next, results, task, told) = (&next, &results, &task, told.clone());
            scope.spawn(move || {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= count {
                        return;
                    }
                    let result = autoreleasepool(|_| task(index));
                    results.lock().unwrap_or_else(PoisonError::into_inner)[index] = Some(result);
                    let _ = told.send(());
                }
            });
        }
        drop(told);
        for (finished, ()) in heard.iter().enumerate() {
            done(finished + 1);
        }
    });
    results.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter().flatten().collect()
}

/// Compiled code on disk. It belongs to these sources, this GPU and this system.
struct Archive {
    raw: BinaryArchive,
    path: PathBuf,
    is_new: bool,
}

impl Archive {
    /// The archive of these sources: from disk, or a new one where there is none that the system takes.
    fn open(
        gpu: &Gpu,
        folder: &Path,
        sources: &[LibrarySource],
        kernels: &[&'static str],
    ) -> Result<Self, DeviceError> {
        let mut hasher = DefaultHasher::new();
        for source in sources {
            (source.text(), source.metal_version).hash(&mut hasher);
        }
        (kernels, &gpu.name, gpu.hardware.macos).hash(&mut hasher);
        let path = folder.join(format!("kernels-{:016x}.metalarchive", hasher.finish()));
        if path.is_file() {
            let descriptor = MTLBinaryArchiveDescriptor::new();
            descriptor.setUrl(Some(&url(&path)));
            match gpu.device.newBinaryArchiveWithDescriptor_error(&descriptor) {
                Ok(raw) => return Ok(Archive { raw, path, is_new: false }),
                Err(error) => {
                    tracing::warn!(path = %path.display(), error = words(&error), "compiled kernels are made anew");
                }
            }
        }
        let raw = gpu.device.newBinaryArchiveWithDescriptor_error(&MTLBinaryArchiveDescriptor::new());
        let raw = raw.map_err(|error| failed("archive of compiled kernels", words(&error)))?;
        Ok(Archive { raw, path, is_new: true })
    }

    /// Writes every kernel to disk. A disk that takes none costs the next start time, nothing else.
    fn keep(&self, libraries: &[Shared<Library>], kernels: &[&'static str]) {
        if let Err(reason) = self.try_keep(libraries, kernels) {
            tracing::warn!(path = %self.path.display(), reason, "compiled kernels were not kept");
        }
    }

    fn try_keep(&self, libraries: &[Shared<Library>], kernels: &[&'static str]) -> Result<(), String> {
        for library in libraries {
            for kernel in kernels {
                let descriptor = descriptor(&library.0, kernel, None).map_err(|error| error.to_string())?;
                let added = self.raw.addComputePipelineFunctionsWithDescriptor_error(&descriptor);
                added.map_err(|error| words(&error))?;
            }
        }
        let folder = self.path.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(folder).map_err(|error| error.to_string())?;
        // Under another name first: another process may be reading, or writing the same.
        let partial = self.path.with_extension(format!("{}.partial", std::process::id()));
        self.raw.serializeToURL_error(&url(&partial)).map_err(|error| words(&error))?;
        std::fs::rename(&partial, &self.path).map_err(|error| error.to_string())
    }
}

fn url(path: &Path) -> Retained<NSURL> {
    NSURL::fileURLWithPath(&NSString::from_str(&path.to_string_lossy()))
}
