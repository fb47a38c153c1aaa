//! Operations on whole rows: embedding, residual norms, the choice of a token.

use lily_model::device::NO_TOKEN;
use lily_model::graph::{BufferId, WeightId};

use super::{Context, Workspace, room};
use crate::memory::Shared;
use crate::pool::Team;
use crate::reference;

/// `normed[row] = rms(residual, norm)`, in the form of matrix inputs.
pub(super) fn write_normed(
    c: &Context<'_>,
    w: &mut Workspace,
    row: usize,
    residual: &[f32],
    norm: WeightId,
    normed: BufferId,
) {
    let values = room(&mut w.values, residual.len());
    c.units.rms_norm(residual, c.vector(norm), c.config.rms_norm_eps, values);
    // SAFETY: a row belongs to the thread that claimed it.
    unsafe { c.activations(normed).write(c.units.isa(), row, 0, values) };
}

pub(super) fn embed(
    c: &Context<'_>,
    team: &Team<'_>,
    w: &mut Workspace,
    weight: WeightId,
    norm: WeightId,
    residual: BufferId,
    normed: BufferId,
) {
    let hidden = c.config.hidden_size;
    let (view, residual) = (c.checkpoint.weight(weight), c.f32s(residual));
    team.for_each(c.inputs.rows.len(), 1, |row| {
        // SAFETY: a row belongs to the thread that claimed it.
        let residual = unsafe { residual.part_mut(row * hidden..(row + 1) * hidden) };
        reference::embed(&view, c.inputs.rows[row].token as usize, residual);
        write_normed(c, w, row, residual, norm, normed);
    });
}

pub(super) fn add_rms_norm(
    c: &Context<'_>,
    team: &Team<'_>,
    w: &mut Workspace,
    norm: WeightId,
    delta: Shared<'_, f32>,
    residual: BufferId,
    normed: BufferId,
) {
    let hidden = c.config.hidden_size;
    let residual = c.f32s(residual);
    team.for_each(c.inputs.rows.len(), 1, |row| {
        let span = row * hidden..(row + 1) * hidden;
        // SAFETY: a row belongs to the thread that claimed it; `delta` was finished before the last barrier.
        let (residual, delta) = unsafe { (residual.part_mut(span.clone()), delta.part(span)) };
        for (residual, delta) in residual.iter_mut().zip(delta) {
            *residual += delta;
        }
        write_normed(c, w, row, residual, norm, normed);
    });
}

pub(super) fn argmax(c: &Context<'_>, team: &Team<'_>, logits: BufferId, next: BufferId) {
    let vocab = c.config.vocab_size;
    let (logits, next) = (c.f32s(logits), c.u32s(next));
    team.for_each(c.inputs.logit_rows.len(), 1, |row| {
        // SAFETY: logits were finished before the last barrier; a row belongs to the thread that claimed it.
        let (logits, next) = unsafe { (logits.part(row * vocab..(row + 1) * vocab), next.part_mut(row..row + 1)) };
        let best = c.units.argmax(logits);
        next[0] = if logits[best].is_finite() { best as u32 } else { NO_TOKEN };
    });
}
