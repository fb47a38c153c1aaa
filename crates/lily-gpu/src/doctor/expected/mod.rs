//! What each operation must give, from the readable reference of the CPU device; the inputs are drawn here too.
//!
//! Where a kernel rounds inside an operation (queries and keys, weights of the tensor route), the reference rounds at the
//! same place; results are compared before their last rounding.

mod attention;
mod gdn;
mod io;
mod moe;

use half::bf16;
use lily_cpu::reference::{dequantize_row, dot, rms_norm};
use lily_model::checkpoint::{Checkpoint, WeightView};
use lily_model::config::ModelConfig;
use lily_model::device::Step;
use lily_model::graph::{Op, OpKind, WeightId};

use super::case::{Case, Fill, Routing};
use super::trial::{Trial, Values, tolerance};

/// Random numbers: SplitMix64 (Steele, Lea, Flood 2014).
#[derive(Debug)]
pub(super) struct Random(pub u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.bits() >> 33) as usize % n
    }

    fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u32 << 24) as f32
    }

    /// Mean 0, variance 1, bell-shaped.
    fn bell(&mut self) -> f32 {
        (0..4).map(|_| self.unit()).sum::<f32>().mul_add(3f32.sqrt(), -2.0 * 3f32.sqrt())
    }
}

/// A row of a step.
#[derive(Debug, Clone, Copy)]
struct Row {
    position: usize,
    slot: usize,
    /// Its segment.
    segment: usize,
    /// First row of the segment.
    first: usize,
    /// Where its block table starts.
    table: usize,
}

/// Whether a product takes its weights rounded to bf16.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WeightForm {
    Exact,
    Bf16,
}

impl WeightForm {
    /// Allowed error of an f32 result.
    fn tolerance(self) -> f32 {
        match self {
            WeightForm::Exact => tolerance::SUM,
            WeightForm::Bf16 => tolerance::ROUNDED_FACTORS,
        }
    }
}

/// What the expectations of a case are made of.
pub(super) struct Source<'a> {
    pub checkpoint: &'a Checkpoint,
    pub case: &'a Case,
    pub step: &'a Step<'a>,
    /// Whether prefill products of more than a few rows round their weights to bf16.
    pub rounds_weights: bool,
    /// Whether the dense projections of this step are such products.
    pub dense_products: bool,
    pub random: Random,
}

