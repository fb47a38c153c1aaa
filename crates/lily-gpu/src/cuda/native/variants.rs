//! The table of native variants: which kernels have one, for which models it serves, and how it is launched.

use super::{Before, Constants, Shape, Variant};
use crate::program::Dispatch;

/// A variant that takes every dispatch of its kernel, needs no dynamic shared memory, and nothing before it.
const fn variant(
    kernel: &'static str,
    serves: fn(&Constants) -> bool,
    shape: fn(&Constants, &Dispatch) -> Shape,
) -> Variant {
    Variant { kernel, name: kernel, serves, takes: |_| true, shape, shared: |_| 0, before: None }
}

/// Inputs that a warp of a matvec multiplies.
const PART: u32 = 512;

fn matvec_shape(outputs: u32, inputs: u32, dispatch: &Dispatch) -> Shape {
    Shape { grid: [outputs.div_ceil(16), dispatch.grid[1], 1], threads: inputs / PART * 32 }
}

fn matvec_serves(inputs: u32) -> bool {
    inputs.is_multiple_of(PART) && (1..=16).contains(&(inputs / PART))
}

/// Outputs of a block of a matrix product.
const GEMM_OUTPUTS: u32 = 256;
const GEMM_THREADS: u32 = 512;
const GEMM_STAGES: u32 = 5;

/// Dynamic shared memory of a product: a stage holds `tokens` rows and `outputs` rows of 64 inputs; then every scale.
fn gemm_shared(tokens: u32, outputs: u32, inputs: u32) -> u32 {
    let stage = tokens * 128 + outputs * 32;
    1024 + GEMM_STAGES * stage + outputs * 2 * (inputs / 64 * 2 + 16)
}

fn gemm_serves(inputs: u32) -> bool {
    inputs.is_multiple_of(512) && inputs <= 4096
}

fn tiles(outputs: u32) -> u32 {
    outputs.div_ceil(GEMM_OUTPUTS)
}

fn in_proj_gemm(outputs: &[u32], dispatch: &Dispatch) -> Shape {
    Shape {
        // Row tiles of 64 become tiles of 128; neighbours in launch order share the weights.
        grid: [dispatch.grid[1].div_ceil(2), outputs.iter().map(|&o| tiles(o)).sum(), 1],
        threads: GEMM_THREADS,
    }
}

fn out_proj_gemm(c: &Constants, dispatch: &Dispatch) -> Shape {
    Shape { grid: [dispatch.grid[1].div_ceil(2), tiles(c.get("HIDDEN")), 1], threads: GEMM_THREADS }
}

fn grouped(columns: u32, dispatch: &Dispatch) -> Shape {
    Shape { grid: [columns, dispatch.grid[1], 1], threads: GEMM_THREADS }
}

fn wide_serves(inputs: u32) -> bool {
    inputs.is_multiple_of(512) && inputs <= 2048
}

fn gate_up_serves(c: &Constants) -> bool {
    c.four_bits(&["SWITCH_GATE", "SWITCH_UP"]) && wide_serves(c.get("HIDDEN")) && c.get("INNER").is_multiple_of(256)
}

fn down_serves(c: &Constants) -> bool {
    c.four_bits(&["SWITCH_DOWN"]) && wide_serves(c.get("INNER")) && c.get("HIDDEN").is_multiple_of(512)
}

/// Row tiles up to which the router's logits are computed a row at a time.
const ROUTED_TILES: u32 = 4;

fn router_serves(c: &Constants) -> bool {
    c.eight_bits(&["GATE", "SHARED_GATE"])
        && c.get("HIDDEN").is_multiple_of(512)
        && c.get("HIDDEN") <= 2048
        && c.get("EXPERTS").is_multiple_of(32)
        && c.get("EXPERTS") <= 256
        && c.get("TOP_K") <= 32
        && c.get("ROW_TILE") == 4
}

/// Rows [32][hidden + 8] bf16, sums of their groups and logits in f32.
fn router_shared(hidden: u32, experts: u32) -> u32 {
    32 * ((hidden + 8) * 2 + (hidden / 64 + 1) * 4 + (experts + 4) * 4)
}

