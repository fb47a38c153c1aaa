//! Gated attention, and the output projections of both mixers. A page of a layer's cache is
//! `[KV head][keys, values][256 tokens][head_dim]`.

use lily_cpu::reference::{rope_angles, rope_norm, sigmoid};
use lily_model::graph::{AttentionWeights, OpKind, Plan};

use super::super::trial::{Part, Trial, Values, tolerance};
use super::{Row, Source, WeightForm, interleaved, rounded, sum};

const PAGE: usize = Plan::PAGE_TOKENS;

/// What is known of a layer's cache: the whole pool, 0 where nothing was stored.
struct Cache {
    values: Vec<f32>,
    kv_heads: usize,
    head_dim: usize,
}

/// Unnormalized attention over some keys.
struct Partial {
    sum: Vec<f32>,
    max: f32,
    weight: f32,
}

impl Cache {
    /// First element of a token's key (0) or value (1).
    fn at(&self, page: usize, head: usize, which: usize, token: usize) -> usize {
        (((page * self.kv_heads + head) * 2 + which) * PAGE + token) * self.head_dim
    }

    fn row(&self, pages: &[u32], head: usize, which: usize, position: usize) -> &[f32] {
        let at = self.at(pages[position / PAGE] as usize, head, which, position % PAGE);
        &self.values[at..at + self.head_dim]
    }

    /// Attention of one query over the keys of some positions: scores in f64, scale `head_dim^-1/2`.
    fn attend(&self, pages: &[u32], head: usize, query: &[f32], positions: std::ops::Range<usize>) -> Partial {
        let scale = (self.head_dim as f64).powf(-0.5);
        let dot = |key: &[f32]| query.iter().zip(key).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum::<f64>();
        let scores: Vec<f64> = positions.clone().map(|p| dot(self.row(pages, head, 0, p)) * scale).collect();
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let mut sum = vec![0f64; self.head_dim];
        let mut weight = 0f64;
        for (position, score) in positions.zip(scores) {
            let p = (score - max).exp();
            weight += p;
            for (sum, v) in sum.iter_mut().zip(self.row(pages, head, 1, position)) {
                *sum += p * f64::from(*v);
            }
        }
        Partial { sum: sum.into_iter().map(|v| v as f32).collect(), max: max as f32, weight: weight as f32 }
    }
}

