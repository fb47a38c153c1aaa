//! Products of quantized matrices and quantized rows, sixteen outputs at a time.
//!
//! One output is, over the groups of inputs in order,
//! `acc = fma(weight bias, sum, acc); acc = fma(f32(Σ q_w q_a), weight scale * scale, acc)`.
//! The integer sums are exact, so every way to compute them gives the same bits: sixteen weight rows become the lanes of
//! a vector (a transposition in registers), so that no sum runs across lanes.

use lily_model::checkpoint::QuantizedView;

use super::{Isa, matrix_portable};

/// Outputs of a tile.
pub const TILE: usize = 16;

/// A row of activations, as [`super::quantize`] makes it.
#[derive(Debug, Clone, Copy)]
pub struct QuantizedRow<'a> {
    /// `[inputs]`, each eight in the order 0 4 1 5 2 6 3 7.
    pub ints: &'a [i16],
    /// `[inputs / group]`.
    pub scales: &'a [f32],
    /// `[inputs / group]`: `scale * Σ q`.
    pub sums: &'a [f32],
}

/// Sixteen lanes at a cache line's alignment.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub struct Lanes<T>(pub [T; TILE]);

/// Sixteen rows of a matrix, unpacked and transposed.
pub struct Tile {
    /// `[inputs / 2]`: in each lane the 16-bit weights of a pair of inputs, in the order of the activations.
    pub(super) pairs: Vec<Lanes<u32>>,
    /// `[inputs / weight group]`.
    pub(super) scales: Vec<Lanes<f32>>,
    /// `[inputs / weight group]`.
    pub(super) biases: Vec<Lanes<f32>>,
    /// Inputs of a group that shares weight scales.
    pub(super) weight_group: usize,
}

impl Tile {
    /// Room for rows of up to `inputs`.
    pub fn new(inputs: usize) -> Self {
        let groups = inputs.div_ceil(32);
        Tile {
            pairs: vec![Lanes([0; TILE]); inputs / 2],
            scales: vec![Lanes([0.0; TILE]); groups],
            biases: vec![Lanes([0.0; TILE]); groups],
            weight_group: 0,
        }
    }

    /// log2 of the activation groups that share a weight scale: groups are 32, 64 or 128 wide, those of weights no narrower.
    #[cfg(target_arch = "x86_64")] // the only paths that ask
    pub(super) fn groups_a_scale(&self, activation_group: usize) -> u32 {
        (self.weight_group / activation_group).trailing_zeros()
    }
}

/// The rows of a tile: 16 of them, or fewer at the matrix's end, one after another.
pub(super) struct TileRows<'a> {
    pub rows: usize,
    pub weight: &'a [u8],
    pub scales: &'a [u8],
    pub biases: &'a [u8],
}

impl<'a> TileRows<'a> {
    pub(super) fn new(view: &QuantizedView<'a>, expert: usize, tile: usize) -> Self {
        let rows = TILE.min(view.outputs - tile * TILE);
        let first = expert * view.outputs + tile * TILE;
        let part = |bytes: &'a [u8], len: usize| &bytes[first * len..(first + rows) * len];
        let scale_bytes = view.inputs / view.quantization.group_size * 2;
        TileRows {
            rows,
            weight: part(view.weight, view.inputs * view.quantization.bits / 8),
            scales: part(view.scales, scale_bytes),
            biases: part(view.biases, scale_bytes),
        }
    }
}

/// The sixteen rows behind a tile, or less at the end of all matrices: what a thread most likely unpacks next.
///
/// A product asks for them while it computes, so that they wait in the cache: unpacking on its own reads sixteen rows side
/// by side, which hardware does not foresee, and no product runs meanwhile.
#[derive(Debug, Clone, Copy, Default)]
pub struct Ahead<'a> {
    weight: &'a [u8],
    scales: &'a [u8],
    biases: &'a [u8],
}

impl<'a> Ahead<'a> {
    /// What follows outputs `16 tile ..` of matrix `expert`.
    pub fn of(view: &QuantizedView<'a>, expert: usize, tile: usize) -> Self {
        let first = expert * view.outputs + ((tile + 1) * TILE).min(view.outputs);
        let part = |bytes: &'a [u8], len: usize| {
            &bytes[(first * len).min(bytes.len())..((first + TILE) * len).min(bytes.len())]
        };
        let scale_bytes = view.inputs / view.quantization.group_size * 2;
        Ahead {
            weight: part(view.weight, view.inputs * view.quantization.bits / 8),
            scales: part(view.scales, scale_bytes),
            biases: part(view.biases, scale_bytes),
        }
    }

    /// Asks for share `index` of `count` of the weights, and at the first also for all scales and biases.
    #[cfg(target_arch = "x86_64")] // the only paths that ask
    #[inline(always)]
    pub(super) fn prefetch(&self, index: usize, count: usize) {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        let lines = |bytes: &[u8]| {
            for line in bytes.chunks(64) {
                // SAFETY: SSE is part of x86-64, and a prefetch touches nothing.
                unsafe { _mm_prefetch::<_MM_HINT_T1>(line.as_ptr().cast()) };
            }
        };
        let share = self.weight.len().div_ceil(count).next_multiple_of(64);
        let start = (index * share).min(self.weight.len());
        lines(&self.weight[start..(start + share).min(self.weight.len())]);
        if index == 0 {
            lines(self.scales);
            lines(self.biases);
        }
    }
}

