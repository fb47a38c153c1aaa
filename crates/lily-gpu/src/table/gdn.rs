//! Gated DeltaNet.

use lily_model::graph::{Op, OpKind, Phase};

use super::Table;
use crate::memory::{Input, Private};
use crate::program::{Access, Dispatch};
use crate::route::{DenseForm, dense_form};
use crate::source::gdn_simds;

/// Lanes that carry a column of the state in the scan (`SCAN_LANES`).
const SCAN_LANES: usize = 8;

impl Table<'_> {
    /// Form of the dense products of this step.
    pub(crate) fn dense(&self) -> DenseForm {
        match self.shape.phase {
            Phase::Decode => DenseForm::Matvec,
            Phase::Prefill => dense_form(self.shape.rows),
        }
    }

    pub(super) fn gdn(&self, op: &Op, to: &mut Vec<Dispatch>) {
        let (c, t, rows) = (&self.model.config, self.tuning, self.shape.rows);
        match op.kind {
            OpKind::GdnInProj { weights: w, input, qkv, z, ba } => {
                let all = [w.in_proj_qkv, w.in_proj_z, w.in_proj_b, w.in_proj_a];
                let (kernel, grid, simds) = match self.dense() {
                    DenseForm::Matvec => {
                        let tiles = all.map(|id| self.matrix(id).matvec_tiles(t.matvec_out, t.matvec_simds));
                        ("gdn_in_proj", [tiles.iter().sum(), self.row_tiles(), 1], t.matvec_simds)
                    }
                    DenseForm::Gemm => {
                        let tiles = all.map(|id| self.matrix(id).gemm_tiles());
                        ("gdn_in_proj_gemm", [tiles.iter().sum(), rows.div_ceil(64), 1], 4)
                    }
                };
                self.call(op, kernel, grid, simds)
                    .matrix(0, w.in_proj_qkv)
                    .matrix(3, w.in_proj_z)
                    .matrix(6, w.in_proj_b)
                    .matrix(9, w.in_proj_a)
                    .read(12, input)
                    .step(13)
                    .write(14, qkv)
                    .write(15, z)
                    .write(16, ba)
                    .done(to);
            }
            OpKind::GdnStep { weights: w, qkv, z, ba, rows: row_input, window, state, output } => self
                .call(op, "gdn_step", [c.linear_num_value_heads, rows, 1], gdn_simds(c, t))
                .read(0, qkv)
                .read(1, z)
                .read(2, ba)
                .read(3, row_input)
                .step(4)
                .vector(5, w.conv1d)
                .vector(6, w.a_log)
                .vector(7, w.dt_bias)
                .vector(8, w.norm)
                .update(9, window)
                .update(10, state)
                .write(11, output)
                .done(to),
            OpKind::GdnConv { weights: w, qkv, ba, rows: row_input, window, mixed, gates } => {
                let heads = 2 * c.linear_num_key_heads + c.linear_num_value_heads;
                self.call(op, "gdn_conv", [heads.div_ceil(4), rows, 1], 4)
                    .read(0, qkv)
                    .read(1, ba)
                    .read(2, row_input)
                    .step(3)
                    .vector(4, w.conv1d)
                    .vector(5, w.a_log)
                    .vector(6, w.dt_bias)
                    .read(7, window)
                    .write(8, mixed)
                    .write(9, gates)
                    .done(to);
                self.call(op, "gdn_window", [c.linear_conv_dim().div_ceil(128), self.shape.segments, 1], 4)
                    .read(0, qkv)
                    .read(1, row_input)
                    .input(2, Input::Segments)
                    .step(3)
                    .write(4, window)
                    .done(to);
            }
            OpKind::GdnScan { weights: w, mixed, gates, z, rows: row_input, state, output } => {
                let scanned = self.memory.private(self.model, &self.shape, Private::Scanned);
                let tile = t.scan_simds * (32 / SCAN_LANES) * t.scan_columns;
                let tiles = c.linear_value_head_dim.div_ceil(tile);
                self.call(op, "gdn_scan", [c.linear_num_value_heads, tiles, self.shape.segments], t.scan_simds)
                    .read(0, mixed)
                    .read(1, gates)
                    .read(2, row_input)
                    .input(3, Input::Segments)
                    .step(4)
                    .update(5, state)
                    .bind(6, scanned, Access::Write)
                    .done(to);
                self.call(op, "gdn_gated_norm", [c.linear_num_value_heads.div_ceil(4), rows, 1], 4)
                    .bind(0, scanned, Access::Read)
                    .read(1, z)
                    .vector(2, w.norm)
                    .step(3)
                    .write(4, output)
                    .done(to);
            }
            _ => {}
        }
    }
}
