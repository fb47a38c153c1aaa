//! What each weight of a synthetic model is drawn from, so that the model is numerically sane and routes near uniformly.
//!
//! Widths: inputs of every projection are RMS-normalized, so a matrix of standard deviation `g / sqrt(inputs)` gives
//! outputs of standard deviation g. The embedding has 1; each of the two sublayers of a layer adds about a quarter, so
//! the residual stream grows to about 2.5 over 40 layers and the token's own embedding stays visible to every router.
//!
//! Routing: a careless draw gives the residual stream a direction common to all tokens, every router projects it to the
//! same few experts, and each token takes those. Its sources, and what is done:
//! - values whose mean is not zero (4-bit values have mean 7.5): every group of every matrix is centred by its bias, so a
//!   constant input gives zero;
//! - SiLU outputs are positive on average, and a DeltaNet mixer averages its values over the sequence and then normalizes
//!   the average up: the same centring keeps `out_proj` from passing their mean on;
//! - router rows of unequal length: the longest win more often (at 8 of 256, 1 % of length is 4 % of load), so they are
//!   all given one length.

use std::collections::HashMap;

use crate::graph::{MixerWeights, Model, WeightId, WeightKind};

/// How a weight is drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Recipe {
    /// A matrix of this standard deviation, every group centred.
    Matrix(f32),
    /// A matrix of this standard deviation whose rows have zero mean and one length.
    EqualRows(f32),
    /// A vector uniform in 1 ± 0.1.
    Gain,
    /// `A_log` = ln(A), A log-uniform in [1, 16).
    ALog,
    /// `dt_bias`: softplus⁻¹ of a time step log-uniform in [0.001, 0.1). With A: a state remembers 1 to 1,000 tokens.
    DtBias,
    /// Taps that grow towards the current token, of random sign, sum of squares about 1.
    Taps,
}

/// The recipe of every weight, in the order of [`Model::weights`].
pub(super) fn recipes(model: &Model) -> Vec<Recipe> {
    let deviations = deviations(model);
    let routers: Vec<WeightId> = model.layers.iter().flat_map(|l| [l.moe.gate, l.moe.shared_expert_gate]).collect();
    model
        .weights
        .iter()
        .enumerate()
        .map(|(index, spec)| {
            let id = WeightId(index as u32);
            match spec.kind {
                WeightKind::Matrix { inputs, .. } => {
                    let deviation = deviations.get(&id).copied().unwrap_or(1.0 / (inputs as f32).sqrt());
                    match routers.contains(&id) {
                        true => Recipe::EqualRows(deviation),
                        false => Recipe::Matrix(deviation),
                    }
                }
                WeightKind::Gain { .. } => Recipe::Gain,
                WeightKind::Vector { .. } if spec.name.ends_with("A_log") => Recipe::ALog,
                WeightKind::Vector { .. } => Recipe::DtBias,
                WeightKind::Conv { .. } => Recipe::Taps,
            }
        })
        .collect()
}

/// Standard deviations of the matrices whose outputs should not have deviation 1.
fn deviations(model: &Model) -> HashMap<WeightId, f32> {
    let c = &model.config;
    let over_root = |gain: f32, inputs: usize| gain / (inputs as f32).sqrt();
    let hidden = c.hidden_size;
    let mut map = HashMap::from([(model.embed_tokens, 1.0), (model.lm_head, over_root(2.0, hidden))]);
    for layer in &model.layers {
        match layer.mixer {
            MixerWeights::Gdn(w) => {
                map.insert(w.in_proj_a, over_root(0.5, hidden));
                // rms(o) * silu(z) has deviation 0.6 for z of deviation 1.
                map.insert(w.out_proj, over_root(0.25 / 0.6, c.linear_value_dim()));
            }
            MixerWeights::Attention(w) => {
                // An average of values has a deviation well below 1, and sigmoid(gate) halves it.
                map.insert(w.o_proj, over_root(1.0, c.attention_dim()));
            }
        }
        let moe = layer.moe;
        map.insert(moe.gate, over_root(1.5, hidden));
        // silu(gate) * up has deviation 0.6; eight weights that sum to 1 shrink the sum to 0.4, the shared gate to 0.5.
        map.insert(moe.switch_down_proj, over_root(0.2 / 0.6 / 0.4, c.moe_intermediate_size));
        map.insert(moe.shared_down_proj, over_root(0.2 / 0.6 / 0.5, c.shared_expert_intermediate_size));
    }
    map
}
