//! Prepares a program for a compiler: reads its argument types, checks its calls, and removes its schedule.

use std::borrow::Cow;
use std::collections::BTreeMap;

use prost::Message;
use prost::encoding::{DecodeContext, decode_key, skip_field};

use super::array_type::{ArgumentSpec, OutputSpec};
use super::{CompileOptions, PjrtError, PjrtErrorKind, PjrtPlace, ffi};
use bf16scope_hlo::DType;
use bf16scope_hlo::proto::messages::{OpSharding, ProgramShapeProto, ShapeProto};
use bf16scope_hlo::proto::sharding;

/// Field of `HloModuleProto` with the schedule.
const SCHEDULE: u32 = 7;

/// The program without its schedule. The compiler chooses the order of execution, and XLA's CPU compiler aborts the
/// process on a given one.
pub(super) fn without_schedule(program: &[u8]) -> Result<Cow<'_, [u8]>, PjrtError> {
    let mut without = Cow::Borrowed(program);
    let mut rest = program;
    while !rest.is_empty() {
        let field = rest;
        let (tag, wire_type) = decode_key(&mut rest).map_err(PjrtError::program)?;
        skip_field(wire_type, tag, &mut rest, DecodeContext::default()).map_err(PjrtError::program)?;
        let (start, end) = (program.len() - field.len(), program.len() - rest.len());
        match &mut without {
            Cow::Borrowed(_) if tag == SCHEDULE => without = Cow::Owned(program[..start].to_vec()),
            Cow::Owned(kept) if tag != SCHEDULE => kept.extend_from_slice(&program[start..end]),
            _ => {}
        }
    }
    Ok(without)
}

/// The largest number of instructions after inlining calls, which is XLA's first step: more than it compiles in a day.
/// In a chain of computations, each calling the next one twice, it grows exponentially.
const MAX_INLINED: u64 = 10_000_000;

/// Refuses a program that is too large after inlining.
pub(super) fn check_calls(program: &[u8]) -> Result<(), PjrtError> {
    let module = CallingProgram::decode(program).map_err(PjrtError::program)?;
    // Computations come before their callers.
    let mut sizes: BTreeMap<i64, u64> = BTreeMap::new();
    for computation in &module.computations {
        let is_copied = |it: &&CallingInstruction| matches!(it.opcode.as_str(), "call" | "while" | "conditional");
        let called = computation.instructions.iter().filter(is_copied).flat_map(|it| &it.called_computation_ids);
        let called = called.fold(0u64, |sum, id| sum.saturating_add(sizes.get(id).copied().unwrap_or(0)));
        sizes.insert(computation.id, called.saturating_add(computation.instructions.len() as u64));
    }
    match sizes.get(&module.entry_computation_id) {
        Some(&n_inlined) if n_inlined > MAX_INLINED => Err(too_many_calls(n_inlined)),
        _ => Ok(()),
    }
}

/// The error for a program that is too large after inlining.
fn too_many_calls(n_inlined: u64) -> PjrtError {
    let text = format!(
        "the program has {n_inlined} instructions once its calls are inlined, as XLA inlines them, expected at most \
         {MAX_INLINED}"
    );
    PjrtError::new(PjrtErrorKind::Program, PjrtPlace::Nowhere, text)
        .with_help("computations that call others several times multiply; say a repetition with a `while` loop")
}

/// The format of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// A serialized `HloModuleProto`.
    Hlo,
    /// StableHLO: MLIR as text or bytecode, including portable artifacts.
    Mlir,
}

/// A program in the C API's form. Borrows the bytes, which the plugin does not change.
pub(super) fn program(bytes: &[u8], format: Format) -> ffi::PJRT_Program {
    let format = match format {
        Format::Hlo => "hlo",
        Format::Mlir => "mlir",
    };
    let mut program = ffi::PJRT_Program::zeroed();
    program.code = bytes.as_ptr().cast_mut().cast();
    program.code_size = bytes.len();
    program.format = format.as_ptr().cast();
    program.format_size = format.len();
    program
}

