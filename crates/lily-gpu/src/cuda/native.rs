//! Native variants: kernels written for NVIDIA GPUs that stand in for a translated one, with the same name, the same
//! arguments and the same results. Which of them a model can use is a pure function of its constants; how they are launched,
//! of those and of the dispatch.
//!
//! A variant exists only where `docs/LOG.md` shows what it gains.

use std::collections::HashMap;

use crate::program::Dispatch;
use crate::source::LibrarySource;

/// Compute capability that the variants are written for.
pub const CAPABILITY: u32 = 90;

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        [$(($name, include_str!(concat!("../../kernels/cuda/", $name)))),*]
    };
}

/// Source files, in the order they are compiled.
pub const FILES: &[(&str, &str)] = &files![
    "common.cu",
    "matvec.cu",
    "router.cu",
    "experts.cu",
    "attn_decode.cu",
    "wgmma.cu",
    "gemm.cu",
    "attn_prefill.cu",
    "gdn_scan.cu",
    "gdn_step.cu",
    "rows.cu",
];

/// The integer constants of a library.
#[derive(Debug, Clone)]
pub struct Constants(HashMap<String, i64>);

impl Constants {
    /// Reads the definitions that a library's source begins with.
    pub fn of(source: &LibrarySource) -> Self {
        let text = source.parts.first().map_or("", |(_, text)| text.as_str());
        let define = |line: &str| {
            let (name, value) = line.strip_prefix("#define ")?.split_once(' ')?;
            Some((name.to_string(), value.parse().ok()?))
        };
        Constants(text.lines().filter_map(define).collect())
    }

    /// A constant; 0 where there is none.
    fn get(&self, name: &str) -> u32 {
        self.0.get(name).copied().and_then(|v| u32::try_from(v).ok()).unwrap_or(0)
    }

    /// Whether a role is stored as 4 bits with a scale every 64.
    fn four_bits(&self, roles: &[&str]) -> bool {
        roles.iter().all(|r| self.get(&format!("{r}_BITS")) == 4 && self.get(&format!("{r}_GROUP")) == 64)
    }

    fn eight_bits(&self, roles: &[&str]) -> bool {
        roles.iter().all(|r| self.get(&format!("{r}_BITS")) == 8 && self.get(&format!("{r}_GROUP")) == 64)
    }
}

/// How a variant is launched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub threads: u32,
    /// Bytes of dynamic shared memory.
    pub shared: u32,
}

/// A native variant.
#[derive(Clone, Copy)]
pub struct Variant {
    /// Kernel that it stands in for.
    pub kernel: &'static str,
    /// Its own name: a kernel may have one variant for a few rows and one for many.
    pub name: &'static str,
    /// Whether it can compute a model of these constants.
    pub serves: fn(&Constants) -> bool,
    /// Whether it is the one for a dispatch of its kernel.
    pub takes: fn(&Dispatch) -> bool,
    /// Its launch for a dispatch of the kernel.
    pub shape: fn(&Constants, &Dispatch) -> Shape,
    /// Dynamic shared memory it may ask for.
    pub most_shared: fn(&Constants) -> u32,
    /// What runs just before it.
    pub before: Option<Before>,
}

/// A kernel that runs just before a variant: both get the arguments of the dispatch and then memory that only they use.
#[derive(Clone, Copy)]
pub struct Before {
    /// Name of its function.
    pub symbol: &'static str,
    /// Its launch.
    pub shape: fn(&Constants, &Dispatch) -> Shape,
    /// Dynamic shared memory it may ask for.
    pub most_shared: u32,
    /// Bytes of the memory between them.
    pub memory: fn(&Constants, &Dispatch) -> u64,
}

impl Variant {
    /// Name of its function.
    pub fn symbol(&self) -> String {
        format!("native_{}", self.name)
    }
}

/// Inputs that a warp of a matvec multiplies.
const PART: u32 = 512;

