//! The header of a safetensors file: an 8-byte length, that many bytes of JSON, then the tensors' data without holes.
//!
//! Nothing in a header is believed before it is checked against the size of the file, so that the spans which leave
//! this file can be sliced without a further look. The `safetensors` crate is not used here because it neither names
//! the offending tensor with its numbers nor notices a repeated key.

use serde_json::Value;

use super::CheckpointError;
use crate::json;

/// Longest header accepted, in bytes. The published model's are about 100 KB, 1,024 layers would make 7 MB; parsed, the
/// worst JSON of this length takes some 40 times as much memory.
const HEADER_LIMIT: u64 = 16 << 20;

/// A tensor of a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    /// Full name, leaf included.
    pub name: String,
    /// Type as the header spells it, for example `BF16`.
    pub dtype: String,
    /// Dimensions, outermost first.
    pub shape: Vec<usize>,
    /// First byte, from the start of the file.
    pub offset: usize,
    /// Bytes.
    pub len: usize,
}

/// Bits of an element; `None` for a type this reader does not know.
fn element_bits(dtype: &str) -> Option<u64> {
    Some(match dtype {
        "BOOL" | "U8" | "I8" | "F8_E5M2" | "F8_E4M3" | "F8_E8M0" => 8,
        "I16" | "U16" | "F16" | "BF16" => 16,
        "I32" | "U32" | "F32" => 32,
        "I64" | "U64" | "F64" | "C64" => 64,
        _ => return None,
    })
}

/// Reads the header of `bytes`, a whole shard. Every span returned lies within the file; no two overlap.
pub(super) fn read(shard: &str, bytes: &[u8]) -> Result<Vec<Entry>, CheckpointError> {
    let header_error = |reason: String| CheckpointError::Header { shard: shard.into(), reason };
    let Some((length, rest)) = bytes.split_first_chunk::<8>() else {
        return Err(header_error(format!("{} bytes are too few for a safetensors file", bytes.len())));
    };
    if bytes.starts_with(b"GGUF") {
        return Err(CheckpointError::Gguf { path: shard.into() });
    }
    let length = u64::from_le_bytes(*length);
    if length > HEADER_LIMIT {
        return Err(header_error(format!("the header claims {length} bytes (accepted: at most {HEADER_LIMIT})")));
    }
    let length = length as usize;
    let Some((header, data)) = rest.split_at_checked(length) else {
        return Err(header_error(format!(
            "the header claims {length} bytes, but only {} follow: the file is truncated",
            rest.len()
        )));
    };
    let value = json::parse(header).map_err(|reason| header_error(format!("the header is {reason}")))?;
    let Value::Object(map) = value else {
        return Err(header_error("the header is not a JSON object".into()));
    };
    let mut entries = Vec::with_capacity(map.len());
    for (name, value) in &map {
        if name != "__metadata__" {
            let entry = entry(name, value, data.len() as u64).map_err(|reason| CheckpointError::Entry {
                shard: shard.into(),
                tensor: name.clone(),
                reason,
            })?;
            entries.push(Entry { offset: 8 + length + entry.offset, ..entry });
        }
    }
    entries.sort_by_key(|e| (e.offset, e.len));
    check_cover(shard, &entries, 8 + length, bytes.len())?;
    Ok(entries)
}

/// One tensor's description, with the offset still relative to the data.
fn entry(name: &str, value: &Value, data_len: u64) -> Result<Entry, String> {
    let field = |key: &str| value.get(key).ok_or_else(|| format!("has no `{key}`"));
    let bad = |key: &str, found: &Value, accepted: &str| {
        format!("has `{key}` {} (accepted: {accepted})", json::shortened(found))
    };
    let dtype = field("dtype")?;
    let dtype = dtype.as_str().ok_or_else(|| bad("dtype", dtype, "the name of a type"))?;

    let dims = field("shape")?;
    let accepted = "a list of sizes";
    let shape: Vec<u64> = dims
        .as_array()
        .and_then(|list| list.iter().map(Value::as_u64).collect())
        .ok_or_else(|| bad("shape", dims, accepted))?;

    let offsets = field("data_offsets")?;
    let pair: Option<Vec<u64>> = offsets.as_array().and_then(|list| list.iter().map(Value::as_u64).collect());
    let Some(&[begin, end]) = pair.as_deref() else {
        return Err(bad("data_offsets", offsets, "[begin, end]"));
    };
    if begin > end || end > data_len {
        return Err(bad("data_offsets", offsets, &format!("within the {data_len} bytes of data that the file has")));
    }
    let elements = shape.iter().try_fold(1u64, |product, &dim| product.checked_mul(dim));
    if let Some(bits) = element_bits(dtype) {
        let wanted = elements.and_then(|n| n.checked_mul(bits)).map(|bits| bits.div_ceil(8));
        if wanted != Some(end - begin) {
            return Err(format!("of type {dtype} and shape {shape:?} does not fill its {} bytes", end - begin));
        }
    }
    let shape = shape.into_iter().map(|dim| usize::try_from(dim).unwrap_or(usize::MAX)).collect();
    Ok(Entry { name: name.into(), dtype: dtype.into(), shape, offset: begin as usize, len: (end - begin) as usize })
}

/// Checks that the entries, sorted by offset, cover the data exactly, as the format demands.
fn check_cover(shard: &str, entries: &[Entry], start: usize, end: usize) -> Result<(), CheckpointError> {
    let mut covered = start;
    let mut previous = "the header";
    for entry in entries {
        let reason = if entry.offset < covered {
            Some(format!("overlaps `{previous}` by {} bytes", covered - entry.offset))
        } else if entry.offset > covered {
            Some(format!("leaves {} unused bytes after `{previous}`", entry.offset - covered))
        } else {
            None
        };
        if let Some(reason) = reason {
            return Err(CheckpointError::Entry { shard: shard.into(), tensor: entry.name.clone(), reason });
        }
        covered += entry.len;
        previous = &entry.name;
    }
    if covered < end {
        let reason = format!("{} bytes follow the last tensor", end - covered);
        return Err(CheckpointError::Header { shard: shard.into(), reason });
    }
    Ok(())
}
