//! Whether a model fits a Mac: what the device will take, counted before anything is taken, against the working set that
//! the system recommends. Counting is a driver that takes nothing, so that no formula is written twice.

use std::fmt;
use std::sync::Arc;

use lily_model::checkpoint::{self, Checkpoint, Storage};
use lily_model::device::{Capacity, DeviceError};
use lily_model::graph::Plan;

use super::NAME;
use super::views::{self, Mapping, Place};
use crate::driver::{Driver, DriverInfo, Imported, Memory};
use crate::memory::DeviceMemory;
use crate::program::{BufferId, Program, ProgramId, Span};
use crate::route::MatrixRoute;
use crate::source::{LibrarySource, WeightAlignment};
use crate::tuning::Tuning;

/// Left for pipelines, command buffers and the system's own allocations in the process.
pub const RESERVE: u64 = 256 << 20;

/// Bytes that a device takes, by purpose.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Need {
    /// Weights, in place or copied.
    pub weights: u64,
    /// Pages of keys and values.
    pub pages: u64,
    /// Recurrent states, snapshots included.
    pub states: u64,
    /// Intermediates of a step.
    pub scratch: u64,
    /// Inputs, tokens and logits.
    pub transfers: u64,
}

impl Need {
    /// All of it, the reserve included.
    pub fn total(&self) -> u64 {
        self.weights + self.pages + self.states + self.scratch + self.transfers + RESERVE
    }

    /// Adds memory of a kind.
    pub fn add(&mut self, bytes: u64, memory: Memory) {
        *match memory {
            Memory::Scratch => &mut self.scratch,
            Memory::State => &mut self.states,
            Memory::Pages => &mut self.pages,
            Memory::Upload | Memory::Download => &mut self.transfers,
        } += bytes;
    }

    /// Refuses what a working set of `limit` bytes cannot hold.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`] with every part and what can be made smaller.
    pub fn fit(&self, limit: u64) -> Result<(), DeviceError> {
        if self.total() <= limit {
            return Ok(());
        }
        let fixed = self.total() - self.pages - self.states;
        let advice = match fixed < limit {
            true => "fewer or shorter sequences, or a smaller prefix cache, would fit",
            false => {
                "weights and intermediates alone do not fit; `sudo sysctl iogpu.wired_limit_mb=…` raises the limit"
            }
        };
        let what = format!("{self}; {advice}");
        Err(DeviceError::OutOfMemory { device: NAME, what, needed: self.total(), available: limit })
    }
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gb = |bytes: u64| bytes as f64 / 1e9;
        write!(
            f,
            "weights {:.2} GB, keys and values {:.2} GB, states {:.2} GB, intermediates {:.2} GB, inputs and outputs \
             {:.2} GB, reserve {:.2} GB",
            gb(self.weights),
            gb(self.pages),
            gb(self.states),
            gb(self.scratch),
            gb(self.transfers),
            gb(RESERVE),
        )
    }
}

/// Limits of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Working set that the system recommends, bytes.
    pub working_set: u64,
    /// Longest buffer, bytes.
    pub max_buffer: u64,
    /// Bytes of a page of the operating system.
    pub page: u64,
}

/// What a device for `capacity` will take of a GPU with these limits.
///
/// # Errors
/// A tensor or a buffer longer than a buffer may be.
pub fn measure(checkpoint: &Arc<Checkpoint>, capacity: &Capacity, limits: Limits) -> Result<Need, DeviceError> {
    let model = checkpoint.model();
    let plans = [Plan::decode(model, capacity.decode_rows), Plan::prefill(model, capacity.prefill_rows)];
    let mut ledger = Ledger { limits, need: Need::default(), buffers: 0 };
    DeviceMemory::new(&mut ledger, checkpoint, &plans, capacity)?;
    Ok(ledger.need)
}

/// Memory of a shard, for [`views::lay_out`].
pub fn mapping(shard: &checkpoint::Shard, page: u64) -> Mapping {
    let bytes = shard.bytes();
    let page = matches!(shard.storage(), Storage::Mapped(_)).then_some(page);
    Mapping { base: bytes.as_ptr() as u64, bytes: bytes.len() as u64, page }
}

/// Buffers of all shards.
#[derive(Debug)]
pub struct ShardLayouts {
    /// Buffers of each shard.
    pub shards: Vec<views::Layout>,
    /// For each wanted range its shard, and its index among the ranges of that shard.
    pub found: Vec<(usize, usize)>,
}

