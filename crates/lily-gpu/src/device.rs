//! The device over any driver: places memory, writes the inputs of a step, and has programs run.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use lily_model::checkpoint::Checkpoint;
use lily_model::device::{
    Capacity, Device, DeviceError, DeviceInfo, LogitRows, MAX_STEPS_IN_FLIGHT, Output, PageId, SlotId, Step,
    StepResult, Tokens,
};
use lily_model::graph::{Model, Phase, Plan};

use crate::driver::{Driver, DriverInfo};
use crate::memory::{DeviceMemory, Input, StateOf};
use crate::program::{Program, ProgramId, Span};
use crate::roles::Libraries;
use crate::shape::StepShape;
use crate::source::library_source;
use crate::steps::{self, Chosen};
use crate::table::{KERNELS, Table};

/// A step that has been submitted and not waited for.
#[derive(Debug)]
struct InFlight {
    set: usize,
    logit_rows: usize,
    output: Output,
}

/// A [`Device`] on a [`Driver`].
pub struct GpuDevice<D: Driver> {
    pub(crate) driver: D,
    pub(crate) info: DriverInfo,
    pub(crate) checkpoint: Arc<Checkpoint>,
    capacity: Capacity,
    pub(crate) plans: [Plan; 2],
    pub(crate) libraries: Libraries,
    pub(crate) memory: DeviceMemory,
    programs: HashMap<StepShape, ProgramId>,
    in_flight: VecDeque<InFlight>,
    /// Results of steps that were waited for before the host asked; all older than those in flight.
    finished: VecDeque<Result<StepResult, DeviceError>>,
    next_set: usize,
    /// What the newest submitted step left for [`Tokens::Previous`].
    chosen: Chosen,
    /// Memory of logits that the host has read.
    spare_logits: Vec<f32>,
}

impl<D: Driver> GpuDevice<D> {
    /// Takes memory, makes the weights readable and compiles the kernels.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`] where it does not fit, [`DeviceError::Failed`] where the driver refuses a kernel.
    pub fn new(mut driver: D, checkpoint: Arc<Checkpoint>, capacity: Capacity) -> Result<Self, DeviceError> {
        let info = driver.info();
        let model = checkpoint.model();
        steps::check_capacity(info.name, &capacity)?;
        let plans = [Plan::decode(model, capacity.decode_rows), Plan::prefill(model, capacity.prefill_rows)];
        let libraries = Libraries::of(model);
        let memory = DeviceMemory::new(&mut driver, &checkpoint, &plans, &capacity)?;
        let sources: Vec<_> = libraries
            .tables
            .iter()
            .map(|table| library_source(&model.config, table, &info.tuning, info.route, memory.alignment))
            .collect();
        driver.compile(&sources, &KERNELS)?;
        tracing::debug!(device = info.name, libraries = sources.len(), route = info.route.name(), "kernels compiled");
        Ok(GpuDevice {
            driver,
            info,
            checkpoint,
            capacity,
            plans,
            libraries,
            memory,
            programs: HashMap::new(),
            in_flight: VecDeque::new(),
            finished: VecDeque::new(),
            next_set: 0,
            chosen: Chosen::default(),
            spare_logits: Vec::new(),
        })
    }

    /// The driver.
    pub fn driver(&self) -> &D {
        &self.driver
    }

    /// The driver, to ask it for what only it knows.
    pub fn driver_mut(&mut self) -> &mut D {
        &mut self.driver
    }

    /// The program of a shape, as it would be submitted.
    pub fn program(&self, shape: StepShape) -> Program {
        self.table(shape).program()
    }

