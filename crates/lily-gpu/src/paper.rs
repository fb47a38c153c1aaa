//! A step on paper: the dispatches that the table gives for a model of which no weight is there, and the bytes they move.

use lily_model::device::{Capacity, DeviceError, LogitRows, Output, PageId, Segment, SlotId, Step, Tokens};
use lily_model::graph::{Extent, Model, Op, OpBytes, OpKind, Phase, Plan, WeightKind};

use crate::memory::{DeviceMemory, WeightSpans};
use crate::program::{Access, BufferId, Dispatch, Program, Span};
use crate::roles::Libraries;
use crate::route::grouped_tile_rows;
use crate::shape::StepShape;
use crate::source::{WeightAlignment, packed_heads};
use crate::table::{KERNELS, Table};
use crate::tuning::Tuning;

/// A step to look at: `rows` sequences of one token each (decode), or `rows` tokens of one sequence (prefill).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PaperStep {
    /// Form of the step.
    pub phase: Phase,
    /// Rows.
    pub rows: usize,
    /// Keys that each sequence already has in the cache.
    pub context: usize,
}

/// One dispatch of the step.
#[derive(Debug, Clone, PartialEq)]
pub struct PaperDispatch {
    /// Operation of the plan.
    pub op: &'static str,
    /// Kernel.
    pub kernel: &'static str,
    /// Layer of the operation.
    pub layer: Option<usize>,
    /// Stage, from 1: those of a stage run together, a barrier stands between stages.
    pub level: usize,
    /// Earlier dispatches that it directly waits for.
    pub after: Vec<usize>,
    /// Threadgroups.
    pub grid: [u32; 3],
    /// Threads of a threadgroup.
    pub threads: u32,
    /// Bytes it moves: a matrix once for each pass over it, state and intermediates as often as they are bound for reading
    /// and for writing. What threadgroups share through the caches of one pass counts once.
    pub bytes: OpBytes,
}

/// The dispatches of a step, in order.
///
/// # Errors
/// Whatever makes a step impossible on a device of its own size: [`DeviceError::Unsupported`].
pub fn dispatches(model: &Model, tuning: &Tuning, step: PaperStep) -> Result<Vec<PaperDispatch>, DeviceError> {
    let PaperStep { phase, rows, context } = step;
    let decode = phase == Phase::Decode;
    let sequences = if decode { rows } else { 1 };
    let last = context + if decode { 1 } else { rows };
    let table = last.div_ceil(Plan::PAGE_TOKENS);
    let capacity = Capacity {
        slots: sequences,
        pages: sequences * table,
        prefill_rows: if decode { 1 } else { rows },
        decode_rows: sequences,
        max_seq: last,
    };
    crate::steps::check_capacity("paper", &capacity)?;
    let plans = [Plan::decode(model, capacity.decode_rows), Plan::prefill(model, capacity.prefill_rows)];
    let mut buffers = 0;
    let mut buffer = || {
        buffers += 1;
        BufferId(buffers)
    };
    let weights = (0..model.weights.len()).map(|i| weight_spans(model, i, &mut buffer)).collect();
    let memory =
        DeviceMemory::around((weights, WeightAlignment::Sixteen), model, tuning, &plans, &capacity, &mut |_, _, _| {
            Ok(buffer())
        })?;
    let pages: Vec<PageId> = (0..table as u32).map(PageId).collect();
    let segments: Vec<Segment<'_>> = (0..sequences as u32)
        .map(|i| Segment { slot: SlotId(i), start: context, rows: rows / sequences, pages: &pages })
        .collect();
    let ids = vec![0; rows];
    let shape = StepShape::of(
        &Step {
            phase,
            tokens: Tokens::Ids(&ids),
            segments: &segments,
            logit_rows: LogitRows::Last,
            output: Output::Argmax,
        },
        0,
    );
    let libraries = Libraries::of(model);
    let plan = &plans[usize::from(!decode)];
    let table = Table { model, plan, memory: &memory, libraries: &libraries, tuning, shape };
    let mut all: Vec<(&Op, Dispatch)> = Vec::new();
    for op in &plan.ops {
        let mut of_op = Vec::new();
        table.op(op, &mut of_op);
        all.extend(of_op.into_iter().map(|dispatch| (op, dispatch)));
    }
    let program = Program::new(all.iter().map(|(_, dispatch)| dispatch.clone()).collect(), Vec::new());
    let mut levels = vec![0; all.len()];
    for (stage, members) in program.stages.iter().enumerate() {
        for &index in members {
            levels[index] = stage + 1;
        }
    }
    let traffic = Traffic { model, table: &table, step };
    Ok(all
        .iter()
        .zip(levels)
        .zip(program.edges)
        .map(|(((op, dispatch), level), after)| PaperDispatch {
            op: dispatch.op,
            kernel: KERNELS[dispatch.kernel.kernel],
            layer: dispatch.layer,
            level,
            after,
            grid: dispatch.grid,
            threads: dispatch.threads,
            bytes: traffic.bytes(op, dispatch),
        })
        .collect())
}

