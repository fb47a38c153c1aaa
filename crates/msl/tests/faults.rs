//! Each fault the checker claims to catch, seeded into a kernel that is otherwise clean: it is caught, at its line, and the
//! clean kernel gives no report.

#![allow(clippy::single_range_in_vec_init)]

mod support;

use msl::Source;
use msl::emulate::{Binding, Check, EmulatedBuffer, Grid, Library, Options, Pass, Report, ReportKind};
use support::*;

fn library(check: Check) -> Library {
    let source = Source::new("faults.metal", include_str!("kernels/faults.metal"));
    Library::compile(&source, &Options { check, ..Options::default() }).unwrap_or_else(|error| panic!("{error}"))
}

fn line_of(text: &str) -> u32 {
    let source = include_str!("kernels/faults.metal");
    source.lines().position(|line| line.contains(text)).unwrap() as u32 + 1
}

fn run(fault: &str, kernel: &str) -> Vec<Report> {
    let library = library(Check::On);
    let x = f32_buffer(&random(1, 4 * 64));
    let out = EmulatedBuffer::undefined(4 * 64 * 4);
    let counter = EmulatedBuffer::zeroed(8);
    let a = bf16_buffer(&random(2, 16 * 32)).0;
    let square = EmulatedBuffer::undefined(16 * 16 * 4);
    let (groups, threads, bindings): (u32, u32, Vec<Binding>) = match kernel {
        "reverse" => (4, 64, vec![Binding::new(0, &x), Binding::new(1, &out)]),
        "neighbour" | "lanes" => (1, 64, vec![Binding::new(0, &out)]),
        "arrive" => (4, 64, vec![Binding::new(0, &out), Binding::new(1, &counter), Binding::new(2, &square)]),
        "counter" => (1, 32, vec![Binding::new(0, &counter), Binding::new(1, &out)]),
        "multiply" => (1, 64, vec![Binding::new(0, &a), Binding::new(1, &square)]),
        _ => panic!("{kernel}"),
    };
    let mut pass = Pass::new();
    pass.dispatch(&library, &format!("{kernel}/{fault}"), Grid::line(groups, threads), &bindings).unwrap();
    pass.finish()
}

#[track_caller]
fn caught(fault: &str, kernel: &str, kind: ReportKind, line: Option<&str>) {
    let reports = run(fault, kernel);
    let text: Vec<String> = reports.iter().map(Report::to_string).collect();
    let found = reports.iter().find(|report| report.kind == kind);
    let found = found.unwrap_or_else(|| panic!("{fault}: no {kind:?} among\n{}", text.join("\n")));
    if let Some(line) = line {
        let (file, number) = found.place.clone().unwrap_or_else(|| panic!("{fault}: no line in {found}"));
        assert_eq!((file.as_str(), number), ("faults.metal", line_of(line)), "{found}");
    }
}

#[test]
fn the_clean_kernels_give_no_report() {
    for kernel in ["reverse", "neighbour", "lanes", "arrive", "counter", "multiply"] {
        let reports = run("NONE", kernel);
        let text: Vec<String> = reports.iter().map(Report::to_string).collect();
        assert!(reports.is_empty(), "{kernel}:\n{}", text.join("\n"));
    }
}

#[test]
fn a_missing_barrier_is_a_race_in_threadgroup_memory() {
    caught("NO_BARRIER", "reverse", ReportKind::ThreadgroupRace, None);
}

#[test]
fn a_barrier_for_the_wrong_memory_orders_nothing() {
    caught("WRONG_FLAGS", "reverse", ReportKind::ThreadgroupRace, Some("= tile[63 - tid];"));
    caught("DEVICE_WRONG_FLAGS", "neighbour", ReportKind::Race, Some("float next ="));
}

#[test]
fn a_simdgroup_barrier_is_too_weak_between_simdgroups() {
    caught("WEAK_BARRIER", "reverse", ReportKind::ThreadgroupRace, None);
}

#[test]
fn lanes_need_a_simdgroup_barrier() {
    caught("LANES_NO_BARRIER", "lanes", ReportKind::ThreadgroupUninitialized, Some("= tile[tid ^ 1]"));
}

