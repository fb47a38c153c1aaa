//! The fake catches what it is there to catch: each mistake is made once, on purpose.

mod common;

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

use common::{logits, metal, prompt, tiny};
use fake_metal::driver::Driver;
use fake_metal::machine::{Session, Settings};
use fake_metal::program::Program;
use lily_gpu::shape::StepShape;
use lily_model::graph::Phase;
use msl::emulate::Check;
use objc2::msg_send;
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::{AnyObject, ProtocolObject};
use objc2_metal::{
    MTLCommandBuffer, MTLCommandBufferDescriptor, MTLCommandEncoder, MTLCommandQueue, MTLComputeCommandEncoder,
    MTLCreateSystemDefaultDevice, MTLDevice, MTLDispatchType, MTLResourceOptions,
};

const DECODE: StepShape = StepShape {
    phase: Phase::Decode,
    rows: 1,
    logit_rows: 1,
    blocks: 1,
    table: 4,
    segments: 1,
    segment_rows: 1,
    set: 0,
};

/// Violations when a decode step runs as `change` made it.
fn changed(check: Check, change: impl FnOnce(&mut Program)) -> Vec<String> {
    let session = Session::start(Settings { check, ..Settings::default() });
    let mut device = metal(&session, &tiny()).expect("the device starts");
    logits(&mut device, 0, 0, &prompt(8));
    logits(&mut device, 0, 8, &[1]);
    assert_eq!(session.violations(), Vec::<String>::new());
    let mut program = device.program(DECODE);
    change(&mut program);
    let driver = device.driver_mut();
    let program = driver.prepare(&Arc::new(program)).expect("prepared");
    driver.submit(program).expect("submitted");
    driver.wait().expect("finished");
    session.violations()
}

fn contains(violations: &[String], words: &str) {
    assert!(violations.iter().any(|violation| violation.contains(words)), "{words} is not in {violations:#?}");
}

#[test]
fn a_missing_barrier() {
    let violations = changed(Check::On, |program| {
        let all = program.stages.iter().flatten().copied().collect();
        program.stages = vec![all];
    });
    contains(&violations, "no barrier between two dispatches");
}

#[test]
fn an_unbound_buffer() {
    let violations = changed(Check::Off, |program| program.dispatches[0].bindings.truncate(1));
    contains(&violations, "is unbound");
}

#[test]
fn a_buffer_left_over_from_an_earlier_dispatch() {
    let violations = changed(Check::Off, |program| {
        let last = program.dispatches.len() - 1;
        program.dispatches[last].bindings.remove(0);
    });
    contains(&violations, "was bound for an earlier dispatch");
}

type CommandBuffer = Retained<ProtocolObject<dyn MTLCommandBuffer>>;
type Encoder = Retained<ProtocolObject<dyn MTLComputeCommandEncoder>>;

/// Violations of what is done with an encoder.
fn encoding(body: impl FnOnce(CommandBuffer, Encoder)) -> Vec<String> {
    let session = Session::start(Settings::default());
    autoreleasepool(|_| {
        let device = MTLCreateSystemDefaultDevice().expect("a device");
        let queue = device.newCommandQueue().expect("a queue");
        let buffer = queue.commandBufferWithDescriptor(&MTLCommandBufferDescriptor::new()).expect("a command buffer");
        let encoder = buffer.computeCommandEncoderWithDispatchType(MTLDispatchType::Concurrent).expect("an encoder");
        body(buffer, encoder);
    });
    session.violations()
}

#[test]
fn an_open_encoder() {
    let violations = encoding(|buffer, _encoder| buffer.commit());
    contains(&violations, "committed with an open encoder");
    contains(&violations, "released without endEncoding");
}

#[test]
fn a_closed_encoder() {
    let violations = encoding(|_buffer, encoder| {
        encoder.endEncoding();
        encoder.memoryBarrierWithScope(objc2_metal::MTLBarrierScope::Buffers);
    });
    contains(&violations, "encoding after endEncoding");
}

#[test]
fn encoders_without_a_fence() {
    let violations = encoding(|buffer, encoder| {
        encoder.endEncoding();
        let second = buffer.computeCommandEncoderWithDispatchType(MTLDispatchType::Concurrent).expect("an encoder");
        second.endEncoding();
        buffer.commit();
        buffer.waitUntilCompleted();
    });
    contains(&violations, "did not update the fence");
}

#[test]
fn a_wait_for_what_was_not_committed() {
    let violations = encoding(|buffer, encoder| {
        encoder.endEncoding();
        buffer.waitUntilCompleted();
    });
    contains(&violations, "was not committed");
}

#[test]
fn an_unaligned_pointer_without_copy() {
    let session = Session::start(Settings::default());
    let device = MTLCreateSystemDefaultDevice().expect("a device");
    let memory = vec![0u8; 64 * 1024];
    let odd = memory.as_ptr() as usize / 16384 * 16384 + 16384 + 4096;
    let pointer = NonNull::new(odd as *mut c_void).expect("memory");
    let options = MTLResourceOptions::StorageModeShared | MTLResourceOptions::HazardTrackingModeUntracked;
    // SAFETY: the fake refuses the pointer and does not read from it.
    let buffer = unsafe { device.newBufferWithBytesNoCopy_length_options_deallocator(pointer, 16384, options, None) };
    assert!(buffer.is_none());
    contains(&session.violations(), "must be multiples of 16384");
}

#[test]
#[should_panic(expected = "method not found")]
fn a_selector_that_metal_lacks() {
    let _session = Session::start(Settings::default());
    let device = MTLCreateSystemDefaultDevice().expect("a device");
    let object: &AnyObject = device.as_ref();
    // SAFETY: the message is refused before it is sent.
    let () = unsafe { msg_send![object, explode] };
}
