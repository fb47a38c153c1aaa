//! An emulated device on a fixture, and the truth it is held to.

#![allow(dead_code)] // each test file uses its part

pub mod spoiled;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use lily_gpu::emulated::Check;
use lily_gpu::route::MatrixRoute;
use lily_gpu::{Emulated, EmulatedOptions, GpuDevice};
use lily_model::checkpoint::Checkpoint;
use lily_model::config::{LayerType, ModelConfig, Quantization, QuantizationConfig};
use lily_model::device::{Capacity, Device, LogitRows, Output, PageId, Segment, SlotId, Step, StepResult, Tokens};
use lily_model::graph::Phase;
use safetensors::SafeTensors;
use serde_json::Value;

/// Sizes that the tests use: sequences of up to four pages.
pub const CAPACITY: Capacity = Capacity { slots: 8, pages: 32, prefill_rows: 512, decode_rows: 8, max_seq: 1024 };

/// Folder of a fixture.
pub fn folder(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures").join(name)
}

/// The checkpoint of a fixture.
pub fn checkpoint(name: &str) -> Arc<Checkpoint> {
    Arc::new(Checkpoint::open(&folder(name)).expect("the fixture loads"))
}

/// The embedded miniature, from its folder.
pub fn miniature() -> Arc<Checkpoint> {
    Arc::new(Checkpoint::open(&miniature_folder()).expect("the miniature loads"))
}

/// Where the miniature is.
pub fn miniature_folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../assets/mini")
}

/// A small geometry of round numbers, one layer of each kind, stored like the published checkpoint.
pub fn even() -> ModelConfig {
    let eight = Some(Quantization { bits: 8, group_size: 64 });
    let modules = ["gate", "shared_expert_gate"]
        .iter()
        .flat_map(|gate| (0..2).map(move |layer| (format!("language_model.model.layers.{layer}.mlp.{gate}"), eight)));
    ModelConfig {
        hidden_size: 128,
        layer_types: vec![LayerType::LinearAttention, LayerType::FullAttention],
        num_attention_heads: 8,
        num_key_value_heads: 1,
        head_dim: 64,
        rotary_dim: 16,
        rope_theta: 1e7,
        linear_num_key_heads: 2,
        linear_num_value_heads: 4,
        linear_key_head_dim: 32,
        linear_value_head_dim: 32,
        linear_conv_kernel_dim: 4,
        num_experts: 8,
        num_experts_per_tok: 2,
        moe_intermediate_size: 64,
        shared_expert_intermediate_size: 64,
        vocab_size: 512,
        rms_norm_eps: 1e-6,
        max_position_embeddings: 262_144,
        quantization: QuantizationConfig {
            default: Some(Quantization { bits: 4, group_size: 64 }),
            modules: HashMap::from_iter(modules),
        },
    }
}

/// A geometry of which no tile, lane group or simdgroup has a whole number, and that stores its layers in three ways: 4
/// bits in groups of 32, 8 bits in groups of 32, bf16.
pub fn crooked() -> ModelConfig {
    let eight = Some(Quantization { bits: 8, group_size: 32 });
    let mut modules = HashMap::new();
    for (module, entry) in [
        ("model.layers.1.self_attn.k_proj", None),
        ("model.layers.1.mlp.gate", None),
        ("model.layers.2.linear_attn.in_proj_qkv", None),
        ("model.layers.2.linear_attn.in_proj_z", eight),
        ("model.layers.2.linear_attn.out_proj", eight),
        ("model.layers.2.mlp.switch_mlp.gate_proj", eight),
        ("model.layers.2.mlp.switch_mlp.up_proj", eight),
        ("model.layers.2.mlp.switch_mlp.down_proj", eight),
        ("model.layers.2.mlp.shared_expert.gate_proj", None),
        ("model.layers.2.mlp.shared_expert.up_proj", None),
        ("model.layers.2.mlp.shared_expert.down_proj", None),
        ("lm_head", eight),
    ] {
        modules.insert(format!("language_model.{module}"), entry);
    }
    ModelConfig {
        hidden_size: 192,
        layer_types: vec![LayerType::LinearAttention, LayerType::FullAttention, LayerType::LinearAttention],
        num_attention_heads: 6,
        num_key_value_heads: 2,
        head_dim: 96,
        rotary_dim: 22,
        linear_num_key_heads: 1,
        linear_num_value_heads: 3,
        linear_key_head_dim: 128,
        linear_value_head_dim: 96,
        num_experts: 9,
        num_experts_per_tok: 3,
        moe_intermediate_size: 96,
        shared_expert_intermediate_size: 160,
        vocab_size: 515,
        quantization: QuantizationConfig { default: Some(Quantization { bits: 4, group_size: 32 }), modules },
        ..even()
    }
}

