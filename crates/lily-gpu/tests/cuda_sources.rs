//! What the CUDA device compiles, compiled without a GPU: NVRTC is a compiler and needs none.

use std::path::Path;

use lily_gpu::cuda::{Kernels, Unit, limits_unit, machine_code, native, units};
use lily_gpu::roles::Libraries;
use lily_gpu::route::MatrixRoute;
use lily_gpu::source::{LibrarySource, WeightAlignment, library_source};
use lily_gpu::tuning::Tuning;
use lily_model::config::ModelConfig;
use lily_model::graph::Model;

fn library(config: ModelConfig) -> LibrarySource {
    let model = Model::new(config).unwrap();
    let tables = Libraries::of(&model).tables;
    library_source(&model.config, &tables[0], &Tuning::APPLE, MatrixRoute::Tensor, WeightAlignment::Sixteen)
}

fn miniature() -> ModelConfig {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/mini/config.json");
    ModelConfig::from_json(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn compiled(unit: &Unit) {
    let code = machine_code(unit).unwrap_or_else(|e| panic!("{e}\n(./test installs NVRTC and says where it is)"));
    assert!(code.starts_with(b"\x7fELF"));
}

#[test]
fn every_native_variant_serves_the_published_geometry_and_compiles() {
    let source = library(ModelConfig::qwen36_35b_a3b());
    let (_, native, _) = units(&source, 90, Kernels::Native).unwrap();
    compiled(&native.unwrap());
    assert_eq!(native::serving(&native::Constants::of(&source)).len(), native::VARIANTS.len());
}

#[test]
fn the_miniature_compiles_translated_and_with_the_variants_that_serve_it() {
    let source = library(miniature());
    let (translated, native, _) = units(&source, 90, Kernels::Native).unwrap();
    compiled(&translated);
    compiled(&native.unwrap());
    let serving = native::serving(&native::Constants::of(&source)).len();
    assert!(serving > 0 && serving < native::VARIANTS.len());
}

#[test]
fn the_kernels_that_measure_the_limits_compile() {
    compiled(&limits_unit());
}

#[test]
fn a_gpu_of_another_generation_gets_translated_kernels_alone() {
    let (_, native, _) = units(&library(miniature()), 80, Kernels::Native).unwrap();
    assert!(native.is_none());
}
