//! Against the truth of tests/fixtures: exact in f32, closer than MLX's bf16 by default.

mod common;

use common::{argmax, checkpoint, decode, device, folder, prefill};
use lily_cpu::Precision;
use lily_model::device::{Device, LogitRows, SlotId};
use safetensors::SafeTensors;
use serde_json::Value;

struct Case {
    name: String,
    prompt: Vec<u32>,
    positions: Vec<usize>,
    logits: Vec<f32>,
    greedy: Vec<u32>,
    margins: Vec<f64>,
    greedy_logits: Vec<f32>,
    mlx_kl: f64,
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().expect("an array").iter().map(|v| v.as_f64().expect("a number")).collect()
}

fn cases(fixture: &str) -> Vec<Case> {
    let read = |name: &str| std::fs::read(folder(fixture).join(name)).expect("the fixture is there");
    let expected: Value = serde_json::from_slice(&read("expected.json")).expect("JSON");
    let bytes = read("expected.safetensors");
    let tensors = SafeTensors::deserialize(&bytes).expect("safetensors");
    let floats = |name: &Value| -> Vec<f32> {
        let tensor = tensors.tensor(name.as_str().expect("a name")).expect("the tensor");
        tensor.data().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
    };
    expected["cases"]
        .as_array()
        .expect("cases")
        .iter()
        .map(|case| Case {
            name: case["name"].as_str().expect("a name").to_owned(),
            prompt: numbers(&case["prompt_ids"]).iter().map(|&v| v as u32).collect(),
            positions: numbers(&case["logit_positions"]).iter().map(|&v| v as usize).collect(),
            logits: floats(&case["logits"]),
            greedy: numbers(&case["greedy_ids_64"]).iter().map(|&v| v as u32).collect(),
            margins: numbers(&case["greedy_margins"]),
            greedy_logits: floats(&case["greedy_logits"]),
            mlx_kl: case["mlx_bf16_acc32"]["kl_mean"].as_f64().expect("a number"),
        })
        .collect()
}

/// KL divergence of `other` from `truth`, nats.
fn kl(truth: &[f32], other: &[f32]) -> f64 {
    let log_softmax = |x: &[f32]| -> Vec<f64> {
        let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let total: f64 = x.iter().map(|v| f64::from(v - max).exp()).sum();
        x.iter().map(|v| f64::from(v - max) - total.ln()).collect()
    };
    let (p, q) = (log_softmax(truth), log_softmax(other));
    p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q)).sum()
}

/// Logits at the case's positions, and along the truth's greedy path by decode.
fn run(fixture: &str, precision: Precision, mut check: impl FnMut(&Case, &[f32], &[f32])) {
    let checkpoint = checkpoint(fixture);
    let mut device = device(&checkpoint, precision);
    for case in cases(fixture) {
        device.clear_slot(SlotId(0)).expect("the slot is there");
        let vocab = case.logits.len() / case.positions.len();
        let all = prefill(&mut device, 0, 0, &case.prompt, LogitRows::All).logits;
        let chosen: Vec<f32> = case.positions.iter().flat_map(|p| &all[p * vocab..(p + 1) * vocab]).copied().collect();
        let mut greedy = all[(case.prompt.len() - 1) * vocab..].to_vec();
        for (i, &id) in case.greedy[..case.greedy.len() - 1].iter().enumerate() {
            greedy.extend(decode(&mut device, &[(0, case.prompt.len() + i, id)]));
        }
        check(&case, &chosen, &greedy);
    }
}

fn exact(fixture: &str) {
    run(fixture, Precision::F32, |case, logits, greedy| {
        for (truth, ours) in [(&case.logits, logits), (&case.greedy_logits, greedy)] {
            assert_eq!(truth.len(), ours.len());
            let worst =
                truth.iter().zip(ours).map(|(a, b)| (a - b).abs()).fold(0f32, |m, d| if d <= m { m } else { d });
            assert!(worst < 2e-3, "{fixture} {}: a logit is off by {worst}", case.name);
        }
        let vocab = greedy.len() / case.greedy.len();
        for (i, ours) in greedy.chunks_exact(vocab).enumerate() {
            if case.margins[i] >= 1e-3 {
                assert_eq!(argmax(ours), case.greedy[i], "{fixture} {}: token {i}", case.name);
            }
        }
    });
}

fn fast(fixture: &str) {
    run(fixture, Precision::Fast, |case, logits, greedy| {
        let vocab = greedy.len() / case.greedy.len();
        let mean = |truth: &[f32], ours: &[f32]| {
            let rows = truth.len() / vocab;
            truth.chunks_exact(vocab).zip(ours.chunks_exact(vocab)).map(|(t, o)| kl(t, o)).sum::<f64>() / rows as f64
        };
        let (prompt, decoded) = (mean(&case.logits, logits), mean(&case.greedy_logits, greedy));
        println!(
            "{fixture} {}: KL {prompt:.2e} prompt, {decoded:.2e} decoded; MLX bf16 {:.2e}",
            case.name, case.mlx_kl
        );
        assert!(prompt <= case.mlx_kl / 4.0, "{fixture} {}: {prompt:e}, MLX {:e}", case.name, case.mlx_kl);
        assert!(decoded <= case.mlx_kl, "{fixture} {}: decoded {decoded:e}, MLX {:e}", case.name, case.mlx_kl);
    });
}

#[test]
fn f32_gives_the_true_logits_of_tiny_a() {
    exact("tiny-a");
}

#[test]
fn f32_gives_the_true_logits_of_tiny_b() {
    exact("tiny-b");
}

#[test]
fn the_fast_path_is_four_times_closer_than_mlx_bf16_on_tiny_a() {
    fast("tiny-a");
}

#[test]
fn the_fast_path_is_four_times_closer_than_mlx_bf16_on_tiny_b() {
    fast("tiny-b");
}
