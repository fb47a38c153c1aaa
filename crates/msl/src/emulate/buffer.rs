//! Buffers that kernels see: memory plus, for the checker, the history of each byte.
//!
//! A buffer either owns its bytes or borrows memory of the caller (a memory-mapped checkpoint, say), which is never
//! copied. History is kept per page of 4,096 bytes and only for pages a checked kernel touched.

use std::alloc::Layout;
use std::ffi::c_void;
use std::ops::Range;
use std::ptr::NonNull;

use super::abi::{self, HOST, PAGE, ShadowPage};

/// What the bytes of a buffer hold before the first kernel runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contents {
    /// Values the host wrote: reading is fine.
    HostWritten,
    /// Nothing yet: the checker reports a read before a write.
    Undefined,
    /// Values that no kernel may write, such as mapped weights. No history is kept.
    ReadOnly,
}

/// Distance kept free on both sides of an owned buffer, so that a small overrun never lands in another buffer.
const MARGIN: usize = 16 * 1024;

/// Memory a kernel can be bound to.
///
/// Like device memory it is written through shared references while a pass runs; the caller keeps host access
/// ([`EmulatedBuffer::write`], [`EmulatedBuffer::bytes`]) and passes over the same buffer apart in time.
#[derive(Debug)]
pub struct EmulatedBuffer {
    base: NonNull<u8>,
    len: usize,
    owned: Option<(NonNull<u8>, Layout)>,
    shadow: NonNull<abi::Shadow>,
    pages: usize,
}

// SAFETY: the buffer owns its shadow; access to bytes and shadow is ordered by the caller as the type's docs demand.
unsafe impl Send for EmulatedBuffer {}
// SAFETY: see above; shared references give out raw memory the way a GPU buffer does.
unsafe impl Sync for EmulatedBuffer {}

impl EmulatedBuffer {
    /// An owned buffer of `len` bytes, all 0xFF (NaN as a float) and undefined to the checker.
    pub fn undefined(len: usize) -> Self {
        let buffer = Self::owned(len, Contents::Undefined);
        // SAFETY: the allocation is at least `len` bytes from `base` and nobody else has it yet.
        unsafe { std::ptr::write_bytes(buffer.base.as_ptr(), 0xff, len) };
        buffer
    }

    /// An owned buffer of `len` zero bytes, written by the host.
    pub fn zeroed(len: usize) -> Self {
        Self::owned(len, Contents::HostWritten)
    }

