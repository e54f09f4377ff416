//! Handles: counted, of a kind, and never freed for good, so that a wrong one is found out.

use std::sync::atomic::{AtomicI64, Ordering};

/// What a handle is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Devices and descriptions, which live as long as what they belong to.
    Uncounted,
    Client,
    LoadedExecutable,
    Executable,
    Serialized,
    Buffer,
    Event,
    Topology,
    Error,
    Freed,
}

/// What is behind a handle.
pub struct Object {
    pub kind: Kind,
    /// An array's elements, an error's text, what an event brings.
    pub bytes: Vec<u8>,
    pub dims: Vec<i64>,
    /// An array's dtype, an error's code.
    pub number: i64,
    /// Where an event brings its bytes.
    pub target: usize,
}

impl Object {
    pub fn new(kind: Kind) -> Object {
        Object { kind, bytes: Vec::new(), dims: Vec::new(), number: 0, target: 0 }
    }
}

static LIVE: AtomicI64 = AtomicI64::new(0);

/// Handles that are not freed.
pub fn live() -> i64 {
    LIVE.load(Ordering::SeqCst)
}

/// A new handle.
pub fn make<T>(object: Object) -> *mut T {
    LIVE.fetch_add(i64::from(object.kind != Kind::Uncounted), Ordering::SeqCst);
    Box::into_raw(Box::new(object)).cast()
}

/// What is behind a handle; ends the process if it is not of this kind.
///
/// # Safety
/// `raw` is null or came out of `make`.
pub unsafe fn object<'a, T>(raw: *mut T, kind: Kind) -> &'a mut Object {
    assert!(!raw.is_null(), "a null handle, expected {kind:?}");
    let object = unsafe { &mut *raw.cast::<Object>() };
    assert_eq!(object.kind, kind, "a wrong handle");
    object
}

/// Frees a handle; its memory stays, so that a second time is noticed.
///
/// # Safety
/// As `object`.
pub unsafe fn free<T>(raw: *mut T, kind: Kind) {
    unsafe { object(raw, kind) }.kind = Kind::Freed;
    LIVE.fetch_sub(1, Ordering::SeqCst);
}