/// Unpacks outputs `16 tile ..` of matrix `expert`.
pub fn unpack_tile(isa: Isa, view: &QuantizedView<'_>, expert: usize, tile: usize, out: &mut Tile) {
    let rows = TileRows::new(view, expert, tile);
    let bits = view.quantization.bits;
    assert!(view.inputs.is_multiple_of(32) && view.inputs / 2 <= out.pairs.len() && (bits == 4 || bits == 8));
    out.weight_group = view.quantization.group_size;
    if rows.rows < TILE {
        matrix_portable::unpack(&rows, bits, out);
        return;
    }
    match isa {
        // SAFETY: an `Isa` other than `Portable` exists only where its instructions were detected.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => unsafe {
            super::matrix_avx512::unpack(&rows, bits, out);
            super::matrix_avx2::unpack_scales(&rows, out);
        },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe {
            super::matrix_avx2::unpack(&rows, bits, out);
            super::matrix_avx2::unpack_scales(&rows, out);
        },
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => matrix_portable::unpack(&rows, bits, out),
        Isa::Portable => matrix_portable::unpack(&rows, bits, out),
    }
}

/// Products of an unpacked tile with `rows`, all of the same length; `out` has sixteen outputs a row. `ahead` comes into
/// the cache meanwhile.
pub fn multiply_tile(isa: Isa, tile: &Tile, rows: &[QuantizedRow<'_>], ahead: Ahead<'_>, out: &mut [[f32; TILE]]) {
    assert!(rows.len() == out.len());
    for row in rows {
        assert!(row.ints.len() == rows[0].ints.len() && row.ints.len() / 2 <= tile.pairs.len());
        assert!(row.scales.len() == rows[0].scales.len() && row.sums.len() == row.scales.len());
    }
    if rows.is_empty() {
        return;
    }
    // Nobody asks for it elsewhere.
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (ahead.weight, ahead.scales, ahead.biases);
    match isa {
        // SAFETY: the instructions are there, see `unpack_tile`; lengths were checked above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => unsafe { super::matrix_avx512::multiply(tile, rows, ahead, out) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { super::matrix_avx2::multiply(tile, rows, ahead, out) },
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => matrix_portable::multiply(tile, rows, out),
        Isa::Portable => matrix_portable::multiply(tile, rows, out),
    }
}

/// Products of outputs `16 tile ..` of matrix `expert` with one row; `scratch` is overwritten.
///
/// Where the instruction set allows, weights go from memory to products in registers: this is the kernel of decode, and
/// it has to keep up with the memory.
pub fn product_of_one_row(
    isa: Isa,
    view: &QuantizedView<'_>,
    expert: usize,
    tile: usize,
    row: QuantizedRow<'_>,
    scratch: &mut Tile,
) -> [f32; TILE] {
    assert!(row.ints.len() == view.inputs && row.sums.len() == row.scales.len());
    #[cfg(target_arch = "x86_64")]
    if view.quantization.bits == 4 && isa != Isa::Portable && (tile + 1) * TILE <= view.outputs {
        let rows = TileRows::new(view, expert, tile);
        assert!(view.inputs.is_multiple_of(32) && view.inputs / 2 <= scratch.pairs.len());
        scratch.weight_group = view.quantization.group_size;
        // SAFETY: the instructions are there, see `unpack_tile`; lengths were checked above.
        return unsafe {
            super::matrix_avx2::unpack_scales(&rows, scratch);
            match isa {
                Isa::Avx512 => super::matrix_avx512::product_of_4_bits(&rows, &row, scratch),
                _ => super::matrix_avx2::product_of_4_bits(&rows, &row, scratch),
            }
        };
    }
    let mut out = [[0f32; TILE]; 1];
    unpack_tile(isa, view, expert, tile, scratch);
    multiply_tile(isa, scratch, &[row], Ahead::of(view, expert, tile), &mut out);
    out[0]
}
