//! Draws rows of a weight as bytes of its tensors. Any range of rows can be drawn on its own.

use half::bf16;

use super::quantize::quantize_row;
use super::random::Stream;
use super::recipe::Recipe;
use crate::config::Quantization;
use crate::graph::{WeightKind, WeightSpec};

/// Bytes of some rows of a weight; `scales` and `biases` are empty unless it is quantized.
#[derive(Debug, Default)]
pub(super) struct Rows {
    pub weight: Vec<u8>,
    pub scales: Vec<u8>,
    pub biases: Vec<u8>,
}

impl Rows {
    /// Empties all three, keeping their memory.
    pub fn clear(&mut self) {
        self.weight.clear();
        self.scales.clear();
        self.biases.clear();
    }
}

/// A weight as rows: how many, and bytes a row of each tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RowSizes {
    pub rows: usize,
    pub weight: usize,
    /// Of the scales, and of the biases.
    pub groups: usize,
}

impl RowSizes {
    pub fn of(kind: WeightKind) -> Self {
        match kind {
            WeightKind::Matrix { experts, outputs, inputs, quantization } => {
                let rows = experts.unwrap_or(1) * outputs;
                match quantization {
                    Some(q) => RowSizes { rows, weight: inputs * q.bits / 8, groups: inputs / q.group_size * 2 },
                    None => RowSizes { rows, weight: inputs * 2, groups: 0 },
                }
            }
            WeightKind::Gain { len } | WeightKind::Vector { len } => RowSizes { rows: len, weight: 2, groups: 0 },
            WeightKind::Conv { channels, taps } => RowSizes { rows: channels, weight: taps * 2, groups: 0 },
        }
    }
}

/// Rows `first .. first + count` of a weight, appended to `out`.
pub(super) fn fill(seed: u64, spec: &WeightSpec, recipe: Recipe, first: usize, count: usize, out: &mut Rows) {
    let stream = Stream::new(seed, &spec.name);
    let scales = Stream::new(seed, &format!("{}.scales", spec.name));
    let inputs = match spec.kind {
        WeightKind::Matrix { inputs, .. } => inputs,
        WeightKind::Conv { taps, .. } => taps,
        WeightKind::Gain { .. } | WeightKind::Vector { .. } => 1,
    };
    let quantization = match spec.kind {
        WeightKind::Matrix { quantization, .. } => quantization,
        _ => None,
    };
    for row in first..first + count {
        match (recipe, quantization) {
            (Recipe::Matrix(deviation), Some(q)) => {
                packed_row(stream, scales, row, inputs, q, deviation, out);
            }
            (Recipe::EqualRows(deviation), Some(q)) => {
                let quantized = quantize_row(&equal_row(stream, row, inputs, deviation), q);
                out.weight.extend(quantized.weight);
                out.scales.extend(quantized.scales);
                out.biases.extend(quantized.biases);
            }
            (Recipe::Matrix(deviation) | Recipe::EqualRows(deviation), None) => {
                floats(&equal_row(stream, row, inputs, deviation), out);
            }
            (Recipe::Gain, _) => floats(&[0.9 + 0.2 * stream.unit(row as u64)], out),
            (Recipe::ALog, _) => floats(&[16f32.ln() * stream.unit(row as u64)], out),
            (Recipe::DtBias, _) => {
                let step = 0.001 * 100f32.powf(stream.unit(row as u64));
                floats(&[step.exp_m1().ln()], out);
            }
            (Recipe::Taps, _) => {
                let taps: Vec<f32> = (0..inputs)
                    .map(|tap| {
                        let bits = stream.bits((row * inputs + tap) as u64);
                        // Squares in proportion 1, 2, .. towards the current token, summing to 1.
                        let share = 2.0 * (tap + 1) as f32 / (inputs * (inputs + 1)) as f32;
                        let size = share.sqrt() * (0.8 + 0.4 * (bits >> 40) as f32 / (1u32 << 24) as f32);
                        if bits & 1 == 0 { size } else { -size }
                    })
                    .collect();
                floats(&taps, out);
            }
        }
    }
}

fn floats(values: &[f32], out: &mut Rows) {
    out.weight.extend(values.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes()));
}

/// A bell-shaped row with zero mean and exactly the length that `deviation` implies.
fn equal_row(stream: Stream, row: usize, inputs: usize, deviation: f32) -> Vec<f32> {
    let mut values: Vec<f32> = (0..inputs).map(|i| stream.bell((row * inputs + i) as u64)).collect();
    let mean = values.iter().sum::<f32>() / inputs as f32;
    values.iter_mut().for_each(|v| *v -= mean);
    let square = values.iter().map(|v| v * v).sum::<f32>() / inputs as f32;
    let factor = deviation / square.sqrt();
    values.iter_mut().for_each(|v| *v *= factor);
    values
}

