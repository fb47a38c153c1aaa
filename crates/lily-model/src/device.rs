//! The seam between the engine and what computes: a device owns the KV pool and the recurrent states, takes steps, and
//! gives back tokens or logits. It knows no requests, no text and no HTTP.

use std::fmt;

use crate::graph::Phase;

/// A page of the KV pool: 256 tokens' keys and values, all attention layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageId(pub u32);

/// A place for the recurrent state (and conv window) of one sequence, or of a snapshot of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotId(pub u32);

/// Sizes a device is made with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// Sequence slots, those for snapshots included.
    pub slots: usize,
    /// Pages of the KV pool. Memory is taken as pages are first used where the device can.
    pub pages: usize,
    /// Most rows of a prefill step.
    pub prefill_rows: usize,
    /// Most rows of a decode step, at most [`crate::graph::Plan::MAX_DECODE_ROWS`].
    pub decode_rows: usize,
    /// Most tokens of one sequence.
    pub max_seq: usize,
}

/// Tokens of a step.
#[derive(Debug, Clone, Copy)]
pub enum Tokens<'a> {
    /// One id for each row.
    Ids(&'a [u32]),
    /// Row i takes the token that the previous step's [`Output::Argmax`] chose for its logit row i. The host need not
    /// have seen it.
    Previous,
}

/// Consecutive tokens of one sequence within a step.
#[derive(Debug, Clone, Copy)]
pub struct Segment<'a> {
    /// Where the sequence's recurrent state is. It must have absorbed exactly `start` tokens.
    pub slot: SlotId,
    /// Position of the first row.
    pub start: usize,
    /// Rows; 1 in a decode step.
    pub rows: usize,
    /// Block table: page i holds positions `256 * i ..`; covers at least `start + rows` positions.
    pub pages: &'a [PageId],
}

/// Which rows yield logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogitRows {
    /// None: the step only advances the state.
    None,
    /// The last row of each segment, in order.
    Last,
    /// Every row.
    All,
}

/// What comes back for each logit row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// The id of the largest logit (ties to the lowest id).
    Argmax,
    /// All logits, f32.
    Logits,
}

/// One forward pass over some rows.
#[derive(Debug, Clone, Copy)]
pub struct Step<'a> {
    /// Decode (every segment has one row, at most `decode_rows` of them) or prefill.
    pub phase: Phase,
    /// Tokens, in the order of the segments.
    pub tokens: Tokens<'a>,
    /// Segments; no two share a slot.
    pub segments: &'a [Segment<'a>],
    /// Rows that yield output.
    pub logit_rows: LogitRows,
    /// Form of the output.
    pub output: Output,
}

impl Step<'_> {
    /// Rows of all segments.
    pub fn rows(&self) -> usize {
        self.segments.iter().map(|s| s.rows).sum()
    }

    /// Rows that yield output.
    pub fn logit_row_count(&self) -> usize {
        match self.logit_rows {
            LogitRows::None => 0,
            LogitRows::Last => self.segments.len(),
            LogitRows::All => self.rows(),
        }
    }
}

/// Stands for the id of a row whose logits are faulty. A step that takes it by [`Tokens::Previous`] takes a valid id instead.
pub const NO_TOKEN: u32 = u32::MAX;

/// What a finished step gives.
#[derive(Debug, Clone, Default)]
pub struct StepResult {
    /// With [`Output::Argmax`]: one id a logit row; [`NO_TOKEN`] where all logits are NaN or the
    /// largest is infinite (a GPU takes 1e30 for infinite). NaN beside numbers is passed over.
    pub tokens: Vec<u32>,
    /// With [`Output::Logits`]: `[logit rows, vocab]`.
    pub logits: Vec<f32>,
}

/// What a device is and how it computes, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// `cpu`, `metal`, `cuda`, `emulated`.
    pub name: &'static str,
    /// Hardware and route, for example `AVX-512 VNNI, 2 threads`.
    pub description: String,
    /// Bytes of one matrix input.
    pub activation_bytes: usize,
    /// Bytes of one key or value.
    pub cache_bytes: usize,
}

/// Why a device could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// Memory that the device needs is not there.
    #[error("{device}: out of memory for {what}: {needed} bytes needed, {available} available")]
    OutOfMemory {
        /// Device name.
        device: &'static str,
        /// What the memory was for.
        what: String,
        /// Bytes needed.
        needed: u64,
        /// Bytes there.
        available: u64,
    },
    /// The model cannot be computed on this device.
    #[error("{device}: {what} is {value} (accepted: {accepted})")]
    Unsupported {
        /// Device name.
        device: &'static str,
        /// What does not fit.
        what: String,
        /// Its value.
        value: String,
        /// What would have been accepted.
        accepted: String,
    },
    /// A step that breaks the contract of [`Device::submit`].
    #[error("{device}: bad step: {reason}")]
    BadStep {
        /// Device name.
        device: &'static str,
        /// Which rule, with the numbers.
        reason: String,
    },
    /// The device failed while it computed.
    #[error("{device}: {op} failed: {reason}")]
    Failed {
        /// Device name.
        device: &'static str,
        /// Operation (or driver call) that failed.
        op: String,
        /// The device's own words.
        reason: String,
    },
}

/// Something that computes the plan.
///
/// Steps are executed in the order of submission; at most [`MAX_STEPS_IN_FLIGHT`] may be unfinished.
pub trait Device: Send {
    /// What it is.
    fn info(&self) -> DeviceInfo;

    /// Sizes it was made with.
    fn capacity(&self) -> Capacity;

    /// Starts a step. A device without asynchronous execution computes it here.
    fn submit(&mut self, step: &Step<'_>) -> Result<(), DeviceError>;

    /// Waits for the oldest unfinished step.
    fn wait(&mut self) -> Result<StepResult, DeviceError>;

    /// Takes back a result that has been read, so that its memory can serve again.
    fn recycle(&mut self, _result: StepResult) {}

    /// Makes a slot's state that of an empty sequence.
    fn clear_slot(&mut self, slot: SlotId) -> Result<(), DeviceError>;

    /// Copies a slot's state to another slot (a snapshot, or the resumption of one).
    fn copy_slot(&mut self, from: SlotId, to: SlotId) -> Result<(), DeviceError>;

    /// Copies a page's keys and values to another page.
    fn copy_page(&mut self, from: PageId, to: PageId) -> Result<(), DeviceError>;

    /// Bytes of a slot's state, in the device's own layout.
    fn read_slot(&mut self, slot: SlotId) -> Result<Vec<u8>, DeviceError>;

    /// Restores what [`Device::read_slot`] of a device of the same kind and model gave.
    fn write_slot(&mut self, slot: SlotId, bytes: &[u8]) -> Result<(), DeviceError>;

    /// Bytes of a page's keys and values, in the device's own layout.
    fn read_page(&mut self, page: PageId) -> Result<Vec<u8>, DeviceError>;

    /// Restores what [`Device::read_page`] of a device of the same kind and model gave.
    fn write_page(&mut self, page: PageId, bytes: &[u8]) -> Result<(), DeviceError>;
}

/// Steps that may be submitted and not yet waited for.
pub const MAX_STEPS_IN_FLIGHT: usize = 2;

impl fmt::Display for DeviceInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.description)
    }
}
