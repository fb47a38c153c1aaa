//! What can go wrong becomes an error that says what and where; nothing is left open, running or allocated.

mod common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{CAPACITY, finished, logits, metal, prompt, submit, tiny};
use fake_metal::driver::Driver;
use fake_metal::machine::{Fault, Session, Settings};
use fake_metal::metal::{Metal, MetalOptions, budget, open};
use fake_metal::source::LibrarySource;
use lily_gpu::table::KERNELS;
use lily_model::device::{Capacity, Device, DeviceError, Output, Tokens};

fn refused(settings: Settings) -> String {
    let session = Session::start(settings);
    let error = metal(&session, &tiny()).err().expect("refused").to_string();
    assert_eq!(session.allocated(), 0, "nothing is kept: {error}");
    assert_eq!(session.violations(), Vec::<String>::new());
    error
}

#[test]
fn weights_larger_than_the_working_set_are_refused_with_the_plan_before_anything_is_taken() {
    let error = refused(Settings { working_set: budget::RESERVE + (1 << 20), memory: 0, ..Settings::default() });
    assert!(error.contains("weights 0.00 GB") && error.contains("iogpu.wired_limit_mb"), "{error}");
}

#[test]
fn a_device_of_just_the_working_set_starts_and_one_byte_more_is_refused() {
    let limits = budget::Limits { working_set: 0, max_buffer: 1 << 30, page: 4096 };
    let need = budget::measure(&tiny(), &CAPACITY, limits).expect("counted").total();
    let error = refused(Settings { working_set: need - 1, ..Settings::default() });
    assert!(error.contains("fewer or shorter sequences") && error.contains(&need.to_string()), "{error}");
    let session = Session::start(Settings { working_set: need, ..Settings::default() });
    metal(&session, &tiny()).expect("it fits");
}

#[test]
fn a_buffer_that_the_gpu_does_not_give_is_out_of_memory_by_name() {
    let error = refused(Settings { memory: 1 << 20, ..Settings::default() });
    assert!(error.contains("out of memory for"), "{error}");
}

#[test]
fn an_old_system_and_an_old_gpu_are_refused() {
    assert!(refused(Settings { macos: (14, 6), ..Settings::default() }).contains("macOS is 14.6"));
    assert!(refused(Settings { family: 6, ..Settings::default() }).contains("Apple6"));
}

#[test]
fn a_kernel_that_needs_too_many_registers_is_refused_by_name() {
    let session = Session::start(Settings { max_threads: 32, ..Settings::default() });
    let mut device = metal(&session, &tiny()).expect("the device starts");
    let ids = prompt(20);
    let error = submit(&mut device, 0, 0, Tokens::Ids(&ids), ids.len(), Output::Logits).expect_err("refused");
    let error = error.to_string();
    assert!(error.contains("threadgroup of") && error.contains("at most 32"), "{error}");
}

#[test]
fn a_source_that_does_not_compile_is_named_by_file_and_line() {
    let session = Session::start(Settings::default());
    let mut driver = Metal::new(MetalOptions::default()).expect("the driver starts");
    let broken = "#include <metal_stdlib>\nusing namespace metal;\n[[kernel]] void f(float *p [[buffer(0)]]) {}\n";
    let parts = vec![("constants", "// one\n// two\n".to_string()), ("broken.metal", broken.to_string())];
    let error =
        driver.compile(&[LibrarySource { parts, metal_version: 320 }], &["f"]).expect_err("refused").to_string();
    assert!(error.contains("compilation failed: broken.metal:3"), "{error}");
    assert_eq!(session.violations(), Vec::<String>::new());
}

#[test]
fn a_kernel_that_is_missing_is_named() {
    let session = Session::start(Settings::default());
    let mut driver = Metal::new(MetalOptions::default()).expect("the driver starts");
    let text = "#include <metal_stdlib>\nusing namespace metal;\n[[kernel]] void f(device float *p [[buffer(0)]]) { p[0] = 1.0f; }\n";
    let source = LibrarySource { parts: vec![("f.metal", text.to_string())], metal_version: 320 };
    let error = driver.compile(&[source], &["f", "g"]).expect_err("refused").to_string();
    assert!(error.contains("no kernel g"), "{error}");
    assert_eq!(session.violations(), Vec::<String>::new());
}

fn faulty(code: isize, words: &'static str) -> (Session, DeviceError) {
    let session = Session::start(Settings::default());
    let mut device = metal(&session, &tiny()).expect("the device starts");
    logits(&mut device, 0, 0, &prompt(20));
    session.set(|settings| settings.fault = Some(Fault { kernel: "attn_decode", after: 0, code, words }));
    submit(&mut device, 0, 20, Tokens::Ids(&[7]), 1, Output::Logits).expect("the step starts");
    let error = device.wait().expect_err("the step fails");
    drop(device);
    assert_eq!(session.allocated(), 0);
    assert_eq!(session.violations(), Vec::<String>::new());
    (session, error)
}

#[test]
fn a_fault_of_the_gpu_names_the_operation() {
    let (_session, error) = faulty(3, "Caused GPU Address Fault Error (0000000b)");
    let DeviceError::Failed { op, reason, .. } = error else { panic!("{error}") };
    assert!(op.starts_with("attn_decode of layer ") && !op.contains(" to "), "{op}");
    assert!(reason.contains("Address Fault"), "{reason}");
}

#[test]
fn memory_that_the_gpu_lacks_while_it_runs_is_out_of_memory() {
    let (_session, error) = faulty(8, "Insufficient Memory");
    assert!(matches!(error, DeviceError::OutOfMemory { .. }), "{error}");
}

