//! A buffer: an array on a device of any client.

use std::fmt;
use std::fs::File;
use std::sync::Arc;

use super::array_type::n_host_bytes;
use super::backend::Array;
use super::{Client, PjrtError, PjrtErrorKind, PjrtPlace};
use bf16scope_hlo::{Array as HostArray, ArrayShape, DType, Element};

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
    /// The client of its device.
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

    /// Bytes it takes on its device, including padding.
    pub fn n_device_bytes(&self) -> Result<usize, PjrtError> {
        self.array.n_device_bytes()
    }

    /// Whether its memory has been given up.
    pub fn is_deleted(&self) -> Result<bool, PjrtError> {
        self.array.is_deleted()
    }

    /// Its address on the device: shows whether a donated argument's memory became an output. It must not be
    /// dereferenced.
    pub fn address(&self) -> Result<usize, PjrtError> {
        self.array.address()
    }

    /// Its elements, dense and row-major.
    pub fn to_host(&self) -> Result<Vec<u8>, PjrtError> {
        let mut bytes = vec![0; n_host_bytes(self.dtype()?, &self.dims()?)?];
        self.copy_to_host(&mut bytes)?;
        Ok(bytes)
    }

    /// Its elements as numbers, row-major: `buffer.to_vec::<f32>()`. A buffer of bf16 or f16 can be read as f32 too.
    ///
    /// # Errors
    /// The elements have another type; errors of the plugin.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>, PjrtError> {
        Ok(self.to_array()?.to_vec()?)
    }

    /// The array on the host.
    ///
    /// # Errors
    /// Errors of the plugin.
    pub fn to_array(&self) -> Result<HostArray, PjrtError> {
        let shape = ArrayShape::new(self.dtype()?, self.dims()?);
        Ok(HostArray { shape, bytes: self.to_host()? })
    }

    /// Copies its elements, dense and row-major, into `bytes`, whose size must match.
    pub fn copy_to_host(&self, bytes: &mut [u8]) -> Result<(), PjrtError> {
        let (dtype, dims) = (self.dtype()?, self.dims()?);
        let expected = n_host_bytes(dtype, &dims)?;
        if bytes.len() != expected {
            return Err(PjrtError::host_bytes(dtype, &dims, bytes.len(), expected));
        }
        self.array.copy_to_host(bytes, &dims)?;
        fill_bytes(dtype, bytes);
        Ok(())
    }
}

/// Sign- or zero-extends integers narrower than a byte. XLA leaves zeros in the upper bits, so that an s4 of -7 used to
/// be read as 9.
fn fill_bytes(dtype: DType, bytes: &mut [u8]) {
    let n_unused = 8 - dtype.bits().min(8);
    match dtype {
        DType::S1 | DType::S2 | DType::S4 => {
            bytes.iter_mut().for_each(|byte| *byte = ((*byte << n_unused) as i8 >> n_unused) as u8);
        }
        DType::U1 | DType::U2 | DType::U4 => {
            bytes.iter_mut().for_each(|byte| *byte = (*byte << n_unused) >> n_unused);
        }
        _ => {}
    }
}

impl Client {
    /// Copies numbers to the first device, as an array with these dims: `client.buffer(&[1.0f32, 2.0], [2, 1])`.
    ///
    /// # Errors
    /// Another number of elements than the dims hold; errors of the plugin.
    pub fn buffer<T: Element>(&self, elements: &[T], dims: impl Into<Vec<i64>>) -> Result<Buffer, PjrtError> {
        self.buffer_on(0, &HostArray::from_slice(elements, dims)?)
    }

    /// Copies an array to a device.
    ///
    /// # Errors
    /// The device does not exist; errors of the plugin.
    pub fn buffer_on(&self, device_idx: usize, array: &HostArray) -> Result<Buffer, PjrtError> {
        self.buffer_from_host(&array.bytes, array.dtype(), array.dims(), device_idx)
    }

    /// Copies a dense row-major array to a device. The bytes may be reused when this returns.
    ///
    /// A type under a byte takes one byte per element here (see [`DType::n_bytes`]).
    pub fn buffer_from_host(
        &self,
        bytes: &[u8],
        dtype: DType,
        dims: &[i64],
        device_idx: usize,
    ) -> Result<Buffer, PjrtError> {
        self.check(bytes.len(), dtype, dims, device_idx)?;
        Ok(self.wrap(Arc::clone(&self.backend).upload(bytes, dtype, dims, device_idx)?))
    }

    /// The same for the content of a file. Memory from `memfd_create(2)`, sealed against all changes, is passed to a
    /// child without a copy; any other file is read.
    pub fn buffer_from_file(
        &self,
        file: &File,
        dtype: DType,
        dims: &[i64],
        device_idx: usize,
    ) -> Result<Buffer, PjrtError> {
        let metadata = file.metadata().map_err(|cause| PjrtError::host_file(dtype, dims, cause))?;
        self.check(usize::try_from(metadata.len()).unwrap_or(usize::MAX), dtype, dims, device_idx)?;
        Ok(self.wrap(Arc::clone(&self.backend).upload_file(file, dtype, dims, device_idx)?))
    }

    /// Checks that `measured` bytes match the array's size, and that the device exists.
    fn check(&self, measured: usize, dtype: DType, dims: &[i64], device_idx: usize) -> Result<(), PjrtError> {
        let expected = n_host_bytes(dtype, dims)?;
        if measured != expected {
            return Err(PjrtError::host_bytes(dtype, dims, measured, expected));
        }
        let n_devices = self.devices().len();
        if device_idx >= n_devices {
            let text = format!("device {device_idx}: the client has {n_devices} devices, numbered from 0");
            return Err(PjrtError::new(PjrtErrorKind::Argument, PjrtPlace::Nowhere, text));
        }
        Ok(())
    }

    /// Wraps an array created by this client's back end.
    pub(super) fn wrap(&self, array: Box<dyn Array>) -> Buffer {
        Buffer { client: self.clone(), array }
    }
}
