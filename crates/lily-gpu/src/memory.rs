//! Where everything lies: weights, states, the KV pool, inputs and outputs (two sets, for two steps in flight), and the
//! intermediates of a step.

use std::collections::HashMap;
use std::sync::Arc;

use lily_model::checkpoint::{self, Checkpoint, WeightView};
use lily_model::device::{Capacity, DeviceError, MAX_STEPS_IN_FLIGHT};
use lily_model::graph::{
    Buffer, BufferId as PlanBuffer, BufferRole, Element, Extent, Model, OpKind, Phase, Plan, WeightId,
};

use crate::arena::{self, ALIGNMENT, Request};
use crate::driver::{Driver, Memory as Kind};
use crate::program::{BufferId, Span};
use crate::shape::StepShape;
use crate::source::WeightAlignment;
use crate::tuning::Tuning;

/// A weight as kernels are given it.
#[derive(Debug, Clone, Copy)]
pub enum WeightSpans {
    /// Words, scales and biases; a bf16 matrix is bound three times.
    Matrix([Span; 3]),
    /// f32 values.
    Vector(Span),
}

/// Intermediates that a kernel needs and the plan does not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Private {
    /// Logits of experts and shared gate, f32 `[rows, experts + 1]`.
    RouterLogits,
    /// Best value and id of each part, `[logit rows, parts, 2]`.
    ArgmaxParts,
    /// Output of the scan before its norm, f32 `[rows, value dim]`.
    Scanned,
    /// Pairs of each expert, u32 `[experts]`.
    SortCounts,
    /// Tiles of the grouped products, 16 bytes each.
    SortTiles,
}

impl Private {
    const ALL: [Private; 5] =
        [Private::RouterLogits, Private::ArgmaxParts, Private::Scanned, Private::SortCounts, Private::SortTiles];

    /// Bytes for so many rows and logit rows.
    fn bytes(self, model: &Model, argmax_parts: usize, rows: usize, logit_rows: usize) -> u64 {
        let c = &model.config;
        let bytes = match self {
            Private::RouterLogits => rows * (c.num_experts + 1) * 4,
            Private::ArgmaxParts => logit_rows * argmax_parts * 8,
            Private::Scanned => rows * c.linear_value_dim() * 4,
            Private::SortCounts => c.num_experts * 4,
            Private::SortTiles => (1 + most_tiles(rows, c.num_experts_per_tok, c.num_experts, 32)) * 16,
        };
        bytes as u64
    }

    pub(crate) fn used_by(self, kind: &OpKind) -> bool {
        match self {
            Private::RouterLogits => matches!(kind, OpKind::Router { .. }),
            Private::ArgmaxParts => matches!(kind, OpKind::Argmax { .. }),
            // From the convolution on, whose inputs are read beside the scan once more (for the window): were they in
            // the same place, the scan would have to wait.
            Private::Scanned => matches!(kind, OpKind::GdnConv { .. } | OpKind::GdnScan { .. }),
            Private::SortCounts => matches!(kind, OpKind::RouteSort { .. }),
            // From the sort to the last product.
            Private::SortTiles => {
                matches!(kind, OpKind::RouteSort { .. } | OpKind::GroupedGateUp { .. } | OpKind::GroupedDown { .. })
            }
        }
    }
}

/// Most tiles of `tile` rows that the pairs of `rows` rows can take.
pub fn most_tiles(rows: usize, experts_per_token: usize, experts: usize, tile: usize) -> usize {
    let pairs = rows * experts_per_token;
    (pairs / tile + experts.min(pairs)).min(pairs)
}

/// Counters of arrivals, each zero between dispatches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Arrivals {
    /// Output projection, by row tile.
    OutProj,
    /// Experts' down projection, by row.
    Down,
    /// Router, by row tile.
    Router,
    /// Argmax, by logit row.
    Argmax,
}

/// A range of the inputs of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Input {
    /// Counts: rows, logit rows, whether tokens come from the step before, segments.
    Step,
    /// u32 a row.
    Tokens,
    /// [`ROW_FIELDS`] u32 a row.
    Rows,
    /// Block tables.
    Pages,
    /// u32 a logit row.
    LogitRows,
    /// First row of each segment.
    Segments,
}

impl Input {
    const ALL: [Input; 6] = [Input::Step, Input::Tokens, Input::Rows, Input::Pages, Input::LogitRows, Input::Segments];
}

