//! Mixture of experts: the router, rows grouped by expert, and the way back to the residual stream.
//!
//! Decode and prefill run the same code: a decode step of sixteen rows also reads an expert once for all rows that chose it.

use lily_model::graph::{BufferId, MoeWeights, WeightId};

use super::buffers::RowList;
use super::linear::{all_rows, job, multiply, outputs_of, products};
use super::rows::write_normed;
use super::{Context, Workspace, room};
use crate::memory::Shared;
use crate::pool::Team;
use crate::reference::{self, route};
use crate::simd::TILE;

/// Logits of all experts and of the shared gate, then each row's choice.
pub(super) fn router(
    c: &Context<'_>,
    team: &Team<'_>,
    w: &mut Workspace,
    m: &MoeWeights,
    input: BufferId,
    experts: BufferId,
    scales: BufferId,
) {
    let (count, slots) = (c.config.num_experts, c.config.num_experts_per_tok);
    let rows = all_rows(c, input, c.config.hidden_size);
    let logits = c.scratch.wide;
    let jobs = [job(c, m.gate, logits, count + 1, 0), job(c, m.shared_expert_gate, logits, count + 1, count)];
    multiply(c, team, w, &rows, &jobs);
    team.barrier();
    let (experts, scales) = (c.u32s(experts), c.f32s(scales));
    team.for_each(c.inputs.rows.len(), 1, |row| {
        // SAFETY: logits were finished before the barrier; a row belongs to the thread that claimed it.
        unsafe {
            let logits = logits.part(row * (count + 1)..(row + 1) * (count + 1));
            let experts = experts.part_mut(row * slots..(row + 1) * slots);
            let scales = scales.part_mut(row * (slots + 1)..(row + 1) * (slots + 1));
            route(&logits[..count], logits[count], experts, scales);
        }
    });
}

fn pairs(c: &Context<'_>) -> usize {
    c.inputs.rows.len() * c.config.num_experts_per_tok
}

/// Groups the rows by expert, for all threads.
pub(super) fn route_sort(c: &Context<'_>, team: &Team<'_>, experts: BufferId, offsets: BufferId, order: BufferId) {
    if team.thread == 0 {
        // SAFETY: the other threads wait at the barrier after this operation.
        unsafe {
            let offsets = c.u32s(offsets).part_mut(0..c.config.num_experts + 1);
            let order = c.u32s(order).part_mut(0..pairs(c));
            reference::route_sort(c.u32s(experts).part(0..pairs(c)), offsets, order);
        }
    }
}

/// The experts of the step's rows, `[rows, K]`, once their router is done.
pub(super) fn chosen<'a>(c: &Context<'a>, experts: BufferId) -> &'a [u32] {
    // SAFETY: written before the last barrier, and not again before this thread is at the next.
    unsafe { c.u32s(experts).part(0..pairs(c)) }
}

/// What [`route_sort`] made.
pub(super) fn sorted<'a>(c: &Context<'a>, offsets: BufferId, order: BufferId) -> (&'a [u32], &'a [u32]) {
    // SAFETY: written before the last barrier, and not again in this step's layer.
    unsafe { (c.u32s(offsets).part(0..c.config.num_experts + 1), c.u32s(order).part(0..pairs(c))) }
}

/// The same for a few rows, by each thread for itself: cheaper than a barrier.
pub(super) fn sort_alone(c: &Context<'_>, w: &mut Workspace, experts: BufferId) -> (Vec<u32>, Vec<u32>) {
    let (mut offsets, mut order) = (std::mem::take(&mut w.offsets), std::mem::take(&mut w.order));
    offsets.resize(c.config.num_experts + 1, 0);
    order.resize(pairs(c), 0);
    // SAFETY: written before the last barrier.
    let experts = unsafe { c.u32s(experts).part(0..pairs(c)) };
    reference::route_sort(experts, &mut offsets, &mut order);
    (offsets, order)
}

/// A group of pairs that meet one expert; the shared expert is last and meets every row.
struct Group<'a> {
    /// `None` = the shared expert.
    expert: Option<usize>,
    pairs: &'a [u32],
}

/// Groups that have pairs, in order of experts.
fn groups<'a>((offsets, order): (&'a [u32], &'a [u32])) -> Vec<Group<'a>> {
    let mut found: Vec<Group<'a>> = offsets
        .windows(2)
        .enumerate()
        .filter(|(_, w)| w[0] < w[1])
        .map(|(e, w)| Group { expert: Some(e), pairs: &order[w[0] as usize..w[1] as usize] })
        .collect();
    found.push(Group { expert: None, pairs: &[] });
    found
}

impl Group<'_> {
    /// `(row, slot)` of every pair; the shared expert's slot follows the others.
    fn places(&self, c: &Context<'_>) -> Vec<(usize, usize)> {
        let slots = c.config.num_experts_per_tok;
        match self.expert {
            Some(_) => self.pairs.iter().map(|&p| (p as usize / slots, p as usize % slots)).collect(),
            None => (0..c.inputs.rows.len()).map(|row| (row, slots)).collect(),
        }
    }
}

/// Finds the group and the unit within it of an item, where routed experts have `routed` units each.
fn locate(item: usize, groups: usize, routed: usize) -> (usize, usize) {
    if item < (groups - 1) * routed {
        (item / routed, item % routed)
    } else {
        (groups - 1, item - (groups - 1) * routed)
    }
}

