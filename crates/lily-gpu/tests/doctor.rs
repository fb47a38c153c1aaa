//! Every operation alone against the reference, on both matrix routes, with the emulator's checker on; and that the
//! examination finds what is wrong.

mod common;

use std::collections::BTreeSet;
use std::sync::Arc;

use common::spoiled::Spoiled;
use lily_gpu::doctor::{self, Finding};
use lily_gpu::emulated::Check;
use lily_gpu::route::MatrixRoute;
use lily_gpu::table::KERNELS;
use lily_gpu::{Driver, Emulated, EmulatedOptions, GpuDevice};
use lily_model::checkpoint::Checkpoint;
use lily_model::synth;

fn emulated(route: MatrixRoute) -> Emulated {
    Emulated::new(EmulatedOptions { route, check: Check::On, ..EmulatedOptions::default() })
}

fn findings<D: Driver>(driver: D, checkpoint: Checkpoint, longest: usize) -> Vec<Finding> {
    let capacity = doctor::capacity(&checkpoint.model().config);
    let mut device = GpuDevice::new(driver, Arc::new(checkpoint), capacity).expect("the device starts");
    doctor::examine(&mut device, longest, &mut |f| {
        let (op, case, ms) = (f.op, &f.case, f.time.as_secs_f64() * 1e3);
        println!("{op:20} {case:60} {:.1e} of {:.0e} {ms:8.1} ms {}", f.error, f.tolerance, f.kernels.join(" "));
    })
}

fn assert_right(findings: &[Finding]) {
    let wrong: Vec<String> = findings
        .iter()
        .filter_map(|f| f.problem.as_ref().map(|p| format!("{} ({}), {}: {p}", f.op, f.kernels.join(", "), f.case)))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_kernel_is_right_on_simdgroup_matrices_up_to_the_last_position() {
    let checkpoint = synth::in_memory(&common::even(), 1).expect("a valid geometry");
    let findings = findings(emulated(MatrixRoute::Simdgroup), checkpoint, doctor::LONGEST);
    assert_right(&findings);
    let ran: BTreeSet<&str> = findings.iter().flat_map(|f| f.kernels.iter().copied()).collect();
    assert_eq!(ran, KERNELS.into_iter().collect(), "each kernel ran in some case");
}

#[test]
fn every_kernel_is_right_on_tensor_operations() {
    let checkpoint = synth::in_memory(&common::even(), 2).expect("a valid geometry");
    assert_right(&findings(emulated(MatrixRoute::Tensor), checkpoint, 1024));
}

#[test]
fn a_geometry_that_divides_nothing_evenly_is_right_on_simdgroup_matrices() {
    let checkpoint = synth::in_memory(&common::crooked(), 3).expect("a valid geometry");
    assert_right(&findings(emulated(MatrixRoute::Simdgroup), checkpoint, 1024));
}

#[test]
fn a_geometry_that_divides_nothing_evenly_is_right_on_tensor_operations() {
    let checkpoint = synth::in_memory(&common::crooked(), 4).expect("a valid geometry");
    assert_right(&findings(emulated(MatrixRoute::Tensor), checkpoint, 1024));
}

#[test]
fn what_is_wrong_with_a_kernel_is_found() {
    let checkpoint = synth::in_memory(&common::even(), 5).expect("a valid geometry");
    // A wrong number; a race; rows past the last one; a counter that is not set back.
    let faults = [
        ("gdn_step.metal", "out[base + uint(j)] = fma(d, qk, p);", "out[base + uint(j)] = p;"),
        ("attn_combine.metal", "threadgroup_barrier(mem_flags::mem_threadgroup);", ""),
        ("add_rms_norm.metal", "row >= step.rows", "row > step.rows"),
        ("argmax.metal", "last_to_arrive(arrivals + index, ARGMAX_PARTS,", "last_to_arrive(arrivals + index, 1000,"),
    ];
    let findings = findings(Spoiled::new(emulated(MatrixRoute::Simdgroup), &faults), checkpoint, 1024);
    let wrong: BTreeSet<&str> = findings.iter().filter(|f| !f.is_ok()).map(|f| f.op).collect();
    assert_eq!(wrong, BTreeSet::from(["gdn_step", "attn_combine", "add_rms_norm", "argmax"]));
    let problem = |op| findings.iter().filter(|f| f.op == op).find_map(|f| f.problem.clone()).unwrap_or_default();
    assert!(problem("gdn_step").starts_with("output["), "{}", problem("gdn_step"));
    assert!(problem("attn_combine").contains("threadgroup memory"), "{}", problem("attn_combine"));
    assert!(problem("add_rms_norm").contains("nothing wrote"), "{}", problem("add_rms_norm"));
    assert!(
        problem("argmax").contains("next_tokens[0]") || problem("argmax").contains("chosen[0]"),
        "{}",
        problem("argmax")
    );
}
