//! Where each tensor of a new checkpoint goes: shards of at most 5 GiB, their headers, and the index.

use serde_json::{Map, Value, json};

use super::fill::RowSizes;
use crate::graph::{Model, WeightKind, WeightSpec};

/// Largest shard, in bytes of data, as MLX writes them.
const SHARD_LIMIT: u64 = 5 << 30;

/// A checkpoint's files before their data.
pub(super) struct Layout {
    /// Shards in order.
    pub shards: Vec<ShardLayout>,
    /// Places of the weights, in the order of [`Model::weights`].
    pub places: Vec<Place>,
    /// Text of `model.safetensors.index.json`.
    pub index: String,
    /// Tensors of all shards.
    pub tensors: usize,
}

/// One shard.
pub(super) struct ShardLayout {
    pub name: String,
    /// Length field and header, padded so that the data starts at a multiple of 8.
    pub header: Vec<u8>,
    /// Bytes of the whole file.
    pub len: u64,
}

/// Where a weight's tensors start, from the first byte of the file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub shard: usize,
    pub weight: u64,
    pub scales: u64,
    pub biases: u64,
}

/// A tensor of a weight, as the header describes it.
struct Tensor {
    name: String,
    dtype: &'static str,
    shape: Vec<usize>,
    len: u64,
}

/// Lays out all weights of a model in their order, a quantized weight's tensors next to one another.
pub(super) fn layout(model: &Model) -> Layout {
    layout_within(model, SHARD_LIMIT)
}

fn layout_within(model: &Model, shard_limit: u64) -> Layout {
    let mut headers = vec![Map::new()];
    let mut used = vec![0u64];
    let mut places = Vec::with_capacity(model.weights.len());
    for spec in &model.weights {
        let tensors = tensors(spec);
        let size: u64 = tensors.iter().map(|t| t.len).sum();
        if used[used.len() - 1] > 0 && used[used.len() - 1] + size > shard_limit {
            headers.push(Map::new());
            used.push(0);
        }
        let shard = used.len() - 1;
        let mut starts = [0; 3];
        for (tensor, start) in tensors.iter().zip(&mut starts) {
            *start = used[shard];
            used[shard] += tensor.len;
            let offsets = [*start, used[shard]];
            let entry = json!({"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": offsets});
            headers[shard].insert(tensor.name.clone(), entry);
        }
        let [weight, scales, biases] = starts;
        places.push(Place { shard, weight, scales, biases });
    }
    finish(headers, &used, places)
}

/// Names the shards, turns the headers into bytes and moves the places behind them.
fn finish(headers: Vec<Map<String, Value>>, used: &[u64], mut places: Vec<Place>) -> Layout {
    let count = headers.len();
    let name = |shard: usize| match count {
        1 => "model.safetensors".to_string(),
        _ => format!("model-{:05}-of-{count:05}.safetensors", shard + 1),
    };
    let mut weight_map = Map::new();
    let mut shards = Vec::with_capacity(count);
    for (shard, tensors) in headers.into_iter().enumerate() {
        for tensor in tensors.keys() {
            weight_map.insert(tensor.clone(), name(shard).into());
        }
        let mut map = Map::new();
        map.insert("__metadata__".into(), json!({"format": "mlx"}));
        map.extend(tensors);
        let mut text = Value::Object(map).to_string();
        text.extend(std::iter::repeat_n(' ', text.len().next_multiple_of(8) - text.len()));
        let mut header = (text.len() as u64).to_le_bytes().to_vec();
        header.extend(text.bytes());
        let len = header.len() as u64 + used[shard];
        shards.push(ShardLayout { name: name(shard), header, len });
    }
    for place in &mut places {
        let start = shards[place.shard].header.len() as u64;
        place.weight += start;
        place.scales += start;
        place.biases += start;
    }
    let tensors = weight_map.len();
    let index = json!({"metadata": {"total_size": used.iter().sum::<u64>()}, "weight_map": weight_map});
    Layout { shards, places, index: format!("{index:#}\n"), tensors }
}

