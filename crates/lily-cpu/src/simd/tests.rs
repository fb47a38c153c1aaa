//! Every kernel against the reference, and every instruction set of this machine against every other, bit for bit.

use lily_model::checkpoint::{DenseView, QuantizedView, WeightView};
use lily_model::config::Quantization;

use super::*;
use crate::reference::{self, AttentionShape, BlockPartial};

/// Random numbers, the same in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn float(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    fn floats(&mut self, len: usize, magnitude: f32) -> Vec<f32> {
        (0..len).map(|_| self.float() * magnitude).collect()
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| (self.next() >> 32) as u8).collect()
    }

    fn bf16(&mut self, len: usize, magnitude: f32) -> Vec<u8> {
        self.floats(len, magnitude).iter().flat_map(|v| ((v.to_bits() >> 16) as u16).to_le_bytes()).collect()
    }
}

/// Runs `body` on every path; all must give the bits of the first.
fn on_every_isa(body: impl Fn(Isa) -> Vec<f32>) -> Vec<f32> {
    let bits = |v: &[f32]| v.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    let paths = Isa::available();
    let first = body(paths[0]);
    for &isa in &paths[1..] {
        let other = body(isa);
        let differ = first.iter().zip(&other).position(|(a, b)| a.to_bits() != b.to_bits());
        assert_eq!(bits(&first), bits(&other), "{} and {} differ at {differ:?}", paths[0].name(), isa.name());
    }
    first
}

fn assert_close(truth: &[f32], ours: &[f32], tolerance: f32, what: &str) {
    assert_eq!(truth.len(), ours.len(), "{what}");
    let scale = truth.iter().fold(0f32, |m, v| m.max(v.abs()));
    for (i, (t, o)) in truth.iter().zip(ours).enumerate() {
        let off = (t - o).abs();
        assert!(off <= tolerance * scale.max(1e-30), "{what}: element {i} is {o}, truth {t}, scale {scale}");
    }
}

struct Quantized {
    ints: Vec<i16>,
    scales: Vec<f32>,
    sums: Vec<f32>,
    inputs: usize,
    group: usize,
}

impl Quantized {
    fn new(isa: Isa, x: &[f32], inputs: usize, group: usize) -> Self {
        let groups = x.len() / group;
        let mut q =
            Quantized { ints: vec![0; x.len()], scales: vec![0.0; groups], sums: vec![0.0; groups], inputs, group };
        quantize(isa, x, group, &mut q.ints, &mut q.scales, &mut q.sums);
        q
    }

    fn rows(&self) -> Vec<QuantizedRow<'_>> {
        let groups = self.inputs / self.group;
        (0..self.ints.len() / self.inputs)
            .map(|r| QuantizedRow {
                ints: &self.ints[r * self.inputs..(r + 1) * self.inputs],
                scales: &self.scales[r * groups..(r + 1) * groups],
                sums: &self.sums[r * groups..(r + 1) * groups],
            })
            .collect()
    }
}

/// All outputs of a matrix for some rows, `[rows, outputs]`, by tiles or (one row) by the fused product.
fn product(isa: Isa, view: &QuantizedView<'_>, expert: usize, rows: &[QuantizedRow<'_>]) -> Vec<f32> {
    let mut out = vec![0f32; rows.len() * view.outputs];
    let mut scratch = Tile::new(view.inputs);
    for tile in 0..view.outputs.div_ceil(TILE) {
        let mut products = vec![[0f32; TILE]; rows.len()];
        if let [row] = rows {
            products[0] = product_of_one_row(isa, view, expert, tile, *row, &mut scratch);
        } else {
            unpack_tile(isa, view, expert, tile, &mut scratch);
            multiply_tile(isa, &scratch, rows, Ahead::of(view, expert, tile), &mut products);
        }
        for (r, products) in products.iter().enumerate() {
            for (i, p) in products.iter().enumerate() {
                if tile * TILE + i < view.outputs {
                    out[r * view.outputs + tile * TILE + i] = *p;
                }
            }
        }
    }
    out
}

