//! The disk tier: snapshots and their pages in files that survive a restart.
//!
//! Files are written by a thread of their own and read where a prompt needs them. Nothing in a file is trusted: one with a
//! wrong checksum, another model's fingerprint or an unexpected size is ignored with a warning and deleted.

mod file;
mod index;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use super::Resources;
use super::trie::Stored;
use file::{Header, Kind};
use index::{Index, page_ends};
use lily_model::device::{PageId, SlotId};

/// Bytes that may wait to be written; what comes on top is not kept.
const MAX_PENDING: u64 = 1 << 30;
const EXTENSION: &str = "lilycache";

/// Settings of the disk tier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DiskConfig {
    /// Folder; made if it is not there.
    pub dir: PathBuf,
    /// Most bytes of all files.
    pub bytes: u64,
    /// Model, device kind and layout: files of another one are not read.
    pub fingerprint: String,
}

/// See the head of the file.
pub(crate) struct DiskTier {
    config: DiskConfig,
    shared: Arc<Mutex<Shared>>,
    writer: Option<(Sender<Work>, JoinHandle<()>)>,
}

struct Shared {
    index: Index,
    pending: u64,
}

enum Work {
    Write { path: PathBuf, header: Header, payload: Vec<u8> },
    Flush(Sender<()>),
}

