//! Configs on both sides of every border, round trips, and damaged ones.

use std::collections::HashMap;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::graph::Model;

/// A config that is accepted, as JSON.
fn good() -> Value {
    serde_json::from_str(&ModelConfig::tiny().to_json()).unwrap()
}

/// Parses it and lists its weights, where the group sizes are checked.
fn check(value: &Value) -> Result<Model, ConfigError> {
    ModelConfig::from_json(&value.to_string()).and_then(Model::new)
}

fn with(pointer: &str, value: Value) -> Value {
    let mut config = good();
    let (parent, field) = pointer.rsplit_once('/').unwrap();
    config.pointer_mut(parent).unwrap()[field] = value;
    config
}

/// Field, values accepted, values refused.
type Border = (String, Vec<Value>, Vec<Value>);

fn list(values: impl IntoIterator<Item = impl Into<Value>>) -> Vec<Value> {
    values.into_iter().map(Into::into).collect()
}

fn borders() -> Vec<Border> {
    let top = |name: &str| format!("/{name}");
    let text = |name: &str| format!("/text_config/{name}");
    let quantization = |name: &str| format!("/quantization/{name}");
    vec![
        (top("model_type"), list(["qwen3_5_moe", "qwen3_5_moe_text"]), list(["qwen3_5", "qwen3_moe", ""])),
        (text("model_type"), list(["qwen3_5_moe_text"]), list(["qwen3_5_text"])),
        (text("hidden_size"), list([64, 128, 192]), list([0, 32, 96, 129, 1 << 21, -64])),
        (text("hidden_act"), vec!["silu".into(), Value::Null], list(["gelu"])),
        (text("attention_bias"), list([false]), list([true])),
        (text("attn_output_gate"), list([true]), list([false])),
        (text("tie_word_embeddings"), list([false]), list([true])),
        (text("mlp_only_layers"), vec![json!([])], vec![json!([0])]),
        (text("num_hidden_layers"), list([4]), list([0, 3, 5, 1025])),
        (
            text("layer_types"),
            vec![Value::Null],
            vec![json!(["linear_attention"]), json!("full_attention"), json!([1, 2, 3, 4])],
        ),
        (text("num_attention_heads"), list([2, 4, 6]), list([0, 1, 5])),
        (text("num_key_value_heads"), list([1, 2, 4]), list([0, 3, 8])),
        (text("head_dim"), list([32, 64, 256]), list([16, 48, 288])),
        (text("linear_num_key_heads"), list([1, 2, 4]), list([0, 3, 8])),
        (text("linear_num_value_heads"), list([2, 4]), list([0, 3, 5])),
        (text("linear_key_head_dim"), list([32, 64, 256]), list([16, 40, 288])),
        (text("linear_value_head_dim"), list([32, 64, 256]), list([16, 40, 288])),
        (text("linear_conv_kernel_dim"), list([4]), list([0, 3, 5])),
        (text("num_experts"), list([3, 1024]), list([0, 2, 1025])),
        (text("num_experts_per_tok"), list([1, 8]), list([0, 9])),
        (text("moe_intermediate_size"), list([64, 128]), list([0, 16, 80])),
        (text("shared_expert_intermediate_size"), list([64, 128]), list([0, 16, 80])),
        (text("vocab_size"), list([1, 1 << 20]), list([0, (1 << 20) + 1])),
        (text("rms_norm_eps"), list([1e-6, 0.5]), vec![json!(0.0), json!(1.0), json!(-1e-6), json!(1e-60), json!("x")]),
        (text("max_position_embeddings"), list([1, 262_144]), list([0, -1])),
        (text("rope_parameters/rope_theta"), list([1.5, 1e7]), vec![json!(1.0), json!(-1.0), json!("x"), Value::Null]),
        (text("rope_parameters/rope_type"), list(["default"]), list(["yarn"])),
        (text("rope_parameters/partial_rotary_factor"), list([0.03125, 0.25, 1.0]), list([0.0, 0.001, 1.01, -0.25])),
        (text("rope_parameters"), vec![], list(["x"])),
        (top("text_config"), vec![], vec![json!(1), json!([])]),
        (quantization("bits"), list([4, 8]), list([0, 2, 3, 6, 16])),
        (quantization("group_size"), list([32, 64]), list([0, 16, 128, 256])),
        (quantization("mode"), list(["affine"]), list(["mxfp4"])),
        (
            quantization("language_model.lm_head"),
            vec![json!(false), json!(true), json!({"bits": 8, "group_size": 32})],
            vec![json!({"bits": 5}), json!({"group_size": 64})],
        ),
        (top("quantization"), vec![Value::Null], vec![json!(4), json!({})]),
    ]
}

/// The field an error blames.
fn field(error: &ConfigError) -> &str {
    match error {
        ConfigError::NotJson(_) => "",
        ConfigError::Missing { field, .. } | ConfigError::Unsupported { field, .. } => field,
    }
}

#[test]
fn every_border_has_an_accepted_and_a_refused_side() {
    // A rule between two fields blames one of them.
    let partner = HashMap::from([
        ("num_key_value_heads", "num_attention_heads"),
        ("linear_num_key_heads", "linear_num_value_heads"),
        ("num_experts", "num_experts_per_tok"),
        ("num_hidden_layers", "layer_types"),
        ("layer_types", "layer_types"),
    ]);
    for (pointer, accepted, refused) in borders() {
        for value in accepted {
            if let Err(error) = check(&with(&pointer, value.clone())) {
                panic!("{pointer} = {value}: {error}");
            }
        }
        let name = pointer.rsplit('/').next().unwrap();
        for value in refused {
            let error = match check(&with(&pointer, value.clone())) {
                Ok(_) => panic!("{pointer} = {value} was accepted"),
                Err(error) => error,
            };
            let blamed = field(&error);
            let is_named = blamed.contains(name) || partner.get(name).is_some_and(|p| blamed.contains(p));
            assert!(is_named, "{pointer} = {value}: {error}");
        }
    }
}

