//! However a prompt comes in (at once, in chunks, token by token, beside others, after a snapshot), a row has the same bits.

mod common;

use common::{CAPACITY, argmax, checkpoint, decode, device, pages, prefill};
use lily_cpu::{CpuDevice, Precision};
use lily_model::device::{Device, DeviceError, LogitRows, Output, PageId, Segment, SlotId, Step, Tokens};
use lily_model::graph::Phase;

/// A prompt of 300 tokens: more than a page.
fn prompt(seed: u32) -> Vec<u32> {
    (0..300u32).map(|i| (i.wrapping_mul(2_654_435_761).wrapping_add(seed * 77_777) >> 7) % 512).collect()
}

/// The last logits of a prompt read in chunks, then those of eight greedy tokens.
fn chunked(device: &mut CpuDevice, ids: &[u32], chunk: usize) -> Vec<f32> {
    device.clear_slot(SlotId(0)).expect("the slot is there");
    let mut last = Vec::new();
    for (i, part) in ids.chunks(chunk).enumerate() {
        last = prefill(device, 0, i * chunk, part, LogitRows::Last).logits;
    }
    continued(device, 0, ids.len(), last)
}

/// Eight greedy tokens after `logits`.
fn continued(device: &mut CpuDevice, sequence: u32, start: usize, logits: Vec<f32>) -> Vec<f32> {
    let mut all = logits.clone();
    let mut last = logits;
    for i in 0..8 {
        last = decode(device, &[(sequence, start + i, argmax(&last))]);
        all.extend_from_slice(&last);
    }
    all
}

