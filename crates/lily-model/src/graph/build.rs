//! The Qwen graph, written once: from a model to the operations of a step.

use super::op::{Op, OpKind};
use super::plan::{Buffer, BufferId, BufferRole, Element, Extent, Phase, Plan};
use super::weights::{AttentionWeights, GdnWeights, MixerWeights, Model, WeightId};
use crate::config::ModelConfig;

/// Numbers a row of the `rows` input has: position, sequence slot, first row of its segment, rows of its segment, where
/// its block table starts in `pages`.
const ROW_FIELDS: usize = 5;

pub(super) fn build(model: &Model, phase: Phase, rows: usize) -> Plan {
    let mut builder =
        Builder { config: &model.config, plan: Plan { phase, rows, buffers: Vec::new(), ops: Vec::new() } };
    let shared = builder.shared();
    let norm_of = |layer: usize| model.layers.get(layer).map_or(model.norm, |l| l.input_layernorm);
    builder.push(
        None,
        OpKind::Embed {
            weight: model.embed_tokens,
            norm: norm_of(0),
            tokens: shared.tokens,
            residual: shared.residual,
            normed: shared.normed,
        },
    );
    for (index, layer) in model.layers.iter().enumerate() {
        let (mixed, out_proj) = match layer.mixer {
            MixerWeights::Gdn(weights) => (builder.gdn(index, weights, &shared), weights.out_proj),
            MixerWeights::Attention(weights) => (builder.attention(index, weights, &shared), weights.o_proj),
        };
        builder.out_proj(index, mixed, out_proj, layer.post_attention_layernorm, &shared);
        builder.moe(index, layer.moe, norm_of(index + 1), &shared);
    }
    builder.head(model.lm_head, &shared);
    builder.plan
}

/// Buffers that every layer uses.
struct Shared {
    tokens: BufferId,
    rows: BufferId,
    pages: BufferId,
    logit_rows: BufferId,
    residual: BufferId,
    normed: BufferId,
}

struct Builder<'a> {
    config: &'a ModelConfig,
    plan: Plan,
}

