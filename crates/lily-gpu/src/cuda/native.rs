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
    /// Whether it can compute a model of these constants.
    pub serves: fn(&Constants) -> bool,
    /// Its launch for a dispatch of the kernel.
    pub shape: fn(&Constants, &Dispatch) -> Shape,
    /// Dynamic shared memory it may ask for.
    pub most_shared: fn(&Constants) -> u32,
}

/// Name of a variant's function.
pub fn symbol(kernel: &str) -> String {
    format!("native_{kernel}")
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
    1024 + GEMM_STAGES * stage + outputs * 2 * (inputs / 64 * 2 + 16) + tokens * 8
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

/// All variants.
pub const VARIANTS: &[Variant] = &[
    Variant {
        kernel: "gdn_in_proj",
        serves: |c| c.four_bits(&["QKV", "Z", "B", "A"]) && matvec_serves(c.get("HIDDEN")) && c.get("ROW_TILE") == 4,
        shape: |c, d| {
            let outputs = ["CONV_DIM", "VALUE_DIM", "VALUE_HEADS", "VALUE_HEADS"].map(|n| c.get(n).div_ceil(16) * 16);
            matvec_shape(outputs.iter().sum(), c.get("HIDDEN"), d)
        },
        most_shared: |_| 0,
    },
    Variant {
        kernel: "attn_in_proj",
        serves: |c| c.four_bits(&["Q", "K", "V"]) && matvec_serves(c.get("HIDDEN")) && c.get("ROW_TILE") == 4,
        shape: |c, d| {
            let outputs = [2 * c.get("Q_DIM"), c.get("KV_DIM"), c.get("KV_DIM")].map(|n| n.div_ceil(16) * 16);
            matvec_shape(outputs.iter().sum(), c.get("HIDDEN"), d)
        },
        most_shared: |_| 0,
    },
    Variant {
        kernel: "out_proj_norm_gdn",
        serves: |c| c.four_bits(&["GDN_OUT"]) && matvec_serves(c.get("VALUE_DIM")) && c.get("ROW_TILE") == 4,
        shape: |c, d| matvec_shape(c.get("HIDDEN"), c.get("VALUE_DIM"), d),
        most_shared: |_| 0,
    },
    Variant {
        kernel: "out_proj_norm_attn",
        serves: |c| c.four_bits(&["O"]) && matvec_serves(c.get("Q_DIM")) && c.get("ROW_TILE") == 4,
        shape: |c, d| matvec_shape(c.get("HIDDEN"), c.get("Q_DIM"), d),
        most_shared: |_| 0,
    },
    Variant {
        kernel: "lm_head",
        serves: |c| c.four_bits(&["LM_HEAD"]) && matvec_serves(c.get("HIDDEN")) && c.get("ROW_TILE") == 4,
        shape: |c, d| matvec_shape(c.get("VOCAB"), c.get("HIDDEN"), d),
        most_shared: |_| 0,
    },
    Variant {
        kernel: "router",
        serves: |c| {
            c.eight_bits(&["GATE", "SHARED_GATE"])
                && c.get("HIDDEN").is_multiple_of(512)
                && c.get("EXPERTS").is_multiple_of(32)
                && c.get("TOP_K") <= 32
                && c.get("ROW_TILE") == 4
        },
        shape: |c, d| Shape { grid: [c.get("EXPERTS") / 8 + 1, d.grid[1], 1], threads: 256, shared: 0 },
        most_shared: |_| 0,
    },
    Variant {
        kernel: "expert_gate_up",
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
    },
    Variant {
        kernel: "expert_down_norm",
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
    },
    Variant {
        kernel: "attn_decode",
        serves: |c| c.get("HEAD_DIM") == 256 && c.get("PACKED") == 8,
        shape: |_, d| Shape { grid: d.grid, threads: 256, shared: 0 },
        most_shared: |_| 0,
    },
    Variant {
        kernel: "attn_combine",
        serves: |c| c.get("HEAD_DIM").is_multiple_of(64),
        shape: |c, d| Shape { grid: [d.grid[0], c.get("HEAD_DIM") / 64, d.grid[1]], threads: 256, shared: 0 },
        most_shared: |_| 0,
    },
    Variant {
        kernel: "gdn_in_proj_gemm",
        serves: |c| c.four_bits(&["QKV", "Z", "B", "A"]) && gemm_serves(c.get("HIDDEN")),
        shape: |c, d| in_proj_gemm(c, &["CONV_DIM", "VALUE_DIM", "VALUE_HEADS", "VALUE_HEADS"].map(|n| c.get(n)), d),
        most_shared: |c| gemm_shared(128, GEMM_OUTPUTS, c.get("HIDDEN")),
    },
    Variant {
        kernel: "attn_in_proj_gemm",
        serves: |c| c.four_bits(&["Q", "K", "V"]) && gemm_serves(c.get("HIDDEN")),
        shape: |c, d| in_proj_gemm(c, &[2 * c.get("Q_DIM"), c.get("KV_DIM"), c.get("KV_DIM")], d),
        most_shared: |c| gemm_shared(128, GEMM_OUTPUTS, c.get("HIDDEN")),
    },
    Variant {
        kernel: "out_proj_gemm_gdn",
        serves: |c| c.four_bits(&["GDN_OUT"]) && gemm_serves(c.get("VALUE_DIM")),
        shape: |c, d| out_proj_gemm(c, c.get("VALUE_DIM"), d),
        most_shared: |c| gemm_shared(128, GEMM_OUTPUTS, c.get("VALUE_DIM")),
    },
    Variant {
        kernel: "out_proj_gemm_attn",
        serves: |c| c.four_bits(&["O"]) && gemm_serves(c.get("Q_DIM")),
        shape: |c, d| out_proj_gemm(c, c.get("Q_DIM"), d),
        most_shared: |c| gemm_shared(128, GEMM_OUTPUTS, c.get("Q_DIM")),
    },
    Variant {
        kernel: "grouped_gate_up_32",
        serves: gate_up_serves,
        shape: |c, d| grouped(c.get("INNER") / 256, 32, c.get("HIDDEN"), d),
        most_shared: |c| gemm_shared(32, 2 * GEMM_OUTPUTS, c.get("HIDDEN")),
    },
    Variant {
        kernel: "grouped_gate_up_64",
        serves: gate_up_serves,
        shape: |c, d| grouped(c.get("INNER") / 256, 64, c.get("HIDDEN"), d),
        most_shared: |c| gemm_shared(64, 2 * GEMM_OUTPUTS, c.get("HIDDEN")),
    },
    Variant {
        kernel: "shared_gate_up",
        serves: |c| {
            c.four_bits(&["SHARED_GATE_PROJ", "SHARED_UP"])
                && wide_serves(c.get("HIDDEN"))
                && c.get("SHARED_INNER").is_multiple_of(256)
        },
        shape: |c, d| grouped(c.get("SHARED_INNER") / 256, 64, c.get("HIDDEN"), d),
        most_shared: |c| gemm_shared(64, 2 * GEMM_OUTPUTS, c.get("HIDDEN")),
    },
    Variant {
        kernel: "grouped_down_32",
        serves: down_serves,
        shape: |c, d| grouped(c.get("HIDDEN") / 512, 32, c.get("INNER"), d),
        most_shared: |c| gemm_shared(32, 2 * GEMM_OUTPUTS, c.get("INNER")),
    },
    Variant {
        kernel: "grouped_down_64",
        serves: down_serves,
        shape: |c, d| grouped(c.get("HIDDEN") / 512, 64, c.get("INNER"), d),
        most_shared: |c| gemm_shared(64, 2 * GEMM_OUTPUTS, c.get("INNER")),
    },
    Variant {
        kernel: "shared_down",
        serves: |c| {
            c.four_bits(&["SHARED_DOWN"]) && gemm_serves(c.get("SHARED_INNER")) && c.get("HIDDEN").is_multiple_of(512)
        },
        shape: |c, d| grouped(c.get("HIDDEN") / 512, 64, c.get("SHARED_INNER"), d),
        most_shared: |c| gemm_shared(64, 2 * GEMM_OUTPUTS, c.get("SHARED_INNER")),
    },
    Variant {
        kernel: "attn_prefill",
        serves: |c| c.get("HEAD_DIM") == 256 && 128 % (c.get("Q_HEADS") / c.get("KV_HEADS").max(1)).max(1) == 0,
        shape: |c, d| {
            // Tiles of 8 * FLASH_SIMDS rows become tiles of 128.
            let rows = d.grid[0] * 8 * c.get("FLASH_SIMDS");
            Shape { grid: [rows.div_ceil(128), d.grid[1], d.grid[2]], threads: 256, shared: ATTN_PREFILL_SHARED }
        },
        most_shared: |_| ATTN_PREFILL_SHARED,
    },
];

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
        text.push_str(&format!("#define NATIVE_{} 1\n", variant.kernel.to_uppercase()));
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
            constants(&format!("#define HEAD_DIM {dim}\n#define PACKED 8\n#define Q_HEADS 16\n#define KV_HEADS 2\n"))
        };
        assert!(served(&with(256), "attn_decode") && served(&with(256), "attn_prefill"));
        assert!(!served(&with(128), "attn_decode") && !served(&with(128), "attn_prefill"));
    }

    #[test]
    fn shared_memory_of_the_products_stays_within_a_multiprocessor() {
        for (tokens, outputs, inputs) in [(128, 256, 4096), (64, 512, 4096), (64, 512, 2048)] {
            let fits = gemm_shared(tokens, outputs, inputs) <= 227 * 1024;
            assert_eq!(fits, (tokens, outputs, inputs) != (64, 512, 4096), "{tokens} {outputs} {inputs}");
        }
        const { assert!(ATTN_PREFILL_SHARED <= 227 * 1024) };
    }
}
