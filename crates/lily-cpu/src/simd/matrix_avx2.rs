//! Tiles on AVX2: `vpmaddwd` of pairs of 16-bit weights and activations, eight outputs a register.

use std::arch::x86_64::*;

use super::matrix::{Ahead, QuantizedRow, TILE, Tile, TileRows};
use super::matrix_portable;

/// Rows that one pass over a tile multiplies: two registers each, with room for weights and a broadcast.
const ROWS: usize = 6;

/// Four words of eight rows `stride` bytes apart, transposed: result i holds word i of every row.
///
/// # Safety
/// AVX2; 16 readable bytes at each row.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn columns(first: *const u8, stride: usize) -> [__m256i; 4] {
    let fifth = first.wrapping_add(4 * stride);
    let two = |i: usize| {
        let at = |row: *const u8| row.wrapping_add(i * stride).cast::<__m128i>();
        // SAFETY: 16 readable bytes, the caller's word.
        let (low, high) = unsafe { (_mm_loadu_si128(at(first)), _mm_loadu_si128(at(fifth))) };
        _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(low), high)
    };
    let (a, b, c, d) = (two(0), two(1), two(2), two(3));
    let (ab_low, cd_low) = (_mm256_unpacklo_epi32(a, b), _mm256_unpacklo_epi32(c, d));
    let (ab_high, cd_high) = (_mm256_unpackhi_epi32(a, b), _mm256_unpackhi_epi32(c, d));
    [
        _mm256_unpacklo_epi64(ab_low, cd_low),
        _mm256_unpackhi_epi64(ab_low, cd_low),
        _mm256_unpacklo_epi64(ab_high, cd_high),
        _mm256_unpackhi_epi64(ab_high, cd_high),
    ]
}

/// The four pairs of a word of eight 4-bit weights.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn pairs_of_4_bits(word: __m256i) -> [__m256i; 4] {
    let mask = _mm256_set1_epi32(0x000f_000f);
    [
        _mm256_and_si256(word, mask),
        _mm256_and_si256(_mm256_srli_epi32::<4>(word), mask),
        _mm256_and_si256(_mm256_srli_epi32::<8>(word), mask),
        _mm256_and_si256(_mm256_srli_epi32::<12>(word), mask),
    ]
}

/// The four pairs of two words of four 8-bit weights.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn pairs_of_8_bits(low: __m256i, high: __m256i) -> [__m256i; 4] {
    let (low_byte, high_byte) = (_mm256_set1_epi32(0xff), _mm256_set1_epi32(0x00ff_0000));
    let join = |low: __m256i, high: __m256i| {
        _mm256_or_si256(_mm256_and_si256(low, low_byte), _mm256_and_si256(high, high_byte))
    };
    [
        join(low, _mm256_slli_epi32::<16>(high)),
        join(_mm256_srli_epi32::<8>(low), _mm256_slli_epi32::<8>(high)),
        join(_mm256_srli_epi32::<16>(low), high),
        join(_mm256_srli_epi32::<24>(low), _mm256_srli_epi32::<8>(high)),
    ]
}

/// # Safety
/// AVX2 and FMA; `out` has room for the rows' pairs.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn unpack(rows: &TileRows<'_>, bits: usize, out: &mut Tile) {
    let bytes = rows.weight.len() / TILE;
    for half in 0..2 {
        let first = rows.weight.as_ptr().wrapping_add(8 * half * bytes);
        let mut to = out.pairs.as_mut_ptr().cast::<__m256i>().wrapping_add(half);
        for offset in (0..bytes).step_by(16) {
            // SAFETY: `offset + 16 <= bytes`: rows are whole multiples of 16 bytes (32 inputs of 4 or 8 bits).
            let words = unsafe { columns(first.add(offset), bytes) };
            let mut put = |pairs: [__m256i; 4]| {
                for pair in pairs {
                    // SAFETY: there are 2 registers a pair and `inputs / 2` pairs of them; each is 64-byte aligned.
                    unsafe { _mm256_store_si256(to, pair) };
                    to = to.wrapping_add(2);
                }
            };
            if bits == 4 {
                for word in words {
                    put(pairs_of_4_bits(word));
                }
            } else {
                put(pairs_of_8_bits(words[0], words[1]));
                put(pairs_of_8_bits(words[2], words[3]));
            }
        }
    }
}

