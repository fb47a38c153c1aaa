//! How work is divided over threads: numbers a driver may choose for its hardware. They change speed, never results that
//! a user sees (only the order of sums).

/// Thread organisation, compiled into the kernels as constants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tuning {
    /// Rows of a step that one pass over a weight serves in decode matvecs.
    pub row_tile: usize,
    /// Outputs a lane group has in flight in the in-projections.
    pub matvec_out: usize,
    /// Simdgroups of a threadgroup in the in-projections.
    pub matvec_simds: usize,
    /// Outputs a lane group has in flight in the output projections.
    pub out_proj_out: usize,
    /// Simdgroups of a threadgroup in the output projections.
    pub out_proj_simds: usize,
    /// Outputs a lane group has in flight in the router.
    pub router_out: usize,
    /// Simdgroups of a threadgroup in the router.
    pub router_simds: usize,
    /// Pairs of gate and up outputs a lane group has in flight.
    pub expert_out: usize,
    /// Simdgroups of a threadgroup in gate and up.
    pub expert_simds: usize,
    /// Outputs a lane group has in flight in the experts' down projection.
    pub down_out: usize,
    /// Simdgroups of a threadgroup in the down projection.
    pub down_simds: usize,
    /// Outputs a lane group has in flight in the head.
    pub lm_head_out: usize,
    /// Simdgroups of a threadgroup in the head.
    pub lm_head_simds: usize,
    /// Threadgroups that look for the largest of one row of logits.
    pub argmax_parts: usize,
    /// Simdgroups of a threadgroup in that search.
    pub argmax_simds: usize,
    /// Simdgroups of a threadgroup that handles one row elementwise (embedding, norms).
    pub row_simds: usize,
    /// Most simdgroups of a threadgroup in the decode step of a DeltaNet head.
    pub gdn_simds: usize,
    /// Rows of the state that a simdgroup has in flight.
    pub gdn_ahead: usize,
    /// Columns of the state that a lane group carries in the prefill scan.
    pub scan_columns: usize,
    /// Simdgroups of a threadgroup in the prefill scan.
    pub scan_simds: usize,
    /// Simdgroups of a threadgroup in decode attention.
    pub attn_simds: usize,
    /// Key or value rows that a lane has in flight in decode attention.
    pub attn_ahead: usize,
    /// Simdgroups of a threadgroup that merges blocks.
    pub combine_simds: usize,
    /// Simdgroups of a threadgroup in prefill attention.
    pub flash_simds: usize,
}

impl Tuning {
    /// For Apple GPUs: small threadgroups, at least four 16-byte loads a lane in flight.
    pub const APPLE: Tuning = Tuning {
        row_tile: 4,
        matvec_out: 4,
        matvec_simds: 2,
        out_proj_out: 4,
        out_proj_simds: 2,
        router_out: 2,
        router_simds: 2,
        expert_out: 2,
        expert_simds: 2,
        down_out: 4,
        down_simds: 2,
        lm_head_out: 4,
        lm_head_simds: 2,
        argmax_parts: 64,
        argmax_simds: 8,
        row_simds: 8,
        gdn_simds: 16,
        gdn_ahead: 4,
        scan_columns: 2,
        scan_simds: 4,
        attn_simds: 8,
        attn_ahead: 4,
        combine_simds: 8,
        flash_simds: 8,
    };
}
