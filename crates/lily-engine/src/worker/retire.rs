//! The end of a request: its state goes to the prefix cache, its place becomes free.

use super::{Sequence, Worker};
use crate::cache::{MIN_GAIN, Path};
use crate::request::PrefixCacheUse;

impl Worker {
    /// Frees the places of requests that are over. Nothing may be in flight.
    pub(super) fn retire(&mut self) {
        let mut index = 0;
        while index < self.running.len() {
            if self.running[index].finished.is_some() {
                let sequence = self.running.remove(index);
                self.shared.finished(&sequence);
                self.release(sequence);
            } else {
                index += 1;
            }
        }
    }

    fn release(&mut self, sequence: Sequence) {
        let place = sequence.place;
        // A cancelled prompt is kept as well: the caller may try again.
        let wanted = sequence.prefix_cache == PrefixCacheUse::ReadWrite && sequence.absorbed >= MIN_GAIN;
        if wanted && !sequence.damaged {
            let path = Path::new(&sequence.tokens, &place.pages, sequence.absorbed);
            self.cache.keep(path, place.slot, &mut self.resources);
        } else {
            self.resources.slots.give_back(place.slot);
        }
        if sequence.damaged {
            self.cache.forget(&sequence.tokens, &mut self.resources);
        }
        self.release_pages(place.pages, place.reserved);
    }
}
