//! A buffer: an array on a device. [`Buffer`] is one of any client, [`PluginArray`] of a plugin's.

use std::fmt;
use std::sync::Arc;

use super::backend::Array;
use super::client::{BufferType, Shared, n_host_bytes};
use super::event::Event;
use super::live::{HandleKind, Live};
use super::plugin::{call, log_drop};
use super::{Client, PjrtError, ffi, value};
use crate::hlo::DType;

/// An array on a device. Frees its memory when dropped.
pub struct Buffer {
    pub(super) client: Client,
    pub(super) array: Box<dyn Array>,
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.dtype(), self.dims()) {
            (Ok(dtype), Ok(dims)) => write!(f, "Buffer({dtype}{dims:?})"),
            (dtype, dims) => write!(f, "Buffer({dtype:?}, {dims:?})"),
        }
    }
}

impl Buffer {
    /// The client whose device it is on.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Element type.
    pub fn dtype(&self) -> Result<DType, PjrtError> {
        self.array.dtype()
    }

    /// Dimensions.
    pub fn dims(&self) -> Result<Vec<i64>, PjrtError> {
        self.array.dims()
    }

    /// Bytes it takes on its device, padding included.
    pub fn n_device_bytes(&self) -> Result<usize, PjrtError> {
        self.array.n_device_bytes()
    }

    /// Whether its memory has been given up.
    pub fn is_deleted(&self) -> Result<bool, PjrtError> {
        self.array.is_deleted()
    }

    /// Where it is on its device: shows whether a donated argument's memory became an output. Not for dereferencing.
    pub fn address(&self) -> Result<usize, PjrtError> {
        self.array.address()
    }

    /// Its elements, dense and row-major.
    pub fn to_host(&self) -> Result<Vec<u8>, PjrtError> {
        let mut bytes = vec![0; n_host_bytes(self.dtype()?, &self.dims()?)?];
        self.copy_to_host(&mut bytes)?;
        Ok(bytes)
    }

    /// Copies its elements, dense and row-major, into `bytes`, which they must fill.
    pub fn copy_to_host(&self, bytes: &mut [u8]) -> Result<(), PjrtError> {
        let (dtype, dims) = (self.dtype()?, self.dims()?);
        let expected = n_host_bytes(dtype, &dims)?;
        if bytes.len() != expected {
            return Err(PjrtError::HostBytes { dtype, dims, measured: bytes.len(), expected });
        }
        self.array.copy_to_host(bytes, &dims)
    }
}

/// An array on a plugin's device.
#[derive(Debug)]
pub(super) struct PluginArray {
    shared: Arc<Shared>,
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
        log_drop(unsafe { call!(self.shared.plugin, PJRT_Buffer_Destroy, args) });
    }
}

impl PluginArray {
    /// # Safety
    /// `raw` is a live buffer of this client that nobody else frees.
    pub(super) unsafe fn new(shared: &Arc<Shared>, raw: *mut ffi::PJRT_Buffer) -> PluginArray {
        PluginArray { shared: Arc::clone(shared), raw, _live: Live::new(HandleKind::Buffer) }
    }
}

impl Array for PluginArray {
    fn dtype(&self) -> Result<DType, PjrtError> {
        let mut args = ffi::PJRT_Buffer_ElementType_Args::zeroed();
        args.buffer = self.raw;
        // SAFETY: a live buffer.
        unsafe { call!(self.shared.plugin, PJRT_Buffer_ElementType, args)? };
        dtype_of(args.buffer_type)
    }

    fn dims(&self) -> Result<Vec<i64>, PjrtError> {
        let mut args = ffi::PJRT_Buffer_Dimensions_Args::zeroed();
        args.buffer = self.raw;
        // SAFETY: a live buffer; the dimensions live as long as it, and are copied.
        unsafe {
            call!(self.shared.plugin, PJRT_Buffer_Dimensions, args)?;
            Ok(value::whole_list("PJRT_Buffer_Dimensions", args.dims, args.num_dims)?.to_vec())
        }
    }

