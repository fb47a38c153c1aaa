//! Type mistakes that Apple's compiler refuses are refused here: by g++ alone, and address spaces by clang-19.

use msl::Source;
use msl::strict::{Diagnostic, clang, host};

/// One kernel a body; body `i` stands on line `3 + 5 * i + 3`.
fn source(bodies: &[&str]) -> Source {
    let mut text = String::from("#include <metal_stdlib>\nusing namespace metal;\n");
    for (index, body) in bodies.iter().enumerate() {
        text.push_str(&format!(
            "kernel void f{index}(device float* x [[buffer(0)]], const device half4* h [[buffer(1)]],\n\
             constant uint& n [[buffer(2)]], device atomic_uint* a [[buffer(3)]], uint t [[thread_index_in_threadgroup]])\n\
             {{ threadgroup float tile[64];\n{body}\n}}\n"
        ));
    }
    Source::new("x.metal", text)
}

/// Whether every body has a complaint on its line.
#[track_caller]
fn assert_each_found(bodies: &[&str], list: &[Diagnostic]) {
    for (index, body) in bodies.iter().enumerate() {
        let line = 6 + 5 * index as u32;
        assert!(list.iter().any(|d| d.line == line && d.file == "x.metal"), "{body} (line {line}): {list:#?}");
    }
}

const MISTAKES: [&str; 12] = [
    "half v = 1.0f;",
    "bfloat v = x[0];",
    "half4 v = float4(1.0f);",
    "float4 v = h[0];",
    "uint4 v = int4(1);",
    "h[0] = half4(0.0h);",
    "n = 3;",
    "float v = simd_sum(h[0].x);",
    "float v = max(1.0f, 2);",
    "a[0] = a[1];; atomic_fetch_add_explicit(x, 1.0f, memory_order_relaxed);",
    "float v = sqrtf(2.0f);",
    "float v = as_type<float>(h[0]);",
];

const ADDRESS_SPACES: [&str; 6] = [
    "device float* p = tile;",
    "threadgroup float* p = x + 1;",
    "constant uint& m = t;",
    "thread float* p = tile;",
    "device float* p = (thread float*)x;",
    "threadgroup float& r = x[0];",
];

const CLEAN: [&str; 6] = [
    "tile[t] = float(h[t].x); threadgroup_barrier(mem_flags::mem_threadgroup); x[t] = simd_sum(tile[t]) * float(n);",
    "half4 v = half4(float4(h[0]) * 2.0); x[0] = float(v.x + h[1].y) + dot(float4(v).xy, float2(0.5, 1));",
    "threadgroup float* p = tile + t; device float* q = x; q[t] = p[0]; thread float w[4]; thread float* r = w; r[0] = 1.0f;",
    "float4 v = t < n ? float4(h[t]) : float4(0); v.xy = v.zw; v.zw += float2(1); x[t] = v.x;",
    "atomic_fetch_add_explicit(a, 1u, memory_order_relaxed); uint4 w = uint4(t, 1, 2, 3); x[0] = float(w[t & 3] >> 2);",
    "bfloat b = bfloat(x[0]); x[1] = float(b) + precise::exp(x[2]) + clamp(x[3], -1.0f, 1.0f);",
];

#[test]
fn the_host_compiler_refuses_type_mistakes_at_their_line() {
    assert_each_found(&MISTAKES, &host(&source(&MISTAKES)).unwrap());
    assert_eq!(host(&source(&CLEAN)).unwrap(), []);
}

#[test]
fn clang_refuses_type_mistakes_and_wrong_address_spaces() {
    let mistakes: Vec<&str> = MISTAKES.into_iter().chain(ADDRESS_SPACES).collect();
    let list = clang(&source(&mistakes)).unwrap_or_else(|error| panic!("{error}"));
    assert_each_found(&mistakes, &list);
    assert_eq!(clang(&source(&CLEAN)).unwrap(), []);
}

#[test]
fn the_test_kernels_pass_both_checks() {
    let shapes = Source::empty().define("M", 32).define("N", 32).define("K", 32).define("ROWS", 3);
    let source = shapes.with("rms_norm.metal", include_str!("kernels/rms_norm.metal"));
    for source in [
        source,
        Source::empty().define("ROWS", 3).with("matvec.metal", include_str!("kernels/matvec.metal")),
        Source::empty()
            .define("M", 32)
            .define("N", 32)
            .define("K", 32)
            .with("gemm.metal", include_str!("kernels/gemm.metal")),
        Source::new("simd.metal", include_str!("kernels/simd.metal")),
        Source::new("faults.metal", include_str!("kernels/faults.metal")),
    ] {
        assert_eq!(host(&source).unwrap(), []);
        assert_eq!(clang(&source).unwrap(), []);
    }
}
