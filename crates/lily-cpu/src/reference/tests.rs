//! Properties of the reference that no other test would notice.

use super::*;

#[test]
fn routing_takes_the_largest_and_the_lowest_id_of_equals() {
    let logits = [1.0, 3.0, 2.0, 3.0, -1.0, 2.0];
    let (mut experts, mut scales) = ([0u32; 4], [0f32; 5]);
    route(&logits, 0.0, &mut experts, &mut scales);
    assert_eq!(experts, [1, 3, 2, 5]);
    assert!((scales[..4].iter().sum::<f32>() - 1.0).abs() < 1e-6);
    assert_eq!(scales[0], scales[1]);
    assert!((scales[2] / scales[0] - (-1f32).exp()).abs() < 1e-6);
    assert_eq!(scales[4], 0.5);
}

#[test]
fn routing_to_all_experts_and_to_one_works() {
    let logits = [0.5, 0.5, 0.5];
    let (mut experts, mut scales) = ([9u32; 3], [0f32; 4]);
    route(&logits, 1e9, &mut experts, &mut scales);
    assert_eq!(experts, [0, 1, 2]);
    assert_eq!(scales[3], 1.0);
    let (mut experts, mut scales) = ([9u32; 1], [0f32; 2]);
    route(&[-1.0, -2.0, 7.0], -1e9, &mut experts, &mut scales);
    assert_eq!((experts, scales), ([2], [1.0, 0.0]));
}

#[test]
fn sorting_by_expert_is_stable_and_leaves_empty_experts_empty() {
    // Three rows of two slots.
    let experts = [3, 1, 1, 3, 3, 0];
    let (mut offsets, mut order) = ([0u32; 6], [0u32; 6]);
    route_sort(&experts, &mut offsets, &mut order);
    assert_eq!(offsets, [0, 1, 3, 3, 6, 6]);
    assert_eq!(order, [5, 1, 2, 0, 3, 4]);
}

#[test]
fn gates_stay_finite_at_the_ends() {
    for a in [-1e4, -50.0, 0.0, 50.0, 1e4] {
        let (decay, beta) = gdn_gates(a, a, 2.0, 0.5);
        assert!((0.0..=1.0).contains(&decay) && (0.0..=1.0).contains(&beta), "{a}: {decay} {beta}");
    }
    let (decay, _) = gdn_gates(0.0, 0.0, 0.0, 0.0);
    assert!((decay - 0.5).abs() < 1e-6);
}
