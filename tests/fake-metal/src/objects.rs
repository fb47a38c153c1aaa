//! Device, buffers, libraries, pipelines, archives and residency sets.

use std::collections::HashSet;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use block2::DynBlock;
use msl::emulate::{Contents, EmulatedBuffer, Library, Options};
use objc2::rc::{Allocated, Retained};
use objc2::runtime::{AnyObject, NSObject, ProtocolObject};
use objc2::{AnyThread, ClassType, DefinedClass, define_class, msg_send};
use objc2_foundation::{NSString, NSURL};
use objc2_metal::{
    MTLAllocation, MTLBuffer, MTLFunction, MTLGPUFamily, MTLLanguageVersion, MTLMathMode, MTLPipelineOption,
    MTLResourceOptions,
};

use crate::encoder::Queue;
use crate::execute::{Kernel, locked};
use crate::foundation::{Array, Failure, Url};
use crate::machine::{self, Region, violation};

/// Bytes of a page of Apple silicon.
const PAGE: usize = 16 * 1024;

/// What a caller may want to hear when a buffer goes.
type Deallocator = DynBlock<dyn Fn(NonNull<c_void>, usize)>;

/// An object of one of this crate's classes, seen as that class.
pub fn as_fake<T: ClassType>(object: &AnyObject) -> &T {
    assert!(std::ptr::eq(object.class(), T::class()), "a {:?}", object.class());
    // SAFETY: the class was checked.
    unsafe { &*std::ptr::from_ref(object).cast::<T>() }
}

/// The memory of a buffer.
pub fn region(buffer: &ProtocolObject<dyn MTLBuffer>) -> Arc<Region> {
    as_fake::<Buffer>(buffer.as_ref()).ivars().region.clone()
}

/// A compiled source and its text, by which archives know it.
pub struct Compiled {
    library: Library,
    text: String,
}

define_class!(
    #[unsafe(super(NSObject))]
    #[name = "FakeDevice"]
    pub struct Device;

    impl Device {
        #[unsafe(method_id(name))]
        fn name(&self) -> Retained<NSString> {
            NSString::from_str("Fake M4")
        }

        #[unsafe(method(supportsFamily:))]
        fn supports(&self, family: MTLGPUFamily) -> bool {
            family.0 > 1000 && family.0 <= 1000 + machine::settings().family as isize
        }

        #[unsafe(method(recommendedMaxWorkingSetSize))]
        fn working_set(&self) -> u64 {
            machine::settings().working_set
        }

        #[unsafe(method(maxBufferLength))]
        fn max_buffer(&self) -> usize {
            machine::settings().max_buffer
        }

        #[unsafe(method(currentAllocatedSize))]
        fn allocated(&self) -> usize {
            machine::with(|machine| machine.allocated as usize)
        }

        #[unsafe(method_id(newCommandQueue))]
        fn queue(&self) -> Option<Retained<Queue>> {
            Some(Queue::make())
        }

        #[unsafe(method_id(newFence))]
        fn fence(&self) -> Option<Retained<Fence>> {
            let this = Fence::alloc().set_ivars(());
            Some(unsafe { msg_send![super(this), init] })
        }

        #[unsafe(method_id(newBufferWithLength:options:))]
        fn buffer(&self, length: usize, options: MTLResourceOptions) -> Option<Retained<Buffer>> {
            self.new_buffer(length, options)
        }

        #[unsafe(method_id(newBufferWithBytesNoCopy:length:options:deallocator:))]
        fn no_copy(
            &self,
            pointer: NonNull<c_void>,
            length: usize,
            options: MTLResourceOptions,
            _deallocator: Option<&Deallocator>,
        ) -> Option<Retained<Buffer>> {
            self.wrap(pointer, length, options, _deallocator)
        }

        #[unsafe(method_id(newLibraryWithSource:options:error:))]
        fn library(
            &self,
            source: &NSString,
            options: Option<&AnyObject>,
            error: *mut *mut Failure,
        ) -> Option<Retained<FakeLibrary>> {
            self.compile(source, options, error)
        }

        #[unsafe(method_id(newComputePipelineStateWithDescriptor:options:reflection:error:))]
        fn pipeline(
            &self,
            descriptor: &AnyObject,
            _options: MTLPipelineOption,
            _reflection: *mut *mut AnyObject,
            error: *mut *mut Failure,
        ) -> Option<Retained<Pipeline>> {
            self.build(descriptor, _options, _reflection, error)
        }

        #[unsafe(method_id(newResidencySetWithDescriptor:error:))]
        fn residency_set(&self, _descriptor: &AnyObject, _error: *mut *mut Failure) -> Option<Retained<ResidencySet>> {
            let this = ResidencySet::alloc().set_ivars(Mutex::default());
            Some(unsafe { msg_send![super(this), init] })
        }

        #[unsafe(method_id(newBinaryArchiveWithDescriptor:error:))]
        fn archive(&self, descriptor: &AnyObject, error: *mut *mut Failure) -> Option<Retained<Archive>> {
            self.open_archive(descriptor, error)
        }
    }
);

