//! Pages and slots of the device: who holds them. Page counts are by reference; a promise to a running request
//! (a reservation) is kept apart from pages in use, so that a request never dies for lack of one.

use lily_model::device::{PageId, SlotId};

/// The KV pages of a device.
#[derive(Debug)]
pub(crate) struct PagePool {
    /// Holders of each page.
    refs: Vec<u32>,
    free: Vec<PageId>,
    /// Free pages that are promised to running requests.
    reserved: usize,
}

impl PagePool {
    pub fn new(pages: usize) -> Self {
        PagePool { refs: vec![0; pages], free: (0..pages as u32).rev().map(PageId).collect(), reserved: 0 }
    }

    /// All pages.
    pub fn total(&self) -> usize {
        self.refs.len()
    }

    /// Pages with a holder.
    pub fn used(&self) -> usize {
        self.total() - self.free.len()
    }

    /// Free pages that nobody is promised.
    pub fn available(&self) -> usize {
        self.free.len() - self.reserved
    }

    /// Promises `count` pages; false if there are not so many.
    #[must_use]
    pub fn reserve(&mut self, count: usize) -> bool {
        let enough = count <= self.available();
        if enough {
            self.reserved += count;
        }
        enough
    }

    /// Gives back a promise of `count` pages.
    pub fn unreserve(&mut self, count: usize) {
        self.reserved = self.reserved.saturating_sub(count);
    }

    /// A page out of a promise; it has one holder. `None` if there was no promise.
    pub fn take_reserved(&mut self) -> Option<PageId> {
        self.reserved = self.reserved.checked_sub(1)?;
        self.pop()
    }

    /// A page that nobody is promised; it has one holder.
    pub fn take(&mut self) -> Option<PageId> {
        if self.available() == 0 { None } else { self.pop() }
    }

    fn pop(&mut self) -> Option<PageId> {
        let page = self.free.pop()?;
        self.refs[page.0 as usize] = 1;
        Some(page)
    }

    /// One more holder.
    pub fn retain(&mut self, page: PageId) {
        self.refs[page.0 as usize] += 1;
    }

    /// One holder less; a page without one is free.
    pub fn release(&mut self, page: PageId) {
        let refs = &mut self.refs[page.0 as usize];
        debug_assert!(*refs > 0, "page {} released twice", page.0);
        *refs = refs.saturating_sub(1);
        if *refs == 0 {
            self.free.push(page);
        }
    }
}

/// The state slots of a device.
#[derive(Debug)]
pub(crate) struct SlotPool {
    free: Vec<SlotId>,
}

impl SlotPool {
    pub fn new(slots: usize) -> Self {
        SlotPool { free: (0..slots as u32).rev().map(SlotId).collect() }
    }

    pub fn take(&mut self) -> Option<SlotId> {
        self.free.pop()
    }

    pub fn give_back(&mut self, slot: SlotId) {
        debug_assert!(!self.free.contains(&slot), "slot {} given back twice", slot.0);
        self.free.push(slot);
    }
}
