//! Examines a device: every operation of a checkpoint's plans, alone, against the readable reference of the CPU device.
//!
//! Inputs are drawn at random or extreme; all other memory that an operation could reach is filled with bytes that are no
//! numbers, outputs included. Afterwards every element that belongs to a row of the step must be right, every other one
//! must be as it was, and the arrival counters must be back at zero. Works on any [`Driver`]; what a driver reports (an
//! access that the emulator's checker objects to, a fault of a GPU) is a finding like a wrong number.

mod case;
mod expected;
mod trial;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lily_model::config::ModelConfig;
use lily_model::device::{Capacity, DeviceError, Output as StepOutput, Step, Tokens};
use lily_model::graph::{Op, OpKind, Phase};

use crate::device::GpuDevice;
use crate::driver::Driver;
use crate::memory::{Arrivals, Private};
use crate::program::{Dispatch, Program, Span};
use crate::roles::out_role;
use crate::route::{DenseForm, MatrixRoute};
use crate::shape::StepShape;
use crate::table::KERNELS;
use case::{Aspect, Case, cases, wide_rows};
use expected::{Random, Source};
use trial::{Output, Part, Place, Trial, compare};

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
    let mut bench = Bench { device, step: &step, shape, reach: Vec::new(), kept: Vec::new() };
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

/// A step whose operations run one at a time.
struct Bench<'a, D: Driver> {
    device: &'a mut GpuDevice<D>,
    step: &'a Step<'a>,
    shape: StepShape,
    /// Ranges that operations may reach, weights and counters apart.
    reach: Vec<Span>,
    /// Ranges of them with contents: everything else is undefined.
    kept: Vec<Span>,
}

