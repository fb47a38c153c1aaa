//! The operations of the plan: what each computes, reads and writes. The mathematics is in the docs of each variant;
//! shapes use R = rows of the step, H = hidden, E = experts, K = experts a token, I = expert width, V = vocabulary.

use super::plan::BufferId;
use super::weights::{AttentionWeights, GdnWeights, MoeWeights, WeightId};

/// One operation of a plan.
#[derive(Debug, Clone)]
pub struct Op {
    /// The layer it belongs to; `None` before the first and after the last.
    pub layer: Option<usize>,
    /// What it computes, and on which buffers.
    pub kind: OpKind,
}

/// What an operation computes. `rms(x, w) = x / sqrt(mean(x²) + eps) * w`, in f32.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)] // fields are buffers (see `build.rs`, where each is declared with its shape) and weights
pub enum OpKind {
    /// `residual[r] = E[token[r]]` (dequantized, f32); `normed = rms(residual, norm)`.
    Embed { weight: WeightId, norm: WeightId, tokens: BufferId, residual: BufferId, normed: BufferId },
    /// `qkv, z, b, a = W x`, four matrices in one grid.
    GdnInProj { weights: GdnWeights, input: BufferId, qkv: BufferId, z: BufferId, ba: BufferId },
    /// One token of each sequence: conv, SiLU, l2 norms, gates, delta rule, gated norm. Reads and writes the recurrent
    /// state once.
    GdnStep {
        weights: GdnWeights,
        qkv: BufferId,
        z: BufferId,
        ba: BufferId,
        rows: BufferId,
        window: BufferId,
        state: BufferId,
        output: BufferId,
    },
    /// Prefill: causal conv and SiLU over a chunk, l2-normalized q and k (q scaled by `key_dim^-1/2`), `decay` and
    /// `beta` a head; carries the conv window.
    GdnConv {
        weights: GdnWeights,
        qkv: BufferId,
        ba: BufferId,
        rows: BufferId,
        window: BufferId,
        mixed: BufferId,
        gates: BufferId,
    },
    /// Prefill: the delta rule over a chunk, then `rms(o, norm) * silu(z)`.
    GdnScan {
        weights: GdnWeights,
        mixed: BufferId,
        gates: BufferId,
        z: BufferId,
        rows: BufferId,
        state: BufferId,
        output: BufferId,
    },
    /// `q|gate, k, v = W x`, three matrices in one grid.
    AttnInProj { weights: AttentionWeights, input: BufferId, qg: BufferId, kv: BufferId },
    /// Prefill: q and k are normalized and rotated, k and v stored to their pages.
    QkNormRopeStore {
        weights: AttentionWeights,
        qg: BufferId,
        kv: BufferId,
        rows: BufferId,
        pages: BufferId,
        cache: BufferId,
        q: BufferId,
    },
    /// Decode: the same norm, rotation and store for one token of each sequence, then attention of the packed query
    /// heads of each KV head over each block of 256 keys. `partials`: a block's unnormalized sum, maximum and weight.
    AttnDecode {
        weights: AttentionWeights,
        qg: BufferId,
        kv: BufferId,
        rows: BufferId,
        pages: BufferId,
        cache: BufferId,
        partials: BufferId,
    },
    /// Decode: merges the blocks and multiplies by `sigmoid(gate)`.
    AttnCombine { partials: BufferId, qg: BufferId, rows: BufferId, output: BufferId },
    /// Prefill: causal attention over the pages, times `sigmoid(gate)`.
    AttnPrefill { q: BufferId, qg: BufferId, rows: BufferId, pages: BufferId, cache: BufferId, output: BufferId },
    /// Decode: `residual += W x`; `normed = rms(residual, norm)`.
    OutProjNorm { weight: WeightId, norm: WeightId, input: BufferId, residual: BufferId, normed: BufferId },
    /// Prefill: `output = W x`, f32.
    OutProj { weight: WeightId, input: BufferId, output: BufferId },
    /// Prefill: `residual += delta`; `normed = rms(residual, norm)`.
    AddRmsNorm { norm: WeightId, delta: BufferId, residual: BufferId, normed: BufferId },
    /// f32 logits of the experts and of the shared gate; softmax over all experts, the K largest (ties to the lowest
    /// id) renormalized to sum 1. `experts` u32 `[R, K]` by falling weight; `scales` f32 `[R, K + 1]`, the last entry
    /// is `sigmoid(shared gate)`.
    Router { weights: MoeWeights, input: BufferId, experts: BufferId, scales: BufferId },
    /// Prefill: stable counting sort of the R * K (row, slot) pairs by expert. `offsets` u32 `[E + 1]`: where each
    /// expert's pairs start; `order` u32 `[R * K]`: the pairs `row * K + slot`.
    RouteSort { experts: BufferId, offsets: BufferId, order: BufferId },
    /// Decode: `silu(gate x) * (up x)` for the K experts of a row and the shared one. `[R, K*I + S]`.
    ExpertGateUp { weights: MoeWeights, input: BufferId, experts: BufferId, output: BufferId },
    /// Decode: `residual += Σ scale * down(act)`, shared expert included; `normed = rms(residual, norm)`, where norm
    /// belongs to the next layer (or is the final one).
    ExpertDownNorm {
        weights: MoeWeights,
        norm: WeightId,
        input: BufferId,
        experts: BufferId,
        scales: BufferId,
        residual: BufferId,
        normed: BufferId,
    },
    /// Prefill: as [`OpKind::ExpertGateUp`], pairs grouped by expert; the shared expert sees every row.
    GroupedGateUp { weights: MoeWeights, input: BufferId, offsets: BufferId, order: BufferId, output: BufferId },
    /// Prefill: `down` of every pair and of the shared expert, f32 `[R, K + 1, H]`.
    GroupedDown { weights: MoeWeights, input: BufferId, offsets: BufferId, order: BufferId, output: BufferId },
    /// Prefill: `residual += Σ scale * down`; `normed = rms(residual, norm)`.
    Combine { norm: WeightId, down: BufferId, scales: BufferId, residual: BufferId, normed: BufferId },
    /// Logits f32 of the rows that `logit_rows` names: `[L, V]`.
    LmHead { weight: WeightId, input: BufferId, logit_rows: BufferId, logits: BufferId },
    /// The largest logit's id of each logit row (ties to the lowest id), also into the next step's token inputs.
    Argmax { logits: BufferId, next: BufferId },
}

