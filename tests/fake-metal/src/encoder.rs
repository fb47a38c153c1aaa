//! Command queue, command buffers and encoders.

use std::sync::{Arc, Mutex};

use objc2::rc::{Allocated, Retained};
use objc2::runtime::{AnyObject, NSObject, ProtocolObject};
use objc2::{AnyThread, ClassType, DefinedClass, define_class, msg_send};
use objc2_foundation::{NSRange, NSString};
use objc2_metal::{
    MTLBarrierScope, MTLBuffer, MTLCommandBufferErrorOption, MTLCommandBufferStatus, MTLCommandEncoderErrorState,
    MTLComputePipelineState, MTLDispatchType, MTLFence, MTLResidencySet, MTLSize,
};

use crate::execute::{Command, Held, Recorded, Work, finish, locked};
use crate::foundation::{Array, Dictionary, Failure};
use crate::machine::{self, violation};
use crate::objects::{Pipeline, as_fake, region};

#[unsafe(no_mangle)]
static mut MTLCommandBufferErrorDomain: *const AnyObject = std::ptr::null();
#[unsafe(no_mangle)]
static mut MTLCommandBufferEncoderInfoErrorKey: *const AnyObject = std::ptr::null();

const DOMAIN: &str = "MTLCommandBufferErrorDomain";
const INFO_KEY: &str = "MTLCommandBufferEncoderInfoErrorKey";

define_class!(
    #[unsafe(super(NSObject))]
    #[name = "FakeQueue"]
    pub struct Queue;

    impl Queue {
        #[unsafe(method_id(commandBufferWithDescriptor:))]
        fn command_buffer(&self, descriptor: &AnyObject) -> Option<Retained<CommandBuffer>> {
            let descriptor: &CommandBufferDescriptor = as_fake(descriptor);
            let work = Work::default();
            {
                let mut state = locked(&work.state);
                let options = *locked(descriptor.ivars());
                (state.unretained, state.encoder_status) = (!options.0, options.1);
            }
            let this = CommandBuffer::alloc().set_ivars(Arc::new(work));
            Some(unsafe { msg_send![super(this), init] })
        }

        #[unsafe(method(addResidencySet:))]
        fn add_residency_set(&self, _set: &ProtocolObject<dyn MTLResidencySet>) {}
    }
);

define_class!(
    #[unsafe(super(NSObject))]
    #[name = "MTLCommandBufferDescriptor"]
    #[ivars = Mutex<(bool, bool)>]
    struct CommandBufferDescriptor;

    impl CommandBufferDescriptor {
        #[unsafe(method_id(init))]
        fn init(this: Allocated<Self>) -> Option<Retained<Self>> {
            let this = this.set_ivars(Mutex::new((true, false)));
            unsafe { msg_send![super(this), init] }
        }

        #[unsafe(method(setRetainedReferences:))]
        fn set_retained(&self, retained: bool) {
            locked(self.ivars()).0 = retained;
        }

        #[unsafe(method(setErrorOptions:))]
        fn set_options(&self, options: MTLCommandBufferErrorOption) {
            locked(self.ivars()).1 = options.contains(MTLCommandBufferErrorOption::EncoderExecutionStatus);
        }
    }
);

