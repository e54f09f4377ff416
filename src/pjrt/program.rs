//! A program on its way to a compiler: what is read of it, and the one thing that is taken from it.

use std::borrow::Cow;

use prost::Message;
use prost::encoding::{DecodeContext, decode_key, skip_field};

use super::executable::OutputSpec;
use super::{PjrtError, ffi};
use crate::hlo::DType;
use crate::hlo::proto::messages::{ProgramShapeProto, ShapeProto};

/// Field of `HloModuleProto` that holds the order of execution.
const SCHEDULE: u32 = 7;

/// The program without its schedule. The order of execution is for the compiler to choose, and XLA's CPU compiler ends the
/// process over one that is given.
pub(super) fn without_schedule(program: &[u8]) -> Result<Cow<'_, [u8]>, PjrtError> {
    let mut without = Cow::Borrowed(program);
    let mut rest = program;
    while !rest.is_empty() {
        let field = rest;
        let (tag, wire_type) = decode_key(&mut rest).map_err(PjrtError::Program)?;
        skip_field(wire_type, tag, &mut rest, DecodeContext::default()).map_err(PjrtError::Program)?;
        let (start, end) = (program.len() - field.len(), program.len() - rest.len());
        match &mut without {
            Cow::Borrowed(_) if tag == SCHEDULE => without = Cow::Owned(program[..start].to_vec()),
            Cow::Owned(kept) if tag != SCHEDULE => kept.extend_from_slice(&program[start..end]),
            _ => {}
        }
    }
    Ok(without)
}

/// A program in the C API's form. Borrows the bytes, which the plugin does not change.
pub(super) fn program(bytes: &[u8]) -> ffi::PJRT_Program {
    const FORMAT: &str = "hlo";
    let mut program = ffi::PJRT_Program::zeroed();
    program.code = bytes.as_ptr().cast_mut().cast();
    program.code_size = bytes.len();
    program.format = FORMAT.as_ptr().cast();
    program.format_size = FORMAT.len();
    program
}

/// Types of a program's arguments: of its parameters, or of the one parameter's arrays where it `is_tupled`. `None` where
/// it does not say, or one is no array.
pub(super) fn argument_specs(program: &[u8], is_tupled: bool) -> Result<Option<Vec<OutputSpec>>, PjrtError> {
    let header = HloModuleHeader::decode(program).map_err(PjrtError::Program)?;
    let spec =
        |shape: ShapeProto| Some(OutputSpec { dtype: DType::from_xla(shape.element_type)?, dims: shape.dimensions });
    let specs = |shape: ProgramShapeProto| match <[ShapeProto; 1]>::try_from(shape.parameters) {
        Ok([tuple]) if is_tupled && DType::from_xla(tuple.element_type).is_none() => {
            tuple.tuple_shapes.into_iter().map(spec).collect()
        }
        Ok([parameter]) => Some(vec![spec(parameter)?]),
        Err(parameters) => parameters.into_iter().map(spec).collect(),
    };
    Ok(header.host_program_shape.and_then(specs))
}

/// The part of `HloModuleProto` that execution needs: decoding it skips the rest of a large module.
#[derive(Clone, PartialEq, Message)]
struct HloModuleHeader {
    #[prost(message, optional, tag = "4")]
    host_program_shape: Option<ProgramShapeProto>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hlo::{proto, text};

    #[test]
    fn a_schedule_is_taken_from_a_program_and_nothing_else() {
        let module = |header: &str| {
            let text = format!(
                "HloModule m{header}\nENTRY m {{\n  x = f32[2]{{0}} parameter(0)\n  ROOT y = f32[2]{{0}} negate(x)\n}}"
            );
            proto::encode::to_bytes(&text::parse(&text, "m").unwrap()).unwrap()
        };
        let plain = module("");
        assert!(matches!(without_schedule(&plain), Ok(Cow::Borrowed(bytes)) if bytes == plain));
        let scheduled = module(", is_scheduled=true");
        assert_ne!(scheduled, plain);
        assert_eq!(without_schedule(&scheduled).unwrap(), plain);
        assert!(without_schedule(&scheduled[..scheduled.len() - 1]).is_err());
    }
}
