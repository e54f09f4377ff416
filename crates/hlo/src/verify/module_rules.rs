//! Step three: rules about more than one instruction: names, parameters, aliases, the entry layout.

use super::Errors;
use super::ids::comps;
use super::instructions::check_shape;
use crate::ops::RuleError;
use crate::{CompId, Computation, InstrId, Module, Op, Shape};
use std::collections::{BTreeSet, HashSet};

pub(super) fn check(module: &Module, errors: &mut Errors<'_>) {
    check_names(module, errors);
    let mut entry_is_numbered = true;
    for (comp, computation) in comps(module) {
        let is_numbered = check_parameters(comp, computation, errors);
        entry_is_numbered &= is_numbered || comp != module.entry;
    }
    check_entry_parameters(module, errors);
    if entry_is_numbered {
        check_aliases(module, errors);
        check_entry_layout(module, errors);
    }
}

/// Whether a name has only letters, digits, `_`, `.` and `-`, which XLA's text allows.
fn is_printable(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-'))
}

fn check_names(module: &Module, errors: &mut Errors<'_>) {
    let mut computations = HashSet::with_capacity(module.computations.len());
    let mut instructions: HashSet<&str, foldhash::fast::RandomState> = HashSet::default();
    for (comp, computation) in comps(module) {
        if let Some(error) = name_error(&computation.name) {
            errors.computation(comp, error);
        }
        if !computations.insert(&computation.name) {
            let message = format!("two computations are named `{}`, expected different names", computation.name);
            errors.computation(comp, RuleError::new("names/computation-twice", message));
        }
        instructions.clear();
        instructions.reserve(computation.instructions.len());
        for id in computation.ids() {
            let name = &computation.instr(id).name;
            if let Some(error) = name_error(name) {
                errors.instruction(comp, id, error);
            }
            if !instructions.insert(name) {
                let message =
                    format!("another instruction of {} is named `{name}`, expected different names", computation.name);
                errors.instruction(comp, id, RuleError::new("names/instruction-twice", message));
            }
        }
    }
}

fn name_error(name: &str) -> Option<RuleError> {
    let message = || format!("name is {name:?}, expected letters, digits, `_`, `.` and `-`, at least one");
    (!is_printable(name)).then(|| RuleError::new("names/spelling", message()))
}

/// Whether parameters are numbered 0, 1, …, n-1, each once.
fn check_parameters(comp: CompId, computation: &Computation, errors: &mut Errors<'_>) -> bool {
    let number = |id: InstrId| match &computation.instr(id).op {
        Op::Parameter { number, .. } => Some((id, *number)),
        _ => None,
    };
    let parameters: Vec<(InstrId, i64)> = computation.ids().filter_map(number).collect();
    let n = parameters.len();
    let mut is_numbered = true;
    let mut seen = BTreeSet::new();
    for &(id, number) in &parameters {
        if !(0..n as i64).contains(&number) {
            let message = format!("parameter number is {number}, expected 0 <= number < {n}: there are {n} parameters");
            errors.instruction(comp, id, RuleError::new("parameters/number", message));
            is_numbered = false;
        } else if !seen.insert(number) {
            let message = format!("two parameters have number {number}, expected each number once");
            errors.instruction(comp, id, RuleError::new("parameters/number-twice", message));
            is_numbered = false;
        }
    }
    is_numbered
}

/// Arrays and tokens, or one tuple of them: PJRT clients abort on any other tuple.
fn check_entry_parameters(module: &Module, errors: &mut Errors<'_>) {
    let entry = module.entry();
    let parameters = entry.parameters();
    for &id in &parameters {
        let message = match &entry.instr(id).shape {
            Shape::Tuple(_) if parameters.len() > 1 => {
                format!(
                    "the entry has a tuple among its {} parameters, expected arrays, or only one tuple",
                    parameters.len()
                )
            }
            Shape::Tuple(elements) if elements.iter().any(|element| element.as_tuple().is_some()) => {
                "the entry's parameter is a tuple of tuples, expected a tuple of arrays".to_string()
            }
            Shape::Tuple(_) | Shape::Array(_) | Shape::Token | Shape::Opaque | Shape::Buffer(_) => continue,
        };
        let error = RuleError::new("parameters/entry-tuple", message);
        errors.instruction(module.entry, id, error.with_help("make each array a parameter of its own"));
    }
}

