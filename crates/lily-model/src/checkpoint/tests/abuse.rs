//! Checkpoints that must be refused: each damage to a good one, and what the message must name.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::super::*;
use super::repository;

/// Shards of the fixture that is damaged.
const FIRST: &str = "model-00001-of-00002.safetensors";
const SECOND: &str = "model-00002-of-00002.safetensors";

/// A layer-0 tensor of the first shard, and a bf16 one.
const QKV: &str = "language_model.model.layers.0.linear_attn.in_proj_qkv";

/// Files of a checkpoint, to be damaged.
#[derive(Clone)]
struct Files(BTreeMap<String, Vec<u8>>);

impl Files {
    fn good() -> Self {
        let folder = repository().join("tests/fixtures/tiny-b");
        let names = [FIRST, SECOND, index::INDEX].into_iter().chain(TEXT_FILES);
        Files(names.map(|name| (name.to_string(), std::fs::read(folder.join(name)).unwrap())).collect())
    }

    fn open(&self) -> Result<Checkpoint, CheckpointError> {
        let files = self.0.iter().map(|(name, bytes)| (name.clone(), Storage::Owned(bytes.as_slice().into())));
        Checkpoint::from_files(files.collect())
    }

    fn bytes(&mut self, name: &str) -> &mut Vec<u8> {
        self.0.get_mut(name).unwrap()
    }

    fn header(&self, shard: &str) -> (Map<String, Value>, usize) {
        let bytes = &self.0[shard];
        let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        (serde_json::from_slice(&bytes[8..8 + len]).unwrap(), 8 + len)
    }

    /// Replaces a shard's header and keeps its data.
    fn set_header(&mut self, shard: &str, header: &[u8]) {
        let (_, start) = self.header(shard);
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header);
        bytes.extend(&self.0[shard][start..]);
        self.0.insert(shard.into(), bytes);
    }

    fn edit_header(&mut self, shard: &str, edit: impl FnOnce(&mut Map<String, Value>)) {
        let (mut header, _) = self.header(shard);
        edit(&mut header);
        self.set_header(shard, Value::Object(header).to_string().as_bytes());
    }

    /// The shard that has a tensor.
    fn shard_of(&self, tensor: &str) -> &'static str {
        if self.header(FIRST).0.contains_key(tensor) { FIRST } else { SECOND }
    }

    /// Edits a tensor's description.
    fn edit_tensor(&mut self, tensor: &str, edit: impl FnOnce(&mut Value)) {
        self.edit_header(self.shard_of(tensor), |header| edit(header.get_mut(tensor).unwrap()));
    }

    /// Overwrites the bf16 or f32 element of a tensor with all-ones exponent bits (`0x7fc0`: NaN, `0x7f80`: infinity).
    fn set_element(&mut self, tensor: &str, element: usize, bits: u16) {
        let shard = self.shard_of(tensor);
        let (header, start) = self.header(shard);
        assert_eq!(header[tensor]["dtype"], "BF16");
        let at = start + header[tensor]["data_offsets"][0].as_u64().unwrap() as usize + 2 * element;
        self.bytes(shard)[at..at + 2].copy_from_slice(&bits.to_le_bytes());
    }

    fn edit_json(&mut self, name: &str, edit: impl FnOnce(&mut Value)) {
        let mut value = serde_json::from_slice(&self.0[name]).unwrap();
        edit(&mut value);
        self.0.insert(name.into(), value.to_string().into());
    }

    fn edit_config(&mut self, edit: impl FnOnce(&mut Value)) {
        self.edit_json("config.json", edit);
    }

    fn edit_text_config(&mut self, field: &str, value: Value) {
        self.edit_config(|config| config["text_config"][field] = value);
    }

    /// Puts the first tensor of the index into a file of that name.
    fn index_names(&mut self, shard: &str) {
        self.edit_json(index::INDEX, |index| {
            *index["weight_map"].as_object_mut().unwrap().values_mut().next().unwrap() = shard.into();
        });
    }
}

/// Swaps in text that occurs once.
fn replace_once(bytes: &[u8], from: &str, to: &str) -> Vec<u8> {
    let text = std::str::from_utf8(bytes).unwrap();
    assert!(text.contains(from), "{from} does not occur");
    text.replacen(from, to, 1).into()
}

