//! Matrix times rows: the in-projections, out-projections, router logits, experts and the head are all this.

use lily_model::checkpoint::WeightView;

fn bf16(bytes: &[u8], index: usize) -> f32 {
    f32::from_bits(u32::from(u16::from_le_bytes([bytes[2 * index], bytes[2 * index + 1]])) << 16)
}

/// Row `output` of matrix `expert` in f32 `[inputs]`: `q * scale + bias`, rounded after each of the two.
///
/// A vector (`WeightView::Float`) is taken as a matrix of one row.
pub fn dequantize_row(weight: &WeightView<'_>, expert: usize, output: usize, out: &mut [f32]) {
    match weight {
        WeightView::Quantized(view) => {
            let (bits, group) = (view.quantization.bits, view.quantization.group_size);
            let row = expert * view.outputs + output;
            let (per_byte, mask) = (8 / bits, ((1u32 << bits) - 1) as u8);
            let bytes = &view.weight[row * view.inputs / per_byte..];
            let groups = view.inputs / group;
            for (g, out) in out.chunks_exact_mut(group).enumerate() {
                let (scale, bias) = (bf16(view.scales, row * groups + g), bf16(view.biases, row * groups + g));
                for (i, out) in out.iter_mut().enumerate() {
                    let input = g * group + i;
                    let q = bytes[input / per_byte] >> (input % per_byte * bits) & mask;
                    *out = f32::from(q) * scale + bias;
                }
            }
        }
        WeightView::Dense(view) => {
            let start = (expert * view.outputs + output) * view.inputs;
            for (i, out) in out.iter_mut().enumerate() {
                *out = bf16(view.weight, start + i);
            }
        }
        WeightView::Float(view) => out.copy_from_slice(&view.to_vec()),
    }
}

/// `Σ a b` in 16 interleaved partial sums, so that the order does not depend on the machine.
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut partial = [0f32; 16];
    let (a16, b16) = (a.chunks_exact(16), b.chunks_exact(16));
    let tail: f32 = a16.remainder().iter().zip(b16.remainder()).map(|(x, y)| x * y).sum();
    for (x, y) in a16.zip(b16) {
        for i in 0..16 {
            partial[i] += x[i] * y[i];
        }
    }
    partial.iter().sum::<f32>() + tail
}

/// `out[r] = W x[r]` for matrix `expert` of the weight; `x` is `[rows, inputs]`, `out` `[rows, outputs]`.
pub fn linear(weight: &WeightView<'_>, expert: usize, x: &[f32], rows: usize, out: &mut [f32]) {
    if rows == 0 {
        return;
    }
    let (inputs, outputs) = (x.len() / rows, out.len() / rows);
    let mut row = vec![0f32; inputs];
    for output in 0..outputs {
        dequantize_row(weight, expert, output, &mut row);
        for r in 0..rows {
            out[r * outputs + output] = dot(&row, &x[r * inputs..(r + 1) * inputs]);
        }
    }
}