#[test]
fn quantized_products_are_the_references_on_every_shape_and_the_same_bits_on_every_path_and_row_count() {
    let mut random = Random(7);
    for (bits, group_size, group, inputs, outputs) in [
        (4, 64, 64, 128, 16),
        (4, 64, 64, 2048, 33),
        (4, 32, 32, 96, 40),
        (4, 128, 64, 256, 1),
        (4, 64, 32, 192, 17),
        (8, 64, 64, 512, 20),
        (8, 32, 32, 32, 5),
        (8, 128, 64, 128, 1),
    ] {
        let experts = 2;
        let groups = inputs / group_size;
        let weight = random.bytes(experts * outputs * inputs * bits / 8);
        let scales = random.bf16(experts * outputs * groups, 0.01);
        let biases = random.bf16(experts * outputs * groups, 0.1);
        let view = QuantizedView {
            experts,
            outputs,
            inputs,
            quantization: Quantization { bits, group_size },
            weight: &weight,
            scales: &scales,
            biases: &biases,
        };
        for (rows, magnitude) in [(1, 1.0), (2, 1e-12), (5, 1e6), (13, 1.0)] {
            let mut x = random.floats(rows * inputs, magnitude);
            x[..inputs.min(64)].fill(0.0);
            let together = on_every_isa(|isa| {
                let q = Quantized::new(isa, &x, inputs, group);
                product(isa, &view, 1, &q.rows())
            });
            let mut truth = vec![0f32; rows * outputs];
            reference::linear(&WeightView::Quantized(view), 1, &x, rows, &mut truth);
            assert_close(&truth, &together, 1e-4, &format!("{bits} bits, {inputs} inputs, {rows} rows"));
            let alone = on_every_isa(|isa| {
                let q = Quantized::new(isa, &x, inputs, group);
                q.rows().iter().flat_map(|row| product(isa, &view, 1, &[*row])).collect()
            });
            let same = together.iter().zip(&alone).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same, "{bits} bits, {inputs} inputs: {rows} rows together and alone differ");
        }
    }
}

#[test]
fn the_largest_weights_times_the_largest_activations_do_not_overflow() {
    for (bits, group_size) in [(4, 64), (8, 128)] {
        let inputs = 128;
        let weight = vec![0xff; 16 * inputs * bits / 8];
        let one: Vec<u8> = std::iter::repeat_n([0x80, 0x3f], 16 * inputs / group_size).flatten().collect();
        let zero = vec![0; one.len()];
        let view = QuantizedView {
            experts: 1,
            outputs: 16,
            inputs,
            quantization: Quantization { bits, group_size },
            weight: &weight,
            scales: &one,
            biases: &zero,
        };
        for sign in [1.0, -1.0] {
            let x = vec![3.0 * sign; 2 * inputs];
            let out = on_every_isa(|isa| {
                let q = Quantized::new(isa, &x, inputs, 64);
                let mut all = product(isa, &view, 0, &q.rows());
                all.extend(product(isa, &view, 0, &q.rows()[..1]));
                all
            });
            let truth = 3.0 * sign * inputs as f32 * ((1 << bits) - 1) as f32;
            assert_close(&[truth; 48], &out, 1e-6, "saturated");
        }
    }
}

#[test]
fn quantized_activations_are_within_half_a_step_and_restore_in_order() {
    let mut random = Random(3);
    for (group, magnitude) in [(64, 1.0), (32, 1e-20), (64, 1e20), (64, 0.0), (64, 1e-35)] {
        let x = random.floats(256, magnitude);
        on_every_isa(|isa| {
            let q = Quantized::new(isa, &x, 256, group);
            let mut back = vec![0f32; 256];
            restore(&q.ints, &q.scales, &mut back);
            for (g, (x, back)) in x.chunks(group).zip(back.chunks(group)).enumerate() {
                let largest = x.iter().fold(0f32, |m, v| m.max(v.abs()));
                for (x, back) in x.iter().zip(back) {
                    assert!((x - back).abs() <= largest / 16_256.0 * 0.51 + 1e-30);
                }
                let sum: f32 = back.iter().sum();
                assert!((sum - q.sums[g]).abs() <= largest * 1e-4);
            }
            back
        });
    }
}