/// Numbers of a row in the `rows` input.
pub const ROW_FIELDS: usize = 5;

/// Inputs of a convolution that a slot's ring keeps: one more than a step needs, so that it writes where nobody reads.
const WINDOW_RING: usize = 4;

/// All memory of a device.
#[derive(Debug)]
pub struct DeviceMemory {
    weights: Vec<WeightSpans>,
    /// Alignment of the matrices.
    pub alignment: WeightAlignment,
    states: HashMap<String, State>,
    inputs: [Span; MAX_STEPS_IN_FLIGHT],
    input_offsets: HashMap<Input, (u64, u64)>,
    results: [Span; MAX_STEPS_IN_FLIGHT],
    logits: [Span; MAX_STEPS_IN_FLIGHT],
    chosen: Span,
    arrivals: HashMap<Arrivals, Span>,
    scratch: Span,
    partials: Span,
    places: HashMap<(Phase, PlanBuffer), u64>,
    private_places: HashMap<(Phase, Private), u64>,
    argmax_parts: usize,
    capacity: Capacity,
}

/// A state buffer and what a unit of it is.
#[derive(Debug, Clone, Copy)]
pub struct State {
    /// All of it.
    pub span: Span,
    /// Bytes of a slot or of a page.
    pub unit: u64,
    /// Whether units are slots or pages.
    pub of: StateOf,
}

/// What a unit of a state buffer belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StateOf {
    /// A sequence slot.
    Slot,
    /// A page of the KV pool.
    Page,
}

impl DeviceMemory {
    /// Takes all memory that does not depend on the steps to come.
    pub fn new<D: Driver>(
        driver: &mut D,
        checkpoint: &Arc<Checkpoint>,
        plans: &[Plan; 2],
        capacity: &Capacity,
    ) -> Result<Self, DeviceError> {
        let tuning = driver.info().tuning;
        let weights = import(driver, checkpoint)?;
        let allocate = &mut |name: &str, bytes, kind| driver.allocate(name, bytes, kind);
        Self::around(weights, checkpoint.model(), &tuning, plans, capacity, allocate)
    }

    /// All memory but the weights, taken by `allocate`.
    pub(crate) fn around(
        (weights, alignment): (Vec<WeightSpans>, WeightAlignment),
        model: &Model,
        tuning: &Tuning,
        plans: &[Plan; 2],
        capacity: &Capacity,
        allocate: &mut Allocate<'_>,
    ) -> Result<Self, DeviceError> {
        let states = states(allocate, plans, capacity)?;
        let max_rows = capacity.prefill_rows.max(capacity.decode_rows);
        let blocks = capacity.max_seq.div_ceil(Plan::PAGE_TOKENS);
        // A block table for each row of a decode step, or a few sequences of any length in a prefill step.
        let table = (capacity.decode_rows.max(16) * blocks) as u64 * 4;
        let sizes = |input| match input {
            Input::Step => 16,
            Input::Tokens | Input::LogitRows | Input::Segments => max_rows as u64 * 4,
            Input::Rows => (max_rows * ROW_FIELDS * 4) as u64,
            Input::Pages => table,
        };
        let mut input_offsets = HashMap::new();
        let mut input_bytes = 0u64;
        for input in Input::ALL {
            input_offsets.insert(input, (input_bytes, sizes(input)));
            input_bytes = (input_bytes + sizes(input)).next_multiple_of(ALIGNMENT);
        }
        let inputs = [
            whole(allocate, "inputs of even steps", input_bytes, Kind::Upload)?,
            whole(allocate, "inputs of odd steps", input_bytes, Kind::Upload)?,
        ];
        let result_bytes = max_rows as u64 * 4;
        let results = [
            whole(allocate, "tokens of even steps", result_bytes, Kind::Download)?,
            whole(allocate, "tokens of odd steps", result_bytes, Kind::Download)?,
        ];
        let logit_bytes = (capacity.decode_rows * model.config.vocab_size * 4) as u64;
        let logits = [
            whole(allocate, "logits of even steps", logit_bytes, Kind::Download)?,
            whole(allocate, "logits of odd steps", logit_bytes, Kind::Download)?,
        ];
        let chosen = whole(allocate, "chosen tokens", result_bytes, Kind::State)?;
        let counters = max_rows as u64 * 4;
        let all = whole(allocate, "arrival counters", 4 * counters.next_multiple_of(ALIGNMENT), Kind::State)?;
        let section = |i: u64| all.part(i * counters.next_multiple_of(ALIGNMENT), counters);
        let arrivals = HashMap::from([
            (Arrivals::OutProj, section(0)),
            (Arrivals::Down, section(1)),
            (Arrivals::Router, section(2)),
            (Arrivals::Argmax, section(3)),
        ]);
        let partials =
            whole(allocate, "attention partials", partial_bytes(model, capacity.decode_rows), Kind::Scratch)?;
        let mut memory = DeviceMemory {
            weights,
            alignment,
            states,
            inputs,
            input_offsets,
            results,
            logits,
            chosen,
            arrivals,
            scratch: chosen,
            partials,
            places: HashMap::new(),
            private_places: HashMap::new(),
            argmax_parts: tuning.argmax_parts,
            capacity: *capacity,
        };
        let bytes = memory.place_scratch(model, plans);
        memory.scratch = whole(allocate, "intermediates", bytes, Kind::Scratch)?;
        Ok(memory)
    }

