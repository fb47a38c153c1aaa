//! The part of Foundation that the driver meets: strings, arrays, errors, URLs, the system's version.

use std::ffi::{CString, c_char, c_void};
use std::ptr::NonNull;
use std::sync::Once;

use objc2::rc::{Allocated, Retained};
use objc2::runtime::{AnyClass, AnyObject, ClassBuilder, NSObject, Sel};
use objc2::{AnyThread, ClassType, DefinedClass, define_class, msg_send, sel};
use objc2_foundation::{NSOperatingSystemVersion, NSString};

use crate::{encoder, machine, objects, runtime};

define_class!(
    #[unsafe(super(NSObject))]
    #[name = "NSString"]
    #[ivars = CString]
    pub struct Text;

    impl Text {
        #[unsafe(method_id(initWithBytes:length:encoding:))]
        fn init_with_bytes(
            this: Allocated<Self>,
            bytes: *const c_void,
            length: usize,
            _encoding: i32,
        ) -> Option<Retained<Self>> {
            // SAFETY: the caller gives `length` bytes.
            let bytes = unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), length) };
            let this = this.set_ivars(CString::new(bytes).expect("text without NUL"));
            unsafe { msg_send![super(this), init] }
        }

        #[unsafe(method(UTF8String))]
        fn utf8(&self) -> *const c_char {
            self.ivars().as_ptr()
        }

        #[unsafe(method(lengthOfBytesUsingEncoding:))]
        fn length(&self, _encoding: i32) -> usize {
            self.ivars().as_bytes().len()
        }

        #[unsafe(method(isEqual:))]
        fn is_equal(&self, other: Option<&AnyObject>) -> bool {
            self.equals(other)
        }

        #[unsafe(method(isEqualToString:))]
        fn is_equal_to(&self, other: Option<&NSString>) -> bool {
            self.equals(other.map(|other| other.as_ref()))
        }
    }
);

impl Text {
    fn equals(&self, other: Option<&AnyObject>) -> bool {
        other.and_then(text).is_some_and(|text| text.as_bytes() == self.ivars().as_bytes())
    }
}

/// The text of a string object.
pub fn text(object: &AnyObject) -> Option<String> {
    let is_text = std::ptr::eq(object.class(), Text::class());
    // SAFETY: the class was checked.
    is_text.then(|| unsafe { &*std::ptr::from_ref(object).cast::<Text>() }.ivars().to_string_lossy().into_owned())
}

define_class!(
    #[unsafe(super(NSObject))]
    #[name = "NSArray"]
    #[ivars = Vec<Retained<AnyObject>>]
    pub struct Array;

    impl Array {
        #[unsafe(method_id(initWithObjects:count:))]
        fn init_with(
            this: Allocated<Self>,
            objects: *mut NonNull<AnyObject>,
            count: usize,
        ) -> Option<Retained<Self>> {
            // SAFETY: the caller gives `count` objects.
            let objects = (0..count).filter_map(|i| unsafe { Retained::retain((*objects.add(i)).as_ptr()) });
            let this = this.set_ivars(objects.collect());
            unsafe { msg_send![super(this), init] }
        }

        #[unsafe(method(count))]
        fn count(&self) -> usize {
            self.ivars().len()
        }

        #[unsafe(method_id(objectAtIndex:))]
        fn object_at(&self, index: usize) -> Retained<AnyObject> {
            self.ivars()[index].clone()
        }
    }
);

impl Array {
    pub fn of(objects: Vec<Retained<AnyObject>>) -> Retained<Self> {
        let this = Self::alloc().set_ivars(objects);
        // SAFETY: NSObject's init.
        unsafe { msg_send![super(this), init] }
    }

    pub fn items(&self) -> &[Retained<AnyObject>] {
        self.ivars()
    }
}

define_class!(
    #[unsafe(super(NSObject))]
    #[name = "NSDictionary"]
    #[ivars = Vec<(String, Retained<AnyObject>)>]
    pub struct Dictionary;

    impl Dictionary {
        #[unsafe(method_id(objectForKey:))]
        fn object_for(&self, key: &AnyObject) -> Option<Retained<AnyObject>> {
            let key = text(key);
            self.ivars().iter().find(|(name, _)| Some(name) == key.as_ref()).map(|(_, value)| value.clone())
        }
    }
);

impl Dictionary {
    pub fn of(pairs: Vec<(String, Retained<AnyObject>)>) -> Retained<Self> {
        let this = Self::alloc().set_ivars(pairs);
        // SAFETY: NSObject's init.
        unsafe { msg_send![super(this), init] }
    }
}