/// # Safety
/// AVX2 and FMA; `out` has room for the rows' groups.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn unpack_scales(rows: &TileRows<'_>, out: &mut Tile) {
    let bytes = rows.scales.len() / TILE;
    let whole = bytes / 16 * 16;
    for (source, target) in [(rows.scales, &mut out.scales), (rows.biases, &mut out.biases)] {
        let target = target.as_mut_ptr().cast::<f32>();
        for half in 0..2 {
            let first = source.as_ptr().wrapping_add(8 * half * bytes);
            for offset in (0..whole).step_by(16) {
                // SAFETY: `offset + 16 <= whole`, within the rows.
                let words = unsafe { columns(first.add(offset), bytes) };
                for (i, word) in words.into_iter().enumerate() {
                    let group = offset / 2 + 2 * i;
                    let high = _mm256_and_si256(word, _mm256_set1_epi32(0xffff_0000_u32 as i32));
                    let at = |group: usize| target.wrapping_add(TILE * group + 8 * half).cast::<__m256i>();
                    // SAFETY: lanes `8 * half ..` of two groups, each 32-byte aligned.
                    unsafe {
                        _mm256_store_si256(at(group), _mm256_slli_epi32::<16>(word));
                        _mm256_store_si256(at(group + 1), high);
                    }
                }
            }
        }
    }
    matrix_portable::unpack_scales(rows, whole / 2, out);
}

/// # Safety
/// AVX2 and FMA; rows are of one length, within the tile.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn multiply(tile: &Tile, rows: &[QuantizedRow<'_>], ahead: Ahead<'_>, out: &mut [[f32; TILE]]) {
    // Passes of nearly equal size: a pass with few rows takes almost as long as a full one.
    let pass = rows.len().div_ceil(rows.len().div_ceil(ROWS));
    let mut ahead = ahead;
    for (rows, out) in rows.chunks(pass).zip(out.chunks_mut(pass)) {
        // SAFETY: as for this function.
        unsafe {
            match rows.len() {
                1 => multiply_rows::<1>(tile, rows, ahead, out),
                2 => multiply_rows::<2>(tile, rows, ahead, out),
                3 => multiply_rows::<3>(tile, rows, ahead, out),
                4 => multiply_rows::<4>(tile, rows, ahead, out),
                5 => multiply_rows::<5>(tile, rows, ahead, out),
                _ => multiply_rows::<6>(tile, rows, ahead, out),
            }
        }
        ahead = Ahead::default();
    }
}

/// # Safety
/// As [`multiply`], for exactly `M` rows.
#[target_feature(enable = "avx2,fma")]
unsafe fn multiply_rows<const M: usize>(
    tile: &Tile,
    rows: &[QuantizedRow<'_>],
    ahead: Ahead<'_>,
    out: &mut [[f32; TILE]],
) {
    let groups = rows[0].scales.len();
    let pairs_a_group = rows[0].ints.len() / groups / 2;
    let groups_a_scale = tile.groups_a_scale(2 * pairs_a_group);
    let activations: [*const i32; M] = std::array::from_fn(|m| rows[m].ints.as_ptr().cast());
    let mut weights = tile.pairs.as_ptr().cast::<__m256i>();
    let mut acc = [[_mm256_setzero_ps(); 2]; M];
    for g in 0..groups {
        ahead.prefetch(g, groups);
        let mut sums = [[_mm256_setzero_si256(); 2]; M];
        for p in g * pairs_a_group..(g + 1) * pairs_a_group {
            // SAFETY: pair p lies within the tile and within each row.
            unsafe {
                let (w0, w1) = (_mm256_load_si256(weights), _mm256_load_si256(weights.add(1)));
                weights = weights.add(2);
                for m in 0..M {
                    let a = _mm256_set1_epi32(activations[m].add(p).read_unaligned());
                    sums[m][0] = _mm256_add_epi32(sums[m][0], _mm256_madd_epi16(w0, a));
                    sums[m][1] = _mm256_add_epi32(sums[m][1], _mm256_madd_epi16(w1, a));
                }
            }
        }
        let weight_group = g >> groups_a_scale;
        let (scales, biases) = (tile.scales[weight_group].0.as_ptr(), tile.biases[weight_group].0.as_ptr());
        for half in 0..2 {
            // SAFETY: lanes `8 * half ..` of sixteen.
            let (scale, bias) = unsafe { (_mm256_load_ps(scales.add(8 * half)), _mm256_load_ps(biases.add(8 * half))) };
            for m in 0..M {
                let with_bias = _mm256_fmadd_ps(bias, _mm256_set1_ps(rows[m].sums[g]), acc[m][half]);
                let factor = _mm256_mul_ps(scale, _mm256_set1_ps(rows[m].scales[g]));
                acc[m][half] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums[m][half]), factor, with_bias);
            }
        }
    }
    for (acc, out) in acc.iter().zip(out) {
        // SAFETY: sixteen outputs.
        unsafe {
            _mm256_storeu_ps(out.as_mut_ptr(), acc[0]);
            _mm256_storeu_ps(out.as_mut_ptr().add(8), acc[1]);
        }
    }
}

