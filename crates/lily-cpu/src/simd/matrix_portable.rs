//! Tiles in plain Rust: the meaning of the other paths, and the path of processors that have none.

use super::matrix::{QuantizedRow, TILE, Tile, TileRows};

fn word(bytes: &[u8], index: usize) -> u32 {
    let at = 4 * index;
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn bf16(bytes: &[u8], index: usize) -> f32 {
    f32::from_bits(u32::from(u16::from_le_bytes([bytes[2 * index], bytes[2 * index + 1]])) << 16)
}

/// Scales and biases of groups `from ..`, transposed.
pub(super) fn unpack_scales(rows: &TileRows<'_>, from: usize, out: &mut Tile) {
    let groups = rows.scales.len() / rows.rows / 2;
    for lane in 0..rows.rows {
        for group in from..groups {
            out.scales[group].0[lane] = bf16(rows.scales, lane * groups + group);
            out.biases[group].0[lane] = bf16(rows.biases, lane * groups + group);
        }
    }
}

/// Lanes past the matrix's end keep what they held: their products are not used.
pub(super) fn unpack(rows: &TileRows<'_>, bits: usize, out: &mut Tile) {
    unpack_scales(rows, 0, out);
    for (lane, row) in rows.weight.chunks_exact(rows.weight.len() / rows.rows).enumerate() {
        let inputs = row.len() * 8 / bits;
        for eight in 0..inputs / 8 {
            for j in 0..4 {
                let pair = if bits == 4 {
                    word(row, eight) >> (4 * j) & 0x000f_000f
                } else {
                    let (low, high) = (word(row, 2 * eight), word(row, 2 * eight + 1));
                    (low >> (8 * j) & 0xff) | (high >> (8 * j) & 0xff) << 16
                };
                out.pairs[4 * eight + j].0[lane] = pair;
            }
        }
    }
}

pub(super) fn multiply(tile: &Tile, rows: &[QuantizedRow<'_>], out: &mut [[f32; TILE]]) {
    for (row, out) in rows.iter().zip(out) {
        let group = row.ints.len() / row.scales.len();
        let mut acc = [0f32; TILE];
        for (g, ints) in row.ints.chunks_exact(group).enumerate() {
            let mut sums = [0i32; TILE];
            for (pair, a) in tile.pairs[g * group / 2..].iter().zip(ints.chunks_exact(2)) {
                for (sum, w) in sums.iter_mut().zip(pair.0) {
                    *sum += (w & 0xffff) as i32 * i32::from(a[0]) + (w >> 16) as i32 * i32::from(a[1]);
                }
            }
            let weight_group = g * group / tile.weight_group;
            let (scales, biases) = (&tile.scales[weight_group].0, &tile.biases[weight_group].0);
            for lane in 0..TILE {
                let a = biases[lane].mul_add(row.sums[g], acc[lane]);
                acc[lane] = (sums[lane] as f32).mul_add(scales[lane] * row.scales[g], a);
            }
        }
        *out = acc;
    }
}
