//! Matrix products of a step: tiles of sixteen outputs shared among the threads.

use lily_model::checkpoint::WeightView;
use lily_model::graph::{BufferId, WeightId};

use super::buffers::RowList;
use super::{Context, Workspace, room};
use crate::memory::Shared;
use crate::pool::Team;
use crate::reference;
use crate::simd::{self, Ahead, TILE};

/// One matrix of a product and where its outputs go: `out[row * stride + offset + output]`.
pub(super) struct Job<'a> {
    pub weight: WeightView<'a>,
    pub outputs: usize,
    pub out: Shared<'a, f32>,
    pub stride: usize,
    pub offset: usize,
}

/// Outputs `16 tile ..` of matrix `expert` for every row, into the workspace's `products`.
///
/// `into` is taken out of the workspace by the caller, so that two products can be held at once.
pub(super) fn products(
    c: &Context<'_>,
    w: &mut Workspace,
    (weight, expert, tile): (&WeightView<'_>, usize, usize),
    rows: &RowList<'_>,
    into: &mut Vec<[f32; TILE]>,
) {
    let isa = c.units.isa();
    into.resize(rows.len(), [0.0; TILE]);
    match (rows, weight) {
        (RowList::Exact(rows), _) => {
            let outputs = outputs_of(weight);
            let row = room(&mut w.row, rows.first().map_or(0, |r| r.len()));
            for i in 0..TILE {
                let output = tile * TILE + i;
                if output < outputs {
                    reference::dequantize_row(weight, expert, output, row);
                    for (x, into) in rows.iter().zip(into.iter_mut()) {
                        into[i] = reference::dot(row, x);
                    }
                }
            }
        }
        (RowList::Quantized(rows), WeightView::Quantized(view)) => {
            if let [row] = rows[..] {
                into[0] = simd::product_of_one_row(isa, view, expert, tile, row, &mut w.tile);
            } else {
                simd::unpack_tile(isa, view, expert, tile, &mut w.tile);
                simd::multiply_tile(isa, &w.tile, rows, Ahead::of(view, expert, tile), into);
            }
        }
        (RowList::Quantized(rows), WeightView::Dense(view)) => {
            for (x, into) in rows.iter().zip(into.iter_mut()) {
                let row = room(&mut w.row, x.ints.len());
                simd::restore(x.ints, x.scales, row);
                *into = simd::dense_outputs(isa, view, expert, tile, row);
            }
        }
        (RowList::Quantized(_), WeightView::Float(_)) => unreachable!("a vector is no matrix"),
    }
}

/// Rows of a matrix.
pub(super) fn outputs_of(weight: &WeightView<'_>) -> usize {
    match weight {
        WeightView::Quantized(view) => view.outputs,
        WeightView::Dense(view) => view.outputs,
        WeightView::Float(_) => 1,
    }
}

/// All jobs on the same rows, as one list of tiles.
pub(super) fn multiply(c: &Context<'_>, team: &Team<'_>, w: &mut Workspace, rows: &RowList<'_>, jobs: &[Job<'_>]) {
    if rows.len() == 0 {
        return;
    }
    let tiles: usize = jobs.iter().map(|job| job.outputs.div_ceil(TILE)).sum();
    let mut into = std::mem::take(&mut w.products);
    team.for_each(tiles, 4, |item| {
        let mut tile = item;
        for job in jobs {
            let tiles = job.outputs.div_ceil(TILE);
            if tile < tiles {
                products(c, w, (&job.weight, 0, tile), rows, &mut into);
                let len = TILE.min(job.outputs - tile * TILE);
                for (row, products) in into.iter().enumerate() {
                    let at = row * job.stride + job.offset + tile * TILE;
                    // SAFETY: a tile's outputs belong to the thread that claimed it.
                    unsafe { job.out.part_mut(at..at + len) }.copy_from_slice(&products[..len]);
                }
                return;
            }
            tile -= tiles;
        }
    });
    w.products = into;
}

/// The job of a weight whose outputs fill rows of `out`.
pub(super) fn job<'a>(
    c: &Context<'a>,
    weight: WeightId,
    out: Shared<'a, f32>,
    stride: usize,
    offset: usize,
) -> Job<'a> {
    let weight = c.checkpoint.weight(weight);
    Job { outputs: outputs_of(&weight), weight, out, stride, offset }
}

/// All rows of a buffer of activations, `len` wide.
pub(super) fn all_rows<'a>(c: &Context<'a>, input: BufferId, len: usize) -> RowList<'a> {
    // SAFETY: an operation's inputs are not written while it runs.
    unsafe { c.activations(input).rows((0..c.inputs.rows.len()).map(|row| (row, 0)), len) }
}

/// `out = W x`, `[rows, hidden]`.
pub(super) fn out_proj(
    c: &Context<'_>,
    team: &Team<'_>,
    w: &mut Workspace,
    weight: WeightId,
    input: BufferId,
    out: Shared<'_, f32>,
) {
    let view = c.checkpoint.weight(weight);
    let inputs = match view {
        WeightView::Quantized(view) => view.inputs,
        WeightView::Dense(view) => view.inputs,
        WeightView::Float(_) => unreachable!("a vector is no matrix"),
    };
    let rows = all_rows(c, input, inputs);
    let outputs = outputs_of(&view);
    multiply(c, team, w, &rows, &[Job { weight: view, outputs, out, stride: outputs, offset: 0 }]);
}

/// Logits of the rows that ask for them, `[logit rows, vocab]`.
pub(super) fn lm_head(
    c: &Context<'_>,
    team: &Team<'_>,
    w: &mut Workspace,
    weight: WeightId,
    input: BufferId,
    logits: BufferId,
) {
    // SAFETY: an operation's inputs are not written while it runs.
    let rows =
        unsafe { c.activations(input).rows(c.inputs.logit_rows.iter().map(|&row| (row, 0)), c.config.hidden_size) };
    let job = job(c, weight, c.f32s(logits), c.config.vocab_size, 0);
    multiply(c, team, w, &rows, &[job]);
}
