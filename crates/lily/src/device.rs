//! Which device computes, and how large it is made.

use std::sync::Arc;

use anyhow::bail;
use lily_cpu::{CpuDevice, CpuOptions, Precision};
use lily_gpu::cuda::{Cuda, CudaOptions};
use lily_gpu::{Emulated, EmulatedOptions, GpuDevice};
use lily_model::checkpoint::Checkpoint;
use lily_model::device::{Capacity, Device};
use lily_model::graph::Plan;

use crate::cli::{DeviceKind, ModelOptions, upload_progress};

/// Most rows of a prefill step: enough to use every byte of a weight many times, few enough to stay in a processor's caches
/// or, on a GPU, to keep a running stream waiting no longer than a few hundred milliseconds.
pub fn prefill_rows(device: DeviceKind, precision: Precision) -> usize {
    match resolved(device, precision) {
        DeviceKind::Cuda => 4096,
        DeviceKind::Metal => 2048,
        DeviceKind::Auto | DeviceKind::Cpu | DeviceKind::Emulated => 512,
    }
}

/// Threads for each processor that are let be: tests of the pool use more than there are.
const MOST_THREADS_A_PROCESSOR: usize = 4;

/// What a device must hold.
#[derive(Debug, Clone, Copy)]
pub struct Demand {
    /// Sequences that decode together.
    pub parallel: usize,
    /// Most rows of a prefill step.
    pub prefill_rows: usize,
    /// Bytes for keys and values of running sequences; `None` = as much as `parallel` full sequences need.
    pub kv_bytes: Option<u64>,
    /// Bytes for the prefix cache.
    pub cache_bytes: u64,
}

impl Demand {
    /// One sequence, no prefix cache.
    pub fn single(prefill_rows: usize) -> Self {
        Demand { parallel: 1, prefill_rows, kv_bytes: None, cache_bytes: 0 }
    }
}

/// Most tokens of a sequence: `--max-seq`, or what the model was made for.
pub fn max_seq(checkpoint: &Checkpoint, options: &ModelOptions) -> anyhow::Result<usize> {
    let most = checkpoint.model().config.max_position_embeddings;
    match options.max_seq {
        Some(wanted) if wanted as usize > most => {
            bail!("--max-seq is {wanted} (accepted: 1 to {most}, which the model was made for)")
        }
        Some(wanted) => Ok(wanted as usize),
        None => Ok(most),
    }
}

/// Sizes of the device for a model.
pub fn capacity(checkpoint: &Checkpoint, max_seq: usize, demand: Demand) -> Capacity {
    let config = &checkpoint.model().config;
    let page_bytes = page_bytes(checkpoint);
    let slot_bytes = config.recurrent_state_bytes() as u64;
    let a_sequence = max_seq.div_ceil(Plan::PAGE_TOKENS);
    let budget = demand.kv_bytes.map_or(usize::MAX, |bytes| (bytes / page_bytes) as usize);
    let running = (demand.parallel * a_sequence).min(budget).max(1);
    // Half of the cache's budget may go to snapshots, as many as fit; the rest of it holds pages.
    let snapshots = (demand.cache_bytes / 2 / slot_bytes.max(1)).min(1024) as usize;
    Capacity {
        slots: demand.parallel + snapshots,
        pages: running + (demand.cache_bytes / page_bytes) as usize,
        prefill_rows: demand.prefill_rows,
        decode_rows: demand.parallel,
        max_seq,
    }
}

/// Bytes of a page of keys and values in bf16.
pub fn page_bytes(checkpoint: &Checkpoint) -> u64 {
    (checkpoint.model().config.kv_bytes_per_token(2) * Plan::PAGE_TOKENS) as u64
}

/// What `--device` stands for on this machine: `auto` is the Mac's GPU, or the NVIDIA GPU where there is one, if the precision
/// is a GPU's; else the processor.
pub fn resolved(device: DeviceKind, precision: Precision) -> DeviceKind {
    match device {
        DeviceKind::Auto if precision == Precision::Fast && cfg!(target_os = "macos") => DeviceKind::Metal,
        DeviceKind::Auto if precision == Precision::Fast && lily_gpu::cuda::is_present() => DeviceKind::Cuda,
        DeviceKind::Auto => DeviceKind::Cpu,
        named => named,
    }
}

