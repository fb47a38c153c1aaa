//! Every line of every kernel file is executed: the examination of two geometries, one on each matrix route, in a build
//! that counts lines.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;

use lily_gpu::doctor;
use lily_gpu::emulated::Coverage;
use lily_gpu::route::MatrixRoute;
use lily_gpu::{Emulated, EmulatedOptions, GpuDevice};
use lily_model::config::ModelConfig;
use lily_model::synth;
use msl::emulate::{LineCoverage, coverage};

/// Executions of each line, by file, over all libraries of a device.
fn counted(config: &ModelConfig, route: MatrixRoute) -> LineCoverage {
    let checkpoint = Arc::new(synth::in_memory(config, 7).expect("a valid geometry"));
    let options = EmulatedOptions { route, coverage: Coverage::On, ..EmulatedOptions::default() };
    let mut device =
        GpuDevice::new(Emulated::new(options), checkpoint, doctor::capacity(config)).expect("the device starts");
    // Counters of earlier runs lie beside the library.
    for library in device.driver().libraries() {
        let _ = std::fs::remove_file(library.path().with_extension("gcda"));
    }
    let wrong = doctor::examine(&mut device, 1024, &mut |_| {}).into_iter().find(|finding| !finding.is_ok());
    assert!(wrong.is_none(), "{wrong:?}");
    let mut all = LineCoverage::new();
    for library in device.driver().libraries() {
        add(&mut all, coverage(library).expect("gcov"));
    }
    all
}

fn add(all: &mut LineCoverage, more: LineCoverage) {
    for (file, lines) in more {
        let counts: &mut BTreeMap<u32, u64> = all.entry(file).or_default();
        for (line, count) in lines {
            *counts.entry(line).or_default() += count;
        }
    }
}

#[test]
fn every_line_of_every_kernel_file_is_executed() {
    let all = std::thread::scope(|scope| {
        let crooked = scope.spawn(|| counted(&common::crooked(), MatrixRoute::Tensor));
        let mut all = counted(&common::even(), MatrixRoute::Simdgroup);
        add(&mut all, crooked.join().expect("its part is right"));
        all
    });
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
    let mut missed = Vec::new();
    let (mut lines, mut executed) = (0, 0);
    for entry in std::fs::read_dir(&folder).expect("the kernels").map(|entry| entry.expect("an entry").path()) {
        let Some(name) = entry.file_name().and_then(|n| n.to_str()).filter(|n| n.ends_with(".metal")) else { continue };
        let text = std::fs::read_to_string(&entry).expect("a kernel file");
        let counts = all.get(name).unwrap_or_else(|| panic!("no line of {name} was compiled"));
        lines += counts.len();
        executed += counts.values().filter(|count| **count > 0).count();
        for (line, _) in counts.iter().filter(|(_, count)| **count == 0) {
            let code = text.lines().nth(*line as usize - 1).unwrap_or_default();
            missed.push(format!("{name}:{line}: {}", code.trim()));
        }
    }
    println!("{executed} of {lines} lines of {} files", all.len());
    assert!(missed.is_empty(), "{} of {lines} lines were never executed:\n{}", missed.len(), missed.join("\n"));
}
