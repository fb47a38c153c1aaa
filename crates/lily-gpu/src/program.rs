//! A program: the dispatches of one step over placed memory, and the stages that follow from what they declare.

use std::collections::HashMap;

/// A buffer of a driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId(pub u32);

/// A program that a driver has prepared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ProgramId(pub u32);

/// A kernel: its library and its place in [`crate::table::KERNELS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KernelId {
    /// Library.
    pub library: usize,
    /// Index into the kernel names.
    pub kernel: usize,
}

/// Bytes of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Span {
    /// Buffer.
    pub buffer: BufferId,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Span {
    /// `bytes` bytes from `offset` on within this span.
    pub fn part(self, offset: u64, bytes: u64) -> Span {
        debug_assert!(offset + bytes <= self.bytes, "{offset} + {bytes} of {}", self.bytes);
        Span { buffer: self.buffer, offset: self.offset + offset, bytes }
    }

    fn overlaps(&self, other: &Span) -> bool {
        self.buffer == other.buffer
            && self.offset < other.offset + other.bytes
            && other.offset < self.offset + self.bytes
    }
}

/// What a dispatch does with a bound range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Access {
    /// Reads.
    Read,
    /// Writes, and reads nothing it has not written.
    Write,
    /// Both.
    ReadWrite,
    /// Writes some elements of the range; other dispatches of the same operation write others, none the same.
    WritePart,
}

/// A range bound to a buffer index of a kernel: the kernel's pointer is its first byte, and it touches nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Binding {
    /// Buffer index.
    pub index: u32,
    /// Range.
    pub span: Span,
    /// What is done with it.
    pub access: Access,
}

/// One dispatch.
#[derive(Debug, Clone)]
pub struct Dispatch {
    /// The operation it belongs to, for messages.
    pub op: &'static str,
    /// Layer of the operation.
    pub layer: Option<usize>,
    /// Kernel.
    pub kernel: KernelId,
    /// Threadgroups; never 0 in any direction.
    pub grid: [u32; 3],
    /// Threads of a threadgroup, in one dimension; a multiple of 32.
    pub threads: u32,
    /// Bound ranges.
    pub bindings: Vec<Binding>,
}

impl Dispatch {
    /// The operation and its layer, for messages.
    pub fn label(&self) -> String {
        match self.layer {
            Some(layer) => format!("{} of layer {layer}", self.op),
            None => self.op.to_string(),
        }
    }
}

/// The dispatches of a step, in an order that is correct when executed one after another.
#[derive(Debug, Clone)]
pub struct Program {
    /// Dispatches.
    pub dispatches: Vec<Dispatch>,
    /// Indices into `dispatches` by stage: those of a stage do not depend on one another, a barrier stands between stages.
    pub stages: Vec<Vec<usize>>,
    /// For each dispatch, the earlier ones it directly waits for.
    pub edges: Vec<Vec<usize>>,
    /// Memory whose contents are undefined at the start.
    pub scratch: Vec<Span>,
}

impl Program {
    /// Derives stages and edges from the bound ranges: a dispatch waits for every earlier one that wrote what it touches
    /// or read what it writes.
    pub fn new(dispatches: Vec<Dispatch>, scratch: Vec<Span>) -> Self {
        let mut history: HashMap<BufferId, Vec<(usize, Span, Access)>> = HashMap::new();
        let mut levels: Vec<usize> = Vec::with_capacity(dispatches.len());
        let mut edges = Vec::with_capacity(dispatches.len());
        for (index, dispatch) in dispatches.iter().enumerate() {
            let mut waits: Vec<usize> = Vec::new();
            for binding in &dispatch.bindings {
                let before = history.entry(binding.span.buffer).or_default();
                let writes = binding.access != Access::Read;
                for (other, span, access) in before.iter() {
                    let apart = *access == Access::WritePart
                        && binding.access == Access::WritePart
                        && same_op(&dispatches[*other], dispatch);
                    let ordered = writes || *access != Access::Read;
                    if *other != index && ordered && !apart && span.overlaps(&binding.span) {
                        waits.push(*other);
                    }
                }
            }
            for binding in &dispatch.bindings {
                let before = history.entry(binding.span.buffer).or_default();
                // What is wholly overwritten need not be waited for again: this dispatch has waited for it.
                if matches!(binding.access, Access::Write | Access::ReadWrite) {
                    let span = binding.span;
                    before.retain(|(_, s, _)| {
                        !(span.offset <= s.offset && s.offset + s.bytes <= span.offset + span.bytes)
                    });
                }
                before.push((index, binding.span, binding.access));
            }
            waits.sort_unstable();
            waits.dedup();
            levels.push(waits.iter().map(|&w| levels[w] + 1).max().unwrap_or(0));
            edges.push(waits);
        }
        let mut stages = vec![Vec::new(); levels.iter().max().map_or(0, |m| m + 1)];
        for (index, level) in levels.into_iter().enumerate() {
            stages[level].push(index);
        }
        Program { dispatches, stages, edges, scratch }
    }
}

fn same_op(a: &Dispatch, b: &Dispatch) -> bool {
    a.op == b.op && a.layer == b.layer
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dispatch(bindings: &[(u64, u64, Access)]) -> Dispatch {
        let bind = |(index, &(offset, bytes, access)): (usize, &(u64, u64, Access))| Binding {
            index: index as u32,
            span: Span { buffer: BufferId(0), offset, bytes },
            access,
        };
        Dispatch {
            op: "test",
            layer: None,
            kernel: KernelId { library: 0, kernel: 0 },
            grid: [1; 3],
            threads: 32,
            bindings: bindings.iter().enumerate().map(bind).collect(),
        }
    }

    #[test]
    fn a_reader_waits_for_the_writer_of_its_bytes_and_for_no_other() {
        let program = Program::new(
            vec![
                dispatch(&[(0, 16, Access::Write)]),
                dispatch(&[(16, 16, Access::Write)]),
                dispatch(&[(8, 4, Access::Read)]),
            ],
            Vec::new(),
        );
        assert_eq!(program.edges[2], vec![0]);
        assert_eq!(program.stages, vec![vec![0, 1], vec![2]]);
    }

    #[test]
    fn dispatches_that_write_parts_of_a_range_run_together_after_its_readers() {
        let program = Program::new(
            vec![
                dispatch(&[(0, 16, Access::Read)]),
                dispatch(&[(0, 16, Access::WritePart)]),
                dispatch(&[(0, 16, Access::WritePart)]),
                dispatch(&[(0, 16, Access::Read)]),
            ],
            Vec::new(),
        );
        assert_eq!(program.stages, vec![vec![0], vec![1, 2], vec![3]]);
    }

    #[test]
    fn a_writer_waits_for_the_readers_of_its_bytes() {
        let program = Program::new(
            vec![
                dispatch(&[(0, 16, Access::Write)]),
                dispatch(&[(0, 16, Access::Read)]),
                dispatch(&[(0, 16, Access::Read)]),
                dispatch(&[(12, 8, Access::Write)]),
            ],
            Vec::new(),
        );
        assert_eq!(program.edges[3], vec![0, 1, 2]);
        assert_eq!(program.stages.len(), 3);
    }
}