impl Source<'_> {
    pub(super) fn attention(&mut self, kind: &OpKind) -> Trial {
        let c = self.config().clone();
        let (hidden, dim, rows) = (c.hidden_size, c.head_dim, self.rows());
        let (heads, q_dim, kv_dim) = (c.num_attention_heads, c.attention_dim(), c.kv_dim());
        let group = heads / c.num_key_value_heads;
        let places = self.places();
        match *kind {
            OpKind::AttnInProj { weights: w, input, qg, kv } => {
                let x = self.activations(rows * hidden);
                let form = self.dense_form();
                let of = |id| self.project(id, &x, hidden, form);
                let (q, both) = (of(w.q_proj), interleaved(&of(w.k_proj), kv_dim, &of(w.v_proj), kv_dim));
                Trial::default()
                    .input(input, Values::Bf16(x))
                    .output("qg", qg, 2 * q_dim, form.tolerance(), Values::F32(q))
                    .output("kv", kv, 2 * kv_dim, form.tolerance(), both)
            }
            OpKind::QkNormRopeStore { weights: w, qg, kv, cache, q, .. } => {
                let (qgs, kvs) = (self.floats(rows * 2 * q_dim), self.floats(rows * 2 * kv_dim));
                let queries = self.queries(&w, &places, &qgs);
                // [KV head][row][query head of it][head_dim]
                let mut ordered = Vec::with_capacity(queries.len());
                for kv_head in 0..c.num_key_value_heads {
                    for row in queries.chunks_exact(q_dim) {
                        ordered.extend_from_slice(&row[kv_head * group * dim..(kv_head + 1) * group * dim]);
                    }
                }
                let stored = self.stored(&w, &places, &kvs);
                Trial::default()
                    .input(qg, Values::F32(qgs))
                    .input(kv, Values::F32(kvs))
                    .output_parts("cache", cache, dim, tolerance::BF16, stored)
                    .output("q", q, dim, tolerance::BF16, Values::Bf16(ordered))
            }
            OpKind::AttnDecode { weights: w, qg, kv, cache, partials, .. } => {
                let (qgs, kvs) = (self.floats(rows * 2 * q_dim), self.floats(rows * 2 * kv_dim));
                let (before, mut all) = self.cache(|row| row.position);
                let stored = self.stored(&w, &places, &kvs);
                for part in &stored {
                    if let Values::Bf16(values) = &part.values {
                        for (to, from) in all.values[part.at..].iter_mut().zip(values) {
                            *to = rounded(*from);
                        }
                    }
                }
                let queries: Vec<f32> = self.queries(&w, &places, &qgs).into_iter().map(rounded).collect();
                let each = heads * (dim + 2);
                let mut parts = Vec::new();
                for (index, row) in places.iter().enumerate() {
                    let pages = self.pages(row);
                    for block in 0..=row.position / PAGE {
                        let positions = block * PAGE..((block + 1) * PAGE).min(row.position + 1);
                        let at = (row.table + block) * each;
                        let (mut sums, mut weights) = (Vec::new(), Vec::new());
                        for head in 0..heads {
                            let query = &queries[index * q_dim + head * dim..][..dim];
                            let partial = all.attend(&pages, head / group, query, positions.clone());
                            sums.extend(partial.sum);
                            let pair = at + heads * dim + 2 * head;
                            // An error of a maximum counts by what it does to the weights.
                            let max = Part::new(pair, Values::F32(vec![partial.max]));
                            weights.extend([
                                Part { unit: 1.0, ..max },
                                Part::new(pair + 1, Values::F32(vec![partial.weight])),
                            ]);
                        }
                        parts.push(Part::new(at, Values::F32(sums)));
                        parts.extend(weights);
                    }
                }
                Trial::default()
                    .input(qg, Values::F32(qgs))
                    .input(kv, Values::F32(kvs))
                    .inputs(cache, before)
                    .output_parts("cache", cache, dim, tolerance::BF16, stored)
                    .output_parts("partials", partials, dim, tolerance::ROUNDED_FACTORS, parts)
            }
            OpKind::AttnCombine { partials, qg, output, .. } => {
                let qgs = self.floats(rows * 2 * q_dim);
                let each = heads * (dim + 2);
                let (mut parts, mut result) = (Vec::new(), vec![0f32; rows * q_dim]);
                for (index, row) in places.iter().enumerate() {
                    let blocks = row.position / PAGE + 1;
                    let mut values = self.floats(blocks * each);
                    for block in values.chunks_exact_mut(each) {
                        for pair in block[heads * dim..].chunks_exact_mut(2) {
                            pair[1] = 1.0 + 255.0 * self.random.unit();
                        }
                    }
                    for head in 0..heads {
                        let pair = |block: &[f32]| (block[heads * dim + 2 * head], block[heads * dim + 2 * head + 1]);
                        let top = values.chunks_exact(each).map(|b| pair(b).0).fold(f32::NEG_INFINITY, f32::max);
                        let mut total = 0f64;
                        let mut sums = vec![0f64; dim];
                        for block in values.chunks_exact(each) {
                            let (max, weight) = pair(block);
                            let factor = f64::from(max - top).exp();
                            total += f64::from(weight) * factor;
                            for (sum, v) in sums.iter_mut().zip(&block[head * dim..]) {
                                *sum += f64::from(*v) * factor;
                            }
                        }
                        let gate = &qgs[index * 2 * q_dim + (2 * head + 1) * dim..][..dim];
                        let out = &mut result[index * q_dim + head * dim..][..dim];
                        for ((out, sum), gate) in out.iter_mut().zip(sums).zip(gate) {
                            *out = (sum / total) as f32 * sigmoid(*gate);
                        }
                    }
                    parts.push(Part::new(row.table * each, Values::F32(values)));
                }
                Trial::default().inputs(partials, parts).input(qg, Values::F32(qgs)).output(
                    "output",
                    output,
                    dim,
                    tolerance::BF16,
                    Values::Bf16(result),
                )
            }
            OpKind::AttnPrefill { q, qg, cache, output, .. } => {
                let queries = self.activations(rows * q_dim);
                let qgs = self.floats(rows * 2 * q_dim);
                let (before, all) = self.cache(|row| row.position + 1);
                let mut result = vec![0f32; rows * q_dim];
                for (index, row) in places.iter().enumerate() {
                    let pages = self.pages(row);
                    for head in 0..heads {
                        let at = ((head / group * rows + index) * group + head % group) * dim;
                        let partial = all.attend(&pages, head / group, &queries[at..at + dim], 0..row.position + 1);
                        let gate = &qgs[index * 2 * q_dim + (2 * head + 1) * dim..][..dim];
                        let out = &mut result[index * q_dim + head * dim..][..dim];
                        for ((out, sum), gate) in out.iter_mut().zip(partial.sum).zip(gate) {
                            *out = sum / partial.weight * sigmoid(*gate);
                        }
                    }
                }
                Trial::default()
                    .input(q, Values::Bf16(queries))
                    .input(qg, Values::F32(qgs))
                    .inputs(cache, before)
                    .output("output", output, dim, tolerance::BF16 + tolerance::RECURRENCE, Values::Bf16(result))
            }
            OpKind::OutProjNorm { weight, norm, input, residual, normed } => {
                let width = self.width(weight);
                let (x, r) = (self.activations(rows * width), self.floats(rows * hidden));
                let after = sum(&r, &self.project(weight, &x, width, WeightForm::Exact));
                let norms = self.norms(&after, norm);
                Trial::default()
                    .input(input, Values::Bf16(x))
                    .input(residual, Values::F32(r))
                    .output("residual", residual, hidden, tolerance::SUM, Values::F32(after))
                    .output("normed", normed, hidden, tolerance::BF16, Values::Bf16(norms))
            }
            OpKind::OutProj { weight, input, output } => {
                let (width, form) = (self.width(weight), self.dense_form());
                let x = self.activations(rows * width);
                let result = self.project(weight, &x, width, form);
                Trial::default().input(input, Values::Bf16(x)).output(
                    "output",
                    output,
                    hidden,
                    form.tolerance(),
                    Values::F32(result),
                )
            }
            OpKind::AddRmsNorm { norm, delta, residual, normed } => {
                let (d, r) = (self.floats(rows * hidden), self.floats(rows * hidden));
                let after = sum(&r, &d);
                let norms = self.norms(&after, norm);
                Trial::default()
                    .input(delta, Values::F32(d))
                    .input(residual, Values::F32(r))
                    .output("residual", residual, hidden, tolerance::NONE, Values::F32(after))
                    .output("normed", normed, hidden, tolerance::BF16, Values::Bf16(norms))
            }
            _ => Trial::default(),
        }
    }

    /// The block table of a row.
    fn pages(&self, row: &Row) -> Vec<u32> {
        self.step.segments[row.segment].pages.iter().map(|page| page.0).collect()
    }

    /// `rope(rms(x, gain))` of one head, not yet rounded.
    fn turned(&self, head: &[f32], gain: &[f32], position: usize, out: &mut [f32]) {
        let c = self.config();
        let (mut cos, mut sin) = (vec![0f32; c.rotary_dim / 2], vec![0f32; c.rotary_dim / 2]);
        rope_angles(position, c.rotary_dim, c.rope_theta, &mut cos, &mut sin);
        rope_norm(head, gain, c.rms_norm_eps, &cos, &sin, out);
    }

    /// Normed and rotated queries of every row, `[rows][heads][head_dim]`, from `[rows][heads][query | gate]`.
    fn queries(&self, w: &AttentionWeights, places: &[Row], qg: &[f32]) -> Vec<f32> {
        let c = self.config();
        let gain = self.vector(w.q_norm);
        let mut out = vec![0f32; places.len() * c.attention_dim()];
        for (index, out) in out.chunks_exact_mut(c.head_dim).enumerate() {
            let position = places[index / c.num_attention_heads].position;
            self.turned(&qg[index * 2 * c.head_dim..][..c.head_dim], &gain, position, out);
        }
        out
    }

    /// Keys (normed, rotated) and values of every row as parts of the cache, from `[rows][keys | values]`.
    fn stored(&self, w: &AttentionWeights, places: &[Row], kv: &[f32]) -> Vec<Part> {
        let c = self.config();
        let (dim, gain) = (c.head_dim, self.vector(w.k_norm));
        let cache = Cache { values: Vec::new(), kv_heads: c.num_key_value_heads, head_dim: dim };
        let mut parts = Vec::new();
        for (row, kv) in places.iter().zip(kv.chunks_exact(2 * c.kv_dim())) {
            let page = self.pages(row)[row.position / PAGE] as usize;
            for head in 0..c.num_key_value_heads {
                let mut key = vec![0f32; dim];
                self.turned(&kv[head * dim..(head + 1) * dim], &gain, row.position, &mut key);
                let value = kv[c.kv_dim() + head * dim..][..dim].to_vec();
                for (which, values) in [(0, key), (1, value)] {
                    parts.push(Part::new(cache.at(page, head, which, row.position % PAGE), Values::Bf16(values)));
                }
            }
        }
        parts.sort_by_key(|part| part.at);
        parts
    }

    /// Random keys and values at the positions below `known` of each row, as parts of the buffer and as a whole.
    fn cache(&mut self, known: impl Fn(&Row) -> usize) -> (Vec<Part>, Cache) {
        let (dim, kv_heads) = (self.config().head_dim, self.config().num_key_value_heads);
        let mut tokens = [0; super::super::PAGES];
        for row in &self.places() {
            for (block, page) in self.pages(row).into_iter().enumerate() {
                let held = known(row).saturating_sub(block * PAGE).min(PAGE);
                tokens[page as usize] = held.max(tokens[page as usize]);
            }
        }
        let mut cache = Cache { values: vec![0f32; tokens.len() * kv_heads * 2 * PAGE * dim], kv_heads, head_dim: dim };
        let mut parts = Vec::new();
        for (page, &tokens) in tokens.iter().enumerate().filter(|(_, tokens)| **tokens > 0) {
            for (head, which) in (0..kv_heads).flat_map(|head| [(head, 0), (head, 1)]) {
                let values = self.activations(tokens * dim);
                let at = cache.at(page, head, which, 0);
                cache.values[at..at + values.len()].copy_from_slice(&values);
                parts.push(Part::new(at, Values::Bf16(values)));
            }
        }
        (parts, cache)
    }

    /// Inputs of a matrix.
    fn width(&self, id: lily_model::graph::WeightId) -> usize {
        match self.checkpoint.model().weight(id).kind {
            lily_model::graph::WeightKind::Matrix { inputs, .. } => inputs,
            _ => 1,
        }
    }
}
