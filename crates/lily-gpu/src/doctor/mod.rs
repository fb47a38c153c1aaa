//! Examines a device: every operation of a checkpoint's plans, alone, against the readable reference of the CPU device.
//!
//! Inputs are drawn at random or extreme; all other memory that an operation could reach is filled with bytes that are no
//! numbers, outputs included. Afterwards every element that belongs to a row of the step must be right, every other one
//! must be as it was, and the arrival counters must be back at zero. Works on any [`Driver`]; what a driver reports (an
//! access that the emulator's checker objects to, a fault of a GPU) is a finding like a wrong number.

mod bench;
mod case;
mod expected;
mod trial;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use lily_model::config::ModelConfig;
use lily_model::device::{Capacity, DeviceError, Output as StepOutput, Step, Tokens};
use lily_model::graph::{Op, OpKind, Phase};

use crate::device::GpuDevice;
use crate::driver::Driver;
use crate::memory::Arrivals;
use crate::roles::out_role;
use crate::route::{DenseForm, MatrixRoute};
use crate::shape::StepShape;
use crate::table::KERNELS;
use bench::Bench;
use case::{Aspect, Case, cases, wide_rows};
use expected::{Random, Source};
use trial::compare;

/// Sequence slots of the device under examination.
const SLOTS: usize = 8;
/// Pages of its KV pool. Long contexts repeat pages.
const PAGES: usize = 24;
/// Positions that the longest case reaches.
pub const LONGEST: usize = 262_144;

/// What an operation did in a case.
#[derive(Debug, Clone)]
pub struct Finding {
    /// Form of the plan.
    pub phase: Phase,
    /// Operation.
    pub op: &'static str,
    /// Its layer; `None` outside the layers.
    pub layer: Option<usize>,
    /// Kernels that ran, in order.
    pub kernels: Vec<&'static str>,
    /// Rows and positions, and what is special about them.
    pub case: String,
    /// Largest error of the output that came nearest to its tolerance: relative to the element plus the root mean square
    /// of its row; infinite where something was no number, or not the integer that it had to be.
    pub error: f32,
    /// Error that was allowed there.
    pub tolerance: f32,
    /// What is wrong, in words; `None` = nothing.
    pub problem: Option<String>,
    /// From submission to completion.
    pub time: Duration,
}

impl Finding {
    /// Whether everything was right.
    pub fn is_ok(&self) -> bool {
        self.problem.is_none()
    }
}

/// Sizes of a device that is to be examined.
pub fn capacity(config: &ModelConfig) -> Capacity {
    Capacity {
        slots: SLOTS,
        pages: PAGES,
        prefill_rows: wide_rows(config).clamp(304, 4096),
        decode_rows: SLOTS,
        max_seq: LONGEST,
    }
}

/// Tries every operation of the device's plans in every case that says something about it; operations that differ only
/// in their layer once. The device was made with [`capacity`]; sequences have at most `longest` tokens. `report` is told
/// of each finding as it is made. The device's states and pages are overwritten.
pub fn examine<D: Driver>(device: &mut GpuDevice<D>, longest: usize, report: &mut dyn FnMut(&Finding)) -> Vec<Finding> {
    let config = device.checkpoint.model().config.clone();
    let cases = cases(&config, device.plans[1].rows, longest);
    let mut findings = Vec::new();
    for phase in [Phase::Decode, Phase::Prefill] {
        let ops = distinct(device, phase);
        for &(index, aspect) in &ops {
            for (number, case) in cases.iter().enumerate().filter(|(_, case)| case.phase == phase) {
                if case.aspects.contains(&aspect) {
                    let seed = (index as u64) << 32 | number as u64;
                    let finding = try_op(device, index, case, seed);
                    report(&finding);
                    findings.push(finding);
                }
            }
        }
    }
    findings
}

/// Indices of operations of which no earlier one runs the same kernels of the same library.
fn distinct<D: Driver>(device: &GpuDevice<D>, phase: Phase) -> Vec<(usize, Aspect)> {
    let model = device.checkpoint.model();
    let mut seen = HashSet::new();
    let mut ops = Vec::new();
    for (index, op) in device.plans[usize::from(phase == Phase::Prefill)].ops.iter().enumerate() {
        // The output projections of the two mixers are kernels of their own.
        let role = matches!(op.kind, OpKind::OutProj { .. } | OpKind::OutProjNorm { .. }).then(|| out_role(model, op));
        if seen.insert((op.name(), role, device.libraries.serving(model, op))) {
            ops.push((index, Aspect::of(&op.kind)));
        }
    }
    ops
}