    fn n_device_bytes(&self) -> Result<usize, PjrtError> {
        let mut args = ffi::PJRT_Buffer_OnDeviceSizeInBytes_Args::zeroed();
        args.buffer = self.raw;
        // SAFETY: a live buffer.
        unsafe { call!(self.shared.plugin, PJRT_Buffer_OnDeviceSizeInBytes, args)? };
        Ok(args.on_device_size_in_bytes)
    }

    fn is_deleted(&self) -> Result<bool, PjrtError> {
        let mut args = ffi::PJRT_Buffer_IsDeleted_Args::zeroed();
        args.buffer = self.raw;
        // SAFETY: a live buffer.
        unsafe { call!(self.shared.plugin, PJRT_Buffer_IsDeleted, args)? };
        Ok(args.is_deleted)
    }

    fn address(&self) -> Result<usize, PjrtError> {
        let mut args = ffi::PJRT_Buffer_UnsafePointer_Args::zeroed();
        args.buffer = self.raw;
        // SAFETY: a live buffer.
        unsafe { call!(self.shared.plugin, PJRT_Buffer_UnsafePointer, args)? };
        Ok(args.buffer_pointer)
    }

    fn copy_to_host(&self, bytes: &mut [u8], dims: &[i64]) -> Result<(), PjrtError> {
        // The device may hold another order of dimensions; the host always gets this one.
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
        unsafe { call!(self.shared.plugin, PJRT_Buffer_ToHostBuffer, args)? };
        match Event::new(self.shared.plugin, args.event) {
            Some(done) => done.wait(),
            None => Ok(()),
        }
    }
}

/// `PJRT_Buffer_Type` of each dtype.
///
/// Source: the enum in `pjrt_c_api.h`, API 0.81. It has neither one-bit integers nor 6-bit floats.
const BUFFER_TYPES: &[(DType, BufferType)] = &[
    (DType::Pred, 1),
    (DType::S8, 2),
    (DType::S16, 3),
    (DType::S32, 4),
    (DType::S64, 5),
    (DType::U8, 6),
    (DType::U16, 7),
    (DType::U32, 8),
    (DType::U64, 9),
    (DType::F16, 10),
    (DType::F32, 11),
    (DType::F64, 12),
    (DType::BF16, 13),
    (DType::C64, 14),
    (DType::C128, 15),
    (DType::F8E5M2, 16),
    (DType::F8E4M3FN, 17),
    (DType::F8E4M3B11FNUZ, 18),
    (DType::F8E5M2FNUZ, 19),
    (DType::F8E4M3FNUZ, 20),
    (DType::S4, 21),
    (DType::U4, 22),
    (DType::S2, 24),
    (DType::U2, 25),
    (DType::F8E4M3, 26),
    (DType::F8E3M4, 27),
    (DType::F8E8M0FNU, 28),
    (DType::F4E2M1FN, 29),
];

/// The C API's number of a dtype.
pub(super) fn type_number(dtype: DType) -> Result<BufferType, PjrtError> {
    BUFFER_TYPES.iter().find(|row| row.0 == dtype).map(|row| row.1).ok_or(PjrtError::DType { dtype })
}

/// The dtype of a C API number.
pub(super) fn dtype_of(number: BufferType) -> Result<DType, PjrtError> {
    BUFFER_TYPES.iter().find(|row| row.1 == number).map(|row| row.0).ok_or(PjrtError::BufferType { number })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_dtype_has_a_buffer_type_but_the_newest() {
        for &dtype in DType::ALL {
            match type_number(dtype) {
                Ok(number) => assert_eq!(dtype_of(number).unwrap(), dtype),
                Err(error) => {
                    assert!(matches!(dtype, DType::S1 | DType::U1 | DType::F6E3M2FN | DType::F6E2M3FN), "{dtype}");
                    assert_eq!(error.to_string(), format!("{dtype}: the PJRT C API 0.81 has no buffer type for it"));
                }
            }
        }
        assert_eq!(dtype_of(23).unwrap_err().to_string(), "output of PJRT buffer type 23: not a dtype of this crate");
    }
}
