//! Keeps all buffers resident. macOS takes memory away from a process whose GPU rests; a request every half second while
//! the device is in use prevents that, so that the first token after a pause does not wait for 19 GB.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_metal::{MTLAllocation, MTLBuffer, MTLCommandQueue, MTLDevice, MTLResidencySet, MTLResidencySetDescriptor};

use lily_model::device::DeviceError;

use super::super::failed;
use super::gpu::{Gpu, words};

/// Time between two requests.
const HEARTBEAT: Duration = Duration::from_millis(500);
/// How long after the last use requests go on.
const KEPT_FOR: Duration = Duration::from_secs(180);

/// The set of all buffers, and the thread that keeps it resident.
pub(super) struct Residency {
    shared: Arc<Mutex<Shared>>,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    set: Retained<ProtocolObject<dyn MTLResidencySet>>,
    changed: bool,
    used: Instant,
}

// SAFETY: residency sets have no thread of their own; the mutex around `Shared` lets one thread at a time call them.
unsafe impl Send for Shared {}

impl Residency {
    /// An empty set that belongs to the queue.
    pub fn new(gpu: &Gpu) -> Result<Self, DeviceError> {
        let set = gpu
            .device
            .newResidencySetWithDescriptor_error(&MTLResidencySetDescriptor::new())
            .map_err(|error| failed("residency set", words(&error)))?;
        gpu.queue.addResidencySet(&set);
        let shared = Arc::new(Mutex::new(Shared { set, changed: false, used: Instant::now() }));
        let (stop, stopped) = channel();
        let beating = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("metal residency".into()).spawn(move || {
            while stopped.recv_timeout(HEARTBEAT) == Err(RecvTimeoutError::Timeout) {
                let shared = locked(&beating);
                if shared.used.elapsed() < KEPT_FOR && !shared.changed {
                    autoreleasepool(|_| shared.set.requestResidency());
                }
            }
        });
        let thread = thread.map_err(|error| failed("residency thread", error))?;
        Ok(Residency { shared, stop: Some(stop), thread: Some(thread) })
    }

    /// Adds a buffer; it counts from the next [`Residency::ready`] on.
    pub fn add(&self, buffer: &ProtocolObject<dyn MTLBuffer>) {
        let mut shared = locked(&self.shared);
        shared.set.addAllocation(as_allocation(buffer));
        shared.changed = true;
    }

    /// Takes a buffer out.
    pub fn remove(&self, buffer: &ProtocolObject<dyn MTLBuffer>) {
        let mut shared = locked(&self.shared);
        shared.set.removeAllocation(as_allocation(buffer));
        shared.changed = true;
    }

    /// Makes everything resident, before work is committed.
    pub fn ready(&self) {
        let mut shared = locked(&self.shared);
        shared.used = Instant::now();
        if shared.changed {
            shared.set.commit();
            shared.set.requestResidency();
            shared.changed = false;
        }
    }
}

fn locked(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

fn as_allocation(buffer: &ProtocolObject<dyn MTLBuffer>) -> &ProtocolObject<dyn MTLAllocation> {
    ProtocolObject::from_ref(buffer)
}

impl Drop for Residency {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        locked(&self.shared).set.endResidency();
    }
}