impl Device {
    fn new_buffer(&self, length: usize, options: MTLResourceOptions) -> Option<Retained<Buffer>> {
        check_options(options);
        if length == 0 {
            violation("a buffer of 0 bytes");
            return None;
        }
        // What a new buffer holds is nothing to rely on.
        let memory = EmulatedBuffer::zeroed(length);
        memory.write(0, &vec![0xff; length]);
        Buffer::make(memory, length)
    }

    fn wrap(
        &self,
        pointer: NonNull<c_void>,
        length: usize,
        options: MTLResourceOptions,
        _deallocator: Option<&Deallocator>,
    ) -> Option<Retained<Buffer>> {
        check_options(options);
        if !(pointer.as_ptr() as usize).is_multiple_of(PAGE) || !length.is_multiple_of(PAGE) {
            violation(format!("no copy of {length} bytes at {pointer:?}: both must be multiples of {PAGE}"));
            return None;
        }
        // SAFETY: the driver keeps the memory as long as the buffer lives.
        let memory = unsafe { EmulatedBuffer::from_raw(pointer.cast(), length, Contents::ReadOnly) };
        machine::with(|machine| machine.seen.no_copy += 1);
        Buffer::make(memory, length)
    }

    fn compile(
        &self,
        source: &NSString,
        options: Option<&AnyObject>,
        error: *mut *mut Failure,
    ) -> Option<Retained<FakeLibrary>> {
        let version = options.and_then(|options| *locked(as_fake::<CompileOptions>(options).ivars()));
        let Some(version) = version else {
            violation("a compilation without a language version");
            return None;
        };
        let version = ((version.0 >> 16) * 100 + (version.0 & 0xffff) * 10) as u32;
        let text = source.to_string();
        let unit = msl::Source::new("source", text.clone()).metal_version(version);
        let settings = machine::settings();
        let compiled = Library::compile(&unit, &Options { check: settings.check, ..Options::default() });
        match compiled {
            Ok(library) => {
                let this = FakeLibrary::alloc().set_ivars(Arc::new(Compiled { library, text }));
                Some(unsafe { msg_send![super(this), init] })
            }
            Err(msl::Error::Syntax { line, message, .. }) => {
                Failure::give(error, &format!("program_source:{line}:1: error: {message}"));
                None
            }
            Err(other) => {
                Failure::give(error, &other.to_string());
                None
            }
        }
    }

    fn build(
        &self,
        descriptor: &AnyObject,
        _options: MTLPipelineOption,
        _reflection: *mut *mut AnyObject,
        error: *mut *mut Failure,
    ) -> Option<Retained<Pipeline>> {
        let descriptor = locked(as_fake::<PipelineDescriptor>(descriptor).ivars());
        let Some(kernel) = descriptor.kernel.clone() else {
            Failure::give(error, "the descriptor has no function");
            return None;
        };
        machine::with(|machine| match descriptor.known {
            true => machine.seen.from_archive += 1,
            false => machine.seen.compiled += 1,
        });
        let this = Pipeline::alloc().set_ivars(kernel);
        Some(unsafe { msg_send![super(this), init] })
    }

    fn open_archive(&self, descriptor: &AnyObject, error: *mut *mut Failure) -> Option<Retained<Archive>> {
        let path = locked(as_fake::<ArchiveDescriptor>(descriptor).ivars()).clone();
        let mut known = HashSet::new();
        if let Some(path) = path {
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            let Some(lines) = text.strip_prefix("fake archive\n") else {
                Failure::give(error, "not an archive");
                return None;
            };
            known.extend(lines.lines().map(str::to_string));
        }
        let this = Archive::alloc().set_ivars(Mutex::new(known));
        Some(unsafe { msg_send![super(this), init] })
    }
}

fn check_options(options: MTLResourceOptions) {
    let wanted = MTLResourceOptions::StorageModeShared | MTLResourceOptions::HazardTrackingModeUntracked;
    if options != wanted {
        violation(format!("a buffer with options {options:?}"));
    }
}