/// `silu(gate x) * (up x)` of every pair and of the shared expert. A unit is a group of outputs that is quantized at once.
pub(super) fn gate_up(
    c: &Context<'_>,
    team: &Team<'_>,
    w: &mut Workspace,
    m: &MoeWeights,
    sorted: (&[u32], &[u32]),
    input: BufferId,
    output: BufferId,
) {
    let config = c.config;
    let unit = c.units.group();
    let routed = [c.checkpoint.weight(m.switch_gate_proj), c.checkpoint.weight(m.switch_up_proj)];
    let shared = [c.checkpoint.weight(m.shared_gate_proj), c.checkpoint.weight(m.shared_up_proj)];
    let groups = groups(sorted);
    let units = config.moe_intermediate_size / unit;
    let items = (groups.len() - 1) * units + config.shared_expert_intermediate_size / unit;
    let (input, output) = (c.activations(input), c.activations(output));
    let (mut gate, mut up) = (std::mem::take(&mut w.products), std::mem::take(&mut w.more_products));
    let mut current = usize::MAX;
    let mut places = Vec::new();
    let mut rows = RowList::Exact(Vec::new());
    team.for_each(items, 1, |item| {
        let (index, part) = locate(item, groups.len(), units);
        let group = &groups[index];
        if current != index {
            current = index;
            places = group.places(c);
            // SAFETY: an operation's inputs are not written while it runs.
            rows = unsafe { input.rows(places.iter().map(|&(row, _)| (row, 0)), config.hidden_size) };
        }
        let ([gate_weight, up_weight], expert) = match group.expert {
            Some(expert) => (&routed, expert),
            None => (&shared, 0),
        };
        let mut values = std::mem::take(&mut w.values);
        let act = room(&mut values, places.len() * unit);
        for tile in 0..unit / TILE {
            let at = part * (unit / TILE) + tile;
            products(c, w, (gate_weight, expert, at), &rows, &mut gate);
            products(c, w, (up_weight, expert, at), &rows, &mut up);
            for ((act, gate), up) in act.chunks_exact_mut(unit).zip(&gate).zip(&up) {
                c.units.swiglu(gate, up, &mut act[tile * TILE..(tile + 1) * TILE]);
            }
        }
        for (&(row, slot), act) in places.iter().zip(act.chunks_exact(unit)) {
            // SAFETY: a unit of a pair belongs to the thread that claimed it.
            unsafe { output.write(c.units.isa(), row, slot * config.moe_intermediate_size + part * unit, act) };
        }
        w.values = values;
    });
    (w.products, w.more_products) = (gate, up);
}

/// `down` of every pair and of the shared expert, `[rows, K + 1, hidden]`.
pub(super) fn down(
    c: &Context<'_>,
    team: &Team<'_>,
    w: &mut Workspace,
    m: &MoeWeights,
    sorted: (&[u32], &[u32]),
    input: BufferId,
    out: Shared<'_, f32>,
) {
    let config = c.config;
    let (routed, shared) = (c.checkpoint.weight(m.switch_down_proj), c.checkpoint.weight(m.shared_down_proj));
    let (hidden, slots, inner) = (config.hidden_size, config.num_experts_per_tok, config.moe_intermediate_size);
    let groups = groups(sorted);
    let tiles = outputs_of(&routed).div_ceil(TILE);
    let input = c.activations(input);
    let mut into = std::mem::take(&mut w.products);
    let mut current = usize::MAX;
    let mut places = Vec::new();
    let mut rows = RowList::Exact(Vec::new());
    team.for_each(groups.len() * tiles, 4, |item| {
        let (index, tile) = locate(item, groups.len(), tiles);
        let group = &groups[index];
        if current != index {
            current = index;
            places = group.places(c);
            let len = if group.expert.is_some() { inner } else { config.shared_expert_intermediate_size };
            // SAFETY: an operation's inputs are not written while it runs.
            rows = unsafe { input.rows(places.iter().map(|&(row, slot)| (row, slot * inner)), len) };
        }
        let (weight, expert) = match group.expert {
            Some(expert) => (&routed, expert),
            None => (&shared, 0),
        };
        products(c, w, (weight, expert, tile), &rows, &mut into);
        for (&(row, slot), products) in places.iter().zip(&into) {
            let at = (row * (slots + 1) + slot) * hidden + tile * TILE;
            // SAFETY: a tile of a pair belongs to the thread that claimed it.
            unsafe { out.part_mut(at..at + TILE) }.copy_from_slice(products);
        }
    });
    w.products = into;
}

/// Weighted sum of a row's experts into the residual stream, and the next norm.
#[allow(clippy::too_many_arguments)] // buffers of one operation
pub(super) fn combine(
    c: &Context<'_>,
    team: &Team<'_>,
    w: &mut Workspace,
    norm: WeightId,
    down: Shared<'_, f32>,
    scales: BufferId,
    residual: BufferId,
    normed: BufferId,
) {
    let (hidden, slots) = (c.config.hidden_size, c.config.num_experts_per_tok + 1);
    let (scales, residual) = (c.f32s(scales), c.f32s(residual));
    team.for_each(c.inputs.rows.len(), 1, |row| {
        // SAFETY: inputs were finished before the last barrier; a row belongs to the thread that claimed it.
        unsafe {
            let residual = residual.part_mut(row * hidden..(row + 1) * hidden);
            let down = down.part(row * slots * hidden..(row + 1) * slots * hidden);
            c.units.combine(residual, down, scales.part(row * slots..(row + 1) * slots));
            write_normed(c, w, row, residual, norm, normed);
        }
    });
}
