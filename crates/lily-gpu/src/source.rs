//! The Metal text of a library: constants of the geometry, the storage of each role and the thread organisation, then
//! the kernel files. Text only; who compiles it, and how, is the driver's business.

use std::fmt::Write;

use lily_model::config::ModelConfig;
use lily_model::device::NO_TOKEN;

use crate::roles::{Role, StorageTable};
use crate::route::MatrixRoute;
use crate::tuning::Tuning;

/// A library to compile: named parts, in order, as one translation unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LibrarySource {
    /// Name and text of each part. The first is generated, the others are the files of `kernels/`.
    pub parts: Vec<(&'static str, String)>,
    /// Language version: 310 for MSL 3.1 features plus device fences of 3.2, 400 for tensor operations.
    pub metal_version: u32,
}

impl LibrarySource {
    /// All parts as one text.
    pub fn text(&self) -> String {
        self.parts.iter().map(|(_, text)| text.as_str()).collect::<Vec<_>>().join("\n")
    }
}

/// How the weights in place are aligned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WeightAlignment {
    /// Every matrix starts at a multiple of 16 bytes.
    Sixteen,
    /// Some start at a multiple of 4 bytes only.
    Four,
}

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        [$(($name, include_str!(concat!("../kernels/", $name)))),*]
    };
}

/// Kernel files in the order they are compiled; the matrix route's own file follows [`GEMM`].
const FILES: &[(&str, &str)] = &files![
    "common.metal",
    "norm.metal",
    "matvec.metal",
    "gdn.metal",
    "attention.metal",
    "embed.metal",
    "gdn_in_proj.metal",
    "gdn_step.metal",
    "attn_in_proj.metal",
    "attn_decode.metal",
    "attn_combine.metal",
    "out_proj_norm.metal",
    "router.metal",
    "expert_gate_up.metal",
    "expert_down_norm.metal",
    "lm_head.metal",
    "argmax.metal",
    "gemm.metal",
    "in_proj_gemm.metal",
    "out_proj.metal",
    "add_rms_norm.metal",
    "gdn_conv.metal",
    "gdn_scan.metal",
    "qk_norm_rope_store.metal",
    "attn_prefill.metal",
    "route_sort.metal",
    "grouped.metal",
    "combine.metal",
];

/// The file that the matrix route's own belongs behind.
const GEMM: &str = "gemm.metal";

/// The product of a tile on each route.
fn gemm_file(route: MatrixRoute) -> (&'static str, &'static str) {
    match route {
        MatrixRoute::Simdgroup => ("gemm_simdgroup.metal", include_str!("../kernels/gemm_simdgroup.metal")),
        MatrixRoute::Tensor => ("gemm_tensor.metal", include_str!("../kernels/gemm_tensor.metal")),
    }
}

/// Builds the text of a library.
pub fn library_source(
    config: &ModelConfig,
    table: &StorageTable,
    tuning: &Tuning,
    route: MatrixRoute,
    alignment: WeightAlignment,
) -> LibrarySource {
    let mut parts = vec![("constants", constants(config, table, tuning, route, alignment))];
    for &(name, text) in FILES {
        parts.push((name, text.to_string()));
        if name == GEMM {
            let (name, text) = gemm_file(route);
            parts.push((name, text.to_string()));
        }
    }
    LibrarySource { parts, metal_version: route.metal_version() }
}

/// Query heads that one threadgroup of decode attention serves: the most that divide the heads of a KV head, at most 8,
/// and no more than the lanes that read one key.
pub fn packed_heads(config: &ModelConfig) -> usize {
    let group = config.num_attention_heads / config.num_key_value_heads;
    let lanes = match config.head_dim {
        129.. => 32,
        65..=128 => 16,
        33..=64 => 8,
        _ => 4,
    };
    (1..=lanes.min(8)).rev().find(|n| group.is_multiple_of(*n)).unwrap_or(1)
}