fn matvec_shape(outputs: u32, inputs: u32, dispatch: &Dispatch) -> Shape {
    Shape { grid: [outputs.div_ceil(16), dispatch.grid[1], 1], threads: inputs / PART * 32, shared: 0 }
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

fn in_proj_gemm(c: &Constants, outputs: &[u32], dispatch: &Dispatch) -> Shape {
    let hidden = c.get("HIDDEN");
    Shape {
        // Row tiles of 64 become tiles of 128; neighbours in launch order share the weights.
        grid: [dispatch.grid[1].div_ceil(2), outputs.iter().map(|&o| tiles(o)).sum(), 1],
        threads: GEMM_THREADS,
        shared: gemm_shared(128, GEMM_OUTPUTS, hidden),
    }
}

fn out_proj_gemm(c: &Constants, inputs: u32, dispatch: &Dispatch) -> Shape {
    Shape {
        grid: [dispatch.grid[1].div_ceil(2), tiles(c.get("HIDDEN")), 1],
        threads: GEMM_THREADS,
        shared: gemm_shared(128, GEMM_OUTPUTS, inputs),
    }
}

fn grouped(columns: u32, tokens: u32, inputs: u32, dispatch: &Dispatch) -> Shape {
    Shape {
        grid: [columns, dispatch.grid[1], 1],
        threads: GEMM_THREADS,
        shared: gemm_shared(tokens, 2 * GEMM_OUTPUTS, inputs),
    }
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
    Variant {
        kernel: "gdn_in_proj",
        name: "gdn_in_proj",
        takes: |_| true,
        serves: |c| c.four_bits(&["QKV", "Z", "B", "A"]) && matvec_serves(c.get("HIDDEN")) && c.get("ROW_TILE") == 4,
        shape: |c, d| {
            let outputs = ["CONV_DIM", "VALUE_DIM", "VALUE_HEADS", "VALUE_HEADS"].map(|n| c.get(n).div_ceil(16) * 16);
            matvec_shape(outputs.iter().sum(), c.get("HIDDEN"), d)
        },
        most_shared: |_| 0,
        before: None,
    },
    Variant {
        kernel: "attn_in_proj",
        name: "attn_in_proj",
        takes: |_| true,
        serves: |c| c.four_bits(&["Q", "K", "V"]) && matvec_serves(c.get("HIDDEN")) && c.get("ROW_TILE") == 4,
        shape: |c, d| {
            let outputs = [2 * c.get("Q_DIM"), c.get("KV_DIM"), c.get("KV_DIM")].map(|n| n.div_ceil(16) * 16);
            matvec_shape(outputs.iter().sum(), c.get("HIDDEN"), d)
        },
        most_shared: |_| 0,
        before: None,
    },
    Variant {
        kernel: "out_proj_norm_gdn",
        name: "out_proj_norm_gdn",
        takes: |_| true,
        serves: |c| c.four_bits(&["GDN_OUT"]) && matvec_serves(c.get("VALUE_DIM")) && c.get("ROW_TILE") == 4,
        shape: |c, d| matvec_shape(c.get("HIDDEN"), c.get("VALUE_DIM"), d),
        most_shared: |_| 0,
        before: None,
    },
    Variant {
        kernel: "out_proj_norm_attn",
        name: "out_proj_norm_attn",
        takes: |_| true,
        serves: |c| c.four_bits(&["O"]) && matvec_serves(c.get("Q_DIM")) && c.get("ROW_TILE") == 4,
        shape: |c, d| matvec_shape(c.get("HIDDEN"), c.get("Q_DIM"), d),
        most_shared: |_| 0,
        before: None,
    },
    Variant {
        kernel: "lm_head",
        name: "lm_head",
        takes: |_| true,
        serves: |c| c.four_bits(&["LM_HEAD"]) && matvec_serves(c.get("HIDDEN")) && c.get("ROW_TILE") == 4,
        shape: |c, d| matvec_shape(c.get("VOCAB"), c.get("HIDDEN"), d),
        most_shared: |_| 0,
        before: None,
    },
    Variant {
        kernel: "router",
        name: "router",
        takes: |d| d.grid[1] <= ROUTED_TILES,
        serves: router_serves,
        shape: |c, d| Shape { grid: [c.get("EXPERTS") / 8 + 1, d.grid[1], 1], threads: 256, shared: 0 },
        most_shared: |_| 0,
        before: None,
    },
    Variant {
        kernel: "router",
        name: "router_many",
        takes: |d| d.grid[1] > ROUTED_TILES,
        serves: router_serves,
        shape: |c, d| Shape {
            grid: [d.grid[1].div_ceil(8), 1, 1],
            threads: 256,
            shared: router_shared(c.get("HIDDEN"), c.get("EXPERTS")),
        },
        most_shared: |c| router_shared(c.get("HIDDEN"), c.get("EXPERTS")),
        before: None,
    },
    Variant {
        kernel: "expert_gate_up",
        name: "expert_gate_up",
        takes: |_| true,
        serves: |c| {
            c.four_bits(&["SWITCH_GATE", "SWITCH_UP", "SHARED_GATE_PROJ", "SHARED_UP"])
                && matvec_serves(c.get("HIDDEN"))
                && c.get("HIDDEN") <= 4096
                && c.get("INNER").is_multiple_of(16)
                && c.get("INNER") == c.get("SHARED_INNER")
        },
        shape: |c, d| Shape {
            grid: [c.get("INNER") / 16, d.grid[1], d.grid[2]],
            threads: c.get("HIDDEN") / PART * 64,
            shared: 0,
        },
        most_shared: |_| 0,
        before: None,
    },
    Variant {
        kernel: "expert_down_norm",
        name: "expert_down_norm",
        takes: |_| true,
        serves: |c| {
            c.four_bits(&["SWITCH_DOWN", "SHARED_DOWN"])
                && c.get("INNER") == PART
                && c.get("SHARED_INNER") == PART
                && c.get("TOP_K") <= 15
                && c.get("HIDDEN").is_multiple_of(16)
        },
        shape: |c, d| Shape {
            grid: [c.get("HIDDEN") / 16, d.grid[1], 1],
            threads: (c.get("TOP_K") + 1) * 32,
            shared: 0,
        },
        most_shared: |_| 0,
        before: None,
    },
    Variant {
        kernel: "attn_decode",
        name: "attn_decode",
        takes: |_| true,
        serves: |c| c.get("HEAD_DIM") == 256 && c.get("ROTARY_DIM") == 64 && c.get("PACKED") == 8,
        shape: |_, d| Shape { grid: d.grid, threads: 256, shared: 0 },
        most_shared: |_| 0,
        before: None,
    },
    Variant {
        kernel: "attn_combine",
        name: "attn_combine",
        takes: |_| true,
        serves: |c| c.get("HEAD_DIM").is_multiple_of(64),
        shape: |c, d| Shape { grid: [d.grid[0], c.get("HEAD_DIM") / 64, d.grid[1]], threads: 256, shared: 0 },
        most_shared: |_| 0,
        before: None,
    },
    Variant {
        kernel: "gdn_in_proj_gemm",
        name: "gdn_in_proj_gemm",
        takes: |_| true,
        serves: |c| c.four_bits(&["QKV", "Z", "B", "A"]) && gemm_serves(c.get("HIDDEN")),
        shape: |c, d| in_proj_gemm(c, &["CONV_DIM", "VALUE_DIM", "VALUE_HEADS", "VALUE_HEADS"].map(|n| c.get(n)), d),
        most_shared: |c| gemm_shared(128, GEMM_OUTPUTS, c.get("HIDDEN")),
        before: None,
    },
    Variant {
        kernel: "attn_in_proj_gemm",
        name: "attn_in_proj_gemm",
        takes: |_| true,
        serves: |c| c.four_bits(&["Q", "K", "V"]) && gemm_serves(c.get("HIDDEN")),
        shape: |c, d| in_proj_gemm(c, &[2 * c.get("Q_DIM"), c.get("KV_DIM"), c.get("KV_DIM")], d),
        most_shared: |c| gemm_shared(128, GEMM_OUTPUTS, c.get("HIDDEN")),
        before: None,
    },
    Variant {
        kernel: "out_proj_gemm_gdn",
        name: "out_proj_gemm_gdn",
        takes: |_| true,
        serves: |c| c.four_bits(&["GDN_OUT"]) && gemm_serves(c.get("VALUE_DIM")),
        shape: |c, d| out_proj_gemm(c, c.get("VALUE_DIM"), d),
        most_shared: |c| gemm_shared(128, GEMM_OUTPUTS, c.get("VALUE_DIM")),
        before: None,
    },
    Variant {
        kernel: "out_proj_gemm_attn",
        name: "out_proj_gemm_attn",
        takes: |_| true,
        serves: |c| c.four_bits(&["O"]) && gemm_serves(c.get("Q_DIM")),
        shape: |c, d| out_proj_gemm(c, c.get("Q_DIM"), d),
        most_shared: |c| gemm_shared(128, GEMM_OUTPUTS, c.get("Q_DIM")),
        before: None,
    },
    Variant {
        kernel: "grouped_gate_up_32",
        name: "grouped_gate_up_32",
        takes: |_| true,
        serves: gate_up_serves,
        shape: |c, d| grouped(c.get("INNER") / 256, 32, c.get("HIDDEN"), d),
        most_shared: |c| gemm_shared(32, 2 * GEMM_OUTPUTS, c.get("HIDDEN")),
        before: None,
    },
    Variant {
        kernel: "grouped_gate_up_64",
        name: "grouped_gate_up_64",
        takes: |_| true,
        serves: gate_up_serves,
        shape: |c, d| grouped(c.get("INNER") / 256, 64, c.get("HIDDEN"), d),
        most_shared: |c| gemm_shared(64, 2 * GEMM_OUTPUTS, c.get("HIDDEN")),
        before: None,
    },
    Variant {
        kernel: "shared_gate_up",
        name: "shared_gate_up",
        takes: |_| true,
        serves: |c| {
            c.four_bits(&["SHARED_GATE_PROJ", "SHARED_UP"])
                && wide_serves(c.get("HIDDEN"))
                && c.get("SHARED_INNER").is_multiple_of(256)
        },
        shape: |c, d| grouped(c.get("SHARED_INNER") / 256, 64, c.get("HIDDEN"), d),
        most_shared: |c| gemm_shared(64, 2 * GEMM_OUTPUTS, c.get("HIDDEN")),
        before: None,
    },
    Variant {
        kernel: "grouped_down_32",
        name: "grouped_down_32",
        takes: |_| true,
        serves: down_serves,
        shape: |c, d| grouped(c.get("HIDDEN") / 512, 32, c.get("INNER"), d),
        most_shared: |c| gemm_shared(32, 2 * GEMM_OUTPUTS, c.get("INNER")),
        before: None,
    },
    Variant {
        kernel: "grouped_down_64",
        name: "grouped_down_64",
        takes: |_| true,
        serves: down_serves,
        shape: |c, d| grouped(c.get("HIDDEN") / 512, 64, c.get("INNER"), d),
        most_shared: |c| gemm_shared(64, 2 * GEMM_OUTPUTS, c.get("INNER")),
        before: None,
    },
    Variant {
        kernel: "shared_down",
        name: "shared_down",
        takes: |_| true,
        serves: |c| {
            c.four_bits(&["SHARED_DOWN"]) && wide_serves(c.get("SHARED_INNER")) && c.get("HIDDEN").is_multiple_of(512)
        },
        shape: |c, d| grouped(c.get("HIDDEN") / 512, 64, c.get("SHARED_INNER"), d),
        most_shared: |c| gemm_shared(64, 2 * GEMM_OUTPUTS, c.get("SHARED_INNER")),
        before: None,
    },
    Variant {
        kernel: "attn_prefill",
        name: "attn_prefill",
        takes: |_| true,
        serves: |c| c.get("HEAD_DIM") == 256 && 128 % (c.get("Q_HEADS") / c.get("KV_HEADS").max(1)).max(1) == 0,
        shape: |c, d| {
            // Tiles of 8 * FLASH_SIMDS rows become tiles of 128.
            let rows = d.grid[0] * 8 * c.get("FLASH_SIMDS");
            Shape { grid: [rows.div_ceil(128), d.grid[1], d.grid[2]], threads: 256, shared: ATTN_PREFILL_SHARED }
        },
        most_shared: |_| ATTN_PREFILL_SHARED,
        before: None,
    },
    Variant {
        kernel: "gdn_scan",
        name: "gdn_scan",
        takes: |_| true,
        serves: |c| c.get("DK") == 128 && c.get("DV") == 128,
        shape: |c, d| Shape { grid: [c.get("VALUE_HEADS"), 4, d.grid[2]], threads: 256, shared: SCAN_SHARED },
        most_shared: |_| SCAN_SHARED,
        before: Some(Before {
            symbol: "native_gdn_scan_factors",
            shape: |c, d| Shape {
                grid: [scan_rows(c, d).div_ceil(64), c.get("VALUE_HEADS"), d.grid[2]],
                threads: 128,
                shared: SCAN_FACTORS_SHARED,
            },
            most_shared: SCAN_FACTORS_SHARED,
            memory: |c, d| u64::from(scan_rows(c, d)) * u64::from(c.get("VALUE_HEADS")) * 512,
        }),
    },
    Variant {
        kernel: "gdn_step",
        name: "gdn_step",
        takes: |_| true,
        serves: |c| c.get("DK") == 128 && c.get("DV") == 128,
        shape: |c, d| Shape { grid: [4, c.get("VALUE_HEADS"), d.grid[1]], threads: 256, shared: 0 },
        most_shared: |_| 0,
        before: None,
    },
    Variant {
        kernel: "combine",
        name: "combine",
        takes: |_| true,
        serves: |c| c.get("HIDDEN").is_multiple_of(128) && c.get("HIDDEN") <= 4096 && c.get("TOP_K") <= 15,
        shape: |c, d| Shape { grid: d.grid, threads: c.get("HIDDEN") / 4, shared: 0 },
        most_shared: |_| 0,
        before: None,
    },
    Variant {
        kernel: "gdn_conv",
        name: "gdn_conv",
        takes: |_| true,
        serves: |c| c.get("DK") == 128 && c.get("DV") == 128,
        shape: |c, d| {
            let heads = 2 * c.get("KEY_HEADS") + c.get("VALUE_HEADS");
            Shape { grid: [heads.div_ceil(4), d.grid[1].div_ceil(8), 1], threads: 128, shared: 0 }
        },
        most_shared: |_| 0,
        before: None,
    },
    Variant {
        kernel: "route_place_32",
        name: "route_place_32",
        takes: |_| true,
        serves: |c| c.get("TOP_K").is_multiple_of(4),
        shape: |_, d| Shape { grid: d.grid, threads: 256, shared: 0 },
        most_shared: |_| 0,
        before: None,
    },
    Variant {
        kernel: "route_place_64",
        name: "route_place_64",
        takes: |_| true,
        serves: |c| c.get("TOP_K").is_multiple_of(4),
        shape: |_, d| Shape { grid: d.grid, threads: 256, shared: 0 },
        most_shared: |_| 0,
        before: None,
    },
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

/// Variants that serve a library.
pub fn serving(constants: &Constants) -> Vec<Variant> {
    VARIANTS.iter().copied().filter(|v| (v.serves)(constants)).collect()
}

/// CUDA text of the variants that serve a library.
pub fn source(library: &LibrarySource, constants: &Constants) -> String {
    let mut text = String::from("#define constant static __device__ const\n");
    text.push_str(library.parts.first().map_or("", |(_, text)| text.as_str()));
    for variant in serving(constants) {
        text.push_str(&format!("#define NATIVE_{} 1\n", variant.name.to_uppercase()));
    }
    for (name, file) in FILES {
        text.push_str(&format!("#line 1 \"{name}\"\n{file}\n"));
    }
    text
}

impl std::fmt::Debug for Variant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Variant").field("kernel", &self.kernel).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn constants(text: &str) -> Constants {
        let source = LibrarySource { parts: vec![("constants", text.to_string())], metal_version: 400 };
        Constants::of(&source)
    }

    fn served(constants: &Constants, kernel: &str) -> bool {
        serving(constants).iter().any(|v| v.kernel == kernel)
    }

    #[test]
    fn a_matvec_serves_four_bits_and_inputs_in_parts_of_512() {
        let with = |bits: u32, hidden: u32| {
            constants(&format!(
                "#define HIDDEN {hidden}\n#define LM_HEAD_BITS {bits}\n#define LM_HEAD_GROUP 64\n#define ROW_TILE 4\n"
            ))
        };
        assert!(served(&with(4, 2048), "lm_head"));
        assert!(!served(&with(8, 2048), "lm_head"));
        assert!(!served(&with(4, 2048 + 256), "lm_head"));
        assert!(served(&with(4, 8192), "lm_head"));
        assert!(!served(&with(4, 8192 + 512), "lm_head"));
    }

    #[test]
    fn attention_serves_heads_of_256_alone() {
        let with = |dim: u32| {
            constants(&format!(
                "#define HEAD_DIM {dim}\n#define ROTARY_DIM 64\n#define PACKED 8\n#define Q_HEADS 16\n#define KV_HEADS 2\n"
            ))
        };
        assert!(served(&with(256), "attn_decode") && served(&with(256), "attn_prefill"));
        assert!(!served(&with(128), "attn_decode") && !served(&with(128), "attn_prefill"));
    }

    #[test]
    fn decode_attention_serves_a_rotation_of_64_dims_alone() {
        let with = |rotary: u32| {
            constants(&format!(
                "#define HEAD_DIM 256\n#define ROTARY_DIM {rotary}\n#define PACKED 8\n#define Q_HEADS 16\n#define KV_HEADS 2\n"
            ))
        };
        assert!(served(&with(64), "attn_decode"));
        assert!(!served(&with(128), "attn_decode") && served(&with(128), "attn_prefill"));
    }

    #[test]
    fn no_variant_that_serves_asks_for_more_shared_memory_than_a_multiprocessor_has() {
        for hidden in (512..=8192).step_by(512) {
            for inner in (256..=8192).step_by(256) {
                let mut text = String::new();
                for role in
                    ["QKV", "Z", "B", "A", "Q", "K", "V", "GDN_OUT", "O", "SWITCH_GATE", "SWITCH_UP", "SWITCH_DOWN"]
                {
                    text += &format!("#define {role}_BITS 4\n#define {role}_GROUP 64\n");
                }
                for role in ["SHARED_GATE_PROJ", "SHARED_UP", "SHARED_DOWN", "LM_HEAD"] {
                    text += &format!("#define {role}_BITS 4\n#define {role}_GROUP 64\n");
                }
                for role in ["GATE", "SHARED_GATE"] {
                    text += &format!("#define {role}_BITS 8\n#define {role}_GROUP 64\n");
                }
                for (name, value) in [("HIDDEN", hidden), ("VALUE_DIM", hidden), ("Q_DIM", hidden), ("INNER", inner)] {
                    text += &format!("#define {name} {value}\n");
                }
                text += &format!(
                    "#define SHARED_INNER {inner}\n#define EXPERTS 256\n#define TOP_K 8\n#define ROW_TILE 4\n"
                );
                text += "#define HEAD_DIM 256\n#define ROTARY_DIM 64\n#define PACKED 8\n#define Q_HEADS 16\n#define KV_HEADS 2\n";
                text += "#define DK 128\n#define DV 128\n";
                let constants = constants(&text);
                for variant in serving(&constants) {
                    let before = variant.before.map_or(0, |b| b.most_shared);
                    let most = (variant.most_shared)(&constants).max(before);
                    assert!(most <= 227 * 1024, "{} at {hidden}, {inner}: {most}", variant.name);
                }
            }
        }
    }
}
