//! Kernels with known results, each run plainly and under the checker, which must stay silent.

mod support;

use msl::Source;
use msl::emulate::{Binding, EmulatedBuffer, Grid, Pass};
use support::*;

#[test]
fn rms_norm_of_three_rows_matches_the_formula() {
    let source = Source::empty().define("N", 200).with("rms_norm.metal", include_str!("kernels/rms_norm.metal"));
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
        let bindings =
            [Binding::new(0, &input), Binding::new(1, &weight), Binding::new(2, &out), Binding::new(3, &eps)];
        pass.dispatch(&library, "rms_norm", Grid::line(3, 128), &bindings).unwrap();
        assert_clean(pass);
        assert_close(&f32_values(&out), &want, 1e-5);
    }
}

#[test]
fn four_bit_matvec_matches_dequantized_dot_products() {
    const ROWS: usize = 33;
    const K: usize = 2048;
    let source = Source::empty().define("ROWS", ROWS).with("matvec.metal", include_str!("kernels/matvec.metal"));
    let words: Vec<u32> = random(3, ROWS * K / 8).iter().map(|v| v.to_bits().wrapping_mul(2_654_435_761)).collect();
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
        pass.dispatch(&library, "matvec4_2048", grid, &bindings).unwrap();
        pass.barrier();
        pass.dispatch(&library, "matvec4_2048_add", grid, &bindings).unwrap();
        assert_clean(pass);
        let doubled: Vec<f32> = want.iter().map(|v| v * 2.0).collect();
        assert_close(&f32_values(&y), &doubled, 1e-3);
    }
}

/// Row-major `a[m][k] * b[n][k]^T`.
fn product(a: &[f32], b: &[f32], m: usize, n: usize, k: usize) -> Vec<f32> {
    let mut c = vec![0.0; m * n];
    for (index, out) in c.iter_mut().enumerate() {
        let (row, column) = (index / n, index % n);
        *out = (0..k).map(|i| a[row * k + i] * b[column * k + i]).sum();
    }
    c
}

fn gemm_source(m: usize, n: usize, k: usize) -> Source {
    let shapes = Source::empty().define("M", m).define("N", n).define("K", k);
    shapes.with("gemm.metal", include_str!("kernels/gemm.metal"))
}

#[test]
fn simdgroup_matrix_gemm_matches_a_plain_product_in_bf16_and_f32() {
    let (m, n, k) = (64, 96, 64);
    let (a16, a) = bf16_buffer(&random(11, m * k));
    let (b16, b) = bf16_buffer(&random(12, n * k));
    let (a32, b32) = (f32_buffer(&a), f32_buffer(&b));
    let want = product(&a, &b, m, n, k);
    for library in both(&gemm_source(m, n, k)) {
        for (kernel, a, b) in [("gemm8x8_bfloat", &a16, &b16), ("gemm8x8_float", &a32, &b32)] {
            let c = EmulatedBuffer::undefined(m * n * 4);
            let grid = Grid { threadgroups: [n as u32 / 32, m as u32 / 32, 1], threads: [128, 1, 1] };
            let mut pass = Pass::new();
            let bindings = [Binding::new(0, a), Binding::new(1, b), Binding::new(2, &c)];
            pass.dispatch(&library, kernel, grid, &bindings).unwrap();
            assert_clean(pass);
            assert_close(&f32_values(&c), &want, 1e-4);
        }
    }
}

#[test]
fn tensor_operations_match_a_plain_product_with_ragged_edges() {
    let (m, n, k) = (40, 72, 64);
    let (a16, a) = bf16_buffer(&random(13, m * k));
    let (b16, b) = bf16_buffer(&random(14, n * k));
    let want = product(&a, &b, m, n, k);
    for library in both(&gemm_source(m, n, k)) {
        for (kernel, tile, threads, factor) in [
            ("gemm_tensor", (32, 64), 128, 1.0),
            ("gemm_staged", (32, 64), 128, 2.0),
            ("gemm_cooperative", (16, 32), 32, 1.0),
            ("gemm_tiles_nk", (64, 32), 64, 1.0),
            ("gemm_tiles_kn", (64, 32), 64, 1.0),
        ] {
            let c = EmulatedBuffer::undefined(m * n * 4);
            let groups = [(n as u32).div_ceil(tile.1), (m as u32).div_ceil(tile.0), 1];
            let mut pass = Pass::new();
            let bindings = [Binding::new(0, &a16), Binding::new(1, &b16), Binding::new(2, &c)];
            let grid = Grid { threadgroups: groups, threads: [threads, 1, 1] };
            pass.dispatch(&library, kernel, grid, &bindings).unwrap();
            assert_clean(pass);
            let want: Vec<f32> = want.iter().map(|v| v * factor).collect();
            assert_close(&f32_values(&c), &want, 1e-4);
        }
    }
}