    /// Places intermediates of both plans; returns the bytes they take.
    fn place_scratch(&mut self, model: &Model, plans: &[Plan; 2]) -> u64 {
        let mut most = ALIGNMENT;
        for plan in plans {
            let rows = self.rows_of(plan.phase);
            let shared: Vec<PlanBuffer> =
                arena::scratch_buffers(plan).filter(|&id| !is_partials(plan.buffer(id))).collect();
            let mut requests: Vec<Request> = shared
                .iter()
                .map(|&id| Request {
                    bytes: elements(plan.buffer(id).extent, rows, rows) * element_bytes(plan.buffer(id).element),
                    alive: arena::alive(plan, id),
                })
                .collect();
            for private in Private::ALL {
                let mut alive = arena::alive_in(plan, |op| private.used_by(&op.kind));
                if private == Private::SortTiles {
                    alive = joined(&alive);
                }
                requests.push(Request { bytes: private.bytes(model, self.argmax_parts, rows, rows), alive });
            }
            let (offsets, bytes) = arena::place(&requests);
            most = most.max(bytes);
            for (&id, &offset) in shared.iter().zip(&offsets) {
                self.places.insert((plan.phase, id), offset);
            }
            for (private, &offset) in Private::ALL.into_iter().zip(&offsets[shared.len()..]) {
                self.private_places.insert((plan.phase, private), offset);
            }
        }
        most
    }

    /// Makes room for a step's block tables and logits. True where memory moved, so that programs must be built anew.
    /// No step may be unfinished.
    pub fn grow<D: Driver>(&mut self, driver: &mut D, model: &Model, shape: &StepShape) -> Result<(), DeviceError> {
        let partials = partial_bytes(model, shape.table);
        if shape.phase == Phase::Decode && self.partials.bytes < partials {
            let old = self.partials;
            self.partials =
                whole(&mut |n: &str, b, k| driver.allocate(n, b, k), "attention partials", partials, Kind::Scratch)?;
            driver.release(old.buffer);
        }
        let logits = (shape.logit_rows * model.config.vocab_size * 4) as u64;
        for set in 0..MAX_STEPS_IN_FLIGHT {
            if self.logits[set].bytes < logits {
                let old = self.logits[set];
                self.logits[set] =
                    whole(&mut |n: &str, b, k| driver.allocate(n, b, k), "logits", logits, Kind::Download)?;
                driver.release(old.buffer);
            }
        }
        Ok(())
    }

    /// Whether a step of this shape needs [`DeviceMemory::grow`].
    pub fn fits(&self, model: &Model, shape: &StepShape) -> bool {
        let partials = shape.phase == Phase::Prefill || partial_bytes(model, shape.table) <= self.partials.bytes;
        let logits = (shape.logit_rows * model.config.vocab_size * 4) as u64;
        partials && self.logits.iter().all(|l| l.bytes >= logits)
    }

    /// Entries that the block tables of a step may have.
    pub fn table_capacity(&self) -> usize {
        (self.input_offsets[&Input::Pages].1 / 4) as usize
    }

    /// A weight.
    pub fn weight(&self, id: WeightId) -> WeightSpans {
        self.weights[id.0 as usize]
    }

