//! Weights as bytes in place: what a device gets to read. Little-endian, possibly unaligned, never copied.

use crate::config::Quantization;

/// A weight's bytes and shape.
#[derive(Debug, Clone, Copy)]
pub enum WeightView<'a> {
    /// A quantized matrix or stack of matrices.
    Quantized(QuantizedView<'a>),
    /// A bf16 matrix or stack of matrices.
    Dense(DenseView<'a>),
    /// A vector or the taps of a convolution (`[channels, taps]`), row-major.
    Float(FloatView<'a>),
}

/// `[experts, outputs, inputs]` in MLX's affine quantization: `w = q * scale + bias`.
#[derive(Debug, Clone, Copy)]
pub struct QuantizedView<'a> {
    /// 1 for a plain matrix.
    pub experts: usize,
    /// Rows of a matrix.
    pub outputs: usize,
    /// Columns of a matrix.
    pub inputs: usize,
    /// Bits and group size.
    pub quantization: Quantization,
    /// U32 words `[experts, outputs, inputs * bits / 32]`; element i of a word is its i-th lowest `bits`.
    pub weight: &'a [u8],
    /// BF16 `[experts, outputs, inputs / group_size]`.
    pub scales: &'a [u8],
    /// BF16 `[experts, outputs, inputs / group_size]`.
    pub biases: &'a [u8],
}

impl<'a> QuantizedView<'a> {
    /// One matrix of the stack, with `experts == 1`.
    pub fn expert(&self, index: usize) -> QuantizedView<'a> {
        let part = |bytes: &'a [u8]| {
            let len = bytes.len() / self.experts;
            &bytes[index * len..(index + 1) * len]
        };
        QuantizedView {
            experts: 1,
            weight: part(self.weight),
            scales: part(self.scales),
            biases: part(self.biases),
            ..*self
        }
    }
}

/// `[experts, outputs, inputs]` in BF16.
#[derive(Debug, Clone, Copy)]
pub struct DenseView<'a> {
    /// 1 for a plain matrix.
    pub experts: usize,
    /// Rows of a matrix.
    pub outputs: usize,
    /// Columns of a matrix.
    pub inputs: usize,
    /// BF16, row-major.
    pub weight: &'a [u8],
}

/// Floats of a vector.
#[derive(Debug, Clone, Copy)]
pub enum FloatView<'a> {
    /// BF16.
    Bf16(&'a [u8]),
    /// F32.
    F32(&'a [u8]),
}

impl FloatView<'_> {
    /// The values in f32.
    pub fn to_vec(&self) -> Vec<f32> {
        match self {
            FloatView::Bf16(bytes) => bytes
                .chunks_exact(2)
                .map(|b| f32::from_bits(u32::from(u16::from_le_bytes([b[0], b[1]])) << 16))
                .collect(),
            FloatView::F32(bytes) => {
                bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
            }
        }
    }
}
