//! An Objective-C runtime: classes, methods, reference counts and autorelease pools, by the names and types that objc2
//! declares for GNUstep's. Nothing is ever unloaded.

use std::cell::{RefCell, UnsafeCell};
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_void};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError, RwLock};

/// What every object and class starts with.
#[repr(C)]
pub struct Object {
    isa: *const Class,
}

/// A class or metaclass; itself an object.
#[repr(C)]
pub struct Class {
    isa: *const Class,
    superclass: *const Class,
    name: CString,
    is_meta: bool,
    size: AtomicUsize,
    methods: RwLock<HashMap<usize, &'static Method>>,
    ivars: Mutex<Vec<&'static Ivar>>,
}

pub struct Method {
    name: Sel,
    imp: Imp,
    types: CString,
}

pub struct Ivar {
    name: CString,
    offset: usize,
    types: CString,
}

/// A selector is the address of its interned name.
type Sel = *const c_char;
type Imp = *const c_void;

// SAFETY: classes, methods and ivars are leaked and change only behind their locks.
unsafe impl Send for Class {}
// SAFETY: as above.
unsafe impl Sync for Class {}
// SAFETY: as above.
unsafe impl Sync for Method {}
// SAFETY: as above.
unsafe impl Send for Method {}

/// Memory of a class that others refer to by symbol.
struct Slot(UnsafeCell<MaybeUninit<Class>>);

// SAFETY: written once, when the class is allocated; from then on a class like any other.
unsafe impl Sync for Slot {}

/// Defines the symbols of classes, and `slot` to find them by name.
macro_rules! slots {
    ($($static:ident $symbol:literal $name:literal)*) => {
        $(
            #[unsafe(export_name = $symbol)]
            static $static: Slot = Slot(UnsafeCell::new(MaybeUninit::uninit()));
        )*

        fn slot(name: &[u8]) -> Option<*mut Class> {
            match name {
                $($name => Some($static.0.get().cast()),)*
                _ => None,
            }
        }
    };
}

slots! {
    OBJECT "._OBJC_CLASS_NSObject" b"NSObject"
    STRING "._OBJC_CLASS_NSString" b"NSString"
    ARRAY "._OBJC_CLASS_NSArray" b"NSArray"
    URL "._OBJC_CLASS_NSURL" b"NSURL"
    PROCESS "._OBJC_CLASS_NSProcessInfo" b"NSProcessInfo"
    ARCHIVE "._OBJC_CLASS_MTLBinaryArchiveDescriptor" b"MTLBinaryArchiveDescriptor"
    BUFFER "._OBJC_CLASS_MTLCommandBufferDescriptor" b"MTLCommandBufferDescriptor"
    OPTIONS "._OBJC_CLASS_MTLCompileOptions" b"MTLCompileOptions"
    PIPELINE "._OBJC_CLASS_MTLComputePipelineDescriptor" b"MTLComputePipelineDescriptor"
    RESIDENCY "._OBJC_CLASS_MTLResidencySetDescriptor" b"MTLResidencySetDescriptor"
}

/// Bytes before an object: its reference count, and padding to 16.
const HEADER: usize = 16;

static SELECTORS: LazyLock<Mutex<HashMap<CString, usize>>> = LazyLock::new(Mutex::default);
static CLASSES: LazyLock<RwLock<HashMap<CString, usize>>> = LazyLock::new(RwLock::default);

thread_local! {
    /// Objects to release, with null where a pool begins.
    static POOL: RefCell<Vec<*mut Object>> = const { RefCell::new(Vec::new()) };
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Class {
    fn method(&self, sel: Sel) -> Option<&'static Method> {
        let mut class: *const Class = self;
        // SAFETY: classes live for ever, a root's superclass is null.
        while let Some(found) = unsafe { class.as_ref() } {
            let methods = found.methods.read().unwrap_or_else(PoisonError::into_inner);
            if let Some(method) = methods.get(&(sel as usize)) {
                return Some(method);
            }
            class = found.superclass;
        }
        None
    }
}