impl Source<'_> {
    /// Inputs and expected outputs of an operation.
    pub fn trial(&mut self, op: &Op) -> Trial {
        match op.kind {
            OpKind::Embed { .. } | OpKind::LmHead { .. } | OpKind::Argmax { .. } => self.io(&op.kind),
            OpKind::GdnInProj { .. } | OpKind::GdnStep { .. } | OpKind::GdnConv { .. } | OpKind::GdnScan { .. } => {
                self.gdn(&op.kind)
            }
            OpKind::AttnInProj { .. }
            | OpKind::QkNormRopeStore { .. }
            | OpKind::AttnDecode { .. }
            | OpKind::AttnCombine { .. }
            | OpKind::AttnPrefill { .. }
            | OpKind::OutProjNorm { .. }
            | OpKind::OutProj { .. }
            | OpKind::AddRmsNorm { .. } => self.attention(&op.kind),
            OpKind::Router { .. }
            | OpKind::RouteSort { .. }
            | OpKind::ExpertGateUp { .. }
            | OpKind::ExpertDownNorm { .. }
            | OpKind::GroupedGateUp { .. }
            | OpKind::GroupedDown { .. }
            | OpKind::Combine { .. } => self.moe(&op.kind),
        }
    }

    fn config(&self) -> &ModelConfig {
        &self.checkpoint.model().config
    }

    fn rows(&self) -> usize {
        self.step.rows()
    }

    /// The rows of the step, in order.
    fn places(&self) -> Vec<Row> {
        let (mut rows, mut table) = (Vec::new(), 0);
        for (segment, s) in self.step.segments.iter().enumerate() {
            let first = rows.len();
            let slot = s.slot.0 as usize;
            rows.extend((0..s.rows).map(|i| Row { position: s.start + i, slot, segment, first, table }));
            table += s.pages.len();
        }
        rows
    }

    /// Rows that yield logits.
    fn logit_rows(&self) -> Vec<usize> {
        crate::device::logit_row_indices(self.step).into_iter().map(|row| row as usize).collect()
    }

    fn vector(&self, id: WeightId) -> Vec<f32> {
        match self.checkpoint.weight(id) {
            WeightView::Float(view) => view.to_vec(),
            WeightView::Quantized(_) | WeightView::Dense(_) => Vec::new(),
        }
    }

    /// f32 inputs as the case fills them.
    fn floats(&mut self, len: usize) -> Vec<f32> {
        let fill = self.case.fill;
        let random = &mut self.random;
        let mut one = || match fill {
            Fill::Zeros => 0.0,
            Fill::Random => random.bell(),
            Fill::Outliers => random.bell() * if random.below(16) == 0 { 100.0 } else { 1.0 },
        };
        (0..len).map(|_| one()).collect()
    }

    /// The same, rounded to bf16: inputs of a matrix.
    fn activations(&mut self, len: usize) -> Vec<f32> {
        self.floats(len).into_iter().map(rounded).collect()
    }

    /// Experts of each row, `[rows, K]`.
    fn experts(&mut self) -> Vec<u32> {
        let (experts, k) = (self.config().num_experts, self.config().num_experts_per_tok);
        let mut all = Vec::with_capacity(self.rows() * k);
        for _ in 0..self.rows() {
            let start = all.len();
            while all.len() < start + k {
                let id = match self.case.routing {
                    Routing::OneExpert => experts - 1,
                    Routing::Random => self.random.below(experts),
                } as u32;
                if self.case.routing == Routing::OneExpert || !all[start..].contains(&id) {
                    all.push(id);
                }
            }
        }
        all
    }

    /// Weights of the experts of each row and of the shared one, `[rows, K + 1]`.
    fn scales(&mut self) -> Vec<f32> {
        let len = self.rows() * (self.config().num_experts_per_tok + 1);
        (0..len).map(|_| self.random.unit()).collect()
    }

    fn dense_form(&self) -> WeightForm {
        if self.rounds_weights && self.dense_products { WeightForm::Bf16 } else { WeightForm::Exact }
    }

    fn grouped_form(&self) -> WeightForm {
        if self.rounds_weights { WeightForm::Bf16 } else { WeightForm::Exact }
    }

    /// `W x` of matrix `expert` for each of `inputs`; `[inputs, outputs]`. Threads share the outputs.
    fn products(&self, id: WeightId, expert: usize, inputs: &[&[f32]], form: WeightForm) -> Vec<f32> {
        let weight = self.checkpoint.weight(id);
        let outputs = match &weight {
            WeightView::Quantized(view) => view.outputs,
            WeightView::Dense(view) => view.outputs,
            WeightView::Float(_) => 1,
        };
        let width = inputs.first().map_or(0, |row| row.len());
        let share = |range: std::ops::Range<usize>| -> Vec<f32> {
            let mut row = vec![0f32; width];
            let mut results = Vec::with_capacity(range.len() * inputs.len());
            for output in range {
                dequantize_row(&weight, expert, output, &mut row);
                if form == WeightForm::Bf16 {
                    row.iter_mut().for_each(|w| *w = rounded(*w));
                }
                results.extend(inputs.iter().map(|x| dot(&row, x)));
            }
            results
        };
        let threads = if outputs * width * inputs.len() < 1 << 20 {
            1
        } else {
            std::thread::available_parallelism().map_or(1, usize::from)
        };
        let each = outputs.div_ceil(threads).max(1);
        let share = &share;
        let by_output: Vec<f32> = std::thread::scope(|scope| {
            let handles: Vec<_> = (0..outputs)
                .step_by(each)
                .map(|first| scope.spawn(move || share(first..(first + each).min(outputs))))
                .collect();
            handles.into_iter().flat_map(|handle| handle.join().unwrap_or_default()).collect()
        });
        let mut result = vec![0f32; by_output.len()];
        for (output, values) in by_output.chunks(inputs.len().max(1)).enumerate() {
            for (row, value) in values.iter().enumerate() {
                result[row * outputs + output] = *value;
            }
        }
        result
    }

    /// `W x` of every row of `x`, `[rows, width]`.
    fn project(&self, id: WeightId, x: &[f32], width: usize, form: WeightForm) -> Vec<f32> {
        self.products(id, 0, &x.chunks_exact(width).collect::<Vec<_>>(), form)
    }

    /// `rms(x, gain)` of every row.
    fn norms(&self, x: &[f32], gain: WeightId) -> Vec<f32> {
        let (gain, eps) = (self.vector(gain), self.config().rms_norm_eps);
        let mut out = vec![0f32; x.len()];
        for (x, out) in x.chunks_exact(gain.len()).zip(out.chunks_exact_mut(gain.len())) {
            rms_norm(x, &gain, eps, out);
        }
        out
    }
}

/// Rounds to bf16.
fn rounded(x: f32) -> f32 {
    bf16::from_f32(x).to_f32()
}

/// Rows of `a` and of `b` in turn.
fn interleaved(a: &[f32], a_width: usize, b: &[f32], b_width: usize) -> Values {
    Values::F32(a.chunks(a_width).zip(b.chunks(b_width)).flat_map(|(a, b)| [a, b].concat()).collect())
}

fn sum(a: &[f32], b: &[f32]) -> Vec<f32> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}
