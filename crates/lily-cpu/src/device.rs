//! The device: memory for the plans' buffers, threads, and one step at a time.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use lily_model::checkpoint::{Checkpoint, FloatView, WeightView};
use lily_model::device::{
    Capacity, Device, DeviceError, DeviceInfo, MAX_STEPS_IN_FLIGHT, NO_TOKEN, Output, PageId, SlotId, Step, StepResult,
};
use lily_model::graph::{Phase, Plan, WeightKind};
use lily_model::synth::RoutingCounts;

use crate::Precision;
use crate::exec::{self, Buffers, Cache, Context, Inputs, Scratch, Storage, Units, Vectors, Workspace};
use crate::pool::Pool;
use crate::simd::Isa;
use crate::validate::{self, bad_step};

/// How a [`CpuDevice`] is made.
#[derive(Debug, Clone, Copy)]
pub struct CpuOptions {
    /// Threads that compute; 0 = one for each core.
    pub threads: usize,
    /// How exactly.
    pub precision: Precision,
    /// Sizes.
    pub capacity: Capacity,
}

/// The processor as a device. Steps are computed in [`Device::submit`].
pub struct CpuDevice {
    checkpoint: Arc<Checkpoint>,
    capacity: Capacity,
    units: Units,
    vectors: Vectors,
    decode: Planned,
    prefill: Planned,
    buffers: Buffers,
    scratch: Scratch,
    workspaces: Vec<Mutex<Workspace>>,
    pool: Pool,
    /// Tokens that the last step chose.
    chosen: Vec<u32>,
    finished: VecDeque<StepResult>,
    /// What the routers chose, while somebody wants to know.
    routing: Option<Mutex<RoutingCounts>>,
}

/// A plan and where its buffers are.
struct Planned {
    plan: Plan,
    places: Vec<usize>,
}

impl CpuDevice {
    /// A device for the model of `checkpoint`. Fails where the sizes make no sense or memory cannot be reserved.
    pub fn new(checkpoint: Arc<Checkpoint>, options: CpuOptions) -> Result<Self, DeviceError> {
        Self::on(checkpoint, options, Isa::best())
    }

