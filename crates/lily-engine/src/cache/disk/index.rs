//! Which files the disk tier has, and which go first when they become too many.

use std::collections::HashMap;
use std::path::PathBuf;

use lily_model::graph::Plan;

use super::file::Kind;

/// A file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub path: PathBuf,
    pub bytes: u64,
    /// Order of use; larger is later.
    pub last_used: u64,
}

/// Files by what they hold.
#[derive(Debug, Default)]
pub(super) struct Index {
    files: HashMap<(Kind, Vec<u32>), Entry>,
    bytes: u64,
    clock: u64,
}

impl Index {
    /// Bytes of all files.
    #[cfg(test)]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn insert(&mut self, kind: Kind, tokens: Vec<u32>, path: PathBuf, bytes: u64) {
        self.clock += 1;
        self.bytes += bytes;
        if let Some(old) = self.files.insert((kind, tokens), Entry { path, bytes, last_used: self.clock }) {
            self.bytes -= old.bytes;
        }
    }

    pub fn get(&self, kind: Kind, tokens: &[u32]) -> Option<&Entry> {
        self.files.get(&(kind, tokens.to_vec()))
    }

    pub fn remove(&mut self, kind: Kind, tokens: &[u32]) -> Option<Entry> {
        let entry = self.files.remove(&(kind, tokens.to_vec()))?;
        self.bytes -= entry.bytes;
        Some(entry)
    }

    pub fn touch(&mut self, kind: Kind, tokens: &[u32]) {
        self.clock += 1;
        if let Some(entry) = self.files.get_mut(&(kind, tokens.to_vec())) {
            entry.last_used = self.clock;
        }
    }

    /// The longest snapshot that absorbs at least `least` tokens of `prompt` and not all of them.
    pub fn deepest(&self, prompt: &[u32], least: usize) -> Option<Vec<u32>> {
        let slots = self.files.keys().filter(|(kind, _)| *kind == Kind::Slot).map(|(_, tokens)| tokens);
        let usable = slots.filter(|t| t.len() >= least && t.len() < prompt.len() && prompt.starts_with(t));
        usable.max_by_key(|t| t.len()).cloned()
    }

    /// Takes files out until at most `limit` bytes are left: the least recently used snapshots, then the pages that no
    /// snapshot needs any more. Returns what to delete.
    pub fn shrink(&mut self, limit: u64) -> Vec<PathBuf> {
        let mut gone = Vec::new();
        while self.bytes > limit {
            let slots = self.files.iter().filter(|((kind, _), _)| *kind == Kind::Slot);
            let Some(oldest) = slots.min_by_key(|(_, e)| e.last_used).map(|((_, tokens), _)| tokens.clone()) else {
                break;
            };
            gone.extend(self.remove(Kind::Slot, &oldest).map(|e| e.path));
            gone.extend(self.drop_orphans());
        }
        gone
    }

    /// Takes out the pages that no snapshot needs.
    pub fn drop_orphans(&mut self) -> Vec<PathBuf> {
        let mut needed = std::collections::HashSet::new();
        for (_, tokens) in self.files.keys().filter(|(kind, _)| *kind == Kind::Slot) {
            needed.extend(page_ends(tokens.len()).map(|end| tokens[..end].to_vec()));
        }
        let pages = self.files.keys().filter(|(kind, tokens)| *kind == Kind::Page && !needed.contains(tokens));
        let orphans: Vec<Vec<u32>> = pages.map(|(_, tokens)| tokens.clone()).collect();
        orphans.iter().filter_map(|tokens| self.remove(Kind::Page, tokens)).map(|e| e.path).collect()
    }
}

/// Where the pages of `len` tokens end.
pub(super) fn page_ends(len: usize) -> impl Iterator<Item = usize> {
    (0..len.div_ceil(Plan::PAGE_TOKENS)).map(move |i| len.min((i + 1) * Plan::PAGE_TOKENS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_snapshot_goes_first_and_takes_along_the_pages_only_it_needs() {
        let mut index = Index::default();
        let a: Vec<u32> = (0..300).collect();
        let b: Vec<u32> = (0..256).chain(900..1000).collect();
        for tokens in [&a, &b] {
            for end in page_ends(tokens.len()) {
                index.insert(Kind::Page, tokens[..end].to_vec(), format!("p{end}-{}", tokens[end - 1]).into(), 10);
            }
            index.insert(Kind::Slot, tokens.clone(), format!("s{}", tokens.len()).into(), 100);
        }
        assert_eq!(index.bytes(), 230);
        assert_eq!(index.deepest(&[&a[..], &[7]].concat(), 1), Some(a.clone()));
        assert_eq!(index.deepest(&a, 1), None);
        index.touch(Kind::Slot, &a);
        assert_eq!(index.shrink(200), [PathBuf::from("s356"), PathBuf::from("p356-999")]);
        assert_eq!(index.bytes(), 120);
        assert_eq!(index.shrink(0).len(), 3);
    }
}
