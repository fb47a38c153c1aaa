//! The token trie: blocks of up to 256 tokens with their KV page, and state snapshots at depths inside them. Pure
//! bookkeeping: it holds pages through the [`PagePool`] and names slots, and moves no bytes.
//!
//! A node with 256 tokens may have children; a shorter one is a leaf. No node's tokens are a prefix of a sibling's. A node
//! stays as long as a snapshot is at or below it.

use lily_model::device::{PageId, SlotId};
use lily_model::graph::Plan;

use super::pool::PagePool;

const PAGE: usize = Plan::PAGE_TOKENS;

/// Index of a node.
type NodeId = usize;

#[derive(Debug)]
struct Node {
    parent: Option<NodeId>,
    tokens: Vec<u32>,
    page: PageId,
    children: Vec<NodeId>,
    snapshots: Vec<Snapshot>,
}

/// The recurrent state after some tokens.
#[derive(Debug, Clone, Copy)]
struct Snapshot {
    /// Tokens of the node that it has absorbed, 1..=256.
    offset: usize,
    slot: SlotId,
    last_used: u64,
    /// Whether the disk tier has it.
    on_disk: bool,
}

/// Where a prompt can resume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hit {
    /// Tokens that the snapshot has absorbed.
    pub depth: usize,
    /// Its slot.
    pub slot: SlotId,
    /// Pages that hold the keys and values of these tokens; the last is shared only in its first `depth % 256` places.
    pub pages: Vec<PageId>,
}

/// What the trie knows about a prompt.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Match {
    /// Tokens the prompt has in common with some path.
    pub common: usize,
    /// The deepest snapshot within them.
    pub hit: Option<Hit>,
}

/// A snapshot with everything it needs, for the disk tier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stored {
    pub tokens: Vec<u32>,
    pub slot: SlotId,
    pub pages: Vec<PageId>,
}

/// See the head of the file.
#[derive(Debug, Default)]
pub(crate) struct Trie {
    nodes: Vec<Option<Node>>,
    free: Vec<NodeId>,
    roots: Vec<NodeId>,
    clock: u64,
    node_count: usize,
    snapshot_count: usize,
}

impl Trie {
    /// Nodes, each of which holds one page.
    pub fn pages(&self) -> usize {
        self.node_count
    }

    /// Snapshots.
    pub fn snapshots(&self) -> usize {
        self.snapshot_count
    }

    /// What of `tokens` is there; a hit absorbs at most `limit` of them.
    pub fn find(&self, tokens: &[u32], limit: usize) -> Match {
        let mut common = 0;
        let mut best: Option<(usize, NodeId, SlotId)> = None;
        self.walk(tokens, |start, shared, id, node| {
            common = common.max(start + shared);
            for s in &node.snapshots {
                let depth = start + s.offset;
                if s.offset <= shared && depth <= limit && best.is_none_or(|(d, ..)| depth > d) {
                    best = Some((depth, id, s.slot));
                }
            }
        });
        let hit = best.map(|(depth, id, slot)| Hit { depth, slot, pages: self.path(id).1 });
        Match { common, hit }
    }

    /// Whether a snapshot has absorbed exactly `tokens`.
    pub fn contains(&self, tokens: &[u32]) -> bool {
        let mut found = false;
        self.walk(tokens, |start, shared, _, node| {
            found |= node.snapshots.iter().any(|s| s.offset <= shared && start + s.offset == tokens.len());
        });
        found
    }

    /// Visits every node that shares tokens with `tokens` along its path: `(first position, shared tokens, id, node)`.
    fn walk(&self, tokens: &[u32], mut visit: impl FnMut(usize, usize, NodeId, &Node)) {
        let mut children = &self.roots;
        let mut start = 0;
        loop {
            let rest = &tokens[start.min(tokens.len())..];
            let mut next = None;
            for &id in children {
                let node = self.node(id);
                let shared = node.tokens.iter().zip(rest).take_while(|(a, b)| a == b).count();
                if shared > 0 {
                    visit(start, shared, id, node);
                }
                if shared == PAGE {
                    next = Some(node);
                }
            }
            match next {
                Some(node) => children = &node.children,
                None => return,
            }
            start += PAGE;
        }
    }

    /// Adds the path of `tokens` (held in `pages`) and a snapshot at its end. The trie becomes a holder of the pages that it
    /// did not have. `tokens` must not be empty, and no snapshot of them may be there.
    pub fn insert(&mut self, tokens: &[u32], pages: &[PageId], slot: SlotId, pool: &mut PagePool) {
        let mut parent = None;
        for (block, &page) in tokens.chunks(PAGE).zip(pages) {
            parent = Some(self.child(parent, block, page, pool));
        }
        let last_used = self.tick();
        if let Some(id) = parent {
            let offset = (tokens.len() - 1) % PAGE + 1;
            self.node_mut(id).snapshots.push(Snapshot { offset, slot, last_used, on_disk: false });
            self.snapshot_count += 1;
        }
    }

    /// The child of `parent` that covers `block`, made or extended if need be.
    fn child(&mut self, parent: Option<NodeId>, block: &[u32], page: PageId, pool: &mut PagePool) -> NodeId {
        let siblings = self.children(parent).clone();
        if let Some(&id) = siblings.iter().find(|&&id| self.node(id).tokens.starts_with(block)) {
            return id;
        }
        if let Some(&id) = siblings.iter().find(|&&id| block.starts_with(&self.node(id).tokens)) {
            let node = self.node_mut(id);
            node.tokens = block.to_vec();
            if node.page != page {
                pool.retain(page);
                pool.release(std::mem::replace(&mut node.page, page));
            }
            return id;
        }
        pool.retain(page);
        let node = Node { parent, tokens: block.to_vec(), page, children: Vec::new(), snapshots: Vec::new() };
        let id = match self.free.pop() {
            Some(id) => {
                self.nodes[id] = Some(node);
                id
            }
            None => {
                self.nodes.push(Some(node));
                self.nodes.len() - 1
            }
        };
        self.node_count += 1;
        self.children_mut(parent).push(id);
        id
    }

