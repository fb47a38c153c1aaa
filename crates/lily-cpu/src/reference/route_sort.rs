//! Rows grouped by expert.

/// Stable counting sort of the `(row, slot)` pairs by expert. `experts` is `[rows * K]`; `offsets` `[experts + 1]` says
/// where each expert's pairs start; `order` `[rows * K]` lists the pairs as `row * K + slot`.
pub fn route_sort(experts: &[u32], offsets: &mut [u32], order: &mut [u32]) {
    offsets.fill(0);
    for &e in experts {
        offsets[e as usize + 1] += 1;
    }
    for e in 1..offsets.len() {
        offsets[e] += offsets[e - 1];
    }
    let mut next = offsets[..offsets.len() - 1].to_vec();
    for (pair, &e) in experts.iter().enumerate() {
        let place = &mut next[e as usize];
        order[*place as usize] = pair as u32;
        *place += 1;
    }
}
