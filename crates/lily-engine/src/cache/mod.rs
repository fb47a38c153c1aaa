//! The prefix cache: what earlier requests computed, kept in pages and slots of the device for those that begin alike.
//!
//! The trie says what is there, the pools who holds it, the policy where snapshots are taken, the disk tier what survives
//! a restart. This file keeps the budget and moves the bytes. It knows nothing about requests.

mod disk;
mod policy;
mod pool;
mod trie;
#[cfg(test)]
mod trie_tests;

use lily_model::device::{Device, DeviceError, PageId, SlotId};
use lily_model::graph::Plan;

pub(crate) use disk::{DiskConfig, DiskTier};
pub(crate) use policy::{MIN_GAIN, PromptShape, snapshot_positions};
pub(crate) use pool::{PagePool, SlotPool};
pub(crate) use trie::{Hit, Match};
use trie::{OnDisk, Trie};

/// While requests run, writing a dropped snapshot to disk may copy so many bytes out of the device: about 0.1 s.
const BUSY_STORE_BYTES: u64 = 192 << 20;

/// The device and who holds its pages and slots.
pub(crate) struct Resources {
    pub device: Box<dyn Device>,
    pub pages: PagePool,
    pub slots: SlotPool,
}

/// What the cache may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CacheLimits {
    /// Bytes of pages and snapshots together.
    pub bytes: u64,
    /// Snapshots: the device's slots that no sequence needs.
    pub snapshots: usize,
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Bytes of a slot.
    pub slot_bytes: u64,
}

/// See the head of the file.
pub(crate) struct PrefixCache {
    trie: Trie,
    limits: CacheLimits,
    disk: Option<DiskTier>,
    evictions: u64,
}

impl PrefixCache {
    pub fn new(limits: CacheLimits, disk: Option<DiskTier>) -> Self {
        PrefixCache { trie: Trie::default(), limits, disk, evictions: 0 }
    }

    /// Bytes of pages and snapshots held.
    pub fn bytes(&self) -> u64 {
        self.trie.pages() as u64 * self.limits.page_bytes + self.trie.snapshots() as u64 * self.limits.slot_bytes
    }

    /// Snapshots held.
    pub fn snapshots(&self) -> usize {
        self.trie.snapshots()
    }

    /// Snapshots dropped for room so far.
    pub fn evictions(&self) -> u64 {
        self.evictions
    }

    /// Whether anything can be held at all.
    pub fn is_enabled(&self) -> bool {
        self.limits.bytes > 0 && self.limits.snapshots > 0
    }

    /// What is known of a prompt. A hit leaves at least the last token to compute, is marked as used, and may first be
    /// read from disk.
    pub fn find(&mut self, prompt: &[u32], resources: &mut Resources) -> Match {
        if !self.is_enabled() || prompt.is_empty() {
            return Match::default();
        }
        let limit = prompt.len() - 1;
        let mut found = self.trie.find(prompt, limit);
        let depth = found.hit.as_ref().map_or(0, |h| h.depth);
        if self.load_from_disk(prompt, depth, resources) {
            found = self.trie.find(prompt, limit);
        }
        if let Some(hit) = &found.hit {
            self.trie.touch_shallowest(prompt);
            self.trie.touch(hit.slot);
        }
        found
    }

    /// Keeps the state in `slot` after `tokens` as a copy. Does nothing where it is already there or can never fit.
    pub fn keep_copy(&mut self, path: Path<'_>, slot: SlotId, resources: &mut Resources) -> Result<(), DeviceError> {
        if !self.wants(path) {
            return Ok(());
        }
        self.make_snapshot_room(resources);
        let Some(copy) = resources.slots.take() else { return Ok(()) };
        if let Err(error) = resources.device.copy_slot(slot, copy) {
            resources.slots.give_back(copy);
            return Err(error);
        }
        self.insert(path, copy, resources);
        Ok(())
    }

    /// Keeps the state in `slot` after `tokens`; the slot is the cache's (or free) from now on.
    pub fn keep(&mut self, path: Path<'_>, slot: SlotId, resources: &mut Resources) {
        if !self.wants(path) {
            resources.slots.give_back(slot);
            return;
        }
        self.make_snapshot_room(resources);
        self.insert(path, slot, resources);
    }

    fn wants(&mut self, path: Path<'_>) -> bool {
        let cost = path.pages.len() as u64 * self.limits.page_bytes + self.limits.slot_bytes;
        self.is_enabled() && !path.tokens.is_empty() && cost <= self.limits.bytes && !self.trie.contains(path.tokens)
    }