#[test]
fn a_write_after_a_read_by_another_thread_is_a_race() {
    caught("WRITE_AFTER_READ", "neighbour", ReportKind::Race, Some("    out[tid] = next;"));
}

#[test]
fn a_divergent_barrier_is_reported_at_its_line() {
    let barrier = "        threadgroup_barrier(mem_flags::mem_threadgroup);";
    caught("DIVERGENT", "reverse", ReportKind::DivergentBarrier, Some(barrier));
    caught("RETURN_BEFORE_BARRIER", "reverse", ReportKind::DivergentBarrier, None);
}

#[test]
fn a_divergent_barrier_is_an_error_even_without_the_checker() {
    let library = library(Check::Off);
    let x = f32_buffer(&random(1, 4 * 64));
    let out = EmulatedBuffer::zeroed(4 * 64 * 4);
    let mut pass = Pass::new();
    let error =
        pass.dispatch(&library, "reverse/DIVERGENT", Grid::line(4, 64), &[Binding::new(0, &x), Binding::new(1, &out)]);
    assert!(error.unwrap_err().to_string().contains("barrier that not all threads reach"));
}

#[test]
fn a_simd_operation_with_half_the_lanes_is_reported() {
    caught("PARTIAL_SIMD", "reverse", ReportKind::PartialSimdgroup, Some("simd_sum(x[tid])"));
}

#[test]
fn out_of_bounds_accesses_are_reported_at_their_line() {
    caught("BOUNDS", "reverse", ReportKind::OutOfBounds, Some("tid + 1] = 0.0f"));
    caught("THREADGROUP_BOUNDS", "reverse", ReportKind::ThreadgroupOutOfBounds, Some("tile[64 - tid]"));
}

#[test]
fn threadgroups_that_write_the_same_bytes_race() {
    caught("CROSS_GROUP", "reverse", ReportKind::CrossThreadgroupRace, None);
}

#[test]
fn threadgroup_memory_is_not_zeroed() {
    let line = "= tile[63 - tid];";
    caught("UNWRITTEN_THREADGROUP", "reverse", ReportKind::ThreadgroupUninitialized, Some(line));
}

#[test]
fn a_hand_over_without_fence_or_barrier_is_a_race() {
    caught("ARRIVE_NO_FENCE", "arrive", ReportKind::CrossThreadgroupRace, Some("sum += partials"));
    caught("ARRIVE_NO_BARRIER", "arrive", ReportKind::CrossThreadgroupRace, Some("sum += partials"));
}

#[test]
fn plain_writes_of_several_threads_race_where_atomics_do_not() {
    caught("MIXED_ATOMIC", "counter", ReportKind::Race, Some("plain[0] = tid"));
}

#[test]
fn tensor_operations_are_checked_like_any_access() {
    caught("MATMUL_NO_BARRIER", "multiply", ReportKind::ThreadgroupRace, None);
    caught("MATMUL_BOUNDS", "multiply", ReportKind::OutOfBounds, Some("op.run(left"));
    caught("MATMUL_SCOPE", "multiply", ReportKind::ScopeMismatch, Some("op.run(left"));
}

fn copy(pass: &mut Pass, library: &Library, from: Binding, to: Binding) {
    pass.dispatch(library, "copy", Grid::line(1, 32), &[from, to]).unwrap();
}

#[test]
fn two_dispatches_on_one_buffer_need_a_barrier() {
    let library = library(Check::On);
    let (a, b, c) = (EmulatedBuffer::zeroed(128), EmulatedBuffer::undefined(128), EmulatedBuffer::undefined(128));
    for barrier in [false, true] {
        let mut pass = Pass::new();
        copy(&mut pass, &library, Binding::new(0, &a), Binding::new(1, &b));
        if barrier {
            pass.barrier();
        }
        copy(&mut pass, &library, Binding::new(0, &b), Binding::new(1, &c));
        let kinds: Vec<ReportKind> = pass.finish().iter().map(|report| report.kind).collect();
        assert_eq!(kinds, if barrier { vec![] } else { vec![ReportKind::MissingDispatchBarrier] });
    }
    // Reading in the first and writing in the second is a conflict as well.
    let mut pass = Pass::new();
    copy(&mut pass, &library, Binding::new(0, &a), Binding::new(1, &b));
    copy(&mut pass, &library, Binding::new(0, &c), Binding::new(1, &a));
    assert_eq!(pass.reports()[0].kind, ReportKind::MissingDispatchBarrier);
}

