//! Where a prompt gets snapshots. A recurrent state cannot be rewound, so a later prompt resumes only where one was kept:
//! where the caller says prompts branch, where this prompt leaves an earlier one, near its end, and at some places between.

/// A snapshot that saves fewer tokens than this over the one before it is not worth its memory.
pub(crate) const MIN_GAIN: usize = 32;
/// Distance of snapshots that nothing but the prompt's length asks for.
const SPACING: usize = 4096;

/// What is known about a prompt before it is read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PromptShape<'a> {
    /// Tokens of the prompt.
    pub len: usize,
    /// Tokens resumed from the cache.
    pub resumed: usize,
    /// Tokens it has in common with an earlier prompt or answer.
    pub common: usize,
    /// The caller's branch points.
    pub branch_points: &'a [usize],
}

/// Positions, ascending, at which a snapshot is to be taken while the prompt is read: each has absorbed so many tokens,
/// more than `resumed` and fewer than `len` (the last token must be computed to know what follows it).
pub(crate) fn snapshot_positions(shape: PromptShape<'_>) -> Vec<usize> {
    let inside = |p: &usize| *p > shape.resumed && *p < shape.len;
    let mut asked: Vec<usize> = shape.branch_points.iter().copied().filter(inside).collect();
    asked.sort_unstable();
    asked.dedup();
    let mut chosen = Vec::new();
    // The first (system and tools) and the last two (this turn and the one before it, should it be edited); those
    // between only as far apart as a long prompt's own.
    let tail = asked.len().saturating_sub(2);
    for (index, &p) in asked.iter().enumerate() {
        let last = chosen.last().copied().unwrap_or(shape.resumed);
        if index == 0 || index >= tail || p - last >= SPACING {
            chosen.push(p);
        }
    }
    let mut add = |p: usize, apart: usize| {
        let near = chosen.iter().any(|&c| c.abs_diff(p) < apart) || p.abs_diff(shape.resumed) < apart;
        if inside(&p) && !near {
            chosen.push(p);
        }
    };
    add(shape.common, MIN_GAIN);
    add(shape.len - 1, MIN_GAIN);
    // At most four of these, so that one long prompt does not push everything else out.
    let spacing = SPACING.max(shape.len.div_ceil(4));
    for p in (1..).map(|i| i * spacing).take_while(|&p| p < shape.len) {
        add(p, SPACING / 2);
    }
    chosen.sort_unstable();
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn positions(len: usize, resumed: usize, common: usize, branch_points: &[usize]) -> Vec<usize> {
        snapshot_positions(PromptShape { len, resumed, common, branch_points })
    }

    #[test]
    fn a_plain_prompt_is_kept_where_it_leaves_another_and_at_its_end() {
        assert_eq!(positions(500, 0, 0, &[]), [499]);
        assert_eq!(positions(500, 0, 300, &[]), [300, 499]);
        assert_eq!(positions(500, 299, 300, &[]), [499]);
        assert_eq!(positions(500, 0, 500, &[]), [499]);
        assert_eq!(positions(20, 0, 0, &[]), [0usize; 0]);
        assert_eq!(positions(1, 0, 0, &[]), [0usize; 0]);
    }

    #[test]
    fn the_callers_branch_points_come_first_and_make_the_end_unneeded() {
        assert_eq!(positions(1000, 0, 0, &[990, 200]), [200, 990]);
        assert_eq!(positions(1000, 200, 210, &[200, 990, 1000, 4000]), [990]);
        let turns: Vec<usize> = (1..=10).map(|i| i * 100).collect();
        assert_eq!(positions(1005, 0, 0, &turns), [100, 900, 1000]);
    }

    #[test]
    fn a_long_prompt_is_kept_at_a_few_places_between() {
        assert_eq!(positions(30_000, 0, 0, &[]), [7500, 15000, 22500, 29999]);
        assert_eq!(positions(9_000, 0, 0, &[2000, 8990]), [2000, 4096, 8990]);
    }
}
