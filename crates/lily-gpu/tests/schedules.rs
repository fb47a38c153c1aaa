//! However a prompt comes in (at once, in chunks, token by token, beside others, after a snapshot), the trained miniature
//! gives the CPU device's greedy tokens, and a random model across pages gives the same distribution.

mod common;

use common::{argmax, checkpoint, decode, device, kl, miniature, pages, prefill, run};
use lily_cpu::{CpuDevice, CpuOptions, Precision};
use lily_gpu::emulated::Check;
use lily_gpu::route::MatrixRoute;
use lily_model::device::{Capacity, Device, LogitRows, Output, PageId, Segment, SlotId, Step, Tokens};
use lily_model::graph::Phase;
use lily_model::text::Tokenizer;

/// Tokens that follow a prompt.
const GREEDY: usize = 4;

fn prompts() -> [Vec<u32>; 2] {
    let tokenizer = Tokenizer::from_file(&common::miniature_folder().join("tokenizer.json")).expect("a tokenizer");
    [
        "Once upon a time, in a quiet forest far from the town, there lived a little fox who loved to tell stories. \
         One day the fox met",
        "The capital of France is",
    ]
    .map(|text| tokenizer.encode_text(text).expect("text is encoded"))
}

/// The greedy tokens after `logits`.
fn continued(device: &mut dyn Device, sequence: u32, start: usize, logits: &[f32]) -> Vec<u32> {
    let mut ids = vec![argmax(logits)];
    while ids.len() < GREEDY {
        let position = start + ids.len() - 1;
        ids.push(argmax(&decode(device, &[(sequence, position, ids[ids.len() - 1])])));
    }
    ids
}

/// The last logits of a prompt read in chunks of so many tokens, the last size again and again.
fn chunked(device: &mut dyn Device, ids: &[u32], sizes: &[usize]) -> Vec<f32> {
    device.clear_slot(SlotId(0)).expect("the slot is there");
    let (mut start, mut last, mut sizes) = (0, Vec::new(), sizes.iter().copied());
    let mut size = ids.len();
    while start < ids.len() {
        size = sizes.next().unwrap_or(size);
        let end = (start + size).min(ids.len());
        last = prefill(device, 0, start, &ids[start..end], LogitRows::Last).logits;
        start = end;
    }
    last
}

/// The last logits of a prompt decoded token by token.
fn token_by_token(device: &mut dyn Device, ids: &[u32]) -> Vec<f32> {
    device.clear_slot(SlotId(0)).expect("the slot is there");
    let mut last = Vec::new();
    for (i, &id) in ids.iter().enumerate() {
        last = decode(device, &[(0, i, id)]);
    }
    last
}

/// Greedy tokens of two sequences that are read in one step and decoded together.
fn batched(device: &mut dyn Device, prompts: &[Vec<u32>; 2]) -> [Vec<u32>; 2] {
    let tables: Vec<Vec<PageId>> = (0..2).map(pages).collect();
    let slot = |i: usize| SlotId(i as u32);
    let segments: Vec<Segment<'_>> =
        (0..2).map(|i| Segment { slot: slot(i), start: 0, rows: prompts[i].len(), pages: &tables[i] }).collect();
    for i in 0..2 {
        device.clear_slot(slot(i)).expect("the slot is there");
    }
    let logits = run(device, Phase::Prefill, Tokens::Ids(&prompts.concat()), &segments, LogitRows::Last).logits;
    let vocab = logits.len() / 2;
    let mut ids = [0, 1].map(|i| vec![argmax(&logits[i * vocab..(i + 1) * vocab])]);
    while ids[0].len() < GREEDY {
        let row = |i: usize| (i as u32, prompts[i].len() + ids[i].len() - 1, ids[i][ids[i].len() - 1]);
        let logits = decode(device, &[row(0), row(1)]);
        for (i, ids) in ids.iter_mut().enumerate() {
            ids.push(argmax(&logits[i * vocab..(i + 1) * vocab]));
        }
    }
    ids
}

/// The last logits of a prompt whose beginning was read into another sequence, copied there as bytes and by the device.
fn resumed(device: &mut dyn Device, ids: &[u32], at: usize) -> Vec<f32> {
    device.clear_slot(SlotId(0)).expect("the slot is there");
    prefill(device, 0, 0, &ids[..at], LogitRows::None);
    let snapshot = device.read_slot(SlotId(0)).expect("a snapshot");
    device.write_slot(SlotId(3), &snapshot).expect("its place");
    device.copy_slot(SlotId(3), SlotId(2)).expect("a copy");
    for (from, to) in pages(0).into_iter().zip(pages(2)).take(at.div_ceil(256)) {
        device.copy_page(from, to).expect("a page");
    }
    prefill(device, 2, at, &ids[at..], LogitRows::Last).logits
}

