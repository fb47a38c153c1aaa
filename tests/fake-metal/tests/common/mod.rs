//! Devices over the fake machine, and steps to run on them.

#![allow(dead_code)] // each test file uses its part

use std::path::PathBuf;
use std::sync::Arc;

use fake_metal::GpuDevice;
use fake_metal::machine::Session;
use fake_metal::metal::{Metal, MetalOptions, open};
use lily_model::checkpoint::Checkpoint;
use lily_model::device::{
    Capacity, Device, DeviceError, LogitRows, Output, PageId, Segment, SlotId, Step, StepResult, Tokens,
};
use lily_model::graph::Phase;

/// Sizes that the tests use.
pub const CAPACITY: Capacity = Capacity { slots: 4, pages: 16, prefill_rows: 128, decode_rows: 4, max_seq: 1024 };

/// A checkpoint of this repository.
pub fn checkpoint(folder: &str) -> Arc<Checkpoint> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").join(folder);
    Arc::new(Checkpoint::open(&folder).expect("the checkpoint loads"))
}

/// The small random model.
pub fn tiny() -> Arc<Checkpoint> {
    checkpoint("tests/fixtures/tiny-a")
}

/// The same model with its tensors at multiples of 64 bytes, as most files have them; in a folder of its own.
pub fn aligned() -> Arc<Checkpoint> {
    let from = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fixtures/tiny-a");
    let to = std::env::temp_dir().join(format!("fake-metal-aligned-{}", std::process::id()));
    std::fs::create_dir_all(&to).expect("a folder");
    for entry in std::fs::read_dir(from).expect("the fixture") {
        let path = entry.expect("a file").path();
        let mut bytes = std::fs::read(&path).expect("a file");
        if path.ends_with("model.safetensors") {
            let header = 8 + u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes")) as usize;
            let padding = header.next_multiple_of(64) - header;
            bytes.splice(header..header, std::iter::repeat_n(b' ', padding));
            bytes[..8].copy_from_slice(&((header + padding - 8) as u64).to_le_bytes());
        }
        std::fs::write(to.join(path.file_name().expect("a name")), bytes).expect("written");
    }
    let checkpoint = Checkpoint::open(&to).expect("the checkpoint loads");
    std::fs::remove_dir_all(&to).expect("removed; the mapping stays");
    Arc::new(checkpoint)
}

/// A Metal device of one test.
pub fn metal(_session: &Session, checkpoint: &Arc<Checkpoint>) -> Result<GpuDevice<Metal>, DeviceError> {
    open(Arc::clone(checkpoint), CAPACITY, MetalOptions::default())
}

/// `count` different tokens of a model of at least 200.
pub fn prompt(count: usize) -> Vec<u32> {
    (0..count as u32).map(|i| (i * 37 + 11) % 199).collect()
}

/// The four pages of a sequence, scattered.
pub fn pages(sequence: u32) -> Vec<PageId> {
    [3, 0, 2, 1].iter().map(|i| PageId(4 * sequence + i)).collect()
}

/// Starts a step of one sequence.
pub fn submit(
    device: &mut dyn Device,
    sequence: u32,
    start: usize,
    tokens: Tokens<'_>,
    rows: usize,
    output: Output,
) -> Result<(), DeviceError> {
    let pages = pages(sequence);
    let segment = Segment { slot: SlotId(sequence), start, rows, pages: &pages };
    let phase = if rows > 1 { Phase::Prefill } else { Phase::Decode };
    device.submit(&Step { phase, tokens, segments: &[segment], logit_rows: LogitRows::Last, output })
}

/// A step of one sequence: the logits of its last row.
pub fn logits(device: &mut dyn Device, sequence: u32, start: usize, ids: &[u32]) -> Vec<f32> {
    submit(device, sequence, start, Tokens::Ids(ids), ids.len(), Output::Logits).expect("the step starts");
    finished(device).logits
}

/// The result of the oldest step.
pub fn finished(device: &mut dyn Device) -> StepResult {
    match device.wait() {
        Ok(result) => result,
        Err(error) => panic!("{error}"),
    }
}

/// Greedy tokens after a prompt, each step waited for.
pub fn greedy(device: &mut dyn Device, prompt: &[u32], count: usize) -> Vec<u32> {
    submit(device, 0, 0, Tokens::Ids(prompt), prompt.len(), Output::Argmax).expect("the prompt starts");
    let mut ids = finished(device).tokens;
    for i in 0..count - 1 {
        let next = [ids[i]];
        submit(device, 0, prompt.len() + i, Tokens::Ids(&next), 1, Output::Argmax).expect("a step starts");
        ids.extend(finished(device).tokens);
    }
    ids
}