impl ShardLayouts {
    /// Where wanted range `index` is, in its shard's buffers.
    pub fn place(&self, index: usize) -> Place {
        let (shard, index) = self.found[index];
        self.shards[shard].places[index]
    }
}

/// Lays out the buffers for ranges of a checkpoint.
///
/// # Errors
/// [`DeviceError::Unsupported`] for a tensor longer than a buffer may be.
pub fn lay_out_shards(
    checkpoint: &Checkpoint,
    wanted: &[checkpoint::Span],
    limits: Limits,
) -> Result<ShardLayouts, DeviceError> {
    let shards = checkpoint.shards();
    let mut ranges: Vec<Vec<(u64, u64)>> = vec![Vec::new(); shards.len()];
    let mut found = Vec::with_capacity(wanted.len());
    for span in wanted {
        found.push((span.shard, ranges[span.shard].len()));
        ranges[span.shard].push((span.offset as u64, span.len as u64));
    }
    let mut layouts = Vec::with_capacity(shards.len());
    for (shard, ranges) in shards.iter().zip(&ranges) {
        // Scales and biases are read one by one, and weights by words: 4 bytes are enough for a buffer's offset.
        let layout = views::lay_out(mapping(shard, limits.page), ranges, limits.max_buffer, 4);
        layouts.push(layout.map_err(|too_long| DeviceError::Unsupported {
            device: NAME,
            what: format!("a tensor at byte {} of {}", ranges[too_long.index].0, shard.name()),
            value: format!("{} bytes", too_long.bytes),
            accepted: format!("at most {} bytes, the longest buffer of this GPU", limits.max_buffer),
        })?);
    }
    Ok(ShardLayouts { shards: layouts, found })
}

/// Refuses a buffer longer than the GPU has.
pub fn check_length(name: &str, bytes: u64, limits: Limits) -> Result<(), DeviceError> {
    if bytes <= limits.max_buffer {
        return Ok(());
    }
    let what = format!("{name}, which must be one buffer");
    Err(DeviceError::OutOfMemory { device: NAME, what, needed: bytes, available: limits.max_buffer })
}

/// The driver that only counts.
struct Ledger {
    limits: Limits,
    need: Need,
    buffers: u32,
}

impl Ledger {
    fn buffer(&mut self) -> BufferId {
        self.buffers += 1;
        BufferId(self.buffers)
    }

    fn never(&self, call: &str) -> DeviceError {
        DeviceError::Failed { device: NAME, op: call.into(), reason: "counting memory computes nothing".into() }
    }
}

impl Driver for Ledger {
    fn info(&self) -> DriverInfo {
        DriverInfo { name: NAME, hardware: String::new(), route: MatrixRoute::Simdgroup, tuning: Tuning::APPLE }
    }

    fn allocate(&mut self, name: &str, bytes: u64, memory: Memory) -> Result<BufferId, DeviceError> {
        check_length(name, bytes, self.limits)?;
        self.need.add(bytes, memory);
        Ok(self.buffer())
    }

    fn release(&mut self, _buffer: BufferId) {}

    fn import(&mut self, checkpoint: &Arc<Checkpoint>, wanted: &[checkpoint::Span]) -> Result<Imported, DeviceError> {
        let layouts = lay_out_shards(checkpoint, wanted, self.limits)?;
        for layout in &layouts.shards {
            self.need.weights += layout.views.iter().map(|v| v.end - v.start).sum::<u64>();
            self.need.weights += layout.copies.iter().sum::<u64>();
        }
        let buffer = self.buffer();
        let spans = wanted.iter().enumerate().map(|(index, span)| {
            let (Place::View { offset, .. } | Place::Copy { offset, .. }) = layouts.place(index);
            Span { buffer, offset, bytes: span.len as u64 }
        });
        Ok(Imported { spans: spans.collect(), alignment: WeightAlignment::Four })
    }

