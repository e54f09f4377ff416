//! Passes modules to and from xla-rs, as serialized `HloModuleProto`s.
//!
//! In one direction xla-rs has a parser of bytes. In the other it has nothing: a `HloModuleProto` cannot be serialized
//! through it. So the bytes come from the C++ message itself, whose methods are in the library that xla-rs links.

use std::ffi::{c_int, c_void};

use prost::Message;

use super::super::PjrtError;
use super::error::{failed, refused};

/// `HloSnapshot`, whose field 1 is a `HloProto`.
#[derive(Clone, PartialEq, Message)]
struct Snapshot {
    #[prost(message, optional, tag = "1")]
    hlo: Option<HloBytes>,
}

/// `HloProto`, whose field 1 is a module, here as its bytes.
#[derive(Clone, PartialEq, Message)]
struct HloBytes {
    #[prost(bytes = "vec", tag = "1")]
    hlo_module: Vec<u8>,
}

/// xla-rs's message from the bytes of a `HloModuleProto`. XLA builds the module to check it, which renumbers its
/// instructions, and aborts the process on some of what `hlo::verify` rejects: verify first.
pub fn from_bytes(module: &[u8]) -> Result<xla::HloModuleProto, PjrtError> {
    // xla-rs tries the bytes as a snapshot, then as a `HloProto`, then as a module; a module's bytes may happen to
    // parse as one of the others. A snapshot is unambiguous.
    let snapshot = Snapshot { hlo: Some(HloBytes { hlo_module: module.to_vec() }) }.encode_to_vec();
    xla::HloModuleProto::parse_proto(&snapshot, true).map_err(failed("HloModuleProto::parse_proto"))
}

// `size_t xla::HloModuleProto::ByteSizeLong() const` and `bool google::protobuf::MessageLite::SerializeToArray(void*,
// int) const`, by their names in the Itanium C++ ABI, under which a method takes `this` as its first argument.
#[link(name = "xla_extension")]
unsafe extern "C" {
    #[link_name = "_ZNK3xla14HloModuleProto12ByteSizeLongEv"]
    fn byte_size(message: *const c_void) -> usize;
    #[link_name = "_ZNK6google8protobuf11MessageLite16SerializeToArrayEPvi"]
    fn serialize_to_array(message: *const c_void, data: *mut c_void, size: c_int) -> bool;
}

/// The pointer inside xla-rs's `HloModuleProto`, a struct with this single field at its start. xla-rs is pinned to one
/// version, and the size is checked here.
const _: () = assert!(size_of::<xla::HloModuleProto>() == size_of::<*const c_void>());

/// The bytes of xla-rs's message.
pub fn to_bytes(proto: &xla::HloModuleProto) -> Result<Vec<u8>, PjrtError> {
    let too_large = || refused("MessageLite::SerializeToArray", "the module takes 2 GiB or more, which no message may");
    // SAFETY: the struct is one pointer, as checked above: to a C++ `xla::HloModuleProto` that lives as long as `proto`.
    // It derives from `MessageLite` by single inheritance, so both methods take the same `this`. They only read it, and
    // the second writes at most `size` bytes at `data`.
    unsafe {
        let message = std::ptr::from_ref(proto).cast::<*const c_void>().read();
        let size = byte_size(message);
        let mut bytes = vec![0u8; size];
        let fits = c_int::try_from(size).map_err(|_| too_large())?;
        match serialize_to_array(message, bytes.as_mut_ptr().cast(), fits) {
            true => Ok(bytes),
            false => Err(too_large()),
        }
    }
}
