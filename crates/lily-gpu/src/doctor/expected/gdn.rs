//! Gated DeltaNet. States are kept `[slot][value head][value dim][key dim]`, windows as rings of the last four inputs,
//! `[slot][position modulo 4][channels]`.

use lily_cpu::reference::{gated_norm, gdn_conv_token, gdn_delta_step, gdn_gates, l2_normalize};
use lily_model::graph::{GdnWeights, OpKind};

use super::super::trial::{Part, Trial, Values, tolerance};
use super::{Row, Source, interleaved};

/// Entries of a window's ring.
const RING: usize = 4;

impl Source<'_> {
    pub(super) fn gdn(&mut self, kind: &OpKind) -> Trial {
        let c = self.config().clone();
        let (channels, value_dim, heads) = (c.linear_conv_dim(), c.linear_value_dim(), c.linear_num_value_heads);
        let rows = self.rows();
        match *kind {
            OpKind::GdnInProj { weights: w, input, qkv, z, ba } => {
                let x = self.activations(rows * c.hidden_size);
                let form = self.dense_form();
                let of = |id| self.project(id, &x, c.hidden_size, form);
                let (q, g) = (of(w.in_proj_qkv), of(w.in_proj_z));
                let both = interleaved(&of(w.in_proj_b), heads, &of(w.in_proj_a), heads);
                let allowed = form.tolerance();
                Trial::default()
                    .input(input, Values::Bf16(x))
                    .output("qkv", qkv, channels, allowed, Values::F32(q))
                    .output("z", z, value_dim, allowed, Values::F32(g))
                    .output("ba", ba, 2 * heads, allowed, both)
            }
            OpKind::GdnStep { weights: w, qkv, z, ba, window, state, output, .. } => {
                let inputs = self.floats(rows * channels);
                let (gates_in, zs) = (self.floats(rows * 2 * heads), self.floats(rows * value_dim));
                let places = self.places();
                let (before, ring) = self.rings(&places, channels);
                let mut states = self.states(&places);
                let mixed = self.mixed(&w, &places, &inputs, &ring);
                let gates = self.gates(&w, &gates_in);
                let mut out = vec![0f32; rows * value_dim];
                let mut written = Vec::new();
                for (index, row) in places.iter().enumerate() {
                    let part = |width: usize| index * width..(index + 1) * width;
                    let (m, g) = (&mixed[part(channels)], &gates[part(2 * heads)]);
                    self.rule(&mut states[index].1, m, g, &mut out[part(value_dim)]);
                    let at = (row.slot * RING + row.position % RING) * channels;
                    written.push(Part::new(at, Values::F32(inputs[part(channels)].to_vec())));
                }
                let result = self.gated(&w, &out, &zs);
                Trial::default()
                    .input(qkv, Values::F32(inputs))
                    .input(z, Values::F32(zs))
                    .input(ba, Values::F32(gates_in))
                    .inputs(window, before)
                    .inputs(state, self.state_parts(&places, &self.initial(&states)))
                    .output_parts("window", window, channels, tolerance::NONE, ordered(written))
                    .output_parts(
                        "state",
                        state,
                        c.linear_key_head_dim,
                        tolerance::STEP,
                        self.final_states(&places, &states),
                    )
                    .output("output", output, value_dim, tolerance::BF16, Values::Bf16(result))
            }
            OpKind::GdnConv { weights: w, qkv, ba, window, mixed, gates, .. } => {
                let inputs = self.floats(rows * channels);
                let gates_in = self.floats(rows * 2 * heads);
                let places = self.places();
                let (before, ring) = self.rings(&places, channels);
                let result = self.mixed(&w, &places, &inputs, &ring);
                let both = self.gates(&w, &gates_in);
                let mut written = Vec::new();
                for (index, row) in places.iter().enumerate() {
                    let end = row.first + self.step.segments[row.segment].rows;
                    if index + RING >= end {
                        let at = (row.slot * RING + row.position % RING) * channels;
                        let values = inputs[index * channels..(index + 1) * channels].to_vec();
                        written.push(Part::new(at, Values::F32(values)));
                    }
                }
                Trial::default()
                    .input(qkv, Values::F32(inputs))
                    .input(ba, Values::F32(gates_in))
                    .inputs(window, before)
                    .output("mixed", mixed, c.linear_key_head_dim, tolerance::SUM, Values::F32(result))
                    .output("gates", gates, 2 * heads, tolerance::SUM, Values::F32(both))
                    .output_parts("window", window, channels, tolerance::NONE, ordered(written))
            }
            OpKind::GdnScan { weights: w, mixed, gates, z, state, output, .. } => {
                let places = self.places();
                let mut m = self.floats(rows * channels);
                self.normalize(&mut m);
                let zs = self.floats(rows * value_dim);
                // Decays near 1, so that the state of many rows ago still counts.
                let gate = |i: usize, u: f32| if i % (2 * heads) < heads { 1.0 - 0.2 * u * u } else { u };
                let g: Vec<f32> = (0..rows * 2 * heads).map(|i| gate(i, self.random.unit())).collect();
                let mut states = self.states(&places);
                let mut out = vec![0f32; rows * value_dim];
                for (index, row) in places.iter().enumerate() {
                    let part = |width: usize| index * width..(index + 1) * width;
                    let (m, g) = (&m[part(channels)], &g[part(2 * heads)]);
                    self.rule(&mut states[row.segment].1, m, g, &mut out[part(value_dim)]);
                }
                let result = self.gated(&w, &out, &zs);
                Trial::default()
                    .input(mixed, Values::F32(m))
                    .input(gates, Values::F32(g))
                    .input(z, Values::F32(zs))
                    .inputs(state, self.state_parts(&places, &self.initial(&states)))
                    .output_parts(
                        "state",
                        state,
                        c.linear_key_head_dim,
                        tolerance::RECURRENCE,
                        self.final_states(&places, &states),
                    )
                    .output("output", output, value_dim, tolerance::BF16 + tolerance::RECURRENCE, Values::Bf16(result))
            }
            _ => Trial::default(),
        }
    }

    /// What each segment's window holds before the step, as parts of the buffer, and as `[segment][3]` inputs, the newest
    /// first. Before position 0 stand zeros.
    fn rings(&mut self, places: &[Row], channels: usize) -> (Vec<Part>, Vec<[Vec<f32>; RING - 1]>) {
        let (mut parts, mut rings) = (Vec::new(), Vec::new());
        for first in places.iter().enumerate().filter(|(index, row)| *index == row.first).map(|(_, row)| row) {
            let ring = [1, 2, 3].map(|back| {
                let values = if first.position >= back { self.floats(channels) } else { vec![0f32; channels] };
                let at = (first.slot * RING + (first.position + RING - back) % RING) * channels;
                parts.push(Part::new(at, Values::F32(values.clone())));
                values
            });
            rings.push(ring);
        }
        (parts, rings)
    }

    /// Convolution, SiLU, l2 norms: `[rows][q | k | v]`.
    fn mixed(&self, w: &GdnWeights, places: &[Row], inputs: &[f32], rings: &[[Vec<f32>; RING - 1]]) -> Vec<f32> {
        let channels = self.config().linear_conv_dim();
        let by_channel = self.vector(w.conv1d);
        let taps: Vec<f32> = (0..RING)
            .flat_map(|t| (0..channels).map(move |ch| (ch, t)))
            .map(|(ch, t)| by_channel[ch * RING + t])
            .collect();
        let mut mixed = vec![0f32; inputs.len()];
        for (index, row) in places.iter().enumerate() {
            let back = |n: usize| -> &[f32] {
                let into = index - row.first;
                match n.checked_sub(into + 1) {
                    None => &inputs[(index - n) * channels..(index - n + 1) * channels],
                    Some(older) => &rings[row.segment][older],
                }
            };
            let out = &mut mixed[index * channels..(index + 1) * channels];
            gdn_conv_token([back(3), back(2), back(1), back(0)], &taps, out);
        }
        self.normalize(&mut mixed);
        mixed
    }

    /// l2 norms of the query and key heads of every row; queries also times `key_dim^-1/2`.
    fn normalize(&self, mixed: &mut [f32]) {
        let c = self.config();
        for row in mixed.chunks_exact_mut(c.linear_conv_dim()) {
            let (q, rest) = row.split_at_mut(c.linear_key_dim());
            for head in q.chunks_exact_mut(c.linear_key_head_dim) {
                l2_normalize(head, (c.linear_key_head_dim as f32).powf(-0.5));
            }
            for head in rest[..c.linear_key_dim()].chunks_exact_mut(c.linear_key_head_dim) {
                l2_normalize(head, 1.0);
            }
        }
    }

    /// `[rows][decay | beta]` of `[rows][b | a]`.
    fn gates(&self, w: &GdnWeights, ba: &[f32]) -> Vec<f32> {
        let heads = self.config().linear_num_value_heads;
        let (a_log, dt_bias) = (self.vector(w.a_log), self.vector(w.dt_bias));
        ba.chunks_exact(2 * heads)
            .flat_map(|row| {
                let of: Vec<(f32, f32)> =
                    (0..heads).map(|h| gdn_gates(row[heads + h], row[h], a_log[h], dt_bias[h])).collect();
                of.iter().map(|g| g.0).chain(of.iter().map(|g| g.1)).collect::<Vec<_>>()
            })
            .collect()
    }

    /// A random state for each segment: before the step, and (for now the same) after it. Each `[heads][key][value]`.
    fn states(&mut self, places: &[Row]) -> Vec<(Vec<f32>, Vec<f32>)> {
        let c = self.config();
        let len = c.linear_value_dim() * c.linear_key_head_dim;
        let segments = places.last().map_or(0, |row| row.segment + 1);
        (0..segments)
            .map(|_| {
                let state = self.floats(len);
                (state.clone(), state)
            })
            .collect()
    }

    fn initial(&self, states: &[(Vec<f32>, Vec<f32>)]) -> Vec<Vec<f32>> {
        states.iter().map(|s| s.0.clone()).collect()
    }

    fn final_states(&self, places: &[Row], states: &[(Vec<f32>, Vec<f32>)]) -> Vec<Part> {
        ordered(self.state_parts(places, &states.iter().map(|s| s.1.clone()).collect::<Vec<_>>()))
    }

    /// States in the device's layout, one part a segment.
    fn state_parts(&self, places: &[Row], states: &[Vec<f32>]) -> Vec<Part> {
        let c = self.config();
        let (keys, dims) = (c.linear_key_head_dim, c.linear_value_head_dim);
        let mut parts = Vec::new();
        for (segment, state) in states.iter().enumerate() {
            let slot = places.iter().find(|row| row.segment == segment).map_or(0, |row| row.slot);
            let mut values = Vec::with_capacity(state.len());
            for head in state.chunks_exact(keys * dims) {
                values.extend((0..dims).flat_map(|v| (0..keys).map(move |k| (v, k))).map(|(v, k)| head[k * dims + v]));
            }
            parts.push(Part::new(slot * state.len(), Values::F32(values)));
        }
        parts
    }

    /// The delta rule of one row, all heads.
    fn rule(&self, state: &mut [f32], mixed: &[f32], gates: &[f32], out: &mut [f32]) {
        let c = self.config();
        let (keys, dims, heads) = (c.linear_key_head_dim, c.linear_value_head_dim, c.linear_num_value_heads);
        for head in 0..heads {
            let key_head = head / (heads / c.linear_num_key_heads);
            let q = &mixed[key_head * keys..(key_head + 1) * keys];
            let k = &mixed[c.linear_key_dim() + key_head * keys..][..keys];
            let v = &mixed[2 * c.linear_key_dim() + head * dims..][..dims];
            let state = &mut state[head * keys * dims..(head + 1) * keys * dims];
            gdn_delta_step(state, q, k, v, gates[head], gates[heads + head], &mut out[head * dims..(head + 1) * dims]);
        }
    }

    fn gated(&self, w: &GdnWeights, o: &[f32], z: &[f32]) -> Vec<f32> {
        let (norm, eps) = (self.vector(w.norm), self.config().rms_norm_eps);
        let mut out = vec![0f32; o.len()];
        let heads = o.chunks_exact(norm.len()).zip(z.chunks_exact(norm.len()));
        for ((o, z), out) in heads.zip(out.chunks_exact_mut(norm.len())) {
            gated_norm(o, &norm, z, eps, out);
        }
        out
    }
}

/// Parts by their place.
fn ordered(mut parts: Vec<Part>) -> Vec<Part> {
    parts.sort_by_key(|part| part.at);
    parts
}
