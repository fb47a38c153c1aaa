//! The kernel sources compile for every geometry at hand.

use lily_gpu::roles::Libraries;
use lily_gpu::route::MatrixRoute;
use lily_gpu::source::{WeightAlignment, library_source};
use lily_gpu::tuning::Tuning;
use lily_model::config::ModelConfig;
use lily_model::graph::Model;

#[test]
fn the_sources_of_the_35b_geometry_compile() {
    let model = Model::new(ModelConfig::qwen36_35b_a3b()).expect("a valid geometry");
    let libraries = Libraries::of(&model);
    assert_eq!(libraries.tables.len(), 1);
    for route in MatrixRoute::ALL {
        let table = &libraries.tables[0];
        let source = library_source(&model.config, table, &Tuning::APPLE, route, WeightAlignment::Sixteen);
        let mut unit = msl::Source::empty().metal_version(source.metal_version);
        for (name, text) in source.parts {
            unit = unit.with(name, text);
        }
        let library = msl::emulate::Library::compile(&unit, &msl::emulate::Options::default());
        match library {
            Ok(library) => {
                for kernel in library.kernels() {
                    println!("{} {:?}", kernel.name, kernel.threadgroup_bytes());
                }
            }
            Err(error) => panic!("{error}"),
        }
    }
}
