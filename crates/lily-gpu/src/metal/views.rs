//! Which parts of a mapped shard become GPU buffers: page-aligned views that share the mapping's memory, none longer than
//! a buffer may be, and copies of the few ranges that no view can hold. Arithmetic only.

use std::ops::Range;

/// Bytes of a page of Apple silicon: the base and length of a buffer without copy are multiples of it.
pub const GPU_PAGE: u64 = 16 * 1024;

/// Where two views are better than one: unwanted bytes between them stay out of the GPU's working set.
pub const WIDEST_GAP: u64 = 4 << 20;

/// Bytes to which copied ranges are aligned.
const COPY_ALIGNMENT: u64 = 256;

/// A shard's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mapping {
    /// Address of its first byte.
    pub base: u64,
    /// Bytes.
    pub bytes: u64,
    /// Bytes of a page of the operating system when this is a memory mapping, whose last page exists to its end; `None`
    /// for other memory, which is copied.
    pub page: Option<u64>,
}

/// Where a wanted range is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// In a view, at this byte of it.
    View {
        /// Index into [`Layout::views`].
        view: usize,
        /// First byte.
        offset: u64,
    },
    /// In a copy, at this byte of it.
    Copy {
        /// Index into [`Layout::copies`].
        copy: usize,
        /// First byte.
        offset: u64,
    },
}

/// Buffers of a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Address ranges wrapped without copy: both ends are multiples of [`GPU_PAGE`].
    pub views: Vec<Range<u64>>,
    /// Bytes of each buffer of copied ranges.
    pub copies: Vec<u64>,
    /// Where each wanted range is, in the order asked for.
    pub places: Vec<Place>,
}

/// A range that no buffer can hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooLong {
    /// Index of the range.
    pub index: usize,
    /// Its bytes.
    pub bytes: u64,
}

/// Lays out the buffers for `wanted` ranges `(offset, bytes)` of a shard. A buffer has at most `max_buffer` bytes; a range
/// whose address is no multiple of `alignment` is copied.
///
/// # Errors
/// [`TooLong`] for a range that does not fit a buffer.
pub fn lay_out(mapping: Mapping, wanted: &[(u64, u64)], max_buffer: u64, alignment: u64) -> Result<Layout, TooLong> {
    let usable = mapped_pages(mapping);
    let mut layout = Layout { views: Vec::new(), copies: Vec::new(), places: Vec::new() };
    let longest = max_buffer / GPU_PAGE * GPU_PAGE;
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_unstable_by_key(|&i| wanted[i]);
    let mut places = vec![Place::Copy { copy: 0, offset: 0 }; wanted.len()];
    for index in order {
        let (offset, bytes) = wanted[index];
        let (start, end) = (mapping.base + offset, mapping.base + offset + bytes);
        let pages = start / GPU_PAGE * GPU_PAGE..end.next_multiple_of(GPU_PAGE);
        if bytes > longest {
            return Err(TooLong { index, bytes });
        }
        let in_place = usable.start <= pages.start
            && pages.end <= usable.end
            && start.is_multiple_of(alignment)
            && pages.end - pages.start <= longest;
        if !in_place {
            places[index] = copied(&mut layout.copies, bytes, longest);
            continue;
        }
        match layout.views.last_mut() {
            Some(last) if pages.end.max(last.end) - last.start <= longest && pages.start <= last.end + WIDEST_GAP => {
                last.end = last.end.max(pages.end);
            }
            _ => layout.views.push(pages),
        }
        let view = layout.views.len() - 1;
        places[index] = Place::View { view, offset: start - layout.views[view].start };
    }
    layout.places = places;
    Ok(layout)
}

/// Addresses of the whole GPU pages that are mapped.
fn mapped_pages(mapping: Mapping) -> Range<u64> {
    let Some(page) = mapping.page else { return 0..0 };
    let end = (mapping.base + mapping.bytes).next_multiple_of(page);
    mapping.base.next_multiple_of(GPU_PAGE)..end / GPU_PAGE * GPU_PAGE
}

