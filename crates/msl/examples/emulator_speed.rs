//! How fast the emulator runs typical kernels: `cargo run --release -p msl --example emulator_speed`.
//! Prints CPU milliseconds a dispatch on one thread, plain and under the checker. With an argument, only that kernel.

#[path = "../tests/support/mod.rs"]
mod support;

use msl::Source;
use msl::emulate::{Binding, Check, EmulatedBuffer, Grid, Library, Options, Pass};
use support::*;

/// CPU time of this thread in milliseconds (Linux).
fn cpu_ms() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|n| n.parse::<f64>().ok()).unwrap_or(0.0) / 1e6
}

fn main() {
    let (m, n, k) = (64usize, 512usize, 512usize);
    let rows = 2048usize;
    let source = Source::empty()
        .define("M", m)
        .define("N", n)
        .define("K", k)
        .define("ROWS", rows)
        .with("gemm.metal", include_str!("../tests/kernels/gemm.metal"))
        .with(
            "matvec.metal",
            include_str!("../tests/kernels/matvec.metal")
                .replace("int K, bool", "int KK, bool")
                .replace("(K / ", "(KK / ")
                .replace(" K / 32", " KK / 32")
                .replace("2048", "512"),
        );
    let libraries = [Check::Off, Check::On].map(|check| {
        let options = Options { check, threads: 1, ..Options::default() };
        Library::compile(&source, &options).unwrap_or_else(|error| panic!("{error}"))
    });
    let only = std::env::args().nth(1);
    let a = bf16_buffer(&random(1, m * k)).0;
    let b = bf16_buffer(&random(2, n * k)).0;
    let c = EmulatedBuffer::undefined(m * n * 4);
    let w = EmulatedBuffer::zeroed(rows * k / 2);
    let scales = bf16_buffer(&random(3, rows * k / 64)).0;
    let x = bf16_buffer(&random(4, k)).0;
    let y = EmulatedBuffer::undefined(rows * 4);
    let gemm = [Binding::new(0, &a), Binding::new(1, &b), Binding::new(2, &c)];
    let matvec = [
        Binding::new(0, &w),
        Binding::new(1, &scales),
        Binding::new(2, &scales),
        Binding::new(3, &x),
        Binding::new(4, &y),
    ];
    let cases: [(&str, Grid, &[Binding]); 4] = [
        ("matvec4_512", Grid::line(rows as u32 / 2, 64), &matvec),
        ("gemm_tensor", Grid { threadgroups: [n as u32 / 64, m as u32 / 32, 1], threads: [128, 1, 1] }, &gemm),
        ("gemm_staged", Grid { threadgroups: [n as u32 / 64, m as u32 / 32, 1], threads: [128, 1, 1] }, &gemm),
        ("gemm8x8_bfloat", Grid { threadgroups: [n as u32 / 32, m as u32 / 32, 1], threads: [128, 1, 1] }, &gemm),
    ];
    for (kernel, grid, bindings) in cases.into_iter().filter(|case| only.as_deref().is_none_or(|name| name == case.0)) {
        for library in &libraries {
            let mut best = f64::MAX;
            for _ in 0..3 {
                let mut pass = Pass::new();
                let start = cpu_ms();
                pass.dispatch(library, kernel, grid, bindings).unwrap_or_else(|error| panic!("{error}"));
                best = best.min(cpu_ms() - start);
                assert!(pass.reports().is_empty());
            }
            let mode = if library.check() == Check::On { "checked" } else { "plain" };
            println!("{kernel:16} {mode:8} {best:8.2} ms");
        }
    }
}
