//! From the queue to a place on the device: what is cached is reused, what will be needed is promised, so that a request
//! that runs never lacks a page.

use std::time::Instant;

use lily_model::device::{DeviceError, PageId};
use lily_model::graph::Plan;

use super::sequence::{Clock, Place, Sequence};
use super::{Job, Worker};
use crate::cache::{Hit, MIN_GAIN, Match, PromptShape, snapshot_positions};
use crate::generation::{Event, FinishReason};
use crate::metrics::observe;
use crate::request::PrefixCacheUse;
use crate::sampler::Sampler;
use crate::thinking::Stage;

/// Waiting for another request to read a common prefix is worth it from so many tokens on.
const WORTH_WAITING: usize = Plan::PAGE_TOKENS;

/// An answer without a limit of its own is promised so many tokens, and as many again when it gets there: if it were
/// promised all that the context allows, it would keep others waiting for memory that it hardly ever uses.
const OPEN_ENDED: usize = 16 * Plan::PAGE_TOKENS;

/// What came of trying to admit a request.
enum Attempt {
    /// It runs, or it could not and its caller knows.
    Done,
    /// Pages are missing; it goes first when some are free.
    NoRoom(Box<Job>),
    /// A running request is about to leave the prefix that this one wants.
    Later(Box<Job>),
}

impl Worker {
    /// Admits waiting requests in order while there is room. Nothing may be in flight.
    pub(super) fn admit(&mut self) {
        let mut index = 0;
        while self.running.len() < self.parallel
            && let Some(job) = self.waiting.remove(index)
        {
            match self.try_admit(job) {
                Attempt::Done => {}
                Attempt::Later(job) => {
                    self.waiting.insert(index, job);
                    index += 1;
                }
                Attempt::NoRoom(job) => {
                    self.waiting.insert(index, job);
                    break;
                }
            }
        }
    }

    /// Tells the callers of requests that wait that they do.
    pub(super) fn tell_waiting(&mut self) {
        for (ahead, job) in self.waiting.iter_mut().enumerate() {
            if !std::mem::replace(&mut job.told, true) {
                let _ = job.events.send(Event::Queued { ahead });
            }
        }
    }

    fn try_admit(&mut self, job: Box<Job>) -> Attempt {
        let prompt = &job.request.tokens;
        let uses_cache = job.request.prefix_cache == PrefixCacheUse::ReadWrite;
        let found = if uses_cache { self.cache.find(prompt, &mut self.resources) } else { Match::default() };
        let depth = found.hit.as_ref().map_or(0, |h| h.depth);
        if uses_cache && self.cache.is_enabled() && self.will_share(prompt, depth) {
            return Attempt::Later(job);
        }
        let promised = match job.request.max_tokens {
            Some(_) => job.max_new,
            None => job.max_new.min(OPEN_ENDED),
        };
        let needed = (prompt.len() + promised).div_ceil(Plan::PAGE_TOKENS);
        let hit = match self.make_room(needed, found.hit) {
            Ok(hit) => hit,
            Err(NoRoom) => return Attempt::NoRoom(job),
        };
        let depth = hit.as_ref().map_or(0, |h| h.depth);
        match self.place(needed, hit) {
            Ok(place) => {
                self.start(*job, place, depth, found.common);
            }
            Err(error) => {
                self.step_failed(&error);
                job.refuse(FinishReason::Error(error.to_string()), &self.shared);
            }
        }
        Attempt::Done
    }

    /// Whether a running request reads a prefix of `prompt` that is longer than what is cached, and will keep it. Makes
    /// sure that it does.
    fn will_share(&mut self, prompt: &[u32], depth: usize) -> bool {
        let candidates = self
            .running
            .iter_mut()
            .filter(|s| s.is_prefilling() && s.finished.is_none() && s.prefix_cache == PrefixCacheUse::ReadWrite);
        for sequence in candidates {
            let read = &sequence.tokens[..sequence.prompt];
            let common = read.iter().zip(prompt).take_while(|(a, b)| a == b).count();
            let common = common.min(prompt.len() - 1).min(sequence.prompt - 1);
            if common < depth + WORTH_WAITING || common <= sequence.absorbed {
                continue;
            }
            let planned = sequence.snapshots.iter().copied().filter(|&p| p <= common).max();
            if planned.is_none_or(|p| p + MIN_GAIN < common) {
                let at = sequence.snapshots.partition_point(|&p| p < common);
                sequence.snapshots.insert(at, common);
            }
            return true;
        }
        false
    }

    /// Promises the pages that a sequence of `needed` pages must have of its own, and holds those of the hit. Gives back the
    /// hit that is to be used: none where it stands in the way of the only request.
    fn make_room(&mut self, needed: usize, hit: Option<Hit>) -> Result<Option<Hit>, NoRoom> {
        if let Some(hit) = hit {
            let shared = hit.depth / Plan::PAGE_TOKENS;
            hit.pages.iter().for_each(|&p| self.resources.pages.retain(p));
            let fresh = needed - shared;
            if self.cache.free_pages(fresh, Some(hit.slot), &mut self.resources) && self.resources.pages.reserve(fresh)
            {
                return Ok(Some(hit));
            }
            hit.pages.iter().for_each(|&p| self.resources.pages.release(p));
            if !self.running.is_empty() {
                return Err(NoRoom);
            }
        }
        let enough = self.cache.free_pages(needed, None, &mut self.resources) && self.resources.pages.reserve(needed);
        if enough { Ok(None) } else { Err(NoRoom) }
    }

