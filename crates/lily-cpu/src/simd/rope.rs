//! Norm and rotation of one attention head on lanes.

use super::norm::{scale_by, sum_of_squares};
use super::per_isa;

per_isa! {
    /// `out = rope(rms(head, gain))`: see [`crate::reference::rope_norm`].
    pub fn rope_norm<V>(head: &[f32], gain: &[f32], eps: f32, cos: &[f32], sin: &[f32], out: &mut [f32]) {
        let factor = 1.0 / (sum_of_squares::<V>(head) / head.len() as f32 + eps).sqrt();
        scale_by::<V>(head, factor, gain, out);
        let half = cos.len();
        for i in 0..half {
            let (a, b) = (out[i], out[i + half]);
            out[i] = a.mul_add(cos[i], -(b * sin[i]));
            out[i + half] = b.mul_add(cos[i], a * sin[i]);
        }
    }
}