/// A damage by name, and what the message must contain.
type Damage = (&'static str, fn(&mut Files), &'static [&'static str]);

const DAMAGES: &[Damage] = &[
    (
        "truncated shard",
        |f| {
            let len = f.0[SECOND].len();
            f.bytes(SECOND).truncate(len - 1000);
        },
        &[SECOND, "tensor `", "`data_offsets`", "bytes of data that the file has"],
    ),
    ("shard truncated within its header", |f| f.bytes(FIRST).truncate(100), &[FIRST, "only 92 follow", "truncated"]),
    ("empty shard", |f| f.bytes(FIRST).clear(), &[FIRST, "0 bytes are too few"]),
    ("shard of seven bytes", |f| f.bytes(FIRST).truncate(7), &[FIRST, "7 bytes are too few"]),
    ("missing shard", |f| drop(f.0.remove(SECOND)), &[SECOND, "missing", "tensor `language_model."]),
    (
        "header of 2^60 bytes",
        |f| f.bytes(FIRST)[..8].copy_from_slice(&(1u64 << 60).to_le_bytes()),
        &[FIRST, "claims 1152921504606846976 bytes", "at most 16777216"],
    ),
    ("header of 2^64 - 1 bytes", |f| f.bytes(FIRST)[..8].fill(0xff), &[FIRST, "claims 18446744073709551615 bytes"]),
    ("header that is a list", |f| f.set_header(FIRST, b"[]"), &[FIRST, "not a JSON object"]),
    ("header that is not JSON", |f| f.set_header(FIRST, b"{\"a\":"), &[FIRST, "not valid JSON"]),
    ("header that is not UTF-8", |f| f.set_header(FIRST, b"{\"\xff\":1}"), &[FIRST, "not UTF-8 at byte 2"]),
    (
        "header that repeats a tensor",
        |f| {
            let (mut header, _) = f.header(FIRST);
            let entry = header.shift_remove("__metadata__").unwrap();
            let twice = format!("{{\"__metadata__\":{entry},\"__metadata__\":{entry}}}");
            f.set_header(FIRST, twice.as_bytes());
        },
        &[FIRST, "\"__metadata__\" appears twice"],
    ),
    (
        "wrong dtype",
        |f| f.edit_tensor(&format!("{QKV}.scales"), |t| t["dtype"] = "F16".into()),
        &["in_proj_qkv.scales", "is F16", "accepted: BF16"],
    ),
    (
        "dtype nobody knows",
        |f| f.edit_tensor(&format!("{QKV}.scales"), |t| t["dtype"] = "Q4_K".into()),
        &["in_proj_qkv.scales", "is Q4_K", "accepted: BF16"],
    ),
    (
        "dtype that is a number",
        |f| f.edit_tensor(&format!("{QKV}.scales"), |t| t["dtype"] = 7.into()),
        &["in_proj_qkv.scales", "`dtype` 7", "the name of a type"],
    ),
    (
        "no dtype",
        |f| f.edit_tensor(&format!("{QKV}.scales"), |t| drop(t.as_object_mut().unwrap().remove("dtype"))),
        &["in_proj_qkv.scales", "has no `dtype`"],
    ),
    (
        "wrong shape",
        |f| f.edit_tensor(&format!("{QKV}.weight"), |t| t["shape"].as_array_mut().unwrap().reverse()),
        &["in_proj_qkv.weight", "has shape [24, 1024]", "accepted: [1024, 24]"],
    ),
    (
        "shape that does not fill the bytes",
        |f| f.edit_tensor(&format!("{QKV}.weight"), |t| t["shape"][0] = 1023.into()),
        &["in_proj_qkv.weight", "U32", "[1023, 24]", "does not fill its 98304 bytes"],
    ),
    (
        "shape whose product overflows",
        |f| f.edit_tensor(&format!("{QKV}.weight"), |t| t["shape"] = json!([1u64 << 40, 1u64 << 40])),
        &["in_proj_qkv.weight", "does not fill"],
    ),
    (
        "negative shape",
        |f| f.edit_tensor(&format!("{QKV}.weight"), |t| t["shape"] = json!([-1024, -24])),
        &["in_proj_qkv.weight", "`shape` [-1024,-24]", "a list of sizes"],
    ),
    (
        "overlapping offsets",
        |f| {
            let (header, _) = f.header(f.shard_of(&format!("{QKV}.scales")));
            let offsets = header[&format!("{QKV}.scales")]["data_offsets"].clone();
            f.edit_tensor(&format!("{QKV}.biases"), |t| t["data_offsets"] = offsets);
        },
        &["overlaps `", "in_proj_qkv", "by 6144 bytes"],
    ),
    (
        "offsets beyond the file",
        |f| f.edit_tensor(&format!("{QKV}.scales"), |t| t["data_offsets"] = json!([1u64 << 50, (1u64 << 50) + 6144])),
        &["in_proj_qkv.scales", "[1125899906842624,1125899906848768]", "within the"],
    ),
    (
        "offsets at the end of the numbers",
        |f| f.edit_tensor(&format!("{QKV}.scales"), |t| t["data_offsets"] = json!([u64::MAX - 1, u64::MAX])),
        &["in_proj_qkv.scales", "18446744073709551615", "within the"],
    ),
    (
        "offsets in the wrong order",
        |f| f.edit_tensor(&format!("{QKV}.scales"), |t| t["data_offsets"].as_array_mut().unwrap().reverse()),
        &["in_proj_qkv.scales", "`data_offsets`"],
    ),
    (
        "three offsets",
        |f| f.edit_tensor(&format!("{QKV}.scales"), |t| t["data_offsets"] = json!([0, 1, 2])),
        &["in_proj_qkv.scales", "[0,1,2]", "[begin, end]"],
    ),
    ("bytes after the last tensor", |f| f.bytes(FIRST).extend([0; 16]), &[FIRST, "16 bytes follow the last tensor"]),
    (
        "bytes between tensors",
        |f| f.edit_header(f.shard_of(&format!("{QKV}.scales")), |h| drop(h.shift_remove(&format!("{QKV}.scales")))),
        &["leaves 6144 unused bytes"],
    ),
    (
        "NaN in scales",
        |f| f.set_element(&format!("{QKV}.scales"), 1000, 0x7fc0),
        &["in_proj_qkv.scales", "NaN at element 1000", "finite"],
    ),
    (
        "infinity in biases",
        |f| f.set_element("language_model.lm_head.biases", 1535, 0xff80),
        &["lm_head.biases", "-inf at element 1535", "finite"],
    ),
    (
        "NaN in a vector",
        |f| f.set_element("language_model.model.layers.0.linear_attn.A_log", 7, 0x7fff),
        &["`language_model.model.layers.0.linear_attn.A_log`", "NaN at element 7"],
    ),
    (
        "NaN in a norm",
        |f| f.set_element("language_model.model.norm.weight", 0, 0x7fc0),
        &["`language_model.model.norm.weight`", "NaN at element 0"],
    ),
    (
        "unknown extra tensor",
        |f| {
            let name = "language_model.model.layers.0.mlp.extra.weight";
            f.edit_header(FIRST, |h| {
                h.insert(name.into(), json!({"dtype": "BF16", "shape": [0], "data_offsets": [0, 0]}));
            });
        },
        &[FIRST, "unknown tensor `language_model.model.layers.0.mlp.extra.weight`"],
    ),
    (
        "missing tensor",
        |f| {
            f.edit_header(f.shard_of("language_model.model.norm.weight"), |h| {
                let entry = h.shift_remove("language_model.model.norm.weight").unwrap();
                h.insert("vision_tower.norm.weight".into(), entry);
            });
            f.edit_json(index::INDEX, |index| {
                index["weight_map"].as_object_mut().unwrap().shift_remove("language_model.model.norm.weight");
            });
        },
        &["`language_model.model.norm.weight` is missing", "BF16 or F32 [192]"],
    ),
    (
        "tensor in two shards",
        |f| {
            for shard in [FIRST, SECOND] {
                f.edit_header(shard, |h| {
                    h.insert("mtp.x".into(), json!({"dtype": "BF16", "shape": [0], "data_offsets": [0, 0]}));
                });
            }
        },
        &["`mtp.x`", FIRST, SECOND],
    ),
    (
        "index that puts a tensor into the wrong shard",
        |f| {
            let tensor = format!("{QKV}.scales");
            let wrong = if f.shard_of(&tensor) == FIRST { SECOND } else { FIRST };
            f.edit_json(index::INDEX, |index| index["weight_map"][tensor] = wrong.into());
        },
        &["in_proj_qkv.scales", "is not in it", index::INDEX],
    ),
    ("index naming a file above", |f| f.index_names("../x.safetensors"), &["\"../x.safetensors\"", "without a folder"]),
    (
        "index naming an absolute file",
        |f| f.index_names("/etc/x.safetensors"),
        &["\"/etc/x.safetensors\"", "without a folder"],
    ),
    (
        "index naming a file above, the other slash",
        |f| f.index_names("..\\x.safetensors"),
        &["..\\\\x.safetensors", "without a folder"],
    ),
    ("index naming another kind of file", |f| f.index_names("config.json"), &["\"config.json\"", "*.safetensors"]),
    (
        "index naming a missing shard",
        |f| f.index_names("model-00003-of-00002.safetensors"),
        &["model-00003-of-00002.safetensors", "missing", "tensor `"],
    ),
    (
        "index with a number for a file",
        |f| f.edit_json(index::INDEX, |index| index["weight_map"] = json!({"a.weight": 5})),
        &[index::INDEX, "`weight_map.a.weight` is 5", "a file name"],
    ),
    (
        "index without a map",
        |f| drop(f.0.insert(index::INDEX.into(), b"{}".into())),
        &[index::INDEX, "`weight_map` is missing"],
    ),
    (
        "index with an empty map",
        |f| drop(f.0.insert(index::INDEX.into(), br#"{"weight_map":{}}"#.into())),
        &[index::INDEX, "empty"],
    ),
    (
        "index that repeats a tensor",
        |f| {
            let twice = format!("{{\"weight_map\":{{\"a\":\"{FIRST}\",\"a\":\"{SECOND}\"}}}}");
            f.0.insert(index::INDEX.into(), twice.into());
        },
        &[index::INDEX, "\"a\" appears twice"],
    ),
    ("index that is not UTF-8", |f| f.bytes(index::INDEX).insert(0, 0xff), &[index::INDEX, "not UTF-8 at byte 0"]),
    ("no index and two shards", |f| drop(f.0.remove(index::INDEX)), &[index::INDEX, "missing"]),
    ("no config", |f| drop(f.0.remove("config.json")), &["config.json is missing"]),
    (
        "config that repeats a field",
        |f| *f.bytes("config.json") = replace_once(&f.0["config.json"], "{", "{\"model_type\":\"x\","),
        &["config.json", "\"model_type\" appears twice"],
    ),
    ("config that is not UTF-8", |f| f.bytes("config.json").push(0xff), &["config.json", "not UTF-8"]),
    (
        "dense Qwen",
        |f| f.edit_config(|c| *c = json!({"model_type": "qwen3", "hidden_size": 4096, "num_hidden_layers": 36})),
        &["`model_type` is \"qwen3\"", "qwen3_5_moe"],
    ),
    (
        "dense Qwen 3.5",
        |f| f.edit_config(|c| c["model_type"] = "qwen3_5".into()),
        &["`model_type` is \"qwen3_5\"", "qwen3_5_moe"],
    ),
    (
        "no experts",
        |f| f.edit_config(|c| drop(c["text_config"].as_object_mut().unwrap().shift_remove("num_experts"))),
        &["`text_config.num_experts` is missing"],
    ),
    (
        "no layer of full attention",
        |f| {
            f.edit_text_config("num_hidden_layers", 3.into());
            f.edit_config(|c| drop(c["text_config"]["layer_types"].as_array_mut().unwrap().pop()));
        },
        &["`layer_types` is 3 times linear_attention", "accepted: at least one full_attention"],
    ),
    (
        "a layer more than there are tensors for",
        |f| {
            f.edit_text_config("num_hidden_layers", 5.into());
            f.edit_config(|c| {
                c["text_config"]["layer_types"].as_array_mut().unwrap().push(json!("linear_attention"));
            });
        },
        &["`language_model.model.layers.4."],
    ),
    (
        "other number of bits",
        |f| f.edit_config(|c| c["quantization"][QKV] = json!({"bits": 8, "group_size": 64})),
        &["in_proj_qkv.weight", "has shape [1024, 24]", "accepted: [1024, 48]"],
    ),
    (
        "other group size",
        |f| f.edit_config(|c| c["quantization"][QKV] = json!({"bits": 4, "group_size": 32})),
        &["in_proj_qkv.scales", "has shape [1024, 3]", "accepted: [1024, 6]"],
    ),
    (
        "module said to be bf16",
        |f| f.edit_config(|c| c["quantization"][QKV] = false.into()),
        &["in_proj_qkv.weight", "is U32", "accepted: BF16"],
    ),
    (
        "GGUF file in place of a shard",
        |f| f.bytes(FIRST)[..4].copy_from_slice(b"GGUF"),
        &[FIRST, "GGUF", "model*.safetensors"],
    ),
    (
        "GGUF file beside a config",
        |f| {
            f.0.retain(|name, _| name == "config.json");
            f.0.insert("qwen.gguf".into(), b"GGUF".into());
        },
        &["qwen.gguf", "GGUF"],
    ),
    (
        "end id outside the vocabulary",
        |f| f.edit_json("generation_config.json", |g| g["eos_token_id"] = json!([1, 512])),
        &["generation_config.json", "`eos_token_id` is 512", "below the vocab_size of 512"],
    ),
    (
        "negative temperature",
        |f| f.edit_json("generation_config.json", |g| g["temperature"] = json!(-0.5)),
        &["generation_config.json", "`temperature` is -0.5", "from 0 to 100"],
    ),
    (
        "top_p of zero",
        |f| f.edit_json("generation_config.json", |g| g["top_p"] = json!(0.0)),
        &["generation_config.json", "`top_p` is 0.0", "above 0"],
    ),
    (
        "top_k with a fraction",
        |f| f.edit_json("generation_config.json", |g| g["top_k"] = json!(1.5)),
        &["generation_config.json", "`top_k` is 1.5", "a whole number"],
    ),
    (
        "generation config that is a list",
        |f| drop(f.0.insert("generation_config.json".into(), b"[]".into())),
        &["generation_config.json", "not a JSON object"],
    ),
];

#[test]
fn every_damage_is_refused_by_name() {
    Files::good().open().expect("the undamaged fixture loads");
    for (name, damage, fragments) in DAMAGES {
        let mut files = Files::good();
        damage(&mut files);
        let message = match files.open() {
            Ok(_) => panic!("{name}: accepted"),
            Err(error) => error.to_string(),
        };
        for fragment in *fragments {
            assert!(message.contains(fragment), "{name}: {message:?} does not say {fragment:?}");
        }
    }
}

#[test]
fn tensors_of_parts_that_are_not_computed_are_ignored() {
    let mut files = Files::good();
    files.edit_header(FIRST, |header| {
        for name in ["vision_tower.a", "mtp.a", "language_model.mtp.a", "language_model.vision_tower.a"] {
            header.insert(name.into(), json!({"dtype": "F8_E4M3", "shape": [0], "data_offsets": [0, 0]}));
        }
    });
    files.open().unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever a byte of a header, index or config is changed to: an error, or a checkpoint whose every weight can be
    /// read to its last byte.
    #[test]
    fn changed_bytes_never_panic(
        file in prop::sample::select(vec![FIRST, SECOND, index::INDEX, "config.json", "generation_config.json"]),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in prop::option::weighted(0.1, any::<prop::sample::Index>()),
    ) {
        let mut files = Files::good();
        let reach = if file.ends_with(".safetensors") { files.header(file).1 } else { files.0[file].len() };
        for (index, byte) in changes {
            files.bytes(file)[index.index(reach)] = byte;
        }
        if let Some(cut) = cut {
            let len = cut.index(files.0[file].len());
            files.bytes(file).truncate(len);
        }
        if let Ok(checkpoint) = files.open() {
            for id in 0..checkpoint.model().weights.len() {
                let location = checkpoint.location(crate::graph::WeightId(id as u32));
                prop_assert_eq!(checkpoint.bytes(location.weight).len(), location.weight.len);
                checkpoint.weight(crate::graph::WeightId(id as u32));
            }
        }
    }
}
