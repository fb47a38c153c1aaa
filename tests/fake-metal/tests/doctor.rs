//! `lily doctor --device metal` as it will run on a Mac: every operation alone, through the driver.

mod common;

use fake_metal::GpuDevice;
use fake_metal::machine::{Session, Settings};
use fake_metal::metal::{Metal, MetalOptions};
use lily_gpu::doctor;

#[test]
fn the_doctor_finds_nothing_wrong_with_the_driver() {
    let session = Session::start(Settings::default());
    let checkpoint = common::tiny();
    let capacity = doctor::capacity(&checkpoint.model().config);
    let driver = Metal::new(MetalOptions::default()).expect("the driver starts");
    let mut device = GpuDevice::new(driver, checkpoint, capacity).expect("the device starts");
    let findings = doctor::examine(&mut device, 300, &mut |_| {});
    let wrong: Vec<_> = findings.iter().filter(|finding| !finding.is_ok()).collect();
    assert!(findings.len() > 20 && wrong.is_empty(), "{} findings, {wrong:#?}", findings.len());
    assert_eq!(session.violations(), Vec::<String>::new());
}
