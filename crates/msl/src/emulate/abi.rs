//! The structures of `shim/abi.h`, field by field, and the functions a compiled library exports.

use std::ffi::{c_char, c_void};

/// Bytes of a buffer that one shadow page describes.
pub const PAGE: usize = 4096;
/// Record of a byte that the host wrote.
pub const HOST: u64 = 1;

#[repr(C)]
pub struct ShadowPage {
    pub generation: u64,
    pub wrote: [u64; PAGE],
    pub read: [u64; PAGE],
}

#[repr(C)]
pub struct Shadow {
    pub base: u64,
    pub length: u64,
    pub pages: *mut *mut ShadowPage,
    pub initialized: u32,
    pub readonly: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Region {
    pub low: u64,
    pub high: u64,
    pub shadow: *mut Shadow,
    pub buffer: u32,
    pub rights: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Report {
    pub kind: u32,
    pub buffer: u32,
    pub offset: u64,
    pub size: u32,
    pub threadgroup: u32,
    pub thread: u32,
    pub other_threadgroup: u32,
    pub other_thread: u32,
    pub line: u32,
    pub file: *const c_char,
    pub name: *const c_char,
    pub pc: u64,
}

impl Report {
    pub const EMPTY: Report = Report {
        kind: 0,
        buffer: 0,
        offset: 0,
        size: 0,
        threadgroup: 0,
        thread: 0,
        other_threadgroup: 0,
        other_thread: 0,
        line: 0,
        file: std::ptr::null(),
        name: std::ptr::null(),
        pc: 0,
    };
}

pub type Thunk = unsafe extern "C" fn(*const *mut c_void, *const c_void);

#[repr(C)]
pub struct Dispatch {
    pub thunk: Thunk,
    pub buffers: *const *mut c_void,
    pub grid: [u32; 3],
    pub size: [u32; 3],
    pub first: u64,
    pub last: u64,
    pub regions: *const Region,
    pub region_count: u32,
    pub check: u32,
    pub id: u32,
    pub window: u32,
    pub generation: u64,
    pub reports: *mut Report,
    pub report_capacity: u32,
    pub report_count: u32,
}

pub type WorkerNew = unsafe extern "C" fn() -> *mut c_void;
pub type WorkerFree = unsafe extern "C" fn(*mut c_void);
pub type Run = unsafe extern "C" fn(*mut c_void, *mut Dispatch, u64, u64) -> bool;

unsafe extern "C" {
    pub fn calloc(count: usize, size: usize) -> *mut c_void;
    pub fn free(memory: *mut c_void);
}
