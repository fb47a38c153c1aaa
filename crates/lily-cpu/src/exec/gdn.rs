//! Gated DeltaNet layers: projections, one decoded token of each sequence, or a chunk of a prompt.
//!
//! State of a slot: `[value heads, value blocks, key_dim, 32]`, so that a block of columns is one piece of memory.

use lily_model::graph::{BufferId, GdnWeights};

use super::linear::{all_rows, job, multiply};
use super::{Context, Workspace, room};
use crate::memory::Shared;
use crate::pool::Team;
use crate::reference::gdn_gates;
use crate::simd::VALUE_BLOCK;

/// Inputs of the convolution that a slot keeps.
const WINDOW: usize = 3;

pub(super) struct StepBuffers {
    pub qkv: BufferId,
    pub z: BufferId,
    pub ba: BufferId,
    pub window: BufferId,
    pub state: BufferId,
    pub output: BufferId,
}

pub(super) struct ConvBuffers {
    pub qkv: BufferId,
    pub ba: BufferId,
    pub window: BufferId,
    pub mixed: BufferId,
    pub gates: BufferId,
}

pub(super) struct ScanBuffers {
    pub mixed: BufferId,
    pub gates: BufferId,
    pub z: BufferId,
    pub state: BufferId,
    pub output: BufferId,
}

/// `qkv`, `z`, and `b|a`.
pub(super) fn in_proj(
    c: &Context<'_>,
    team: &Team<'_>,
    w: &mut Workspace,
    g: &GdnWeights,
    input: BufferId,
    [qkv, z, ba]: [BufferId; 3],
) {
    let config = c.config;
    let heads = config.linear_num_value_heads;
    let rows = all_rows(c, input, config.hidden_size);
    let jobs = [
        job(c, g.in_proj_qkv, c.f32s(qkv), config.linear_conv_dim(), 0),
        job(c, g.in_proj_z, c.f32s(z), config.linear_value_dim(), 0),
        job(c, g.in_proj_b, c.f32s(ba), 2 * heads, 0),
        job(c, g.in_proj_a, c.f32s(ba), 2 * heads, heads),
    ];
    multiply(c, team, w, &rows, &jobs);
}

/// Convolution, SiLU and norms of one row's channels that belong to a key head: its query, its key and the values of its
/// value heads; and the gates of those. `mixed` and `gates` are the row's own.
#[allow(clippy::too_many_arguments)] // buffers of one operation
fn mix(
    c: &Context<'_>,
    g: &GdnWeights,
    row: usize,
    key_head: usize,
    qkv: Shared<'_, f32>,
    ba: Shared<'_, f32>,
    window: Shared<'_, f32>,
    mixed: Shared<'_, f32>,
    gates: Shared<'_, f32>,
) {
    let config = c.config;
    let (channels, key_dim, heads) =
        (config.linear_conv_dim(), config.linear_key_head_dim, config.linear_num_value_heads);
    let segment = &c.inputs.segments[c.inputs.rows[row].segment];
    let index = row - segment.first_row;
    for (first, len) in spans(c, key_head) {
        // SAFETY: the conv's inputs are not written while it runs; these channels of this row are this thread's.
        unsafe {
            let tap = |j: usize| {
                let at = match (index + j).checked_sub(WINDOW) {
                    Some(back) => (segment.first_row + back) * channels + first,
                    None => return window.part(window_at(c, segment.slot, index + j, first, len)),
                };
                qkv.part(at..at + len)
            };
            let out = mixed.part_mut(row * channels + first..row * channels + first + len);
            c.units.gdn_conv_token([tap(0), tap(1), tap(2), tap(3)], c.vector(g.conv1d), channels, first, out);
            if first < config.linear_key_dim() {
                c.units.l2_normalize(out, (key_dim as f32).powf(-0.5));
            } else if first < 2 * config.linear_key_dim() {
                c.units.l2_normalize(out, 1.0);
            }
        }
    }
    let per_key = heads / config.linear_num_key_heads;
    for head in key_head * per_key..(key_head + 1) * per_key {
        let at = row * 2 * heads + head;
        // SAFETY: as above.
        unsafe {
            let (b, a) = (ba.part(at..at + 1)[0], ba.part(at + heads..at + heads + 1)[0]);
            let (decay, beta) = gdn_gates(a, b, c.vector(g.a_log)[head], c.vector(g.dt_bias)[head]);
            gates.part_mut(at..at + 1)[0] = decay;
            gates.part_mut(at + heads..at + heads + 1)[0] = beta;
        }
    }
}

