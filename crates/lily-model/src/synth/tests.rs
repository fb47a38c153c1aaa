//! Synthetic checkpoints as a whole: the same in memory and on disk, readable by others, and of the right statistics.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::checkpoint::WeightView;
use crate::config::Quantization;
use crate::graph::{MixerWeights, WeightId};

/// A folder that is removed with its content at the end of a test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("lily-synth-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_checkpoint_on_disk_equals_the_one_in_memory() {
    let folder = Folder::new("disk");
    let config = ModelConfig::tiny();
    let seen = AtomicU64::new(0);
    let options = SynthOptions { seed: 3, tokenizers: &[] };
    let report = write(&config, &options, &folder.0, &|p| {
        seen.fetch_max(p.written, Ordering::Relaxed);
        assert!(p.written <= p.total);
    })
    .unwrap();
    assert_eq!(seen.into_inner(), report.bytes);
    assert_eq!(report.tokenizer, Tokenizer::ByteLevel);
    let on_disk = Checkpoint::open(&folder.0).unwrap();
    assert_eq!(on_disk.fingerprint(), in_memory(&config, 3).unwrap().fingerprint());
    assert_ne!(on_disk.fingerprint(), in_memory(&config, 4).unwrap().fingerprint());
    assert_eq!(on_disk.model().config, config);
}

#[test]
fn an_independent_reader_finds_every_tensor_where_the_checkpoint_does() {
    let checkpoint = in_memory(&ModelConfig::tiny(), 3).unwrap();
    let shard = &checkpoint.shards()[0];
    let file = safetensors::SafeTensors::deserialize(shard.bytes()).unwrap();
    let mut found = 0;
    for (index, spec) in checkpoint.model().weights.iter().enumerate() {
        let location = checkpoint.location(WeightId(index as u32));
        let leaves = [("weight", Some(location.weight))]
            .into_iter()
            .chain([("scales", location.affine.map(|a| a.scales)), ("biases", location.affine.map(|a| a.biases))]);
        for (leaf, span) in leaves.filter_map(|(leaf, span)| Some((leaf, span?))) {
            let name = format!("{}.{leaf}", spec.name);
            let tensor = file.tensor(&name).or_else(|_| file.tensor(&spec.name)).unwrap();
            assert_eq!(tensor.data().as_ptr_range(), checkpoint.bytes(span).as_ptr_range(), "{name}");
            found += 1;
        }
    }
    assert_eq!(found, file.len());
}

#[test]
fn a_folder_with_a_checkpoint_is_not_overwritten() {
    let folder = Folder::new("exists");
    let options = SynthOptions::default();
    write(&ModelConfig::tiny(), &options, &folder.0, &|_| {}).unwrap();
    let error = write(&ModelConfig::tiny(), &options, &folder.0, &|_| {}).unwrap_err();
    assert!(matches!(error, SynthError::Exists { .. }), "{error}");
}

#[test]
fn every_storage_form_of_a_module_can_be_written_and_read() {
    for default in [(4, 32), (4, 64), (8, 32), (8, 64), (8, 128)] {
        let mut config = ModelConfig::tiny();
        config.quantization.default = Some(Quantization { bits: default.0, group_size: default.1 });
        if default.1 == 128 {
            (config.moe_intermediate_size, config.shared_expert_intermediate_size) = (128, 128);
        }
        let module = "language_model.model.layers.0.mlp.switch_mlp.up_proj";
        config.quantization.modules.insert(module.into(), None);
        let checkpoint = in_memory(&config, 1).unwrap();
        let layer = checkpoint.model().layers[0];
        assert!(matches!(checkpoint.weight(layer.moe.switch_up_proj), WeightView::Dense(_)));
        let WeightView::Quantized(down) = checkpoint.weight(layer.moe.switch_down_proj) else { panic!("dense") };
        assert_eq!((down.quantization.bits, down.quantization.group_size), default);
    }
    let mut config = ModelConfig::tiny();
    config.quantization = Default::default();
    in_memory(&config, 1).unwrap();
}

#[test]
fn the_tokenizer_made_for_a_small_vocabulary_maps_every_byte_and_tag_to_its_id() {
    let checkpoint = in_memory(&ModelConfig::tiny(), 0).unwrap();
    let json = checkpoint.text_file("tokenizer.json").unwrap();
    let tokenizer = tokenizers::Tokenizer::from_bytes(json).unwrap();
    let text = "Grüße, 世界\n\0\u{7f} <|im_end|><think>";
    let ids = tokenizer.encode(text, false).unwrap().get_ids().to_vec();
    let bytes = "Grüße, 世界\n\0\u{7f} ".bytes().map(u32::from);
    assert_eq!(ids, bytes.chain([258, 280]).collect::<Vec<_>>());
    assert_eq!(tokenizer.decode(&ids, false).unwrap(), text);
    assert_eq!(checkpoint.generation_config().eos_token_ids, [258, 256]);
}

#[test]
fn the_largest_tokenizer_that_fits_is_taken() {
    let mini = fs::read(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../assets/mini/tokenizer.json")).unwrap();
    let small = in_memory(&ModelConfig::tiny(), 0).unwrap();
    let small = small.text_file("tokenizer.json").unwrap();
    let tokenizers = [small, &mini];
    for (vocab_size, expected) in
        [(281, Tokenizer::None), (282, Tokenizer::Given(0)), (8191, Tokenizer::Given(0)), (8192, Tokenizer::Given(1))]
    {
        let config = ModelConfig { vocab_size, ..ModelConfig::tiny() };
        assert_eq!(text::files(&config, &tokenizers).unwrap().1, expected, "{vocab_size}");
    }
    let error = text::files(&ModelConfig::tiny(), &[b"{}"]).unwrap_err();
    assert!(matches!(error, SynthError::Tokenizer { index: 0, .. }), "{error}");
}

#[test]
fn recurrent_states_decay_and_remember_long() {
    let checkpoint = in_memory(&ModelConfig::tiny().with_layers(64), 0).unwrap();
    let mut decays = Vec::new();
    for layer in &checkpoint.model().layers {
        let MixerWeights::Gdn(weights) = layer.mixer else { continue };
        let vector = |id| match checkpoint.weight(id) {
            WeightView::Float(view) => view.to_vec(),
            _ => panic!("not a vector"),
        };
        let pairs = vector(weights.a_log).into_iter().zip(vector(weights.dt_bias));
        decays.extend(pairs.map(|(a, bias)| (-a.exp() * bias.exp().ln_1p()).exp()));
    }
    decays.sort_by(f32::total_cmp);
    assert!(decays[0] > 0.1 && decays[decays.len() - 1] < 1.0, "{decays:?}");
    let median = decays[decays.len() / 2];
    assert!((0.85..0.98).contains(&median), "{median}");
    assert!(decays.iter().filter(|&&d| d > 0.99).count() * 10 > decays.len(), "too few states of long memory");
}