    fn insert(&mut self, path: Path<'_>, slot: SlotId, resources: &mut Resources) {
        self.trie.insert(path.tokens, path.pages, slot, &mut resources.pages);
        while self.bytes() > self.limits.bytes && self.evict(Some(slot), resources) {}
    }

    fn make_snapshot_room(&mut self, resources: &mut Resources) {
        while self.trie.snapshots() >= self.limits.snapshots && self.evict(None, resources) {}
    }

    /// Drops snapshots, never `keep`, until `count` pages are free and unpromised; false if it cannot.
    pub fn free_pages(&mut self, count: usize, keep: Option<SlotId>, resources: &mut Resources) -> bool {
        while resources.pages.available() < count {
            if !self.evict(keep, resources) {
                return false;
            }
        }
        true
    }

    /// Drops the least recently used snapshot; false if there is none besides `keep`.
    fn evict(&mut self, keep: Option<SlotId>, resources: &mut Resources) -> bool {
        let Some((oldest, on_disk)) = self.trie.oldest(keep) else { return false };
        if let (Some(disk), OnDisk::No) = (&mut self.disk, on_disk) {
            disk.store(&oldest, BUSY_STORE_BYTES, resources);
        }
        self.trie.remove(oldest.slot, &mut resources.pages);
        resources.slots.give_back(oldest.slot);
        self.evictions += 1;
        true
    }

    /// Drops what is held of these tokens and of what they begin with: a device that failed on them may have failed before.
    pub fn forget(&mut self, tokens: &[u32], resources: &mut Resources) {
        while let Some(hit) = self.trie.find(tokens, tokens.len()).hit {
            self.trie.remove(hit.slot, &mut resources.pages);
            resources.slots.give_back(hit.slot);
        }
    }

    /// Writes one snapshot to disk that is not there yet; false if there is none (or no disk tier).
    pub fn store_one(&mut self, resources: &mut Resources) -> bool {
        let Some(disk) = &mut self.disk else { return false };
        let Some(newest) = self.trie.newest_not_on_disk() else { return false };
        disk.store(&newest, u64::MAX, resources);
        // Also when it could not be written: the next attempt would not go better.
        self.trie.mark_on_disk(newest.slot);
        true
    }

    /// Whether there is a disk tier.
    pub fn has_disk(&self) -> bool {
        self.disk.is_some()
    }

    /// Waits until everything given to the disk tier is written.
    pub fn flush_disk(&mut self) {
        if let Some(disk) = &mut self.disk {
            disk.flush();
        }
    }

    /// Brings the deepest snapshot of `prompt` that the disk has into memory, if it is worth it.
    fn load_from_disk(&mut self, prompt: &[u32], depth: usize, resources: &mut Resources) -> bool {
        let Some(disk) = &mut self.disk else { return false };
        let Some(tokens) = disk.find(prompt, depth + Plan::PAGE_TOKENS) else { return false };
        let count = tokens.len().div_ceil(Plan::PAGE_TOKENS);
        let cost = count as u64 * self.limits.page_bytes + self.limits.slot_bytes;
        if cost > self.limits.bytes || self.trie.contains(&tokens) {
            return false;
        }
        self.make_snapshot_room(resources);
        if !self.free_pages(count, None, resources) {
            return false;
        }
        let Some(slot) = resources.slots.take() else { return false };
        let pages: Vec<PageId> = (0..count).map_while(|_| resources.pages.take()).collect();
        let loaded = self.disk.as_mut().is_some_and(|d| d.load(&tokens, slot, &pages, resources));
        if loaded {
            self.insert(Path { tokens: &tokens, pages: &pages }, slot, resources);
            self.trie.mark_on_disk(slot);
        } else {
            resources.slots.give_back(slot);
        }
        pages.into_iter().for_each(|p| resources.pages.release(p));
        loaded
    }
}

/// Tokens and the pages that hold their keys and values.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Path<'a> {
    pub tokens: &'a [u32],
    /// `ceil(tokens / 256)` pages (more are ignored).
    pub pages: &'a [PageId],
}

impl<'a> Path<'a> {
    /// The first `depth` tokens of a sequence with block table `pages`.
    pub fn new(tokens: &'a [u32], pages: &'a [PageId], depth: usize) -> Self {
        Path { tokens: &tokens[..depth], pages: &pages[..depth.div_ceil(Plan::PAGE_TOKENS)] }
    }
}
