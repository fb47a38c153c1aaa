//! Running streams: one token of each a step. While every row is a plain argmax, the next step is started before this one's
//! tokens are known: the device itself passes them on.

use std::time::Instant;

use lily_model::device::{DeviceError, LogitRows, MAX_STEPS_IN_FLIGHT, Output, Segment, Step, Tokens};
use lily_model::graph::Phase;

use super::prefill::row_output;
use super::sequence::Sequence;
use super::{FirstToken, Flight, Worker};
use crate::generation::FinishReason;

impl Worker {
    /// Starts what may be started and finishes the oldest step.
    pub(super) fn decode(&mut self) {
        if self.flight.is_empty() {
            let rows: Vec<usize> = (0..self.running.len()).filter(|&i| self.running[i].is_decoding()).collect();
            if rows.is_empty() {
                return;
            }
            self.launch(rows, Source::Known);
        }
        while self.flight.len() < MAX_STEPS_IN_FLIGHT
            && let Some(rows) = self.rows_to_look_ahead()
        {
            self.launch(rows, Source::Device);
        }
        self.land();
    }

    /// The rows of the step before, if all of them go on whatever it gives and nothing else waits for the device.
    fn rows_to_look_ahead(&self) -> Option<Vec<usize>> {
        let rows = &self.flight.back()?.rows;
        let all = rows.iter().all(|&i| self.running[i].can_look_ahead(self.flight.len()));
        (all && !self.must_settle()).then(|| rows.clone())
    }

    /// Submits a decode step for these rows.
    fn launch(&mut self, rows: Vec<usize>, source: Source) {
        let ahead = self.flight.len();
        for &i in &rows {
            let sequence = &mut self.running[i];
            sequence.cover(sequence.absorbed + ahead + 1, &mut self.resources.pages);
        }
        let sequences: Vec<&Sequence> = rows.iter().map(|&i| &self.running[i]).collect();
        let ids: Vec<u32> = sequences.iter().map(|s| s.tokens[s.tokens.len() - 1]).collect();
        let segments: Vec<Segment<'_>> = sequences
            .iter()
            .map(|s| Segment { slot: s.place.slot, start: s.absorbed + ahead, rows: 1, pages: &s.place.pages })
            .collect();
        let logits = sequences.iter().any(|s| s.needs_logits());
        let step = Step {
            phase: Phase::Decode,
            tokens: match source {
                Source::Known => Tokens::Ids(&ids),
                Source::Device => Tokens::Previous,
            },
            segments: &segments,
            logit_rows: LogitRows::Last,
            output: if logits { Output::Logits } else { Output::Argmax },
        };
        match self.resources.device.submit(&step) {
            Ok(()) => self.flight.push_back(Flight { rows, started: Instant::now() }),
            Err(error) => self.fail_rows(&rows, &error),
        }
    }

    /// Waits for the oldest step in flight and gives its tokens to their requests.
    fn land(&mut self) {
        let Some(flight) = self.flight.pop_front() else { return };
        let mut result = match self.resources.device.wait() {
            Ok(result) => result,
            Err(error) => return self.fail_rows(&flight.rows, &error),
        };
        self.step_succeeded();
        tracing::trace!(rows = flight.rows.len(), took = ?flight.started.elapsed(), "decode step");
        for (row, &index) in flight.rows.iter().enumerate() {
            let s = &mut self.running[index];
            s.absorbed += 1;
            if s.finished.is_some() {
                continue;
            }
            let before = (s.generated(), s.clock.last_token);
            match row_output(&mut result, row, self.vocab_size) {
                Some(output) => s.advance(output, &self.vocabulary),
                None => s.finish(FinishReason::Error("the device gave too few rows".into())),
            }
            if let (number, Some(before)) = before
                && let Some(now) = s.clock.last_token.filter(|_| s.generated() > number)
            {
                self.shared.token(now - before, FirstToken::No);
            }
        }
        self.resources.device.recycle(result);
    }

    /// Waits for everything in flight.
    pub(super) fn settle(&mut self) {
        while !self.flight.is_empty() {
            self.land();
        }
    }

    /// Ends the requests of a step that the device failed.
    pub(super) fn fail_rows(&mut self, rows: &[usize], error: &DeviceError) {
        self.step_failed(error);
        for &i in rows {
            self.running[i].damaged = true;
            self.running[i].finish(FinishReason::Error(error.to_string()));
        }
    }
}

/// Where the tokens of a step come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    /// The host knows them.
    Known,
    /// The step before it, on the device.
    Device,
}