/// Products of 4-bit weights with one row, straight from the packed weights; the tile's scales are unpacked already.
///
/// The weights of a word stay where they are but for a mask: sums of the second and third pair come out 16 and 256 times too
/// large, which a shift of the whole group's sum undoes exactly (15 * 256 * 16256 * 16 < 2^31).
///
/// # Safety
/// AVX2 and FMA; rows are `row.ints.len()` inputs long, `scales` within the tile.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn product_of_4_bits(rows: &TileRows<'_>, row: &QuantizedRow<'_>, tile: &Tile) -> [f32; TILE] {
    let groups = row.scales.len();
    let group = row.ints.len() / groups;
    let groups_a_scale = tile.groups_a_scale(group);
    let activations: *const i32 = row.ints.as_ptr().cast();
    let low = _mm256_set1_epi16(0x000f);
    let second = _mm256_set1_epi16(0x00f0);
    let third = _mm256_set1_epi16(0x0f00);
    let bytes = rows.weight.len() / TILE;
    let ahead = rows.weight.as_ptr().wrapping_add(rows.weight.len());
    let mut acc = [_mm256_setzero_ps(); 2];
    for g in 0..groups {
        let weight_group = g >> groups_a_scale;
        for (half, acc) in acc.iter_mut().enumerate() {
            let mut sums = [_mm256_setzero_si256(); 4];
            for step in 0..group / 32 {
                let offset = g * group / 2 + 16 * step;
                // The next sixteen rows, as one stream through memory: a line for every 64 bytes read here.
                for line in 0..2 {
                    let at = ahead.wrapping_add(TILE * offset + 128 * half + 64 * line);
                    _mm_prefetch::<_MM_HINT_T0>(at.cast());
                }
                // SAFETY: 16 bytes at `offset` are 32 inputs, within each row.
                let words = unsafe { columns(rows.weight.as_ptr().add(8 * half * bytes + offset), bytes) };
                for (i, word) in words.into_iter().enumerate() {
                    let at = activations.wrapping_add((g * group + 32 * step) / 2 + 4 * i);
                    // SAFETY: four pairs of eight inputs, within the row.
                    let a = |pair: usize| unsafe { _mm256_set1_epi32(at.add(pair).read_unaligned()) };
                    let products = [
                        _mm256_madd_epi16(_mm256_and_si256(word, low), a(0)),
                        _mm256_madd_epi16(_mm256_and_si256(word, second), a(1)),
                        _mm256_madd_epi16(_mm256_and_si256(word, third), a(2)),
                        _mm256_madd_epi16(_mm256_srli_epi16::<12>(word), a(3)),
                    ];
                    for (sum, product) in sums.iter_mut().zip(products) {
                        *sum = _mm256_add_epi32(*sum, product);
                    }
                }
            }
            let sum = _mm256_add_epi32(
                _mm256_add_epi32(sums[0], sums[3]),
                _mm256_add_epi32(_mm256_srai_epi32::<4>(sums[1]), _mm256_srai_epi32::<8>(sums[2])),
            );
            // SAFETY: lanes `8 * half ..` of sixteen, aligned.
            let (scale, bias) = unsafe {
                (
                    _mm256_load_ps(tile.scales[weight_group].0.as_ptr().add(8 * half)),
                    _mm256_load_ps(tile.biases[weight_group].0.as_ptr().add(8 * half)),
                )
            };
            let with_bias = _mm256_fmadd_ps(bias, _mm256_set1_ps(row.sums[g]), *acc);
            let factor = _mm256_mul_ps(scale, _mm256_set1_ps(row.scales[g]));
            *acc = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), factor, with_bias);
        }
    }
    let mut out = [0f32; TILE];
    // SAFETY: sixteen outputs.
    unsafe {
        _mm256_storeu_ps(out.as_mut_ptr(), acc[0]);
        _mm256_storeu_ps(out.as_mut_ptr().add(8), acc[1]);
    }
    out
}
