//! The CUDA driver API behind types that free what they hold and errors that say which call failed.
//!
//! Everything runs in the primary context of one device. Nothing here knows kernels or models.

use std::ffi::{CStr, CString, c_void};
use std::ptr;

use cudarc::driver::sys;
use lily_model::device::DeviceError;

/// Name of the device in messages.
pub const NAME: &str = "cuda";

/// Driver version (major * 1000 + minor * 10) from which on every call used here is there.
pub const LEAST_DRIVER: i32 = 12080;

/// An error of a driver call.
pub fn failed(op: &str, reason: impl Into<String>) -> DeviceError {
    DeviceError::Failed { device: NAME, op: op.to_string(), reason: reason.into() }
}

/// Turns a status into an error that names the call.
pub fn check(op: &str, status: sys::CUresult) -> Result<(), DeviceError> {
    if status == sys::CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let mut text = ptr::null();
    // SAFETY: `text` is set to a static string or left null.
    let words = unsafe {
        sys::cuGetErrorString(status, &mut text);
        if text.is_null() { String::new() } else { CStr::from_ptr(text).to_string_lossy().into_owned() }
    };
    let lost = match status {
        sys::CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
        | sys::CUresult::CUDA_ERROR_LAUNCH_FAILED
        | sys::CUresult::CUDA_ERROR_ECC_UNCORRECTABLE
        | sys::CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR => "; the device is lost to this process, start it again",
        _ => "",
    };
    Err(failed(op, format!("{status:?}: {words}{lost}")))
}

/// A device and its primary context, current on the thread that asked for it.
#[derive(Debug)]
pub struct Context {
    device: sys::CUdevice,
    context: sys::CUcontext,
}

// SAFETY: a context may be used from any thread that makes it current; see `make_current`.
unsafe impl Send for Context {}
// SAFETY: as above; the driver API is thread-safe.
unsafe impl Sync for Context {}

/// Finds device `index`, without making anything of it.
///
/// # Errors
/// No driver, a driver older than [`LEAST_DRIVER`], or no such device.
fn find(index: i32) -> Result<sys::CUdevice, DeviceError> {
    let unsupported = |what: &str, value: String, accepted: &str| DeviceError::Unsupported {
        device: NAME,
        what: what.into(),
        value,
        accepted: accepted.into(),
    };
    // SAFETY: looks for a library by name, no more.
    if !unsafe { sys::is_culib_present() } {
        return Err(unsupported("NVIDIA driver", "not installed".into(), "libcuda.so of driver 570 or later"));
    }
    let (mut version, mut count, mut device) = (0, 0, 0);
    // SAFETY: the calls write one integer each.
    unsafe {
        check("cuInit", sys::cuInit(0))?;
        check("cuDriverGetVersion", sys::cuDriverGetVersion(&mut version))?;
        check("cuDeviceGetCount", sys::cuDeviceGetCount(&mut count))?;
    }
    if version < LEAST_DRIVER {
        let text = format!("for CUDA {}.{}", version / 1000, version % 1000 / 10);
        return Err(unsupported("NVIDIA driver", text, "CUDA 12.8 or later"));
    }
    if index >= count {
        return Err(unsupported("number of NVIDIA GPUs", count.to_string(), "at least 1"));
    }
    // SAFETY: writes one handle.
    check("cuDeviceGet", unsafe { sys::cuDeviceGet(&mut device, index) })?;
    Ok(device)
}

fn attribute_of(device: sys::CUdevice, attribute: sys::CUdevice_attribute) -> Result<i32, DeviceError> {
    let mut value = 0;
    // SAFETY: writes one integer.
    check("cuDeviceGetAttribute", unsafe { sys::cuDeviceGetAttribute(&mut value, attribute, device) })?;
    Ok(value)
}

