//! Executes a plan: every thread walks through the operations and meets the others after each.
//!
//! Each operation of the plan has a function here that shares its work among the threads and calls the functions of
//! [`crate::reference`] or [`crate::simd`], as the precision says. Decode and prefill call the same functions on the same
//! units of work, so that a row's bits do not depend on how it came.

mod attention;
mod buffers;
mod gdn;
mod inputs;
mod linear;
mod moe;
mod rows;
mod units;

use lily_model::checkpoint::Checkpoint;
use lily_model::config::ModelConfig;
use lily_model::device::{Capacity, DeviceError};
use lily_model::graph::{BufferId, Op, OpKind, WeightId};
use lily_model::synth::RoutingCounts;

pub use buffers::{Activations, Buffers, Cache, CacheView, Storage, View};
pub use inputs::Inputs;
pub use units::Units;

use crate::memory::{Region, Shared};
use crate::pool::Team;
use crate::simd::Tile;

/// Parameters that are small enough to be kept in f32: gains, gates, convolution taps.
pub type Vectors = Vec<Vec<f32>>;

/// What an operation sees. Shared by all threads of a step.
pub struct Context<'a> {
    pub checkpoint: &'a Checkpoint,
    pub config: &'a ModelConfig,
    pub vectors: &'a Vectors,
    pub units: Units,
    pub inputs: &'a Inputs,
    /// The plan's buffers, by id.
    pub views: Vec<View<'a>>,
    /// Room of the device's own, see [`Scratch`].
    pub scratch: ScratchViews<'a>,
    /// Most blocks of keys a sequence can have.
    pub max_blocks: usize,
}

/// Intermediate results that live within one operation, so that no plan names them.
pub struct Scratch {
    /// `[rows, widest]`.
    pub wide: Region<f32>,
    /// `[decode rows, K + 1, hidden]`.
    pub down: Region<f32>,
}

/// See [`Scratch`].
#[derive(Clone, Copy)]
pub struct ScratchViews<'a> {
    pub wide: Shared<'a, f32>,
    pub down: Shared<'a, f32>,
}

impl Scratch {
    /// Room for steps of up to these sizes.
    pub fn new(config: &ModelConfig, capacity: &Capacity) -> Result<Self, DeviceError> {
        let rows = capacity.prefill_rows.max(capacity.decode_rows);
        let widest =
            config.hidden_size.max(config.linear_value_dim()).max(config.attention_dim()).max(config.num_experts + 1);
        let gdn = config.linear_conv_dim() + 2 * config.linear_num_value_heads + config.linear_value_dim();
        let down = (config.num_experts_per_tok + 1) * config.hidden_size;
        Ok(Scratch {
            wide: Region::new((rows * widest).max(capacity.decode_rows * gdn), "intermediate rows")?,
            down: Region::new(capacity.decode_rows * down, "expert outputs")?,
        })
    }

    /// To be shared among threads.
    pub fn views(&mut self) -> ScratchViews<'_> {
        ScratchViews { wide: self.wide.shared(), down: self.down.shared() }
    }
}

impl<'a> ScratchViews<'a> {
    /// Convolved channels, gates and heads' outputs of a decode step, as the buffers of prefill have them.
    fn gdn(&self, config: &ModelConfig, rows: usize) -> [Shared<'a, f32>; 3] {
        let mixed = rows * config.linear_conv_dim();
        let gates = mixed + rows * 2 * config.linear_num_value_heads;
        let core = gates + rows * config.linear_value_dim();
        [self.wide.sub(0..mixed), self.wide.sub(mixed..gates), self.wide.sub(gates..core)]
    }
}

/// What a thread needs for itself.
pub struct Workspace {
    pub tile: Tile,
    /// Products of a tile, sixteen a row.
    pub products: Vec<[f32; 16]>,
    pub more_products: Vec<[f32; 16]>,
    pub row: Vec<f32>,
    pub values: Vec<f32>,
    pub scores: Vec<f32>,
    pub offsets: Vec<u32>,
    pub order: Vec<u32>,
}

impl Workspace {
    /// Room for a model's widest row.
    pub fn new(config: &ModelConfig) -> Self {
        let widest = config
            .hidden_size
            .max(config.linear_value_dim())
            .max(config.attention_dim())
            .max(config.moe_intermediate_size)
            .max(config.shared_expert_intermediate_size);
        Workspace {
            tile: Tile::new(widest),
            products: Vec::new(),
            more_products: Vec::new(),
            row: Vec::new(),
            values: Vec::new(),
            scores: Vec::new(),
            offsets: Vec::new(),
            order: Vec::new(),
        }
    }
}

/// The first `len` elements, zero where new.
fn room<T: Copy + Default>(buffer: &mut Vec<T>, len: usize) -> &mut [T] {
    if buffer.len() < len {
        buffer.resize(len, T::default());
    }
    &mut buffer[..len]
}