impl DiskTier {
    /// Opens the folder and lists what is usable in it.
    pub fn open(config: DiskConfig) -> std::io::Result<Self> {
        std::fs::create_dir_all(&config.dir)?;
        // Better told now than in a warning for each snapshot.
        let probe = config.dir.join(format!(".writable-{}", std::process::id()));
        std::fs::File::create(&probe).and_then(|_| std::fs::remove_file(&probe))?;
        let mut index = list(&config)?;
        delete(index.drop_orphans());
        delete(index.shrink(config.bytes));
        let shared = Arc::new(Mutex::new(Shared { index, pending: 0 }));
        let (sender, receiver) = channel();
        let (written, limit) = (Arc::clone(&shared), config.bytes);
        let thread = std::thread::Builder::new().name("lily-cache-writer".into()).spawn(move || {
            for work in receiver {
                match work {
                    Work::Write { path, header, payload } => write_one(&written, limit, path, header, &payload),
                    Work::Flush(done) => drop(done.send(())),
                }
            }
        })?;
        Ok(DiskTier { config, shared, writer: Some((sender, thread)) })
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tokens of the longest stored snapshot that absorbs at least `least` tokens of `prompt`, and not all.
    pub fn find(&self, prompt: &[u32], least: usize) -> Option<Vec<u32>> {
        self.shared().index.deepest(prompt, least)
    }

    /// Hands a snapshot and those of its pages that are not stored yet to the writer, unless that is more than `most` bytes.
    pub fn store(&mut self, stored: &Stored, most: u64, resources: &mut Resources) {
        let tokens = &stored.tokens;
        let missing: Vec<(usize, PageId)> = {
            let shared = self.shared();
            let ends = page_ends(tokens.len()).zip(stored.pages.iter().copied());
            ends.filter(|(end, _)| shared.index.get(Kind::Page, &tokens[..*end]).is_none()).collect()
        };
        let mut bytes = 0;
        for (end, page) in missing {
            match resources.device.read_page(page) {
                Ok(payload) => {
                    bytes += payload.len() as u64;
                    if bytes > most || !self.send(Kind::Page, &tokens[..end], payload) {
                        return;
                    }
                }
                Err(error) => return tracing::warn!(%error, "a page is not kept on disk"),
            }
        }
        match resources.device.read_slot(stored.slot) {
            Ok(payload) => {
                self.send(Kind::Slot, tokens, payload);
            }
            Err(error) => tracing::warn!(%error, "a snapshot is not kept on disk"),
        }
    }

    fn send(&self, kind: Kind, tokens: &[u32], payload: Vec<u8>) -> bool {
        let len = payload.len() as u64;
        {
            let mut shared = self.shared();
            if shared.pending + len > MAX_PENDING || len > self.config.bytes {
                return false;
            }
            shared.pending += len;
        }
        let header =
            Header { kind, fingerprint: self.config.fingerprint.clone(), tokens: tokens.to_vec(), payload_len: len };
        let path = self.config.dir.join(file_name(&header));
        self.writer.as_ref().is_some_and(|(w, _)| w.send(Work::Write { path, header, payload }).is_ok())
    }

    /// Reads a stored snapshot of `tokens` into `slot` and its pages into `pages`. False, with a warning, if any part of it
    /// is not usable; what is broken is deleted.
    pub fn load(&mut self, tokens: &[u32], slot: SlotId, pages: &[PageId], resources: &mut Resources) -> bool {
        for (end, &page) in page_ends(tokens.len()).zip(pages) {
            let Some(payload) = self.read(Kind::Page, &tokens[..end]) else {
                // Without this page the snapshot is of no use.
                self.forget(Kind::Slot, tokens);
                return false;
            };
            if let Err(error) = resources.device.write_page(page, &payload) {
                return self.refuse(Kind::Page, &tokens[..end], &error);
            }
        }
        let Some(payload) = self.read(Kind::Slot, tokens) else { return false };
        if let Err(error) = resources.device.write_slot(slot, &payload) {
            return self.refuse(Kind::Slot, tokens, &error);
        }
        let mut shared = self.shared();
        shared.index.touch(Kind::Slot, tokens);
        if let Some(entry) = shared.index.get(Kind::Slot, tokens) {
            // The next start orders files by this; a failure costs nothing else.
            let _ = std::fs::File::options()
                .append(true)
                .open(&entry.path)
                .and_then(|f| f.set_modified(std::time::SystemTime::now()));
        }
        true
    }

    fn refuse(&self, kind: Kind, tokens: &[u32], error: &dyn std::fmt::Display) -> bool {
        tracing::warn!(%error, "the device does not take a cache file; it is deleted");
        self.forget(kind, tokens);
        false
    }

    fn read(&self, kind: Kind, tokens: &[u32]) -> Option<Vec<u8>> {
        let path = self.shared().index.get(kind, tokens)?.path.clone();
        let problem = match file::read(&path) {
            Ok((header, payload))
                if header.kind == kind && header.tokens == tokens && header.fingerprint == self.config.fingerprint =>
            {
                return Some(payload);
            }
            Ok(_) => "it is another file than at start-up".to_string(),
            Err(error) => error.to_string(),
        };
        tracing::warn!(path = %path.display(), problem, "cache file ignored and deleted");
        self.forget(kind, tokens);
        None
    }

    fn forget(&self, kind: Kind, tokens: &[u32]) {
        let entry = self.shared().index.remove(kind, tokens);
        delete(entry.map(|e| e.path));
    }

    /// Waits until everything handed over is written.
    pub fn flush(&mut self) {
        let (sender, receiver) = channel();
        if self.writer.as_ref().is_some_and(|(w, _)| w.send(Work::Flush(sender)).is_ok()) {
            // An error means that the writer is gone, and with it what there was to wait for.
            let _ = receiver.recv();
        }
    }
}

impl Drop for DiskTier {
    fn drop(&mut self) {
        if let Some((sender, thread)) = self.writer.take() {
            drop(sender);
            if thread.join().is_err() {
                tracing::warn!("the cache writer panicked");
            }
        }
    }
}

fn write_one(shared: &Mutex<Shared>, limit: u64, path: PathBuf, header: Header, payload: &[u8]) {
    let written = file::write(&path, &header, payload);
    let is_snapshot = header.kind == Kind::Slot;
    let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
    shared.pending -= payload.len() as u64;
    match written {
        Ok(()) => {
            let bytes = payload.len() as u64 + header.tokens.len() as u64 * 4;
            shared.index.insert(header.kind, header.tokens, path, bytes);
            // A snapshot's pages are written before it: only after it are those without a snapshot of no use.
            let gone = if is_snapshot { shared.index.shrink(limit) } else { Vec::new() };
            drop(shared);
            delete(gone);
        }
        Err(error) => tracing::warn!(path = %path.display(), %error, "a cache file cannot be written"),
    }
}

fn list(config: &DiskConfig) -> std::io::Result<Index> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(&config.dir)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        if name.ends_with(".part") && (name.starts_with("state-") || name.starts_with("page-")) {
            delete([path]);
            continue;
        }
        if path.extension().is_none_or(|e| e != EXTENSION) {
            continue;
        }
        match (file::read_header(&path), std::fs::metadata(&path)) {
            (Ok(header), Ok(data)) if header.fingerprint == config.fingerprint => {
                let modified = data.modified().unwrap_or(std::time::UNIX_EPOCH);
                found.push((modified, header, path, data.len()));
            }
            // Another model's: it may share the folder, and its own engine bounds it.
            (Ok(_), Ok(_)) => {}
            (Err(error), _) => {
                tracing::warn!(path = %path.display(), %error, "cache file ignored and deleted");
                delete([path]);
            }
            (_, Err(error)) => tracing::warn!(path = %path.display(), %error, "cache file ignored"),
        }
    }
    found.sort_by_key(|(modified, ..)| *modified);
    let mut index = Index::default();
    for (_, header, path, bytes) in found {
        index.insert(header.kind, header.tokens, path, bytes);
    }
    Ok(index)
}

/// A name that no other content of this folder has; nothing is read from it.
fn file_name(header: &Header) -> String {
    let mut hasher = DefaultHasher::new();
    (&header.fingerprint, header.kind, &header.tokens).hash(&mut hasher);
    let kind = match header.kind {
        Kind::Slot => "state",
        Kind::Page => "page",
    };
    format!("{kind}-{}-{:016x}.{EXTENSION}", header.tokens.len(), hasher.finish())
}

fn delete(paths: impl IntoIterator<Item = PathBuf>) {
    for path in paths {
        remove(&path);
    }
}

fn remove(path: &Path) {
    if let Err(error) = std::fs::remove_file(path) {
        tracing::warn!(path = %path.display(), %error, "a cache file cannot be deleted");
    }
}