/// The system's GPU.
#[unsafe(no_mangle)]
extern "C-unwind" fn MTLCreateSystemDefaultDevice() -> *mut Device {
    let this = Device::alloc().set_ivars(());
    // SAFETY: NSObject's init.
    let device: Retained<Device> = unsafe { msg_send![super(this), init] };
    Retained::into_raw(device)
}

define_class!(
    #[unsafe(super(NSObject))]
    #[name = "FakeFence"]
    pub struct Fence;
);

pub struct BufferState {
    region: Arc<Region>,
    length: usize,
}

impl Drop for BufferState {
    fn drop(&mut self) {
        machine::with(|machine| machine.allocated = machine.allocated.saturating_sub(self.length as u64));
    }
}

define_class!(
    #[unsafe(super(NSObject))]
    #[name = "FakeBuffer"]
    #[ivars = BufferState]
    pub struct Buffer;

    impl Buffer {
        #[unsafe(method(length))]
        fn length(&self) -> usize {
            self.ivars().length
        }

        #[unsafe(method(contents))]
        fn contents(&self) -> NonNull<c_void> {
            NonNull::new(self.ivars().region.memory.as_ptr().cast()).expect("memory")
        }
    }
);

impl Buffer {
    fn make(memory: EmulatedBuffer, length: usize) -> Option<Retained<Self>> {
        let id = machine::with(|machine| {
            let fits = machine.allocated + length as u64 <= machine.settings.memory;
            if length > machine.settings.max_buffer {
                machine.violations.push(format!("a buffer of {length} bytes"));
            }
            machine.regions += 1;
            fits.then(|| {
                machine.allocated += length as u64;
                machine.regions
            })
        })?;
        let region = Arc::new(Region { id, memory });
        let this = Self::alloc().set_ivars(BufferState { region, length });
        // SAFETY: NSObject's init.
        Some(unsafe { msg_send![super(this), init] })
    }
}

define_class!(
    #[unsafe(super(NSObject))]
    #[name = "MTLCompileOptions"]
    #[ivars = Mutex<Option<MTLLanguageVersion>>]
    struct CompileOptions;

    impl CompileOptions {
        #[unsafe(method_id(init))]
        fn init(this: Allocated<Self>) -> Option<Retained<Self>> {
            let this = this.set_ivars(Mutex::default());
            unsafe { msg_send![super(this), init] }
        }

        #[unsafe(method(setLanguageVersion:))]
        fn set_version(&self, version: MTLLanguageVersion) {
            *locked(self.ivars()) = Some(version);
        }

        #[unsafe(method(setMathMode:))]
        fn set_math_mode(&self, _mode: MTLMathMode) {}
    }
);

define_class!(
    #[unsafe(super(NSObject))]
    #[name = "FakeLibrary"]
    #[ivars = Arc<Compiled>]
    pub struct FakeLibrary;

    impl FakeLibrary {
        #[unsafe(method_id(newFunctionWithName:))]
        fn function(&self, name: &NSString) -> Option<Retained<Function>> {
            let (compiled, name) = (self.ivars(), name.to_string());
            compiled.library.kernel(&name).is_ok().then(|| {
                let this = Function::alloc().set_ivars((compiled.clone(), name));
                unsafe { msg_send![super(this), init] }
            })
        }
    }
);

define_class!(
    #[unsafe(super(NSObject))]
    #[name = "FakeFunction"]
    #[ivars = (Arc<Compiled>, String)]
    pub struct Function;
);

#[derive(Default)]
struct PipelineParts {
    kernel: Option<Arc<Kernel>>,
    /// What an archive knows it by.
    key: String,
    /// Whether an archive that was given has it.
    known: bool,
}

define_class!(
    #[unsafe(super(NSObject))]
    #[name = "MTLComputePipelineDescriptor"]
    #[ivars = Mutex<PipelineParts>]
    struct PipelineDescriptor;

    impl PipelineDescriptor {
        #[unsafe(method_id(init))]
        fn init(this: Allocated<Self>) -> Option<Retained<Self>> {
            let this = this.set_ivars(Mutex::default());
            unsafe { msg_send![super(this), init] }
        }

        #[unsafe(method(setLabel:))]
        fn set_label(&self, _label: Option<&NSString>) {}

        #[unsafe(method(setComputeFunction:))]
        fn set_function(&self, function: Option<&ProtocolObject<dyn MTLFunction>>) {
            let Some(function) = function else { return };
            let (compiled, name) = as_fake::<Function>(function.as_ref()).ivars();
            let mut parts = locked(self.ivars());
            parts.kernel = Some(Arc::new(Kernel { library: compiled.library.clone(), name: name.clone() }));
            parts.key = format!("{name} of {} bytes", compiled.text.len());
        }

        #[unsafe(method(setBinaryArchives:))]
        fn set_archives(&self, archives: Option<&AnyObject>) {
            let mut parts = locked(self.ivars());
            let archives = archives.map(|archives| as_fake::<Array>(archives).items()).unwrap_or_default();
            parts.known = archives.iter().any(|a| locked(as_fake::<Archive>(a).ivars()).contains(&parts.key));
        }
    }
);

