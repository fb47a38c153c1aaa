//! Every test kernel, translated to CUDA and compiled for sm_80 and sm_90 by NVRTC.

#[path = "support/nvrtc.rs"]
mod nvrtc;

use msl::Source;
use msl::cuda::translate;

fn compiles(source: &Source, entries: usize) {
    let translated = translate(source).unwrap();
    assert_eq!(translated.entries.len(), entries);
    for architecture in ["sm_80", "sm_90"] {
        let image = nvrtc::compile(&translated.text, architecture);
        for entry in &translated.entries {
            let name = entry.symbol.as_bytes();
            assert!(image.windows(name.len()).any(|w| w == name), "{} is not in the cubin", entry.symbol);
        }
    }
}

#[test]
fn rms_norm_and_matvec_compile() {
    let shapes = Source::empty().define("N", 200).define("ROWS", 33);
    let source = shapes
        .with("rms_norm.metal", include_str!("kernels/rms_norm.metal"))
        .with("matvec.metal", include_str!("kernels/matvec.metal"));
    compiles(&source, 4);
}

#[test]
fn both_matrix_routes_compile() {
    let shapes = Source::empty().define("M", 40).define("N", 72).define("K", 64);
    compiles(&shapes.with("gemm.metal", include_str!("kernels/gemm.metal")), 7);
}

#[test]
fn simdgroup_functions_and_atomics_compile() {
    compiles(&Source::new("simd.metal", include_str!("kernels/simd.metal")), 3);
}
