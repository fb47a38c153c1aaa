//! Finds the model's weights among the tensors of the shards: every one the model needs, with the type and shape that
//! config.json implies, and no tensor left over that is not known to be ignorable.

use std::collections::HashMap;

use super::CheckpointError;
use super::header::Entry;
use crate::graph::{Model, WeightKind, WeightSpec};

/// Tensors of these names belong to parts of the published model that Lily does not compute.
const IGNORABLE: [&str; 4] = ["vision_tower.", "mtp.", "language_model.vision_tower.", "language_model.mtp."];

/// Bytes within a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Span {
    /// Index into [`super::Checkpoint::shards`].
    pub shard: usize,
    /// First byte, from the start of the shard's file. May be odd.
    pub offset: usize,
    /// Bytes.
    pub len: usize,
}

/// Type of the elements of a weight's main tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// Words of packed quantized values.
    U32,
    /// bfloat16.
    Bf16,
    /// float32.
    F32,
}

/// Where a weight's bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WeightLocation {
    /// The weight itself.
    pub weight: Span,
    /// Its type.
    pub dtype: Dtype,
    /// Scales and biases of a quantized matrix, BF16; not necessarily in the same shard.
    pub affine: Option<AffineLocation>,
}

/// Where a quantized matrix' scales and biases are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AffineLocation {
    /// BF16 scales.
    pub scales: Span,
    /// BF16 biases.
    pub biases: Span,
}

/// A shard's name and what its header says.
pub(super) struct ShardEntries {
    /// File name.
    pub name: String,
    /// Its tensors.
    pub entries: Vec<Entry>,
}

/// Locations of all weights of `model`, in the order of [`Model::weights`].
pub(super) fn bind(model: &Model, shards: &[ShardEntries]) -> Result<Vec<WeightLocation>, CheckpointError> {
    let mut tensors = Tensors { shards, left: HashMap::new() };
    for (index, shard) in shards.iter().enumerate() {
        for entry in &shard.entries {
            if let Some((first, _)) = tensors.left.insert(&entry.name, (index, entry)) {
                return Err(CheckpointError::DuplicateTensor {
                    tensor: entry.name.clone(),
                    first: shards[first].name.clone(),
                    second: shard.name.clone(),
                });
            }
        }
    }
    let locations = model.weights.iter().map(|spec| tensors.take_weight(spec)).collect::<Result<Vec<_>, _>>()?;
    tensors.check_rest()?;
    Ok(locations)
}

/// Tensors that no weight has taken yet.
struct Tensors<'a> {
    shards: &'a [ShardEntries],
    left: HashMap<&'a str, (usize, &'a Entry)>,
}

impl Tensors<'_> {
    fn take_weight(&mut self, spec: &WeightSpec) -> Result<WeightLocation, CheckpointError> {
        let leaf = |leaf: &str| format!("{}.{leaf}", spec.name);
        let (name, dtypes, shape) = match spec.kind {
            WeightKind::Matrix { experts, outputs, inputs, quantization: Some(q) } => {
                let shape = |columns: usize| experts.into_iter().chain([outputs, columns]).collect::<Vec<_>>();
                let (weight, dtype) = self.take(&leaf("weight"), &[Dtype::U32], &shape(inputs * q.bits / 32))?;
                let groups = shape(inputs / q.group_size);
                let (scales, _) = self.take(&leaf("scales"), &[Dtype::Bf16], &groups)?;
                let (biases, _) = self.take(&leaf("biases"), &[Dtype::Bf16], &groups)?;
                return Ok(WeightLocation { weight, dtype, affine: Some(AffineLocation { scales, biases }) });
            }
            WeightKind::Matrix { experts, outputs, inputs, quantization: None } => {
                (leaf("weight"), &[Dtype::Bf16][..], experts.into_iter().chain([outputs, inputs]).collect())
            }
            WeightKind::Gain { len } => (leaf("weight"), &[Dtype::Bf16, Dtype::F32][..], vec![len]),
            WeightKind::Vector { len } => (spec.name.clone(), &[Dtype::Bf16, Dtype::F32][..], vec![len]),
            WeightKind::Conv { channels, taps } => {
                (leaf("weight"), &[Dtype::Bf16, Dtype::F32][..], vec![channels, taps, 1])
            }
        };
        let (weight, dtype) = self.take(&name, dtypes, &shape)?;
        Ok(WeightLocation { weight, dtype, affine: None })
    }

    fn take(&mut self, name: &str, dtypes: &[Dtype], shape: &[usize]) -> Result<(Span, Dtype), CheckpointError> {
        let accepted = || dtypes.iter().map(|d| d.name()).collect::<Vec<_>>().join(" or ");
        let Some((shard, entry)) = self.left.remove(name) else {
            let accepted = format!("{} {shape:?}", accepted());
            return Err(CheckpointError::MissingTensor { tensor: name.into(), accepted });
        };
        let Some(&dtype) = dtypes.iter().find(|d| d.name() == entry.dtype) else {
            let (tensor, found) = (name.into(), entry.dtype.clone());
            return Err(CheckpointError::WrongDtype { tensor, found, accepted: accepted() });
        };
        if entry.shape != shape {
            let (tensor, found) = (name.into(), entry.shape.clone());
            return Err(CheckpointError::WrongShape { tensor, found, accepted: shape.into() });
        }
        Ok((Span { shard, offset: entry.offset, len: entry.len }, dtype))
    }

    /// Refuses what is left unless it is ignorable; names the first by name so that the message is stable.
    fn check_rest(&self) -> Result<(), CheckpointError> {
        let unknown = self
            .left
            .iter()
            .filter(|(name, _)| !IGNORABLE.iter().any(|p| name.starts_with(p)))
            .min_by_key(|(name, _)| **name);
        match unknown {
            None => Ok(()),
            Some((name, &(shard, _))) => {
                Err(CheckpointError::UnknownTensor { shard: self.shards[shard].name.clone(), tensor: (*name).into() })
            }
        }
    }
}

impl Dtype {
    /// As a safetensors header spells it.
    pub fn name(self) -> &'static str {
        match self {
            Dtype::U32 => "U32",
            Dtype::Bf16 => "BF16",
            Dtype::F32 => "F32",
        }
    }
}
