//! Every lint catches its mistake, and the test kernels, which are clean, give no finding.

use msl::Source;
use msl::lint::lint;
use msl::reflect::reflect;

/// Rules found in `body`, placed after a kernel-free prelude.
fn rules(text: &str) -> Vec<&'static str> {
    let source = Source::new("x.metal", format!("using namespace metal;\n{text}"));
    let unit = reflect(&source).unwrap_or_else(|error| panic!("{error}"));
    lint(&unit).into_iter().map(|finding| finding.rule).collect()
}

#[test]
fn pointers_and_references_need_an_address_space() {
    for text in [
        "float f(float* p) { return p[0]; }",
        "float f(const float& p) { return p; }",
        "void f(device float* p) { float* q = p; }",
        "void f(device float* p) { const float4& q = *(device float4*)p; }",
        "void f(device float* p) { uint x = *(const uint*)p; }",
        "void f(device float* p) { uint x = *reinterpret_cast<const uint*>(p); }",
        "struct S { float* p; };",
        "template <typename T> T f(T* p) { return p[0]; }",
    ] {
        assert_eq!(rules(text), ["address space"], "{text}");
    }
    for text in [
        "float f(const device float* p, thread float& q, threadgroup half4* r, float s) { return p[0] * q; }",
        "void f(device float* p) { device float* q = p; thread auto& r = *q; float x = 2 * p[0]; uint y = 3u & uint(x); }",
        "void f(device float* p) { uint x = *(const device uint*)p; float a = x * float(x); }",
        "struct S { device float* p; float x; };",
        "void f(float a, float b) { float c = (a) * b; bool d = a && b; }",
    ] {
        assert_eq!(rules(text), [""; 0], "{text}");
    }
}

#[test]
fn words_that_metal_lacks_are_found() {
    for text in [
        "struct S { virtual void f(); };",
        "void f() { goto end; end: return; }",
        "void f() { double x = 1.0f; }",
        "void f() { float x = std::sqrt(1.0f); }",
        "void f() { float x = log1p(0.5f); }",
        "void f(thread simdgroup_float8x8& m) { m.thread_elements()[0] = 1.0f; }",
    ] {
        assert_eq!(rules(text), ["not in Metal"], "{text}");
    }
    assert_eq!(rules("float f(float x) { float log1p = log(1.0f + x); return log1p; }"), [""; 0]);
    assert_eq!(rules("void f() { float x = -INFINITY; }"), ["fast math"]);
    assert_eq!(rules("void f() { bool x = isnan(1.0f); }"), ["fast math"]);
    assert_eq!(rules("void __metal_f() { }"), ["reserved name"]);
}

#[test]
fn recursion_is_found_directly_and_through_others() {
    assert_eq!(rules("int f(int n) { return n == 0 ? 1 : n * f(n - 1); }"), ["recursion"]);
    assert_eq!(rules("int g(int n); int f(int n) { return g(n); } int g(int n) { return f(n); }"), ["recursion"; 2]);
    assert_eq!(rules("int f(int n) { return n; } int f(int n, int m) { return f(n) + m; }"), [""; 0]);
}

#[test]
fn function_pointers_are_found() {
    assert_eq!(rules("void f() { float (*g)(float) = nullptr; }"), ["function pointer"]);
    assert_eq!(rules("void f(device float* p, int n) { float x = (*p); float y = float(n)*(x); }"), [""; 0]);
}

#[test]
fn unknown_attributes_are_found() {
    assert_eq!(rules("[[host]] void f() { }"), ["unknown attribute"]);
    assert_eq!(rules("kernel void f(uint i [[thread_index_in_simdgroup]]) { }"), [""; 0]);
}

#[test]
fn shifts_past_the_width_are_found() {
    assert_eq!(rules("uint f(uint x) { return x << 32; }"), ["shift"]);
    assert_eq!(rules("ulong f(ulong x) { return x >> 64; }"), ["shift"]);
    assert_eq!(rules("ulong f(uint y) { ulong x = ulong(y) << 40; return x << 32 | 1ul << 33; }"), [""; 0]);
}

#[test]
fn buffer_indices_are_used_once_and_without_gaps() {
    let kernel = |a: u32, b: u32| {
        format!("kernel void f(device float* p [[buffer({a})]], device float* q [[buffer({b})]]) {{ }}")
    };
    assert_eq!(rules(&kernel(0, 1)), [""; 0]);
    assert_eq!(rules(&kernel(0, 0)), ["buffer index"]);
    assert_eq!(rules(&kernel(0, 2)), ["buffer index"]);
    let missing = Source::new("x.metal", "kernel void f(device float* p) { }");
    assert!(reflect(&missing).unwrap_err().to_string().contains("without [[buffer(n)]]"));
    let large = Source::new("x.metal", "kernel void f(device float* p [[buffer(31)]]) { }");
    assert!(reflect(&large).unwrap_err().to_string().contains("0 to 30"));
}