/// Buffers an operation touches, and weights it reads.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Accesses {
    /// Buffers read.
    pub reads: Vec<BufferId>,
    /// Buffers written.
    pub writes: Vec<BufferId>,
    /// Weights read.
    pub weights: Vec<WeightId>,
}

impl Op {
    /// Name of the operation, as kernels and files call it.
    pub fn name(&self) -> &'static str {
        match self.kind {
            OpKind::Embed { .. } => "embed",
            OpKind::GdnInProj { .. } => "gdn_in_proj",
            OpKind::GdnStep { .. } => "gdn_step",
            OpKind::GdnConv { .. } => "gdn_conv",
            OpKind::GdnScan { .. } => "gdn_scan",
            OpKind::AttnInProj { .. } => "attn_in_proj",
            OpKind::QkNormRopeStore { .. } => "qk_norm_rope_store",
            OpKind::AttnDecode { .. } => "attn_decode",
            OpKind::AttnCombine { .. } => "attn_combine",
            OpKind::AttnPrefill { .. } => "attn_prefill",
            OpKind::OutProjNorm { .. } => "out_proj_norm",
            OpKind::OutProj { .. } => "out_proj",
            OpKind::AddRmsNorm { .. } => "add_rms_norm",
            OpKind::Router { .. } => "router",
            OpKind::RouteSort { .. } => "route_sort",
            OpKind::ExpertGateUp { .. } => "expert_gate_up",
            OpKind::ExpertDownNorm { .. } => "expert_down_norm",
            OpKind::GroupedGateUp { .. } => "grouped_gate_up",
            OpKind::GroupedDown { .. } => "grouped_down",
            OpKind::Combine { .. } => "combine",
            OpKind::LmHead { .. } => "lm_head",
            OpKind::Argmax { .. } => "argmax",
        }
    }

    /// What the operation reads and writes.
    pub fn accesses(&self) -> Accesses {
        let of = |reads: &[BufferId], writes: &[BufferId], weights: &[WeightId]| Accesses {
            reads: reads.to_vec(),
            writes: writes.to_vec(),
            weights: weights.to_vec(),
        };
        match self.kind {
            OpKind::Embed { weight, norm, tokens, residual, normed } => {
                of(&[tokens], &[residual, normed], &[weight, norm])
            }
            OpKind::GdnInProj { weights: w, input, qkv, z, ba } => {
                of(&[input], &[qkv, z, ba], &[w.in_proj_qkv, w.in_proj_z, w.in_proj_b, w.in_proj_a])
            }
            OpKind::GdnStep { weights: w, qkv, z, ba, rows, window, state, output } => of(
                &[qkv, z, ba, rows, window, state],
                &[window, state, output],
                &[w.conv1d, w.a_log, w.dt_bias, w.norm],
            ),
            OpKind::GdnConv { weights: w, qkv, ba, rows, window, mixed, gates } => {
                of(&[qkv, ba, rows, window], &[window, mixed, gates], &[w.conv1d, w.a_log, w.dt_bias])
            }
            OpKind::GdnScan { weights: w, mixed, gates, z, rows, state, output } => {
                of(&[mixed, gates, z, rows, state], &[state, output], &[w.norm])
            }
            OpKind::AttnInProj { weights: w, input, qg, kv } => {
                of(&[input], &[qg, kv], &[w.q_proj, w.k_proj, w.v_proj])
            }
            OpKind::QkNormRopeStore { weights: w, qg, kv, rows, pages, cache, q } => {
                of(&[qg, kv, rows, pages], &[cache, q], &[w.q_norm, w.k_norm])
            }
            OpKind::AttnDecode { weights: w, qg, kv, rows, pages, cache, partials } => {
                of(&[qg, kv, rows, pages, cache], &[cache, partials], &[w.q_norm, w.k_norm])
            }
            OpKind::AttnCombine { partials, qg, rows, output } => of(&[partials, qg, rows], &[output], &[]),
            OpKind::AttnPrefill { q, qg, rows, pages, cache, output } => {
                of(&[q, qg, rows, pages, cache], &[output], &[])
            }
            OpKind::OutProjNorm { weight, norm, input, residual, normed } => {
                of(&[input, residual], &[residual, normed], &[weight, norm])
            }
            OpKind::OutProj { weight, input, output } => of(&[input], &[output], &[weight]),
            OpKind::AddRmsNorm { norm, delta, residual, normed } => {
                of(&[delta, residual], &[residual, normed], &[norm])
            }
            OpKind::Router { weights: w, input, experts, scales } => {
                of(&[input], &[experts, scales], &[w.gate, w.shared_expert_gate])
            }
            OpKind::RouteSort { experts, offsets, order } => of(&[experts], &[offsets, order], &[]),
            OpKind::ExpertGateUp { weights: w, input, experts, output } => of(
                &[input, experts],
                &[output],
                &[w.switch_gate_proj, w.switch_up_proj, w.shared_gate_proj, w.shared_up_proj],
            ),
            OpKind::ExpertDownNorm { weights: w, norm, input, experts, scales, residual, normed } => of(
                &[input, experts, scales, residual],
                &[residual, normed],
                &[w.switch_down_proj, w.shared_down_proj, norm],
            ),
            OpKind::GroupedGateUp { weights: w, input, offsets, order, output } => of(
                &[input, offsets, order],
                &[output],
                &[w.switch_gate_proj, w.switch_up_proj, w.shared_gate_proj, w.shared_up_proj],
            ),
            OpKind::GroupedDown { weights: w, input, offsets, order, output } => {
                of(&[input, offsets, order], &[output], &[w.switch_down_proj, w.shared_down_proj])
            }
            OpKind::Combine { norm, down, scales, residual, normed } => {
                of(&[down, scales, residual], &[residual, normed], &[norm])
            }
            OpKind::LmHead { weight, input, logit_rows, logits } => of(&[input, logit_rows], &[logits], &[weight]),
            OpKind::Argmax { logits, next } => of(&[logits], &[next], &[]),
        }
    }
}