    /// State buffers, in no particular order.
    pub fn states(&self) -> impl Iterator<Item = (&str, State)> {
        self.states.iter().map(|(name, state)| (name.as_str(), *state))
    }

    /// All of a kind of input, in a set.
    pub fn input(&self, set: usize, input: Input) -> Span {
        let (offset, bytes) = self.input_offsets[&input];
        self.inputs[set].part(offset, bytes)
    }

    /// All inputs of a set.
    pub fn inputs(&self, set: usize) -> Span {
        self.inputs[set]
    }

    /// Tokens that a step chose, for the host.
    pub fn results(&self, set: usize) -> Span {
        self.results[set]
    }

    /// Logits of a step.
    pub fn logits(&self, set: usize) -> Span {
        self.logits[set]
    }

    /// Tokens that the step before chose, for the next.
    pub fn chosen(&self) -> Span {
        self.chosen
    }

    /// Counters of arrivals.
    pub fn arrivals(&self, arrivals: Arrivals) -> Span {
        self.arrivals[&arrivals]
    }

    /// Memory whose contents are undefined between steps.
    pub fn undefined(&self) -> Vec<Span> {
        vec![self.scratch, self.partials]
    }

    /// Most rows of a step.
    fn rows_of(&self, phase: Phase) -> usize {
        match phase {
            Phase::Decode => self.capacity.decode_rows,
            Phase::Prefill => self.capacity.prefill_rows,
        }
    }

    /// An intermediate that the plan does not know.
    pub fn private(&self, model: &Model, shape: &StepShape, private: Private) -> Span {
        let logit_rows = shape.logit_rows.min(self.rows_of(shape.phase));
        let bytes = private.bytes(model, self.argmax_parts, shape.rows.min(self.rows_of(shape.phase)), logit_rows);
        self.scratch.part(self.private_places[&(shape.phase, private)], bytes)
    }

    /// A buffer of the plan, as long as the shape needs it.
    pub fn buffer(&self, plan: &Plan, shape: &StepShape, id: PlanBuffer) -> Span {
        let buffer = plan.buffer(id);
        // A shape is rounded up, and may be past what a step can have.
        let most = self.rows_of(shape.phase);
        let (rows, logit_rows) = (shape.rows.min(most), shape.logit_rows.min(most));
        let bytes = match buffer.extent {
            Extent::PerRowBlock(n) => (shape.table * n) as u64 * element_bytes(buffer.element),
            extent => elements(extent, rows, logit_rows) * element_bytes(buffer.element),
        };
        match buffer.role {
            BufferRole::Scratch if is_partials(buffer) => self.partials.part(0, bytes),
            BufferRole::Scratch => self.scratch.part(self.places[&(shape.phase, id)], bytes),
            BufferRole::State => self.states[&buffer.name].span,
            BufferRole::Output if buffer.name == "logits" => self.logits[shape.set].part(0, bytes),
            BufferRole::Output => self.results[shape.set].part(0, bytes),
            BufferRole::Input => {
                let input = match buffer.name.as_str() {
                    "tokens" => Input::Tokens,
                    "rows" => Input::Rows,
                    "pages" => Input::Pages,
                    _ => Input::LogitRows,
                };
                let all = self.input(shape.set, input);
                all.part(0, bytes.min(all.bytes))
            }
        }
    }
}

/// Takes a buffer of so many bytes; the name is for messages.
pub(crate) type Allocate<'a> = dyn FnMut(&str, u64, Kind) -> Result<BufferId, DeviceError> + 'a;

fn whole(allocate: &mut Allocate<'_>, name: &str, bytes: u64, kind: Kind) -> Result<Span, DeviceError> {
    let bytes = bytes.max(16);
    Ok(Span { buffer: allocate(name, bytes, kind)?, offset: 0, bytes })
}

/// One range from the first use of each layer to its last: uses come in threes.
fn joined(alive: &[(usize, usize)]) -> Vec<(usize, usize)> {
    alive.chunks(3).filter_map(|uses| Some((uses.first()?.0, uses.last()?.1))).collect()
}

fn is_partials(buffer: &Buffer) -> bool {
    matches!(buffer.extent, Extent::PerRowBlock(_))
}

fn partial_bytes(model: &Model, table: usize) -> u64 {
    (table * model.config.num_attention_heads * (model.config.head_dim + 2) * 4) as u64
}

