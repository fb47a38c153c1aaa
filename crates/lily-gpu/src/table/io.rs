//! Embedding, head and argmax.

use lily_model::graph::{Op, OpKind};

use super::Table;
use crate::memory::{Arrivals, Private};
use crate::program::{Access, Dispatch};

impl Table<'_> {
    pub(super) fn io(&self, op: &Op, to: &mut Vec<Dispatch>) {
        let t = self.tuning;
        let chosen = self.memory.chosen();
        match op.kind {
            OpKind::Embed { weight, norm, tokens, residual, normed } => self
                .call(op, "embed", [self.shape.rows, 1, 1], t.row_simds)
                .matrix(0, weight)
                .vector(3, norm)
                .read(4, tokens)
                .bind(5, chosen, Access::Read)
                .step(6)
                .write(7, residual)
                .write(8, normed)
                .done(to),
            OpKind::LmHead { weight, input, logit_rows, logits } if self.shape.logit_rows > 0 => {
                let tiles = self.matrix(weight).matvec_tiles(t.lm_head_out, t.lm_head_simds);
                let rows = self.shape.logit_rows.div_ceil(t.row_tile);
                self.call(op, "lm_head", [tiles, rows, 1], t.lm_head_simds)
                    .matrix(0, weight)
                    .read(3, input)
                    .read(4, logit_rows)
                    .step(5)
                    .write(6, logits)
                    .done(to);
            }
            OpKind::Argmax { logits, next } if self.shape.logit_rows > 0 => {
                let parts = self.memory.private(self.model, &self.shape, Private::ArgmaxParts);
                self.call(op, "argmax", [t.argmax_parts, self.shape.logit_rows, 1], t.argmax_simds)
                    .read(0, logits)
                    .step(1)
                    .write(2, next)
                    .bind(3, chosen, Access::Write)
                    .bind(4, parts, Access::ReadWrite)
                    .bind(5, self.memory.arrivals(Arrivals::Argmax), Access::ReadWrite)
                    .done(to);
            }
            // A step without logit rows only advances the state.
            _ => {}
        }
    }
}