define_class!(
    #[unsafe(super(NSObject))]
    #[name = "FakePipeline"]
    #[ivars = Arc<Kernel>]
    pub struct Pipeline;

    impl Pipeline {
        #[unsafe(method(maxTotalThreadsPerThreadgroup))]
        fn max_threads(&self) -> usize {
            machine::settings().max_threads
        }

        #[unsafe(method(threadExecutionWidth))]
        fn width(&self) -> usize {
            32
        }
    }
);

impl Pipeline {
    pub fn kernel(&self) -> Arc<Kernel> {
        self.ivars().clone()
    }
}

define_class!(
    #[unsafe(super(NSObject))]
    #[name = "MTLBinaryArchiveDescriptor"]
    #[ivars = Mutex<Option<String>>]
    struct ArchiveDescriptor;

    impl ArchiveDescriptor {
        #[unsafe(method_id(init))]
        fn init(this: Allocated<Self>) -> Option<Retained<Self>> {
            let this = this.set_ivars(Mutex::default());
            unsafe { msg_send![super(this), init] }
        }

        #[unsafe(method(setUrl:))]
        fn set_url(&self, url: Option<&NSURL>) {
            *locked(self.ivars()) = url.map(|url| as_fake::<Url>(url.as_ref()).path().to_string());
        }
    }
);

define_class!(
    #[unsafe(super(NSObject))]
    #[name = "FakeArchive"]
    #[ivars = Mutex<HashSet<String>>]
    pub struct Archive;

    impl Archive {
        #[unsafe(method(addComputePipelineFunctionsWithDescriptor:error:))]
        fn add(&self, descriptor: &AnyObject, _error: *mut *mut Failure) -> bool {
            let key = locked(as_fake::<PipelineDescriptor>(descriptor).ivars()).key.clone();
            locked(self.ivars()).insert(key);
            true
        }

        #[unsafe(method(serializeToURL:error:))]
        fn serialize(&self, url: &NSURL, error: *mut *mut Failure) -> bool {
            let mut lines: Vec<String> = locked(self.ivars()).iter().cloned().collect();
            lines.sort();
            let text = format!("fake archive\n{}\n", lines.join("\n"));
            let written = std::fs::write(as_fake::<Url>(url.as_ref()).path(), text);
            if let Err(reason) = &written {
                Failure::give(error, &reason.to_string());
            }
            written.is_ok()
        }
    }
);

define_class!(
    #[unsafe(super(NSObject))]
    #[name = "MTLResidencySetDescriptor"]
    struct ResidencyDescriptor;
);

define_class!(
    #[unsafe(super(NSObject))]
    #[name = "FakeResidencySet"]
    #[ivars = Mutex<HashSet<usize>>]
    pub struct ResidencySet;

    impl ResidencySet {
        #[unsafe(method(addAllocation:))]
        fn add(&self, allocation: &ProtocolObject<dyn MTLAllocation>) {
            locked(self.ivars()).insert(as_fake::<Buffer>(allocation.as_ref()).ivars().region.id);
        }

        #[unsafe(method(removeAllocation:))]
        fn remove(&self, allocation: &ProtocolObject<dyn MTLAllocation>) {
            locked(self.ivars()).remove(&as_fake::<Buffer>(allocation.as_ref()).ivars().region.id);
        }

        #[unsafe(method(commit))]
        fn commit(&self) {
            let regions = locked(self.ivars()).clone();
            machine::with(|machine| machine.resident = regions);
        }

        #[unsafe(method(requestResidency))]
        fn request(&self) {
            machine::with(|machine| machine.seen.requests += 1);
        }

        #[unsafe(method(endResidency))]
        fn end(&self) {
            machine::with(|machine| machine.resident.clear());
        }
    }
);

pub fn install() {
    let classes = [
        CompileOptions::class(),
        PipelineDescriptor::class(),
        ArchiveDescriptor::class(),
        ResidencyDescriptor::class(),
        Device::class(),
    ];
    for class in classes {
        assert!(class.superclass().is_some());
    }
}