#[test]
fn two_dispatches_that_only_read_a_buffer_need_no_barrier() {
    let library = library(Check::On);
    let (a, b, c) = (EmulatedBuffer::zeroed(128), EmulatedBuffer::undefined(128), EmulatedBuffer::undefined(128));
    let mut pass = Pass::new();
    copy(&mut pass, &library, Binding::new(0, &a), Binding::new(1, &b));
    copy(&mut pass, &library, Binding::new(0, &a), Binding::new(1, &c));
    assert_clean(pass);
}

#[test]
fn memory_that_nothing_wrote_must_not_be_read() {
    let library = library(Check::On);
    let (a, b) = (EmulatedBuffer::undefined(128), EmulatedBuffer::undefined(128));
    let mut pass = Pass::new();
    copy(&mut pass, &library, Binding::new(0, &a), Binding::new(1, &b));
    let reports = pass.finish();
    assert_eq!(reports[0].kind, ReportKind::Uninitialized);
    assert_eq!(reports[0].buffer, Some((0, "x".to_string())));
    a.write(0, &[0; 128]);
    let mut pass = Pass::new();
    copy(&mut pass, &library, Binding::new(0, &a), Binding::new(1, &b));
    assert_clean(pass);
    a.poison(64..68);
    let mut pass = Pass::new();
    copy(&mut pass, &library, Binding::new(0, &a), Binding::new(1, &b));
    assert_eq!((pass.reports()[0].kind, pass.reports()[0].offset), (ReportKind::Uninitialized, 64));
}

#[test]
fn accesses_outside_the_declared_ranges_are_reported() {
    let library = library(Check::On);
    let (a, b) = (EmulatedBuffer::zeroed(256), EmulatedBuffer::undefined(256));
    let all = |buffer| Binding::new(0, buffer).declare(vec![0..128], vec![]);
    let mut pass = Pass::new();
    copy(&mut pass, &library, all(&a), Binding::new(1, &b).declare(vec![], vec![0..128]));
    assert!(pass.reports().is_empty());
    pass.barrier();
    let short = Binding::new(0, &a).declare(vec![0..124], vec![]);
    copy(&mut pass, &library, short, Binding::new(1, &b).declare(vec![], vec![0..128]));
    assert_eq!((pass.reports()[0].kind, pass.reports()[0].offset), (ReportKind::UndeclaredRead, 124));
    pass.barrier();
    copy(&mut pass, &library, all(&a), Binding::new(1, &b).at(16).declare(vec![], vec![0..128]));
    assert_eq!((pass.reports()[1].kind, pass.reports()[1].offset), (ReportKind::UndeclaredWrite, 128));
}

#[test]
fn bindings_are_validated_before_anything_runs() {
    let library = library(Check::Off);
    let (a, b) = (EmulatedBuffer::zeroed(128), EmulatedBuffer::zeroed(128));
    let refused = |kernel: &str, grid, bindings: &[Binding]| {
        Pass::new().dispatch(&library, kernel, grid, bindings).unwrap_err().to_string()
    };
    let both = [Binding::new(0, &a), Binding::new(1, &b)];
    assert!(refused("copi", Grid::line(1, 32), &both).contains("no kernel named copi"));
    assert!(refused("copy", Grid::line(1, 33), &both).contains("multiple of 32"));
    assert!(refused("copy", Grid::line(0, 32), &both).contains("threadgroups"));
    assert!(refused("copy", Grid::line(1, 32), &both[..1]).contains("buffer 1 (out) unbound"));
    assert!(refused("copy", Grid::line(1, 32), &[both[0].clone().at(2), both[1].clone()]).contains("4-byte alignment"));
    let surplus = [both[0].clone(), both[1].clone(), Binding::new(2, &a)];
    assert!(refused("copy", Grid::line(1, 32), &surplus).contains("has no buffer 2"));
}