    pub(crate) fn table(&self, shape: StepShape) -> Table<'_> {
        let plan = &self.plans[usize::from(shape.phase == Phase::Prefill)];
        let (model, tuning) = (self.checkpoint.model(), &self.info.tuning);
        Table { model, plan, memory: &self.memory, libraries: &self.libraries, tuning, shape }
    }

    fn model(&self) -> &Model {
        self.checkpoint.model()
    }

    /// Makes room for the tables and logits of a step. Where there is not enough, steps in flight are waited for: the programs
    /// that compute them are of the memory that moves.
    pub(crate) fn make_room(&mut self, shape: &StepShape) -> Result<(), DeviceError> {
        if self.memory.fits(self.checkpoint.model(), shape) {
            return Ok(());
        }
        while let Some(step) = self.in_flight.pop_front() {
            let result = self.land(&step);
            self.finished.push_back(result);
        }
        if self.finished.iter().any(Result::is_err) {
            let reason = "a step before this one failed".into();
            return Err(DeviceError::Failed { device: self.info.name, op: "making room for a step".into(), reason });
        }
        self.forget_programs();
        self.memory.grow(&mut self.driver, self.checkpoint.model(), shape)
    }

    /// Forgets all prepared programs. No step may be unfinished.
    pub(crate) fn forget_programs(&mut self) {
        self.driver.forget_programs();
        self.programs.clear();
    }

    fn prepared(&mut self, shape: StepShape) -> Result<ProgramId, DeviceError> {
        if let Some(&program) = self.programs.get(&shape) {
            return Ok(program);
        }
        let program = self.driver.prepare(&Arc::new(self.program(shape)))?;
        self.programs.insert(shape, program);
        Ok(program)
    }

    /// Refuses what must not happen while steps are in flight.
    fn idle(&self, what: &str) -> Result<(), DeviceError> {
        if self.in_flight.is_empty() {
            return Ok(());
        }
        let reason = format!("{what} while {} steps are unfinished", self.in_flight.len());
        Err(DeviceError::BadStep { device: self.info.name, reason })
    }

    /// Waits for a step and reads what it gives.
    fn land(&mut self, step: &InFlight) -> Result<StepResult, DeviceError> {
        self.driver.wait()?;
        let mut result = StepResult::default();
        match step.output {
            Output::Argmax if step.logit_rows > 0 => {
                result.tokens = vec![0; step.logit_rows];
                let span = self.memory.results(step.set).part(0, step.logit_rows as u64 * 4);
                self.driver.read(span, bytemuck::cast_slice_mut(&mut result.tokens))?;
            }
            Output::Logits if step.logit_rows > 0 => {
                result.logits = std::mem::take(&mut self.spare_logits);
                result.logits.resize(step.logit_rows * self.model().config.vocab_size, 0.0);
                let span = self.memory.logits(step.set).part(0, result.logits.len() as u64 * 4);
                self.driver.read(span, bytemuck::cast_slice_mut(&mut result.logits))?;
            }
            _ => {}
        }
        Ok(result)
    }

    pub(crate) fn write_inputs(&mut self, step: &Step<'_>, set: usize) -> Result<(), DeviceError> {
        let inputs = steps::inputs(step);
        for (input, words) in [
            (Input::Step, &inputs.step),
            (Input::Tokens, &inputs.tokens),
            (Input::Rows, &inputs.rows),
            (Input::Pages, &inputs.pages),
            (Input::LogitRows, &inputs.logit_rows),
            (Input::Segments, &inputs.segments),
        ] {
            if !words.is_empty() {
                let bytes: &[u8] = bytemuck::cast_slice(words);
                let span = self.memory.input(set, input).part(0, bytes.len() as u64);
                self.driver.write(span, bytes)?;
            }
        }
        Ok(())
    }

    /// The part of each state buffer that belongs to a slot or page, ordered by name.
    fn units(&self, of: StateOf, index: u32) -> Result<Vec<Span>, DeviceError> {
        let (what, count) = match of {
            StateOf::Slot => ("slot", self.capacity.slots),
            StateOf::Page => ("page", self.capacity.pages),
        };
        if index as usize >= count {
            let reason = format!("{what} {index} of {count}");
            return Err(DeviceError::BadStep { device: self.info.name, reason });
        }
        let mut units: Vec<_> = self.memory.states().filter(|(_, state)| state.of == of).collect();
        units.sort_unstable_by(|a, b| a.0.cmp(b.0));
        Ok(units.into_iter().map(|(_, s)| s.span.part(u64::from(index) * s.unit, s.unit)).collect())
    }

    fn copy_units(&mut self, of: StateOf, from: u32, to: u32) -> Result<(), DeviceError> {
        let (from, to) = (self.units(of, from)?, self.units(of, to)?);
        for (from, to) in from.into_iter().zip(to) {
            if from != to {
                self.driver.copy(from, to)?;
            }
        }
        Ok(())
    }

    fn read_units(&mut self, of: StateOf, index: u32) -> Result<Vec<u8>, DeviceError> {
        self.idle("a state was read")?;
        let units = self.units(of, index)?;
        let mut bytes = vec![0; units.iter().map(|u| u.bytes as usize).sum()];
        let mut at = 0;
        for unit in units {
            let end = at + unit.bytes as usize;
            self.driver.read(unit, &mut bytes[at..end])?;
            at = end;
        }
        Ok(bytes)
    }

    fn write_units(&mut self, of: StateOf, index: u32, bytes: &[u8]) -> Result<(), DeviceError> {
        self.idle("a state was written")?;
        let units = self.units(of, index)?;
        let expected: usize = units.iter().map(|u| u.bytes as usize).sum();
        if bytes.len() != expected {
            let reason = format!("{} bytes of state, expected {expected}", bytes.len());
            return Err(DeviceError::BadStep { device: self.info.name, reason });
        }
        let mut at = 0;
        for unit in units {
            let end = at + unit.bytes as usize;
            self.driver.write(unit, &bytes[at..end])?;
            at = end;
        }
        Ok(())
    }
}

