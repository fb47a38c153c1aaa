//! Kernels with known results, each run plainly and under the checker, which must stay silent.

mod support;

use msl::Source;
use msl::emulate::{Binding, EmulatedBuffer, Grid, Pass};
use support::*;

#[test]
fn rms_norm_of_three_rows_matches_the_formula() {
    let source = Source::empty()
        .define("N", 200)
        .with("rms_norm.metal", include_str!("kernels/rms_norm.metal"));
    let x = random(1, 600);
    let (weight, w) = bf16_buffer(&random(2, 200));
    let input = f32_buffer(&x);
    let eps = f32_buffer(&[1e-6]);
    let mut want = Vec::new();
    for row in x.chunks(200) {
        let scale = 1.0 / (row.iter().map(|v| v * v).sum::<f32>() / 200.0 + 1e-6).sqrt();
        want.extend(row.iter().zip(&w).map(|(v, w)| v * scale * w));
    }
    for library in both(&source) {
        let out = EmulatedBuffer::undefined(600 * 4);
        let mut pass = Pass::new();
        let bindings = [
            Binding::new(0, &input),
            Binding::new(1, &weight),
            Binding::new(2, &out),
            Binding::new(3, &eps),
        ];
        pass.dispatch(&library, "rms_norm", Grid::line(3, 128), &bindings)
            .unwrap();
        assert_clean(pass);
        assert_close(&f32_values(&out), &want, 1e-5);
    }
}

#[test]
fn four_bit_matvec_matches_dequantized_dot_products() {
    const ROWS: usize = 33;
    const K: usize = 2048;
    let source = Source::empty()
        .define("ROWS", ROWS)
        .with("matvec.metal", include_str!("kernels/matvec.metal"));
    let words: Vec<u32> = random(3, ROWS * K / 8)
        .iter()
        .map(|v| v.to_bits().wrapping_mul(2_654_435_761))
        .collect();
    let (scales, s) = bf16_buffer(&random(4, ROWS * K / 64));
    let (biases, b) = bf16_buffer(&random(5, ROWS * K / 64));
    let (x, xs) = bf16_buffer(&random(6, K));
    let w = u32_buffer(&words);
    let want: Vec<f32> = (0..ROWS)
        .map(|row| {
            (0..K)
                .map(|k| {
                    let q = (words[(row * K + k) / 8] >> (k % 8 * 4)) & 15;
                    let group = (row * K + k) / 64;
                    f64::from(q as f32 * s[group] + b[group]) * f64::from(xs[k])
                })
                .sum::<f64>() as f32
        })
        .collect();
    for library in both(&source) {
        assert_eq!(library.kernels().len(), 3);
        let y = EmulatedBuffer::undefined(ROWS * 4);
        let bindings = [
            Binding::new(0, &w),
            Binding::new(1, &scales),
            Binding::new(2, &biases),
            Binding::new(3, &x),
            Binding::new(4, &y),
        ];
        let grid = Grid::line((ROWS as u32).div_ceil(2), 64);
        let mut pass = Pass::new();
        pass.dispatch(&library, "matvec4_2048", grid, &bindings)
            .unwrap();
        pass.barrier();
        pass.dispatch(&library, "matvec4_2048_add", grid, &bindings)
            .unwrap();
        assert_clean(pass);
        let doubled: Vec<f32> = want.iter().map(|v| v * 2.0).collect();
        assert_close(&f32_values(&y), &doubled, 1e-3);
    }
}
