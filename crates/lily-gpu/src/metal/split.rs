//! Where a step is cut into command buffers. macOS ends a command buffer that holds the screen for about half a second and
//! cannot interrupt a dispatch, so a long prefill step goes in several; a decode step goes in one, because every border
//! costs time and many short buffers keep the GPU's clock down. Arithmetic only.

use std::ops::Range;

use crate::program::{Dispatch, Program};

/// Nanoseconds that a command buffer should take at most.
pub const TARGET_NS: u64 = 100_000_000;

/// Memory bandwidth of the slowest GPU considered, bytes a nanosecond.
const SLOWEST_BYTES_PER_NS: u64 = 50;

/// Nanoseconds a thread of a matrix product takes on the slowest GPU, all its threads busy: 64 x 64 outputs over 2,048
/// inputs by 128 threads at 2 TFLOP/s.
const SLOWEST_NS_PER_THREAD: u64 = 66;

/// Nanoseconds a dispatch takes at most on the slowest GPU, as far as its size tells. Too much for most kernels: it
/// serves until a step of the same shape has been measured.
pub fn first_guess(dispatch: &Dispatch) -> u64 {
    let bytes = dispatch.bindings.iter().fold(0u64, |sum, binding| sum.saturating_add(binding.span.bytes));
    let groups = dispatch.grid.iter().fold(1u64, |product, &n| product.saturating_mul(u64::from(n)));
    let threads = groups.saturating_mul(u64::from(dispatch.threads));
    (bytes / SLOWEST_BYTES_PER_NS).saturating_add(threads.saturating_mul(SLOWEST_NS_PER_THREAD))
}

/// The first guess for each stage of a program.
pub fn stage_guesses(program: &Program) -> Vec<u64> {
    let guess =
        |stage: &Vec<usize>| stage.iter().fold(0u64, |sum, &i| sum.saturating_add(first_guess(&program.dispatches[i])));
    program.stages.iter().map(guess).collect()
}

/// Cuts stages into command buffers of at most `target` nanoseconds each, by `costs` a stage. `measured` is what the whole
/// step took when it last ran, nanoseconds: then costs only say how that is shared out, and a quarter is added because a
/// longer context takes longer. A stage that takes longer than `target` alone has a command buffer of its own.
pub fn cut(costs: &[u64], measured: Option<u64>, target: u64) -> Vec<Range<usize>> {
    let guessed = costs.iter().map(|&c| c as f64).sum::<f64>().max(1.0);
    let total = measured.map_or(guessed, |ns| ns as f64 * 1.25);
    if costs.is_empty() {
        return Vec::new();
    }
    if total <= target as f64 {
        return std::iter::once(0..costs.len()).collect();
    }
    let mut cuts = Vec::new();
    let (mut start, mut sum) = (0, 0.0);
    for (stage, &cost) in costs.iter().enumerate() {
        let ns = cost as f64 / guessed * total;
        if stage > start && sum + ns > target as f64 {
            cuts.push(start..stage);
            (start, sum) = (stage, 0.0);
        }
        sum += ns;
    }
    cuts.push(start..costs.len());
    cuts
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::program::{Access, Binding, BufferId, KernelId, Span};

    fn dispatch(grid: [u32; 3], threads: u32, bytes: u64) -> Dispatch {
        let span = Span { buffer: BufferId(0), offset: 0, bytes };
        Dispatch {
            op: "test",
            layer: None,
            kernel: KernelId { library: 0, kernel: 0 },
            grid,
            threads,
            bindings: vec![Binding { index: 0, span, access: Access::ReadWrite }],
        }
    }

    #[test]
    fn a_step_of_just_the_target_is_one_command_buffer_and_one_above_it_is_two() {
        assert_eq!(cut(&[40, 60], None, 100), vec![0..2]);
        assert_eq!(cut(&[41, 60], None, 100), vec![0..1, 1..2]);
    }

    #[test]
    fn a_measured_step_is_cut_by_its_time_and_not_by_the_guess() {
        let guesses = [500; 8];
        assert_eq!(cut(&guesses, None, 1000).len(), 4);
        assert_eq!(cut(&guesses, Some(800), 1000), vec![0..8]);
        assert_eq!(cut(&guesses, Some(801), 1000).len(), 2);
    }

    #[test]
    fn a_stage_longer_than_the_target_stands_alone() {
        assert_eq!(cut(&[10, 900, 10, 10], None, 100), vec![0..1, 1..2, 2..4]);
    }

    #[test]
    fn a_matrix_product_of_4096_rows_is_guessed_no_faster_than_the_slowest_gpu_computes_it() {
        // 2,048 inputs, 12,352 outputs, tiles of 64 x 64 with 128 threads, at 2 TFLOP/s.
        let ns = 2 * 2048 * 12_352 * 4096 / 2000;
        let guess = first_guess(&dispatch([193, 64, 1], 128, 16 << 20));
        assert!(guess >= ns && guess < 2 * ns, "{guess} for {ns}");
    }

    #[test]
    fn a_guess_past_all_numbers_saturates() {
        assert_eq!(first_guess(&dispatch([u32::MAX; 3], 1024, 0)), u64::MAX);
    }

    proptest! {
        #[test]
        fn cuts_cover_every_stage_once_in_order_within_the_target(
            costs in prop::collection::vec(1u64..5000, 1..80),
            measured in prop::option::of(1u64..500_000),
        ) {
            let target = 10_000;
            let cuts = cut(&costs, measured, target);
            let mut at = 0;
            for range in &cuts {
                prop_assert!(range.start == at && range.end > at);
                at = range.end;
            }
            prop_assert_eq!(at, costs.len());
            let guessed: u64 = costs.iter().sum();
            let scale = measured.map_or(1.0, |ns| ns as f64 * 1.25 / guessed as f64);
            for range in cuts.iter().filter(|r| r.len() > 1) {
                let ns = costs[range.clone()].iter().sum::<u64>() as f64 * scale;
                prop_assert!(ns <= target as f64 * 1.000_001, "{ns}");
            }
        }
    }
}
