//! One running request: its tokens, what the device holds of it, and how a step's output becomes its next token.

use std::collections::VecDeque;
use std::time::Instant;

use lily_model::device::{NO_TOKEN, PageId, SlotId};
use lily_model::graph::Plan;
use tokio::sync::mpsc::UnboundedSender;

use crate::constraint::TokenMask;
use crate::generation::{Event, FinishReason, Timings, TokenEvent, TokenLogprob, Usage};
use crate::request::{EosRule, PrefixCacheUse};
use crate::sampler::{Restrictions, Sampler, log_sum_exp, not_finite, top_k};
use crate::text_output::{StopSearch, TextOutput};
use crate::thinking::{Stage, ThinkTokens};

/// What the device holds of a sequence.
#[derive(Debug)]
pub(super) struct Place {
    pub slot: SlotId,
    /// Block table.
    pub pages: Vec<PageId>,
    /// Pages promised and not taken yet.
    pub reserved: usize,
}

/// What a request keeps while it runs.
pub(super) struct Sequence {
    pub id: u64,
    pub events: UnboundedSender<Event>,
    /// Prompt, then what was generated. Of these, `absorbed` are in the slot's state.
    pub tokens: Vec<u32>,
    pub prompt: usize,
    pub absorbed: usize,
    /// Tokens that came from the prefix cache.
    pub cached: usize,
    /// Prompt and answer may have so many tokens.
    pub max_total: usize,
    pub min_tokens: usize,
    pub eos: EosRule,
    pub logprobs: Option<usize>,
    pub prefix_cache: PrefixCacheUse,
    pub deadline: Option<Instant>,
    pub place: Place,
    /// Positions at which the state is to be kept while the prompt is read.
    pub snapshots: VecDeque<usize>,
    pub sampler: Sampler,
    pub text: TextOutput,
    pub mask: Option<Box<dyn TokenMask>>,
    pub stage: Stage,
    /// Tokens that come next whatever the model says.
    pub forced: VecDeque<u32>,
    pub reasoning: usize,
    pub clock: Clock,
    /// It needs a page and none is free.
    pub stalled: bool,
    /// Set once: the request is over, and its place is free at the next step boundary.
    pub finished: Option<FinishReason>,
    /// A step that it took part in failed: its state is whatever it is.
    pub damaged: bool,
}

/// Moments of a request's life.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    pub submitted: Instant,
    pub admitted: Instant,
    pub first_token: Option<Instant>,
    pub last_token: Option<Instant>,
}

/// What a step gave for one row.
pub(super) enum RowOutput<'a> {
    /// The largest logit's id.
    Argmax(u32),
    /// `[vocab]`.
    Logits(&'a mut [f32]),
}

/// What the whole engine knows about tokens.
#[derive(Debug, Clone)]
pub(crate) struct Vocabulary {
    pub eos: Vec<u32>,
    pub think: Option<ThinkTokens>,
}

/// A token with its log probabilities.
struct Chosen {
    id: u32,
    logprob: Option<f32>,
    top: Vec<(u32, f32)>,
}

impl Sequence {
    /// Tokens generated so far.
    pub fn generated(&self) -> usize {
        self.tokens.len() - self.prompt
    }

    /// Whether the prompt is still being read.
    pub fn is_prefilling(&self) -> bool {
        self.absorbed < self.prompt
    }

    /// Whether it takes part in decode steps.
    pub fn is_decoding(&self) -> bool {
        !self.is_prefilling() && self.finished.is_none() && !self.stalled
    }

    /// Positions that its pages and those promised to it have room for.
    pub fn promised(&self) -> usize {
        (self.place.pages.len() + self.place.reserved) * Plan::PAGE_TOKENS
    }

    /// Whether the next token needs the logits, or the argmax will do.
    pub fn needs_logits(&self) -> bool {
        !self.sampler.is_plain_greedy() || self.logprobs.is_some() || self.mask.is_some() || self.eos_is_banned()
    }

    /// Whether a further step may be started while `in_flight` steps' tokens are not known.
    pub fn can_look_ahead(&self, in_flight: usize) -> bool {
        let budget_open = matches!(self.stage, Stage::Thinking { budget: Some(_), .. });
        !self.needs_logits()
            && !budget_open
            && self.forced.is_empty()
            && self.finished.is_none()
            && self.tokens.len() + in_flight < self.max_total
            && self.tokens.len() + in_flight <= self.promised()
    }

    fn eos_is_banned(&self) -> bool {
        let too_early = self.eos == EosRule::Stop && self.generated() < self.min_tokens;
        // An answer that must have a form cannot be left out by ending within the thinking.
        too_early || (self.mask.is_some() && self.stage.is_thinking())
    }

    /// Turns a step's output into the next token, tells the caller, and ends the request where it ends.
    pub fn advance(&mut self, output: RowOutput<'_>, vocabulary: &Vocabulary) {
        if let (true, true, Some(think)) = (self.stage.is_spent(), self.forced.is_empty(), &vocabulary.think) {
            self.forced.extend(&think.close);
        }
        match self.choose(output, vocabulary) {
            Ok(chosen) => self.accept(chosen, vocabulary),
            Err(reason) => {
                self.damaged |= matches!(reason, FinishReason::Error(_));
                self.finish(reason);
            }
        }
    }