impl Builder<'_> {
    fn push(&mut self, layer: Option<usize>, kind: OpKind) {
        self.plan.ops.push(Op { layer, kind });
    }

    /// The buffer of that name, declared at its first use.
    fn buffer(&mut self, name: &str, role: BufferRole, element: Element, extent: Extent) -> BufferId {
        let wanted = Buffer { name: name.into(), role, element, extent };
        let index = match self.plan.buffers.iter().position(|b| *b == wanted) {
            Some(index) => index,
            None => {
                self.plan.buffers.push(wanted);
                self.plan.buffers.len() - 1
            }
        };
        BufferId(index as u32)
    }

    fn scratch(&mut self, name: &str, element: Element, per_row: usize) -> BufferId {
        self.buffer(name, BufferRole::Scratch, element, Extent::PerRow(per_row))
    }

    fn shared(&mut self) -> Shared {
        let hidden = self.config.hidden_size;
        Shared {
            tokens: self.buffer("tokens", BufferRole::Input, Element::U32, Extent::PerRow(1)),
            rows: self.buffer("rows", BufferRole::Input, Element::U32, Extent::PerRow(ROW_FIELDS)),
            pages: self.buffer("pages", BufferRole::Input, Element::U32, Extent::PerRowBlock(1)),
            logit_rows: self.buffer("logit_rows", BufferRole::Input, Element::U32, Extent::PerLogitRow(1)),
            residual: self.scratch("residual", Element::F32, hidden),
            normed: self.scratch("normed", Element::Activation, hidden),
        }
    }

    /// A Gated DeltaNet mixer up to (not including) its output projection. Returns the gated, normalized heads.
    fn gdn(&mut self, index: usize, weights: GdnWeights, shared: &Shared) -> BufferId {
        let c = self.config;
        let (conv_dim, value_dim, heads) = (c.linear_conv_dim(), c.linear_value_dim(), c.linear_num_value_heads);
        let qkv = self.scratch("gdn.qkv", Element::F32, conv_dim);
        let z = self.scratch("gdn.z", Element::F32, value_dim);
        let ba = self.scratch("gdn.ba", Element::F32, 2 * heads);
        let output = self.scratch("gdn.output", Element::Activation, value_dim);
        let window_len = (c.linear_conv_kernel_dim - 1) * conv_dim;
        let state_len = heads * c.linear_value_head_dim * c.linear_key_head_dim;
        let window = self.buffer(
            &format!("layer{index}.conv_window"),
            BufferRole::State,
            Element::F32,
            Extent::PerSlot(window_len),
        );
        let state = self.buffer(
            &format!("layer{index}.gdn_state"),
            BufferRole::State,
            Element::F32,
            Extent::PerSlot(state_len),
        );
        let rows = shared.rows;
        self.push(Some(index), OpKind::GdnInProj { weights, input: shared.normed, qkv, z, ba });
        match self.plan.phase {
            Phase::Decode => {
                self.push(Some(index), OpKind::GdnStep { weights, qkv, z, ba, rows, window, state, output });
            }
            Phase::Prefill => {
                let mixed = self.scratch("gdn.mixed", Element::F32, conv_dim);
                let gates = self.scratch("gdn.gates", Element::F32, 2 * heads);
                self.push(Some(index), OpKind::GdnConv { weights, qkv, ba, rows, window, mixed, gates });
                self.push(Some(index), OpKind::GdnScan { weights, mixed, gates, z, rows, state, output });
            }
        }
        output
    }

    /// A gated attention mixer up to (not including) its output projection. Returns the gated heads.
    fn attention(&mut self, index: usize, weights: AttentionWeights, shared: &Shared) -> BufferId {
        let c = self.config;
        let width = c.attention_dim();
        let qg = self.scratch("attn.qg", Element::F32, 2 * width);
        let kv = self.scratch("attn.kv", Element::F32, 2 * c.kv_dim());
        let output = self.scratch("attn.output", Element::Activation, width);
        let cache = self.buffer(
            &format!("layer{index}.kv_cache"),
            BufferRole::State,
            Element::Cache,
            Extent::PerPage(2 * c.kv_dim() * Plan::PAGE_TOKENS),
        );
        let (rows, pages) = (shared.rows, shared.pages);
        self.push(Some(index), OpKind::AttnInProj { weights, input: shared.normed, qg, kv });
        match self.plan.phase {
            Phase::Decode => {
                let per_block = c.num_attention_heads * (c.head_dim + 2);
                let partials =
                    self.buffer("attn.partials", BufferRole::Scratch, Element::F32, Extent::PerRowBlock(per_block));
                self.push(Some(index), OpKind::AttnDecode { weights, qg, kv, rows, pages, cache, partials });
                self.push(Some(index), OpKind::AttnCombine { partials, qg, rows, output });
            }
            Phase::Prefill => {
                let q = self.scratch("attn.q", Element::Activation, width);
                self.push(Some(index), OpKind::QkNormRopeStore { weights, qg, kv, rows, pages, cache, q });
                self.push(Some(index), OpKind::AttnPrefill { q, qg, rows, pages, cache, output });
            }
        }
        output
    }

    fn out_proj(&mut self, index: usize, input: BufferId, weight: WeightId, norm: WeightId, shared: &Shared) {
        let (residual, normed) = (shared.residual, shared.normed);
        match self.plan.phase {
            Phase::Decode => {
                self.push(Some(index), OpKind::OutProjNorm { weight, norm, input, residual, normed });
            }
            Phase::Prefill => {
                let delta = self.scratch("mixer.delta", Element::F32, self.config.hidden_size);
                self.push(Some(index), OpKind::OutProj { weight, input, output: delta });
                self.push(Some(index), OpKind::AddRmsNorm { norm, delta, residual, normed });
            }
        }
    }

    fn moe(&mut self, index: usize, weights: super::weights::MoeWeights, norm: WeightId, shared: &Shared) {
        let c = self.config;
        let slots = c.num_experts_per_tok;
        let (residual, normed) = (shared.residual, shared.normed);
        let experts = self.scratch("moe.experts", Element::U32, slots);
        let scales = self.scratch("moe.scales", Element::F32, slots + 1);
        let width = slots * c.moe_intermediate_size + c.shared_expert_intermediate_size;
        let act = self.scratch("moe.act", Element::Activation, width);
        self.push(Some(index), OpKind::Router { weights, input: normed, experts, scales });
        match self.plan.phase {
            Phase::Decode => {
                self.push(Some(index), OpKind::ExpertGateUp { weights, input: normed, experts, output: act });
                self.push(
                    Some(index),
                    OpKind::ExpertDownNorm { weights, norm, input: act, experts, scales, residual, normed },
                );
            }
            Phase::Prefill => {
                let offsets =
                    self.buffer("moe.offsets", BufferRole::Scratch, Element::U32, Extent::Fixed(c.num_experts + 1));
                let order = self.scratch("moe.order", Element::U32, slots);
                let down = self.scratch("moe.down", Element::F32, (slots + 1) * c.hidden_size);
                self.push(Some(index), OpKind::RouteSort { experts, offsets, order });
                self.push(Some(index), OpKind::GroupedGateUp { weights, input: normed, offsets, order, output: act });
                self.push(Some(index), OpKind::GroupedDown { weights, input: act, offsets, order, output: down });
                self.push(Some(index), OpKind::Combine { norm, down, scales, residual, normed });
            }
        }
    }

    fn head(&mut self, weight: WeightId, shared: &Shared) {
        let vocab = self.config.vocab_size;
        let logits = self.buffer("logits", BufferRole::Output, Element::F32, Extent::PerLogitRow(vocab));
        let next = self.buffer("next_tokens", BufferRole::Output, Element::U32, Extent::PerLogitRow(1));
        self.push(None, OpKind::LmHead { weight, input: shared.normed, logit_rows: shared.logit_rows, logits });
        self.push(None, OpKind::Argmax { logits, next });
    }
}