fn copied(copies: &mut Vec<u64>, bytes: u64, longest: u64) -> Place {
    if let Some(last) = copies.last_mut() {
        let offset = last.next_multiple_of(COPY_ALIGNMENT);
        if offset + bytes <= longest {
            *last = offset + bytes;
            return Place::Copy { copy: copies.len() - 1, offset };
        }
    }
    copies.push(bytes);
    Place::Copy { copy: copies.len() - 1, offset: 0 }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BASE: u64 = 7 * GPU_PAGE;
    const MAC: Option<u64> = Some(GPU_PAGE);

    fn mapped(bytes: u64) -> Mapping {
        Mapping { base: BASE, bytes, page: MAC }
    }

    #[test]
    fn a_shard_within_the_limit_is_one_view_to_the_end_of_its_last_page() {
        let layout = lay_out(mapped(100_000), &[(50_000, 50_000), (96, 40_000)], 1 << 30, 4).expect("fits");
        assert_eq!(layout.views, vec![BASE..BASE + 7 * GPU_PAGE]);
        assert_eq!(layout.places, vec![Place::View { view: 0, offset: 50_000 }, Place::View { view: 0, offset: 96 }]);
        assert!(layout.copies.is_empty());
    }

    #[test]
    fn views_of_a_shard_past_the_limit_share_the_page_at_their_border() {
        let page = GPU_PAGE;
        let layout = lay_out(mapped(8 * page), &[(0, 3 * page + 64), (3 * page + 64, 4 * page)], 5 * page, 4);
        let layout = layout.expect("fits");
        assert_eq!(layout.views, vec![BASE..BASE + 4 * page, BASE + 3 * page..BASE + 8 * page]);
        assert_eq!(layout.places[1], Place::View { view: 1, offset: 64 });
    }

    #[test]
    fn what_is_not_wanted_stays_out_of_the_working_set() {
        let far = WIDEST_GAP + 2 * GPU_PAGE;
        let layout = lay_out(mapped(far + 16), &[(0, 16), (far, 16)], 1 << 30, 4).expect("fits");
        assert_eq!(layout.views, vec![BASE..BASE + GPU_PAGE, BASE + far..BASE + far + GPU_PAGE]);
    }

    #[test]
    fn the_tail_is_copied_where_the_pages_of_the_system_end_before_a_gpu_page() {
        let small = Mapping { page: Some(4096), ..mapped(GPU_PAGE + 100) };
        let layout = lay_out(small, &[(0, 64), (GPU_PAGE + 4, 96)], 1 << 30, 4).expect("fits");
        assert_eq!(layout.views, vec![BASE..BASE + GPU_PAGE]);
        assert_eq!(layout.places[1], Place::Copy { copy: 0, offset: 0 });
        assert_eq!(layout.copies, vec![96]);
    }

    #[test]
    fn memory_that_is_no_mapping_and_ranges_at_odd_addresses_are_copied() {
        let heap = Mapping { page: None, ..mapped(4 * GPU_PAGE) };
        assert_eq!(lay_out(heap, &[(0, 8), (8, 8)], 1 << 30, 4).expect("fits").copies, vec![COPY_ALIGNMENT + 8]);
        assert_eq!(lay_out(mapped(4 * GPU_PAGE), &[(2, 8)], 1 << 30, 4).expect("fits").copies, vec![8]);
    }

    #[test]
    fn a_range_longer_than_a_buffer_is_refused() {
        let wanted = [(0, 4), (GPU_PAGE, 2 * GPU_PAGE + 1)];
        let refused = lay_out(mapped(4 * GPU_PAGE), &wanted, 2 * GPU_PAGE, 4);
        assert_eq!(refused, Err(TooLong { index: 1, bytes: 2 * GPU_PAGE + 1 }));
    }

    proptest! {
        #[test]
        fn every_range_lies_in_its_buffer_and_every_buffer_is_one_that_metal_takes(
            base in 0u64..64,
            page in prop_oneof![Just(None), Just(Some(4096u64)), Just(Some(GPU_PAGE))],
            max_pages in 8u64..40,
            cuts in prop::collection::vec(1u64..100_000, 1..40),
        ) {
            let mut at = 0;
            let wanted: Vec<(u64, u64)> = cuts.iter().map(|&bytes| { at += bytes; (at - bytes, bytes) }).collect();
            let mapping = Mapping { base: BASE + base * 4096, bytes: at, page };
            let max = max_pages * GPU_PAGE + 17;
            let layout = lay_out(mapping, &wanted, max, 4).expect("every range fits");
            let end = (mapping.base + mapping.bytes).next_multiple_of(page.unwrap_or(1));
            for view in &layout.views {
                prop_assert!(view.start % GPU_PAGE == 0 && view.end % GPU_PAGE == 0);
                prop_assert!(view.end - view.start <= max && view.start >= mapping.base && view.end <= end);
            }
            prop_assert!(layout.copies.iter().all(|&bytes| bytes <= max));
            for (place, &(offset, bytes)) in layout.places.iter().zip(&wanted) {
                match *place {
                    Place::View { view, offset: inside } => {
                        let view = &layout.views[view];
                        prop_assert_eq!(view.start + inside, mapping.base + offset);
                        prop_assert!(view.start + inside + bytes <= view.end);
                    }
                    Place::Copy { copy, offset } => prop_assert!(offset + bytes <= layout.copies[copy]),
                }
            }
        }
    }
}