/// Simdgroups of a threadgroup of the decode step: the most that share the state's rows evenly.
pub fn gdn_simds(config: &ModelConfig, tuning: &Tuning) -> usize {
    let rows = config.linear_value_head_dim;
    (1..=tuning.gdn_simds).rev().find(|n| rows.is_multiple_of(n * tuning.gdn_ahead)).unwrap_or(1)
}

fn constants(
    config: &ModelConfig,
    table: &StorageTable,
    tuning: &Tuning,
    route: MatrixRoute,
    alignment: WeightAlignment,
) -> String {
    let c = config;
    let mut text = String::from("// Constants of this model and device.\n");
    let mut define = |name: &str, value: &dyn std::fmt::Display| {
        let _ = writeln!(text, "#define {name} {value}");
    };
    let weight_vector = match alignment {
        WeightAlignment::Sixteen => "uint4",
        WeightAlignment::Four => "packed_uint4",
    };
    define("WEIGHT_VECTOR", &weight_vector);
    let gemm_weight = match route {
        MatrixRoute::Simdgroup => "float",
        MatrixRoute::Tensor => "bfloat",
    };
    define("GEMM_WEIGHT", &gemm_weight);
    for (name, value) in [
        ("HIDDEN", c.hidden_size),
        ("VOCAB", c.vocab_size),
        ("KEY_HEADS", c.linear_num_key_heads),
        ("VALUE_HEADS", c.linear_num_value_heads),
        ("DK", c.linear_key_head_dim),
        ("DV", c.linear_value_head_dim),
        ("KEY_DIM", c.linear_key_dim()),
        ("VALUE_DIM", c.linear_value_dim()),
        ("CONV_DIM", c.linear_conv_dim()),
        ("Q_HEADS", c.num_attention_heads),
        ("KV_HEADS", c.num_key_value_heads),
        ("HEAD_DIM", c.head_dim),
        ("ROTARY_DIM", c.rotary_dim),
        ("Q_DIM", c.attention_dim()),
        ("KV_DIM", c.kv_dim()),
        ("PACKED", packed_heads(c)),
        ("EXPERTS", c.num_experts),
        ("TOP_K", c.num_experts_per_tok),
        ("INNER", c.moe_intermediate_size),
        ("SHARED_INNER", c.shared_expert_intermediate_size),
        ("ACT_WIDTH", c.num_experts_per_tok * c.moe_intermediate_size + c.shared_expert_intermediate_size),
        ("ROW_TILE", tuning.row_tile),
        ("MATVEC_OUT", tuning.matvec_out),
        ("MATVEC_SIMDS", tuning.matvec_simds),
        ("OUT_PROJ_OUT", tuning.out_proj_out),
        ("OUT_PROJ_SIMDS", tuning.out_proj_simds),
        ("ROUTER_OUT", tuning.router_out),
        ("ROUTER_SIMDS", tuning.router_simds),
        ("EXPERT_OUT", tuning.expert_out),
        ("EXPERT_SIMDS", tuning.expert_simds),
        ("DOWN_OUT", tuning.down_out),
        ("DOWN_SIMDS", tuning.down_simds),
        ("LM_HEAD_OUT", tuning.lm_head_out),
        ("LM_HEAD_SIMDS", tuning.lm_head_simds),
        ("ARGMAX_PARTS", tuning.argmax_parts),
        ("ARGMAX_SIMDS", tuning.argmax_simds),
        ("ROW_SIMDS", tuning.row_simds),
        ("GDN_SIMDS", gdn_simds(c, tuning)),
        ("GDN_AHEAD", tuning.gdn_ahead),
        ("SCAN_COLUMNS", tuning.scan_columns),
        ("SCAN_SIMDS", tuning.scan_simds),
        ("ATTN_SIMDS", tuning.attn_simds),
        ("ATTN_AHEAD", tuning.attn_ahead),
        ("COMBINE_SIMDS", tuning.combine_simds),
        ("FLASH_SIMDS", tuning.flash_simds),
    ] {
        define(name, &value);
    }
    define("EPSILON", &format_args!("{:e}f", c.rms_norm_eps));
    define("ATTN_SCALE", &format_args!("{:e}f", 1.0 / (c.head_dim as f32).sqrt()));
    // Stands for minus infinity, which fast math may assume away.
    define("MASKED", &"-1.0e30f");
    define("NO_TOKEN", &format_args!("{NO_TOKEN}u"));
    for role in Role::ALL {
        if let Some(storage) = table.get(&role) {
            define(&format!("{}_BITS", role.name()), &storage.bits);
            define(&format!("{}_GROUP", role.name()), &storage.group);
        }
    }
    let turns: Vec<String> = (0..c.rotary_dim / 2).map(|pair| turn(c, pair)).collect();
    let _ = writeln!(text, "constant float ROPE[{}] = {{{}}};", turns.len() * 2, turns.join(", "));
    text
}

