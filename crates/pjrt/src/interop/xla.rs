//! Converts xla-rs's computations, literals and buffers to ours, and back.
//!
//! A module is converted as the bytes of its `HloModuleProto`, so nothing is lost. XLA renumbers the instructions of an
//! incoming module and sorts them in post order; names and attributes stay. Arrays are converted as their bytes,
//! including bf16 and f16.
//!
//! `xla::PjRtClient` compiles with the process's XLA flags, under which XLA may drop roundings to bf16: call
//! [`prepare_environment`](crate::prepare_environment) before the first client is made.

use crate::PjrtError;
use crate::xla::{dtype_of, element_type, from_bytes, to_bytes, xla};
use bf16scope_hlo::proto::{ProtoError, decode, encode};
use bf16scope_hlo::verify::{VerifyErrors, verify};
use bf16scope_hlo::{ArrayShape, Literal, Module};

/// Why an object cannot be converted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InteropError {
    /// A module that violates HLO's rules: XLA might abort the process on it.
    #[error("the module is not given to xla-rs: {0}")]
    Invalid(#[from] VerifyErrors),
    /// A message that is not a module, or a module that no message can hold.
    #[error(transparent)]
    Proto(#[from] ProtoError),
    /// xla-rs refused, or lacks the dtype.
    #[error(transparent)]
    XlaRs(#[from] PjrtError),
    /// A literal of a dtype that xla-rs or this crate cannot copy.
    #[error(
        "an xla::Literal of {primitive_type} cannot be copied out of xla-rs 0.4.3\nhelp: convert it to another type first (Literal::convert)"
    )]
    Literal {
        /// XLA's name of the type.
        primitive_type: String,
    },
    /// A tuple or a token where an array is expected.
    #[error("a buffer of xla-rs holds an array, not a literal of {shape}\nhelp: pass the tuple's arrays one by one")]
    NotAnArray {
        /// The literal's shape.
        shape: String,
    },
    /// A token, which xla-rs literals do not support.
    #[error("xla-rs 0.4.3 has no literals of tokens")]
    Token,
}

/// A module as xla-rs's computation, which `xla::PjRtClient::compile` takes.
pub fn computation(module: &Module) -> Result<xla::XlaComputation, InteropError> {
    Ok(xla::XlaComputation::from_proto(&proto(module)?))
}

/// A module as xla-rs's message.
pub fn proto(module: &Module) -> Result<xla::HloModuleProto, InteropError> {
    verify(module)?;
    Ok(from_bytes(&encode::to_bytes(module)?)?)
}

/// The module of a computation that xla-rs built, or read from a file.
pub fn module(computation: &xla::XlaComputation) -> Result<Module, InteropError> {
    module_of_proto(&computation.proto())
}

/// The module in xla-rs's message.
pub fn module_of_proto(proto: &xla::HloModuleProto) -> Result<Module, InteropError> {
    Ok(decode::from_bytes(&to_bytes(proto)?)?)
}

/// A literal as xla-rs's. Its bytes are copied once.
pub fn literal(literal: &Literal) -> Result<xla::Literal, InteropError> {
    match literal {
        Literal::Array { shape, bytes } => {
            let dims: Vec<usize> = shape.dims.iter().map(|&dim| dim as usize).collect();
            let ty = element_type(shape.dtype)?;
            xla::Literal::create_from_shape_and_untyped_data(ty, &dims, bytes).map_err(refused("Literal::create"))
        }
        Literal::Tuple(elements) => {
            Ok(xla::Literal::tuple(elements.iter().map(self::literal).collect::<Result<_, _>>()?))
        }
        Literal::Token => Err(InteropError::Token),
    }
}

/// xla-rs's literal as ours; a tuple is taken apart without a copy, an array's bytes are copied once. (An array of
/// several dimensions is copied once more inside XLA, into row-major order, because xla-rs does not expose its layout.)
pub fn from_literal(mut literal: xla::Literal) -> Result<Literal, InteropError> {
    let shape = literal.shape().map_err(refused("Literal::shape"))?;
    match shape {
        xla::Shape::Tuple(_) => {
            let elements = literal.decompose_tuple().map_err(refused("Literal::decompose_tuple"))?;
            Ok(Literal::Tuple(elements.into_iter().map(from_literal).collect::<Result<_, _>>()?))
        }
        xla::Shape::Array(array) => {
            let unknown = || InteropError::Literal { primitive_type: format!("{:?}", array.primitive_type()) };
            let shape = ArrayShape::new(dtype_of(array.element_type()).ok_or_else(unknown)?, array.dims());
            if shape.dims.len() > 1 {
                literal = literal.reshape(&shape.dims).map_err(refused("Literal::reshape"))?;
            }
            let mut bytes = vec![0; literal.size_bytes()];
            literal.copy_untyped_to(&mut bytes).map_err(refused("Literal::copy_untyped_to"))?;
            Ok(Literal::Array { shape, bytes })
        }
        xla::Shape::Unsupported(primitive_type) => {
            Err(InteropError::Literal { primitive_type: format!("{primitive_type:?}") })
        }
    }
}

/// An array on a device of xla-rs's client (the first, for `None`), without an intermediate xla-rs literal.
pub fn buffer(
    client: &xla::PjRtClient,
    device: Option<&xla::PjRtDevice<'_>>,
    literal: &Literal,
) -> Result<xla::PjRtBuffer, InteropError> {
    let Literal::Array { shape, bytes } = literal else {
        return Err(InteropError::NotAnArray { shape: literal.shape().to_string() });
    };
    let dims: Vec<usize> = shape.dims.iter().map(|&dim| dim as usize).collect();
    let copied = client.buffer_from_host_raw_bytes(element_type(shape.dtype)?, bytes, &dims, device);
    copied.map_err(refused("PjRtClient::buffer_from_host_raw_bytes"))
}

/// The content of an xla-rs buffer.
pub fn from_buffer(buffer: &xla::PjRtBuffer) -> Result<Literal, InteropError> {
    from_literal(buffer.to_literal_sync().map_err(refused("PjRtBuffer::to_literal_sync"))?)
}

fn refused(call: &'static str) -> impl Fn(xla::Error) -> InteropError {
    move |error| InteropError::XlaRs(crate::xla::failed(call)(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_literal_that_cannot_be_copied_out_says_what_to_do() {
        let error = InteropError::Literal { primitive_type: "F4E2M1FN".to_string() };
        assert_eq!(
            error.to_string(),
            "an xla::Literal of F4E2M1FN cannot be copied out of xla-rs 0.4.3\nhelp: convert it to another type first \
             (Literal::convert)"
        );
    }
}
