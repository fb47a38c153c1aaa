//! The driver computes what the emulated driver and the processor compute, and Metal has nothing to object to.

mod common;

use std::sync::Arc;

use common::{CAPACITY, aligned, checkpoint, finished, greedy, logits, metal, prompt, submit, tiny};
use fake_metal::GpuDevice;
use fake_metal::machine::{Seen, Session, Settings};
use fake_metal::metal::{Metal, split};
use fake_metal::route::MatrixRoute;
use lily_cpu::{CpuDevice, CpuOptions, Precision};
use lily_gpu::{Emulated, EmulatedOptions};
use lily_model::checkpoint::Checkpoint;
use lily_model::device::{Device, Output, SlotId, Tokens};
use msl::emulate::Check;

/// An M5.
fn m5() -> Settings {
    Settings { family: 10, macos: (26, 1), ..Settings::default() }
}

fn same_as_emulated(settings: Settings, route: MatrixRoute, checkpoint: Arc<Checkpoint>) -> Seen {
    let session = Session::start(settings);
    let mut device = metal(&session, &checkpoint).expect("the device starts");
    let emulated = Emulated::new(EmulatedOptions { route, ..EmulatedOptions::default() });
    let mut emulated = GpuDevice::new(emulated, checkpoint, CAPACITY).expect("the emulated device starts");
    let ids = prompt(100);
    assert_eq!(device.info().description, format!("Fake M4, {}", route.name()));
    for device in [&mut device as &mut dyn Device, &mut emulated] {
        device.clear_slot(SlotId(0)).expect("the slot is there");
    }
    assert_eq!(logits(&mut device, 0, 0, &ids), logits(&mut emulated, 0, 0, &ids), "a prompt");
    assert_eq!(logits(&mut device, 0, 100, &ids[..7]), logits(&mut emulated, 0, 100, &ids[..7]), "a short chunk");
    for position in 107..111 {
        let id = [position as u32];
        assert_eq!(logits(&mut device, 0, position, &id), logits(&mut emulated, 0, position, &id), "{position}");
    }
    assert_eq!(session.violations(), Vec::<String>::new());
    drop(device);
    assert_eq!(session.allocated(), 0, "every buffer is given back");
    assert_eq!(session.violations(), Vec::<String>::new());
    session.seen()
}

#[test]
fn logits_of_weights_in_place_are_those_of_the_emulated_driver_bit_by_bit() {
    let seen = same_as_emulated(Settings::default(), MatrixRoute::Simdgroup, aligned());
    assert!(seen.no_copy > 0);
}

#[test]
fn logits_of_views_within_a_small_limit_are_those_of_the_emulated_driver_bit_by_bit() {
    let seen =
        same_as_emulated(Settings { max_buffer: 2 << 20, ..Settings::default() }, MatrixRoute::Simdgroup, aligned());
    assert!(seen.no_copy > 1, "{} views", seen.no_copy);
}

#[test]
fn logits_of_unaligned_weights_are_those_of_the_emulated_driver_bit_by_bit() {
    let seen = same_as_emulated(Settings::default(), MatrixRoute::Simdgroup, tiny());
    assert_eq!(seen.no_copy, 0);
}

#[test]
fn logits_on_tensor_operations_are_those_of_the_emulated_driver_bit_by_bit() {
    same_as_emulated(m5(), MatrixRoute::Tensor, tiny());
}

#[test]
fn the_miniature_says_what_it_says_on_the_processor() {
    let session = Session::start(Settings::default());
    let checkpoint = checkpoint("assets/mini");
    let ids = prompt(24);
    let options = CpuOptions { threads: 0, precision: Precision::F32, capacity: CAPACITY };
    let mut cpu = CpuDevice::new(checkpoint.clone(), options).expect("the processor starts");
    let expected = greedy(&mut cpu, &ids, 8);
    let mut device = metal(&session, &checkpoint).expect("the device starts");
    assert_eq!(greedy(&mut device, &ids, 8), expected);
    assert_eq!(session.violations(), Vec::<String>::new());
}