define_class!(
    #[unsafe(super(NSObject))]
    #[name = "FakeCommandBuffer"]
    #[ivars = Arc<Work>]
    pub struct CommandBuffer;

    impl CommandBuffer {
        #[unsafe(method(setLabel:))]
        fn set_label(&self, label: Option<&NSString>) {
            locked(&self.ivars().state).label = label.map(ToString::to_string).unwrap_or_default();
        }

        #[unsafe(method_id(computeCommandEncoderWithDispatchType:))]
        fn compute(&self, form: MTLDispatchType) -> Option<Retained<Encoder>> {
            self.encoder(form == MTLDispatchType::Concurrent)
        }

        #[unsafe(method_id(blitCommandEncoder))]
        fn blit(&self) -> Option<Retained<Encoder>> {
            self.encoder(false)
        }

        #[unsafe(method(commit))]
        fn commit(&self) {
            let mut state = locked(&self.ivars().state);
            if state.committed {
                violation(format!("{}: committed twice", state.label));
                return;
            }
            if state.passes.iter().any(|pass| !locked(pass).ended) {
                violation(format!("{}: committed with an open encoder", state.label));
            }
            state.committed = true;
            machine::with(|machine| {
                machine.seen.command_buffers += 1;
                machine.queue.push_back(self.ivars().clone());
                machine.seen.most_waiting = machine.seen.most_waiting.max(machine.queue.len());
            });
        }

        #[unsafe(method(waitUntilCompleted))]
        fn wait(&self) {
            finish(self.ivars());
        }

        #[unsafe(method(status))]
        fn status(&self) -> MTLCommandBufferStatus {
            let state = locked(&self.ivars().state);
            match (state.committed, state.done, &state.failure) {
                (false, ..) => MTLCommandBufferStatus::NotEnqueued,
                (_, false, _) => MTLCommandBufferStatus::Committed,
                (_, true, None) => MTLCommandBufferStatus::Completed,
                (_, true, Some(_)) => MTLCommandBufferStatus::Error,
            }
        }

        #[unsafe(method_id(error))]
        fn error(&self) -> Option<Retained<Failure>> {
            self.failure()
        }

        #[unsafe(method(GPUStartTime))]
        fn start_time(&self) -> f64 {
            1.0
        }

        #[unsafe(method(GPUEndTime))]
        fn end_time(&self) -> f64 {
            1.0 + locked(&self.ivars().state).seconds
        }
    }
);

impl CommandBuffer {
    fn failure(&self) -> Option<Retained<Failure>> {
        let state = locked(&self.ivars().state);
        let failure = state.failure.as_ref()?;
        let mut info = Vec::new();
        if state.encoder_status {
            let infos = state.passes.iter().enumerate().map(|(i, pass)| {
                let error = match i.cmp(&failure.encoder) {
                    std::cmp::Ordering::Less => MTLCommandEncoderErrorState::Completed,
                    std::cmp::Ordering::Equal => MTLCommandEncoderErrorState::Faulted,
                    std::cmp::Ordering::Greater => MTLCommandEncoderErrorState::Pending,
                };
                let this = EncoderInfo::alloc().set_ivars((locked(pass).label.clone(), error));
                let info: Retained<EncoderInfo> = unsafe { msg_send![super(this), init] };
                Retained::into_super(Retained::into_super(info))
            });
            let infos: Retained<AnyObject> = Retained::into_super(Retained::into_super(Array::of(infos.collect())));
            info.push((INFO_KEY.to_string(), infos));
        }
        Some(Failure::of(DOMAIN, failure.code, &failure.words, Dictionary::of(info)))
    }

    fn encoder(&self, concurrent: bool) -> Option<Retained<Encoder>> {
        let mut state = locked(&self.ivars().state);
        if state.committed {
            violation(format!("{}: an encoder of a committed command buffer", state.label));
            return None;
        }
        if state.passes.iter().any(|pass| !locked(pass).ended) {
            violation(format!("{}: a second encoder while one is open", state.label));
        }
        let pass = Arc::new(Mutex::new(Recorded { concurrent, ..Recorded::default() }));
        state.passes.push(pass.clone());
        let unretained = state.unretained;
        let this = Encoder::alloc().set_ivars(EncoderState { pass, unretained });
        Some(unsafe { msg_send![super(this), init] })
    }
}

define_class!(
    #[unsafe(super(NSObject))]
    #[name = "FakeEncoderInfo"]
    #[ivars = (String, MTLCommandEncoderErrorState)]
    struct EncoderInfo;

    impl EncoderInfo {
        #[unsafe(method_id(label))]
        fn label(&self) -> Retained<NSString> {
            NSString::from_str(&self.ivars().0)
        }

        #[unsafe(method(errorState))]
        fn error_state(&self) -> MTLCommandEncoderErrorState {
            self.ivars().1
        }
    }
);

/// What an encoder writes to.
pub struct EncoderState {
    pass: Arc<Mutex<Recorded>>,
    unretained: bool,
}

impl Drop for EncoderState {
    fn drop(&mut self) {
        let pass = locked(&self.pass);
        if !pass.ended {
            violation(format!("{}: released without endEncoding", pass.label));
        }
    }
}