impl<'a> Context<'a> {
    fn vector(&self, id: WeightId) -> &'a [f32] {
        &self.vectors[id.0 as usize]
    }

    fn f32s(&self, id: BufferId) -> Shared<'a, f32> {
        match self.views[id.0 as usize] {
            View::F32(view) => view,
            _ => unreachable!("the plan declares buffer {} as f32", id.0),
        }
    }

    fn u32s(&self, id: BufferId) -> Shared<'a, u32> {
        match self.views[id.0 as usize] {
            View::U32(view) => view,
            _ => unreachable!("the plan declares buffer {} as u32", id.0),
        }
    }

    fn activations(&self, id: BufferId) -> Activations<'a> {
        match self.views[id.0 as usize] {
            View::Activations(view) => view,
            _ => unreachable!("the plan declares buffer {} as activations", id.0),
        }
    }

    fn cache(&self, id: BufferId) -> CacheView<'a> {
        match self.views[id.0 as usize] {
            View::Cache(view) => view,
            _ => unreachable!("the plan declares buffer {} as cache", id.0),
        }
    }
}

/// Counts what a router chose, after the barrier behind it; other operations chose nothing.
pub fn record_routing(op: &Op, c: &Context<'_>, counts: &mut RoutingCounts) {
    if let (OpKind::Router { experts, .. }, Some(layer)) = (&op.kind, op.layer) {
        counts.record(layer, moe::chosen(c, *experts));
    }
}

/// One thread's part of an operation. The caller puts a barrier after it.
pub fn run(op: &Op, c: &Context<'_>, team: &Team<'_>, w: &mut Workspace) {
    match op.kind {
        OpKind::Embed { weight, norm, residual, normed, .. } => rows::embed(c, team, w, weight, norm, residual, normed),
        OpKind::GdnInProj { weights, input, qkv, z, ba } => gdn::in_proj(c, team, w, &weights, input, [qkv, z, ba]),
        OpKind::GdnStep { weights, qkv, z, ba, window, state, output, .. } => {
            gdn::step(c, team, w, &weights, &gdn::StepBuffers { qkv, z, ba, window, state, output });
        }
        OpKind::GdnConv { weights, qkv, ba, window, mixed, gates, .. } => {
            gdn::conv(c, team, &weights, &gdn::ConvBuffers { qkv, ba, window, mixed, gates });
        }
        OpKind::GdnScan { weights, mixed, gates, z, state, output, .. } => {
            gdn::scan(c, team, w, &weights, &gdn::ScanBuffers { mixed, gates, z, state, output });
        }
        OpKind::AttnInProj { weights, input, qg, kv } => attention::in_proj(c, team, w, &weights, input, qg, kv),
        OpKind::QkNormRopeStore { weights, qg, kv, cache, .. } => {
            attention::norm_rope_store(c, team, w, &weights, qg, kv, cache);
        }
        OpKind::AttnDecode { weights, qg, kv, cache, partials, .. } => {
            attention::norm_rope_store(c, team, w, &weights, qg, kv, cache);
            team.barrier();
            attention::decode(c, team, w, cache, partials);
        }
        OpKind::AttnCombine { partials, qg, output, .. } => attention::combine(c, team, w, partials, qg, output),
        OpKind::AttnPrefill { qg, cache, output, .. } => attention::prefill(c, team, w, qg, cache, output),
        OpKind::OutProjNorm { weight, norm, input, residual, normed } => {
            linear::out_proj(c, team, w, weight, input, c.scratch.wide);
            team.barrier();
            rows::add_rms_norm(c, team, w, norm, c.scratch.wide, residual, normed);
        }
        OpKind::OutProj { weight, input, output } => linear::out_proj(c, team, w, weight, input, c.f32s(output)),
        OpKind::AddRmsNorm { norm, delta, residual, normed } => {
            rows::add_rms_norm(c, team, w, norm, c.f32s(delta), residual, normed);
        }
        OpKind::Router { weights, input, experts, scales } => {
            moe::router(c, team, w, &weights, input, experts, scales);
        }
        OpKind::RouteSort { experts, offsets, order } => moe::route_sort(c, team, experts, offsets, order),
        OpKind::ExpertGateUp { weights, input, experts, output } => {
            let (offsets, order) = moe::sort_alone(c, w, experts);
            moe::gate_up(c, team, w, &weights, (&offsets, &order), input, output);
            (w.offsets, w.order) = (offsets, order);
        }
        OpKind::ExpertDownNorm { weights, norm, input, experts, scales, residual, normed } => {
            let (offsets, order) = moe::sort_alone(c, w, experts);
            moe::down(c, team, w, &weights, (&offsets, &order), input, c.scratch.down);
            (w.offsets, w.order) = (offsets, order);
            team.barrier();
            moe::combine(c, team, w, norm, c.scratch.down, scales, residual, normed);
        }
        OpKind::GroupedGateUp { weights, input, offsets, order, output } => {
            let (offsets, order) = moe::sorted(c, offsets, order);
            moe::gate_up(c, team, w, &weights, (offsets, order), input, output);
        }
        OpKind::GroupedDown { weights, input, offsets, order, output } => {
            let (offsets, order) = moe::sorted(c, offsets, order);
            moe::down(c, team, w, &weights, (offsets, order), input, c.f32s(output));
        }
        OpKind::Combine { norm, down, scales, residual, normed } => {
            moe::combine(c, team, w, norm, c.f32s(down), scales, residual, normed);
        }
        OpKind::LmHead { weight, input, logits, .. } => linear::lm_head(c, team, w, weight, input, logits),
        OpKind::Argmax { logits, next } => rows::argmax(c, team, logits, next),
    }
}
