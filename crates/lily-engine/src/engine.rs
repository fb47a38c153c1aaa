//! The engine: a loaded model on a device, and the thread that drives it.

use std::path::PathBuf;
use std::time::Duration;

use lily_model::device::{Device, DeviceInfo};

use crate::constraint::{ConstraintError, ConstraintSpec, TokenMask};
use crate::defaults::GenerationDefaults;
use crate::error::{EngineError, SubmitError};
use crate::generation::Generation;
use crate::metrics::MetricsSnapshot;
use crate::request::Request;

/// What an engine is made of.
pub struct EngineParts {
    /// Computes the model. Its slots beyond [`EngineConfig::parallel`] hold the prefix cache's snapshots.
    pub device: Box<dyn Device>,
    /// End ids and sampling defaults of the checkpoint.
    pub defaults: GenerationDefaults,
    /// Rows of the logits.
    pub vocab_size: usize,
    /// Bytes of one slot's state (`ModelConfig::recurrent_state_bytes`), for the cache budget.
    pub slot_bytes: u64,
    /// Bytes of one page of keys and values, for the cache budget.
    pub page_bytes: u64,
    /// Says which weights these are; a disk cache of another fingerprint is not read.
    pub fingerprint: String,
}

/// Settings of an engine.
#[derive(Debug, Clone, PartialEq)]
pub struct EngineConfig {
    /// Requests that run at once, 1 to the device's decode rows.
    pub parallel: usize,
    /// Requests that may wait beyond those.
    pub max_waiting: usize,
    /// Bytes the prefix cache may hold in pages and snapshots; 0 = no prefix cache.
    pub cache_bytes: u64,
    /// Where snapshots are kept across restarts.
    pub cache_dir: Option<PathBuf>,
    /// Bytes the files in `cache_dir` may take.
    pub cache_dir_bytes: u64,
    /// While requests decode, a prefill step is kept about this short. A running stream's gap is at most this, or one
    /// step of 32 prompt tokens where that takes longer, plus one decode step.
    pub max_stall: Duration,
}

impl Default for EngineConfig {
    fn default() -> Self {
        EngineConfig {
            parallel: 4,
            max_waiting: 64,
            cache_bytes: 2 << 30,
            cache_dir: None,
            cache_dir_bytes: 16 << 30,
            max_stall: Duration::from_millis(300),
        }
    }
}

/// Limits a caller may want to show or check before it submits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelLimits {
    /// Most tokens of prompt and answer together.
    pub max_seq: usize,
    /// Rows of the logits; every token id is below.
    pub vocab_size: usize,
}

/// Whether the engine can serve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// Yes.
    Ready,
    /// It finishes what it has and takes nothing new.
    Draining,
    /// No; why.
    Unhealthy(String),
}

/// A loaded model on a device. Cheap to share behind an `Arc`; dropping the last one ends the worker thread.
#[derive(Debug)]
pub struct Engine {
    defaults: GenerationDefaults,
    limits: ModelLimits,
    info: DeviceInfo,
}

impl Engine {
    /// Starts the worker thread. Fails where `config` does not go with the device.
    pub fn new(parts: EngineParts, config: EngineConfig) -> Result<Self, EngineError> {
        let _ = (parts, config);
        Err(EngineError::Config {
            field: "engine",
            value: "not part of this build".into(),
            accepted: "a build with the scheduler".into(),
        })
    }

    /// Takes a request, or says why not. Never blocks on the device.
    pub fn submit(&self, request: Request) -> Result<Generation, SubmitError> {
        let _ = request;
        Err(SubmitError::Unhealthy("the scheduler is not part of this build".into()))
    }

    /// Compiles a constraint for [`Request::constraint`]; blocks for up to a few seconds (call it off the async threads).
    pub fn compile_constraint(&self, spec: &ConstraintSpec) -> Result<Box<dyn TokenMask>, ConstraintError> {
        let _ = spec;
        Err(ConstraintError::Invalid {
            what: "constraint".into(),
            reason: "constraints are not part of this build".into(),
        })
    }

    /// End ids and sampling defaults of the checkpoint.
    pub fn defaults(&self) -> &GenerationDefaults {
        &self.defaults
    }

    /// Limits of the model on this device.
    pub fn limits(&self) -> ModelLimits {
        self.limits
    }

    /// What computes.
    pub fn device_info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Whether requests are served.
    pub fn health(&self) -> Health {
        Health::Unhealthy("the scheduler is not part of this build".into())
    }

    /// Counters at this moment.
    pub fn metrics(&self) -> MetricsSnapshot {
        MetricsSnapshot::default()
    }

    /// Takes nothing new from now on; what runs and waits is finished. Returns when all is done or `patience` is over;
    /// what still runs then is cancelled. Writes the prefix cache to disk if there is a cache directory.
    pub fn drain(&self, patience: Duration) {
        let _ = patience;
    }
}