/// Channels `(first, len)` of a key head: query, key, values.
fn spans(c: &Context<'_>, key_head: usize) -> [(usize, usize); 3] {
    let (dk, keys) = (c.config.linear_key_head_dim, c.config.linear_key_dim());
    let values = c.config.linear_value_dim() / c.config.linear_num_key_heads;
    [(key_head * dk, dk), (keys + key_head * dk, dk), (2 * keys + key_head * values, values)]
}

fn window_at(c: &Context<'_>, slot: usize, index: usize, first: usize, len: usize) -> std::ops::Range<usize> {
    let at = (slot * WINDOW + index) * c.config.linear_conv_dim() + first;
    at..at + len
}

/// The last three inputs of a segment's conv, for some channels.
///
/// # Safety
/// No other thread touches these channels of the slot's window.
unsafe fn carry_window(
    c: &Context<'_>,
    segment: usize,
    (first, len): (usize, usize),
    qkv: Shared<'_, f32>,
    window: Shared<'_, f32>,
) {
    let segment = &c.inputs.segments[segment];
    let channels = c.config.linear_conv_dim();
    for j in 0..WINDOW {
        let from = j + segment.rows;
        // SAFETY: the caller's word; `from` lies ahead of `j`, so that nothing is read after it was written.
        unsafe {
            let source = match from.checked_sub(WINDOW) {
                Some(back) => {
                    let at = (segment.first_row + back) * channels + first;
                    qkv.part(at..at + len)
                }
                None => window.part(window_at(c, segment.slot, from, first, len)),
            };
            window.part_mut(window_at(c, segment.slot, j, first, len)).copy_from_slice(source);
        }
    }
}

/// Place of a block of value columns of a head in a slot's state.
fn block_at(c: &Context<'_>, slot: usize, head: usize, block: usize) -> std::ops::Range<usize> {
    let config = c.config;
    let blocks = config.linear_value_head_dim / VALUE_BLOCK;
    let len = config.linear_key_head_dim * VALUE_BLOCK;
    let at = ((slot * config.linear_num_value_heads + head) * blocks + block) * len;
    at..at + len
}

/// The delta rule for a row and a block of columns of a value head; `core` receives the outputs.
///
/// # Safety
/// The block of state and these columns of `core` are this thread's; `mixed` and `gates` are not written.
unsafe fn delta(
    c: &Context<'_>,
    row: usize,
    (head, block): (usize, usize),
    state: &mut [f32],
    (mixed, gates): (Shared<'_, f32>, Shared<'_, f32>),
    core: Shared<'_, f32>,
) {
    let config = c.config;
    let (dk, dv, heads, keys) = (
        config.linear_key_head_dim,
        config.linear_value_head_dim,
        config.linear_num_value_heads,
        config.linear_key_dim(),
    );
    let key_head = head / (heads / config.linear_num_key_heads);
    let at = row * config.linear_conv_dim();
    let column = head * dv + block * VALUE_BLOCK;
    // SAFETY: the caller's word.
    unsafe {
        let q = mixed.part(at + key_head * dk..at + (key_head + 1) * dk);
        let k = mixed.part(at + keys + key_head * dk..at + keys + (key_head + 1) * dk);
        let v = mixed.part(at + 2 * keys + column..at + 2 * keys + column + VALUE_BLOCK);
        let gate = row * 2 * heads + head;
        let (decay, beta) = (gates.part(gate..gate + 1)[0], gates.part(gate + heads..gate + heads + 1)[0]);
        let out = row * config.linear_value_dim() + column;
        c.units.delta_step(state, q, k, v, decay, beta, core.part_mut(out..out + VALUE_BLOCK));
    }
}

/// Gated norm of a row's value head, into the output.
///
/// # Safety
/// That head's part of the output row is this thread's; `core` is finished there.
#[allow(clippy::too_many_arguments)] // buffers of one operation
unsafe fn finish(
    c: &Context<'_>,
    w: &mut Workspace,
    g: &GdnWeights,
    row: usize,
    head: usize,
    core: Shared<'_, f32>,
    z: Shared<'_, f32>,
    output: BufferId,
) {
    let dv = c.config.linear_value_head_dim;
    let at = row * c.config.linear_value_dim() + head * dv;
    let values = room(&mut w.values, dv);
    // SAFETY: the caller's word.
    unsafe {
        c.units.gated_norm(
            core.part(at..at + dv),
            c.vector(g.norm),
            z.part(at..at + dv),
            c.config.rms_norm_eps,
            values,
        );
        c.activations(output).write(c.units.isa(), row, head * dv, values);
    }
}

