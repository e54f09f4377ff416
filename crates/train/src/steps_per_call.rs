//! Several training steps in one call of the device, like TPUEstimator's `iterations_per_loop`: all batches are
//! uploaded together, and the reports of all steps are returned together.

use super::accumulation::declare_variables;
use super::program::{TaskProgram, finish_with_state};
use super::program_error::ProgramError;
use bf16scope_model::graph::{Graph, InputInfo, Operand, Tensor};
use serde::de::{self, Deserializer, Unexpected, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

/// The number of steps in a call of the training program, and how they are emitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepsPerCall {
    /// Steps one after the other: the bits of as many calls of one step, at as many times the program's size.
    Unrolled(NonZeroU32),
    /// A `while` loop, whose compile time does not depend on the number of steps. A compiler may fuse a loop's body
    /// differently from a single step's program, so the last bits may differ: a resumed run must keep the setting.
    While(NonZeroU32),
}

impl Default for StepsPerCall {
    fn default() -> Self {
        StepsPerCall::Unrolled(NonZeroU32::MIN)
    }
}

impl StepsPerCall {
    /// The number of steps.
    pub fn n(self) -> NonZeroU32 {
        match self {
            StepsPerCall::Unrolled(n) | StepsPerCall::While(n) => n,
        }
    }
}

/// The program that makes several steps of `step`, a training program of one step.
///
/// # Shapes
/// Parameters and results as in [`training`](super::program::training), but each feature is `[n · batch, dims…]`, the
/// first step's batch first; `step` counts up from its value; and each sum, weight and scalar is an array `[n]`.
///
/// # Errors
/// More steps than the program can count; batches that are too large together.
pub fn several_steps(step: TaskProgram, calls: StepsPerCall) -> Result<TaskProgram, ProgramError> {
    if calls == StepsPerCall::default() {
        return Ok(step);
    }
    let n = calls.n().get();
    let TaskProgram { program, reported, scalars, .. } = step;
    let _span = tracing::info_span!("build", program = "steps", n).entered();
    let graph = Graph::new(&format!("{}s_{n}", program.module.name));
    declare_variables(&graph, &program);
    let n_state = program.variables.len();
    let state: Vec<Tensor> = graph.variables().iter().map(|variable| graph.tensor(variable.instr)).collect();
    let input = |input: &InputInfo| match input.name.as_str() {
        "step" => graph.input("step", input.dtype, input.dims.clone()),
        _ => graph.input_of_steps(input, n),
    };
    let inputs: Vec<Tensor> = program.inputs.iter().map(input).collect();
    let operands = program.inputs.iter().zip(&inputs).map(|(info, tensor)| match info.name.as_str() {
        "step" => Operand::Counted(tensor),
        _ => Operand::Split(tensor),
    });
    let operands: Vec<Operand<'_>> = state.iter().map(Operand::Carried).chain(operands).collect();
    let results = match calls {
        StepsPerCall::Unrolled(_) => graph.scan_unrolled(n, &program.module, &operands),
        StepsPerCall::While(_) => graph.scan(n, &program.module, &operands),
    };
    for (number, variable) in program.variables.iter().enumerate() {
        if variable.update.is_some() {
            graph.set_update(number, &results[number]);
        }
    }
    let names = program.outputs.into_iter().skip(n_state);
    let others: Vec<(String, Tensor)> = names.zip(results.into_iter().skip(n_state)).collect();
    Ok(TaskProgram { program: finish_with_state(&graph, &others)?, reported, scalars, n_steps: calls.n() })
}

const EXPECTED: &str = "a whole number from 1 up, or `while:N`";

/// A text that is not a [`StepsPerCall`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not how many steps a call makes, expected {EXPECTED}")]
pub struct UnknownStepsPerCall(String);

/// That many steps, unrolled.
impl TryFrom<u32> for StepsPerCall {
    type Error = UnknownStepsPerCall;

    fn try_from(n: u32) -> Result<StepsPerCall, UnknownStepsPerCall> {
        n.to_string().parse()
    }
}

impl FromStr for StepsPerCall {
    type Err = UnknownStepsPerCall;

    fn from_str(text: &str) -> Result<StepsPerCall, UnknownStepsPerCall> {
        let unknown = || UnknownStepsPerCall(text.to_string());
        let n = |text: &str| match text.parse::<i32>() {
            Ok(n) if n > 0 => NonZeroU32::new(n as u32).ok_or_else(unknown),
            Ok(_) | Err(_) => Err(unknown()),
        };
        match text.strip_prefix("while:") {
            Some(number) => Ok(StepsPerCall::While(n(number)?)),
            None => Ok(StepsPerCall::Unrolled(n(text)?)),
        }
    }
}

impl fmt::Display for StepsPerCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StepsPerCall::Unrolled(n) => write!(f, "{n}"),
            StepsPerCall::While(n) => write!(f, "while:{n}"),
        }
    }
}

impl Serialize for StepsPerCall {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            StepsPerCall::Unrolled(n) => serializer.serialize_u32(n.get()),
            StepsPerCall::While(_) => serializer.collect_str(self),
        }
    }
}

/// Rejected inside the visitor, so that the error points at the value and not at its block.
impl<'de> Deserialize<'de> for StepsPerCall {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<StepsPerCall, D::Error> {
        struct Calls;
        impl Visitor<'_> for Calls {
            type Value = StepsPerCall;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(EXPECTED)
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<StepsPerCall, E> {
                text.parse().map_err(|_| E::invalid_value(Unexpected::Str(text), &self))
            }
            fn visit_u64<E: de::Error>(self, n: u64) -> Result<StepsPerCall, E> {
                n.to_string().parse().map_err(|_| E::invalid_value(Unexpected::Unsigned(n), &self))
            }
            fn visit_i64<E: de::Error>(self, n: i64) -> Result<StepsPerCall, E> {
                Err(E::invalid_value(Unexpected::Signed(n), &self))
            }
        }
        deserializer.deserialize_any(Calls)
    }
}
