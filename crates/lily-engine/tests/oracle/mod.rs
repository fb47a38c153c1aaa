//! A device that computes a tiny deterministic "model" whose every token depends on the whole history, as it lies in the
//! pages and slots it was given. A wrong slot, page, position or order gives other tokens, or an error.
//!
//! State of a slot: tokens absorbed and a hash of them. A page keeps one number a position. The state after a token mixes
//! in numbers of earlier positions, and logits mix in all of them, so that what a page holds matters as in attention.
#![allow(dead_code, clippy::unwrap_used)] // each test file uses a part

use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use lily_engine::{
    Engine, EngineConfig, EngineParts, Event, FinishReason, Generation, GenerationDefaults, Request, SamplingParams,
    TokenEvent, Usage,
};
use lily_model::device::{
    Capacity, Device, DeviceError, DeviceInfo, MAX_STEPS_IN_FLIGHT, NO_TOKEN, Output, PageId, SlotId, Step, StepResult,
    Tokens,
};
use lily_model::graph::Phase;
use lily_model::text::Tokenizer;

pub const VOCAB: usize = 512;
pub const EOS: u32 = 458;
pub const SLOT_BYTES: u64 = 16;
pub const PAGE_BYTES: u64 = 256 * 8;

/// What a test tells the device and reads from it.
#[derive(Debug, Default)]
pub struct Control {
    /// Steps to fail, from the next on.
    pub fail_steps: usize,
    /// Panic in the next step.
    pub panic: bool,
    /// How long a step takes, and each of its rows.
    pub step_time: Duration,
    pub row_time: Duration,
    /// (phase, rows, argmax by the device's own tokens) of every step.
    pub steps: Vec<(Phase, usize, bool)>,
    /// Prompt and answer tokens computed.
    pub rows: usize,
    /// Logits of id added in every step, to make tokens likely.
    pub favour: Vec<(u32, f32)>,
    /// Logits are no numbers.
    pub faulty: bool,
}

pub type Shared = Arc<Mutex<Control>>;

pub struct Oracle {
    capacity: Capacity,
    slots: Vec<(usize, u64)>,
    pages: Vec<Vec<u64>>,
    pending: VecDeque<Result<StepResult, DeviceError>>,
    previous: Vec<u32>,
    control: Shared,
}