#[test]
fn an_input_that_is_no_finite_number_is_not_hidden_by_its_group() {
    let mut random = Random(4);
    for fault in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut x = random.floats(256, 1.0);
        x[70] = fault;
        on_every_isa(|isa| {
            let q = Quantized::new(isa, &x, 256, 64);
            let faulty: Vec<bool> = q.scales.iter().zip(&q.sums).map(|(a, b)| a.is_nan() && b.is_nan()).collect();
            assert_eq!(faulty, [false, true, false, false]);
            vec![0.0; 1]
        });
    }
}

#[test]
fn dense_products_are_the_references() {
    let mut random = Random(5);
    let (inputs, outputs) = (96, 21);
    let weight = random.bf16(2 * outputs * inputs, 1.0);
    let view = DenseView { experts: 2, outputs, inputs, weight: &weight };
    let x = random.floats(inputs, 1.0);
    let ours = on_every_isa(|isa| (0..2).flat_map(|tile| dense_outputs(isa, &view, 1, tile, &x)).collect());
    let mut truth = vec![0f32; outputs];
    reference::linear(&WeightView::Dense(view), 1, &x, 1, &mut truth);
    assert_close(&truth, &ours[..outputs], 1e-5, "dense");
}

#[test]
fn exp_silu_and_sigmoid_are_good_to_a_few_units_in_the_last_place() {
    let x: Vec<f32> = (-3000..3000).map(|i| i as f32 * 0.029).chain([-1e30, 1e30, 0.0, -0.0, 88.0, -87.0]).collect();
    let x: Vec<f32> = x.chunks_exact(16).flatten().copied().collect();
    per_isa! {
        fn exp_of<V>(x: &[f32]) -> Vec<f32> {
            // SAFETY: 16 elements.
            x.chunks_exact(16).flat_map(|x| unsafe { V::load(x.as_ptr()) }.exp().to_array()).collect()
        }
    }
    let ones = vec![1.0; x.len()];
    let exps = on_every_isa(|isa| exp_of(isa, &x));
    let silus = on_every_isa(|isa| {
        let mut out = vec![0.0; x.len()];
        swiglu(isa, &x, &ones, &mut out);
        out
    });
    let gates = on_every_isa(|isa| {
        let mut out = vec![0.0; x.len()];
        finish_attention(isa, &ones, 1.0, &x, &mut out);
        out
    });
    for (i, &x) in x.iter().enumerate() {
        let x = f64::from(x);
        let near = |ours: f32, truth: f64| (f64::from(ours) - truth).abs() <= 3e-7 * truth.abs() + 1e-36;
        assert!(near(exps[i], x.clamp(-87.0, 88.0).exp()), "exp {x}: {}", exps[i]);
        assert!(near(silus[i], x / (1.0 + (-x).clamp(-87.0, 88.0).exp())), "silu {x}: {}", silus[i]);
        assert!(near(gates[i], 1.0 / (1.0 + (-x).clamp(-87.0, 88.0).exp())), "sigmoid {x}: {}", gates[i]);
    }
}

