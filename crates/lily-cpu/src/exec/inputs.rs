//! What a step brings: rows with their positions, segments with their slots and pages.

use lily_model::config::ModelConfig;
use lily_model::device::{LogitRows, Step};

use crate::reference::rope_angles;

/// One row of a step.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    pub token: u32,
    /// Index into [`Inputs::segments`].
    pub segment: usize,
    pub position: usize,
}

/// Rows of one sequence.
#[derive(Debug, Clone)]
pub struct SegmentRows {
    pub slot: usize,
    pub first_row: usize,
    pub rows: usize,
    /// Page of each block of keys.
    pub pages: Vec<usize>,
}

/// A validated step, in the form the operations read.
#[derive(Debug, Default)]
pub struct Inputs {
    pub rows: Vec<Row>,
    pub segments: Vec<SegmentRows>,
    pub logit_rows: Vec<usize>,
    /// `[rows, rotary_dim / 2]`.
    pub cos: Vec<f32>,
    pub sin: Vec<f32>,
}

impl Inputs {
    /// Lays out a step that [`crate::validate`] has accepted; `tokens` are its rows' ids.
    pub fn new(step: &Step<'_>, tokens: &[u32], config: &ModelConfig) -> Self {
        let mut inputs = Inputs::default();
        for (index, segment) in step.segments.iter().enumerate() {
            let first_row = inputs.rows.len();
            for i in 0..segment.rows {
                let token = tokens[first_row + i];
                inputs.rows.push(Row { token, segment: index, position: segment.start + i });
            }
            inputs.segments.push(SegmentRows {
                slot: segment.slot.0 as usize,
                first_row,
                rows: segment.rows,
                pages: segment.pages.iter().map(|p| p.0 as usize).collect(),
            });
        }
        inputs.logit_rows = match step.logit_rows {
            LogitRows::None => Vec::new(),
            LogitRows::Last => inputs.segments.iter().map(|s| s.first_row + s.rows - 1).collect(),
            LogitRows::All => (0..inputs.rows.len()).collect(),
        };
        let half = config.rotary_dim / 2;
        inputs.cos = vec![0.0; inputs.rows.len() * half];
        inputs.sin = vec![0.0; inputs.rows.len() * half];
        let angles = inputs.cos.chunks_exact_mut(half).zip(inputs.sin.chunks_exact_mut(half));
        for (row, (cos, sin)) in inputs.rows.iter().zip(angles) {
            rope_angles(row.position, config.rotary_dim, config.rope_theta, cos, sin);
        }
        inputs
    }
}