pub struct ErrorState {
    domain: String,
    code: isize,
    words: String,
    info: Retained<Dictionary>,
}

define_class!(
    #[unsafe(super(NSObject))]
    #[name = "NSError"]
    #[ivars = ErrorState]
    pub struct Failure;

    impl Failure {
        #[unsafe(method_id(domain))]
        fn domain(&self) -> Retained<NSString> {
            NSString::from_str(&self.ivars().domain)
        }

        #[unsafe(method(code))]
        fn code(&self) -> isize {
            self.ivars().code
        }

        #[unsafe(method_id(localizedDescription))]
        fn words(&self) -> Retained<NSString> {
            NSString::from_str(&self.ivars().words)
        }

        #[unsafe(method_id(userInfo))]
        fn info(&self) -> Retained<Dictionary> {
            self.ivars().info.clone()
        }
    }
);

impl Failure {
    pub fn of(domain: &str, code: isize, words: &str, info: Retained<Dictionary>) -> Retained<Self> {
        let state = ErrorState { domain: domain.into(), code, words: words.into(), info };
        let this = Self::alloc().set_ivars(state);
        // SAFETY: NSObject's init.
        unsafe { msg_send![super(this), init] }
    }

    /// Gives an error to a caller that asked for one.
    pub(crate) fn give(to: *mut *mut Failure, words: &str) {
        let error = Failure::of("fake", 1, words, Dictionary::of(Vec::new()));
        if !to.is_null() {
            // SAFETY: the caller's place for an autoreleased error.
            unsafe { *to = Retained::autorelease_ptr(error) };
        }
    }
}

define_class!(
    #[unsafe(super(NSObject))]
    #[name = "NSURL"]
    #[ivars = String]
    pub struct Url;

    impl Url {
        #[unsafe(method_id(fileURLWithPath:))]
        fn file(path: &NSString) -> Retained<Self> {
            let this = Self::alloc().set_ivars(path.to_string());
            unsafe { msg_send![super(this), init] }
        }
    }
);

impl Url {
    pub fn path(&self) -> &str {
        self.ivars()
    }
}

define_class!(
    #[unsafe(super(NSObject))]
    #[name = "NSProcessInfo"]
    struct Process;

    impl Process {
        #[unsafe(method_id(processInfo))]
        fn process() -> Retained<Self> {
            let this = Self::alloc().set_ivars(());
            unsafe { msg_send![super(this), init] }
        }

        #[unsafe(method(operatingSystemVersion))]
        fn version(&self) -> NSOperatingSystemVersion {
            let (major, minor) = machine::settings().macos;
            NSOperatingSystemVersion { majorVersion: major, minorVersion: minor, patchVersion: 0 }
        }
    }
);

extern "C-unwind" fn initialize(_class: &AnyClass, _sel: Sel) {}

extern "C-unwind" fn alloc(class: &AnyClass, _sel: Sel) -> *mut AnyObject {
    runtime::class_createInstance(std::ptr::from_ref(class).cast(), 0).cast()
}

extern "C-unwind" fn new(class: &AnyClass, _sel: Sel) -> *mut AnyObject {
    // SAFETY: the two messages that `new` stands for.
    unsafe {
        let object: *mut AnyObject = msg_send![class, alloc];
        msg_send![object, init]
    }
}

extern "C-unwind" fn init(object: NonNull<NSObject>, _sel: Sel) -> *mut AnyObject {
    object.as_ptr().cast()
}

extern "C-unwind" fn dealloc(object: NonNull<NSObject>, _sel: Sel) {
    runtime::object_dispose(object.as_ptr().cast());
}

/// Registers all classes. Everything that uses one calls this before.
pub fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let initialize: extern "C-unwind" fn(_, _) = initialize;
        let mut root = ClassBuilder::root(c"NSObject", initialize).expect("the first class");
        // SAFETY: the functions have the types of the methods.
        unsafe {
            root.add_class_method(sel!(alloc), alloc as extern "C-unwind" fn(_, _) -> _);
            root.add_class_method(sel!(new), new as extern "C-unwind" fn(_, _) -> _);
            root.add_method::<NSObject, _>(sel!(init), init as extern "C-unwind" fn(_, _) -> _);
            root.add_method::<NSObject, _>(sel!(dealloc), dealloc as extern "C-unwind" fn(_, _));
        }
        root.register();
        for class in [Text::class(), Array::class(), Dictionary::class(), Failure::class(), Url::class()] {
            assert!(class.superclass().is_some());
        }
        assert!(Process::class().superclass().is_some());
        objects::install();
        encoder::install();
    });
}
