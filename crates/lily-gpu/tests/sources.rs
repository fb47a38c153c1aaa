//! The kernel sources as compilers see them: of the published geometry and of a crooked one, on both matrix routes and for
//! both alignments of weights. No lint, no complaint of g++ about types or of clang about address spaces, and within what a
//! threadgroup may have.

mod common;

use lily_gpu::roles::Libraries;
use lily_gpu::route::MatrixRoute;
use lily_gpu::source::{LibrarySource, WeightAlignment, library_source};
use lily_gpu::table::KERNELS;
use lily_gpu::tuning::Tuning;
use lily_model::config::ModelConfig;
use lily_model::graph::Model;

/// Bytes of threadgroup memory that every Apple GPU has.
const THREADGROUP_BYTES: usize = 32 * 1024;

/// A library of a geometry.
fn source(config: ModelConfig, library: usize, route: MatrixRoute, alignment: WeightAlignment) -> msl::Source {
    let model = Model::new(config).expect("a valid geometry");
    let libraries = Libraries::of(&model);
    let LibrarySource { parts, metal_version } =
        library_source(&model.config, &libraries.tables[library], &Tuning::APPLE, route, alignment);
    let start = msl::Source::empty().metal_version(metal_version);
    parts.into_iter().fold(start, |unit, (name, text)| unit.with(name, text))
}

/// One of each: geometry, library of it, route, alignment.
fn sources() -> Vec<(&'static str, msl::Source)> {
    use MatrixRoute::{Simdgroup, Tensor};
    use WeightAlignment::{Four, Sixteen};
    vec![
        ("35B, simdgroup matrices", source(ModelConfig::qwen36_35b_a3b(), 0, Simdgroup, Sixteen)),
        ("35B, tensor operations", source(ModelConfig::qwen36_35b_a3b(), 0, Tensor, Four)),
        ("crooked, tensor operations", source(common::crooked(), 0, Tensor, Sixteen)),
        ("crooked, other storage, simdgroup matrices", source(common::crooked(), 1, Simdgroup, Four)),
    ]
}

#[test]
fn no_source_breaks_a_rule_of_the_lints() {
    for (name, source) in sources() {
        let unit = msl::reflect::reflect(&source).expect("the source follows the subset");
        let found: Vec<String> = msl::lint::lint(&unit).iter().map(ToString::to_string).collect();
        assert!(found.is_empty(), "{name}:\n{}", found.join("\n"));
    }
}

#[test]
fn every_kernel_is_there_and_fits_into_a_threadgroups_memory() {
    for (name, source) in sources() {
        let unit = msl::reflect::reflect(&source).expect("the source follows the subset");
        for wanted in KERNELS {
            let kernel = unit.reflections.iter().find(|k| k.name == wanted);
            let kernel = kernel.unwrap_or_else(|| panic!("{name} has no {wanted}"));
            let bytes = kernel.threadgroup_bytes().unwrap_or(usize::MAX);
            assert!(bytes <= THREADGROUP_BYTES, "{name}: {wanted} takes {bytes} bytes");
        }
        assert_eq!(unit.reflections.len(), KERNELS.len(), "{name}");
    }
}

#[test]
fn gcc_accepts_the_types() {
    for (name, source) in sources() {
        let found = msl::strict::host(&source).expect("g++");
        assert!(found.is_empty(), "{name}:\n{}", found.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"));
    }
}

#[test]
fn clang_accepts_the_address_spaces() {
    for (name, source) in sources() {
        let found = msl::strict::clang(&source).expect("clang-19");
        assert!(found.is_empty(), "{name}:\n{}", found.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"));
    }
}

#[test]
fn the_published_geometry_compiles_for_the_emulator_with_one_library() {
    assert_eq!(Libraries::of(&Model::new(ModelConfig::qwen36_35b_a3b()).expect("a geometry")).tables.len(), 1);
    for (name, source) in sources().into_iter().take(2) {
        let library = msl::emulate::Library::compile(&source, &msl::emulate::Options::default());
        assert!(library.is_ok(), "{name}: {}", library.err().map(|e| e.to_string()).unwrap_or_default());
    }
}
