//! Checkpoints that must load: the miniature, the fixtures, and every storage form the rules allow.

mod abuse;
mod folders;

use std::path::{Path, PathBuf};

use super::*;
use crate::config::Quantization;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn the_miniature_loads_and_gives_the_bytes_of_its_file() {
    let checkpoint = Checkpoint::open(&repository().join("assets/mini")).unwrap();
    let model = checkpoint.model();
    assert_eq!((model.config.hidden_size, model.config.num_hidden_layers()), (512, 8));
    let WeightView::Quantized(embed) = checkpoint.weight(model.embed_tokens) else { panic!("not quantized") };
    assert_eq!(embed.quantization, Quantization { bits: 4, group_size: 64 });
    assert_eq!((embed.experts, embed.outputs, embed.inputs), (1, 8192, 512));
    assert_eq!((embed.weight.len(), embed.scales.len(), embed.biases.len()), (8192 * 256, 8192 * 16, 8192 * 16));
    let file = std::fs::read(repository().join("assets/mini/model.safetensors")).unwrap();
    let span = checkpoint.location(model.embed_tokens).weight;
    assert_eq!(&file[span.offset..span.offset + span.len], embed.weight);
    let WeightView::Quantized(router) = checkpoint.weight(model.layers[0].moe.gate) else { panic!("not quantized") };
    assert_eq!(router.quantization.bits, 8);
    let WeightView::Quantized(stack) = checkpoint.weight(model.layers[0].moe.switch_up_proj) else {
        panic!("not quantized")
    };
    assert_eq!(stack.experts, 16);
    assert_eq!(stack.expert(15).weight.as_ptr_range().end, stack.weight.as_ptr_range().end);
    assert_eq!(checkpoint.generation_config().eos_token_ids, [8168, 8166]);
    assert_eq!(checkpoint.generation_config().top_k, 20);
    assert!(checkpoint.text_file("tokenizer.json").is_some());
    assert!(checkpoint.text_file("../config.json").is_none());
}

#[test]
fn the_fixtures_load_from_one_and_from_two_shards() {
    for (name, shards) in [("tiny-a", 1), ("tiny-b", 2)] {
        let checkpoint = Checkpoint::open(&repository().join("tests/fixtures").join(name)).unwrap();
        assert_eq!(checkpoint.shards().len(), shards, "{name}");
    }
}

#[test]
fn the_same_files_in_memory_and_on_disk_have_one_fingerprint() {
    let folder = repository().join("tests/fixtures/tiny-b");
    let on_disk = Checkpoint::open(&folder).unwrap();
    let files = std::fs::read_dir(&folder).unwrap().map(|entry| {
        let entry = entry.unwrap();
        let bytes = std::fs::read(entry.path()).unwrap();
        (entry.file_name().into_string().unwrap(), Storage::Owned(bytes.as_slice().into()))
    });
    let in_memory = Checkpoint::from_files(files.collect()).unwrap();
    assert_eq!(on_disk.fingerprint(), in_memory.fingerprint());
    let other = Checkpoint::open(&repository().join("tests/fixtures/tiny-a")).unwrap();
    assert_ne!(on_disk.fingerprint(), other.fingerprint());
}

#[test]
fn a_checkpoint_can_be_shared_between_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<Checkpoint>();
}