/// All variants.
pub const VARIANTS: &[Variant] = &[
    variant(
        "gdn_in_proj",
        |c| c.four_bits(&["QKV", "Z", "B", "A"]) && matvec_serves(c.get("HIDDEN")) && c.get("ROW_TILE") == 4,
        |c, d| {
            let outputs = ["CONV_DIM", "VALUE_DIM", "VALUE_HEADS", "VALUE_HEADS"].map(|n| c.get(n).div_ceil(16) * 16);
            matvec_shape(outputs.iter().sum(), c.get("HIDDEN"), d)
        },
    ),
    variant(
        "attn_in_proj",
        |c| c.four_bits(&["Q", "K", "V"]) && matvec_serves(c.get("HIDDEN")) && c.get("ROW_TILE") == 4,
        |c, d| {
            let outputs = [2 * c.get("Q_DIM"), c.get("KV_DIM"), c.get("KV_DIM")].map(|n| n.div_ceil(16) * 16);
            matvec_shape(outputs.iter().sum(), c.get("HIDDEN"), d)
        },
    ),
    variant(
        "out_proj_norm_gdn",
        |c| c.four_bits(&["GDN_OUT"]) && matvec_serves(c.get("VALUE_DIM")) && c.get("ROW_TILE") == 4,
        |c, d| matvec_shape(c.get("HIDDEN"), c.get("VALUE_DIM"), d),
    ),
    variant(
        "out_proj_norm_attn",
        |c| c.four_bits(&["O"]) && matvec_serves(c.get("Q_DIM")) && c.get("ROW_TILE") == 4,
        |c, d| matvec_shape(c.get("HIDDEN"), c.get("Q_DIM"), d),
    ),
    variant(
        "lm_head",
        |c| c.four_bits(&["LM_HEAD"]) && matvec_serves(c.get("HIDDEN")) && c.get("ROW_TILE") == 4,
        |c, d| matvec_shape(c.get("VOCAB"), c.get("HIDDEN"), d),
    ),
    Variant {
        takes: |d| d.grid[1] <= ROUTED_TILES,
        ..variant("router", router_serves, |c, d| Shape {
            grid: [c.get("EXPERTS") / 8 + 1, d.grid[1], 1],
            threads: 256,
        })
    },
    Variant {
        name: "router_many",
        takes: |d| d.grid[1] > ROUTED_TILES,
        shared: |c| router_shared(c.get("HIDDEN"), c.get("EXPERTS")),
        ..variant("router", router_serves, |_, d| Shape { grid: [d.grid[1].div_ceil(8), 1, 1], threads: 256 })
    },
    variant(
        "expert_gate_up",
        |c| {
            c.four_bits(&["SWITCH_GATE", "SWITCH_UP", "SHARED_GATE_PROJ", "SHARED_UP"])
                && matvec_serves(c.get("HIDDEN"))
                && c.get("HIDDEN") <= 4096
                && c.get("INNER").is_multiple_of(16)
                && c.get("INNER") == c.get("SHARED_INNER")
        },
        |c, d| Shape { grid: [c.get("INNER") / 16, d.grid[1], d.grid[2]], threads: c.get("HIDDEN") / PART * 64 },
    ),
    variant(
        "expert_down_norm",
        |c| {
            c.four_bits(&["SWITCH_DOWN", "SHARED_DOWN"])
                && c.get("INNER") == PART
                && c.get("SHARED_INNER") == PART
                && c.get("TOP_K") <= 15
                && c.get("HIDDEN").is_multiple_of(16)
        },
        |c, d| Shape { grid: [c.get("HIDDEN") / 16, d.grid[1], 1], threads: (c.get("TOP_K") + 1) * 32 },
    ),
    variant(
        "attn_decode",
        |c| c.get("HEAD_DIM") == 256 && c.get("ROTARY_DIM") == 64 && c.get("PACKED") == 8,
        |_, d| Shape { grid: d.grid, threads: 256 },
    ),
    variant(
        "attn_combine",
        |c| c.get("HEAD_DIM").is_multiple_of(64),
        |c, d| Shape { grid: [d.grid[0], c.get("HEAD_DIM") / 64, d.grid[1]], threads: 256 },
    ),
    Variant {
        shared: |c| gemm_shared(128, GEMM_OUTPUTS, c.get("HIDDEN")),
        ..variant(
            "gdn_in_proj_gemm",
            |c| c.four_bits(&["QKV", "Z", "B", "A"]) && gemm_serves(c.get("HIDDEN")),
            |c, d| in_proj_gemm(&["CONV_DIM", "VALUE_DIM", "VALUE_HEADS", "VALUE_HEADS"].map(|n| c.get(n)), d),
        )
    },
    Variant {
        shared: |c| gemm_shared(128, GEMM_OUTPUTS, c.get("HIDDEN")),
        ..variant(
            "attn_in_proj_gemm",
            |c| c.four_bits(&["Q", "K", "V"]) && gemm_serves(c.get("HIDDEN")),
            |c, d| in_proj_gemm(&[2 * c.get("Q_DIM"), c.get("KV_DIM"), c.get("KV_DIM")], d),
        )
    },
    Variant {
        shared: |c| gemm_shared(128, GEMM_OUTPUTS, c.get("VALUE_DIM")),
        ..variant("out_proj_gemm_gdn", |c| c.four_bits(&["GDN_OUT"]) && gemm_serves(c.get("VALUE_DIM")), out_proj_gemm)
    },
    Variant {
        shared: |c| gemm_shared(128, GEMM_OUTPUTS, c.get("Q_DIM")),
        ..variant("out_proj_gemm_attn", |c| c.four_bits(&["O"]) && gemm_serves(c.get("Q_DIM")), out_proj_gemm)
    },
    Variant {
        shared: |c| gemm_shared(32, 2 * GEMM_OUTPUTS, c.get("HIDDEN")),
        ..variant("grouped_gate_up_32", gate_up_serves, |c, d| grouped(c.get("INNER") / 256, d))
    },
    Variant {
        shared: |c| gemm_shared(64, 2 * GEMM_OUTPUTS, c.get("HIDDEN")),
        ..variant("grouped_gate_up_64", gate_up_serves, |c, d| grouped(c.get("INNER") / 256, d))
    },
    Variant {
        shared: |c| gemm_shared(64, 2 * GEMM_OUTPUTS, c.get("HIDDEN")),
        ..variant(
            "shared_gate_up",
            |c| {
                c.four_bits(&["SHARED_GATE_PROJ", "SHARED_UP"])
                    && wide_serves(c.get("HIDDEN"))
                    && c.get("SHARED_INNER").is_multiple_of(256)
            },
            |c, d| grouped(c.get("SHARED_INNER") / 256, d),
        )
    },
    Variant {
        shared: |c| gemm_shared(32, 2 * GEMM_OUTPUTS, c.get("INNER")),
        ..variant("grouped_down_32", down_serves, |c, d| grouped(c.get("HIDDEN") / 512, d))
    },
    Variant {
        shared: |c| gemm_shared(64, 2 * GEMM_OUTPUTS, c.get("INNER")),
        ..variant("grouped_down_64", down_serves, |c, d| grouped(c.get("HIDDEN") / 512, d))
    },
    Variant {
        shared: |c| gemm_shared(64, 2 * GEMM_OUTPUTS, c.get("SHARED_INNER")),
        ..variant(
            "shared_down",
            |c| {
                c.four_bits(&["SHARED_DOWN"])
                    && wide_serves(c.get("SHARED_INNER"))
                    && c.get("HIDDEN").is_multiple_of(512)
            },
            |c, d| grouped(c.get("HIDDEN") / 512, d),
        )
    },
    Variant {
        shared: |_| ATTN_PREFILL_SHARED,
        ..variant(
            "attn_prefill",
            |c| c.get("HEAD_DIM") == 256 && 128 % (c.get("Q_HEADS") / c.get("KV_HEADS").max(1)).max(1) == 0,
            |c, d| {
                // Tiles of 8 * FLASH_SIMDS rows become tiles of 128.
                let rows = d.grid[0] * 8 * c.get("FLASH_SIMDS");
                Shape { grid: [rows.div_ceil(128), d.grid[1], d.grid[2]], threads: 256 }
            },
        )
    },
    Variant {
        shared: |_| SCAN_SHARED,
        before: Some(Before {
            symbol: "native_gdn_scan_factors",
            shape: |c, d| Shape { grid: [scan_rows(c, d).div_ceil(64), c.get("VALUE_HEADS"), d.grid[2]], threads: 128 },
            shared: SCAN_FACTORS_SHARED,
            memory: |c, d| u64::from(scan_rows(c, d)) * u64::from(c.get("VALUE_HEADS")) * 512,
        }),
        ..variant(
            "gdn_scan",
            |c| c.get("DK") == 128 && c.get("DV") == 128,
            |c, d| Shape { grid: [c.get("VALUE_HEADS"), 4, d.grid[2]], threads: 256 },
        )
    },
    variant(
        "gdn_step",
        |c| c.get("DK") == 128 && c.get("DV") == 128,
        |c, d| Shape { grid: [4, c.get("VALUE_HEADS"), d.grid[1]], threads: 256 },
    ),
    variant(
        "combine",
        |c| c.get("HIDDEN").is_multiple_of(128) && c.get("HIDDEN") <= 4096 && c.get("TOP_K") <= 15,
        |c, d| Shape { grid: d.grid, threads: c.get("HIDDEN") / 4 },
    ),
    variant(
        "gdn_conv",
        |c| c.get("DK") == 128 && c.get("DV") == 128,
        |c, d| {
            let heads = 2 * c.get("KEY_HEADS") + c.get("VALUE_HEADS");
            Shape { grid: [heads.div_ceil(4), d.grid[1].div_ceil(8), 1], threads: 128 }
        },
    ),
    variant("route_place_32", |c| c.get("TOP_K").is_multiple_of(4), |_, d| Shape { grid: d.grid, threads: 256 }),
    variant("route_place_64", |c| c.get("TOP_K").is_multiple_of(4), |_, d| Shape { grid: d.grid, threads: 256 }),
];

/// Rows of a scan: those of its first argument, f32 `[rows, conv dim]`.
fn scan_rows(c: &Constants, dispatch: &Dispatch) -> u32 {
    let mixed = dispatch.bindings.iter().find(|b| b.index == 0).map_or(0, |b| b.span.bytes);
    (mixed / 4 / u64::from(c.get("CONV_DIM").max(1))) as u32
}

/// Four tiles of keys [64][144], two of factors [64][80], the state [32][144] and two times [32][80], f32.
const SCAN_SHARED: u32 = 4 * (4 * 64 * 144 + 2 * 64 * 80 + 32 * 144 + 2 * 32 * 80);
/// Keys and queries [64][144] and the system [64][68], f32.
const SCAN_FACTORS_SHARED: u32 = 4 * (2 * 64 * 144 + 64 * 68);

/// Queries [128][256], two tiles of keys and two of values [64][256], bf16.
const ATTN_PREFILL_SHARED: u32 = 128 * 512 + 4 * 64 * 512 + 1024;
