//! A pass: dispatches of kernels over bound buffers, unordered until a barrier.

use std::ffi::c_void;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use super::abi;
use super::report::{Report, collect};
use super::{Check, EmulatedBuffer, Library};
use crate::{Access, Error};

/// Bytes of a buffer that a dispatch says it touches; everything else is reported when touched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Declared {
    /// What the parameter's constness allows, from the binding's offset to the end of the buffer.
    FromKernel,
    /// Byte ranges counted from the start of the buffer.
    Ranges {
        /// May be read.
        reads: Vec<Range<usize>>,
        /// May be written; reading them back needs them in `reads` too.
        writes: Vec<Range<usize>>,
    },
}

/// A buffer bound to an index.
#[derive(Debug, Clone)]
pub struct Binding<'a> {
    /// Buffer index of the kernel's parameter.
    pub index: u32,
    /// Memory.
    pub buffer: &'a EmulatedBuffer,
    /// Byte offset at which the kernel's pointer starts.
    pub offset: usize,
    /// What the dispatch may touch.
    pub declared: Declared,
}

impl<'a> Binding<'a> {
    /// Binds the whole buffer with the access its parameter has.
    pub fn new(index: u32, buffer: &'a EmulatedBuffer) -> Self {
        Binding { index, buffer, offset: 0, declared: Declared::FromKernel }
    }

    /// Moves the start of the kernel's pointer.
    pub fn at(mut self, offset: usize) -> Self {
        self.offset = offset;
        self
    }

    /// Declares the ranges that may be read and written.
    pub fn declare(mut self, reads: Vec<Range<usize>>, writes: Vec<Range<usize>>) -> Self {
        self.declared = Declared::Ranges { reads, writes };
        self
    }
}

/// Size of a dispatch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grid {
    /// Threadgroups in x, y, z.
    pub threadgroups: [u32; 3],
    /// Threads per threadgroup in x, y, z; the product is a multiple of 32, at most 1,024.
    pub threads: [u32; 3],
}

impl Grid {
    /// A grid of `threadgroups` times `threads` along x.
    pub fn line(threadgroups: u32, threads: u32) -> Self {
        Grid { threadgroups: [threadgroups, 1, 1], threads: [threads, 1, 1] }
    }
}

/// Dispatches executed in order, checked as if they were concurrent between barriers.
#[derive(Debug)]
pub struct Pass {
    reports: Vec<Report>,
    dispatches: usize,
    id: u32,
    window: u32,
    generation: u64,
}

/// Dispatches between two barriers that the checker can tell apart.
const MAX_IDS: u32 = 2000;
static GENERATION: AtomicU64 = AtomicU64::new(1);

impl Default for Pass {
    fn default() -> Self {
        Self::new()
    }
}

impl Pass {
    /// An empty pass. Everything before it is ordered before it.
    pub fn new() -> Self {
        let generation = GENERATION.fetch_add(1, Ordering::Relaxed);
        Pass { reports: Vec::new(), dispatches: 0, id: 1, window: 1, generation }
    }

