//! A buffer of a plugin: an array on its device.

use std::sync::Arc;

use super::client::PluginClient;
use crate::array_type::dtype_of;
use crate::backend::Array;
use crate::event::Event;
use crate::live::{HandleKind, Live};
use crate::plugin::{call, log_drop};
use crate::{PjrtError, ffi, value};
use bf16scope_hlo::DType;

/// An array on a plugin's device.
#[derive(Debug)]
pub(super) struct PluginArray {
    client: Arc<PluginClient>,
    pub(super) raw: *mut ffi::PJRT_Buffer,
    _live: Live,
}

// SAFETY: a `PJRT_Buffer` may be used by many threads at once (XLA documents `PjRtBuffer` as thread-safe); donation
// takes the struct by value, so no other thread can hold it then.
unsafe impl Send for PluginArray {}
// SAFETY: as above.
unsafe impl Sync for PluginArray {}

impl Drop for PluginArray {
    fn drop(&mut self) {
        let mut args = ffi::PJRT_Buffer_Destroy_Args::zeroed();
        args.buffer = self.raw;
        // SAFETY: `raw` is live and not used again. The client outlives it.
        log_drop(unsafe { call!(self.client.plugin, PJRT_Buffer_Destroy, args) });
    }
}

impl PluginArray {
    /// # Safety
    /// `raw` is a live buffer of this client that nobody else frees.
    pub(super) unsafe fn new(client: &Arc<PluginClient>, raw: *mut ffi::PJRT_Buffer) -> PluginArray {
        PluginArray { client: Arc::clone(client), raw, _live: Live::new(HandleKind::Buffer) }
    }
}

impl Array for PluginArray {
    fn dtype(&self) -> Result<DType, PjrtError> {
        let mut args = ffi::PJRT_Buffer_ElementType_Args::zeroed();
        args.buffer = self.raw;
        // SAFETY: a live buffer.
        unsafe { call!(self.client.plugin, PJRT_Buffer_ElementType, args)? };
        dtype_of(args.buffer_type)
    }

    fn dims(&self) -> Result<Vec<i64>, PjrtError> {
        let mut args = ffi::PJRT_Buffer_Dimensions_Args::zeroed();
        args.buffer = self.raw;
        // SAFETY: a live buffer; the dimensions live as long as it, and are copied.
        unsafe {
            call!(self.client.plugin, PJRT_Buffer_Dimensions, args)?;
            Ok(value::whole_list("PJRT_Buffer_Dimensions", args.dims, args.num_dims)?.to_vec())
        }
    }

    fn n_device_bytes(&self) -> Result<usize, PjrtError> {
        let mut args = ffi::PJRT_Buffer_OnDeviceSizeInBytes_Args::zeroed();
        args.buffer = self.raw;
        // SAFETY: a live buffer.
        unsafe { call!(self.client.plugin, PJRT_Buffer_OnDeviceSizeInBytes, args)? };
        Ok(args.on_device_size_in_bytes)
    }

    fn is_deleted(&self) -> Result<bool, PjrtError> {
        let mut args = ffi::PJRT_Buffer_IsDeleted_Args::zeroed();
        args.buffer = self.raw;
        // SAFETY: a live buffer.
        unsafe { call!(self.client.plugin, PJRT_Buffer_IsDeleted, args)? };
        Ok(args.is_deleted)
    }

    fn address(&self) -> Result<usize, PjrtError> {
        let mut args = ffi::PJRT_Buffer_UnsafePointer_Args::zeroed();
        args.buffer = self.raw;
        // SAFETY: a live buffer.
        unsafe { call!(self.client.plugin, PJRT_Buffer_UnsafePointer, args)? };
        Ok(args.buffer_pointer)
    }

    fn copy_to_host(&self, bytes: &mut [u8], dims: &[i64]) -> Result<(), PjrtError> {
        // The device may use another order of dimensions; the host always gets this one.
        let minor_to_major: Vec<i64> = (0..dims.len() as i64).rev().collect();
        let mut layout = ffi::PJRT_Buffer_MemoryLayout::zeroed();
        layout.layout_type = ffi::LAYOUT_TILED;
        layout.tiled = ffi::PJRT_Buffer_MemoryLayout_Tiled::zeroed();
        layout.tiled.minor_to_major = minor_to_major.as_ptr();
        layout.tiled.minor_to_major_size = minor_to_major.len();
        let mut args = ffi::PJRT_Buffer_ToHostBuffer_Args::zeroed();
        args.src = self.raw;
        args.host_layout = &raw mut layout;
        args.dst = bytes.as_mut_ptr().cast();
        args.dst_size = bytes.len();
        // SAFETY: a live buffer; the layout is alive during the call, and `bytes`, which has the size of the array, stays borrowed until the copy is done: the event is awaited below, also when the copy failed.
        unsafe { call!(self.client.plugin, PJRT_Buffer_ToHostBuffer, args)? };
        match Event::new(self.client.plugin, args.event) {
            Some(done) => done.wait(),
            None => Ok(()),
        }
    }
}
