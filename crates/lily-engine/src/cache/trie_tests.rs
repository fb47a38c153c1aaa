//! The trie against a plain list of (tokens, slot).

use lily_model::device::SlotId;
use proptest::prelude::*;

use super::pool::PagePool;
use super::trie::Trie;

/// A path of blocks of a tiny alphabet, so that paths share prefixes within, at and past page borders.
fn path() -> impl Strategy<Value = Vec<u32>> {
    (proptest::collection::vec(0u32..2, 1..4), 1usize..600)
        .prop_map(|(seeds, len)| (0..len).map(|i| seeds[(i / 190) % seeds.len()]).collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn finds_what_a_list_would_find_and_holds_no_page_too_many(
        paths in proptest::collection::vec(path(), 1..12),
        drops in proptest::collection::vec(any::<bool>(), 12),
        queries in proptest::collection::vec(path(), 1..6),
    ) {
        let (mut trie, mut pool) = (Trie::default(), PagePool::new(64));
        let mut list: Vec<(Vec<u32>, SlotId)> = Vec::new();
        for (i, tokens) in paths.iter().enumerate() {
            prop_assert_eq!(trie.contains(tokens), list.iter().any(|(t, _)| t == tokens));
            if list.iter().any(|(t, _)| t == tokens) {
                continue;
            }
            let pages: Vec<_> = tokens.chunks(256).map(|_| pool.take().unwrap()).collect();
            trie.insert(tokens, &pages, SlotId(i as u32), &mut pool);
            pages.into_iter().for_each(|p| pool.release(p));
            list.push((tokens.clone(), SlotId(i as u32)));
            if drops[i] && list.len() > 1 {
                let (_, slot) = list.remove(0);
                trie.remove(slot, &mut pool);
            }
            prop_assert_eq!(pool.used(), trie.pages());
            prop_assert_eq!(trie.snapshots(), list.len());
        }
        for query in &queries {
            let limit = query.len() - 1;
            let expected = list.iter().filter(|(t, _)| t.len() <= limit && query.starts_with(t)).map(|(t, s)| (t.len(), *s)).max();
            let found = trie.find(query, limit);
            prop_assert_eq!(found.hit.as_ref().map(|h| (h.depth, h.slot)), expected);
            if let Some(hit) = found.hit {
                prop_assert_eq!(hit.pages.len(), hit.depth.div_ceil(256));
            }
        }
        for (tokens, slot) in list {
            let stored = std::iter::from_fn(|| trie.oldest(None)).next().unwrap().0;
            prop_assert_eq!((stored.tokens, stored.slot), (tokens, slot));
            trie.remove(slot, &mut pool);
        }
        prop_assert_eq!((trie.pages(), trie.snapshots(), pool.used()), (0, 0, 0));
    }
}
