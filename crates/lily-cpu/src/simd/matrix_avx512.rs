//! Tiles on AVX-512: `vpdpwssd` of pairs of 16-bit weights and activations, sixteen outputs a register.

use std::arch::x86_64::*;

use super::matrix::{Ahead, QuantizedRow, TILE, Tile, TileRows};

/// Rows that one pass over a tile multiplies.
const ROWS: usize = 16;

/// Four words of sixteen rows `stride` bytes apart, transposed: result i holds word i of every row.
///
/// # Safety
/// AVX-512F; 16 readable bytes at each row.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma")]
unsafe fn columns(first: *const u8, stride: usize) -> [__m512i; 4] {
    let four = |i: usize| {
        // SAFETY: 16 readable bytes, the caller's word.
        let at = |quarter: usize| unsafe {
            let row = first.wrapping_add(4 * quarter * stride).wrapping_add(i * stride);
            _mm_loadu_si128(row.cast())
        };
        let v = _mm512_castsi128_si512(at(0));
        let v = _mm512_inserti32x4::<1>(v, at(1));
        let v = _mm512_inserti32x4::<2>(v, at(2));
        _mm512_inserti32x4::<3>(v, at(3))
    };
    let (a, b, c, d) = (four(0), four(1), four(2), four(3));
    let (ab_low, cd_low) = (_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d));
    let (ab_high, cd_high) = (_mm512_unpackhi_epi32(a, b), _mm512_unpackhi_epi32(c, d));
    [
        _mm512_unpacklo_epi64(ab_low, cd_low),
        _mm512_unpackhi_epi64(ab_low, cd_low),
        _mm512_unpacklo_epi64(ab_high, cd_high),
        _mm512_unpackhi_epi64(ab_high, cd_high),
    ]
}

/// The four pairs of a word of eight 4-bit weights.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma")]
fn pairs_of_4_bits(word: __m512i) -> [__m512i; 4] {
    let mask = _mm512_set1_epi32(0x000f_000f);
    [
        _mm512_and_si512(word, mask),
        _mm512_and_si512(_mm512_srli_epi32::<4>(word), mask),
        _mm512_and_si512(_mm512_srli_epi32::<8>(word), mask),
        _mm512_and_si512(_mm512_srli_epi32::<12>(word), mask),
    ]
}

/// The four pairs of two words of four 8-bit weights.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma")]
fn pairs_of_8_bits(low: __m512i, high: __m512i) -> [__m512i; 4] {
    let (low_byte, high_byte) = (_mm512_set1_epi32(0xff), _mm512_set1_epi32(0x00ff_0000));
    let join = |low: __m512i, high: __m512i| {
        _mm512_or_si512(_mm512_and_si512(low, low_byte), _mm512_and_si512(high, high_byte))
    };
    [
        join(low, _mm512_slli_epi32::<16>(high)),
        join(_mm512_srli_epi32::<8>(low), _mm512_slli_epi32::<8>(high)),
        join(_mm512_srli_epi32::<16>(low), high),
        join(_mm512_srli_epi32::<24>(low), _mm512_srli_epi32::<8>(high)),
    ]
}

/// # Safety
/// The instructions of [`super::Isa::Avx512`]; `out` has room for the rows' pairs.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma")]
pub(super) unsafe fn unpack(rows: &TileRows<'_>, bits: usize, out: &mut Tile) {
    let bytes = rows.weight.len() / TILE;
    let mut to = out.pairs.as_mut_ptr().cast::<__m512i>();
    for offset in (0..bytes).step_by(16) {
        // SAFETY: `offset + 16 <= bytes`: rows are whole multiples of 16 bytes (32 inputs of 4 or 8 bits).
        let words = unsafe { columns(rows.weight.as_ptr().add(offset), bytes) };
        let mut put = |pairs: [__m512i; 4]| {
            for pair in pairs {
                // SAFETY: one register a pair, `inputs / 2` pairs, 64-byte aligned.
                unsafe { _mm512_store_si512(to, pair) };
                to = to.wrapping_add(1);
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

/// # Safety
/// The instructions of [`super::Isa::Avx512`]; rows are of one length, within the tile.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma")]
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
                6 => multiply_rows::<6>(tile, rows, ahead, out),
                7 => multiply_rows::<7>(tile, rows, ahead, out),
                8 => multiply_rows::<8>(tile, rows, ahead, out),
                9 => multiply_rows::<9>(tile, rows, ahead, out),
                10 => multiply_rows::<10>(tile, rows, ahead, out),
                11 => multiply_rows::<11>(tile, rows, ahead, out),
                12 => multiply_rows::<12>(tile, rows, ahead, out),
                13 => multiply_rows::<13>(tile, rows, ahead, out),
                14 => multiply_rows::<14>(tile, rows, ahead, out),
                15 => multiply_rows::<15>(tile, rows, ahead, out),
                _ => multiply_rows::<16>(tile, rows, ahead, out),
            }
        }
        ahead = Ahead::default();
    }
}