#[test]
fn norms_and_rotations_are_the_references_at_all_magnitudes() {
    let mut random = Random(11);
    for magnitude in [1.0, 1e-10, 1e8, 0.0] {
        let (x, gain, z) = (random.floats(256, magnitude), random.floats(256, 2.0), random.floats(256, 8.0));
        let (cos, sin) = (random.floats(32, 1.0), random.floats(32, 1.0));
        let mut truth = vec![0f32; 256];
        let run = |kernel: &dyn Fn(Isa, &mut [f32])| {
            on_every_isa(|isa| {
                let mut out = vec![0f32; 256];
                kernel(isa, &mut out);
                out
            })
        };
        reference::rms_norm(&x, &gain, 1e-6, &mut truth);
        assert_close(&truth, &run(&|isa, out| rms_norm(isa, &x, &gain, 1e-6, out)), 1e-6, "rms");
        reference::gated_norm(&x, &gain, &z, 1e-6, &mut truth);
        assert_close(&truth, &run(&|isa, out| gated_norm(isa, &x, &gain, &z, 1e-6, out)), 2e-6, "gated");
        reference::rope_norm(&x, &gain, 1e-6, &cos, &sin, &mut truth);
        assert_close(&truth, &run(&|isa, out| rope_norm(isa, &x, &gain, 1e-6, &cos, &sin, out)), 2e-6, "rope");
        truth.copy_from_slice(&x);
        reference::l2_normalize(&mut truth, 0.125);
        let ours = run(&|isa, out| {
            out.copy_from_slice(&x);
            l2_normalize(isa, out, 0.125);
        });
        assert_close(&truth, &ours, 1e-6, "l2");
    }
}

#[test]
fn the_convolution_is_the_references_on_a_part_of_the_channels() {
    let mut random = Random(13);
    let channels = 96;
    let weight = random.floats(4 * channels, 1.0);
    let taps: Vec<Vec<f32>> = (0..4).map(|_| random.floats(32, 2.0)).collect();
    let taps = [&taps[0][..], &taps[1], &taps[2], &taps[3]];
    let ours = on_every_isa(|isa| {
        let mut out = vec![0f32; 32];
        gdn_conv_token(isa, taps, &weight, channels, 64, &mut out);
        out
    });
    let some: Vec<f32> = weight.chunks_exact(channels).flat_map(|w| &w[64..]).copied().collect();
    let mut truth = vec![0f32; 32];
    reference::gdn_conv_token(taps, &some, &mut truth);
    assert_close(&truth, &ours, 1e-6, "conv");
}

#[test]
fn the_delta_rule_is_the_references_over_many_tokens() {
    let mut random = Random(17);
    let keys = 128;
    let start = random.floats(keys * VALUE_BLOCK, 0.5);
    let tokens: Vec<[Vec<f32>; 3]> = (0..40)
        .map(|_| {
            let (mut q, mut k) = (random.floats(keys, 1.0), random.floats(keys, 1.0));
            reference::l2_normalize(&mut q, 0.1);
            reference::l2_normalize(&mut k, 1.0);
            [q, k, random.floats(VALUE_BLOCK, 1.0)]
        })
        .collect();
    type Step<'a> = &'a dyn Fn(&mut [f32], &[Vec<f32>; 3], f32, &mut [f32]);
    let run = |step: Step<'_>| {
        let mut state = start.clone();
        let mut all = Vec::new();
        for (i, token) in tokens.iter().enumerate() {
            let mut out = vec![0f32; VALUE_BLOCK];
            step(&mut state, token, 1.0 - 0.02 * i as f32, &mut out);
            all.extend(out);
        }
        all.extend(state);
        all
    };
    let truth = run(&|s, [q, k, v], decay, out| reference::gdn_delta_step(s, q, k, v, decay, 0.7, out));
    let ours = on_every_isa(|isa| run(&|s, [q, k, v], decay, out| delta_step(isa, s, q, k, v, decay, 0.7, out)));
    assert_close(&truth, &ours, 1e-5, "delta rule");
}

