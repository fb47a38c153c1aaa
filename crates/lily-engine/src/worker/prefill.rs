//! Prompts: a bounded number of rows a step, shared among the requests that are being read.

use std::time::Instant;

use lily_model::device::{LogitRows, Output, Segment, Step, StepResult, Tokens};
use lily_model::graph::{Phase, Plan};

use super::pace::{Beside, share_rows};
use super::sequence::{RowOutput, Sequence};
use super::{FirstToken, Worker};
use crate::cache::Path;
use crate::generation::{Event, FinishReason};

/// A part of one prompt in a step.
#[derive(Debug, Clone, Copy)]
struct Part {
    /// Index into `running`.
    index: usize,
    rows: usize,
}

impl Worker {
    /// One prefill step, if a prompt is being read. Nothing may be in flight.
    pub(super) fn prefill(&mut self) {
        let parts = self.divide();
        if parts.is_empty() {
            return;
        }
        let rows = parts.iter().map(|p| p.rows).sum();
        let started = Instant::now();
        match self.prefill_step(&parts) {
            Ok(result) => {
                self.pace.observe(rows, started.elapsed());
                self.step_succeeded();
                self.after_prefill(&parts, result);
            }
            Err(error) => {
                let rows: Vec<usize> = parts.iter().map(|part| part.index).collect();
                self.fail_rows(&rows, &error);
            }
        }
    }

    /// Which rows the next step takes: no further than the next position at which a state is to be kept.
    fn divide(&self) -> Vec<Part> {
        let reading = |s: &Sequence| s.is_prefilling() && s.finished.is_none();
        let indices: Vec<usize> = (0..self.running.len()).filter(|&i| reading(&self.running[i])).collect();
        let streams = self.running.iter().any(Sequence::is_decoding);
        let budget = self.pace.rows(if streams { Beside::Streams } else { Beside::Nobody });
        let wants: Vec<usize> = indices
            .iter()
            .map(|&i| {
                let s = &self.running[i];
                s.snapshots.front().map_or(s.prompt, |&p| p.min(s.prompt)) - s.absorbed
            })
            .collect();
        let shares = share_rows(budget, &wants);
        let parts = indices.into_iter().zip(shares).map(|(index, rows)| Part { index, rows });
        parts.filter(|p| p.rows > 0).collect()
    }

    fn prefill_step(&mut self, parts: &[Part]) -> Result<StepResult, lily_model::device::DeviceError> {
        for part in parts {
            let sequence = &mut self.running[part.index];
            sequence.cover(sequence.absorbed + part.rows, &mut self.resources.pages);
        }
        let mut ids = Vec::new();
        let mut segments = Vec::with_capacity(parts.len());
        let (mut last, mut output) = (false, Output::Argmax);
        for part in parts {
            let s = &self.running[part.index];
            let end = s.absorbed + part.rows;
            ids.extend_from_slice(&s.tokens[s.absorbed..end]);
            segments.push(Segment { slot: s.place.slot, start: s.absorbed, rows: part.rows, pages: &s.place.pages });
            if end == s.prompt && s.max_total > s.prompt {
                last = true;
                if s.needs_logits() {
                    output = Output::Logits;
                }
            }
        }
        let step = Step {
            phase: Phase::Prefill,
            tokens: Tokens::Ids(&ids),
            segments: &segments,
            logit_rows: if last { LogitRows::Last } else { LogitRows::None },
            output,
        };
        self.resources.device.submit(&step)?;
        self.resources.device.wait()
    }

    fn after_prefill(&mut self, parts: &[Part], mut result: StepResult) {
        for (row, part) in parts.iter().enumerate() {
            let s = &mut self.running[part.index];
            s.absorbed += part.rows;
            s.send(Event::PrefillProgress { done: s.absorbed, total: s.prompt, cached: s.cached });
            if s.snapshots.front() == Some(&s.absorbed) {
                s.snapshots.pop_front();
                let path = Path::new(&s.tokens, &s.place.pages, s.absorbed);
                // The request itself does not need the copy.
                if let Err(error) = self.cache.keep_copy(path, s.place.slot, &mut self.resources) {
                    tracing::warn!(%error, "a prefix is not kept");
                }
            }
            let s = &mut self.running[part.index];
            if s.absorbed < s.prompt {
                continue;
            }
            if s.max_total == s.prompt {
                s.finish(FinishReason::Length);
                continue;
            }
            match row_output(&mut result, row, self.vocab_size) {
                Some(output) => s.advance(output, &self.vocabulary),
                None => s.finish(FinishReason::Error("the device gave no output for the prompt's last token".into())),
            }
            if let Some(first) = s.clock.first_token {
                self.shared.token(first - s.clock.submitted, FirstToken::Yes);
            }
        }
    }
}

impl Sequence {
    /// Takes promised pages until the block table covers `positions`.
    pub(super) fn cover(&mut self, positions: usize, pages: &mut crate::cache::PagePool) {
        while self.place.pages.len() * Plan::PAGE_TOKENS < positions {
            match pages.take_reserved() {
                Some(page) => {
                    self.place.pages.push(page);
                    self.place.reserved = self.place.reserved.saturating_sub(1);
                }
                // The device refuses a block table that is too short, and that request alone ends.
                None => return tracing::error!(id = self.id, positions, "no page is left of those promised"),
            }
        }
    }
}

/// The output of logit row `row`, in whichever form the step was asked for.
pub(super) fn row_output(result: &mut StepResult, row: usize, vocab: usize) -> Option<RowOutput<'_>> {
    match result.tokens.get(row) {
        Some(&id) => Some(RowOutput::Argmax(id)),
        None => result.logits.get_mut(row * vocab..(row + 1) * vocab).map(RowOutput::Logits),
    }
}
