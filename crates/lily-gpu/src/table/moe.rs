//! Router and experts.

use lily_model::graph::{Op, OpKind};

use super::Table;
use crate::memory::{Arrivals, Private, most_tiles};
use crate::program::{Access, Dispatch};
use crate::route::grouped_tile_rows;

/// Simdgroups that sort (`SORT_SIMDS`).
const SORT_SIMDS: usize = 8;
/// Simdgroups of a matrix tile.
const GEMM_SIMDS: usize = 4;

impl Table<'_> {
    pub(super) fn moe(&self, op: &Op, to: &mut Vec<Dispatch>) {
        let (c, t, rows) = (&self.model.config, self.tuning, self.shape.rows);
        let tile = grouped_tile_rows(rows, c.num_experts_per_tok, c.num_experts);
        let tiles = most_tiles(rows, c.num_experts_per_tok, c.num_experts, tile);
        let wide = tile == 64;
        let private = |which| self.memory.private(self.model, &self.shape, which);
        match op.kind {
            OpKind::Router { weights: w, input, experts, scales } => {
                let gate = self.matrix(w.gate).matvec_tiles(t.router_out, t.router_simds);
                self.call(op, "router", [gate + 1, self.row_tiles(), 1], t.router_simds)
                    .matrix(0, w.gate)
                    .matrix(3, w.shared_expert_gate)
                    .read(6, input)
                    .step(7)
                    .write(8, experts)
                    .write(9, scales)
                    .bind(10, private(Private::RouterLogits), Access::ReadWrite)
                    .bind(11, self.memory.arrivals(Arrivals::Router), Access::ReadWrite)
                    .done(to);
            }
            OpKind::ExpertGateUp { weights: w, input, experts, output } => {
                let routed = self.matrix(w.switch_gate_proj).matvec_tiles(t.expert_out, t.expert_simds);
                let shared = self.matrix(w.shared_gate_proj).matvec_tiles(t.expert_out, t.expert_simds);
                let grid = [routed.max(shared), c.num_experts_per_tok + 1, rows];
                self.call(op, "expert_gate_up", grid, t.expert_simds)
                    .matrix(0, w.switch_gate_proj)
                    .matrix(3, w.switch_up_proj)
                    .matrix(6, w.shared_gate_proj)
                    .matrix(9, w.shared_up_proj)
                    .read(12, input)
                    .read(13, experts)
                    .step(14)
                    .write(15, output)
                    .done(to);
            }
            OpKind::ExpertDownNorm { weights: w, norm, input, experts, scales, residual, normed } => {
                let tiles = self.matrix(w.switch_down_proj).matvec_tiles(t.down_out, t.down_simds);
                self.call(op, "expert_down_norm", [tiles, rows, 1], t.down_simds)
                    .matrix(0, w.switch_down_proj)
                    .matrix(3, w.shared_down_proj)
                    .vector(6, norm)
                    .read(7, input)
                    .read(8, experts)
                    .read(9, scales)
                    .step(10)
                    .update(11, residual)
                    .write(12, normed)
                    .bind(13, self.memory.arrivals(Arrivals::Down), Access::ReadWrite)
                    .done(to);
            }
            OpKind::RouteSort { experts, offsets, order } => {
                let counts = private(Private::SortCounts);
                self.call(op, "route_count", [c.num_experts, 1, 1], SORT_SIMDS)
                    .read(0, experts)
                    .step(1)
                    .bind(2, counts, Access::Write)
                    .done(to);
                let kernel = if wide { "route_place_64" } else { "route_place_32" };
                self.call(op, kernel, [c.num_experts, 1, 1], SORT_SIMDS)
                    .read(0, experts)
                    .bind(1, counts, Access::Read)
                    .step(2)
                    .write(3, offsets)
                    .write(4, order)
                    .bind(5, private(Private::SortTiles), Access::Write)
                    .done(to);
            }
            OpKind::GroupedGateUp { weights: w, input, order, output, .. } => {
                let kernel = if wide { "grouped_gate_up_64" } else { "grouped_gate_up_32" };
                let columns = c.moe_intermediate_size / 32;
                let act = self.memory.buffer(self.plan, &self.shape, output);
                self.call(op, kernel, [columns, tiles, 1], GEMM_SIMDS)
                    .matrix(0, w.switch_gate_proj)
                    .matrix(3, w.switch_up_proj)
                    .read(6, input)
                    .read(7, order)
                    .bind(8, private(Private::SortTiles), Access::Read)
                    .bind(9, act, Access::WritePart)
                    .done(to);
                let columns = c.shared_expert_intermediate_size / 32;
                self.call(op, "shared_gate_up", [columns, rows.div_ceil(64), 1], GEMM_SIMDS)
                    .matrix(0, w.shared_gate_proj)
                    .matrix(3, w.shared_up_proj)
                    .read(6, input)
                    .step(7)
                    .bind(8, act, Access::WritePart)
                    .done(to);
            }
            OpKind::GroupedDown { weights: w, input, order, output, .. } => {
                let columns = c.hidden_size.div_ceil(64);
                let kernel = if wide { "grouped_down_64" } else { "grouped_down_32" };
                let down = self.memory.buffer(self.plan, &self.shape, output);
                self.call(op, kernel, [columns, tiles, 1], GEMM_SIMDS)
                    .matrix(0, w.switch_down_proj)
                    .read(3, input)
                    .read(4, order)
                    .bind(5, private(Private::SortTiles), Access::Read)
                    .bind(6, down, Access::WritePart)
                    .done(to);
                self.call(op, "shared_down", [columns, rows.div_ceil(64), 1], GEMM_SIMDS)
                    .matrix(0, w.shared_down_proj)
                    .read(3, input)
                    .step(4)
                    .bind(5, down, Access::WritePart)
                    .done(to);
            }
            OpKind::Combine { norm, down, scales, residual, normed } => self
                .call(op, "combine", [rows, 1, 1], t.row_simds)
                .read(0, down)
                .read(1, scales)
                .vector(2, norm)
                .step(3)
                .update(4, residual)
                .write(5, normed)
                .done(to),
            _ => {}
        }
    }
}
