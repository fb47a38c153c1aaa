//! A plan: operations in order over named buffers, and the stages that follow from what they read and write.

use super::op::Op;
use super::weights::Model;

/// Index into [`Plan::buffers`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId(pub u32);

/// Which form of the operations a plan uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// One token of each of a few sequences; every row is its own segment.
    Decode,
    /// Chunks of prompts; a segment has any number of rows.
    Prefill,
}

/// What a buffer's elements are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Element {
    /// 32-bit float.
    F32,
    /// 32-bit unsigned integer.
    U32,
    /// Input of a matrix product, in the form the device rounds to (bf16 on GPUs; the CPU device states its own).
    Activation,
    /// A key or value: bf16, or f32 where a device computes exactly.
    Cache,
}

/// How long a buffer is, in elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Extent {
    /// So many for each row of the step.
    PerRow(usize),
    /// So many for each row that yields logits.
    PerLogitRow(usize),
    /// So many for each row and each block of 256 keys that the row attends to.
    PerRowBlock(usize),
    /// So many for each sequence slot.
    PerSlot(usize),
    /// So many for each page of the KV pool.
    PerPage(usize),
    /// So many.
    Fixed(usize),
}

/// Who writes a buffer and how long it lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BufferRole {
    /// Written by the host before a step (tokens also by the device, from the step before).
    Input,
    /// Lives within a step.
    Scratch,
    /// Lives as long as the sequences do.
    State,
    /// Read by the host after a step.
    Output,
}

/// A buffer of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Buffer {
    /// Name, unique in the plan; state buffers carry their layer.
    pub name: String,
    /// Role.
    pub role: BufferRole,
    /// Element type.
    pub element: Element,
    /// Length.
    pub extent: Extent,
}

/// Operations over buffers. Built once for a shape and replayed.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Form of the operations.
    pub phase: Phase,
    /// Largest number of rows a step may have.
    pub rows: usize,
    /// Buffers by id.
    pub buffers: Vec<Buffer>,
    /// Operations in an order that is correct when executed one after another.
    pub ops: Vec<Op>,
}

impl Plan {
    /// Keys a page holds, and keys a block of decode attention covers.
    pub const PAGE_TOKENS: usize = 256;
    /// Most rows of a decode plan.
    pub const MAX_DECODE_ROWS: usize = 16;

    /// The plan of one decode step of up to `rows` sequences (1..=16).
    pub fn decode(model: &Model, rows: usize) -> Self {
        super::build::build(model, Phase::Decode, rows)
    }

    /// The plan of one prefill step of up to `rows` prompt tokens.
    pub fn prefill(model: &Model, rows: usize) -> Self {
        super::build::build(model, Phase::Prefill, rows)
    }

    /// A buffer by id.
    pub fn buffer(&self, id: BufferId) -> &Buffer {
        &self.buffers[id.0 as usize]
    }

    /// Level of each operation: one more than the deepest earlier operation that it must wait for (read after write,
    /// write after read, write after write).
    pub fn levels(&self) -> Vec<usize> {
        let mut last_write = vec![0; self.buffers.len()];
        let mut last_read = vec![0; self.buffers.len()];
        self.ops
            .iter()
            .map(|op| {
                let accesses = op.accesses();
                let after_reads = accesses.reads.iter().map(|b| last_write[b.0 as usize]);
                let after_writes =
                    accesses.writes.iter().map(|b| last_write[b.0 as usize].max(last_read[b.0 as usize]));
                let level = after_reads.chain(after_writes).max().unwrap_or(0) + 1;
                for b in &accesses.reads {
                    last_read[b.0 as usize] = last_read[b.0 as usize].max(level);
                }
                for b in &accesses.writes {
                    last_write[b.0 as usize] = level;
                }
                level
            })
            .collect()
    }

    /// Operations grouped by level: those of a stage do not depend on one another; a barrier stands between stages.
    pub fn stages(&self) -> Vec<Vec<usize>> {
        let levels = self.levels();
        let mut stages = vec![Vec::new(); levels.iter().copied().max().unwrap_or(0)];
        for (index, level) in levels.into_iter().enumerate() {
            stages[level - 1].push(index);
        }
        stages
    }

    /// For each operation, the earlier operations it waits for directly (edges of a graph; transitive ones included
    /// only where no shorter path covers them).
    pub fn edges(&self) -> Vec<Vec<usize>> {
        let mut last_writer: Vec<Option<usize>> = vec![None; self.buffers.len()];
        let mut readers: Vec<Vec<usize>> = vec![Vec::new(); self.buffers.len()];
        let mut edges = Vec::with_capacity(self.ops.len());
        for (index, op) in self.ops.iter().enumerate() {
            let accesses = op.accesses();
            let mut waits: Vec<usize> = Vec::new();
            for b in accesses.reads.iter().chain(&accesses.writes) {
                waits.extend(last_writer[b.0 as usize]);
            }
            for b in &accesses.writes {
                waits.extend(readers[b.0 as usize].iter().copied());
            }
            waits.sort_unstable();
            waits.dedup();
            for b in &accesses.reads {
                readers[b.0 as usize].push(index);
            }
            for b in &accesses.writes {
                last_writer[b.0 as usize] = Some(index);
                readers[b.0 as usize].clear();
            }
            edges.push(waits);
        }
        edges
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ModelConfig;
    use crate::graph::Traffic;

    fn model() -> Model {
        Model::new(ModelConfig::qwen36_35b_a3b()).expect("the preset is a valid geometry")
    }

    #[test]
    fn a_geometry_without_full_attention_is_refused_and_one_layer_of_it_is_enough() {
        let with = |layers| Model::new(ModelConfig::qwen36_35b_a3b().with_layers(layers));
        let error = with(3).expect_err("no layer has keys");
        assert!(error.to_string().contains("layer_types") && error.to_string().contains("at least one"), "{error}");
        assert!(with(4).is_ok());
    }

    #[test]
    fn a_decode_step_of_the_35b_geometry_keeps_the_dispatch_and_level_budget() {
        let plan = Plan::decode(&model(), 1);
        let levels = plan.stages().len();
        assert!(plan.ops.len() <= 300, "{} dispatches", plan.ops.len());
        assert!(levels <= 260, "{levels} levels");
    }

    #[test]
    fn a_decoded_token_moves_the_bytes_of_the_floor() {
        let model = model();
        let plan = Plan::decode(&model, 1);
        let traffic = Traffic { rows: 1, logit_rows: 1, context: 0, activation_bytes: 2, cache_bytes: 2 };
        let total: f64 = plan.ops.iter().map(|op| plan.op_bytes(&model, op, traffic).memory()).sum();
        assert!((1.77e9..1.81e9).contains(&total), "{total}");
    }

    #[test]
    fn operations_of_a_stage_do_not_conflict_and_every_dependency_crosses_a_stage() {
        for plan in [Plan::decode(&model(), 4), Plan::prefill(&model(), 512)] {
            let levels = plan.levels();
            for (index, waits) in plan.edges().iter().enumerate() {
                for &before in waits {
                    assert!(levels[before] < levels[index], "op {before} and op {index}");
                }
            }
        }
    }
}
