//! Finding the GPU: its limits, its queue, and the matrix route it runs.

use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_foundation::{NSError, NSProcessInfo, NSString};
use objc2_metal::{
    MTLCommandQueue, MTLCompileOptions, MTLCreateSystemDefaultDevice, MTLDevice, MTLFence, MTLGPUFamily,
    MTLLanguageVersion, MTLLibrary, MTLMathMode,
};

use lily_model::device::DeviceError;

use super::super::budget::Limits;
use super::super::choice::{self, Choice, Hardware};
use super::super::{NAME, failed};
use crate::route::MatrixRoute;

/// Newest GPU family asked for; a later GPU also supports it.
const NEWEST_FAMILY: u32 = 12;

/// A Mac's GPU with the queue and the fence that all work goes through.
pub(super) struct Gpu {
    pub device: Retained<ProtocolObject<dyn MTLDevice>>,
    pub queue: Retained<ProtocolObject<dyn MTLCommandQueue>>,
    /// Orders encoders: buffers are untracked, so that nothing else does.
    pub fence: Retained<ProtocolObject<dyn MTLFence>>,
    pub limits: Limits,
    pub choice: Choice,
    pub hardware: Hardware,
    pub name: String,
}

impl Gpu {
    /// The system's GPU and the route for it.
    pub fn open(wanted: Option<MatrixRoute>) -> Result<Self, DeviceError> {
        let device = MTLCreateSystemDefaultDevice().ok_or_else(|| DeviceError::Unsupported {
            device: NAME,
            what: "GPU".into(),
            value: "missing".into(),
            accepted: "a Mac with Apple silicon".into(),
        })?;
        let family = (1..=NEWEST_FAMILY).rev().find(|&n| device.supportsFamily(MTLGPUFamily(1000 + n as isize)));
        let version = NSProcessInfo::processInfo().operatingSystemVersion();
        let hardware =
            Hardware { family: family.unwrap_or(0), macos: (version.majorVersion as u32, version.minorVersion as u32) };
        let choice = choice::choose(hardware, wanted, || {
            library(&device, choice::PROBE, MatrixRoute::Tensor.metal_version()).map(drop).map_err(|e| words(&e))
        })?;
        let name = device.name().to_string();
        let limits = Limits {
            working_set: device.recommendedMaxWorkingSetSize(),
            max_buffer: device.maxBufferLength() as u64,
            page: system_page(),
        };
        let queue = device.newCommandQueue().ok_or_else(|| failed("command queue", "there is none"))?;
        let fence = device.newFence().ok_or_else(|| failed("fence", "there is none"))?;
        Ok(Gpu { device, queue, fence, limits, choice, hardware, name })
    }
}

/// Compiles a source. The language version is always given: the default is that of the SDK the program was built with.
pub(super) fn library(
    device: &ProtocolObject<dyn MTLDevice>,
    text: &str,
    metal_version: u32,
) -> Result<Retained<ProtocolObject<dyn MTLLibrary>>, Retained<NSError>> {
    let options = MTLCompileOptions::new();
    let (major, minor) = (metal_version as usize / 100, metal_version as usize % 100 / 10);
    options.setLanguageVersion(MTLLanguageVersion((major << 16) + minor));
    // Sums in the order they are written, infinities and NaN as they are: fast math gains 1 to 2 % and flips tokens.
    options.setMathMode(MTLMathMode::Safe);
    device.newLibraryWithSource_options_error(&NSString::from_str(text), Some(&options))
}

/// What an error says.
pub(super) fn words(error: &NSError) -> String {
    error.localizedDescription().to_string()
}

/// Bytes of a page of the operating system.
fn system_page() -> u64 {
    unsafe extern "C" {
        fn getpagesize() -> i32;
    }
    // SAFETY: a POSIX function without arguments.
    u64::from(unsafe { getpagesize() }.unsigned_abs())
}