/// Decode: one token of each sequence. A thread takes a key head of a row with all that belongs to it.
pub(super) fn step(c: &Context<'_>, team: &Team<'_>, w: &mut Workspace, g: &GdnWeights, b: &StepBuffers) {
    let config = c.config;
    let (key_heads, heads) = (config.linear_num_key_heads, config.linear_num_value_heads);
    let (qkv, z, ba, window, state) = (c.f32s(b.qkv), c.f32s(b.z), c.f32s(b.ba), c.f32s(b.window), c.f32s(b.state));
    let rows = c.inputs.rows.len();
    let [mixed, gates, core] = c.scratch.gdn(config, rows);
    team.for_each(rows * key_heads, 1, |item| {
        let (row, key_head) = (item / key_heads, item % key_heads);
        mix(c, g, row, key_head, qkv, ba, window, mixed, gates);
        let segment = c.inputs.rows[row].segment;
        let slot = c.inputs.segments[segment].slot;
        // SAFETY: all channels and heads of a key head belong to the thread that claimed it.
        unsafe {
            for span in spans(c, key_head) {
                carry_window(c, segment, span, qkv, window);
            }
            let per_key = heads / key_heads;
            for head in key_head * per_key..(key_head + 1) * per_key {
                for block in 0..config.linear_value_head_dim / VALUE_BLOCK {
                    let state = state.part_mut(block_at(c, slot, head, block));
                    delta(c, row, (head, block), state, (mixed, gates), core);
                }
                finish(c, w, g, row, head, core, z, b.output);
            }
        }
    });
}

/// Prefill: convolution, norms and gates of every row, then the window that the next chunk starts from.
pub(super) fn conv(c: &Context<'_>, team: &Team<'_>, g: &GdnWeights, b: &ConvBuffers) {
    let key_heads = c.config.linear_num_key_heads;
    let (qkv, ba, window, mixed, gates) =
        (c.f32s(b.qkv), c.f32s(b.ba), c.f32s(b.window), c.f32s(b.mixed), c.f32s(b.gates));
    team.for_each(c.inputs.rows.len() * key_heads, key_heads, |item| {
        mix(c, g, item / key_heads, item % key_heads, qkv, ba, window, mixed, gates);
    });
    team.barrier();
    team.for_each(c.inputs.segments.len() * key_heads, 1, |item| {
        for span in spans(c, item % key_heads) {
            // SAFETY: the channels of a key head belong to the thread that claimed it.
            unsafe { carry_window(c, item / key_heads, span, qkv, window) };
        }
    });
}

/// Prefill: the delta rule over each segment, a block of columns a thread, then the gated norms.
pub(super) fn scan(c: &Context<'_>, team: &Team<'_>, w: &mut Workspace, g: &GdnWeights, b: &ScanBuffers) {
    let config = c.config;
    let heads = config.linear_num_value_heads;
    let blocks = config.linear_value_head_dim / VALUE_BLOCK;
    let (mixed, gates, z, state) = (c.f32s(b.mixed), c.f32s(b.gates), c.f32s(b.z), c.f32s(b.state));
    let core = c.scratch.wide;
    team.for_each(c.inputs.segments.len() * heads * blocks, 1, |item| {
        let segment = &c.inputs.segments[item / (heads * blocks)];
        let (head, block) = (item / blocks % heads, item % blocks);
        // SAFETY: a block of columns of a head belongs to the thread that claimed it.
        unsafe {
            let state = state.part_mut(block_at(c, segment.slot, head, block));
            for row in segment.first_row..segment.first_row + segment.rows {
                delta(c, row, (head, block), state, (mixed, gates), core);
            }
        }
    });
    team.barrier();
    team.for_each(c.inputs.rows.len() * heads, heads, |item| {
        // SAFETY: a head of a row belongs to the thread that claimed it.
        unsafe { finish(c, w, g, item / heads, item % heads, core, z, b.output) };
    });
}
