//! The dispatch table: which kernels compute an operation, over what grid, with which ranges bound.
//!
//! What a dispatch may touch is exactly what is bound here, so that a checker can hold kernels to it and stages can be
//! derived from it. Sizes come from the geometry, the thread organisation and the shape of the step.

mod attention;
mod gdn;
mod io;
mod moe;

#[cfg(test)]
mod tests;

use lily_model::graph::{BufferId as PlanBuffer, Model, Op, OpKind, Plan, WeightId, WeightKind};

use crate::memory::{DeviceMemory, Input, WeightSpans};
use crate::program::{Access, Binding, Dispatch, KernelId, Program, Span};
use crate::roles::{Libraries, Storage};
use crate::shape::StepShape;
use crate::tuning::Tuning;

/// Names of all kernels. Every library has all of them.
pub const KERNELS: [&str; 36] = [
    "embed",
    "gdn_in_proj",
    "gdn_in_proj_gemm",
    "gdn_step",
    "gdn_conv",
    "gdn_window",
    "gdn_scan",
    "gdn_gated_norm",
    "attn_in_proj",
    "attn_in_proj_gemm",
    "attn_decode",
    "attn_combine",
    "qk_norm_rope_store",
    "attn_prefill",
    "out_proj_norm_gdn",
    "out_proj_norm_attn",
    "out_proj_gdn",
    "out_proj_attn",
    "out_proj_gemm_gdn",
    "out_proj_gemm_attn",
    "add_rms_norm",
    "router",
    "expert_gate_up",
    "expert_down_norm",
    "route_count",
    "route_place_32",
    "route_place_64",
    "grouped_gate_up_32",
    "grouped_gate_up_64",
    "shared_gate_up",
    "grouped_down_32",
    "grouped_down_64",
    "shared_down",
    "combine",
    "lm_head",
    "argmax",
];

/// What the table is looked up with.
#[derive(Debug, Clone, Copy)]
pub struct Table<'a> {
    /// The model.
    pub model: &'a Model,
    /// The plan of the shape's phase.
    pub plan: &'a Plan,
    /// Where everything lies.
    pub memory: &'a DeviceMemory,
    /// Which library has which storage.
    pub libraries: &'a Libraries,
    /// Thread organisation.
    pub tuning: &'a Tuning,
    /// Shape of the step.
    pub shape: StepShape,
}

impl Table<'_> {
    /// The program of a step of this shape.
    pub fn program(&self) -> Program {
        let mut dispatches = Vec::new();
        for op in &self.plan.ops {
            self.op(op, &mut dispatches);
        }
        Program::new(dispatches, self.memory.undefined())
    }

    /// Appends the dispatches of one operation.
    pub fn op(&self, op: &Op, to: &mut Vec<Dispatch>) {
        match op.kind {
            OpKind::Embed { .. } | OpKind::LmHead { .. } | OpKind::Argmax { .. } => self.io(op, to),
            OpKind::GdnInProj { .. } | OpKind::GdnStep { .. } | OpKind::GdnConv { .. } | OpKind::GdnScan { .. } => {
                self.gdn(op, to);
            }
            OpKind::AttnInProj { .. }
            | OpKind::QkNormRopeStore { .. }
            | OpKind::AttnDecode { .. }
            | OpKind::AttnCombine { .. }
            | OpKind::AttnPrefill { .. } => self.attention(op, to),
            OpKind::OutProjNorm { .. } | OpKind::OutProj { .. } | OpKind::AddRmsNorm { .. } => self.out_proj(op, to),
            OpKind::Router { .. }
            | OpKind::RouteSort { .. }
            | OpKind::ExpertGateUp { .. }
            | OpKind::ExpertDownNorm { .. }
            | OpKind::GroupedGateUp { .. }
            | OpKind::GroupedDown { .. }
            | OpKind::Combine { .. } => self.moe(op, to),
        }
    }

    /// Begins a dispatch of `kernel` with threadgroups of `simds` simdgroups.
    fn call(&self, op: &Op, kernel: &'static str, grid: [usize; 3], simds: usize) -> Call<'_> {
        let index = KERNELS.iter().position(|k| *k == kernel).unwrap_or(KERNELS.len());
        debug_assert!(index < KERNELS.len(), "{kernel} is not in the list of kernels");
        Call {
            table: self,
            dispatch: Dispatch {
                op: op.name(),
                layer: op.layer,
                kernel: KernelId { library: self.libraries.serving(self.model, op), kernel: index },
                grid: grid.map(|n| n as u32),
                threads: simds as u32 * 32,
                bindings: Vec::new(),
            },
        }
    }

    /// Storage and sizes of a matrix.
    fn matrix(&self, id: WeightId) -> MatrixShape {
        match self.model.weight(id).kind {
            WeightKind::Matrix { outputs, inputs, quantization, .. } => {
                MatrixShape { storage: Storage::of(quantization, inputs), outputs, inputs }
            }
            WeightKind::Gain { len } | WeightKind::Vector { len } => {
                MatrixShape { storage: Storage::of(None, len), outputs: 1, inputs: len }
            }
            WeightKind::Conv { channels, taps } => {
                MatrixShape { storage: Storage::of(None, taps), outputs: channels, inputs: taps }
            }
        }
    }

    /// Tiles of decode rows.
    fn row_tiles(&self) -> usize {
        self.shape.rows.div_ceil(self.tuning.row_tile)
    }
}