/// Types of a program's arguments: of its parameters, or of the arrays in its single tuple parameter. `None` if it does
/// not say, or one is not an array.
pub(super) fn argument_specs(program: &[u8], options: &CompileOptions) -> Result<Option<Vec<ArgumentSpec>>, PjrtError> {
    let is_tupled = options.parameter_is_tupled;
    let header = HloModuleHeader::decode(program).map_err(PjrtError::program)?;
    let spec =
        |shape: ShapeProto| Some(OutputSpec { dtype: DType::from_xla(shape.element_type)?, dims: shape.dimensions });
    let specs = |shape: ProgramShapeProto| match <[ShapeProto; 1]>::try_from(shape.parameters) {
        Ok([tuple]) if is_tupled && DType::from_xla(tuple.element_type).is_none() => {
            tuple.tuple_shapes.into_iter().map(spec).collect()
        }
        Ok([parameter]) => Some(vec![spec(parameter)?]),
        Err(parameters) => parameters.into_iter().map(spec).collect(),
    };
    let Some(wholes) = header.host_program_shape.and_then(specs) else { return Ok(None) };
    let shardings = if options.n_partitions > 1 { Shardings::read(program, is_tupled)? } else { Shardings::default() };
    // Shardy may shard arguments without a sharding as it likes.
    let is_free = |number: usize| options.is_shardy || options.free_parameters.get(number) == Some(&true);
    let shard = |number: usize, whole: &OutputSpec| match shardings.argument(number) {
        None if options.n_partitions > 1 && is_free(number) => None,
        None => Some(whole.clone()),
        Some(sharding) => {
            Some(OutputSpec { dtype: whole.dtype, dims: sharding::decode(sharding).shard_dims(&whole.dims)? })
        }
    };
    let specs = wholes.into_iter().enumerate();
    Ok(Some(specs.map(|(number, whole)| ArgumentSpec { shard: shard(number, &whole), whole }).collect()))
}

/// The shardings of a program's arguments over its partitions.
#[derive(Default)]
struct Shardings {
    /// By the parameter's number.
    of_parameters: BTreeMap<i64, OpSharding>,
    is_tupled: bool,
}

impl Shardings {
    fn read(program: &[u8], is_tupled: bool) -> Result<Shardings, PjrtError> {
        let program = ShardedProgram::decode(program).map_err(PjrtError::program)?;
        let entry = program.computations.into_iter().find(|computation| computation.id == program.entry_computation_id);
        let parameters = entry.into_iter().flat_map(|entry| entry.instructions).filter(|it| it.opcode == "parameter");
        let of_parameters = parameters.filter_map(|it| Some((it.parameter_number, it.sharding?))).collect();
        Ok(Shardings { of_parameters, is_tupled })
    }

    /// The sharding of argument `number`; `None` without a sharding: every partition takes all of it.
    fn argument(&self, number: usize) -> Option<&OpSharding> {
        if !self.is_tupled {
            return self.of_parameters.get(&(number as i64));
        }
        let tuple = self.of_parameters.get(&0)?;
        // One for all, or one for each.
        Some(if tuple.tuple_shardings.is_empty() { tuple } else { tuple.tuple_shardings.get(number).unwrap_or(tuple) })
    }
}

/// The name of a program.
pub(super) fn name(program: &[u8]) -> Result<String, PjrtError> {
    Ok(HloModuleHeader::decode(program).map_err(PjrtError::program)?.name)
}

/// The part of `HloModuleProto` needed for execution: decoding it skips the rest of a large module.
#[derive(Clone, PartialEq, Message)]
struct HloModuleHeader {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "4")]
    host_program_shape: Option<ProgramShapeProto>,
}

/// The part of `HloModuleProto` with the calls between computations.
#[derive(Clone, PartialEq, Message)]
struct CallingProgram {
    #[prost(message, repeated, tag = "3")]
    computations: Vec<CallingComputation>,
    #[prost(int64, tag = "6")]
    entry_computation_id: i64,
}

#[derive(Clone, PartialEq, Message)]
struct CallingComputation {
    #[prost(message, repeated, tag = "2")]
    instructions: Vec<CallingInstruction>,
    #[prost(int64, tag = "5")]
    id: i64,
}

#[derive(Clone, PartialEq, Message)]
struct CallingInstruction {
    #[prost(string, tag = "2")]
    opcode: String,
    #[prost(int64, repeated, tag = "38")]
    called_computation_ids: Vec<i64>,
}

/// The part of `HloModuleProto` with the shardings of arguments.
#[derive(Clone, PartialEq, Message)]
struct ShardedProgram {
    #[prost(message, repeated, tag = "3")]
    computations: Vec<ShardedComputation>,
    #[prost(int64, tag = "6")]
    entry_computation_id: i64,
}

#[derive(Clone, PartialEq, Message)]
struct ShardedComputation {
    #[prost(message, repeated, tag = "2")]
    instructions: Vec<ShardedInstruction>,
    #[prost(int64, tag = "5")]
    id: i64,
}

#[derive(Clone, PartialEq, Message)]
struct ShardedInstruction {
    #[prost(string, tag = "2")]
    opcode: String,
    #[prost(int64, tag = "9")]
    parameter_number: i64,
    #[prost(message, optional, tag = "40")]
    sharding: Option<OpSharding>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use bf16scope_hlo::{proto, text};

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
