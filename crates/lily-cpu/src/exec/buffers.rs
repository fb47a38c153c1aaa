//! The plans' buffers in memory: what each element type is on this device.

use lily_model::device::{Capacity, DeviceError};
use lily_model::graph::{Buffer, BufferRole, Element, Extent, Plan};

use super::units::Units;
use crate::Precision;
use crate::memory::{Region, Shared};
use crate::simd::{Isa, QuantizedRow, quantize};

/// Keys and values of one layer: `[pages, 2, kv heads, ...]`; keys are stored transposed, `[head_dim, 256]`, values
/// `[256, head_dim]`.
pub enum Cache {
    Bf16(Region<u16>),
    F32(Region<f32>),
}

/// Memory of a buffer.
pub enum Storage {
    F32(Region<f32>),
    U32(Region<u32>),
    /// Rows of f32, `width` wide.
    Exact {
        width: usize,
        values: Region<f32>,
    },
    /// Rows of 15-bit integers, `width` wide, with a scale and a sum each `group` of them.
    Quantized {
        width: usize,
        group: usize,
        ints: Region<i16>,
        scales: Region<f32>,
        sums: Region<f32>,
    },
    Cache(Cache),
    /// Inputs: the operations read [`super::Inputs`] instead.
    Unused,
}

/// A buffer as the threads see it.
#[derive(Clone, Copy)]
pub enum View<'a> {
    F32(Shared<'a, f32>),
    U32(Shared<'a, u32>),
    Activations(Activations<'a>),
    Cache(CacheView<'a>),
    Unused,
}

/// See [`Cache`].
#[derive(Clone, Copy)]
pub enum CacheView<'a> {
    Bf16(Shared<'a, u16>),
    F32(Shared<'a, f32>),
}

/// Rows of matrix inputs.
#[derive(Clone, Copy)]
pub enum Activations<'a> {
    Exact { width: usize, values: Shared<'a, f32> },
    Quantized { width: usize, group: usize, ints: Shared<'a, i16>, scales: Shared<'a, f32>, sums: Shared<'a, f32> },
}

/// Rows of a matrix product.
pub enum RowList<'a> {
    Exact(Vec<&'a [f32]>),
    Quantized(Vec<QuantizedRow<'a>>),
}

impl RowList<'_> {
    pub fn len(&self) -> usize {
        match self {
            RowList::Exact(rows) => rows.len(),
            RowList::Quantized(rows) => rows.len(),
        }
    }
}

impl<'a> Activations<'a> {
    /// Stores `values` at `start` of a row: whole groups.
    ///
    /// # Safety
    /// No other thread touches that part of the row.
    pub unsafe fn write(&self, isa: Isa, row: usize, start: usize, new: &[f32]) {
        match *self {
            Activations::Exact { width, values } => {
                let at = row * width + start;
                // SAFETY: the caller's word.
                unsafe { values.part_mut(at..at + new.len()) }.copy_from_slice(new);
            }
            Activations::Quantized { width, group, ints, scales, sums } => {
                let at = row * width + start;
                let groups = at / group..(at + new.len()) / group;
                // SAFETY: the caller's word.
                let (ints, scales, sums) = unsafe {
                    (ints.part_mut(at..at + new.len()), scales.part_mut(groups.clone()), sums.part_mut(groups))
                };
                quantize(isa, new, group, ints, scales, sums);
            }
        }
    }

    /// `len` inputs from `start` of each of some rows.
    ///
    /// # Safety
    /// No thread writes them while the result lives.
    pub unsafe fn rows(&self, places: impl Iterator<Item = (usize, usize)>, len: usize) -> RowList<'a> {
        match *self {
            Activations::Exact { width, values } => RowList::Exact(
                places
                    .map(|(row, start)| {
                        let at = row * width + start;
                        // SAFETY: the caller's word.
                        unsafe { values.part(at..at + len) }
                    })
                    .collect(),
            ),
            Activations::Quantized { width, group, ints, scales, sums } => RowList::Quantized(
                places
                    .map(|(row, start)| {
                        let at = row * width + start;
                        let groups = at / group..(at + len) / group;
                        // SAFETY: the caller's word.
                        unsafe {
                            QuantizedRow {
                                ints: ints.part(at..at + len),
                                scales: scales.part(groups.clone()),
                                sums: sums.part(groups),
                            }
                        }
                    })
                    .collect(),
            ),
        }
    }
}

/// Every buffer of the two plans, by name. Buffers of one name in both are one.
pub struct Buffers {
    names: Vec<String>,
    storage: Vec<Storage>,
}

impl Buffers {
    /// Reserves memory for both plans.
    pub fn new(plans: [&Plan; 2], capacity: &Capacity, units: Units) -> Result<Self, DeviceError> {
        let mut wanted: Vec<(&Buffer, usize)> = Vec::new();
        for plan in plans {
            for buffer in &plan.buffers {
                let len = elements(buffer, plan, capacity);
                match wanted.iter_mut().find(|(b, _)| b.name == buffer.name) {
                    Some((_, most)) => *most = (*most).max(len),
                    None => wanted.push((buffer, len)),
                }
            }
        }
        let mut buffers = Buffers { names: Vec::new(), storage: Vec::new() };
        for (buffer, len) in wanted {
            buffers.names.push(buffer.name.clone());
            buffers.storage.push(allocate(buffer, len, units)?);
        }
        Ok(buffers)
    }

    /// Places of a plan's buffers in [`Buffers::views`].
    pub fn places(&self, plan: &Plan) -> Vec<usize> {
        plan.buffers.iter().filter_map(|b| self.names.iter().position(|name| *name == b.name)).collect()
    }

    /// Every buffer, to be shared among threads.
    pub fn views(&mut self) -> Vec<View<'_>> {
        self.storage
            .iter_mut()
            .map(|storage| match storage {
                Storage::F32(region) => View::F32(region.shared()),
                Storage::U32(region) => View::U32(region.shared()),
                Storage::Exact { width, values } => {
                    View::Activations(Activations::Exact { width: *width, values: values.shared() })
                }
                Storage::Quantized { width, group, ints, scales, sums } => View::Activations(Activations::Quantized {
                    width: *width,
                    group: *group,
                    ints: ints.shared(),
                    scales: scales.shared(),
                    sums: sums.shared(),
                }),
                Storage::Cache(Cache::Bf16(region)) => View::Cache(CacheView::Bf16(region.shared())),
                Storage::Cache(Cache::F32(region)) => View::Cache(CacheView::F32(region.shared())),
                Storage::Unused => View::Unused,
            })
            .collect()
    }

    /// Memory of a plan's buffer.
    pub fn get(&self, name: &str) -> Option<&Storage> {
        self.names.iter().position(|n| n == name).map(|i| &self.storage[i])
    }

    /// The recurrent state (and conv windows) of all layers, in order.
    pub fn slot_states(&mut self) -> impl Iterator<Item = &mut Region<f32>> {
        self.names.iter().zip(&mut self.storage).filter_map(|(name, storage)| match storage {
            Storage::F32(region) if name.ends_with(".conv_window") || name.ends_with(".gdn_state") => Some(region),
            _ => None,
        })
    }

    /// The KV cache of all layers, in order.
    pub fn caches(&mut self) -> impl Iterator<Item = &mut Cache> {
        self.storage.iter_mut().filter_map(|storage| match storage {
            Storage::Cache(cache) => Some(cache),
            _ => None,
        })
    }
}

/// Most elements a buffer can need.
fn elements(buffer: &Buffer, plan: &Plan, capacity: &Capacity) -> usize {
    match buffer.extent {
        Extent::PerRow(n) | Extent::PerLogitRow(n) => n * plan.rows,
        Extent::PerRowBlock(n) => n * plan.rows * capacity.max_seq.div_ceil(Plan::PAGE_TOKENS),
        Extent::PerSlot(n) => n * capacity.slots,
        Extent::PerPage(n) => n * capacity.pages,
        Extent::Fixed(n) => n,
    }
}

fn allocate(buffer: &Buffer, len: usize, units: Units) -> Result<Storage, DeviceError> {
    let name = &buffer.name;
    if buffer.role == BufferRole::Input {
        return Ok(Storage::Unused);
    }
    Ok(match (buffer.element, units.precision()) {
        (Element::F32, _) => Storage::F32(Region::new(len, name)?),
        (Element::U32, _) => Storage::U32(Region::new(len, name)?),
        (Element::Cache, Precision::F32) => Storage::Cache(Cache::F32(Region::new(len, name)?)),
        (Element::Cache, Precision::Fast) => Storage::Cache(Cache::Bf16(Region::new(len, name)?)),
        (Element::Activation, precision) => {
            let Extent::PerRow(width) = buffer.extent else {
                unreachable!("activations are rows");
            };
            match precision {
                Precision::F32 => Storage::Exact { width, values: Region::new(len, name)? },
                Precision::Fast => {
                    let group = units.group();
                    let groups = len / group;
                    Storage::Quantized {
                        width,
                        group,
                        ints: Region::new(len, name)?,
                        scales: Region::new(groups, name)?,
                        sums: Region::new(groups, name)?,
                    }
                }
            }
        }
    })
}

/// Rounds to bf16, to nearest even.
pub fn to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    if x.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}
