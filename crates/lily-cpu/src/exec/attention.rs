//! Attention layers: projections, normalized and rotated heads into the cache, and blocks of keys.
//!
//! A block's contribution to a row is computed by one function whether the row is decoded or part of a prompt, and blocks
//! are merged in order, so that both give the same bits.

use lily_model::graph::{AttentionWeights, BufferId, Plan};

use super::buffers::{CacheView, to_bf16};
use super::linear::{all_rows, job, multiply};
use super::{Context, Workspace, room};
use crate::memory::Shared;
use crate::pool::Team;
use crate::reference::{AttentionShape, BlockPartial};
use crate::simd;

const PAGE: usize = Plan::PAGE_TOKENS;
/// Rows of a prompt that go through the blocks of keys together, so that a block is read from memory once for them.
const ROWS_TOGETHER: usize = 8;

fn shape(c: &Context<'_>) -> AttentionShape {
    AttentionShape {
        heads: c.config.num_attention_heads / c.config.num_key_value_heads,
        head_dim: c.config.head_dim,
        page_tokens: PAGE,
    }
}

/// `q|gate` and `k|v`.
pub(super) fn in_proj(
    c: &Context<'_>,
    team: &Team<'_>,
    w: &mut Workspace,
    a: &AttentionWeights,
    input: BufferId,
    qg: BufferId,
    kv: BufferId,
) {
    let config = c.config;
    let rows = all_rows(c, input, config.hidden_size);
    let kv_dim = config.kv_dim();
    let jobs = [
        job(c, a.q_proj, c.f32s(qg), 2 * config.attention_dim(), 0),
        job(c, a.k_proj, c.f32s(kv), 2 * kv_dim, 0),
        job(c, a.v_proj, c.f32s(kv), 2 * kv_dim, kv_dim),
    ];
    multiply(c, team, w, &rows, &jobs);
}

/// Where a KV head's keys and values of a page start.
fn page_at(c: &Context<'_>, page: usize, kv_head: usize) -> (usize, usize) {
    let head = PAGE * c.config.head_dim;
    let keys = (2 * page * c.config.num_key_value_heads + kv_head) * head;
    (keys, keys + c.config.num_key_value_heads * head)
}

/// Normalizes and rotates queries (into the scratch, scaled by `head_dim^-1/2` on the fast path) and keys; stores keys and values.
pub(super) fn norm_rope_store(
    c: &Context<'_>,
    team: &Team<'_>,
    w: &mut Workspace,
    a: &AttentionWeights,
    qg: BufferId,
    kv: BufferId,
    cache: BufferId,
) {
    let config = c.config;
    let (dim, kv_heads, width) = (config.head_dim, config.num_key_value_heads, config.attention_dim());
    let per_kv = config.num_attention_heads / kv_heads;
    let half = config.rotary_dim / 2;
    let (qg, kv, cache, queries) = (c.f32s(qg), c.f32s(kv), c.cache(cache), c.scratch.wide);
    let scale = match c.units.precision() {
        crate::Precision::F32 => 1.0,
        crate::Precision::Fast => 1.0 / (dim as f32).sqrt(),
    };
    team.for_each(c.inputs.rows.len() * kv_heads, 1, |item| {
        let (row, kv_head) = (item / kv_heads, item % kv_heads);
        let angles = row * half..(row + 1) * half;
        let (cos, sin) = (&c.inputs.cos[angles.clone()], &c.inputs.sin[angles]);
        let eps = config.rms_norm_eps;
        for head in kv_head * per_kv..(kv_head + 1) * per_kv {
            let (from, to) = (row * 2 * width + head * 2 * dim, row * width + head * dim);
            // SAFETY: the heads of a KV head belong to the thread that claimed it.
            unsafe {
                let out = queries.part_mut(to..to + dim);
                c.units.rope_norm(qg.part(from..from + dim), c.vector(a.q_norm), eps, cos, sin, out);
                for q in out {
                    *q *= scale;
                }
            }
        }
        let place = c.inputs.rows[row];
        let page = c.inputs.segments[place.segment].pages[place.position / PAGE];
        let token = place.position % PAGE;
        let (keys_at, values_at) = page_at(c, page, kv_head);
        let from = row * 2 * config.kv_dim() + kv_head * dim;
        let key = room(&mut w.values, dim);
        // SAFETY: as above; a token's place in the cache belongs to its row.
        unsafe {
            c.units.rope_norm(kv.part(from..from + dim), c.vector(a.k_norm), eps, cos, sin, key);
            let value = kv.part(from + config.kv_dim()..from + config.kv_dim() + dim);
            for d in 0..dim {
                let (k, v) = (keys_at + d * PAGE + token, values_at + token * dim + d);
                match cache {
                    CacheView::Bf16(cache) => {
                        cache.part_mut(k..k + 1)[0] = to_bf16(key[d]);
                        cache.part_mut(v..v + 1)[0] = to_bf16(value[d]);
                    }
                    CacheView::F32(cache) => {
                        cache.part_mut(k..k + 1)[0] = key[d];
                        cache.part_mut(v..v + 1)[0] = value[d];
                    }
                }
            }
        }
    });
}