    /// The same on a given instruction set, which this processor has.
    pub(crate) fn on(checkpoint: Arc<Checkpoint>, options: CpuOptions, isa: Isa) -> Result<Self, DeviceError> {
        let capacity = options.capacity;
        check_capacity(&capacity, checkpoint.model().config.max_position_embeddings)?;
        let model = checkpoint.model();
        let units = Units::new(model, options.precision, isa);
        let decode = Plan::decode(model, capacity.decode_rows);
        let prefill = Plan::prefill(model, capacity.prefill_rows);
        let buffers = Buffers::new([&decode, &prefill], &capacity, units)?;
        let threads = match options.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            n => n,
        };
        let pool = Pool::new(threads).map_err(|e| DeviceError::Failed {
            device: "cpu",
            op: "starting threads".into(),
            reason: e.to_string(),
        })?;
        let planned = |plan: Plan| Planned { places: buffers.places(&plan), plan };
        Ok(CpuDevice {
            capacity,
            units,
            vectors: vectors(&checkpoint),
            decode: planned(decode),
            prefill: planned(prefill),
            scratch: Scratch::new(&model.config, &capacity)?,
            workspaces: (0..threads).map(|_| Mutex::new(Workspace::new(&model.config))).collect(),
            pool,
            chosen: Vec::new(),
            finished: VecDeque::new(),
            routing: None,
            buffers,
            checkpoint,
        })
    }

    /// Counts the experts that the routers choose from the next step on.
    pub fn count_routing(&mut self) {
        let config = &self.checkpoint.model().config;
        self.routing = Some(Mutex::new(RoutingCounts::new(config.num_hidden_layers(), config.num_experts)));
    }

    /// Ends [`CpuDevice::count_routing`]; what was counted since, `None` if nothing was.
    pub fn take_routing(&mut self) -> Option<RoutingCounts> {
        self.routing.take().map(|counts| counts.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    fn compute(&mut self, inputs: &Inputs, phase: Phase) {
        let planned = match phase {
            Phase::Decode => &self.decode,
            Phase::Prefill => &self.prefill,
        };
        let all = self.buffers.views();
        let context = Context {
            checkpoint: &self.checkpoint,
            config: &self.checkpoint.model().config,
            vectors: &self.vectors,
            units: self.units,
            inputs,
            views: planned.places.iter().map(|&place| all[place]).collect(),
            scratch: self.scratch.views(),
            max_blocks: self.capacity.max_seq.div_ceil(Plan::PAGE_TOKENS),
        };
        let (workspaces, plan, routing) = (&self.workspaces, &planned.plan, &self.routing);
        self.pool.run(|team| {
            // A poisoned lock only says that an earlier step panicked; a workspace holds nothing from step to step.
            let mut workspace = workspaces[team.thread].lock().unwrap_or_else(PoisonError::into_inner);
            for op in &plan.ops {
                exec::run(op, &context, team, &mut workspace);
                team.barrier();
                if let (0, Some(counts)) = (team.thread, routing) {
                    let mut counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
                    exec::record_routing(op, &context, &mut counts);
                }
            }
        });
    }

    /// The first `len` elements of an output buffer.
    fn output<T>(&self, name: &str, len: usize, of: impl Fn(&Storage) -> Option<&[T]>) -> Result<&[T], DeviceError> {
        self.buffers.get(name).and_then(of).and_then(|s| s.get(..len)).ok_or_else(|| DeviceError::Failed {
            device: "cpu",
            op: "reading the outputs".into(),
            reason: format!("the plan has no buffer {name} of {len} elements"),
        })
    }

    fn page(&self, page: PageId) -> Result<usize, DeviceError> {
        let index = page.0 as usize;
        if index < self.capacity.pages {
            Ok(index)
        } else {
            Err(bad_step(format!("page {index} of {}", self.capacity.pages)))
        }
    }
}

impl Device for CpuDevice {
    fn info(&self) -> DeviceInfo {
        let threads = match self.pool.threads() {
            1 => "1 thread".to_owned(),
            n => format!("{n} threads"),
        };
        let (description, cache_bytes) = match self.units.precision() {
            Precision::F32 => (format!("f32 reference, {threads}"), 4),
            Precision::Fast => (format!("{}, {threads}", self.units.isa().name()), 2),
        };
        let activation_bytes = if self.units.precision() == Precision::F32 { 4 } else { 2 };
        DeviceInfo { name: "cpu", description, activation_bytes, cache_bytes }
    }

    fn capacity(&self) -> Capacity {
        self.capacity
    }

    fn submit(&mut self, step: &Step<'_>) -> Result<(), DeviceError> {
        if self.finished.len() >= MAX_STEPS_IN_FLIGHT {
            return Err(bad_step(format!("{MAX_STEPS_IN_FLIGHT} steps are unfinished already")));
        }
        let config = &self.checkpoint.model().config;
        let tokens = validate::tokens(step, &self.chosen, &self.capacity, config)?;
        let inputs = Inputs::new(step, &tokens, config);
        let vocab = config.vocab_size;
        self.compute(&inputs, step.phase);
        let count = inputs.logit_rows.len();
        let chosen = self.output("next_tokens", count, |s| match s {
            Storage::U32(region) => Some(region.as_slice()),
            _ => None,
        })?;
        let mut result = StepResult::default();
        match step.output {
            Output::Argmax => {
                result.tokens = chosen.to_vec();
                // A row without a token goes on with any, until the host has seen it.
                self.chosen = chosen.iter().map(|&id| if id == NO_TOKEN { 0 } else { id }).collect();
            }
            Output::Logits => {
                let logits = self.output("logits", count * vocab, |s| match s {
                    Storage::F32(region) => Some(region.as_slice()),
                    _ => None,
                })?;
                result.logits = logits.to_vec();
                self.chosen.clear();
            }
        }
        self.finished.push_back(result);
        Ok(())
    }

    fn wait(&mut self) -> Result<StepResult, DeviceError> {
        self.finished.pop_front().ok_or_else(|| bad_step("no step is unfinished".into()))
    }

    fn clear_slot(&mut self, slot: SlotId) -> Result<(), DeviceError> {
        let slot = validate::slot(slot, &self.capacity)?;
        let slots = self.capacity.slots;
        for region in self.buffers.slot_states() {
            let len = region.len() / slots;
            region.as_mut_slice()[slot * len..(slot + 1) * len].fill(0.0);
        }
        Ok(())
    }

    fn copy_slot(&mut self, from: SlotId, to: SlotId) -> Result<(), DeviceError> {
        let (from, to) = (validate::slot(from, &self.capacity)?, validate::slot(to, &self.capacity)?);
        let slots = self.capacity.slots;
        for region in self.buffers.slot_states() {
            let len = region.len() / slots;
            region.as_mut_slice().copy_within(from * len..(from + 1) * len, to * len);
        }
        Ok(())
    }

    fn copy_page(&mut self, from: PageId, to: PageId) -> Result<(), DeviceError> {
        let (from, to) = (self.page(from)?, self.page(to)?);
        let pages = self.capacity.pages;
        for cache in self.buffers.caches() {
            match cache {
                Cache::Bf16(region) => copy_part(region.as_mut_slice(), pages, from, to),
                Cache::F32(region) => copy_part(region.as_mut_slice(), pages, from, to),
            }
        }
        Ok(())
    }

    fn read_slot(&mut self, slot: SlotId) -> Result<Vec<u8>, DeviceError> {
        let slot = validate::slot(slot, &self.capacity)?;
        let slots = self.capacity.slots;
        let mut bytes = Vec::new();
        for region in self.buffers.slot_states() {
            bytes.extend_from_slice(part_bytes(bytemuck::cast_slice(region.as_slice()), slots, slot));
        }
        Ok(bytes)
    }

    fn write_slot(&mut self, slot: SlotId, bytes: &[u8]) -> Result<(), DeviceError> {
        let slot = validate::slot(slot, &self.capacity)?;
        let slots = self.capacity.slots;
        let parts: Vec<&mut [u8]> =
            self.buffers.slot_states().map(|r| bytemuck::cast_slice_mut(r.as_mut_slice())).collect();
        restore(parts, slots, slot, bytes, "slot")
    }

    fn read_page(&mut self, page: PageId) -> Result<Vec<u8>, DeviceError> {
        let (page, pages) = (self.page(page)?, self.capacity.pages);
        let mut bytes = Vec::new();
        for cache in self.buffers.caches() {
            let all: &[u8] = match cache {
                Cache::Bf16(region) => bytemuck::cast_slice(region.as_slice()),
                Cache::F32(region) => bytemuck::cast_slice(region.as_slice()),
            };
            bytes.extend_from_slice(part_bytes(all, pages, page));
        }
        Ok(bytes)
    }

    fn write_page(&mut self, page: PageId, bytes: &[u8]) -> Result<(), DeviceError> {
        let (page, pages) = (self.page(page)?, self.capacity.pages);
        let parts = self
            .buffers
            .caches()
            .map(|cache| match cache {
                Cache::Bf16(region) => bytemuck::cast_slice_mut(region.as_mut_slice()),
                Cache::F32(region) => bytemuck::cast_slice_mut(region.as_mut_slice()),
            })
            .collect();
        restore(parts, pages, page, bytes, "page")
    }
}

/// Part `index` of `count` equal ones.
fn part_bytes(all: &[u8], count: usize, index: usize) -> &[u8] {
    let len = all.len() / count;
    &all[index * len..(index + 1) * len]
}

fn copy_part<T: Copy>(all: &mut [T], count: usize, from: usize, to: usize) {
    let len = all.len() / count;
    all.copy_within(from * len..(from + 1) * len, to * len);
}

/// Writes `bytes` over part `index` of `count` of each of `regions`, in order.
fn restore(regions: Vec<&mut [u8]>, count: usize, index: usize, bytes: &[u8], what: &str) -> Result<(), DeviceError> {
    let needed: usize = regions.iter().map(|r| r.len() / count).sum();
    if bytes.len() != needed {
        return Err(bad_step(format!("{} bytes for a {what} of {needed}", bytes.len())));
    }
    let mut rest = bytes;
    for region in regions {
        let len = region.len() / count;
        let (now, later) = rest.split_at(len);
        region[index * len..(index + 1) * len].copy_from_slice(now);
        rest = later;
    }
    Ok(())
}

fn check_capacity(capacity: &Capacity, positions: usize) -> Result<(), DeviceError> {
    let unsupported = |what: &str, value: usize, accepted: String| {
        Err(DeviceError::Unsupported { device: "cpu", what: what.into(), value: value.to_string(), accepted })
    };
    let at_least_one = [
        ("capacity.slots", capacity.slots),
        ("capacity.pages", capacity.pages),
        ("capacity.prefill_rows", capacity.prefill_rows),
        ("capacity.max_seq", capacity.max_seq),
    ];
    for (what, value) in at_least_one {
        if value == 0 {
            return unsupported(what, value, "at least 1".into());
        }
    }
    if !(1..=Plan::MAX_DECODE_ROWS).contains(&capacity.decode_rows) {
        return unsupported("capacity.decode_rows", capacity.decode_rows, format!("1 to {}", Plan::MAX_DECODE_ROWS));
    }
    if capacity.max_seq > positions {
        return unsupported("capacity.max_seq", capacity.max_seq, format!("at most the model's {positions} positions"));
    }
    Ok(())
}

/// Small parameters in f32, by weight id; the taps of a convolution as `[taps, channels]`.
fn vectors(checkpoint: &Checkpoint) -> Vectors {
    let ids = (0..checkpoint.model().weights.len() as u32).map(lily_model::graph::WeightId);
    ids.map(|id| {
        let WeightView::Float(view) = checkpoint.weight(id) else {
            return Vec::new();
        };
        let values = FloatView::to_vec(&view);
        match checkpoint.model().weight(id).kind {
            WeightKind::Conv { channels, taps } => {
                (0..taps).flat_map(|t| (0..channels).map(move |ch| ch * taps + t)).map(|i| values[i]).collect()
            }
            _ => values,
        }
    })
    .collect()
}