#[test]
fn a_fault_that_does_not_come_again_names_the_command_buffer() {
    let session = Session::start(Settings::default());
    let mut device = metal(&session, &tiny()).expect("the device starts");
    logits(&mut device, 0, 0, &prompt(20));
    let (code, words) = (2, "Caused GPU Timeout Error (00000002)");
    session.set(|settings| settings.fault = Some(Fault { kernel: "argmax", after: 0, code, words }));
    submit(&mut device, 0, 20, Tokens::Ids(&[7]), 1, Output::Argmax).expect("the step starts");
    // The command buffers run when they are waited for; the fault is gone before the second run.
    let watcher = session.seen().dispatches;
    let error = device.wait().expect_err("the step fails").to_string();
    assert!(session.seen().dispatches > watcher && error.contains("Timeout"), "{error}");
    session.set(|settings| settings.fault = None);
    // The device goes on.
    assert!(logits(&mut device, 1, 0, &prompt(5)).iter().all(|value| value.is_finite()));
    assert_eq!(session.violations(), Vec::<String>::new());
}

#[test]
fn the_second_of_two_steps_in_flight_is_finished_before_the_first_ones_error_is_told() {
    let session = Session::start(Settings::default());
    let mut device = metal(&session, &tiny()).expect("the device starts");
    logits(&mut device, 0, 0, &prompt(20));
    let words = "Caused GPU Hang Error (00000003)";
    session.set(|settings| settings.fault = Some(Fault { kernel: "router", after: 1, code: 1, words }));
    submit(&mut device, 0, 20, Tokens::Ids(&[7]), 1, Output::Argmax).expect("the step starts");
    submit(&mut device, 0, 21, Tokens::Previous, 1, Output::Argmax).expect("the next one too");
    let error = device.wait().expect_err("the first fails").to_string();
    assert!(error.contains("router of layer"), "{error}");
    device.wait().expect_err("the second fails too");
    session.set(|settings| settings.fault = None);
    drop(device);
    assert_eq!(session.allocated(), 0);
    assert_eq!(session.violations(), Vec::<String>::new());
}

#[test]
fn steps_that_nobody_waits_for_are_finished_before_their_memory_goes() {
    let session = Session::start(Settings::default());
    let mut device = metal(&session, &tiny()).expect("the device starts");
    let ids = prompt(20);
    submit(&mut device, 0, 0, Tokens::Ids(&ids), ids.len(), Output::Argmax).expect("the prompt starts");
    drop(device);
    assert_eq!(session.allocated(), 0);
    assert!(session.seen().dispatches > 0);
    assert_eq!(session.violations(), Vec::<String>::new());
}

#[test]
fn compiled_kernels_are_kept_and_a_broken_archive_is_made_anew() {
    let session = Session::start(Settings::default());
    let folder = std::env::temp_dir().join(format!("fake-metal-{}", std::process::id()));
    let reports = Arc::new(Mutex::new(Vec::new()));
    let start = || {
        let heard = reports.clone();
        let progress = Arc::new(move |done: usize, total: usize| heard.lock().expect("a list").push((done, total)));
        let options = MetalOptions { route: None, archives: Some(folder.clone()), progress: Some(progress) };
        let before = session.seen();
        drop(open(tiny(), CAPACITY, options).expect("the device starts"));
        let seen = session.seen();
        (seen.compiled - before.compiled, seen.from_archive - before.from_archive)
    };
    let all = KERNELS.len();
    assert_eq!(start(), (all, 0), "the first start compiles");
    assert_eq!(start(), (0, all), "the second finds everything");
    let progress: Vec<(usize, usize)> = (1..=all).map(|done| (done, all)).collect();
    assert_eq!(reports.lock().expect("a list")[..all], progress);
    let archive = std::fs::read_dir(&folder).expect("the folder").next().expect("a file").expect("a file").path();
    std::fs::write(&archive, "something else").expect("the file can be written");
    assert_eq!(start(), (all, 0), "the broken one is made anew");
    assert_eq!(start(), (0, all));
    std::fs::remove_dir_all(&folder).expect("removed");
    assert_eq!(session.violations(), Vec::<String>::new());
}

#[test]
fn buffers_are_kept_resident_while_the_device_is_in_use() {
    let session = Session::start(Settings::default());
    let mut device = metal(&session, &tiny()).expect("the device starts");
    logits(&mut device, 0, 0, &prompt(9));
    let before = session.seen().requests;
    std::thread::sleep(Duration::from_millis(1300));
    assert!(session.seen().requests >= before + 2, "{} after {before}", session.seen().requests);
    drop(device);
    let after = session.seen().requests;
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!(session.seen().requests, after, "the heart stops with the device");
}

#[test]
fn a_step_with_more_logits_than_any_before_grows_the_device() {
    let session = Session::start(Settings::default());
    let capacity = Capacity { decode_rows: 1, ..CAPACITY };
    let mut device = open(tiny(), capacity, MetalOptions::default()).expect("the device starts");
    let ids = prompt(20);
    logits(&mut device, 0, 0, &ids);
    let before = session.allocated();
    let pages = common::pages(1);
    let slot = lily_model::device::SlotId(1);
    let segment = lily_model::device::Segment { slot, start: 0, rows: ids.len(), pages: &pages };
    let step = lily_model::device::Step {
        phase: lily_model::graph::Phase::Prefill,
        tokens: Tokens::Ids(&ids),
        segments: &[segment],
        logit_rows: lily_model::device::LogitRows::All,
        output: Output::Logits,
    };
    device.submit(&step).expect("the step starts");
    assert!(finished(&mut device).logits.iter().all(|value| value.is_finite()));
    assert!(session.allocated() > before);
    assert_eq!(session.violations(), Vec::<String>::new());
}