fn tensors(spec: &WeightSpec) -> Vec<Tensor> {
    let sizes = RowSizes::of(spec.kind);
    let leaf = |leaf: &str| format!("{}.{leaf}", spec.name);
    let tensor = |name: String, dtype, shape: Vec<usize>, row_bytes: usize| Tensor {
        name,
        dtype,
        shape,
        len: (sizes.rows * row_bytes) as u64,
    };
    match spec.kind {
        WeightKind::Matrix { experts, outputs, inputs, quantization: Some(q) } => {
            let shape = |columns| experts.into_iter().chain([outputs, columns]).collect::<Vec<_>>();
            let groups = shape(inputs / q.group_size);
            vec![
                tensor(leaf("weight"), "U32", shape(inputs * q.bits / 32), sizes.weight),
                tensor(leaf("scales"), "BF16", groups.clone(), sizes.groups),
                tensor(leaf("biases"), "BF16", groups, sizes.groups),
            ]
        }
        WeightKind::Matrix { experts, outputs, inputs, quantization: None } => {
            let shape = experts.into_iter().chain([outputs, inputs]).collect();
            vec![tensor(leaf("weight"), "BF16", shape, sizes.weight)]
        }
        WeightKind::Gain { len } => vec![tensor(leaf("weight"), "BF16", vec![len], sizes.weight)],
        WeightKind::Vector { len } => vec![tensor(spec.name.clone(), "BF16", vec![len], sizes.weight)],
        WeightKind::Conv { channels, taps } => {
            vec![tensor(leaf("weight"), "BF16", vec![channels, taps, 1], sizes.weight)]
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::checkpoint::Digest;
    use crate::config::ModelConfig;

    #[test]
    fn the_35b_geometry_fills_four_shards_of_at_most_five_gibibytes() {
        let layout = layout(&Model::new(ModelConfig::qwen36_35b_a3b()).unwrap());
        assert_eq!(layout.tensors, 1757);
        assert_eq!(layout.shards.len(), 4);
        let data: u64 = layout.shards.iter().map(|s| s.len - s.header.len() as u64).sum();
        assert_eq!(data, 19_508_787_456);
        for shard in &layout.shards {
            assert!(shard.len - shard.header.len() as u64 <= SHARD_LIMIT);
            assert_eq!(shard.header.len() % 8, 0);
        }
    }

    /// Language-model tensors of the published checkpoint: sorted lines of name, type and shape, tabs between them.
    fn published_lines() -> Vec<String> {
        let layout = layout(&Model::new(ModelConfig::qwen36_35b_a3b()).unwrap());
        let mut lines = Vec::new();
        for shard in &layout.shards {
            let header: Map<String, Value> = serde_json::from_slice(&shard.header[8..]).unwrap();
            for (name, entry) in header.iter().filter(|(name, _)| *name != "__metadata__") {
                let dtype = if entry["dtype"] == "U32" { "uint32" } else { "bfloat16" };
                let shape = entry["shape"].as_array().unwrap().iter().map(Value::to_string).collect::<Vec<_>>();
                lines.push(format!("{name}\t{dtype}\t[{}]", shape.join(", ")));
            }
        }
        lines.sort_unstable();
        lines
    }

    #[test]
    fn the_35b_geometry_lists_the_published_tensors() {
        let lines = published_lines();
        let mut digest = Digest::default();
        lines.iter().for_each(|line| digest.field(line.as_bytes()));
        // Computed from the list of the published checkpoint's tensors, which the next test compares line by line where
        // it is at hand.
        assert_eq!(format!("{} {:032x}", lines.len(), digest.finish()), "1757 34a67f3788a31fa072e0f8bf9fb10ced");
    }

    #[test]
    fn the_published_list_agrees_line_by_line_where_it_is_at_hand() {
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let places = ["../shared", "../../shared"].map(|place| repository.join(place).join("qwen36/real_tensors.tsv"));
        let Some(text) = places.iter().find_map(|path| std::fs::read_to_string(path).ok()) else {
            eprintln!("not compared: the list of the published tensors is not beside the repository");
            return;
        };
        let mut published: Vec<String> = text
            .lines()
            .filter(|line| line.starts_with("language_model."))
            .map(|line| line.split('\t').take(3).collect::<Vec<_>>().join("\t"))
            .collect();
        published.sort_unstable();
        assert_eq!(published_lines(), published);
    }

    #[test]
    fn a_quantized_weight_is_never_split_between_shards() {
        let model = Model::new(ModelConfig::tiny()).unwrap();
        let largest = model.weights.iter().map(|spec| tensors(spec).iter().map(|t| t.len).sum::<u64>()).max();
        for limit in [1, 4096, 100_000] {
            let layout = layout_within(&model, limit);
            assert!(layout.shards.len() > 1);
            for shard in &layout.shards {
                assert!(shard.len - shard.header.len() as u64 <= limit.max(largest.unwrap_or(0)));
            }
            assert_eq!(layout.tensors, super::layout(&model).tensors);
        }
    }
}