    /// Promises further pages to answers that have used up their promise. Without free pages they stall until a request
    /// ends; if all that run stall, the longest ends there. Nothing may be in flight.
    pub(super) fn extend(&mut self) {
        for sequence in self.running.iter_mut().filter(|s| s.finished.is_none()) {
            let held = sequence.promised();
            if sequence.tokens.len() <= held {
                continue;
            }
            let more = sequence.max_total.saturating_sub(held).clamp(1, OPEN_ENDED).div_ceil(Plan::PAGE_TOKENS);
            let resources = &mut self.resources;
            let granted = [more, 1]
                .into_iter()
                .find(|&count| self.cache.free_pages(count, None, resources) && resources.pages.reserve(count));
            sequence.place.reserved += granted.unwrap_or(0);
            sequence.stalled = granted.is_none();
        }
        let mut open = self.running.iter_mut().filter(|s| s.finished.is_none()).peekable();
        if open.peek().is_some()
            && open.all(|s| s.stalled)
            && let Some(longest) = self.running.iter_mut().filter(|s| s.stalled).max_by_key(|s| s.tokens.len())
        {
            tracing::warn!(id = longest.id, tokens = longest.tokens.len(), "an answer ends for lack of KV pages");
            longest.finish(FinishReason::Length);
        }
    }

    /// Gives a sequence its slot and the pages of the hit (held and promised by [`Worker::make_room`]).
    fn place(&mut self, needed: usize, hit: Option<Hit>) -> Result<Place, DeviceError> {
        let depth = hit.as_ref().map_or(0, |h| h.depth);
        let reserved = needed - depth / Plan::PAGE_TOKENS;
        let pages = hit.as_ref().map_or_else(Vec::new, |h| h.pages.clone());
        // The cache holds only slots beyond `parallel`, so there is one.
        let Some(slot) = self.resources.slots.take() else {
            self.release_pages(pages, reserved);
            return Err(self.bad_step(format!("no slot is free for one of {} sequences", self.parallel)));
        };
        let mut place = Place { slot, reserved, pages };
        let device = &mut self.resources.device;
        let prepared = match hit {
            None => device.clear_slot(slot),
            Some(hit) => device.copy_slot(hit.slot, slot).and_then(|()| self.own_last_page(&mut place, depth)),
        };
        match prepared {
            Ok(()) => Ok(place),
            Err(error) => {
                self.resources.slots.give_back(slot);
                self.release_pages(place.pages, place.reserved);
                Err(error)
            }
        }
    }

    /// Gives back pages that a sequence holds and those it was promised.
    pub(super) fn release_pages(&mut self, held: Vec<PageId>, reserved: usize) {
        held.into_iter().for_each(|page| self.resources.pages.release(page));
        self.resources.pages.unreserve(reserved);
    }

    /// Replaces a last page that is shared and not full by a copy: the sequence will write on it.
    fn own_last_page(&mut self, place: &mut Place, depth: usize) -> Result<(), DeviceError> {
        if depth.is_multiple_of(Plan::PAGE_TOKENS) {
            return Ok(());
        }
        let own = self.resources.pages.take_reserved();
        let (Some(own), Some(last)) = (own, place.pages.last_mut()) else {
            return Err(self.bad_step("no page is promised for the copy of a shared one".into()));
        };
        place.reserved -= 1;
        let source = std::mem::replace(last, own);
        let copied = self.resources.device.copy_page(source, own);
        self.resources.pages.release(source);
        copied
    }

    fn bad_step(&self, reason: String) -> DeviceError {
        DeviceError::BadStep { device: self.resources.device.info().name, reason }
    }

    fn start(&mut self, job: Job, place: Place, depth: usize, common: usize) {
        let Job { id, request, text, events, submitted, max_new, .. } = job;
        let prompt = request.tokens.len();
        let snapshots = match request.prefix_cache {
            PrefixCacheUse::Bypass => Vec::new(),
            PrefixCacheUse::ReadWrite => snapshot_positions(PromptShape {
                len: prompt,
                resumed: depth,
                common,
                branch_points: &request.branch_points,
            }),
        };
        let admitted = Instant::now();
        let sampler = Sampler::new(request.sampling, &request.tokens);
        let sequence = Sequence {
            id,
            events,
            tokens: request.tokens,
            prompt,
            absorbed: depth,
            cached: depth,
            max_total: prompt + max_new,
            min_tokens: request.min_tokens,
            eos: request.eos,
            logprobs: request.logprobs,
            prefix_cache: request.prefix_cache,
            deadline: request.deadline,
            place,
            snapshots: snapshots.into(),
            sampler,
            text,
            mask: request.constraint,
            stage: Stage::new(request.thinking),
            forced: Default::default(),
            reasoning: 0,
            clock: Clock { submitted, admitted, first_token: None, last_token: None },
            stalled: false,
            finished: None,
            damaged: false,
        };
        sequence.send(Event::PrefillProgress { done: depth, total: prompt, cached: depth });
        self.shared.report(|m| {
            m.prompt_tokens += prompt as u64;
            m.cached_tokens += depth as u64;
            m.cache_hits += u64::from(depth > 0);
            m.cache_misses += u64::from(depth == 0);
            observe(&mut m.queue_time, admitted - submitted);
        });
        tracing::debug!(id = sequence.id, prompt, cached = depth, common, "request admitted");
        self.running.push(sequence);
    }
}

/// Pages are missing that only running requests can give back.
struct NoRoom;