#[test]
fn threadgroup_memory_is_summed_over_templates_and_limited() {
    let text = "#define INSTANTIATE(name, func, ...) \
        template [[host_name(name)]] [[kernel]] decltype(func<__VA_ARGS__>) func<__VA_ARGS__>;\n\
        constant constexpr int ROWS = 64;\n\
        template <typename T, int N> [[kernel]] void f(device T* p [[buffer(0)]]) {\n\
            threadgroup T a[ROWS][N + 8]; threadgroup float4 b;\n\
        }\n\
        INSTANTIATE(\"small\", f, half, 64) INSTANTIATE(\"large\", f, float, 128)";
    assert_eq!(rules(text), ["threadgroup memory"]);
    let unit = reflect(&Source::new("x.metal", text)).unwrap();
    let sums: Vec<_> = unit.reflections.iter().map(|k| (k.name.as_str(), k.threadgroup_bytes())).collect();
    assert_eq!(sums, [("small", Some(64 * 72 * 2 + 16)), ("large", Some(64 * 136 * 4 + 16))]);
}

#[test]
fn threadgroup_memory_is_declared_at_kernel_scope_without_initialiser() {
    let error = |text: &str| reflect(&Source::new("x.metal", text)).unwrap_err().to_string();
    let kernel = |body: &str| format!("kernel void f(device float* p [[buffer(0)]]) {{ {body} }}");
    assert!(error(&kernel("threadgroup float x = 1.0f;")).contains("no initialiser"));
    assert!(error(&kernel("{ threadgroup float x; }")).contains("at kernel scope"));
    let param = "kernel void f(threadgroup float* p [[threadgroup(0)]]) { }";
    assert!(error(param).contains("at kernel scope"));
    assert_eq!(rules(&kernel("threadgroup float x[4]; threadgroup float* q = x + 1;")), [""; 0]);
    assert_eq!(rules("threadgroup float x[4];"), ["scope"]);
}

#[test]
fn a_template_is_instantiated_once_with_the_same_arguments() {
    let text = "template <int N> [[kernel]] void f(device float* p [[buffer(0)]]) { p[0] = N; }\n\
        template [[host_name(\"a\")]] [[kernel]] decltype(f<1>) f<1>;\n\
        template [[host_name(\"b\")]] [[kernel]] decltype(f<2>) f<2>;\n";
    assert_eq!(rules(text), [""; 0]);
    let again = "template [[host_name(\"c\")]] [[kernel]] decltype(f<1>) f<1>;";
    assert_eq!(rules(&format!("{text}{again}")), ["instantiation"]);
}

#[test]
fn globals_are_constant() {
    assert_eq!(rules("float table[2] = {1.0f, 2.0f};"), ["scope"]);
    assert_eq!(rules("constexpr int N = 3;"), ["scope"]);
    assert_eq!(
        rules("constant float table[2] = {1.0f, 2.0f}; constant constexpr int N = 3; struct S { int x; };"),
        [""; 0]
    );
    assert_eq!(rules("namespace a { int x = 3; int f() { int y = 3; return y; } }"), ["scope"]);
}

#[test]
fn positions_of_one_kernel_agree_in_width() {
    let text = "kernel void f(uint3 g [[threadgroup_position_in_grid]], uint t [[threads_per_threadgroup]]) { }";
    assert_eq!(rules(text), ["position width"]);
}

#[test]
fn the_test_kernels_are_clean() {
    let sources = [
        Source::empty().define("N", 200).with("rms_norm.metal", include_str!("kernels/rms_norm.metal")),
        Source::empty().define("ROWS", 3).with("matvec.metal", include_str!("kernels/matvec.metal")),
        Source::empty()
            .define("M", 32)
            .define("N", 32)
            .define("K", 32)
            .with("gemm.metal", include_str!("kernels/gemm.metal")),
        Source::new("simd.metal", include_str!("kernels/simd.metal")),
        Source::new("faults.metal", include_str!("kernels/faults.metal")),
    ];
    for source in sources {
        let findings = lint(&reflect(&source).unwrap());
        assert!(findings.is_empty(), "{}", findings[0]);
    }
}