/// What block `block` of its keys gives to the query heads of a row that share a KV head.
fn block_partial(
    c: &Context<'_>,
    scores: &mut Vec<f32>,
    row: usize,
    kv_head: usize,
    block: usize,
    cache: CacheView<'_>,
    partial: BlockPartial<'_>,
) {
    let shape = shape(c);
    let place = c.inputs.rows[row];
    let page = c.inputs.segments[place.segment].pages[block];
    let visible = (place.position + 1 - block * PAGE).min(PAGE);
    let (keys_at, values_at) = page_at(c, page, kv_head);
    let len = PAGE * shape.head_dim;
    let query = row * c.config.attention_dim() + kv_head * shape.heads * shape.head_dim;
    // SAFETY: queries and this part of the cache were written before the last barrier.
    unsafe {
        let query = c.scratch.wide.part(query..query + shape.heads * shape.head_dim);
        match cache {
            CacheView::Bf16(cache) => {
                let (keys, values) = (cache.part(keys_at..keys_at + len), cache.part(values_at..values_at + len));
                let scores = room(scores, shape.heads * PAGE);
                simd::attention_block(c.units.isa(), shape, query, keys, values, visible, partial, scores);
            }
            CacheView::F32(cache) => {
                let (keys, values) = (cache.part(keys_at..keys_at + len), cache.part(values_at..values_at + len));
                c.units.attention_block_f32(shape, query, keys, values, visible, partial);
            }
        }
    }
}

/// Where the sums, maxima and weights of a row's block start in `partials`: `[rows, blocks, heads * (head_dim + 2)]`.
fn partial_at(c: &Context<'_>, row: usize, block: usize) -> [usize; 3] {
    let heads = c.config.num_attention_heads;
    let at = (row * c.max_blocks + block) * heads * (c.config.head_dim + 2);
    [at, at + heads * c.config.head_dim, at + heads * (c.config.head_dim + 1)]
}

/// Decode: every block of every row.
pub(super) fn decode(c: &Context<'_>, team: &Team<'_>, w: &mut Workspace, cache: BufferId, partials: BufferId) {
    let (cache, partials) = (c.cache(cache), c.f32s(partials));
    let kv_heads = c.config.num_key_value_heads;
    let AttentionShape { heads, head_dim, .. } = shape(c);
    let blocks_of = |row: usize| c.inputs.rows[row].position / PAGE + 1;
    let items: usize = (0..c.inputs.rows.len()).map(|row| blocks_of(row) * kv_heads).sum();
    team.for_each(items, 1, |item| {
        let (mut row, mut left) = (0, item);
        while left >= blocks_of(row) * kv_heads {
            left -= blocks_of(row) * kv_heads;
            row += 1;
        }
        let (block, kv_head) = (left / kv_heads, left % kv_heads);
        let [sum, max, weight] = partial_at(c, row, block);
        let head = kv_head * heads;
        // SAFETY: a block of a KV head of a row belongs to the thread that claimed it.
        let partial = unsafe {
            BlockPartial {
                sum: partials.part_mut(sum + head * head_dim..sum + (head + heads) * head_dim),
                max: partials.part_mut(max + head..max + head + heads),
                weight: partials.part_mut(weight + head..weight + head + heads),
            }
        };
        block_partial(c, &mut w.scores, row, kv_head, block, cache, partial);
    });
}

/// The gate of a head of a row.
///
/// # Safety
/// `qg` is not written meanwhile.
unsafe fn gate<'a>(c: &Context<'_>, qg: Shared<'a, f32>, row: usize, head: usize) -> &'a [f32] {
    let dim = c.config.head_dim;
    let at = row * 2 * c.config.attention_dim() + head * 2 * dim + dim;
    // SAFETY: the caller's word.
    unsafe { qg.part(at..at + dim) }
}

