//! Types of arrays: dtypes and dims of outputs and arguments, the C API's dtype numbers, sizes on the host.

use std::ffi::c_int;
use std::fmt;

use super::{PjrtError, PjrtErrorKind, PjrtPlace, ffi};
use bf16scope_hlo::DType;

/// Type of one output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputSpec {
    /// Element type.
    pub dtype: DType,
    /// Dimensions.
    pub dims: Vec<i64>,
}

impl fmt::Display for OutputSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dims: Vec<String> = self.dims.iter().map(i64::to_string).collect();
        write!(f, "{}[{}]", self.dtype, dims.join(","))
    }
}

/// Type of one argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ArgumentSpec {
    /// The type of the whole argument.
    pub whole: OutputSpec,
    /// The type of one device's part: the whole, or a shard if the program is partitioned. `None` if this crate cannot
    /// tell, because the sharding is over a mesh with named axes.
    pub shard: Option<OutputSpec>,
}

/// Bytes of a dense array on the host.
pub(super) fn n_host_bytes(dtype: DType, dims: &[i64]) -> Result<usize, PjrtError> {
    let sizes = dims.iter().map(|&dim| usize::try_from(dim).ok());
    sizes
        .into_iter()
        .try_fold(dtype.n_bytes(), |product, dim| product.checked_mul(dim?))
        .filter(|&product| product <= isize::MAX as usize)
        .ok_or_else(|| {
            let text = "dimensions must not be negative, nor their product exceed the address space";
            PjrtError::new(PjrtErrorKind::Argument, PjrtPlace::Array(dtype, dims.to_vec()), text)
        })
}

/// `PJRT_Buffer_Type` numbers are C ints.
pub(super) type BufferType = c_int;

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
    BUFFER_TYPES.iter().find(|row| row.0 == dtype).map(|row| row.1).ok_or_else(|| {
        let (major, minor) = (ffi::API_MAJOR, ffi::API_MINOR);
        let text = format!("{dtype}: the PJRT C API {major}.{minor} has no buffer type for it");
        PjrtError::new(PjrtErrorKind::Unsupported, PjrtPlace::Nowhere, text)
    })
}

/// The dtype of a C API number.
pub(super) fn dtype_of(number: BufferType) -> Result<DType, PjrtError> {
    BUFFER_TYPES.iter().find(|row| row.1 == number).map(|row| row.0).ok_or_else(|| PjrtError::buffer_type(number))
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