#[test]
fn simdgroup_functions_give_what_the_specification_says() {
    let source = Source::new("simd.metal", include_str!("kernels/simd.metal"));
    let x = random(21, 32);
    let input = f32_buffer(&x);
    let sum = |from: usize, to: usize| x[from..to].iter().sum::<f32>();
    let want: Vec<f32> = (0..32)
        .flat_map(|lane: usize| {
            [
                sum(0, 32),
                x.iter().copied().fold(f32::MIN, f32::max),
                x.iter().copied().fold(f32::MAX, f32::min),
                x[lane ^ 5],
                if lane + 3 < 32 { x[lane + 3] } else { x[lane] },
                if lane >= 3 { x[lane - 3] } else { x[lane] },
                x[7],
                x[lane * 7 % 32],
                sum(0, lane + 1),
                sum(0, lane),
                x.iter().filter(|v| **v > 0.0).count() as f32,
                sum(lane / 4 * 4, lane / 4 * 4 + 4),
                f32::from(u8::from(x.iter().any(|v| *v > 0.99))),
                496.0,
                if lane + 2 < 32 { x[lane + 2] } else { -1.0 },
                x[lane ^ 1] + (lane ^ 1) as f32,
            ]
        })
        .collect();
    for library in both(&source) {
        let out = EmulatedBuffer::undefined(32 * 16 * 4);
        let mut pass = Pass::new();
        let bindings = [Binding::new(0, &input), Binding::new(1, &out)];
        pass.dispatch(&library, "simd_functions", Grid::line(1, 32), &bindings).unwrap();
        assert_clean(pass);
        assert_close(&f32_values(&out), &want, 1e-5);
    }
}

#[test]
fn the_last_threadgroup_to_arrive_sees_all_partial_sums() {
    let source = Source::new("simd.metal", include_str!("kernels/simd.metal"));
    let x = random(22, 8 * 128);
    let input = f32_buffer(&x);
    for library in both(&source) {
        let partials = EmulatedBuffer::undefined(8 * 4);
        let arrived = EmulatedBuffer::zeroed(4);
        let out = EmulatedBuffer::undefined(4);
        let mut pass = Pass::new();
        let bindings =
            [Binding::new(0, &input), Binding::new(1, &partials), Binding::new(2, &arrived), Binding::new(3, &out)];
        pass.dispatch(&library, "last_arriver", Grid::line(8, 128), &bindings).unwrap();
        assert_clean(pass);
        assert_close(&f32_values(&out), &[x.iter().sum()], 1e-4);
    }
}

#[test]
fn atomics_count_every_thread_once() {
    let source = Source::new("simd.metal", include_str!("kernels/simd.metal"));
    let x: Vec<u32> = (0..1024).map(|i| i * i % 13).collect();
    let input = u32_buffer(&x);
    let want: Vec<u32> = (0..8).map(|bin| x.iter().filter(|v| **v % 8 == bin).count() as u32).collect();
    for library in both(&source) {
        let counts = EmulatedBuffer::zeroed(32);
        let sum = EmulatedBuffer::zeroed(4);
        let mut pass = Pass::new();
        let bindings = [Binding::new(0, &input), Binding::new(1, &counts), Binding::new(2, &sum)];
        pass.dispatch(&library, "histogram", Grid::line(8, 128), &bindings).unwrap();
        assert_clean(pass);
        assert_eq!(u32_values(&counts), want);
        assert_eq!(f32_values(&sum), [512.0]);
    }
}

#[test]
fn executed_lines_are_counted() {
    use msl::emulate::{Check, Coverage, Library, Options, coverage};
    let text = "#include <metal_stdlib>\n\
                using namespace metal;\n\
                kernel void f(const device float* x [[buffer(0)]], device float* out [[buffer(1)]],\n\
                              uint t [[thread_index_in_threadgroup]]) {\n\
                    if (x[t] > 0.0f) {\n\
                        out[t] = 1.0f;\n\
                    } else {\n\
                        out[t] = -1.0f;\n\
                    }\n\
                }\n";
    // A text of its own each time, so that counts of an earlier run are not seen.
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos();
    let source = Source::new("lines.metal", format!("{text}constant constexpr ulong RUN = {}ul;\n", now as u64));
    let options = Options { check: Check::Off, coverage: Coverage::On, threads: 1 };
    let library = Library::compile(&source, &options).unwrap();
    let lines = |values: f32| {
        let (x, out) = (f32_buffer(&[values; 32]), EmulatedBuffer::zeroed(128));
        let mut pass = Pass::new();
        pass.dispatch(&library, "f", Grid::line(1, 32), &[Binding::new(0, &x), Binding::new(1, &out)]).unwrap();
        let counts = coverage(&library).unwrap();
        [6, 8].map(|line| counts["lines.metal"][&line])
    };
    assert_eq!(lines(1.0), [32, 0]);
    assert_eq!(lines(-1.0), [32, 32]);
    for extension in ["so", "o", "cpp", "gcno", "gcda"] {
        let _ = std::fs::remove_file(library.path().with_extension(extension));
    }
}