/// A matrix as a kernel sees it.
#[derive(Debug, Clone, Copy)]
struct MatrixShape {
    storage: Storage,
    outputs: usize,
    inputs: usize,
}

impl MatrixShape {
    /// Threadgroups that compute all outputs by matvec: `out` outputs a lane group, `simds` simdgroups.
    fn matvec_tiles(self, out: usize, simds: usize) -> usize {
        self.outputs.div_ceil(out * simds * self.storage.side(self.inputs))
    }

    /// Threadgroups that compute all outputs in matrix tiles.
    fn gemm_tiles(self) -> usize {
        self.outputs.div_ceil(64)
    }
}

/// A dispatch being bound.
struct Call<'a> {
    table: &'a Table<'a>,
    dispatch: Dispatch,
}

impl Call<'_> {
    fn bind(mut self, index: u32, span: Span, access: Access) -> Self {
        self.dispatch.bindings.push(Binding { index, span, access });
        self
    }

    /// Binds a matrix's words, scales and biases to three indices from `first` on.
    fn matrix(mut self, first: u32, id: WeightId) -> Self {
        let spans = match self.table.memory.weight(id) {
            WeightSpans::Matrix(spans) => spans,
            WeightSpans::Vector(span) => [span; 3],
        };
        for (i, span) in (first..).zip(spans) {
            self = self.bind(i, span, Access::Read);
        }
        self
    }

    /// Binds a vector of f32.
    fn vector(self, index: u32, id: WeightId) -> Self {
        let span = match self.table.memory.weight(id) {
            WeightSpans::Vector(span) => span,
            WeightSpans::Matrix(spans) => spans[0],
        };
        self.bind(index, span, Access::Read)
    }

    fn buffer(self, index: u32, id: PlanBuffer, access: Access) -> Self {
        let span = self.table.memory.buffer(self.table.plan, &self.table.shape, id);
        self.bind(index, span, access)
    }

    fn read(self, index: u32, id: PlanBuffer) -> Self {
        self.buffer(index, id, Access::Read)
    }

    fn write(self, index: u32, id: PlanBuffer) -> Self {
        self.buffer(index, id, Access::Write)
    }

    fn update(self, index: u32, id: PlanBuffer) -> Self {
        self.buffer(index, id, Access::ReadWrite)
    }

    fn input(self, index: u32, input: Input) -> Self {
        let span = self.table.memory.input(self.table.shape.set, input);
        self.bind(index, span, Access::Read)
    }

    fn step(self, index: u32) -> Self {
        self.input(index, Input::Step)
    }

    fn done(self, to: &mut Vec<Dispatch>) {
        to.push(self.dispatch);
    }
}