/// Decode: merges the blocks of each head.
pub(super) fn combine(
    c: &Context<'_>,
    team: &Team<'_>,
    w: &mut Workspace,
    partials: BufferId,
    qg: BufferId,
    output: BufferId,
) {
    let (partials, qg, output) = (c.f32s(partials), c.f32s(qg), c.activations(output));
    let (heads, dim) = (c.config.num_attention_heads, c.config.head_dim);
    team.for_each(c.inputs.rows.len() * heads, 1, |item| {
        let (row, head) = (item / heads, item % heads);
        // SAFETY: partials were finished before the last barrier; a head belongs to the thread that claimed it.
        unsafe {
            let part = |block: usize| {
                let [sum, max, weight] = partial_at(c, row, block);
                (
                    partials.part(sum + head * dim..sum + (head + 1) * dim),
                    partials.part(max + head..max + head + 1)[0],
                    partials.part(weight + head..weight + head + 1)[0],
                )
            };
            let (first, mut max, mut weight) = part(0);
            let sum = room(&mut w.row, dim);
            sum.copy_from_slice(first);
            for block in 1..=c.inputs.rows[row].position / PAGE {
                let (next, next_max, next_weight) = part(block);
                c.units.merge_block(sum, &mut max, &mut weight, next, next_max, next_weight);
            }
            let out = room(&mut w.values, dim);
            c.units.finish_attention(sum, weight, gate(c, qg, row, head), out);
            output.write(c.units.isa(), row, head * dim, out);
        }
    });
}

/// Running sums of some rows of a prompt, `[rows, heads]` each.
#[derive(Default)]
struct Running {
    sum: Vec<f32>,
    max: Vec<f32>,
    weight: Vec<f32>,
}

/// Prefill: a few rows at a time go through the blocks of their keys.
pub(super) fn prefill(
    c: &Context<'_>,
    team: &Team<'_>,
    w: &mut Workspace,
    qg: BufferId,
    cache: BufferId,
    output: BufferId,
) {
    let (qg, cache, output) = (c.f32s(qg), c.cache(cache), c.activations(output));
    let kv_heads = c.config.num_key_value_heads;
    let AttentionShape { heads, head_dim, .. } = shape(c);
    let groups: Vec<(usize, usize)> = c
        .inputs
        .segments
        .iter()
        .flat_map(|s| {
            let end = s.first_row + s.rows;
            (s.first_row..end).step_by(ROWS_TOGETHER).map(move |row| (row, (row + ROWS_TOGETHER).min(end)))
        })
        .collect();
    let mut running = Running::default();
    let mut next = Running::default();
    for (state, rows) in [(&mut running, ROWS_TOGETHER), (&mut next, 1)] {
        state.sum.resize(rows * heads * head_dim, 0.0);
        state.max.resize(rows * heads, 0.0);
        state.weight.resize(rows * heads, 0.0);
    }
    team.for_each(groups.len() * kv_heads, 1, |item| {
        let ((first, end), kv_head) = (groups[item / kv_heads], item % kv_heads);
        for block in 0..=c.inputs.rows[end - 1].position / PAGE {
            for row in first..end {
                if c.inputs.rows[row].position < block * PAGE {
                    continue;
                }
                let own = (row - first) * heads..(row - first + 1) * heads;
                let sums = own.start * head_dim..own.end * head_dim;
                if block == 0 {
                    let partial = BlockPartial {
                        sum: &mut running.sum[sums],
                        max: &mut running.max[own.clone()],
                        weight: &mut running.weight[own],
                    };
                    block_partial(c, &mut w.scores, row, kv_head, block, cache, partial);
                    continue;
                }
                let partial = BlockPartial { sum: &mut next.sum, max: &mut next.max, weight: &mut next.weight };
                block_partial(c, &mut w.scores, row, kv_head, block, cache, partial);
                for h in 0..heads {
                    let at = own.start + h;
                    c.units.merge_block(
                        &mut running.sum[at * head_dim..(at + 1) * head_dim],
                        &mut running.max[at],
                        &mut running.weight[at],
                        &next.sum[h * head_dim..(h + 1) * head_dim],
                        next.max[h],
                        next.weight[h],
                    );
                }
            }
        }
        for row in first..end {
            for h in 0..heads {
                let (head, at) = (kv_head * heads + h, (row - first) * heads + h);
                let out = room(&mut w.values, head_dim);
                // SAFETY: the heads of a KV head of a row belong to the thread that claimed it.
                unsafe {
                    let sum = &running.sum[at * head_dim..(at + 1) * head_dim];
                    c.units.finish_attention(sum, running.weight[at], gate(c, qg, row, head), out);
                    output.write(c.units.isa(), row, head * head_dim, out);
                }
            }
        }
    });
}