    /// Marks the snapshot in `slot` as just used.
    pub fn touch(&mut self, slot: SlotId) {
        let now = self.tick();
        self.with_snapshot(slot, |s| s.last_used = now);
    }

    /// Marks the shallowest snapshot along `tokens` as just used: the end of a system block that several conversations
    /// share is passed by each of their turns, but hit by none.
    pub fn touch_shallowest(&mut self, tokens: &[u32]) {
        let mut first: Option<(usize, SlotId)> = None;
        self.walk(tokens, |start, shared, _, node| {
            for s in node.snapshots.iter().filter(|s| s.offset <= shared) {
                if first.is_none_or(|(depth, _)| start + s.offset < depth) {
                    first = Some((start + s.offset, s.slot));
                }
            }
        });
        if let Some((_, slot)) = first {
            self.touch(slot);
        }
    }

    /// Notes that the disk tier has the snapshot in `slot`.
    pub fn mark_on_disk(&mut self, slot: SlotId) {
        self.with_snapshot(slot, |s| s.on_disk = true);
    }

    /// The most recently used snapshot that the disk tier does not have.
    pub fn newest_not_on_disk(&self) -> Option<Stored> {
        let all = self.all_snapshots().filter(|(_, s)| !s.on_disk);
        all.max_by_key(|(_, s)| s.last_used).map(|(id, s)| self.stored(id, s))
    }

    /// The snapshot that would be dropped next: the least recently used one, not that in `keep`.
    pub fn oldest(&self, keep: Option<SlotId>) -> Option<(Stored, OnDisk)> {
        let all = self.all_snapshots().filter(|(_, s)| Some(s.slot) != keep);
        let (id, s) = all.min_by_key(|(_, s)| s.last_used)?;
        Some((self.stored(id, s), if s.on_disk { OnDisk::Yes } else { OnDisk::No }))
    }

    /// Drops the snapshot in `slot` and every node that then leads to none. The slot is the caller's again.
    pub fn remove(&mut self, slot: SlotId, pool: &mut PagePool) {
        let found = self.all_snapshots().find(|(_, s)| s.slot == slot).map(|(id, _)| id);
        let Some(id) = found else { return };
        self.node_mut(id).snapshots.retain(|s| s.slot != slot);
        self.snapshot_count -= 1;
        let mut next = Some(id);
        while let Some(id) = next {
            let node = self.node(id);
            if !node.children.is_empty() || !node.snapshots.is_empty() {
                return;
            }
            let (parent, page) = (node.parent, node.page);
            self.children_mut(parent).retain(|&c| c != id);
            self.nodes[id] = None;
            self.free.push(id);
            self.node_count -= 1;
            pool.release(page);
            next = parent;
        }
    }

    fn all_snapshots(&self) -> impl Iterator<Item = (NodeId, &Snapshot)> {
        let nodes = self.nodes.iter().enumerate().filter_map(|(id, n)| n.as_ref().map(|n| (id, n)));
        nodes.flat_map(|(id, n)| n.snapshots.iter().map(move |s| (id, s)))
    }

    fn with_snapshot(&mut self, slot: SlotId, change: impl FnOnce(&mut Snapshot)) {
        let all = self.nodes.iter_mut().flatten().flat_map(|n| n.snapshots.iter_mut());
        if let Some(snapshot) = all.into_iter().find(|s| s.slot == slot) {
            change(snapshot);
        }
    }

    fn stored(&self, id: NodeId, snapshot: &Snapshot) -> Stored {
        let (mut tokens, pages) = self.path(id);
        tokens.truncate((pages.len() - 1) * PAGE + snapshot.offset);
        Stored { tokens, slot: snapshot.slot, pages }
    }

    /// Tokens and pages from the root to the end of node `id`.
    fn path(&self, id: NodeId) -> (Vec<u32>, Vec<PageId>) {
        let mut chain = vec![id];
        while let Some(parent) = self.node(chain[chain.len() - 1]).parent {
            chain.push(parent);
        }
        chain.reverse();
        let tokens = chain.iter().flat_map(|&id| self.node(id).tokens.iter().copied()).collect();
        (tokens, chain.iter().map(|&id| self.node(id).page).collect())
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn children(&self, of: Option<NodeId>) -> &Vec<NodeId> {
        match of {
            Some(id) => &self.node(id).children,
            None => &self.roots,
        }
    }

    fn children_mut(&mut self, of: Option<NodeId>) -> &mut Vec<NodeId> {
        match of {
            Some(id) => &mut self.node_mut(id).children,
            None => &mut self.roots,
        }
    }

    /// A node by an id that the trie itself gave out and has not freed.
    fn node(&self, id: NodeId) -> &Node {
        match &self.nodes[id] {
            Some(node) => node,
            None => unreachable!("node {id} is freed"),
        }
    }

    fn node_mut(&mut self, id: NodeId) -> &mut Node {
        match &mut self.nodes[id] {
            Some(node) => node,
            None => unreachable!("node {id} is freed"),
        }
    }
}

/// Whether the disk tier has a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnDisk {
    Yes,
    No,
}
