//! Gated attention, and the output projections of both mixers.

use lily_model::graph::{Op, OpKind};

use super::Table;
use crate::memory::{Arrivals, Input};
use crate::program::{Access, Dispatch};
use crate::roles::{Role, out_role};
use crate::route::DenseForm;
use crate::source::packed_heads;

impl Table<'_> {
    pub(super) fn attention(&self, op: &Op, to: &mut Vec<Dispatch>) {
        let (c, t, rows) = (&self.model.config, self.tuning, self.shape.rows);
        let group = c.num_attention_heads / c.num_key_value_heads;
        match op.kind {
            OpKind::AttnInProj { weights: w, input, qg, kv } => {
                let all = [w.q_proj, w.k_proj, w.v_proj];
                let (kernel, grid, simds) = match self.dense() {
                    DenseForm::Matvec => {
                        let tiles = all.map(|id| self.matrix(id).matvec_tiles(t.matvec_out, t.matvec_simds));
                        ("attn_in_proj", [tiles.iter().sum(), self.row_tiles(), 1], t.matvec_simds)
                    }
                    DenseForm::Gemm => {
                        let tiles = all.map(|id| self.matrix(id).gemm_tiles());
                        ("attn_in_proj_gemm", [tiles.iter().sum(), rows.div_ceil(64), 1], 4)
                    }
                };
                self.call(op, kernel, grid, simds)
                    .matrix(0, w.q_proj)
                    .matrix(3, w.k_proj)
                    .matrix(6, w.v_proj)
                    .read(9, input)
                    .step(10)
                    .write(11, qg)
                    .write(12, kv)
                    .done(to);
            }
            OpKind::AttnDecode { weights: w, qg, kv, rows: row_input, pages, cache, partials } => {
                let packs = group / packed_heads(c);
                self.call(op, "attn_decode", [self.shape.blocks, c.num_key_value_heads * packs, rows], t.attn_simds)
                    .read(0, qg)
                    .read(1, kv)
                    .vector(2, w.q_norm)
                    .vector(3, w.k_norm)
                    .read(4, row_input)
                    .read(5, pages)
                    .step(6)
                    .update(7, cache)
                    .write(8, partials)
                    .done(to);
            }
            OpKind::AttnCombine { partials, qg, rows: row_input, output } => self
                .call(op, "attn_combine", [c.num_attention_heads, rows, 1], t.combine_simds)
                .read(0, partials)
                .read(1, qg)
                .read(2, row_input)
                .step(3)
                .write(4, output)
                .done(to),
            OpKind::QkNormRopeStore { weights: w, qg, kv, rows: row_input, pages, cache, q } => {
                let heads = c.num_attention_heads + c.num_key_value_heads;
                self.call(op, "qk_norm_rope_store", [heads.div_ceil(4), rows, 1], 4)
                    .read(0, qg)
                    .read(1, kv)
                    .vector(2, w.q_norm)
                    .vector(3, w.k_norm)
                    .read(4, row_input)
                    .read(5, pages)
                    .step(6)
                    .write(7, cache)
                    .write(8, q)
                    .done(to);
            }
            OpKind::AttnPrefill { q, qg, rows: row_input, pages, cache, output } => {
                let tiles = (self.shape.segment_rows * group).div_ceil(8 * t.flash_simds);
                let grid = [tiles, c.num_key_value_heads, self.shape.segments];
                self.call(op, "attn_prefill", grid, t.flash_simds)
                    .read(0, q)
                    .read(1, qg)
                    .read(2, row_input)
                    .input(3, Input::Segments)
                    .read(4, pages)
                    .step(5)
                    .read(6, cache)
                    .write(7, output)
                    .done(to);
            }
            _ => {}
        }
    }

    pub(super) fn out_proj(&self, op: &Op, to: &mut Vec<Dispatch>) {
        let (t, rows) = (self.tuning, self.shape.rows);
        let attention = out_role(self.model, op) == Role::O;
        match op.kind {
            OpKind::OutProjNorm { weight, norm, input, residual, normed } => {
                let kernel = if attention { "out_proj_norm_attn" } else { "out_proj_norm_gdn" };
                let tiles = self.matrix(weight).matvec_tiles(t.out_proj_out, t.out_proj_simds);
                self.call(op, kernel, [tiles, self.row_tiles(), 1], t.out_proj_simds)
                    .matrix(0, weight)
                    .vector(3, norm)
                    .read(4, input)
                    .step(5)
                    .update(6, residual)
                    .write(7, normed)
                    .bind(8, self.memory.arrivals(Arrivals::OutProj), Access::ReadWrite)
                    .done(to);
            }
            OpKind::OutProj { weight, input, output } => {
                let (kernel, grid, simds) = match self.dense() {
                    DenseForm::Matvec => {
                        let tiles = self.matrix(weight).matvec_tiles(t.out_proj_out, t.out_proj_simds);
                        let kernel = if attention { "out_proj_attn" } else { "out_proj_gdn" };
                        (kernel, [tiles, self.row_tiles(), 1], t.out_proj_simds)
                    }
                    DenseForm::Gemm => {
                        let kernel = if attention { "out_proj_gemm_attn" } else { "out_proj_gemm_gdn" };
                        (kernel, [self.matrix(weight).gemm_tiles(), rows.div_ceil(64), 1], 4)
                    }
                };
                self.call(op, kernel, grid, simds).matrix(0, weight).read(3, input).step(4).write(5, output).done(to);
            }
            OpKind::AddRmsNorm { norm, delta, residual, normed } => self
                .call(op, "add_rms_norm", [rows, 1, 1], t.row_simds)
                .read(0, delta)
                .vector(1, norm)
                .step(2)
                .update(3, residual)
                .write(4, normed)
                .done(to),
            _ => {}
        }
    }
}
