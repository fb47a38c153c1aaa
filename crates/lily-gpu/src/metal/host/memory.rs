//! Buffers: memory of their own, or pages of a mapped shard used in place. All are shared with the CPU (the memory is the
//! same) and untracked (barriers and the fence order what is done to them).

use std::ffi::c_void;
use std::ptr::NonNull;

use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_metal::{MTLBuffer, MTLDevice, MTLResourceOptions};

use lily_model::device::DeviceError;

use super::super::NAME;
use crate::driver::Memory;

/// A buffer.
pub(super) struct Buffer {
    pub raw: Retained<ProtocolObject<dyn MTLBuffer>>,
    pub bytes: u64,
}

/// What a buffer holds at first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Contents {
    /// Zeros.
    Zeros,
    /// Anything.
    Undefined,
}

impl From<Memory> for Contents {
    fn from(memory: Memory) -> Self {
        match memory {
            Memory::State | Memory::Upload => Contents::Zeros,
            Memory::Scratch | Memory::Pages | Memory::Download => Contents::Undefined,
        }
    }
}

fn options() -> MTLResourceOptions {
    MTLResourceOptions::StorageModeShared | MTLResourceOptions::HazardTrackingModeUntracked
}

fn out_of_memory(device: &ProtocolObject<dyn MTLDevice>, name: &str, bytes: u64) -> DeviceError {
    let limit = device.recommendedMaxWorkingSetSize();
    let available = limit.saturating_sub(device.currentAllocatedSize() as u64);
    DeviceError::OutOfMemory { device: NAME, what: name.into(), needed: bytes, available }
}

impl Buffer {
    /// Memory of its own.
    pub fn new(
        device: &ProtocolObject<dyn MTLDevice>,
        name: &str,
        bytes: u64,
        contents: Contents,
    ) -> Result<Self, DeviceError> {
        let raw = device
            .newBufferWithLength_options(bytes as usize, options())
            .ok_or_else(|| out_of_memory(device, name, bytes))?;
        let buffer = Buffer { raw, bytes };
        if contents == Contents::Zeros {
            // SAFETY: the buffer is `bytes` long and nothing uses it yet.
            unsafe { buffer.contents().write_bytes(0, bytes as usize) };
        }
        Ok(buffer)
    }

    /// Pages of the process used in place.
    ///
    /// # Safety
    /// The pages stay mapped as long as the buffer lives, and kernels only read them.
    pub unsafe fn in_place(
        device: &ProtocolObject<dyn MTLDevice>,
        name: &str,
        pages: std::ops::Range<u64>,
    ) -> Result<Self, DeviceError> {
        let bytes = pages.end - pages.start;
        let none = || out_of_memory(device, name, bytes);
        let pointer = NonNull::new(pages.start as *mut c_void).ok_or_else(none)?;
        // SAFETY: the caller keeps the pages; without a deallocator nothing else happens to them.
        let raw = unsafe {
            device.newBufferWithBytesNoCopy_length_options_deallocator(pointer, bytes as usize, options(), None)
        };
        Ok(Buffer { raw: raw.ok_or_else(none)?, bytes })
    }

    fn contents(&self) -> *mut u8 {
        self.raw.contents().as_ptr().cast()
    }

    /// Writes from `offset` on; the range lies in the buffer, and no unfinished work touches it.
    pub fn write(&self, offset: u64, bytes: &[u8]) {
        assert!(offset + bytes.len() as u64 <= self.bytes, "{} bytes at {offset} of {}", bytes.len(), self.bytes);
        // SAFETY: the range was checked, `bytes` is other memory.
        unsafe { self.contents().add(offset as usize).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    /// Reads from `offset` on; the range lies in the buffer, and no unfinished work writes it.
    pub fn read(&self, offset: u64, bytes: &mut [u8]) {
        assert!(offset + bytes.len() as u64 <= self.bytes, "{} bytes at {offset} of {}", bytes.len(), self.bytes);
        // SAFETY: the range was checked, `bytes` is other memory.
        unsafe { bytes.as_mut_ptr().copy_from_nonoverlapping(self.contents().add(offset as usize), bytes.len()) };
    }
}