fn capability_of(device: sys::CUdevice) -> Result<u32, DeviceError> {
    use sys::CUdevice_attribute as A;
    let major = attribute_of(device, A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = attribute_of(device, A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    Ok((major * 10 + minor) as u32)
}

/// Compute capability of device `index`, major * 10 + minor.
///
/// # Errors
/// As [`Context::open`].
pub fn capability(index: i32) -> Result<u32, DeviceError> {
    capability_of(find(index)?)
}

impl Context {
    /// Opens device `index`.
    ///
    /// # Errors
    /// No driver, a driver older than [`LEAST_DRIVER`], or no such device.
    pub fn open(index: i32) -> Result<Self, DeviceError> {
        let device = find(index)?;
        let mut context = ptr::null_mut();
        // SAFETY: writes one handle.
        check("cuDevicePrimaryCtxRetain", unsafe { sys::cuDevicePrimaryCtxRetain(&mut context, device) })?;
        let context = Context { device, context };
        context.make_current()?;
        Ok(context)
    }

    /// Makes the context current on the calling thread.
    pub fn make_current(&self) -> Result<(), DeviceError> {
        // SAFETY: the context is retained as long as `self` lives.
        check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(self.context) })
    }

    /// Name of the hardware.
    pub fn hardware(&self) -> Result<String, DeviceError> {
        let mut name = [0 as std::ffi::c_char; 128];
        // SAFETY: writes a terminated string of at most the length given.
        unsafe {
            check("cuDeviceGetName", sys::cuDeviceGetName(name.as_mut_ptr(), name.len() as i32, self.device))?;
            Ok(CStr::from_ptr(name.as_ptr()).to_string_lossy().into_owned())
        }
    }

    /// Compute capability, major * 10 + minor.
    pub fn capability(&self) -> Result<u32, DeviceError> {
        capability_of(self.device)
    }

    /// Streaming multiprocessors.
    pub fn multiprocessors(&self) -> Result<u32, DeviceError> {
        let attribute = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
        Ok(attribute_of(self.device, attribute)? as u32)
    }

    /// Bytes that are free, and bytes in all.
    pub fn memory(&self) -> Result<(u64, u64), DeviceError> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: writes two integers.
        check("cuMemGetInfo", unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) })?;
        Ok((free as u64, total as u64))
    }

    /// Waits for everything.
    pub fn synchronize(&self) -> Result<(), DeviceError> {
        // SAFETY: no arguments.
        check("cuCtxSynchronize", unsafe { sys::cuCtxSynchronize() })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: balances the retain of `open`.
        unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}

/// Device memory.
#[derive(Debug)]
pub struct DeviceBuffer {
    /// First byte, as kernels see it.
    pub address: u64,
    /// Bytes.
    pub bytes: u64,
}

impl DeviceBuffer {
    /// Takes `bytes` bytes; `what` is for the message when there are not so many.
    pub fn new(context: &Context, what: &str, bytes: u64) -> Result<Self, DeviceError> {
        let mut address = 0;
        // SAFETY: writes one address.
        let status = unsafe { sys::cuMemAlloc_v2(&mut address, bytes.max(1) as usize) };
        if status == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            let available = context.memory()?.0;
            return Err(DeviceError::OutOfMemory { device: NAME, what: what.into(), needed: bytes, available });
        }
        check("cuMemAlloc", status)?;
        Ok(DeviceBuffer { address, bytes })
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        // SAFETY: allocated by `new`, freed once. A failure means the context is gone, and the memory with it.
        unsafe { sys::cuMemFree_v2(self.address) };
    }
}

/// Page-locked host memory, which copies read and write without a detour.
#[derive(Debug)]
pub struct HostBuffer {
    start: *mut u8,
    bytes: usize,
}

// SAFETY: plain memory, owned.
unsafe impl Send for HostBuffer {}

impl HostBuffer {
    /// Takes `bytes` bytes of zeros.
    pub fn new(bytes: usize) -> Result<Self, DeviceError> {
        let mut start: *mut c_void = ptr::null_mut();
        // SAFETY: writes one pointer; the memory is zeroed before anybody sees it.
        unsafe {
            check("cuMemHostAlloc", sys::cuMemHostAlloc(&mut start, bytes.max(1), 0))?;
            ptr::write_bytes(start.cast::<u8>(), 0, bytes.max(1));
        }
        Ok(HostBuffer { start: start.cast(), bytes })
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `new` allocated and initialized them.
        unsafe { std::slice::from_raw_parts(self.start, self.bytes) }
    }

    /// The bytes, to write.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as `bytes`, and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.bytes) }
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        // SAFETY: allocated by `new`, freed once.
        unsafe { sys::cuMemFreeHost(self.start.cast()) };
    }
}

/// A queue of work.
#[derive(Debug)]
pub struct Stream(pub sys::CUstream);

// SAFETY: the driver API is thread-safe.
unsafe impl Send for Stream {}

impl Stream {
    /// A queue that waits for no other.
    pub fn new() -> Result<Self, DeviceError> {
        let mut stream = ptr::null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: writes one handle.
        check("cuStreamCreate", unsafe { sys::cuStreamCreate(&mut stream, flags) })?;
        Ok(Stream(stream))
    }

    /// Waits for all its work.
    pub fn synchronize(&self, op: &str) -> Result<(), DeviceError> {
        // SAFETY: the handle is live.
        check(op, unsafe { sys::cuStreamSynchronize(self.0) })
    }

    /// Copies page-locked memory to the device; the bytes stay as they are until the copy is done.
    ///
    /// # Safety
    /// `from` outlives the copy and is not written before it is done; `to` has room.
    pub unsafe fn upload(&self, to: u64, from: &[u8]) -> Result<(), DeviceError> {
        // SAFETY: by contract.
        check("copy to the device", unsafe { sys::cuMemcpyHtoDAsync_v2(to, from.as_ptr().cast(), from.len(), self.0) })
    }