fn text<'a>(name: *const c_char) -> &'a CStr {
    // SAFETY: callers pass C strings.
    unsafe { CStr::from_ptr(name) }
}

#[unsafe(no_mangle)]
extern "C" fn sel_registerName(name: *const c_char) -> Sel {
    let mut selectors = locked(&SELECTORS);
    let name = text(name);
    if let Some(&sel) = selectors.get(name) {
        return sel as Sel;
    }
    let sel = name.to_owned().into_raw();
    selectors.insert(name.to_owned(), sel as usize);
    sel
}

#[unsafe(no_mangle)]
extern "C" fn sel_getName(sel: Sel) -> *const c_char {
    sel
}

#[unsafe(no_mangle)]
extern "C" fn sel_isEqual(a: Sel, b: Sel) -> bool {
    a == b
}

#[unsafe(no_mangle)]
extern "C" fn objc_getClass(name: *const c_char) -> *const Class {
    let classes = CLASSES.read().unwrap_or_else(PoisonError::into_inner);
    classes.get(text(name)).map_or(std::ptr::null(), |&class| class as *const Class)
}

#[unsafe(no_mangle)]
extern "C" fn objc_getProtocol(_name: *const c_char) -> *const c_void {
    std::ptr::null()
}

#[unsafe(no_mangle)]
extern "C" fn objc_allocateClassPair(superclass: *const Class, name: *const c_char, _extra: usize) -> *mut Class {
    if !objc_getClass(name).is_null() {
        return std::ptr::null_mut();
    }
    // SAFETY: null or a class.
    let parent = unsafe { superclass.as_ref() };
    let build = |isa: *const Class, superclass: *const Class, is_meta: bool, size: usize| {
        let class = Class {
            isa,
            superclass,
            name: text(name).to_owned(),
            is_meta,
            size: AtomicUsize::new(size),
            methods: RwLock::default(),
            ivars: Mutex::default(),
        };
        match slot(text(name).to_bytes()) {
            Some(slot) if !is_meta => {
                // SAFETY: the slot is written once: a name is allocated once.
                unsafe { slot.write(class) };
                slot
            }
            _ => Box::into_raw(Box::new(class)),
        }
    };
    let size = parent.map_or(size_of::<Object>(), |p| p.size.load(Ordering::Relaxed));
    let meta = build(std::ptr::null(), parent.map_or(std::ptr::null(), |p| p.isa), true, 0);
    let class = build(meta, superclass, false, size);
    // SAFETY: both were just made and nobody else has them.
    unsafe {
        // The methods of a root's instances also answer for its class.
        if parent.is_none() {
            (*meta).superclass = class;
        }
        (*meta).isa = parent.map_or(meta, |p| (*p.isa).isa);
    }
    class
}

#[unsafe(no_mangle)]
extern "C" fn objc_registerClassPair(class: *mut Class) {
    // SAFETY: a class from `objc_allocateClassPair`.
    let name = unsafe { (*class).name.clone() };
    CLASSES.write().unwrap_or_else(PoisonError::into_inner).insert(name, class as usize);
}

#[unsafe(no_mangle)]
extern "C" fn objc_disposeClassPair(_class: *mut Class) {}

#[unsafe(no_mangle)]
extern "C" fn class_addMethod(class: *mut Class, name: Sel, imp: Imp, types: *const c_char) -> bool {
    // SAFETY: a class.
    let mut methods = unsafe { &*class }.methods.write().unwrap_or_else(PoisonError::into_inner);
    if methods.contains_key(&(name as usize)) {
        return false;
    }
    let method = Method { name, imp, types: text(types).to_owned() };
    methods.insert(name as usize, Box::leak(Box::new(method)));
    true
}

#[unsafe(no_mangle)]
extern "C" fn class_addIvar(
    class: *mut Class,
    name: *const c_char,
    size: usize,
    log2_alignment: u8,
    types: *const c_char,
) -> bool {
    // SAFETY: a class.
    let class = unsafe { &*class };
    let offset = class.size.load(Ordering::Relaxed).next_multiple_of(1 << log2_alignment);
    class.size.store(offset + size, Ordering::Relaxed);
    let ivar = Ivar { name: text(name).to_owned(), offset, types: text(types).to_owned() };
    locked(&class.ivars).push(Box::leak(Box::new(ivar)));
    true
}

