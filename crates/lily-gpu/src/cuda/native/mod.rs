//! Native variants: kernels written for NVIDIA GPUs that stand in for a translated one, with the same name, the same
//! arguments and the same results. Which of them a model can use is a pure function of its constants; how they are launched,
//! of those and of the dispatch.
//!
//! A variant exists only where `docs/LOG.md` shows what it gains.

use std::collections::HashMap;

use crate::program::Dispatch;
use crate::source::LibrarySource;

mod variants;

pub use variants::VARIANTS;

/// Compute capability that the variants are written for.
pub const CAPABILITY: u32 = 90;

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        [$(($name, include_str!(concat!("../../../kernels/cuda/", $name)))),*]
    };
}

/// Source files, in the order they are compiled.
pub const FILES: &[(&str, &str)] = &files![
    "types.cu",
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
    /// Bytes of dynamic shared memory of a block.
    pub shared: fn(&Constants) -> u32,
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
    /// Bytes of dynamic shared memory of a block.
    pub shared: u32,
    /// Bytes of the memory between them.
    pub memory: fn(&Constants, &Dispatch) -> u64,
}

impl Variant {
    /// Name of its function.
    pub fn symbol(&self) -> String {
        format!("native_{}", self.name)
    }
}

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
        f.debug_struct("Variant").field("name", &self.name).finish_non_exhaustive()
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
                    let before = variant.before.map_or(0, |b| b.shared);
                    let most = (variant.shared)(&constants).max(before);
                    assert!(most <= 227 * 1024, "{} at {hidden}, {inner}: {most}", variant.name);
                }
            }
        }
    }
}
