//! Arrays on xla-rs's device.

use std::fmt;
use std::sync::Arc;

use super::super::backend::Array;
use super::super::live::{HandleKind, Live};
use super::super::{OutputSpec, PjrtError};
use super::client::XlaClient;
use super::error::{failed, not_in_xla_rs};
use bf16scope_hlo::DType;

/// An array on xla-rs's device.
pub(super) struct XlaArray {
    pub(super) raw: xla::PjRtBuffer,
    pub(super) spec: OutputSpec,
    // Dropped after the buffer.
    _client: Arc<XlaClient>,
    _live: Live,
}

impl XlaArray {
    pub(super) fn new(client: &Arc<XlaClient>, raw: xla::PjRtBuffer, spec: OutputSpec) -> XlaArray {
        XlaArray { raw, spec, _client: Arc::clone(client), _live: Live::new(HandleKind::Buffer) }
    }
}

impl fmt::Debug for XlaArray {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "XlaArray({})", self.spec)
    }
}

impl Array for XlaArray {
    fn dtype(&self) -> Result<DType, PjrtError> {
        Ok(self.spec.dtype)
    }

    fn dims(&self) -> Result<Vec<i64>, PjrtError> {
        Ok(self.spec.dims.clone())
    }

    fn n_device_bytes(&self) -> Result<usize, PjrtError> {
        Err(not_in_xla_rs("size of a buffer on its device"))
    }

    /// A donated argument is consumed with its `Buffer`, so an existing one has its memory.
    fn is_deleted(&self) -> Result<bool, PjrtError> {
        Ok(false)
    }

    fn address(&self) -> Result<usize, PjrtError> {
        Err(not_in_xla_rs("address of a buffer"))
    }

    fn copy_to_host(&self, bytes: &mut [u8], _dims: &[i64]) -> Result<(), PjrtError> {
        // Layouts are always row-major: the client compiles programs accordingly.
        let literal = self.raw.to_literal_sync().map_err(failed("PjRtBuffer::to_literal_sync"))?;
        literal.copy_untyped_to(bytes).map_err(failed("Literal::copy_untyped_to"))
    }
}