/// # Safety
/// As [`multiply`], for exactly `M` rows.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma")]
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
    let mut weights = tile.pairs.as_ptr().cast::<__m512i>();
    let mut acc = [_mm512_setzero_ps(); M];
    for g in 0..groups {
        ahead.prefetch(g, groups);
        // Two sums a row hide the latency of the products where there are few rows; many rows need the registers.
        let mut sums = [[_mm512_setzero_si512(); 2]; M];
        for p in (g * pairs_a_group..(g + 1) * pairs_a_group).step_by(2) {
            // SAFETY: pairs p and p + 1 lie within the tile and within each row (a group has 16 or 32 pairs).
            unsafe {
                let (w0, w1) = (_mm512_load_si512(weights), _mm512_load_si512(weights.add(1)));
                weights = weights.add(2);
                for m in 0..M {
                    let at = activations[m].add(p);
                    sums[m][0] = _mm512_dpwssd_epi32(sums[m][0], w0, _mm512_set1_epi32(at.read_unaligned()));
                    let second = usize::from(M <= 8);
                    sums[m][second] =
                        _mm512_dpwssd_epi32(sums[m][second], w1, _mm512_set1_epi32(at.add(1).read_unaligned()));
                }
            }
        }
        let weight_group = g >> groups_a_scale;
        // SAFETY: sixteen aligned lanes each.
        let (scale, bias) = unsafe {
            (_mm512_load_ps(tile.scales[weight_group].0.as_ptr()), _mm512_load_ps(tile.biases[weight_group].0.as_ptr()))
        };
        for m in 0..M {
            let with_bias = _mm512_fmadd_ps(bias, _mm512_set1_ps(rows[m].sums[g]), acc[m]);
            let factor = _mm512_mul_ps(scale, _mm512_set1_ps(rows[m].scales[g]));
            let sum = if M <= 8 { _mm512_add_epi32(sums[m][0], sums[m][1]) } else { sums[m][0] };
            acc[m] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), factor, with_bias);
        }
    }
    for (acc, out) in acc.iter().zip(out) {
        // SAFETY: sixteen outputs.
        unsafe { _mm512_storeu_ps(out.as_mut_ptr(), *acc) };
    }
}

/// Products of 4-bit weights with one row, straight from the packed weights: see the AVX2 form.
///
/// # Safety
/// The instructions of [`super::Isa::Avx512`]; rows are `row.ints.len()` inputs long, `scales` within the tile.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma")]
pub(super) unsafe fn product_of_4_bits(rows: &TileRows<'_>, row: &QuantizedRow<'_>, tile: &Tile) -> [f32; TILE] {
    let groups = row.scales.len();
    let group = row.ints.len() / groups;
    let groups_a_scale = tile.groups_a_scale(group);
    let activations: *const i32 = row.ints.as_ptr().cast();
    let low = _mm512_set1_epi16(0x000f);
    let second = _mm512_set1_epi16(0x00f0);
    let third = _mm512_set1_epi16(0x0f00);
    let bytes = rows.weight.len() / TILE;
    let ahead = rows.weight.as_ptr().wrapping_add(rows.weight.len());
    let mut acc = _mm512_setzero_ps();
    for g in 0..groups {
        let weight_group = g >> groups_a_scale;
        let mut sums = [_mm512_setzero_si512(); 4];
        for step in 0..group / 32 {
            let offset = g * group / 2 + 16 * step;
            // The next sixteen rows, as one stream through memory: a line for every 64 bytes read here.
            for line in 0..4 {
                _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_add(TILE * offset + 64 * line).cast());
            }
            // SAFETY: 16 bytes at `offset` are 32 inputs, within each row.
            let words = unsafe { columns(rows.weight.as_ptr().add(offset), bytes) };
            for (i, word) in words.into_iter().enumerate() {
                let at = activations.wrapping_add((g * group + 32 * step) / 2 + 4 * i);
                // SAFETY: four pairs of eight inputs, within the row.
                let a = |pair: usize| unsafe { _mm512_set1_epi32(at.add(pair).read_unaligned()) };
                sums[0] = _mm512_dpwssd_epi32(sums[0], _mm512_and_si512(word, low), a(0));
                sums[1] = _mm512_dpwssd_epi32(sums[1], _mm512_and_si512(word, second), a(1));
                sums[2] = _mm512_dpwssd_epi32(sums[2], _mm512_and_si512(word, third), a(2));
                sums[3] = _mm512_dpwssd_epi32(sums[3], _mm512_srli_epi16::<12>(word), a(3));
            }
        }
        let sum = _mm512_add_epi32(
            _mm512_add_epi32(sums[0], sums[3]),
            _mm512_add_epi32(_mm512_srai_epi32::<4>(sums[1]), _mm512_srai_epi32::<8>(sums[2])),
        );
        // SAFETY: sixteen aligned lanes each.
        let (scale, bias) = unsafe {
            (_mm512_load_ps(tile.scales[weight_group].0.as_ptr()), _mm512_load_ps(tile.biases[weight_group].0.as_ptr()))
        };
        let with_bias = _mm512_fmadd_ps(bias, _mm512_set1_ps(row.sums[g]), acc);
        let factor = _mm512_mul_ps(scale, _mm512_set1_ps(row.scales[g]));
        acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), factor, with_bias);
    }
    let mut out = [0f32; TILE];
    // SAFETY: sixteen outputs.
    unsafe { _mm512_storeu_ps(out.as_mut_ptr(), acc) };
    out
}