    /// An owned copy of `bytes`.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let buffer = Self::owned(bytes.len(), Contents::HostWritten);
        // SAFETY: both ranges are `bytes.len()` long and the new allocation does not overlap `bytes`.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), buffer.base.as_ptr(), bytes.len()) };
        buffer
    }

    /// Memory of the caller, used in place.
    ///
    /// # Safety
    /// `base..base + len` stays valid for reads (and for writes, unless `contents` is [`Contents::ReadOnly`]) as long as
    /// the buffer lives.
    pub unsafe fn from_raw(base: NonNull<u8>, len: usize, contents: Contents) -> Self {
        Self::build(base, len, None, contents)
    }

    fn owned(len: usize, contents: Contents) -> Self {
        let size = len.next_multiple_of(16) + 2 * MARGIN;
        let layout = Layout::from_size_align(size, PAGE).unwrap_or_else(|_| Layout::new::<u128>());
        // SAFETY: the layout has a non-zero size.
        let memory = unsafe { std::alloc::alloc_zeroed(layout) };
        let Some(memory) = NonNull::new(memory) else { std::alloc::handle_alloc_error(layout) };
        // SAFETY: MARGIN lies within the allocation.
        let base = unsafe { memory.add(MARGIN) };
        Self::build(base, len, Some((memory, layout)), contents)
    }

    fn build(base: NonNull<u8>, len: usize, owned: Option<(NonNull<u8>, Layout)>, contents: Contents) -> Self {
        let pages = if contents == Contents::ReadOnly { 0 } else { len.div_ceil(PAGE) };
        let table = vec![std::ptr::null_mut::<ShadowPage>(); pages].into_boxed_slice();
        let shadow = Box::new(abi::Shadow {
            base: base.as_ptr() as u64,
            length: len as u64,
            pages: Box::into_raw(table).cast(),
            initialized: u32::from(contents != Contents::Undefined),
            readonly: u32::from(contents == Contents::ReadOnly),
        });
        EmulatedBuffer { base, len, owned, shadow: NonNull::from(Box::leak(shadow)), pages }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// First byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// The bytes, to be read between passes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: base..base+len is valid for reads while self lives; the caller does not read during a pass.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }

    /// Copies `bytes` to `offset` and marks them as written by the host.
    ///
    /// # Panics
    /// When the range does not lie in the buffer or the buffer is read-only: a mistake of the program, not of its input.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.len, "write of {} bytes at {offset} of {}", bytes.len(), self.len);
        // SAFETY: the shadow lives as long as self.
        assert!(unsafe { self.shadow.as_ref().readonly } == 0, "write to a read-only buffer");
        // SAFETY: the range was checked; the caller orders host writes against passes.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.base.as_ptr().add(offset), bytes.len()) };
        self.mark(offset..offset + bytes.len(), HOST);
    }

    /// Makes a range undefined again (0xFF bytes, reads are reported), as a new allocation would be.
    ///
    /// # Panics
    /// When the range does not lie in the buffer or the buffer is read-only.
    pub fn poison(&self, range: Range<usize>) {
        assert!(range.end <= self.len && range.start <= range.end, "poison of {range:?} of {}", self.len);
        // SAFETY: the shadow lives as long as self.
        assert!(unsafe { self.shadow.as_ref().readonly } == 0, "poison of a read-only buffer");
        // SAFETY: the range was checked; the caller orders host writes against passes.
        unsafe { std::ptr::write_bytes(self.base.as_ptr().add(range.start), 0xff, range.len()) };
        self.mark(range, 0);
    }

    /// Marks a range as written by the host, after it was filled through [`EmulatedBuffer::as_ptr`].
    pub fn mark_written(&self, range: Range<usize>) {
        self.mark(range, HOST);
    }

    fn mark(&self, range: Range<usize>, record: u64) {
        // SAFETY: the shadow lives as long as self; marks and passes are ordered by the caller.
        let shadow = unsafe { &mut *self.shadow.as_ptr() };
        if self.pages == 0 || range.is_empty() {
            return;
        }
        let default = if shadow.initialized != 0 { HOST } else { 0 };
        for index in range.start / PAGE..range.end.div_ceil(PAGE) {
            // SAFETY: the table has `pages` entries and index < pages because range.end <= len.
            let slot = unsafe { &mut *shadow.pages.add(index) };
            if slot.is_null() {
                if default == record {
                    continue;
                }
                // SAFETY: plain allocation of one page record, zero is a valid value of it.
                *slot = unsafe { abi::calloc(1, size_of::<ShadowPage>()) }.cast();
                // SAFETY: just allocated; a null result would fault here, as any failed allocation of the process.
                unsafe { (**slot).wrote = [default; PAGE] };
            }
            // SAFETY: the slot holds a live page record.
            let page = unsafe { &mut **slot };
            let from = range.start.max(index * PAGE) - index * PAGE;
            let to = range.end.min((index + 1) * PAGE) - index * PAGE;
            page.wrote[from..to].fill(record);
            page.read[from..to].fill(0);
        }
    }

    pub(super) fn shadow(&self) -> *mut abi::Shadow {
        self.shadow.as_ptr()
    }
}

impl Drop for EmulatedBuffer {
    fn drop(&mut self) {
        // SAFETY: shadow, table and pages were allocated in `build`, `mark` and the runtime (calloc) and are freed once.
        unsafe {
            let shadow = Box::from_raw(self.shadow.as_ptr());
            let table = Box::from_raw(std::ptr::slice_from_raw_parts_mut(shadow.pages, self.pages));
            for page in table.iter() {
                abi::free(page.cast::<c_void>());
            }
            if let Some((memory, layout)) = self.owned {
                std::alloc::dealloc(memory.as_ptr(), layout);
            }
        }
    }
}