/// An emulated device.
pub fn device(checkpoint: &Arc<Checkpoint>, route: MatrixRoute, check: Check) -> GpuDevice<Emulated> {
    device_of(checkpoint, route, check, CAPACITY)
}

/// An emulated device of other sizes.
pub fn device_of(
    checkpoint: &Arc<Checkpoint>,
    route: MatrixRoute,
    check: Check,
    capacity: Capacity,
) -> GpuDevice<Emulated> {
    let options = EmulatedOptions { route, check, ..EmulatedOptions::default() };
    GpuDevice::new(Emulated::new(options), Arc::clone(checkpoint), capacity).expect("the device starts")
}

/// The four pages of a sequence, scattered.
pub fn pages(sequence: u32) -> Vec<PageId> {
    [3, 0, 2, 1].iter().map(|i| PageId(4 * sequence + i)).collect()
}

/// Reads `ids` into a sequence from position `start`.
pub fn prefill(device: &mut dyn Device, sequence: u32, start: usize, ids: &[u32], logit_rows: LogitRows) -> StepResult {
    let pages = pages(sequence);
    let segment = Segment { slot: SlotId(sequence), start, rows: ids.len(), pages: &pages };
    run(device, Phase::Prefill, Tokens::Ids(ids), &[segment], logit_rows)
}

/// One token of each of some sequences `(sequence, position, id)`; logits of each.
pub fn decode(device: &mut dyn Device, rows: &[(u32, usize, u32)]) -> Vec<f32> {
    let tables: Vec<Vec<PageId>> = rows.iter().map(|r| pages(r.0)).collect();
    let segments: Vec<Segment<'_>> = rows
        .iter()
        .zip(&tables)
        .map(|(&(sequence, start, _), pages)| Segment { slot: SlotId(sequence), start, rows: 1, pages })
        .collect();
    let ids: Vec<u32> = rows.iter().map(|r| r.2).collect();
    run(device, Phase::Decode, Tokens::Ids(&ids), &segments, LogitRows::Last).logits
}

/// A step that yields logits.
pub fn run(
    device: &mut dyn Device,
    phase: Phase,
    tokens: Tokens<'_>,
    segments: &[Segment<'_>],
    logit_rows: LogitRows,
) -> StepResult {
    let step = Step { phase, tokens, segments, logit_rows, output: Output::Logits };
    if let Err(error) = device.submit(&step) {
        panic!("{error}");
    }
    device.wait().expect("its result")
}

/// Index of the largest.
pub fn argmax(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (i, &v) in logits.iter().enumerate() {
        if v > logits[best] {
            best = i;
        }
    }
    best as u32
}

/// A case of a fixture.
pub struct Case {
    pub name: String,
    pub prompt: Vec<u32>,
    pub positions: Vec<usize>,
    pub logits: Vec<f32>,
    pub greedy: Vec<u32>,
    pub margins: Vec<f64>,
    pub greedy_logits: Vec<f32>,
    pub mlx_kl: f64,
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().expect("an array").iter().map(|v| v.as_f64().expect("a number")).collect()
}

/// The cases of a fixture.
pub fn cases(fixture: &str) -> Vec<Case> {
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
pub fn kl(truth: &[f32], other: &[f32]) -> f64 {
    let log_softmax = |x: &[f32]| -> Vec<f64> {
        let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let total: f64 = x.iter().map(|v| f64::from(v - max).exp()).sum();
        x.iter().map(|v| f64::from(v - max) - total.ln()).collect()
    };
    let (p, q) = (log_softmax(truth), log_softmax(other));
    p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q)).sum()
}

/// Mean of [`kl`] over rows of `vocab` logits.
pub fn mean_kl(truth: &[f32], other: &[f32], vocab: usize) -> f64 {
    assert_eq!(truth.len(), other.len());
    let rows = truth.len() / vocab;
    truth.chunks_exact(vocab).zip(other.chunks_exact(vocab)).map(|(t, o)| kl(t, o)).sum::<f64>() / rows as f64
}