    fn choose(&mut self, output: RowOutput<'_>, vocabulary: &Vocabulary) -> Result<Chosen, FinishReason> {
        let logits = match output {
            RowOutput::Argmax(id) => {
                let id = self.forced.front().copied().unwrap_or(id);
                if id == NO_TOKEN {
                    return Err(faulty_logits("no finite largest value".into()));
                }
                return Ok(Chosen { id, logprob: None, top: Vec::new() });
            }
            RowOutput::Logits(logits) => logits,
        };
        if let Some((id, logit)) = not_finite(logits) {
            return Err(faulty_logits(format!("{logit} at id {id}")));
        }
        let report = self.logprobs.map(|n| {
            let norm = log_sum_exp(logits);
            let top: Vec<_> = top_k(logits, n).into_iter().map(|c| (c.id, c.value - norm)).collect();
            // The choice changes logits.
            (norm, top, logits.to_vec())
        });
        let id = match self.forced.front() {
            Some(&id) => id,
            None => self.sample(logits, vocabulary)?,
        };
        let Some((norm, top, raw)) = report else { return Ok(Chosen { id, logprob: None, top: Vec::new() }) };
        let logprob = raw.get(id as usize).map(|l| l - norm);
        Ok(Chosen { id, logprob, top })
    }

    fn sample(&mut self, logits: &mut [f32], vocabulary: &Vocabulary) -> Result<u32, FinishReason> {
        let allowed = match &mut self.mask {
            Some(mask) if !self.stage.is_thinking() => {
                Some(mask.allowed().map_err(|e| FinishReason::Constraint(e.to_string()))?)
            }
            _ => None,
        };
        let banned = if self.eos_is_banned() { &vocabulary.eos[..] } else { &[] };
        let index = self.generated() as u64;
        let restrictions = Restrictions { mask: allowed.as_ref(), banned };
        self.sampler.choose(logits, restrictions, index).map_err(|_| {
            let message = "logit_bias, the constraint and min_tokens leave no token to choose (accepted: at least one)";
            FinishReason::Constraint(message.into())
        })
    }

    fn accept(&mut self, chosen: Chosen, vocabulary: &Vocabulary) {
        let now = Instant::now();
        self.clock.first_token.get_or_insert(now);
        self.clock.last_token = Some(now);
        let was_forced = self.forced.pop_front().is_some();
        let id = chosen.id;
        self.tokens.push(id);
        self.sampler.accept(id);
        let enough = self.generated() >= self.min_tokens;
        if self.eos == EosRule::Stop && !was_forced && vocabulary.eos.contains(&id) {
            return self.finish(FinishReason::Eos);
        }
        if !self.stage.is_thinking()
            && !was_forced
            && let Some(mask) = &mut self.mask
            && let Err(error) = mask.advance(id)
        {
            return self.finish(FinishReason::Constraint(error.to_string()));
        }
        let bytes = self.text.bytes(id);
        let end = vocabulary.think.as_ref().map(|t| t.end);
        let before = self.stage;
        self.stage = before.after(id, &bytes, end);
        self.reasoning += usize::from(before.is_thinking());
        if let (true, Stage::Gap, true, false, Some(think)) =
            (before.is_thinking(), self.stage, self.mask.is_some(), was_forced, &vocabulary.think)
        {
            // The grammar begins after the line breaks that the model always puts here.
            self.forced.extend(&think.gap);
        }
        let search = if self.stage == Stage::Answer && enough { StopSearch::On } else { StopSearch::Off };
        let (text, stop) = self.text.push(id, search);
        let top_logprobs = chosen.top.iter().map(|&(id, logprob)| self.logprob(id, logprob)).collect();
        self.send(Event::Token(TokenEvent { id, text, bytes, logprob: chosen.logprob, top_logprobs }));
        if let Some(stop) = stop {
            self.finish(FinishReason::StopString(stop));
        } else if self.tokens.len() >= self.max_total {
            self.finish(FinishReason::Length);
        }
    }

    fn logprob(&self, id: u32, logprob: f32) -> TokenLogprob {
        TokenLogprob { id, bytes: self.text.bytes(id), logprob }
    }

    /// Ends the request: the caller is told now, the place is freed when no step uses it any more.
    pub fn finish(&mut self, reason: FinishReason) {
        if self.finished.is_some() {
            return;
        }
        let text = match reason {
            FinishReason::StopString(_) => String::new(),
            _ => self.text.finish(),
        };
        let usage =
            Usage { prompt: self.prompt, cached: self.cached, completion: self.generated(), reasoning: self.reasoning };
        self.send(Event::Finished { reason: reason.clone(), text, usage, timings: self.clock.timings() });
        self.finished = Some(reason);
    }

    /// A caller that has gone away is noticed at the next sweep.
    pub fn send(&self, event: Event) {
        let _ = self.events.send(event);
    }
}

/// What ends a sequence whose next token the model does not tell.
fn faulty_logits(what: String) -> FinishReason {
    FinishReason::Error(format!("the model's logits have {what}: its weights or this device are faulty"))
}

impl Clock {
    fn timings(&self) -> Timings {
        let first = self.first_token.unwrap_or_else(Instant::now);
        Timings {
            queued: self.admitted - self.submitted,
            prefill: first.saturating_duration_since(self.admitted),
            decode: self.last_token.map_or_else(Default::default, |t| t.saturating_duration_since(first)),
        }
    }
}
