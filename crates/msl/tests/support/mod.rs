//! What the integration tests share: random numbers, bytes of tensors, comparison.

#![allow(dead_code, missing_docs)]

use msl::Source;
use msl::emulate::{Check, EmulatedBuffer, Library, Options, Pass, Report};

/// Uniform numbers in [-1, 1) from a multiplicative congruential generator; the same for the same seed.
pub fn random(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..count)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 40) as f32) / ((1u64 << 23) as f32) - 1.0
        })
        .collect()
}

pub fn f32_buffer(values: &[f32]) -> EmulatedBuffer {
    EmulatedBuffer::from_bytes(&values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>())
}

pub fn u32_buffer(values: &[u32]) -> EmulatedBuffer {
    EmulatedBuffer::from_bytes(&values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>())
}

/// Rounds to bf16 (nearest even) and returns the buffer and the rounded values.
pub fn bf16_buffer(values: &[f32]) -> (EmulatedBuffer, Vec<f32>) {
    let bits: Vec<u16> = values
        .iter()
        .map(|v| {
            let bits = v.to_bits();
            ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16
        })
        .collect();
    let rounded = bits.iter().map(|b| f32::from_bits(u32::from(*b) << 16)).collect();
    (EmulatedBuffer::from_bytes(&bits.iter().flat_map(|b| b.to_le_bytes()).collect::<Vec<_>>()), rounded)
}

pub fn f32_values(buffer: &EmulatedBuffer) -> Vec<f32> {
    buffer.bytes().chunks_exact(4).map(|c| f32::from_le_bytes([c[0], c[1], c[2], c[3]])).collect()
}

pub fn u32_values(buffer: &EmulatedBuffer) -> Vec<u32> {
    buffer.bytes().chunks_exact(4).map(|c| u32::from_le_bytes([c[0], c[1], c[2], c[3]])).collect()
}

/// Fails with the worst element when some |got - want| exceeds `tolerance * max(1, |want|)`.
#[track_caller]
pub fn assert_close(got: &[f32], want: &[f32], tolerance: f32) {
    assert_eq!(got.len(), want.len(), "lengths differ");
    for (index, (g, w)) in got.iter().zip(want).enumerate() {
        assert!((g - w).abs() <= tolerance * w.abs().max(1.0), "element {index}: got {g}, want {w}");
    }
}

/// Compiles with and without the checker.
pub fn both(source: &Source) -> [Library; 2] {
    [Check::Off, Check::On].map(|check| {
        Library::compile(source, &Options { check, ..Options::default() }).unwrap_or_else(|error| panic!("{error}"))
    })
}

#[track_caller]
pub fn assert_clean(pass: Pass) {
    let reports = pass.finish();
    let text: Vec<String> = reports.iter().map(Report::to_string).collect();
    assert!(reports.is_empty(), "unexpected reports:\n{}", text.join("\n"));
}