impl<D: Driver> Device for GpuDevice<D> {
    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            name: self.info.name,
            description: format!("{}, {}", self.info.hardware, self.info.route.name()),
            activation_bytes: 2,
            cache_bytes: 2,
        }
    }

    fn capacity(&self) -> Capacity {
        self.capacity
    }

    fn submit(&mut self, step: &Step<'_>) -> Result<(), DeviceError> {
        let limits = steps::Limits {
            device: self.info.name,
            capacity: &self.capacity,
            vocab: self.model().config.vocab_size,
            table: self.memory.table_capacity(),
            unfinished: self.in_flight.len() + self.finished.len(),
            chosen: self.chosen,
        };
        steps::check(step, &limits)?;
        let set = self.next_set;
        let shape = StepShape::of(step, set);
        self.make_room(&shape)?;
        let program = self.prepared(shape)?;
        self.write_inputs(step, set)?;
        self.driver.submit(program)?;
        let logit_rows = step.logit_row_count();
        self.in_flight.push_back(InFlight { set, logit_rows, output: step.output });
        self.next_set = (set + 1) % MAX_STEPS_IN_FLIGHT;
        self.chosen = Chosen { rows: if step.output == Output::Argmax { logit_rows } else { 0 } };
        Ok(())
    }

    fn wait(&mut self) -> Result<StepResult, DeviceError> {
        if let Some(result) = self.finished.pop_front() {
            return result;
        }
        match self.in_flight.pop_front() {
            Some(step) => self.land(&step),
            None => Err(DeviceError::BadStep { device: self.info.name, reason: "no step is unfinished".into() }),
        }
    }

    fn recycle(&mut self, result: StepResult) {
        self.spare_logits = result.logits;
    }

    fn clear_slot(&mut self, slot: SlotId) -> Result<(), DeviceError> {
        for span in self.units(StateOf::Slot, slot.0)? {
            self.driver.clear(span)?;
        }
        Ok(())
    }

    fn copy_slot(&mut self, from: SlotId, to: SlotId) -> Result<(), DeviceError> {
        self.copy_units(StateOf::Slot, from.0, to.0)
    }

    fn copy_page(&mut self, from: PageId, to: PageId) -> Result<(), DeviceError> {
        self.copy_units(StateOf::Page, from.0, to.0)
    }

    fn read_slot(&mut self, slot: SlotId) -> Result<Vec<u8>, DeviceError> {
        self.read_units(StateOf::Slot, slot.0)
    }

    fn write_slot(&mut self, slot: SlotId, bytes: &[u8]) -> Result<(), DeviceError> {
        self.write_units(StateOf::Slot, slot.0, bytes)
    }

    fn read_page(&mut self, page: PageId) -> Result<Vec<u8>, DeviceError> {
        self.read_units(StateOf::Page, page.0)
    }

    fn write_page(&mut self, page: PageId, bytes: &[u8]) -> Result<(), DeviceError> {
        self.write_units(StateOf::Page, page.0, bytes)
    }
}

/// Rows of a step that yield logits, as row indices.
pub(crate) fn logit_row_indices(step: &Step<'_>) -> Vec<u32> {
    match step.logit_rows {
        LogitRows::None => Vec::new(),
        LogitRows::All => (0..step.rows() as u32).collect(),
        LogitRows::Last => {
            let mut end = 0;
            step.segments
                .iter()
                .map(|segment| {
                    end += segment.rows as u32;
                    end - 1
                })
                .collect()
        }
    }
}

/// Whether the tokens of a step come from the one before.
pub(crate) fn takes_previous(step: &Step<'_>) -> bool {
    matches!(step.tokens, Tokens::Previous)
}