/// A row of uniformly random packed values, with a scale a group of 0.75 to 1.25 times the one that gives `deviation`,
/// and the bias that makes the group's mean zero.
fn packed_row(
    stream: Stream,
    scales: Stream,
    row: usize,
    inputs: usize,
    quantization: Quantization,
    deviation: f32,
    out: &mut Rows,
) {
    let Quantization { bits, group_size } = quantization;
    let words = group_size * bits / 64;
    let levels = (1u32 << bits) as f32;
    // Variance of a uniform value of `levels` levels is (levels² - 1) / 12; the scale's factor has mean square 1 + 1/48.
    let base = deviation / ((levels * levels - 1.0) / 12.0 * (1.0 + 1.0 / 48.0)).sqrt();
    let (first_group, first_byte) = (row * (inputs / group_size), out.weight.len());
    out.weight.resize(first_byte + inputs * bits / 8, 0);
    let (packed, _) = out.weight[first_byte..].as_chunks_mut::<8>();
    for (group, packed) in (first_group..).zip(packed.chunks_exact_mut(words)) {
        let mut sum = 0;
        for (index, packed) in (group * words..).zip(packed) {
            let word = stream.bits(index as u64);
            sum += if bits == 4 { sum_of_nibbles(word) } else { sum_of_bytes(word) };
            *packed = word.to_le_bytes();
        }
        let scale = bf16::from_f32(base * (0.75 + 0.5 * scales.unit(group as u64)));
        let bias = bf16::from_f32(-scale.to_f32() * sum as f32 / group_size as f32);
        out.scales.extend(scale.to_le_bytes());
        out.biases.extend(bias.to_le_bytes());
    }
}

fn sum_of_nibbles(word: u64) -> u64 {
    const LOW: u64 = 0x0f0f_0f0f_0f0f_0f0f;
    sum_of_bytes((word & LOW) + (word >> 4 & LOW))
}

fn sum_of_bytes(word: u64) -> u64 {
    const EVEN: u64 = 0x00ff_00ff_00ff_00ff;
    ((word & EVEN) + (word >> 8 & EVEN)).wrapping_mul(0x0001_0001_0001_0001) >> 48
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Dequantized rows of a matrix.
    fn rows(quantization: Option<Quantization>, recipe: Recipe, count: usize, inputs: usize) -> Vec<Vec<f32>> {
        let kind = WeightKind::Matrix { experts: None, outputs: count, inputs, quantization };
        let spec = WeightSpec { name: "m".into(), kind };
        let mut out = Rows::default();
        fill(7, &spec, recipe, 0, count, &mut out);
        let float = |bytes: &[u8], i: usize| bf16::from_le_bytes(bytes.as_chunks::<2>().0[i]).to_f32();
        let value = |i: usize| match quantization {
            None => float(&out.weight, i),
            Some(q) => {
                let word = u32::from_le_bytes(out.weight.as_chunks::<4>().0[i * q.bits / 32]);
                let value = word >> (i % (32 / q.bits) * q.bits) & ((1 << q.bits) - 1);
                let group = i / q.group_size;
                value as f32 * float(&out.scales, group) + float(&out.biases, group)
            }
        };
        (0..count).map(|row| (0..inputs).map(|i| value(row * inputs + i)).collect()).collect()
    }

    #[test]
    fn matrices_have_the_deviation_asked_for_and_every_row_is_centred() {
        let forms = [(4, 32), (4, 64), (4, 128), (8, 32), (8, 64), (8, 128)]
            .map(|(bits, group_size)| Some(Quantization { bits, group_size }));
        for quantization in forms.into_iter().chain([None]) {
            for recipe in [Recipe::Matrix(0.05), Recipe::EqualRows(0.05)] {
                let rows = rows(quantization, recipe, 64, 512);
                let square = rows.iter().flatten().map(|v| v * v).sum::<f32>() / (64.0 * 512.0);
                assert!((square.sqrt() / 0.05 - 1.0).abs() < 0.02, "{quantization:?} {recipe:?}: {}", square.sqrt());
                for row in &rows {
                    let mean = row.iter().sum::<f32>() / 512.0;
                    // Independent values would give 0.05 / sqrt(512) = 0.0022; rounding to 4 bits leaves some.
                    assert!(mean.abs() < 0.001, "{quantization:?} {recipe:?}: {mean}");
                }
            }
        }
    }

    #[test]
    fn router_rows_have_one_length() {
        let rows = rows(Some(Quantization { bits: 8, group_size: 64 }), Recipe::EqualRows(0.05), 64, 512);
        for row in rows {
            let length = row.iter().map(|v| v * v).sum::<f32>().sqrt();
            assert!((length / (0.05 * 512f32.sqrt()) - 1.0).abs() < 0.002, "{length}");
        }
    }

    #[test]
    fn a_range_of_rows_is_the_same_drawn_alone() {
        let q = Some(Quantization { bits: 4, group_size: 64 });
        let kind = WeightKind::Matrix { experts: Some(2), outputs: 8, inputs: 128, quantization: q };
        let spec = WeightSpec { name: "m".into(), kind };
        let (mut whole, mut parts) = (Rows::default(), Rows::default());
        fill(1, &spec, Recipe::Matrix(1.0), 0, 16, &mut whole);
        for row in 0..16 {
            fill(1, &spec, Recipe::Matrix(1.0), row, 1, &mut parts);
        }
        assert_eq!((whole.weight, whole.scales, whole.biases), (parts.weight, parts.scales, parts.biases));
    }
}