/// A weight in buffers of its own.
fn weight_spans(model: &Model, index: usize, buffer: &mut impl FnMut() -> BufferId) -> WeightSpans {
    let mut span = |bytes: usize| Span { buffer: buffer(), offset: 0, bytes: bytes as u64 };
    match model.weights[index].kind {
        WeightKind::Matrix { experts, outputs, inputs, quantization } => {
            let all = experts.unwrap_or(1) * outputs;
            match quantization {
                Some(q) => {
                    let groups = all * (inputs / q.group_size) * 2;
                    WeightSpans::Matrix([span(all * inputs * q.bits / 8), span(groups), span(groups)])
                }
                None => WeightSpans::Matrix([span(all * inputs * 2); 3]),
            }
        }
        WeightKind::Gain { len } | WeightKind::Vector { len } => WeightSpans::Vector(span(len * 4)),
        WeightKind::Conv { channels, taps } => WeightSpans::Vector(span(channels * taps * 4)),
    }
}

/// What bytes depend on.
struct Traffic<'a> {
    model: &'a Model,
    table: &'a Table<'a>,
    step: PaperStep,
}

impl Traffic<'_> {
    fn bytes(&self, op: &Op, dispatch: &Dispatch) -> OpBytes {
        let mut bytes = OpBytes::default();
        let accesses = op.accesses();
        let mut counted: Vec<Span> = Vec::new();
        for binding in &dispatch.bindings {
            // A bf16 matrix is bound three times.
            if counted.contains(&binding.span) {
                continue;
            }
            counted.push(binding.span);
            let weight = accesses.weights.iter().find(|id| match self.table.memory.weight(**id) {
                WeightSpans::Matrix(spans) => spans.contains(&binding.span),
                WeightSpans::Vector(span) => span == binding.span,
            });
            let times = if binding.access == Access::ReadWrite { 2.0 } else { 1.0 };
            match weight {
                Some(id) => {
                    bytes.weights += binding.span.bytes as f64 * self.passes(op, dispatch, self.model.weight(*id).kind);
                }
                None => match self.state_bytes(op, binding.span, binding.access) {
                    Some(state) => bytes.state += state,
                    None => bytes.activations += self.blocks(op, binding.span) * times,
                },
            }
        }
        bytes
    }

    /// How often a dispatch reads a weight: the share of it that it needs, times the passes over that.
    fn passes(&self, op: &Op, dispatch: &Dispatch, kind: WeightKind) -> f64 {
        let c = &self.model.config;
        let rows = self.step.rows as f64;
        match (op.kind, kind) {
            (_, WeightKind::Gain { .. } | WeightKind::Vector { .. } | WeightKind::Conv { .. }) => 1.0,
            (OpKind::Embed { .. }, WeightKind::Matrix { outputs, .. }) => rows / outputs as f64,
            // Each row reads its own experts, and the shared one.
            (OpKind::ExpertGateUp { .. } | OpKind::ExpertDownNorm { .. }, WeightKind::Matrix { experts, .. }) => {
                rows * experts.map_or(1.0, |experts| c.num_experts_per_tok as f64 / experts as f64)
            }
            // An expert is read once for each tile of its rows.
            (
                OpKind::GroupedGateUp { .. } | OpKind::GroupedDown { .. },
                WeightKind::Matrix { experts: Some(experts), .. },
            ) => {
                let tile = grouped_tile_rows(self.table.shape.rows, c.num_experts_per_tok, c.num_experts) as f64;
                let used = 1.0 - (1.0 - c.num_experts_per_tok as f64 / experts as f64).powf(rows);
                let rows_each = rows * c.num_experts_per_tok as f64 / experts as f64 / used;
                used * (rows_each / tile).ceil()
            }
            // Threadgroups above one another in the grid serve other rows with the same matrix.
            (_, WeightKind::Matrix { .. }) => f64::from(dispatch.grid[1]),
        }
    }

    /// Bytes of an intermediate. Those of blocks of keys have room for more blocks than there are.
    fn blocks(&self, op: &Op, span: Span) -> f64 {
        let (plan, memory, shape) = (self.table.plan, self.table.memory, &self.table.shape);
        let accesses = op.accesses();
        let of_blocks = accesses.reads.iter().chain(&accesses.writes).any(|id| {
            matches!(plan.buffer(*id).extent, Extent::PerRowBlock(_)) && memory.buffer(plan, shape, *id) == span
        });
        let PaperStep { phase, rows, context } = self.step;
        let (sequences, last) = if phase == Phase::Decode { (rows, context + 1) } else { (1, context + rows) };
        let used = if of_blocks { sequences * last.div_ceil(Plan::PAGE_TOKENS) } else { shape.table };
        span.bytes as f64 * used as f64 / shape.table as f64
    }

    /// Bytes of a state buffer that a dispatch touches; `None` for other memory.
    fn state_bytes(&self, op: &Op, span: Span, access: Access) -> Option<f64> {
        let (_, state) = self.table.memory.states().find(|(_, state)| state.span.buffer == span.buffer)?;
        let c = &self.model.config;
        let PaperStep { phase, rows, context } = self.step;
        let sequences = if phase == Phase::Decode { rows } else { 1 };
        let both = if access == Access::ReadWrite { 2.0 } else { 1.0 };
        let is_cache = op.accesses().writes.iter().chain(&op.accesses().reads).any(|id| {
            let buffer = self.table.plan.buffer(*id);
            matches!(buffer.extent, Extent::PerPage(_))
        });
        if !is_cache {
            return Some(both * sequences as f64 * state.unit as f64);
        }
        let a_token = state.unit as f64 / Plan::PAGE_TOKENS as f64;
        let stored = rows as f64 * a_token;
        let packs = (c.num_attention_heads / c.num_key_value_heads / packed_heads(c)) as f64;
        Some(match op.kind {
            OpKind::AttnDecode { .. } => (sequences * context) as f64 * a_token * packs + stored,
            OpKind::AttnPrefill { .. } => (context + rows) as f64 * a_token,
            _ => stored,
        })
    }
}

