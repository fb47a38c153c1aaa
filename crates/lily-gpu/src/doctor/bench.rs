//! A step whose operations run one at a time, in memory that holds their inputs and otherwise no numbers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lily_model::device::{DeviceError, Step};
use lily_model::graph::{OpKind, Phase};

use super::ARRIVALS;
use super::trial::{Output, Part, Place, Trial, Values};
use crate::device::GpuDevice;
use crate::driver::Driver;
use crate::memory::Private;
use crate::program::{Dispatch, Program, Span};
use crate::shape::StepShape;

/// A step whose operations run one at a time.
pub(super) struct Bench<'a, D: Driver> {
    device: &'a mut GpuDevice<D>,
    step: &'a Step<'a>,
    shape: StepShape,
    /// Ranges that operations may reach, weights and counters apart.
    reach: Vec<Span>,
    /// Ranges of them with contents: everything else is undefined.
    kept: Vec<Span>,
}

impl<'a, D: Driver> Bench<'a, D> {
    /// For a step of this shape on a device whose programs are all forgotten.
    pub fn new(device: &'a mut GpuDevice<D>, step: &'a Step<'a>, shape: StepShape) -> Self {
        Bench { device, step, shape, reach: Vec::new(), kept: Vec::new() }
    }

    /// The dispatches of an operation of the plan.
    pub fn dispatches(&self, index: usize) -> Vec<Dispatch> {
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
    pub fn prepare(&mut self, index: usize, trial: &Trial) -> Result<(), DeviceError> {
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
            self.put(Place::Buffer(to), &Part::new(0, Values::U32(experts.to_vec())))?;
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
    pub fn run(&mut self, dispatches: Vec<Dispatch>) -> Result<Duration, DeviceError> {
        let undefined = self.undefined();
        let driver = &mut self.device.driver;
        let program = driver.prepare(&Arc::new(Program::new(dispatches, undefined)))?;
        let begin = Instant::now();
        driver.submit(program)?;
        driver.wait()?;
        Ok(begin.elapsed())
    }

    /// The bytes of every output's buffer.
    pub fn read_outputs(&mut self, trial: &Trial) -> Result<Vec<Vec<u8>>, DeviceError> {
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
    pub fn stuck_counter(&mut self) -> Result<Option<String>, DeviceError> {
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