impl<D: Driver> Bench<'_, D> {
    fn dispatches(&self, index: usize) -> Vec<Dispatch> {
        let mut dispatches = Vec::new();
        let table = self.device.table(self.shape);
        table.op(&table.plan.ops[index], &mut dispatches);
        dispatches
    }

    fn span(&self, place: Place) -> Span {
        let table = self.device.table(self.shape);
        match place {
            Place::Buffer(id) => table.memory.buffer(table.plan, &self.shape, id),
            Place::Chosen => table.memory.chosen(),
        }
    }

    /// Fills all memory that operation `index` could reach: its inputs, and poison around them.
    fn prepare(&mut self, index: usize, trial: &Trial) -> Result<(), DeviceError> {
        let memory = &self.device.memory;
        self.reach = memory.undefined();
        self.reach.extend([memory.chosen(), memory.results(0), memory.logits(0), memory.inputs(0)]);
        let places = trial.inputs.iter().map(|input| input.0).chain(trial.outputs.iter().map(|output| output.place));
        for place in places {
            let span = self.span(place);
            if !self.reach.iter().any(|r| r.buffer == span.buffer) {
                self.reach.push(span);
            }
        }
        self.poison()?;
        self.device.write_inputs(self.step, 0)?;
        self.kept.push(self.device.memory.inputs(0));
        if let Some(experts) = &trial.experts {
            self.sort(index, experts)?;
            self.poison()?;
        }
        for (place, part) in &trial.inputs {
            self.put(*place, part)?;
        }
        Ok(())
    }

    fn undefined(&self) -> Vec<Span> {
        self.reach.iter().flat_map(|&span| without(span, &self.kept)).collect()
    }

    /// Overwrites all memory without contents.
    fn poison(&mut self) -> Result<(), DeviceError> {
        for span in self.undefined() {
            self.device.driver.write(span, &vec![0xff; span.bytes as usize])?;
        }
        Ok(())
    }

    fn put(&mut self, place: Place, part: &Part) -> Result<(), DeviceError> {
        let bytes = part.values.bytes();
        let at = (part.at * part.values.element_bytes()) as u64;
        let span = self.span(place).part(at, bytes.len() as u64);
        self.device.driver.write(span, &bytes)?;
        self.kept.push(span);
        Ok(())
    }

    /// Runs the sort that comes before a grouped product, and keeps what it leaves.
    fn sort(&mut self, index: usize, experts: &[u32]) -> Result<(), DeviceError> {
        let plan = &self.device.plans[usize::from(self.shape.phase == Phase::Prefill)];
        let sort = plan.ops[..index].iter().rposition(|op| matches!(op.kind, OpKind::RouteSort { .. }));
        let Some(sort) = sort else { return Ok(()) };
        if let OpKind::RouteSort { experts: to, order, offsets } = plan.ops[sort].kind {
            let kept = self.kept.clone();
            self.put(Place::Buffer(to), &Part::new(0, trial::Values::U32(experts.to_vec())))?;
            self.run(self.dispatches(sort))?;
            self.kept = kept;
            // The experts' own place may be another buffer's from now on.
            self.kept.extend([self.span(Place::Buffer(order)), self.span(Place::Buffer(offsets))]);
            let (model, memory) = (self.device.checkpoint.model(), &self.device.memory);
            self.kept.push(memory.private(model, &self.shape, Private::SortTiles));
        }
        Ok(())
    }

    /// Runs dispatches as a program; whatever has no contents is undefined at its start.
    fn run(&mut self, dispatches: Vec<Dispatch>) -> Result<Duration, DeviceError> {
        let undefined = self.undefined();
        let driver = &mut self.device.driver;
        let program = driver.prepare(&Arc::new(Program::new(dispatches, undefined)))?;
        let begin = Instant::now();
        driver.submit(program)?;
        driver.wait()?;
        Ok(begin.elapsed())
    }

    fn read_outputs(&mut self, trial: &Trial) -> Result<Vec<Vec<u8>>, DeviceError> {
        let spans: Vec<Span> = trial.outputs.iter().map(|output: &Output| self.span(output.place)).collect();
        spans
            .into_iter()
            .map(|span| {
                let mut bytes = vec![0; span.bytes as usize];
                self.device.driver.read(span, &mut bytes)?;
                Ok(bytes)
            })
            .collect()
    }

    /// An arrival counter that is not back at zero.
    fn stuck_counter(&mut self) -> Result<Option<String>, DeviceError> {
        for arrivals in ARRIVALS {
            let span = self.device.memory.arrivals(arrivals);
            let mut words = vec![0u32; span.bytes as usize / 4];
            self.device.driver.read(span, bytemuck::cast_slice_mut(&mut words))?;
            if let Some(i) = words.iter().position(|&w| w != 0) {
                return Ok(Some(format!("arrival counter {arrivals:?}[{i}] was left at {}", words[i])));
            }
        }
        Ok(None)
    }
}

/// What remains of a span without others.
fn without(span: Span, others: &[Span]) -> Vec<Span> {
    let mut taken: Vec<(u64, u64)> =
        others.iter().filter(|o| o.buffer == span.buffer).map(|o| (o.offset, o.offset + o.bytes)).collect();
    taken.sort_unstable();
    let (mut rest, mut at, end) = (Vec::new(), span.offset, span.offset + span.bytes);
    for (from, to) in taken {
        if from > at {
            rest.push(Span { buffer: span.buffer, offset: at, bytes: from.min(end) - at });
        }
        at = at.max(to);
        if at >= end {
            return rest;
        }
    }
    rest.push(Span { buffer: span.buffer, offset: at, bytes: end - at });
    rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::BufferId;

    #[test]
    fn what_has_contents_is_taken_out_of_what_is_undefined() {
        let span = |offset, bytes| Span { buffer: BufferId(1), offset, bytes };
        let other = Span { buffer: BufferId(2), offset: 0, bytes: 100 };
        assert_eq!(without(span(10, 90), &[other]), [span(10, 90)]);
        assert_eq!(without(span(10, 90), &[span(20, 10), span(0, 15)]), [span(15, 5), span(30, 70)]);
        assert_eq!(without(span(10, 90), &[span(50, 100)]), [span(10, 40)]);
        assert_eq!(without(span(10, 90), &[span(0, 200)]), []);
    }
}