fn greedy_of_the_miniature(route: MatrixRoute) {
    let checkpoint = miniature();
    let prompts = prompts();
    let options = CpuOptions { threads: 2, precision: Precision::Fast, capacity: common::CAPACITY };
    let mut cpu = CpuDevice::new(checkpoint.clone(), options).expect("the device starts");
    let want = prompts.clone().map(|ids| {
        let logits = chunked(&mut cpu, &ids, &[]);
        continued(&mut cpu, 0, ids.len(), &logits)
    });
    let mut device = device(&checkpoint, route, Check::Off);
    let ids = &prompts[0];
    let after = |device: &mut dyn Device, sequence, logits: Vec<f32>| continued(device, sequence, ids.len(), &logits);
    let logits = chunked(&mut device, ids, &[]);
    assert_eq!(after(&mut device, 0, logits), want[0], "at once");
    let logits = chunked(&mut device, ids, &[7, 1, 9]);
    assert_eq!(after(&mut device, 0, logits), want[0], "in chunks of 7, 1 and 9");
    let logits = token_by_token(&mut device, ids);
    assert_eq!(after(&mut device, 0, logits), want[0], "token by token");
    assert_eq!(batched(&mut device, &prompts), want, "two sequences together");
    let logits = resumed(&mut device, ids, 11);
    assert_eq!(after(&mut device, 2, logits), want[0], "resumed after 11 tokens");
}

#[test]
fn every_schedule_gives_the_miniatures_greedy_tokens_on_simdgroup_matrices() {
    greedy_of_the_miniature(MatrixRoute::Simdgroup);
}

#[test]
fn every_schedule_gives_the_miniatures_greedy_tokens_on_tensor_operations() {
    greedy_of_the_miniature(MatrixRoute::Tensor);
}

/// Greedy tokens of sequence 0 behind a prompt of one token, every step but the first started before the one before it was
/// waited for; the block tables given are as long as what was generated.
fn ahead(device: &mut dyn Device, count: usize, most_in_flight: usize) -> Vec<u32> {
    device.clear_slot(SlotId(0)).expect("the slot is there");
    let table = pages(0);
    let mut ids = Vec::new();
    for position in 0..count {
        let known = [ids.last().copied().unwrap_or(1)];
        let unknown = position - ids.len();
        let segments = [Segment { slot: SlotId(0), start: position, rows: 1, pages: &table[..position / 256 + 1] }];
        device
            .submit(&Step {
                phase: Phase::Decode,
                tokens: if unknown > 0 { Tokens::Previous } else { Tokens::Ids(&known) },
                segments: &segments,
                logit_rows: LogitRows::Last,
                output: Output::Argmax,
            })
            .expect("the step starts");
        while position + 1 - ids.len() >= most_in_flight {
            ids.extend(device.wait().expect("the step ends").tokens);
        }
    }
    while ids.len() < count {
        ids.extend(device.wait().expect("the step ends").tokens);
    }
    ids
}

#[test]
fn a_step_that_needs_more_memory_may_follow_one_that_is_not_finished() {
    let checkpoint = checkpoint("tiny-a");
    // One row: the second page is the first growth, and comes while a step is in flight.
    let capacity = Capacity { decode_rows: 1, ..common::CAPACITY };
    let open = || common::device_of(&checkpoint, MatrixRoute::Simdgroup, Check::Off, capacity);
    let want = ahead(&mut open(), 260, 1);
    assert_eq!(ahead(&mut open(), 260, 2), want);
}

/// Across a page's border, where the miniature would take long.
fn distribution_of_a_random_model(route: MatrixRoute, allowed: f64) {
    let checkpoint = checkpoint("tiny-a");
    let ids: Vec<u32> = (0..300u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 7) % 512).collect();
    let mut device = device(&checkpoint, route, Check::Off);
    let whole = chunked(&mut device, &ids, &[]);
    let near = |name: &str, logits: Vec<f32>| {
        let distance = kl(&whole, &logits);
        println!("{name}: KL {distance:.1e}");
        assert!(distance <= allowed, "{name}: KL {distance:e}");
    };
    near("chunks of 1, 63, 64 and 65", chunked(&mut device, &ids, &[1, 63, 64, 65]));
    near("chunks of 256", chunked(&mut device, &ids, &[256]));
    near("token by token", token_by_token(&mut device, &ids));
    near("resumed after 257 tokens", resumed(&mut device, &ids, 257));
}

#[test]
fn every_schedule_gives_the_same_distribution_across_pages_on_simdgroup_matrices() {
    // The order of sums differs between tiles and matvecs: some matrix inputs round to the neighbouring bf16.
    distribution_of_a_random_model(MatrixRoute::Simdgroup, 2e-4);
}

#[test]
fn every_schedule_gives_the_same_distribution_across_pages_on_tensor_operations() {
    // Products of tiles also round their weights to bf16 there, matvecs do not.
    distribution_of_a_random_model(MatrixRoute::Tensor, 1e-2);
}
