//! From f32 rows to MLX's affine quantization, the way `mlx.core.quantize` rounds: the larger end of a group's range is
//! met exactly.

use half::bf16;

use crate::config::Quantization;

/// A row in affine quantization.
#[derive(Debug, Clone, PartialEq)]
pub struct QuantizedRow {
    /// U32 words, little-endian, lowest bits first.
    pub weight: Vec<u8>,
    /// BF16, one a group.
    pub scales: Vec<u8>,
    /// BF16, one a group.
    pub biases: Vec<u8>,
}

/// Quantizes a row whose length is a whole number of groups. `q * scale + bias` is within half a scale of most values,
/// within one at the far end of a group's range, not counting the rounding of scale and bias to bf16.
pub fn quantize_row(values: &[f32], quantization: Quantization) -> QuantizedRow {
    let Quantization { bits, group_size } = quantization;
    let levels = ((1usize << bits) - 1) as f32;
    let mut row = QuantizedRow { weight: Vec::new(), scales: Vec::new(), biases: Vec::new() };
    for group in values.chunks_exact(group_size) {
        let (low, high) = group.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(l, h), &v| (l.min(v), h.max(v)));
        let (edge, other) = if low.abs() > high.abs() { (low, high) } else { (high, low) };
        // The scale is signed, so that the bias is the end of larger magnitude and value 0 stands for it.
        let step = if high > low { (other - edge) / levels } else { 1e-7 };
        let steps = (edge / step).round();
        let (scale, bias) = if steps == 0.0 { (step, 0.0) } else { (edge / steps, edge) };
        let (scale, bias) = (bf16::from_f32(scale), bf16::from_f32(bias));
        row.scales.extend(scale.to_le_bytes());
        row.biases.extend(bias.to_le_bytes());
        for word in group.chunks_exact(32 / bits) {
            let packed = word.iter().enumerate().fold(0u32, |packed, (i, &value)| {
                let q = ((value - bias.to_f32()) / scale.to_f32()).round().clamp(0.0, levels) as u32;
                packed | q << (i * bits)
            });
            row.weight.extend(packed.to_le_bytes());
        }
    }
    row
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synth::random::Stream;

    #[test]
    fn every_value_comes_back_within_a_step_and_its_rounding() {
        let stream = Stream::new(1, "row");
        for quantization in [(4, 32), (4, 64), (4, 128), (8, 32), (8, 64), (8, 128)] {
            let (bits, group_size) = quantization;
            let values: Vec<f32> = (0..256).map(|i| stream.bell(i) + if i < 128 { 0.0 } else { 2.0 }).collect();
            let row = quantize_row(&values, Quantization { bits, group_size });
            for (i, &value) in values.iter().enumerate() {
                let word = u32::from_le_bytes(row.weight.as_chunks::<4>().0[i * bits / 32]);
                let q = word >> (i % (32 / bits) * bits) & ((1 << bits) - 1);
                let number = |bytes: &[u8]| bf16::from_le_bytes(bytes.as_chunks::<2>().0[i / group_size]).to_f32();
                let (scale, bias) = (number(&row.scales), number(&row.biases));
                let back = q as f32 * scale + bias;
                // Half a step; the far end may be cut by nearly one, since value 0 must fall on a step; and the
                // roundings of scale and bias to bf16, the former added up over all levels.
                let allowed = scale.abs() * (1.0 + (1 << bits) as f32 / 512.0) + bias.abs() / 512.0;
                assert!((back - value).abs() <= allowed, "{value} became {back}, scale {scale}");
            }
        }
    }

    #[test]
    fn a_constant_row_comes_back_exactly() {
        for constant in [0.0, 1.5, -0.25] {
            let row = quantize_row(&[constant; 32], Quantization { bits: 4, group_size: 32 });
            let scale = bf16::from_le_bytes([row.scales[0], row.scales[1]]).to_f32();
            let bias = bf16::from_le_bytes([row.biases[0], row.biases[1]]).to_f32();
            assert_eq!(f32::from(row.weight[0] & 15) * scale + bias, constant);
        }
    }
}
