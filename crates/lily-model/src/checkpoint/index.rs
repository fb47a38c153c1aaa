//! Which files are shards: `model.safetensors.index.json`, or a lone `model.safetensors` without one.

use std::collections::BTreeMap;

use serde_json::Value;

use super::CheckpointError;
use crate::json;

/// The index file.
pub(super) const INDEX: &str = "model.safetensors.index.json";

/// The only shard of a checkpoint without an index.
pub(super) const SINGLE: &str = "model.safetensors";

/// Tensors of each shard, by file name, as the index promises them.
pub(super) fn parse(text: &[u8]) -> Result<BTreeMap<String, Vec<String>>, CheckpointError> {
    let refuse = |reason: String| CheckpointError::Json { file: INDEX.into(), reason };
    let value = json::parse(text).map_err(refuse)?;
    let Some(Value::Object(map)) = value.get("weight_map") else {
        return Err(refuse("`weight_map` is missing or no object (accepted: tensor names to file names)".into()));
    };
    let mut shards: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (tensor, shard) in map {
        let shard = match shard {
            Value::String(name) => name,
            other => {
                let found = json::shortened(other);
                return Err(refuse(format!("`weight_map.{tensor}` is {found} (accepted: a file name)")));
            }
        };
        if !is_plain_name(shard) {
            let (index, tensor, shard) = (INDEX.into(), tensor.clone(), shard.clone());
            return Err(CheckpointError::ShardName { index, tensor, shard });
        }
        shards.entry(shard.clone()).or_default().push(tensor.clone());
    }
    if shards.is_empty() {
        return Err(refuse("`weight_map` is empty (accepted: tensor names to file names)".into()));
    }
    Ok(shards)
}

/// Whether a name stays within its folder on every system.
fn is_plain_name(name: &str) -> bool {
    name.ends_with(".safetensors") && !name.starts_with('.') && !name.contains(['/', '\\', ':', '\0'])
}
