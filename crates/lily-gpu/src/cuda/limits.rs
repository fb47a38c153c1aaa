//! What the GPU could do, measured: to set speeds beside.

use lily_model::device::DeviceError;

use super::api::{Context, DeviceBuffer, Event, Module, NAME, Stream, Timing};
use super::compile::{Unit, machine_code};
use super::graph::{Graph, Launch, Waiting};
use super::native::Shape;

/// Text of the kernels.
pub const SOURCE: &str = concat!(
    include_str!("../../kernels/cuda/types.cu"),
    include_str!("../../kernels/cuda/wgmma.cu"),
    include_str!("../../kernels/cuda/limits.cu")
);

/// What a GPU reaches.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Bytes read from its memory a second.
    pub bandwidth: f64,
    /// Operations (two a multiply-add) of bf16 matrix products a second, summed in f32.
    pub matrix_peak: f64,
}

const READ_BYTES: u64 = 2 << 30;
const ROUNDS: u64 = 4096;
const PRODUCT_SHARED: u32 = 49 << 10;

/// Measures the limits of GPU 0 in a few milliseconds; takes 2 GiB of its memory meanwhile.
///
/// # Errors
/// No GPU of compute capability 9.0, too little memory, or no compiler.
pub fn limits() -> Result<Limits, DeviceError> {
    let context = Context::open(0)?;
    let capability = context.capability()?;
    if capability != super::native::CAPABILITY {
        return Err(DeviceError::Unsupported {
            device: NAME,
            what: "compute capability, for measuring the limits".into(),
            value: format!("{}.{}", capability / 10, capability % 10),
            accepted: "9.0; elsewhere give --bandwidth and --matrix-peak".into(),
        });
    }
    let code = machine_code(&unit())?;
    let module = Module::load(&code)?;
    let stream = Stream::new()?;
    let processors = context.multiprocessors()?;
    let data = DeviceBuffer::new(&context, "measuring the bandwidth", READ_BYTES)?;
    stream.clear(data.address, data.bytes)?;
    let never = DeviceBuffer::new(&context, "measuring the limits", 256)?;
    let read = Launch::new(
        module.function("limits_read", 0)?,
        Shape { grid: [processors * 4, 1, 1], threads: 512 },
        0,
        vec![data.address, READ_BYTES / 16, never.address],
    );
    let products = Launch::new(
        module.function("limits_products", PRODUCT_SHARED)?,
        Shape { grid: [processors, 1, 1], threads: 256 },
        PRODUCT_SHARED,
        vec![ROUNDS, never.address],
    );
    let operations = f64::from(processors) * 2.0 * ROUNDS as f64 * 4.0 * (2 * 64 * 256 * 16) as f64;
    Ok(Limits {
        bandwidth: READ_BYTES as f64 / seconds(&stream, read)?,
        matrix_peak: operations / seconds(&stream, products)?,
    })
}

/// What is compiled.
pub fn unit() -> Unit {
    Unit {
        name: "kernels that measure the limits".into(),
        text: SOURCE.into(),
        architecture: format!("sm_{}a", super::native::CAPABILITY),
        options: vec!["-default-device".into(), "-std=c++20".into()],
    }
}

/// Seconds of the fastest of some launches.
fn seconds(stream: &Stream, launch: Launch) -> Result<f64, DeviceError> {
    let graph = Graph::new(&[launch], &[Vec::new()], Waiting::Full)?;
    let (start, end) = (Event::new(Timing::Timed)?, Event::new(Timing::Timed)?);
    let mut best = f64::INFINITY;
    for _ in 0..6 {
        start.record(stream)?;
        graph.launch(stream)?;
        end.record(stream)?;
        end.wait("measuring the limits")?;
        best = best.min(end.since(&start)? / 1e6);
    }
    Ok(best)
}