    fn compile(&mut self, _libraries: &[LibrarySource], _kernels: &[&'static str]) -> Result<(), DeviceError> {
        Err(self.never("compile"))
    }

    fn prepare(&mut self, _program: &Arc<Program>) -> Result<ProgramId, DeviceError> {
        Err(self.never("prepare"))
    }

    fn forget_programs(&mut self) {}

    fn submit(&mut self, _program: ProgramId) -> Result<(), DeviceError> {
        Err(self.never("submit"))
    }

    fn wait(&mut self) -> Result<(), DeviceError> {
        Err(self.never("wait"))
    }

    fn write(&mut self, _to: Span, _bytes: &[u8]) -> Result<(), DeviceError> {
        Ok(())
    }

    fn read(&mut self, _from: Span, _bytes: &mut [u8]) -> Result<(), DeviceError> {
        Err(self.never("read"))
    }

    fn copy(&mut self, _from: Span, _to: Span) -> Result<(), DeviceError> {
        Err(self.never("copy"))
    }

    fn clear(&mut self, _span: Span) -> Result<(), DeviceError> {
        Err(self.never("clear"))
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use lily_model::config::ModelConfig;
    use lily_model::graph::{Model, WeightKind};

    use super::*;

    const GB: u64 = 1_000_000_000;

    /// The published model with one sequence of `tokens`: what it takes whatever the GPU.
    fn published(tokens: u64) -> Need {
        let model = Model::new(ModelConfig::qwen36_35b_a3b()).expect("a valid geometry");
        let weights = model.weights.iter().map(|spec| {
            let experts = match spec.kind {
                WeightKind::Matrix { experts, .. } => experts.unwrap_or(1),
                _ => 1,
            };
            (experts * spec.unit_bytes()) as u64
        });
        Need {
            weights: weights.sum(),
            pages: tokens * model.config.kv_bytes_per_token(2) as u64,
            states: model.config.recurrent_state_bytes() as u64,
            scratch: GB / 2,
            transfers: GB / 100,
        }
    }

    /// Working sets that Macs of 24, 32 and 64 GB recommend.
    const MAC_24: u64 = 19_069_468_672;
    const MAC_32: u64 = 22_906_503_168;
    const MAC_64: u64 = 51_539_607_552;

    #[test]
    fn the_published_model_is_refused_on_24_gb_with_the_way_to_raise_the_limit() {
        let error = published(4096).fit(MAC_24).expect_err("too large").to_string();
        assert!(error.contains("iogpu.wired_limit_mb") && error.contains("weights 19."), "{error}");
    }

    #[test]
    fn the_published_model_fits_32_gb_with_64k_tokens_and_not_with_262k() {
        published(65_536).fit(MAC_32).expect("fits");
        let error = published(262_144).fit(MAC_32).expect_err("too large").to_string();
        assert!(error.contains("shorter sequences") && error.contains("keys and values 5.37 GB"), "{error}");
    }

    #[test]
    fn the_published_model_fits_64_gb_with_262k_tokens() {
        published(262_144).fit(MAC_64).expect("fits");
    }

    #[test]
    fn a_need_of_just_the_working_set_fits_and_one_byte_more_does_not() {
        let need = Need { weights: 1 << 30, pages: 1 << 20, ..Need::default() };
        need.fit(need.total()).expect("fits");
        assert!(need.fit(need.total() - 1).is_err());
    }

    fn tiny() -> Arc<Checkpoint> {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/tiny-a");
        Arc::new(Checkpoint::open(&folder).expect("the fixture loads"))
    }

    const CAPACITY: Capacity = Capacity { slots: 3, pages: 5, prefill_rows: 64, decode_rows: 2, max_seq: 512 };
    const LIMITS: Limits = Limits { working_set: 1 << 34, max_buffer: 1 << 30, page: 4096 };

    #[test]
    fn counting_finds_every_part_and_follows_the_capacity() {
        let checkpoint = tiny();
        let config = &checkpoint.model().config;
        let need = measure(&checkpoint, &CAPACITY, LIMITS).expect("counted");
        let page = (config.kv_bytes_per_token(2) * Plan::PAGE_TOKENS) as u64;
        assert_eq!(need.pages, 5 * page);
        let file: u64 = checkpoint.shards().iter().map(|shard| shard.bytes().len() as u64).sum();
        assert!(need.weights > file / 2 && need.weights < file + (1 << 16), "{} of {file}", need.weights);
        assert!(need.states >= 3 * config.recurrent_state_bytes() as u64);
        assert!(need.scratch > 0 && need.transfers > 0);
        let more = measure(&checkpoint, &Capacity { pages: 6, ..CAPACITY }, LIMITS).expect("counted");
        assert_eq!(more, Need { pages: need.pages + page, ..need });
    }

    #[test]
    fn a_buffer_longer_than_the_gpu_has_is_refused_by_name() {
        let limits = Limits { max_buffer: 1 << 20, ..LIMITS };
        let capacity = Capacity { pages: 100_000, ..CAPACITY };
        let error = measure(&tiny(), &capacity, limits).expect_err("too long").to_string();
        assert!(error.contains("1048576"), "{error}");
    }
}