/// The shape at an index into nested tuples.
fn subshape<'a>(shape: &'a Shape, index: &[i64]) -> Option<&'a Shape> {
    index.iter().try_fold(shape, |shape, &i| shape.as_tuple()?.get(usize::try_from(i).ok()?))
}

fn check_aliases(module: &Module, errors: &mut Errors<'_>) {
    let mut outputs = BTreeSet::new();
    let mut inputs = BTreeSet::new();
    let entry = module.entry();
    // By number: the entry's parameters are 0, 1, …
    let parameters = entry.parameters();
    let buffer = |number: i64, index: &[i64]| {
        let &parameter = parameters.get(usize::try_from(number).ok()?)?;
        subshape(&entry.instr(parameter).shape, index)
    };
    for alias in &module.input_output_alias {
        let (output, number, index) = (&alias.output_index, alias.parameter_number, &alias.parameter_index);
        let place = format!("input_output_alias of output {output:?} and parameter {number} {index:?}");
        let output_shape = subshape(entry.result_shape(), output);
        let parameter_shape = buffer(number, index);
        match (output_shape, parameter_shape) {
            (None, _) => {
                let result = entry.result_shape().without_layout();
                let message = format!("{place}: the result is {result}, expected one with that output");
                errors.module(RuleError::new("alias/output", message));
            }
            (_, None) => {
                let message = format!("{place}: the entry has no such parameter, expected one");
                errors.module(RuleError::new("alias/parameter", message));
            }
            (Some(output_shape), Some(parameter_shape)) => {
                if !matches!(output_shape, Shape::Array(_)) || !output_shape.is_compatible(parameter_shape) {
                    let message = format!(
                        "{place}: shapes are {} and {}, expected one array shape",
                        output_shape.without_layout(),
                        parameter_shape.without_layout()
                    );
                    errors.module(RuleError::new("alias/shapes", message));
                }
            }
        }
        if !outputs.insert(output) {
            let message = format!("{place}: the output is aliased twice, expected once");
            errors.module(RuleError::new("alias/output-twice", message));
        }
        if !inputs.insert((number, index)) {
            let message = format!("{place}: the parameter is aliased twice, expected once");
            errors.module(RuleError::new("alias/parameter-twice", message));
        }
    }
    for (number, index) in &module.buffer_donors {
        let place = format!("buffer_donor parameter {number} {index:?}");
        if !matches!(buffer(*number, index), Some(Shape::Array(_))) {
            let message = format!("{place}: the entry has no such array, expected one");
            errors.module(RuleError::new("donor/parameter", message));
        }
        if inputs.contains(&(*number, index)) {
            let message = format!("{place}: input_output_alias has it too, expected one of the two");
            errors.module(RuleError::new("donor/aliased", message));
        }
    }
}

fn check_entry_layout(module: &Module, errors: &mut Errors<'_>) {
    let Some(layout) = &module.entry_layout else {
        return;
    };
    let entry = module.entry();
    let parameters = entry.parameters();
    if layout.parameters.len() != parameters.len() {
        let message = format!(
            "entry_computation_layout has {} parameters, expected {}, as the entry",
            layout.parameters.len(),
            parameters.len()
        );
        errors.module(RuleError::new("entry-layout/parameters", message));
        return;
    }
    let expected = parameters.iter().map(|&id| &entry.instr(id).shape).chain([entry.result_shape()]);
    let measured = layout.parameters.iter().chain([&layout.result]);
    for (i, (measured, expected)) in measured.zip(expected).enumerate() {
        let role = if i < parameters.len() { format!("parameter {i}") } else { "result".to_string() };
        if !measured.is_compatible(expected) {
            let message = format!(
                "entry_computation_layout has {role} {}, expected {}",
                measured.without_layout(),
                expected.without_layout()
            );
            errors.module(RuleError::new("entry-layout/shapes", message));
        } else if let Err(error) = check_shape("entry_computation_layout", measured) {
            let message = format!("entry_computation_layout {role}: {}", error.message);
            errors.module(RuleError::new(error.rule, message));
        }
    }
}