fn element_bytes(element: Element) -> u64 {
    match element {
        Element::F32 | Element::U32 => 4,
        Element::Activation | Element::Cache => 2,
    }
}

fn elements(extent: Extent, rows: usize, logit_rows: usize) -> u64 {
    let count = match extent {
        Extent::PerRow(n) => n * rows,
        Extent::PerLogitRow(n) => n * logit_rows,
        Extent::Fixed(n) | Extent::PerSlot(n) | Extent::PerPage(n) | Extent::PerRowBlock(n) => n,
    };
    count as u64
}

/// State buffers of both plans, by name.
fn states(
    allocate: &mut Allocate<'_>,
    plans: &[Plan; 2],
    capacity: &Capacity,
) -> Result<HashMap<String, State>, DeviceError> {
    let mut states = HashMap::new();
    for plan in plans {
        let is_window = |id: usize| {
            plan.ops.iter().any(|op| match op.kind {
                OpKind::GdnStep { window, .. } | OpKind::GdnConv { window, .. } => window.0 as usize == id,
                _ => false,
            })
        };
        for (index, buffer) in plan.buffers.iter().enumerate() {
            if buffer.role != BufferRole::State || states.contains_key(&buffer.name) {
                continue;
            }
            let unit = elements(buffer.extent, 1, 1) * element_bytes(buffer.element);
            let (unit, count, of, kind) = match buffer.extent {
                Extent::PerPage(_) => (unit, capacity.pages, StateOf::Page, Kind::Pages),
                _ if is_window(index) => {
                    (unit / (WINDOW_RING as u64 - 1) * WINDOW_RING as u64, capacity.slots, StateOf::Slot, Kind::State)
                }
                _ => (unit, capacity.slots, StateOf::Slot, Kind::State),
            };
            let span = whole(allocate, &buffer.name, unit * count as u64, kind)?;
            states.insert(buffer.name.clone(), State { span, unit, of });
        }
    }
    Ok(states)
}

/// Matrices as they are in the checkpoint; vectors as f32 in a buffer of their own.
fn import<D: Driver>(
    driver: &mut D,
    checkpoint: &Arc<Checkpoint>,
) -> Result<(Vec<WeightSpans>, WeightAlignment), DeviceError> {
    let model = checkpoint.model();
    let ids = || (0..model.weights.len()).map(|i| WeightId(i as u32));
    let mut wanted: Vec<checkpoint::Span> = Vec::new();
    let mut vectors: Vec<u8> = Vec::new();
    enum Place {
        Matrix([usize; 3]),
        Vector { offset: u64, bytes: u64 },
    }
    let mut places = Vec::with_capacity(model.weights.len());
    for id in ids() {
        match checkpoint.weight(id) {
            WeightView::Float(view) => {
                let values = view.to_vec();
                vectors.resize(vectors.len().next_multiple_of(ALIGNMENT as usize), 0);
                let offset = vectors.len() as u64;
                vectors.extend(values.iter().flat_map(|v| v.to_le_bytes()));
                places.push(Place::Vector { offset, bytes: values.len() as u64 * 4 });
            }
            WeightView::Quantized(_) | WeightView::Dense(_) => {
                let location = checkpoint.location(id);
                let first = wanted.len();
                wanted.push(location.weight);
                match location.affine {
                    Some(affine) => {
                        wanted.extend([affine.scales, affine.biases]);
                        places.push(Place::Matrix([first, first + 1, first + 2]));
                    }
                    None => places.push(Place::Matrix([first; 3])),
                }
            }
        }
    }
    let imported = driver.import(checkpoint, &wanted)?;
    let all = whole(
        &mut |n: &str, b, k| driver.allocate(n, b, k),
        "norms and other vectors",
        vectors.len() as u64,
        Kind::Upload,
    )?;
    if !vectors.is_empty() {
        driver.write(all.part(0, vectors.len() as u64), &vectors)?;
    }
    let weights = places
        .into_iter()
        .map(|place| match place {
            Place::Matrix(parts) => WeightSpans::Matrix(parts.map(|i| imported.spans[i])),
            Place::Vector { offset, bytes } => WeightSpans::Vector(all.part(offset, bytes)),
        })
        .collect();
    Ok((weights, imported.alignment))
}
