//! The most likely token of a row of logits.

/// Index of the largest value; ties go to the lowest index, NaN never wins. 0 when there is nothing to choose.
pub fn argmax(logits: &[f32]) -> usize {
    let mut best = 0;
    let mut largest = f32::NEG_INFINITY;
    for (index, &value) in logits.iter().enumerate() {
        if value > largest {
            (best, largest) = (index, value);
        }
    }
    best
}