fn mix(a: u64, b: u64) -> u64 {
    let mut z = (a ^ b.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(b);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z ^ (z >> 31)
}

impl Oracle {
    pub fn new(capacity: Capacity, control: Shared) -> Self {
        // What nobody wrote is different in every slot and page.
        let slots = (0..capacity.slots).map(|i| (usize::MAX, i as u64)).collect();
        let pages = (0..capacity.pages as u64).map(|p| (0..256).map(|i| mix(p, i)).collect()).collect();
        Oracle { capacity, slots, pages, pending: VecDeque::new(), previous: Vec::new(), control }
    }

    fn bad(&self, reason: String) -> DeviceError {
        DeviceError::BadStep { device: "oracle", reason }
    }

    fn at(&self, pages: &[PageId], position: usize) -> u64 {
        self.pages[pages[position / 256].0 as usize][position % 256]
    }

    fn compute(&mut self, step: &Step<'_>) -> Result<StepResult, DeviceError> {
        let (favour, faulty) = {
            let control = self.control.lock().unwrap();
            (control.favour.clone(), control.faulty)
        };
        let ids: Vec<u32> = match step.tokens {
            Tokens::Ids(ids) => ids.to_vec(),
            Tokens::Previous => self.previous.clone(),
        };
        if ids.len() != step.rows() {
            return Err(self.bad(format!("{} ids for {} rows", ids.len(), step.rows())));
        }
        let most = if step.phase == Phase::Decode { self.capacity.decode_rows } else { self.capacity.prefill_rows };
        if step.rows() > most || step.rows() == 0 {
            return Err(self.bad(format!("{} rows (1 to {most})", step.rows())));
        }
        let mut result = StepResult::default();
        let mut row = 0;
        for (i, segment) in step.segments.iter().enumerate() {
            if step.segments[..i].iter().any(|s| s.slot == segment.slot) {
                return Err(self.bad("a slot twice".into()));
            }
            if segment.start + segment.rows > segment.pages.len() * 256 {
                return Err(self.bad("the block table is too short".into()));
            }
            if segment.start + segment.rows > self.capacity.max_seq {
                return Err(self.bad("past max_seq".into()));
            }
            let (absorbed, mut hash) = self.slots[segment.slot.0 as usize];
            if absorbed != segment.start {
                return Err(self.bad(format!("slot absorbed {absorbed}, step starts at {}", segment.start)));
            }
            for r in 0..segment.rows {
                let position = segment.start + r;
                let id = ids[row];
                row += 1;
                assert!((id as usize) < VOCAB);
                hash = mix(hash, u64::from(id));
                for earlier in [position / 2, position.saturating_sub(1), position * 7 / 8] {
                    if earlier < position {
                        hash = mix(hash, self.at(segment.pages, earlier));
                    }
                }
                let page = segment.pages[position / 256];
                self.pages[page.0 as usize][position % 256] = hash;
            }
            self.slots[segment.slot.0 as usize] = (segment.start + segment.rows, hash);
            if step.logit_row_count() > 0 {
                let all = (0..segment.start + segment.rows).fold(hash, |h, p| mix(h, self.at(segment.pages, p)));
                let mut logits: Vec<f32> = (0..VOCAB as u64).map(|v| (mix(all, v) >> 40) as f32 / 2e6).collect();
                // Added tokens come only where a test favours them.
                logits[456..].iter_mut().for_each(|l| *l -= 9.0);
                favour.iter().for_each(|&(id, plus)| logits[id as usize] += plus);
                if faulty {
                    logits.fill(f32::NAN);
                }
                match step.output {
                    Output::Logits => result.logits.extend(logits),
                    Output::Argmax if faulty => result.tokens.push(NO_TOKEN),
                    Output::Argmax => {
                        let best = logits.iter().copied().fold(f32::MIN, f32::max);
                        result.tokens.push(logits.iter().position(|&l| l == best).unwrap() as u32);
                    }
                }
            }
        }
        self.previous = result.tokens.clone();
        Ok(result)
    }
}

impl Device for Oracle {
    fn info(&self) -> DeviceInfo {
        DeviceInfo { name: "oracle", description: "hash of the history".into(), activation_bytes: 4, cache_bytes: 8 }
    }

    fn capacity(&self) -> Capacity {
        self.capacity
    }

    fn submit(&mut self, step: &Step<'_>) -> Result<(), DeviceError> {
        if self.pending.len() >= MAX_STEPS_IN_FLIGHT {
            return Err(self.bad("too many steps in flight".into()));
        }
        let (fail, time) = {
            let mut c = self.control.lock().unwrap();
            c.steps.push((step.phase, step.rows(), matches!(step.tokens, Tokens::Previous)));
            c.rows += step.rows();
            let fail = c.fail_steps > 0;
            c.fail_steps = c.fail_steps.saturating_sub(1);
            if std::mem::take(&mut c.panic) {
                drop(c);
                panic!("the oracle panics as told");
            }
            (fail, c.step_time + c.row_time * step.rows() as u32)
        };
        if !time.is_zero() {
            std::thread::sleep(time);
        }
        let mut result = self.compute(step);
        if fail {
            // A step that fails may have done anything to the rows it had.
            for segment in step.segments {
                self.slots[segment.slot.0 as usize].1 = 13;
            }
            result = Err(DeviceError::Failed { device: "oracle", op: "step".into(), reason: "as told".into() });
        }
        self.pending.push_back(result);
        Ok(())
    }

    fn wait(&mut self) -> Result<StepResult, DeviceError> {
        self.pending.pop_front().unwrap_or_else(|| Err(self.bad("nothing in flight".into())))
    }

    fn clear_slot(&mut self, slot: SlotId) -> Result<(), DeviceError> {
        self.slots[slot.0 as usize] = (0, 1);
        Ok(())
    }

    fn copy_slot(&mut self, from: SlotId, to: SlotId) -> Result<(), DeviceError> {
        assert!(self.pending.is_empty(), "copies wait for the steps");
        self.slots[to.0 as usize] = self.slots[from.0 as usize];
        Ok(())
    }

    fn copy_page(&mut self, from: PageId, to: PageId) -> Result<(), DeviceError> {
        assert!(self.pending.is_empty(), "copies wait for the steps");
        self.pages[to.0 as usize] = self.pages[from.0 as usize].clone();
        Ok(())
    }

    fn read_slot(&mut self, slot: SlotId) -> Result<Vec<u8>, DeviceError> {
        let (absorbed, hash) = self.slots[slot.0 as usize];
        Ok([(absorbed as u64).to_le_bytes(), hash.to_le_bytes()].concat())
    }

    fn write_slot(&mut self, slot: SlotId, bytes: &[u8]) -> Result<(), DeviceError> {
        let words = words(bytes);
        if words.len() != 2 {
            return Err(self.bad(format!("a slot of {} bytes", bytes.len())));
        }
        self.slots[slot.0 as usize] = (words[0] as usize, words[1]);
        Ok(())
    }

    fn read_page(&mut self, page: PageId) -> Result<Vec<u8>, DeviceError> {
        Ok(self.pages[page.0 as usize].iter().flat_map(|w| w.to_le_bytes()).collect())
    }

    fn write_page(&mut self, page: PageId, bytes: &[u8]) -> Result<(), DeviceError> {
        let words = words(bytes);
        if words.len() != 256 {
            return Err(self.bad(format!("a page of {} bytes", bytes.len())));
        }
        self.pages[page.0 as usize] = words;
        Ok(())
    }
}

fn words(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks_exact(8).map(|b| u64::from_le_bytes(b.try_into().unwrap())).collect()
}

pub fn capacity() -> Capacity {
    Capacity { slots: 24, pages: 256, prefill_rows: 128, decode_rows: 16, max_seq: 8192 }
}

pub fn config() -> EngineConfig {
    EngineConfig { parallel: 4, max_waiting: 64, cache_bytes: 1 << 30, ..EngineConfig::default() }
}

pub fn tokenizer() -> Arc<Tokenizer> {
    static LOADED: OnceLock<Arc<Tokenizer>> = OnceLock::new();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/tiny-a/tokenizer.json");
    LOADED.get_or_init(|| Arc::new(Tokenizer::from_file(&path).unwrap())).clone()
}

pub fn engine_with(capacity: Capacity, config: EngineConfig) -> (Engine, Shared) {
    let control = Shared::default();
    let parts = EngineParts {
        device: Box::new(Oracle::new(capacity, control.clone())),
        tokenizer: tokenizer(),
        defaults: GenerationDefaults { eos_token_ids: vec![EOS, 456], sampling: SamplingParams::default() },
        vocab_size: VOCAB,
        slot_bytes: SLOT_BYTES,
        page_bytes: PAGE_BYTES,
        fingerprint: "oracle-model".into(),
    };
    (Engine::new(parts, config).unwrap(), control)
}

pub fn engine() -> (Engine, Shared) {
    engine_with(capacity(), config())
}

/// `len` ids that differ by `seed`, none of them special.
pub fn tokens(seed: u64, len: usize) -> Vec<u32> {
    (0..len as u64).map(|i| (mix(mix(77, seed), i) % 450) as u32).collect()
}

pub fn greedy(tokens: Vec<u32>, max_tokens: usize) -> Request {
    Request { max_tokens: Some(max_tokens), ..Request::new(tokens, SamplingParams::greedy()) }
}

/// A whole generation.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    pub ids: Vec<u32>,
    pub text: String,
    pub tokens: Vec<TokenEvent>,
    pub reason: FinishReason,
    pub usage: Usage,
    pub queued: bool,
}