fn try_op<D: Driver>(device: &mut GpuDevice<D>, index: usize, case: &Case, seed: u64) -> Finding {
    let op = device.plans[usize::from(case.phase == Phase::Prefill)].ops[index].clone();
    let mut finding = Finding {
        phase: case.phase,
        op: op.name(),
        layer: op.layer,
        kernels: Vec::new(),
        case: case.name.clone(),
        error: 0.0,
        tolerance: 0.0,
        problem: None,
        time: Duration::ZERO,
    };
    if let Err(error) = measure(device, index, &op, case, seed, &mut finding) {
        finding.error = f32::INFINITY;
        finding.problem = Some(error.to_string());
    }
    device.forget_programs();
    // Where something failed half-way the counters stand anywhere; the next operation is not to blame for it.
    if !finding.is_ok() {
        for arrivals in ARRIVALS {
            let span = device.memory.arrivals(arrivals);
            if let (Err(error), None) = (device.driver.clear(span), &finding.problem) {
                finding.problem = Some(error.to_string());
            }
        }
    }
    finding
}

const ARRIVALS: [Arrivals; 4] = [Arrivals::OutProj, Arrivals::Down, Arrivals::Router, Arrivals::Argmax];

fn measure<D: Driver>(
    device: &mut GpuDevice<D>,
    index: usize,
    op: &Op,
    case: &Case,
    seed: u64,
    finding: &mut Finding,
) -> Result<(), DeviceError> {
    let tables = case.tables();
    let segments = case.segments(&tables);
    let vocab = device.checkpoint.model().config.vocab_size as u32;
    let tokens: Vec<u32> = (0..case.rows() as u32).map(|row| (row * 2_654_435 + vocab - 1) % vocab).collect();
    let step = Step {
        phase: case.phase,
        tokens: if case.previous { Tokens::Previous } else { Tokens::Ids(&tokens) },
        segments: &segments,
        logit_rows: case.logit_rows,
        output: StepOutput::Argmax,
    };
    let mut shape = StepShape::of(&step, 0);
    if case.roomy {
        shape = StepShape {
            rows: 2 * shape.rows,
            segments: 2 * shape.segments,
            segment_rows: 2 * shape.segment_rows,
            logit_rows: 2 * shape.logit_rows,
            blocks: 2 * shape.blocks,
            ..shape
        };
    }
    device.make_room(&shape)?;
    let checkpoint = Arc::clone(&device.checkpoint);
    let trial = Source {
        checkpoint: &checkpoint,
        case,
        step: &step,
        rounds_weights: case.phase == Phase::Prefill && device.info.route == MatrixRoute::Tensor,
        dense_products: device.table(shape).dense() == DenseForm::Gemm,
        random: Random(seed),
    }
    .trial(op);
    let mut bench = Bench::new(device, &step, shape);
    bench.prepare(index, &trial)?;
    let dispatches = bench.dispatches(index);
    finding.kernels = dispatches.iter().map(|d| KERNELS[d.kernel.kernel]).collect();
    let before = bench.read_outputs(&trial)?;
    finding.time = bench.run(dispatches)?;
    let after = bench.read_outputs(&trial)?;
    for (index, (output, (before, after))) in trial.outputs.iter().zip(before.iter().zip(&after)).enumerate() {
        match compare(output, before, after) {
            Ok(distance) => {
                let share = share_of(distance.error, output.tolerance);
                if index == 0 || share > share_of(finding.error, finding.tolerance) {
                    (finding.error, finding.tolerance) = (distance.error, output.tolerance);
                }
                if distance.error > output.tolerance {
                    finding.problem.get_or_insert(distance.worst);
                }
            }
            Err(problem) => {
                finding.problem.get_or_insert(problem);
            }
        }
    }
    if let Some(counter) = bench.stuck_counter()? {
        finding.problem.get_or_insert(counter);
    }
    Ok(())
}

/// An error in tolerances.
fn share_of(error: f32, tolerance: f32) -> f32 {
    if error == 0.0 { 0.0 } else { error / tolerance }
}