fn same(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

fn for_both(body: impl Fn(&mut CpuDevice, Precision)) {
    for name in ["tiny-a", "tiny-b"] {
        let checkpoint = checkpoint(name);
        for precision in [Precision::Fast, Precision::F32] {
            body(&mut device(&checkpoint, precision), precision);
        }
    }
}

#[test]
fn chunks_of_any_size_and_single_tokens_give_the_same_bits() {
    for_both(|device, precision| {
        let ids = prompt(1);
        let whole = chunked(device, &ids, 300);
        for chunk in [1, 3, 63, 64, 65, 256] {
            assert!(same(&whole, &chunked(device, &ids, chunk)), "{precision:?}, chunks of {chunk}");
        }
        device.clear_slot(SlotId(0)).expect("the slot is there");
        let mut last = Vec::new();
        for (i, &id) in ids.iter().enumerate() {
            last = decode(device, &[(0, i, id)]);
        }
        assert!(same(&whole, &continued(device, 0, ids.len(), last)), "{precision:?}, decoded token by token");
    });
}

#[test]
fn sequences_decoded_together_have_the_bits_of_each_alone() {
    for_both(|device, precision| {
        let mut alone = Vec::new();
        let lengths = [300, 1, 255, 256, 257];
        for (sequence, len) in lengths.into_iter().enumerate() {
            device.clear_slot(SlotId(sequence as u32)).expect("the slot is there");
            let last = prefill(device, sequence as u32, 0, &prompt(sequence as u32)[..len], LogitRows::Last).logits;
            alone.push(continued(device, sequence as u32, len, last));
        }
        // The same again, all in one prefill step and in common decode steps.
        let vocab = alone[0].len() / 9;
        let tables: Vec<Vec<PageId>> = (0..5).map(pages).collect();
        let mut together: Vec<Vec<f32>> = vec![Vec::new(); 5];
        for chosen in [&[0usize, 1][..], &[2, 4], &[3]] {
            let mut ids = Vec::new();
            let mut segments = Vec::new();
            for &s in chosen {
                device.clear_slot(SlotId(s as u32)).expect("the slot is there");
                ids.extend_from_slice(&prompt(s as u32)[..lengths[s]]);
                let slot = SlotId(s as u32);
                segments.push(Segment { slot, start: 0, rows: lengths[s], pages: &tables[s] });
            }
            let step = Step {
                phase: Phase::Prefill,
                tokens: Tokens::Ids(&ids),
                segments: &segments,
                logit_rows: LogitRows::Last,
                output: Output::Logits,
            };
            device.submit(&step).expect("a prefill step");
            let logits = device.wait().expect("its result").logits;
            for (&s, logits) in chosen.iter().zip(logits.chunks_exact(vocab)) {
                together[s].extend_from_slice(logits);
            }
        }
        for i in 0..8 {
            let rows: Vec<(u32, usize, u32)> =
                (0..5).map(|s| (s as u32, lengths[s] + i, argmax(&together[s][i * vocab..(i + 1) * vocab]))).collect();
            let logits = decode(device, &rows);
            for (s, logits) in logits.chunks_exact(vocab).enumerate() {
                together[s].extend_from_slice(logits);
            }
        }
        for s in 0..5 {
            assert!(same(&alone[s], &together[s]), "{precision:?}, sequence {s}");
        }
    });
}

#[test]
fn a_sequence_resumed_from_copies_and_from_bytes_has_the_same_bits() {
    for_both(|device, precision| {
        let ids = prompt(9);
        let whole = chunked(device, &ids, 300);
        device.clear_slot(SlotId(0)).expect("the slot is there");
        prefill(device, 0, 0, &ids[..280], LogitRows::None);
        device.copy_slot(SlotId(0), SlotId(1)).expect("a copy");
        for (from, to) in pages(0).into_iter().zip(pages(1)) {
            device.copy_page(from, to).expect("a copy");
        }
        let slot = device.read_slot(SlotId(0)).expect("bytes");
        let bytes: Vec<Vec<u8>> = pages(0).into_iter().map(|p| device.read_page(p).expect("bytes")).collect();
        device.write_slot(SlotId(2), &slot).expect("restored");
        for (page, bytes) in pages(2).into_iter().zip(&bytes) {
            device.write_page(page, bytes).expect("restored");
        }
        for sequence in [1, 2] {
            let last = prefill(device, sequence, 280, &ids[280..], LogitRows::Last).logits;
            let resumed = continued(device, sequence, ids.len(), last);
            assert!(same(&whole, &resumed), "{precision:?}, sequence {sequence}");
        }
        assert!(device.write_slot(SlotId(2), &slot[1..]).is_err());
        assert!(device.write_page(PageId(0), &[]).is_err());
    });
}

#[test]
fn previous_tokens_feed_the_next_step_and_two_steps_may_be_unfinished() {
    let checkpoint = checkpoint("tiny-a");
    let mut device = device(&checkpoint, Precision::Fast);
    let table = pages(0);
    let step = |start: usize, tokens| Step {
        phase: Phase::Decode,
        tokens,
        segments: Box::leak(Box::new([Segment {
            slot: SlotId(0),
            start,
            rows: 1,
            pages: Box::leak(table.clone().into()),
        }])),
        logit_rows: LogitRows::Last,
        output: Output::Argmax,
    };
    assert!(matches!(device.submit(&step(0, Tokens::Previous)), Err(DeviceError::BadStep { .. })));
    device.submit(&step(0, Tokens::Ids(&[5]))).expect("a step");
    device.submit(&step(1, Tokens::Previous)).expect("a second step");
    assert!(matches!(device.submit(&step(2, Tokens::Previous)), Err(DeviceError::BadStep { .. })));
    let (first, second) = (device.wait().expect("a result").tokens, device.wait().expect("a result").tokens);
    assert!(device.wait().is_err());
    device.clear_slot(SlotId(0)).expect("the slot is there");
    assert_eq!(argmax(&decode(&mut device, &[(0, 0, 5)])), first[0]);
    assert_eq!(argmax(&decode(&mut device, &[(0, 1, first[0])])), second[0]);
}

#[test]
fn steps_that_break_the_contract_are_refused_by_name_and_change_nothing() {
    let checkpoint = checkpoint("tiny-a");
    let mut device = device(&checkpoint, Precision::Fast);
    let (one, two) = (pages(0), pages(1));
    let far = [PageId(24)];
    let segment = |slot: u32, start: usize, rows: usize, pages| Segment { slot: SlotId(slot), start, rows, pages };
    let (one, two, far, none): (&[PageId], &[PageId], &[PageId], &[PageId]) = (&one, &two, &far, &[]);
    let twice = [PageId(5), PageId(5)];
    let cases: Vec<(Phase, Vec<u32>, Vec<Segment<'_>>, &str)> = vec![
        (Phase::Decode, vec![], vec![], "no segments"),
        (Phase::Prefill, vec![], vec![segment(0, 0, 0, one)], "no rows"),
        (Phase::Decode, vec![1, 2], vec![segment(0, 0, 2, one)], "2 rows in a decode step"),
        (Phase::Decode, vec![512], vec![segment(0, 0, 1, one)], "token id 512"),
        (Phase::Decode, vec![u32::MAX], vec![segment(0, 0, 1, one)], "token id 4294967295"),
        (Phase::Decode, vec![1, 2], vec![segment(0, 0, 1, one)], "2 token ids for 1 rows"),
        (Phase::Decode, vec![1], vec![segment(8, 0, 1, one)], "slot 8 of 8"),
        (Phase::Decode, vec![1, 2], vec![segment(3, 0, 1, one), segment(3, 0, 1, two)], "slot 3"),
        (Phase::Decode, vec![1, 2], vec![segment(2, 0, 1, one), segment(3, 0, 1, one)], "written by another"),
        (Phase::Decode, vec![1], vec![segment(0, 0, 1, none)], "0 pages"),
        (Phase::Decode, vec![1], vec![segment(0, 256, 1, &one[..1])], "1 pages for 257"),
        (Phase::Decode, vec![1], vec![segment(0, 0, 1, far)], "page 24 of 24"),
        (Phase::Decode, vec![1], vec![segment(0, 1024, 1, one)], "positions up to 1025"),
        (Phase::Decode, vec![1], vec![segment(0, usize::MAX, 1, one)], "positions up to"),
        (Phase::Prefill, vec![1; 300], vec![segment(0, 0, 300, &twice)], "two blocks"),
        (Phase::Prefill, vec![1; 513], vec![segment(0, 0, 513, one)], "513 rows"),
        (Phase::Prefill, vec![1; 2], vec![segment(0, 0, usize::MAX, one), segment(1, 0, 1, two)], "rows or more"),
    ];
    let before = decode(&mut device, &[(0, 0, 5)]);
    for (phase, ids, segments, expected) in cases {
        let step = Step {
            phase,
            tokens: Tokens::Ids(&ids),
            segments: &segments,
            logit_rows: LogitRows::Last,
            output: Output::Logits,
        };
        match device.submit(&step) {
            Err(DeviceError::BadStep { reason, .. }) => assert!(reason.contains(expected), "{reason}, not {expected}"),
            other => panic!("{expected}: {other:?}"),
        }
    }
    device.clear_slot(SlotId(0)).expect("the slot is there");
    assert!(same(&before, &decode(&mut device, &[(0, 0, 5)])));
    assert!(device.clear_slot(SlotId(8)).is_err());
    assert!(device.copy_slot(SlotId(0), SlotId(8)).is_err());
    assert!(device.copy_page(PageId(24), PageId(0)).is_err());
    assert!(device.read_page(PageId(u32::MAX)).is_err());
    assert_eq!(device.capacity(), CAPACITY);
}