#[cfg(test)]
mod tests {
    use lily_model::config::ModelConfig;
    use lily_model::graph;

    use super::*;

    fn model() -> Model {
        Model::new(ModelConfig::qwen36_35b_a3b()).expect("the preset is a valid geometry")
    }

    fn step(phase: Phase, rows: usize, context: usize) -> Vec<PaperDispatch> {
        dispatches(&model(), &Tuning::APPLE, PaperStep { phase, rows, context }).expect("a possible step")
    }

    fn levels(dispatches: &[PaperDispatch]) -> usize {
        dispatches.iter().map(|d| d.level).max().unwrap_or(0)
    }

    /// Bytes that the plan cannot do without.
    fn floor(rows: usize, context: usize) -> f64 {
        let (model, plan) = (model(), Plan::decode(&model(), rows));
        let traffic = graph::Traffic { rows, logit_rows: rows, context, activation_bytes: 2, cache_bytes: 2 };
        plan.ops.iter().map(|op| plan.op_bytes(&model, op, traffic).memory()).sum()
    }

    #[test]
    fn a_decoded_token_takes_at_most_300_dispatches_in_260_levels() {
        for context in [0, 255, 32_768, 262_143] {
            let dispatches = step(Phase::Decode, 1, context);
            assert!(dispatches.len() <= 300, "{} dispatches", dispatches.len());
            assert!(levels(&dispatches) <= 260, "{} levels", levels(&dispatches));
        }
    }

    #[test]
    fn a_decoded_token_moves_at_most_3_percent_more_than_the_floor() {
        for context in [0, 4096, 32_768] {
            let moved: f64 = step(Phase::Decode, 1, context).iter().map(|d| d.bytes.total()).sum();
            let floor = floor(1, context);
            assert!((0.99..1.03).contains(&(moved / floor)), "{moved} of {floor} at {context}");
        }
    }

    #[test]
    fn four_sequences_read_dense_weights_once() {
        let weights = |rows| -> f64 {
            let dense = |d: &&PaperDispatch| !d.op.starts_with("expert") && d.op != "embed";
            step(Phase::Decode, rows, 0).iter().filter(dense).map(|d| d.bytes.weights).sum()
        };
        assert_eq!(weights(4), weights(1));
        assert!(weights(5) > 1.9 * weights(1));
    }

    #[test]
    fn a_prefill_step_keeps_its_dispatches_and_levels_at_any_length() {
        for rows in [512, 4096] {
            let dispatches = step(Phase::Prefill, rows, 0);
            assert!(dispatches.len() <= 583, "{rows} rows: {} dispatches", dispatches.len());
            assert!(levels(&dispatches) <= 473, "{rows} rows: {} levels", levels(&dispatches));
        }
    }
}
