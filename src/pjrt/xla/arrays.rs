//! Arrays on xla-rs's device, and the dtypes it has.

use std::fmt;
use std::sync::Arc;

use super::super::backend::Array;
use super::super::error::USE_THE_PLUGIN;
use super::super::live::{HandleKind, Live};
use super::super::{OutputSpec, PjrtError};
use super::client::XlaClient;
use super::failed;
use crate::hlo::DType;

/// Each dtype that xla-rs has by name, and that takes whole bytes.
const ELEMENT_TYPES: &[(DType, xla::ElementType)] = &[
    (DType::Pred, xla::ElementType::Pred),
    (DType::S8, xla::ElementType::S8),
    (DType::S16, xla::ElementType::S16),
    (DType::S32, xla::ElementType::S32),
    (DType::S64, xla::ElementType::S64),
    (DType::U8, xla::ElementType::U8),
    (DType::U16, xla::ElementType::U16),
    (DType::U32, xla::ElementType::U32),
    (DType::U64, xla::ElementType::U64),
    (DType::F16, xla::ElementType::F16),
    (DType::BF16, xla::ElementType::Bf16),
    (DType::F32, xla::ElementType::F32),
    (DType::F64, xla::ElementType::F64),
    (DType::C64, xla::ElementType::C64),
    (DType::C128, xla::ElementType::C128),
    (DType::F8E5M2, xla::ElementType::F8E5M2),
    (DType::F8E4M3FN, xla::ElementType::F8E4M3FN),
    (DType::F8E8M0FNU, xla::ElementType::F8E8M0FNU),
];

/// xla-rs's name of a dtype.
pub fn element_type(dtype: DType) -> Result<xla::ElementType, PjrtError> {
    ELEMENT_TYPES.iter().find(|row| row.0 == dtype).map(|row| row.1).ok_or(PjrtError::XlaRsDType { dtype })
}

/// The dtype that xla-rs names so; `None` for its 4-bit float, of which it packs two in a byte.
pub fn dtype_of(element_type: xla::ElementType) -> Option<DType> {
    ELEMENT_TYPES.iter().find(|row| row.1 == element_type).map(|row| row.0)
}

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
        Err(PjrtError::NotInXlaRs { what: "size of a buffer on its device", help: USE_THE_PLUGIN })
    }

    /// A donated argument is consumed with its `Buffer`, so one that can be asked has its memory.
    fn is_deleted(&self) -> Result<bool, PjrtError> {
        Ok(false)
    }

    fn address(&self) -> Result<usize, PjrtError> {
        Err(PjrtError::NotInXlaRs { what: "address of a buffer", help: USE_THE_PLUGIN })
    }

    fn copy_to_host(&self, bytes: &mut [u8], _dims: &[i64]) -> Result<(), PjrtError> {
        // Layouts are row-major throughout: the client compiles programs so.
        let literal = self.raw.to_literal_sync().map_err(failed("PjRtBuffer::to_literal_sync"))?;
        literal.copy_untyped_to(bytes).map_err(failed("Literal::copy_untyped_to"))
    }
}