#[unsafe(no_mangle)]
extern "C" fn class_addProtocol(_class: *mut Class, _protocol: *const c_void) -> bool {
    true
}

#[unsafe(no_mangle)]
extern "C" fn class_conformsToProtocol(_class: *const Class, _protocol: *const c_void) -> bool {
    true
}

#[unsafe(no_mangle)]
extern "C" fn class_getInstanceVariable(class: *const Class, name: *const c_char) -> *const Ivar {
    let mut class = class;
    // SAFETY: classes live for ever.
    while let Some(found) = unsafe { class.as_ref() } {
        if let Some(ivar) = locked(&found.ivars).iter().find(|ivar| ivar.name.as_c_str() == text(name)) {
            return *ivar;
        }
        class = found.superclass;
    }
    std::ptr::null()
}

#[unsafe(no_mangle)]
extern "C" fn ivar_getOffset(ivar: *const Ivar) -> isize {
    // SAFETY: an ivar of a class.
    unsafe { (*ivar).offset as isize }
}

#[unsafe(no_mangle)]
extern "C" fn ivar_getName(ivar: *const Ivar) -> *const c_char {
    // SAFETY: an ivar of a class.
    unsafe { &*ivar }.name.as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn ivar_getTypeEncoding(ivar: *const Ivar) -> *const c_char {
    // SAFETY: an ivar of a class.
    unsafe { &*ivar }.types.as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn class_getInstanceMethod(class: *const Class, sel: Sel) -> *const Method {
    // SAFETY: null or a class.
    unsafe { class.as_ref() }.and_then(|class| class.method(sel)).map_or(std::ptr::null(), |method| method)
}

#[unsafe(no_mangle)]
extern "C" fn class_getClassMethod(class: *const Class, sel: Sel) -> *const Method {
    // SAFETY: a class.
    class_getInstanceMethod(unsafe { (*class).isa }, sel)
}

#[unsafe(no_mangle)]
extern "C" fn class_respondsToSelector(class: *const Class, sel: Sel) -> bool {
    !class_getInstanceMethod(class, sel).is_null()
}

#[unsafe(no_mangle)]
extern "C" fn class_getSuperclass(class: *const Class) -> *const Class {
    // SAFETY: a class.
    unsafe { (*class).superclass }
}

#[unsafe(no_mangle)]
extern "C" fn class_getName(class: *const Class) -> *const c_char {
    // SAFETY: a class.
    unsafe { &*class }.name.as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn class_isMetaClass(class: *const Class) -> bool {
    // SAFETY: a class.
    unsafe { (*class).is_meta }
}

#[unsafe(no_mangle)]
extern "C" fn class_getInstanceSize(class: *const Class) -> usize {
    // SAFETY: a class.
    unsafe { &*class }.size.load(Ordering::Relaxed)
}

#[unsafe(no_mangle)]
extern "C" fn method_getTypeEncoding(method: *const Method) -> *const c_char {
    // SAFETY: a method of a class.
    unsafe { &*method }.types.as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn method_getImplementation(method: *const Method) -> Imp {
    // SAFETY: a method of a class.
    unsafe { (*method).imp }
}

#[unsafe(no_mangle)]
extern "C" fn method_getName(method: *const Method) -> Sel {
    // SAFETY: a method of a class.
    unsafe { (*method).name }
}

fn layout(size: usize) -> std::alloc::Layout {
    std::alloc::Layout::from_size_align(HEADER + size, 16).expect("a small object")
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn class_createInstance(class: *const Class, _extra: usize) -> *mut Object {
    // SAFETY: the layout is not empty; the count and the class are written before anybody has the object.
    unsafe {
        let memory = std::alloc::alloc_zeroed(layout((*class).size.load(Ordering::Relaxed)));
        assert!(!memory.is_null(), "no memory for an object");
        memory.cast::<AtomicUsize>().write(AtomicUsize::new(1));
        let object = memory.add(HEADER).cast::<Object>();
        (*object).isa = class;
        object
    }
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn object_dispose(object: *mut Object) -> *mut Object {
    // SAFETY: an object from `class_createInstance` that nobody refers to any more.
    unsafe {
        let size = (*(*object).isa).size.load(Ordering::Relaxed);
        std::alloc::dealloc(object.cast::<u8>().sub(HEADER), layout(size));
    }
    std::ptr::null_mut()
}

#[unsafe(no_mangle)]
extern "C" fn object_getClass(object: *const Object) -> *const Class {
    // SAFETY: null or an object.
    unsafe { object.as_ref() }.map_or(std::ptr::null(), |object| object.isa)
}

/// The reference count of an object; classes have none.
fn count<'a>(object: *mut Object) -> Option<&'a AtomicUsize> {
    // SAFETY: null or an object; instances have their count before them.
    unsafe {
        let isa = object.as_ref()?.isa;
        (!(*isa).is_meta).then(|| &*object.cast::<u8>().sub(HEADER).cast::<AtomicUsize>())
    }
}

#[unsafe(no_mangle)]
pub(crate) extern "C-unwind" fn objc_retain(object: *mut Object) -> *mut Object {
    if let Some(count) = count(object) {
        count.fetch_add(1, Ordering::Relaxed);
    }
    object
}

#[unsafe(no_mangle)]
pub(crate) extern "C-unwind" fn objc_release(object: *mut Object) {
    if count(object).is_some_and(|count| count.fetch_sub(1, Ordering::AcqRel) == 1) {
        let sel = sel_registerName(c"dealloc".as_ptr());
        let imp = objc_msg_lookup(object, sel);
        // SAFETY: `dealloc` takes the object and its selector.
        unsafe { std::mem::transmute::<Imp, extern "C-unwind" fn(*mut Object, Sel)>(imp)(object, sel) };
    }
}

#[unsafe(no_mangle)]
pub(crate) extern "C-unwind" fn objc_autorelease(object: *mut Object) -> *mut Object {
    if !object.is_null() {
        POOL.with_borrow_mut(|pool| pool.push(object));
    }
    object
}

#[unsafe(no_mangle)]
extern "C-unwind" fn objc_autoreleaseReturnValue(object: *mut Object) -> *mut Object {
    objc_autorelease(object)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn objc_retainAutoreleasedReturnValue(object: *mut Object) -> *mut Object {
    objc_retain(object)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn objc_autoreleasePoolPush() -> *mut c_void {
    POOL.with_borrow_mut(|pool| {
        pool.push(std::ptr::null_mut());
        pool.len() as *mut c_void
    })
}

#[unsafe(no_mangle)]
extern "C-unwind" fn objc_autoreleasePoolPop(mark: *mut c_void) {
    let length = mark as usize - 1;
    while let Some(object) = POOL.with_borrow_mut(|pool| (pool.len() > length).then(|| pool.pop()).flatten()) {
        objc_release(object);
    }
}

#[unsafe(no_mangle)]
extern "C-unwind" fn objc_msg_lookup(receiver: *mut Object, sel: Sel) -> Imp {
    // SAFETY: objc2 looks messages to null up nowhere.
    let class = unsafe { &*(*receiver).isa };
    match class.method(sel) {
        Some(method) => method.imp,
        None => panic!(
            "{}[{} {}]: unknown selector",
            if class.is_meta { '+' } else { '-' },
            class.name.to_string_lossy(),
            text(sel).to_string_lossy()
        ),
    }
}

#[repr(C)]
struct Super {
    receiver: *mut Object,
    class: *const Class,
}

#[unsafe(no_mangle)]
extern "C-unwind" fn objc_msg_lookup_super(target: *const Super, sel: Sel) -> Imp {
    // SAFETY: objc2 passes a receiver and the superclass to begin with.
    let class = unsafe { &*(*target).class };
    let method = class.method(sel);
    let name = || format!("-[{} {}]", class.name.to_string_lossy(), text(sel).to_string_lossy());
    method.unwrap_or_else(|| panic!("super has no {}", name())).imp
}
