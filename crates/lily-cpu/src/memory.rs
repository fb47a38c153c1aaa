//! Zeroed anonymous memory that takes pages only when touched, and shared views of it for the threads of a job.

use std::marker::PhantomData;
use std::ops::Range;

use bytemuck::Pod;
use lily_model::device::DeviceError;
use memmap2::{MmapMut, MmapOptions};

/// `len` elements, zero at first. Reserving costs address space only; memory is taken page by page at the first write.
pub struct Region<T> {
    map: Option<MmapMut>,
    len: usize,
    element: PhantomData<T>,
}

impl<T: Pod> Region<T> {
    /// Reserves `len` elements for `what` (named in the error).
    pub fn new(len: usize, what: &str) -> Result<Self, DeviceError> {
        let bytes = len.checked_mul(size_of::<T>());
        let out_of_memory = || DeviceError::OutOfMemory {
            device: "cpu",
            what: what.to_owned(),
            needed: bytes.map_or(u64::MAX, |b| b as u64),
            available: 0,
        };
        let map = match bytes {
            Some(0) => None,
            Some(bytes) => {
                Some(MmapOptions::new().len(bytes).no_reserve_swap().map_anon().map_err(|_| out_of_memory())?)
            }
            None => return Err(out_of_memory()),
        };
        Ok(Region { map, len, element: PhantomData })
    }

    /// The elements.
    pub fn as_slice(&self) -> &[T] {
        self.map.as_ref().map_or(&[], |map| bytemuck::cast_slice(&map[..]))
    }

    /// The elements.
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        self.map.as_mut().map_or(&mut [], |map| bytemuck::cast_slice_mut(&mut map[..]))
    }

    /// A view that the threads of a job share.
    pub fn shared(&mut self) -> Shared<'_, T> {
        Shared::new(self.as_mut_slice())
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.len
    }
}

/// A slice that several threads write, each its own part.
#[derive(Clone, Copy)]
pub struct Shared<'a, T> {
    start: *mut T,
    len: usize,
    life: PhantomData<&'a mut [T]>,
}

// SAFETY: access goes through `part` and `part_mut`, whose callers answer for disjointness.
unsafe impl<T: Send + Sync> Send for Shared<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for Shared<'_, T> {}

impl<'a, T> Shared<'a, T> {
    /// A view of `slice`, which stays borrowed.
    pub fn new(slice: &'a mut [T]) -> Self {
        Shared { start: slice.as_mut_ptr(), len: slice.len(), life: PhantomData }
    }

    /// The view of a part.
    pub fn sub(&self, range: Range<usize>) -> Shared<'a, T> {
        self.check(&range);
        Shared { start: self.start.wrapping_add(range.start), len: range.len(), life: PhantomData }
    }

    fn check(&self, range: &Range<usize>) {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {}", self.len);
    }

    /// # Safety
    /// No thread writes any of `range` while the result lives.
    pub unsafe fn part(&self, range: Range<usize>) -> &'a [T] {
        self.check(&range);
        // SAFETY: in bounds, checked above; not written meanwhile, the caller's word.
        unsafe { std::slice::from_raw_parts(self.start.add(range.start), range.len()) }
    }

    /// # Safety
    /// No other thread reads or writes any of `range` while the result lives.
    #[allow(clippy::mut_from_ref)] // disjointness is the caller's word
    pub unsafe fn part_mut(&self, range: Range<usize>) -> &'a mut [T] {
        self.check(&range);
        // SAFETY: in bounds, checked above; exclusive, the caller's word.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}