pub fn collect(mut generation: Generation) -> Answer {
    let (mut text, mut tokens, mut queued) = (String::new(), Vec::new(), false);
    loop {
        match generation.recv_blocking().expect("a generation ends with Finished") {
            Event::Queued { .. } => queued = true,
            Event::PrefillProgress { .. } => {}
            Event::Token(token) => {
                text.push_str(&token.text);
                tokens.push(token);
            }
            Event::Finished { reason, text: rest, usage, .. } => {
                text.push_str(&rest);
                assert!(generation.recv_blocking().is_none(), "nothing follows Finished");
                let ids = tokens.iter().map(|t| t.id).collect();
                return Answer { ids, text, tokens, reason, usage, queued };
            }
        }
    }
}

pub fn run(engine: &Engine, request: Request) -> Answer {
    collect(engine.submit(request).unwrap())
}

/// The same request on an engine of its own, without a cache.
pub fn cold(request: Request) -> Answer {
    let (engine, control) = engine_with(capacity(), EngineConfig { cache_bytes: 0, parallel: 1, ..config() });
    control.lock().unwrap().favour = Vec::new();
    run(&engine, request)
}

/// Waits until the engine has nothing to do.
pub fn settle(engine: &Engine) {
    for _ in 0..2000 {
        let m = engine.metrics();
        let stopped = m.finished_stop + m.finished_length + m.finished_cancelled;
        let over = stopped + m.finished_deadline + m.finished_error;
        if over == m.requests_submitted && m.running == 0 && m.waiting == 0 {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("the engine does not come to rest: {:?}", engine.metrics());
}
