//! The shape of a step: what grids depend on. Shapes are rounded up to few, so that programs are built once and replayed;
//! kernels leave what lies past the true counts alone.

use lily_model::device::Step;
use lily_model::graph::{Phase, Plan};

use crate::route::MATVEC_ROWS;

/// Upper bounds of the counts of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StepShape {
    /// Form of the operations.
    pub phase: Phase,
    /// Rows.
    pub rows: usize,
    /// Rows that yield logits; 0 where none does.
    pub logit_rows: usize,
    /// Most blocks of keys that a row attends to.
    pub blocks: usize,
    /// Entries of all block tables.
    pub table: usize,
    /// Segments.
    pub segments: usize,
    /// Rows of the longest segment.
    pub segment_rows: usize,
    /// Which of the two sets of inputs and outputs it uses.
    pub set: usize,
}

impl StepShape {
    /// The shape of a step, rounded up. A prefill step of more rows than a matvec serves takes whole matrix tiles.
    pub fn of(step: &Step<'_>, set: usize) -> Self {
        let rows = step.rows();
        let logit_rows = step.logit_row_count();
        let blocks =
            step.segments.iter().map(|s| (s.start + s.rows).div_ceil(Plan::PAGE_TOKENS)).max().unwrap_or(1).max(1);
        let table: usize = step.segments.iter().map(|s| s.pages.len()).sum();
        let longest = step.segments.iter().map(|s| s.rows).max().unwrap_or(0);
        match step.phase {
            Phase::Decode => StepShape {
                phase: step.phase,
                rows,
                logit_rows: if logit_rows == 0 { 0 } else { rows },
                blocks: blocks.next_power_of_two(),
                table: table.next_power_of_two(),
                segments: rows,
                segment_rows: 1,
                set,
            },
            Phase::Prefill => StepShape {
                phase: step.phase,
                rows: round_rows(rows),
                logit_rows: if logit_rows == 0 { 0 } else { logit_rows.next_power_of_two() },
                // Prefill grids do not depend on the context.
                blocks: 1,
                table: table.next_power_of_two(),
                segments: step.segments.len().next_power_of_two(),
                segment_rows: round_rows(longest),
                set,
            },
        }
    }
}

/// Rows of a prefill shape: exact where matvecs run, else whole tiles of 64, coarser from 1,024 on.
fn round_rows(rows: usize) -> usize {
    match rows {
        0..=MATVEC_ROWS => rows,
        9..=1024 => rows.next_multiple_of(64),
        _ => rows.next_multiple_of(256),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_rows_keep_their_number_and_more_take_whole_tiles() {
        assert_eq!([8, 9, 64, 65, 1024, 1025].map(round_rows), [8, 64, 64, 128, 1024, 1280]);
    }
}