#[test]
fn fields_that_must_be_there_are_missed_by_name() {
    let required = [
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "linear_num_key_heads",
        "linear_num_value_heads",
        "linear_key_head_dim",
        "linear_value_head_dim",
        "linear_conv_kernel_dim",
        "num_experts",
        "num_experts_per_tok",
        "moe_intermediate_size",
        "shared_expert_intermediate_size",
        "vocab_size",
        "rms_norm_eps",
        "max_position_embeddings",
    ];
    for name in required {
        let mut config = good();
        config["text_config"].as_object_mut().unwrap().remove(name);
        let error = check(&config).unwrap_err();
        assert!(
            matches!(&error, ConfigError::Missing { field, .. } if field == &format!("text_config.{name}")),
            "{error}"
        );
    }
    let error = ModelConfig::from_json("{}").unwrap_err();
    assert_eq!(field(&error), "model_type");
    for text in ["", "[]", "null", "{", "\u{feff}{}"] {
        assert!(matches!(ModelConfig::from_json(text), Err(ConfigError::NotJson(_))), "{text:?}");
    }
}

#[test]
fn another_depth_repeats_the_pattern_with_its_quantization() {
    let base = ModelConfig::qwen36_35b_a3b();
    assert_eq!(base.with_layers(40), base);
    let short = base.with_layers(3);
    assert_eq!(short.layers_of(LayerType::FullAttention), 0);
    assert_eq!(short.quantization.modules.len(), 6);
    let long = base.with_layers(90);
    assert_eq!(long.layers_of(LayerType::FullAttention), 22);
    assert_eq!(long.quantization.of("language_model.model.layers.89.mlp.gate").map(|q| q.bits), Some(8));
    assert_eq!(long.quantization.modules.len(), 180);
}

fn any_quantization() -> impl Strategy<Value = Quantization> {
    (prop::sample::select(vec![4, 8]), prop::sample::select(vec![32, 64, 128]))
        .prop_map(|(bits, group_size)| Quantization { bits, group_size })
}

prop_compose! {
    /// Any config that `from_json` accepts.
    fn any_config()(
        layers in prop::collection::vec(any::<bool>(), 1..12),
        (hidden, kv_heads, group, head) in (1usize..64, 1usize..5, 1usize..5, 1usize..9),
        (key_heads, repeat, key_dim, value_dim) in (1usize..5, 1usize..5, 1usize..9, 1usize..9),
        (experts, chosen, inner, shared) in (1usize..1025, 1usize..33, 1usize..32, 1usize..32),
        (vocab_size, positions, rotary) in (1usize..=1 << 20, 1usize..=1 << 20, 1usize..128),
        (eps, theta) in (1e-12f32..1.0, 2u64..1_000_000_000_000),
        default in prop::option::of(any_quantization()),
        modules in prop::collection::hash_map("[a-z.0-9]{1,20}\\.[a-z]{1,5}", prop::option::of(any_quantization()), 0..6),
    ) -> ModelConfig {
        ModelConfig {
            hidden_size: 64 * hidden,
            layer_types: layers
                .into_iter()
                .map(|full| if full { LayerType::FullAttention } else { LayerType::LinearAttention })
                .collect(),
            num_attention_heads: kv_heads * group,
            num_key_value_heads: kv_heads,
            head_dim: 32 * head.min(8),
            rotary_dim: 2 * rotary.min(16 * head.min(8)),
            rope_theta: theta as f64,
            linear_num_key_heads: key_heads,
            linear_num_value_heads: key_heads * repeat,
            linear_key_head_dim: 32 * key_dim.min(8),
            linear_value_head_dim: 32 * value_dim.min(8),
            linear_conv_kernel_dim: 4,
            num_experts: experts,
            num_experts_per_tok: chosen.min(experts),
            moe_intermediate_size: 32 * inner,
            shared_expert_intermediate_size: 32 * shared,
            vocab_size,
            rms_norm_eps: eps,
            max_position_embeddings: positions,
            quantization: QuantizationConfig {
                default,
                modules: if default.is_some() { modules } else { HashMap::new() },
            },
        }
    }
}

/// Values that a stranger might put anywhere.
fn any_value() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        (-10i64..300).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
        Just(json!([])),
        Just(json!({})),
        Just(json!(["linear_attention"])),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_written_reads_back_the_same(config in any_config()) {
        prop_assert_eq!(ModelConfig::from_json(&config.to_json()).unwrap(), config);
    }

    #[test]
    fn a_changed_field_never_panics_and_is_blamed_if_anything_is(
        change in any::<prop::sample::Index>(), value in any_value(),
    ) {
        let mut config = good();
        let mut pointers: Vec<String> = Vec::new();
        for (prefix, object) in [("", &config), ("/text_config", &config["text_config"]),
            ("/text_config/rope_parameters", &config["text_config"]["rope_parameters"]),
            ("/quantization", &config["quantization"])] {
            pointers.extend(object.as_object().unwrap().keys().map(|key| format!("{prefix}/{key}")));
        }
        let pointer = &pointers[change.index(pointers.len())];
        *config.pointer_mut(pointer).unwrap() = value.clone();
        if let Err(error) = check(&config) {
            prop_assert!(!field(&error).is_empty(), "{} = {}: {}", pointer, value, error);
            prop_assert!(error.to_string().contains("accepted: "), "{}", error);
        }
    }
}
