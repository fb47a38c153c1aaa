//! Router and experts.

use std::collections::BTreeMap;

use lily_cpu::reference::{combine, route, route_sort, swiglu};
use lily_model::graph::{MoeWeights, OpKind, WeightId};

use super::super::case::Fill;
use super::super::trial::{Trial, Values, tolerance};
use super::{Source, WeightForm};

impl Source<'_> {
    pub(super) fn moe(&mut self, kind: &OpKind) -> Trial {
        let c = self.config().clone();
        let (hidden, k, rows) = (c.hidden_size, c.num_experts_per_tok, self.rows());
        let (inner, shared) = (c.moe_intermediate_size, c.shared_expert_intermediate_size);
        let act_width = k * inner + shared;
        match *kind {
            OpKind::Router { weights: w, input, experts, scales } => {
                let (mut x, mut ids, mut weights) = (Vec::new(), Vec::new(), Vec::new());
                for _ in 0..rows {
                    let (row, chosen, scale) = self.routed(&w);
                    x.extend(row);
                    ids.extend(chosen);
                    weights.extend(scale);
                }
                Trial::default()
                    .input(input, Values::Bf16(x))
                    .output("experts", experts, k, tolerance::NONE, Values::U32(ids))
                    .output("scales", scales, k + 1, tolerance::RECURRENCE, Values::F32(weights))
            }
            OpKind::RouteSort { experts, offsets, order } => {
                let ids = self.experts();
                let (mut ends, mut pairs) = (vec![0; c.num_experts + 1], vec![0; ids.len()]);
                route_sort(&ids, &mut ends, &mut pairs);
                Trial::default()
                    .input(experts, Values::U32(ids))
                    .output("offsets", offsets, 1, tolerance::NONE, Values::U32(ends))
                    .output("order", order, 1, tolerance::NONE, Values::U32(pairs))
            }
            OpKind::ExpertGateUp { weights: w, input, experts, output } => {
                let (ids, x) = (self.experts(), self.activations(rows * hidden));
                let act = self.gate_up(&w, &ids, &x, WeightForm::Exact);
                Trial::default().input(experts, Values::U32(ids)).input(input, Values::Bf16(x)).output(
                    "act",
                    output,
                    act_width,
                    tolerance::BF16,
                    Values::Bf16(act),
                )
            }
            // Experts are put in through the sort that runs before.
            OpKind::GroupedGateUp { weights: w, input, output, .. } => {
                let (ids, x, form) = (self.experts(), self.activations(rows * hidden), self.grouped_form());
                let act = self.gate_up(&w, &ids, &x, form);
                let allowed = tolerance::BF16 + form.tolerance();
                self.sorted(ids).input(input, Values::Bf16(x)).output(
                    "act",
                    output,
                    act_width,
                    allowed,
                    Values::Bf16(act),
                )
            }
            OpKind::GroupedDown { weights: w, input, output, .. } => {
                let (ids, x, form) = (self.experts(), self.activations(rows * act_width), self.grouped_form());
                let down = self.down(&w, &ids, &x, form);
                self.sorted(ids).input(input, Values::Bf16(x)).output(
                    "down",
                    output,
                    hidden,
                    form.tolerance(),
                    Values::F32(down),
                )
            }
            OpKind::ExpertDownNorm { weights: w, norm, input, experts, scales, residual, normed } => {
                let (ids, x) = (self.experts(), self.activations(rows * act_width));
                let (weights, r) = (self.scales(), self.floats(rows * hidden));
                let mut after = r.clone();
                let down = self.down(&w, &ids, &x, WeightForm::Exact);
                self.combined(&mut after, &down, &weights);
                let norms = self.norms(&after, norm);
                Trial::default()
                    .input(input, Values::Bf16(x))
                    .input(experts, Values::U32(ids))
                    .input(scales, Values::F32(weights))
                    .input(residual, Values::F32(r))
                    .output("residual", residual, hidden, tolerance::SUM, Values::F32(after))
                    .output("normed", normed, hidden, tolerance::BF16, Values::Bf16(norms))
            }
            OpKind::Combine { norm, down, scales, residual, normed } => {
                let (d, weights) = (self.floats(rows * (k + 1) * hidden), self.scales());
                let r = self.floats(rows * hidden);
                let mut after = r.clone();
                self.combined(&mut after, &d, &weights);
                let norms = self.norms(&after, norm);
                Trial::default()
                    .input(down, Values::F32(d))
                    .input(scales, Values::F32(weights))
                    .input(residual, Values::F32(r))
                    .output("residual", residual, hidden, tolerance::SUM, Values::F32(after))
                    .output("normed", normed, hidden, tolerance::BF16, Values::Bf16(norms))
            }
            _ => Trial::default(),
        }
    }

    /// A trial whose experts `RouteSort` is to sort first.
    fn sorted(&self, experts: Vec<u32>) -> Trial {
        Trial { experts: Some(experts), ..Trial::default() }
    }

    /// An input of the router, the experts it goes to and their weights. Drawn again where two logits at the border are
    /// so near each other that the order of a sum decides; zeros tie exactly.
    fn routed(&mut self, w: &MoeWeights) -> (Vec<f32>, Vec<u32>, Vec<f32>) {
        const TRIES: usize = 64;
        let (hidden, k) = (self.config().hidden_size, self.config().num_experts_per_tok);
        let mut tries = 0;
        loop {
            let x = self.activations(hidden);
            let logits = self.project(w.gate, &x, hidden, WeightForm::Exact);
            let gate = self.project(w.shared_expert_gate, &x, hidden, WeightForm::Exact);
            let mut falling = logits.clone();
            falling.sort_by(|a, b| b.total_cmp(a));
            let largest = falling[0].abs().max(falling[falling.len() - 1].abs());
            let apart = falling[..(k + 1).min(falling.len())].windows(2).all(|pair| pair[0] - pair[1] > 1e-4 * largest);
            tries += 1;
            if apart || self.case.fill == Fill::Zeros || tries == TRIES {
                let (mut ids, mut scales) = (vec![0; k], vec![0f32; k + 1]);
                route(&logits, gate[0], &mut ids, &mut scales);
                return (x, ids, scales);
            }
        }
    }

    /// Products of a stack of matrices for pairs `(expert, row of inputs)`: `[pairs, outputs]`, each expert's weights
    /// dequantized once.
    fn by_expert(&self, id: WeightId, pairs: &[(usize, &[f32])], form: WeightForm) -> Vec<Vec<f32>> {
        let mut groups: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (index, (expert, _)) in pairs.iter().enumerate() {
            groups.entry(*expert).or_default().push(index);
        }
        let mut results = vec![Vec::new(); pairs.len()];
        for (expert, members) in groups {
            let inputs: Vec<&[f32]> = members.iter().map(|&index| pairs[index].1).collect();
            let all = self.products(id, expert, &inputs, form);
            for (&index, result) in members.iter().zip(all.chunks_exact(all.len() / inputs.len())) {
                results[index] = result.to_vec();
            }
        }
        results
    }

    /// `silu(gate x) * (up x)` of the experts of each row and the shared one: `[rows, K * inner + shared]`, not rounded.
    fn gate_up(&self, w: &MoeWeights, ids: &[u32], x: &[f32], form: WeightForm) -> Vec<f32> {
        let (hidden, k) = (self.config().hidden_size, self.config().num_experts_per_tok);
        let pairs: Vec<(usize, &[f32])> =
            ids.iter().enumerate().map(|(pair, &id)| (id as usize, &x[pair / k * hidden..][..hidden])).collect();
        let (gates, ups) =
            (self.by_expert(w.switch_gate_proj, &pairs, form), self.by_expert(w.switch_up_proj, &pairs, form));
        let rows: Vec<(usize, &[f32])> = x.chunks_exact(hidden).map(|row| (0, row)).collect();
        let (shared_gates, shared_ups) =
            (self.by_expert(w.shared_gate_proj, &rows, form), self.by_expert(w.shared_up_proj, &rows, form));
        let act = |gate: &[f32], up: &[f32]| {
            let mut out = vec![0f32; gate.len()];
            swiglu(gate, up, &mut out);
            out
        };
        let mut result = Vec::new();
        for row in 0..rows.len() {
            for pair in row * k..(row + 1) * k {
                result.extend(act(&gates[pair], &ups[pair]));
            }
            result.extend(act(&shared_gates[row], &shared_ups[row]));
        }
        result
    }

    /// `down` of every pair and of the shared expert: `[rows, K + 1, hidden]`.
    fn down(&self, w: &MoeWeights, ids: &[u32], act: &[f32], form: WeightForm) -> Vec<f32> {
        let c = self.config();
        let (k, inner) = (c.num_experts_per_tok, c.moe_intermediate_size);
        let width = k * inner + c.shared_expert_intermediate_size;
        let rows: Vec<&[f32]> = act.chunks_exact(width).collect();
        let pairs: Vec<(usize, &[f32])> = ids
            .iter()
            .enumerate()
            .map(|(pair, &id)| (id as usize, &rows[pair / k][pair % k * inner..(pair % k + 1) * inner]))
            .collect();
        let shared: Vec<(usize, &[f32])> = rows.iter().map(|row| (0, &row[k * inner..])).collect();
        let (routed, shared) =
            (self.by_expert(w.switch_down_proj, &pairs, form), self.by_expert(w.shared_down_proj, &shared, form));
        (0..rows.len())
            .flat_map(|row| [routed[row * k..(row + 1) * k].concat(), shared[row].clone()].concat())
            .collect()
    }

    fn combined(&self, residual: &mut [f32], down: &[f32], scales: &[f32]) {
        let (hidden, k) = (self.config().hidden_size, self.config().num_experts_per_tok);
        let rows = down.chunks_exact((k + 1) * hidden).zip(scales.chunks_exact(k + 1));
        for (residual, (down, scales)) in residual.chunks_exact_mut(hidden).zip(rows) {
            combine(residual, down, scales);
        }
    }
}