define_class!(
    #[unsafe(super(NSObject))]
    #[name = "FakeEncoder"]
    #[ivars = EncoderState]
    pub struct Encoder;

    impl Encoder {
        #[unsafe(method(setLabel:))]
        fn set_label(&self, label: Option<&NSString>) {
            locked(&self.ivars().pass).label = label.map(ToString::to_string).unwrap_or_default();
        }

        #[unsafe(method(setComputePipelineState:))]
        fn set_pipeline(&self, pipeline: &ProtocolObject<dyn MTLComputePipelineState>) {
            let pipeline: &Pipeline = as_fake(pipeline.as_ref());
            self.record(Command::Pipeline(pipeline.kernel()));
        }

        #[unsafe(method(setBuffer:offset:atIndex:))]
        fn set_buffer(&self, buffer: Option<&ProtocolObject<dyn MTLBuffer>>, offset: usize, index: usize) {
            let Some(buffer) = buffer else { return };
            let held = self.held(buffer);
            if offset >= buffer.length() {
                violation(format!("offset {offset} of a buffer of {}", buffer.length()));
            }
            if index > 30 {
                violation(format!("buffer index {index}"));
            }
            self.record(Command::Buffer { index, buffer: held, offset });
        }

        #[unsafe(method(dispatchThreadgroups:threadsPerThreadgroup:))]
        fn dispatch(&self, threadgroups: MTLSize, threads: MTLSize) {
            let sizes = |size: MTLSize| [size.width as u32, size.height as u32, size.depth as u32];
            self.record(Command::Dispatch { threadgroups: sizes(threadgroups), threads: sizes(threads) });
        }

        #[unsafe(method(memoryBarrierWithScope:))]
        fn barrier(&self, scope: MTLBarrierScope) {
            if scope != MTLBarrierScope::Buffers {
                violation("a barrier for something else than buffers");
            }
            self.record(Command::Barrier);
        }

        #[unsafe(method(waitForFence:))]
        fn wait(&self, _fence: &ProtocolObject<dyn MTLFence>) {
            self.record(Command::Wait);
        }

        #[unsafe(method(updateFence:))]
        fn update(&self, _fence: &ProtocolObject<dyn MTLFence>) {
            self.record(Command::Update);
        }

        #[unsafe(method(copyFromBuffer:sourceOffset:toBuffer:destinationOffset:size:))]
        fn copy(
            &self,
            from: &ProtocolObject<dyn MTLBuffer>,
            at: usize,
            to: &ProtocolObject<dyn MTLBuffer>,
            to_at: usize,
            bytes: usize,
        ) {
            if at + bytes > from.length() || to_at + bytes > to.length() {
                violation("a copy past the end of a buffer");
                return;
            }
            self.record(Command::Copy { from: self.held(from), at, to: self.held(to), to_at, bytes });
        }

        #[unsafe(method(fillBuffer:range:value:))]
        fn fill(&self, buffer: &ProtocolObject<dyn MTLBuffer>, range: NSRange, value: u8) {
            let range = range.location..range.location + range.length;
            if range.end > buffer.length() {
                violation("a fill past the end of a buffer");
                return;
            }
            self.record(Command::Fill { buffer: self.held(buffer), range, value });
        }

        #[unsafe(method(endEncoding))]
        fn end(&self) {
            let mut pass = locked(&self.ivars().pass);
            if pass.ended {
                violation(format!("{}: ended twice", pass.label));
            }
            pass.ended = true;
        }
    }
);

impl Encoder {
    fn record(&self, command: Command) {
        let mut pass = locked(&self.ivars().pass);
        if pass.ended {
            violation(format!("{}: encoding after endEncoding", pass.label));
            return;
        }
        pass.commands.push(command);
    }

    fn held(&self, buffer: &ProtocolObject<dyn MTLBuffer>) -> Held {
        let region = region(buffer);
        match self.ivars().unretained {
            true => Held::Weak(Arc::downgrade(&region)),
            false => Held::Strong(region),
        }
    }
}

impl Queue {
    pub fn make() -> Retained<Self> {
        let this = Self::alloc().set_ivars(());
        // SAFETY: NSObject's init.
        unsafe { msg_send![super(this), init] }
    }
}

pub fn install() {
    for class in [CommandBufferDescriptor::class(), Queue::class(), CommandBuffer::class(), Encoder::class()] {
        assert!(class.superclass().is_some());
    }
    // SAFETY: written once, before anybody reads them.
    unsafe {
        MTLCommandBufferErrorDomain = Retained::into_raw(NSString::from_str(DOMAIN)).cast();
        MTLCommandBufferEncoderInfoErrorKey = Retained::into_raw(NSString::from_str(INFO_KEY)).cast();
    }
}
