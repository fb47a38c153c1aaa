//! Remembers the ids of long stretches of text.
//!
//! Every turn of a conversation encodes all turns before it again, and a stretch between two control tokens always has
//! the same ids, whatever stands around it. Two generations of a bounded size: what is used survives, the rest is
//! forgotten half a budget later.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Shorter stretches are encoded faster than they are worth keeping, in bytes.
const MIN_TEXT: usize = 256;
/// Size of one generation, texts and ids, in bytes.
const GENERATION: usize = 16 << 20;

#[derive(Debug, Default)]
pub(crate) struct StretchCache(Mutex<Generations>);

#[derive(Debug, Default)]
struct Generations {
    young: HashMap<Box<str>, Arc<[u32]>>,
    old: HashMap<Box<str>, Arc<[u32]>>,
    young_bytes: usize,
}

impl StretchCache {
    /// The ids of `text`, if it was encoded lately.
    pub fn get(&self, text: &str) -> Option<Arc<[u32]>> {
        if text.len() < MIN_TEXT {
            return None;
        }
        let mut generations = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ids) = generations.young.get(text) {
            return Some(ids.clone());
        }
        let (text, ids) = generations.old.remove_entry(text)?;
        generations.insert(text, ids.clone());
        Some(ids)
    }

    /// Keeps the ids of `text`.
    pub fn insert(&self, text: &str, ids: &[u32]) {
        if text.len() >= MIN_TEXT {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(text.into(), ids.into());
        }
    }
}

impl Generations {
    fn insert(&mut self, text: Box<str>, ids: Arc<[u32]>) {
        let bytes = text.len() + 4 * ids.len();
        if bytes > GENERATION {
            return;
        }
        if self.young_bytes + bytes > GENERATION {
            self.old = std::mem::take(&mut self.young);
            self.young_bytes = 0;
        }
        if self.young.insert(text, ids).is_none() {
            self.young_bytes += bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_stays_and_memory_is_bounded() {
        let cache = StretchCache::default();
        let filler = "x".repeat(32 << 10);
        let text = |n: usize| format!("{n} {filler}");
        let used = text(0);
        cache.insert("short", &[1]);
        assert_eq!(cache.get("short"), None);
        for n in 0..2_000 {
            cache.insert(&text(n), &[n as u32; 10]);
            assert_eq!(cache.get(&used).as_deref(), Some(&[0; 10][..]));
        }
        assert_eq!(cache.get(&text(50)), None);
        let generations = cache.0.lock().unwrap();
        let kept = generations.young.len() + generations.old.len();
        assert!(kept * filler.len() <= 2 * GENERATION && kept > 400, "{kept}");
        drop(generations);
        cache.insert(&"x".repeat(GENERATION), &[1]);
        assert_eq!(cache.get(&"x".repeat(GENERATION)), None);
    }
}