/// Makes the device that `--device` names. A device that this build lacks is an error, never another device.
pub fn open(
    checkpoint: Arc<Checkpoint>,
    options: &ModelOptions,
    precision: Precision,
    capacity: Capacity,
) -> anyhow::Result<Box<dyn Device>> {
    if precision == Precision::F32 && !matches!(options.device, DeviceKind::Auto | DeviceKind::Cpu) {
        bail!("--precision f32 is computed by the processor alone (accepted with it: --device auto, cpu)");
    }
    match resolved(options.device, precision) {
        DeviceKind::Auto | DeviceKind::Cpu => {
            let threads = options.threads.map_or(0, usize::from);
            let most = MOST_THREADS_A_PROCESSOR * std::thread::available_parallelism().map_or(1, usize::from);
            if threads > most {
                bail!("--threads is {threads} (accepted: 1 to {most}: threads wait for one another at every stage)");
            }
            Ok(Box::new(CpuDevice::new(checkpoint, CpuOptions { threads, precision, capacity })?))
        }
        DeviceKind::Metal => open_metal(checkpoint, capacity),
        DeviceKind::Cuda => {
            let driver = Cuda::new(CudaOptions { progress: Some(upload_progress()), ..CudaOptions::default() })?;
            Ok(Box::new(GpuDevice::new(driver, checkpoint, capacity)?))
        }
        DeviceKind::Emulated => {
            let driver = Emulated::new(EmulatedOptions::default());
            Ok(Box::new(GpuDevice::new(driver, checkpoint, capacity)?))
        }
    }
}

/// The Mac's GPU; compiled kernels are kept in the user's cache folder.
#[cfg(target_os = "macos")]
fn open_metal(checkpoint: Arc<Checkpoint>, capacity: Capacity) -> anyhow::Result<Box<dyn Device>> {
    use lily_gpu::metal::{self, MetalOptions};

    let bar = indicatif::ProgressBar::new(0);
    if !std::io::IsTerminal::is_terminal(&std::io::stderr()) {
        bar.set_draw_target(indicatif::ProgressDrawTarget::hidden());
    }
    bar.set_message("compiling kernels");
    let reported = bar.clone();
    let progress = Arc::new(move |done: usize, total: usize| {
        reported.set_length(total as u64);
        reported.set_position(done as u64);
    });
    let archives = std::env::home_dir().map(|home| home.join("Library/Caches/lily"));
    let device = metal::open(checkpoint, capacity, MetalOptions { route: None, archives, progress: Some(progress) });
    bar.finish_and_clear();
    Ok(Box::new(device?))
}

/// Metal is macOS's.
#[cfg(not(target_os = "macos"))]
fn open_metal(_checkpoint: Arc<Checkpoint>, _capacity: Capacity) -> anyhow::Result<Box<dyn Device>> {
    Err(no_metal())
}

/// Why there is no Metal here.
#[cfg(not(target_os = "macos"))]
pub fn no_metal() -> anyhow::Error {
    anyhow::anyhow!(
        "--device metal needs macOS on Apple silicon, and this program was built for {} (accepted: auto, cpu, cuda, \
         emulated)",
        std::env::consts::OS
    )
}

/// What a device could do, measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Bytes read from memory a second.
    pub bandwidth: f64,
    /// Operations of matrix products a second, in the form the device multiplies.
    pub matrix_peak: f64,
}

/// Measures the limits of a device, where that is known how.
pub fn limits(options: &ModelOptions) -> anyhow::Result<Option<Limits>> {
    match resolved(options.device, Precision::Fast) {
        DeviceKind::Auto | DeviceKind::Cpu => {
            let all = std::thread::available_parallelism().map_or(1, usize::from);
            let found = lily_cpu::limits(options.threads.map_or(all, usize::from));
            Ok(Some(Limits { bandwidth: found.bandwidth, matrix_peak: 2.0 * found.products }))
        }
        DeviceKind::Cuda if lily_gpu::cuda::measures_limits() => {
            let found = lily_gpu::cuda::limits()?;
            Ok(Some(Limits { bandwidth: found.bandwidth, matrix_peak: found.matrix_peak }))
        }
        DeviceKind::Cuda | DeviceKind::Metal | DeviceKind::Emulated => Ok(None),
    }
}
