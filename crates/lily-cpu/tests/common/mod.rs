//! A device on a fixture, fed in every way that a prompt can be.

#![allow(dead_code)] // each test file uses its part

use std::path::PathBuf;
use std::sync::Arc;

use lily_cpu::{CpuDevice, CpuOptions, Precision};
use lily_model::checkpoint::Checkpoint;
use lily_model::device::{Capacity, Device, LogitRows, Output, PageId, Segment, SlotId, Step, StepResult, Tokens};
use lily_model::graph::Phase;

/// Folder of a fixture.
pub fn folder(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures").join(name)
}

/// The checkpoint of a fixture.
pub fn checkpoint(name: &str) -> Arc<Checkpoint> {
    Arc::new(Checkpoint::open(&folder(name)).expect("the fixture loads"))
}

/// Sizes that the tests use: four sequences of up to four pages.
pub const CAPACITY: Capacity = Capacity { slots: 8, pages: 24, prefill_rows: 512, decode_rows: 8, max_seq: 1024 };

/// A device with two threads.
pub fn device(checkpoint: &Arc<Checkpoint>, precision: Precision) -> CpuDevice {
    let options = CpuOptions { threads: 2, precision, capacity: CAPACITY };
    CpuDevice::new(Arc::clone(checkpoint), options).expect("the device starts")
}

/// The four pages of a sequence, scattered.
pub fn pages(sequence: u32) -> Vec<PageId> {
    [3, 0, 2, 1].iter().map(|i| PageId(4 * sequence + i)).collect()
}

/// Reads `ids` into a sequence from position `start`.
pub fn prefill(device: &mut CpuDevice, sequence: u32, start: usize, ids: &[u32], logit_rows: LogitRows) -> StepResult {
    let pages = pages(sequence);
    let segment = Segment { slot: SlotId(sequence), start, rows: ids.len(), pages: &pages };
    let step = Step {
        phase: Phase::Prefill,
        tokens: Tokens::Ids(ids),
        segments: &[segment],
        logit_rows,
        output: Output::Logits,
    };
    device.submit(&step).expect("a prefill step");
    device.wait().expect("its result")
}

/// One token of each of some sequences `(sequence, position, id)`; logits of each.
pub fn decode(device: &mut CpuDevice, rows: &[(u32, usize, u32)]) -> Vec<f32> {
    let tables: Vec<Vec<PageId>> = rows.iter().map(|r| pages(r.0)).collect();
    let segments: Vec<Segment<'_>> = rows
        .iter()
        .zip(&tables)
        .map(|(&(sequence, start, _), pages)| Segment { slot: SlotId(sequence), start, rows: 1, pages })
        .collect();
    let ids: Vec<u32> = rows.iter().map(|r| r.2).collect();
    let step = Step {
        phase: Phase::Decode,
        tokens: Tokens::Ids(&ids),
        segments: &segments,
        logit_rows: LogitRows::Last,
        output: Output::Logits,
    };
    device.submit(&step).expect("a decode step");
    device.wait().expect("its result").logits
}

/// Index of the largest.
pub fn argmax(logits: &[f32]) -> u32 {
    lily_cpu::reference::argmax(logits) as u32
}
