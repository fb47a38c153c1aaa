//! Where a file's bytes are: in the program, in memory, or in a mapping of the file.
//!
//! A mapping shows the file as it is, so a file that another process truncates while it is mapped raises SIGBUS at the
//! next read. No check at load can prevent that: a checkpoint must not be changed while it is in use.

use std::fmt;

use memmap2::Mmap;

/// Bytes of a file of a checkpoint.
#[derive(Debug)]
pub enum Storage {
    /// Compiled into the program.
    Static(&'static [u8]),
    /// Built in memory.
    Owned(AlignedBytes),
    /// A read-only mapping; starts at a page border.
    Mapped(Mmap),
}

impl Storage {
    /// The bytes, in place.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Storage::Static(bytes) => bytes,
            Storage::Owned(bytes) => bytes.as_slice(),
            Storage::Mapped(map) => map,
        }
    }
}

/// One cache line; gives [`AlignedBytes`] its alignment.
#[derive(Clone, Copy, bytemuck::Zeroable, bytemuck::Pod)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Bytes that start at a 64-byte border.
#[derive(Clone)]
pub struct AlignedBytes {
    lines: Vec<Line>,
    len: usize,
}

impl AlignedBytes {
    /// `len` zero bytes.
    pub fn zeroed(len: usize) -> Self {
        AlignedBytes { lines: vec![Line([0; 64]); len.div_ceil(64)], len }
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.lines)[..self.len]
    }

    /// The bytes, to be written.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.len]
    }
}

impl From<&[u8]> for AlignedBytes {
    fn from(bytes: &[u8]) -> Self {
        let mut copy = AlignedBytes::zeroed(bytes.len());
        copy.as_mut_slice().copy_from_slice(bytes);
        copy
    }
}

impl fmt::Debug for AlignedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedBytes({} bytes)", self.len)
    }
}