    /// Runs `kernel` over `grid`. Bindings may come in any order; each parameter needs exactly one.
    ///
    /// # Errors
    /// Unknown kernel; missing, surplus or misaligned bindings; sizes Metal refuses; without the checker also a fault that
    /// stopped the kernel. With the checker faults are reports, and [`Pass::finish`] returns them.
    pub fn dispatch(
        &mut self,
        library: &Library,
        kernel: &str,
        grid: Grid,
        bindings: &[Binding<'_>],
    ) -> Result<(), Error> {
        let (index, reflection) = library.kernel(kernel)?;
        let refuse = |message: String| Error::Dispatch { kernel: kernel.to_string(), message };
        let threads: u64 = grid.threads.iter().map(|n| u64::from(*n)).product();
        let limit = reflection.max_threads.unwrap_or(1024).min(1024);
        if threads == 0 || !threads.is_multiple_of(32) || threads > u64::from(limit) {
            let sizes = grid.threads;
            return Err(refuse(format!("threadgroup {sizes:?}: want a multiple of 32 up to {limit} threads")));
        }
        let total: u64 = grid.threadgroups.iter().map(|n| u64::from(*n)).product();
        if total == 0 || total >= 1 << 20 {
            return Err(refuse(format!("{:?} threadgroups: want 1 to 1,048,575", grid.threadgroups)));
        }
        let mut pointers = [std::ptr::null_mut::<c_void>(); 32];
        let mut regions = Vec::new();
        for param in reflection.buffers() {
            let mut found = bindings.iter().filter(|binding| binding.index == param.index);
            let binding =
                found.next().ok_or_else(|| refuse(format!("buffer {} ({}) unbound", param.index, param.name)))?;
            if found.next().is_some() {
                return Err(refuse(format!("buffer {} ({}) bound twice", param.index, param.name)));
            }
            if binding.offset > binding.buffer.len() {
                let (offset, len) = (binding.offset, binding.buffer.len());
                return Err(refuse(format!("buffer {} ({}): offset {offset} of {len}", param.index, param.name)));
            }
            // SAFETY: the offset lies within the buffer.
            let start = unsafe { binding.buffer.as_ptr().add(binding.offset) };
            let align = alignment(&param.ty);
            if !(start as usize).is_multiple_of(align) {
                let message =
                    format!("buffer {} ({}): {} needs {align}-byte alignment", param.index, param.name, param.ty);
                return Err(refuse(message));
            }
            pointers[param.index as usize] = start.cast();
            declare(&mut regions, binding, param.access);
        }
        coalesce(&mut regions);
        if let Some(surplus) = bindings.iter().find(|b| !reflection.buffers().iter().any(|p| p.index == b.index)) {
            return Err(refuse(format!("has no buffer {}", surplus.index)));
        }
        if self.id >= MAX_IDS {
            return Err(refuse(format!("more than {MAX_IDS} dispatches without a barrier")));
        }
        let mut raw = [abi::Report::EMPTY; 32];
        let mut job = abi::Dispatch {
            thunk: library.inner.thunks[index],
            buffers: pointers.as_ptr(),
            grid: grid.threadgroups,
            size: grid.threads,
            first: 0,
            last: total,
            regions: regions.as_ptr(),
            region_count: regions.len() as u32,
            check: u32::from(library.check() == Check::On),
            id: self.id,
            window: self.window,
            generation: self.generation,
            reports: raw.as_mut_ptr(),
            report_capacity: raw.len() as u32,
            report_count: 0,
        };
        let fine = library.inner.execute(&mut job);
        let count = (job.report_count as usize).min(raw.len());
        let mut reports = collect(&raw[..count], reflection, self.dispatches, library.path());
        self.dispatches += 1;
        self.id += 1;
        if library.check() == Check::Off && !fine {
            let fault = reports.pop().ok_or_else(|| refuse("abandoned without a report".into()))?;
            return Err(Error::Fault(Box::new(fault)));
        }
        self.reports.extend(reports);
        Ok(())
    }

    /// Orders every dispatch so far before every later one.
    pub fn barrier(&mut self) {
        if self.id > MAX_IDS / 2 {
            self.generation = GENERATION.fetch_add(1, Ordering::Relaxed);
            self.id = 1;
        }
        self.window = self.id;
    }

    /// Ends the pass; returns what the checker found, in order.
    pub fn finish(self) -> Vec<Report> {
        self.reports
    }

    /// What the checker found so far.
    pub fn reports(&self) -> &[Report] {
        &self.reports
    }
}

/// Alignment a pointer of this parameter type needs; 1 for structures, whose C++ type is not known here.
fn alignment(ty: &str) -> usize {
    let name = ty.rsplit("::").next().unwrap_or(ty);
    match crate::fold::type_size(name) {
        Some(_) if name.starts_with("packed_") => 1,
        Some(size) => size.min(16),
        None => 1,
    }
}

fn declare(regions: &mut Vec<abi::Region>, binding: &Binding<'_>, access: Access) {
    let base = binding.buffer.as_ptr() as u64;
    let mut add = |range: Range<usize>, rights: u32| {
        let end = range.end.min(binding.buffer.len());
        if range.start < end {
            regions.push(abi::Region {
                low: base + range.start as u64,
                high: base + end as u64,
                shadow: binding.buffer.shadow(),
                buffer: binding.index,
                rights,
            });
        }
    };
    match &binding.declared {
        Declared::FromKernel => {
            let rights = if access == Access::Read { 1 } else { 3 };
            add(binding.offset..binding.buffer.len(), rights);
        }
        Declared::Ranges { reads, writes } => {
            for range in reads {
                add(range.clone(), if writes.contains(range) { 3 } else { 1 });
            }
            for range in writes.iter().filter(|range| !reads.contains(range)) {
                add(range.clone(), 2);
            }
        }
    }
}

/// Joins regions of one binding that touch, so that an access may cross from one declared range to the next.
fn coalesce(regions: &mut Vec<abi::Region>) {
    regions.sort_by_key(|region| (region.buffer, region.rights, region.low));
    regions.dedup_by(|next, kept| {
        let touching = next.buffer == kept.buffer && next.rights == kept.rights && next.low <= kept.high;
        if touching {
            kept.high = kept.high.max(next.high);
        }
        touching
    });
}