/// Turns a position that a pair rotates by, as the sum of two floats.
fn turn(config: &ModelConfig, pair: usize) -> String {
    let exponent = -2.0 * pair as f64 / config.rotary_dim as f64;
    let turns = config.rope_theta.powf(exponent) / std::f64::consts::TAU;
    let high = turns as f32;
    let low = (turns - f64::from(high)) as f32;
    format!("{high:e}f, {low:e}f")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::roles::Storage;
    use lily_model::config::Quantization;

    fn config(q_heads: usize, kv_heads: usize, head_dim: usize) -> ModelConfig {
        ModelConfig {
            num_attention_heads: q_heads,
            num_key_value_heads: kv_heads,
            head_dim,
            ..ModelConfig::qwen36_35b_a3b()
        }
    }

    #[test]
    fn up_to_eight_heads_are_packed_and_no_more_than_lanes_read_a_key() {
        assert_eq!(packed_heads(&config(16, 2, 256)), 8);
        assert_eq!(packed_heads(&config(18, 2, 256)), 3);
        assert_eq!(packed_heads(&config(7, 1, 256)), 7);
        assert_eq!(packed_heads(&config(22, 2, 256)), 1);
        assert_eq!([64, 32].map(|dim| packed_heads(&config(8, 1, dim))), [8, 4]);
    }

    #[test]
    fn simdgroups_of_a_delta_net_head_share_its_rows_evenly() {
        let with = |rows| ModelConfig { linear_value_head_dim: rows, ..ModelConfig::qwen36_35b_a3b() };
        assert_eq!([128, 96, 64, 32].map(|rows| gdn_simds(&with(rows), &Tuning::APPLE)), [16, 12, 16, 8]);
    }

    #[test]
    fn every_matvec_of_the_published_geometry_has_four_loads_in_flight() {
        let c = ModelConfig::qwen36_35b_a3b();
        let four = Storage::of(Some(Quantization { bits: 4, group_size: 64 }), c.hidden_size);
        let eight = Storage::of(Some(Quantization { bits: 8, group_size: 64 }), c.hidden_size);
        let t = Tuning::APPLE;
        for (name, storage, inputs, out) in [
            ("in-projections", four, c.hidden_size, t.matvec_out),
            ("output projection", four, c.attention_dim(), t.out_proj_out),
            ("router", eight, c.hidden_size, t.router_out),
            ("gate and up", four, c.hidden_size, t.expert_out),
            ("down", four, c.moe_intermediate_size, t.down_out),
            ("head", four, c.hidden_size, t.lm_head_out),
        ] {
            // As `matvec_add` decides: AHEAD steps of OUT rows are loaded before the first is used.
            let steps = storage.vectors(inputs).div_ceil(32 / storage.side(inputs));
            let ahead = if out >= 4 || steps % 2 != 0 { 1 } else { 2 };
            assert!(ahead * out >= 4, "{name}: {ahead} steps of {out} rows");
        }
    }
}