    /// Copies device memory to the host and waits for it.
    pub fn download(&self, to: &mut [u8], from: u64) -> Result<(), DeviceError> {
        // SAFETY: `to` is borrowed until the copy is done.
        check("copy from the device", unsafe {
            sys::cuMemcpyDtoHAsync_v2(to.as_mut_ptr().cast(), from, to.len(), self.0)
        })?;
        self.synchronize("copy from the device")
    }

    /// Copies within the device.
    pub fn copy(&self, to: u64, from: u64, bytes: u64) -> Result<(), DeviceError> {
        // SAFETY: addresses of live device buffers, by the callers' bookkeeping.
        check("copy on the device", unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes as usize, self.0) })
    }

    /// Fills with zeros.
    pub fn clear(&self, at: u64, bytes: u64) -> Result<(), DeviceError> {
        // SAFETY: as `copy`.
        check("fill on the device", unsafe { sys::cuMemsetD8Async(at, 0, bytes as usize, self.0) })
    }

    /// Makes later work wait for an event.
    pub fn wait_for(&self, event: &Event) -> Result<(), DeviceError> {
        // SAFETY: both handles are live.
        check("cuStreamWaitEvent", unsafe { sys::cuStreamWaitEvent(self.0, event.0, 0) })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: created by `new`, destroyed once.
        unsafe { sys::cuStreamDestroy_v2(self.0) };
    }
}

/// A point in a queue.
#[derive(Debug)]
pub struct Event(sys::CUevent);

// SAFETY: the driver API is thread-safe.
unsafe impl Send for Event {}

impl Event {
    /// An event; with [`Timing::Timed`] it can be subtracted from another.
    pub fn new(timing: Timing) -> Result<Self, DeviceError> {
        let flags = match timing {
            Timing::Timed => 0,
            Timing::Untimed => sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32,
        };
        let mut event = ptr::null_mut();
        // SAFETY: writes one handle.
        check("cuEventCreate", unsafe { sys::cuEventCreate(&mut event, flags) })?;
        Ok(Event(event))
    }

    /// Marks the end of the work submitted so far.
    pub fn record(&self, stream: &Stream) -> Result<(), DeviceError> {
        // SAFETY: both handles are live.
        check("cuEventRecord", unsafe { sys::cuEventRecord(self.0, stream.0) })
    }

    /// Waits until the marked work is done. An error of that work shows here.
    pub fn wait(&self, op: &str) -> Result<(), DeviceError> {
        // SAFETY: the handle is live.
        check(op, unsafe { sys::cuEventSynchronize(self.0) })
    }

    /// Microseconds from `earlier` to this; both are done and timed.
    pub fn since(&self, earlier: &Event) -> Result<f64, DeviceError> {
        let mut milliseconds = 0.0;
        // SAFETY: both handles are live.
        check("cuEventElapsedTime", unsafe { sys::cuEventElapsedTime_v2(&mut milliseconds, earlier.0, self.0) })?;
        Ok(f64::from(milliseconds) * 1000.0)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: created by `new`, destroyed once.
        unsafe { sys::cuEventDestroy_v2(self.0) };
    }
}

/// Whether an event keeps the time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Timing {
    /// It does.
    Timed,
    /// It does not, and is cheaper.
    Untimed,
}

/// Compiled kernels.
#[derive(Debug)]
pub struct Module(sys::CUmodule);

// SAFETY: the driver API is thread-safe.
unsafe impl Send for Module {}

/// A kernel of a [`Module`] that is loaded.
#[derive(Debug, Clone, Copy)]
pub struct Function(pub sys::CUfunction);

// SAFETY: a handle; its module lives in the same driver.
unsafe impl Send for Function {}

impl Module {
    /// Loads machine code.
    pub fn load(image: &[u8]) -> Result<Self, DeviceError> {
        let mut module = ptr::null_mut();
        // SAFETY: `image` is a complete cubin; the driver checks its header.
        check("loading of kernels", unsafe { sys::cuModuleLoadData(&mut module, image.as_ptr().cast()) })?;
        Ok(Module(module))
    }

    /// A kernel, with leave to use `shared` bytes of dynamic shared memory.
    pub fn function(&self, name: &str, shared: u32) -> Result<Function, DeviceError> {
        let text = CString::new(name).map_err(|e| failed(name, e.to_string()))?;
        let mut function = ptr::null_mut();
        // SAFETY: writes one handle; the module is live.
        check(name, unsafe { sys::cuModuleGetFunction(&mut function, self.0, text.as_ptr()) })?;
        if shared > 0 {
            let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the handle is live.
            check(name, unsafe { sys::cuFuncSetAttribute(function, attribute, shared as i32) })?;
        }
        Ok(Function(function))
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: loaded by `load`, unloaded once, after the graphs that use it.
        unsafe { sys::cuModuleUnload(self.0) };
    }
}