#[test]
fn every_access_of_a_step_is_ordered_by_the_barriers() {
    let session = Session::start(Settings { check: Check::On, ..Settings::default() });
    let mut device = metal(&session, &tiny()).expect("the device starts");
    logits(&mut device, 0, 0, &prompt(20));
    logits(&mut device, 0, 20, &[5]);
    assert_eq!(session.violations(), Vec::<String>::new());
}

#[test]
fn two_steps_in_flight_give_the_tokens_of_one_after_the_other() {
    let session = Session::start(Settings::default());
    let checkpoint = tiny();
    let mut device = metal(&session, &checkpoint).expect("the device starts");
    let ids = prompt(30);
    let expected = greedy(&mut device, &ids, 6);
    device.clear_slot(SlotId(0)).expect("the slot is there");
    let mut found = Vec::new();
    submit(&mut device, 0, 0, Tokens::Ids(&ids), ids.len(), Output::Argmax).expect("the prompt starts");
    for i in 0..5 {
        submit(&mut device, 0, ids.len() + i, Tokens::Previous, 1, Output::Argmax).expect("a step starts");
        assert!(session.seen().most_waiting >= 2);
        found.extend(finished(&mut device).tokens);
    }
    found.extend(finished(&mut device).tokens);
    assert_eq!(found, expected);
    assert_eq!(session.violations(), Vec::<String>::new());
}

#[test]
fn a_long_prompt_goes_in_several_command_buffers_and_a_token_in_one() {
    let session = Session::start(Settings::default());
    let mut device = metal(&session, &tiny()).expect("the device starts");
    let buffers = |device: &mut GpuDevice<Metal>, start: usize, ids: &[u32]| {
        let before = session.seen().command_buffers;
        let output = Output::Argmax;
        submit(device, 0, start, Tokens::Ids(ids), ids.len(), output).expect("the step starts");
        finished(device);
        session.seen().command_buffers - before
    };
    let ids = prompt(128);
    buffers(&mut device, 0, &ids);
    // A GPU on which the prompt takes four times as long as a command buffer may.
    let ns_per_thread = 4.0 * split::TARGET_NS as f64 / session.seen().threads as f64;
    session.set(|settings| settings.ns_per_thread = ns_per_thread);
    // There are two sets of inputs, each with its own program: from the third step on both have been measured.
    let prompts: Vec<usize> = (0..3).map(|_| buffers(&mut device, 0, &ids)).collect();
    assert!(prompts[2] >= 5, "{prompts:?}");
    let tokens: Vec<usize> = (128..132).map(|position| buffers(&mut device, position, &[3])).collect();
    assert_eq!(tokens[2..], [1, 1], "{tokens:?}");
    assert_eq!(session.violations(), Vec::<String>::new());
}

#[test]
fn states_are_copied_and_cleared_in_order_with_steps() {
    let session = Session::start(Settings::default());
    let mut device = metal(&session, &tiny()).expect("the device starts");
    let ids = prompt(40);
    submit(&mut device, 0, 0, Tokens::Ids(&ids), ids.len(), Output::Argmax).expect("the prompt starts");
    device.copy_slot(SlotId(0), SlotId(2)).expect("copied behind the step");
    finished(&mut device);
    let state = device.read_slot(SlotId(0)).expect("read");
    assert!(state.iter().any(|&byte| byte != 0));
    assert_eq!(device.read_slot(SlotId(2)).expect("read"), state);
    device.clear_slot(SlotId(0)).expect("cleared");
    assert!(device.read_slot(SlotId(0)).expect("read").iter().all(|&byte| byte == 0));
    device.write_slot(SlotId(0), &state).expect("written");
    assert_eq!(device.read_slot(SlotId(0)).expect("read"), state);
    assert_eq!(session.violations(), Vec::<String>::new());
}