#[test]
fn blocks_of_attention_merge_to_naive_attention_at_every_border() {
    let mut random = Random(19);
    for (heads, dim, magnitude) in [(8, 64, 1.0), (3, 32, 20.0), (1, 128, 1e-4), (4, 32, 0.0)] {
        for visible in [1usize, 15, 16, 17, 255, 256, 257, 300, 512] {
            let page = 256;
            let query = random.floats(heads * dim, magnitude);
            let scaled: Vec<f32> = query.iter().map(|q| q / (dim as f32).sqrt()).collect();
            let tokens = page * 2;
            let as_bf16 = |v: f32| f32::from_bits(v.to_bits() & 0xffff_0000);
            let keys: Vec<f32> = random.floats(tokens * dim, 1.0).into_iter().map(as_bf16).collect();
            let values: Vec<f32> = random.floats(tokens * dim, 1.0).into_iter().map(as_bf16).collect();
            let gate = random.floats(dim, 3.0);
            let half = |v: f32| (v.to_bits() >> 16) as u16;
            let ours = on_every_isa(|isa| {
                let mut out = Vec::new();
                let mut sum = vec![0f32; heads * dim];
                let (mut max, mut weight) = (vec![0f32; heads], vec![0f32; heads]);
                for block in 0..visible.div_ceil(page) {
                    let at = block * page * dim;
                    // Rows that are not visible hold what must not count: NaN.
                    let shown = (visible - block * page).min(page);
                    let mut k = vec![half(f32::NAN); page * dim];
                    let mut v = vec![half(f32::NAN); page * dim];
                    for t in 0..shown {
                        for d in 0..dim {
                            k[d * page + t] = half(keys[at + t * dim + d]);
                            v[t * dim + d] = half(values[at + t * dim + d]);
                        }
                    }
                    let (mut s, mut m, mut w) = (vec![0f32; heads * dim], vec![0f32; heads], vec![0f32; heads]);
                    let shape = AttentionShape { heads, head_dim: dim, page_tokens: page };
                    let partial = BlockPartial { sum: &mut s, max: &mut m, weight: &mut w };
                    attention_block(isa, shape, &scaled, &k, &v, shown, partial, &mut vec![0f32; heads * page]);
                    if block == 0 {
                        (sum, max, weight) = (s, m, w);
                        continue;
                    }
                    for h in 0..heads {
                        let (to, from) = (&mut sum[h * dim..(h + 1) * dim], &s[h * dim..(h + 1) * dim]);
                        merge_block(isa, to, &mut max[h], &mut weight[h], from, m[h], w[h]);
                    }
                }
                for h in 0..heads {
                    let mut head = vec![0f32; dim];
                    finish_attention(isa, &sum[h * dim..(h + 1) * dim], weight[h], &gate, &mut head);
                    out.extend(head);
                }
                out
            });
            for h in 0..heads {
                let mut truth = vec![0f32; dim];
                let query = &query[h * dim..(h + 1) * dim];
                reference::attention(query, &keys[..visible * dim], &values[..visible * dim], &mut truth);
                for (t, g) in truth.iter_mut().zip(&gate) {
                    *t *= reference::sigmoid(*g);
                }
                assert_close(&truth, &ours[h * dim..(h + 1) * dim], 3e-5, &format!("{visible} keys, head {h}"));
            }
        }
    }
}

#[test]
fn the_largest_logit_wins_and_the_first_of_equals() {
    let mut random = Random(23);
    for len in [1, 15, 16, 1023, 1024, 1025, 5000] {
        let mut logits = random.floats(len, 4.0);
        on_every_isa(|isa| vec![argmax(isa, &logits) as f32; 1]);
        assert_eq!(argmax(Isa::best(), &logits), reference::argmax(&logits));
        logits[len / 2] = 9.0;
        logits[len - 1] = 9.0;
        assert_eq!(argmax(Isa::best(), &logits), len / 2);
    }
    assert_eq!(argmax(Isa::best(), &[-5.0; 40]), 0);
}

#[test]
fn experts_are_combined_as_in_the_reference() {
    let mut random = Random(29);
    let (down, scales, start) = (random.floats(9 * 64, 1.0), random.floats(9, 1.0), random.floats(64, 1.0));
    let ours = on_every_isa(|isa| {
        let mut residual = start.clone();
        combine(isa, &mut residual, &down, &scales);
        residual
    });
    let mut truth = start.clone();
    reference::combine(&mut truth, &down, &scales);
    assert_close(&truth, &ours, 1e-6, "combine");
}
