//! Runs the training step of a graph ten times and compares it with TensorFlow's record: `steps model.meta record.safetensors
//! [--f64]`.
//!
//! The record has arrays `before/VARIABLE`, `step0/INPUT`, `step0/loss`, … and `after/VARIABLE`, and may have `first/VARIABLE`
//! (after one step), and the same of TensorFlow in another order of sums: `xla/…`, `xla_first/…`, and `again/…`, `again_first/…`.
//! Prints the distances of losses and of variables' changes as a line of JSON. With `--f64`, the module also runs widened to f64,
//! and both f32 results are compared with that.
//! `benches/port/official.py` writes such records and reads the line.

use std::collections::BTreeMap;

use bf16scope_hlo::proto::encode;
use bf16scope_hlo::{Array, ArrayShape, DType, Literal, Module};
use bf16scope_passes::widen;
use bf16scope_pjrt::{Arg, Client, CompileOptions, Platform, Setup};
use bf16scope_tensorflow::{Choice, Graph, Roles, lower};

type Failure = Box<dyn std::error::Error>;

fn arrays(path: &str) -> Result<BTreeMap<String, Literal>, Failure> {
    let bytes = std::fs::read(path)?;
    let mut arrays = BTreeMap::new();
    for (name, view) in safetensors::SafeTensors::deserialize(&bytes)?.tensors() {
        let dims = view.shape().iter().map(|dim| *dim as i64);
        let dtype = match view.dtype() {
            safetensors::Dtype::F32 => DType::F32,
            safetensors::Dtype::F64 => DType::F64,
            safetensors::Dtype::I32 => DType::S32,
            safetensors::Dtype::I64 => DType::S64,
            safetensors::Dtype::BOOL => DType::Pred,
            other => return Err(format!("{name} is {other:?}").into()),
        };
        let shape = ArrayShape::new(dtype, dims.collect::<Vec<_>>());
        arrays.insert(name, Literal::Array { shape, bytes: view.data().to_vec() });
    }
    Ok(arrays)
}

fn numbers(literal: &Literal) -> Vec<f64> {
    let Literal::Array { shape, bytes } = literal else { return Vec::new() };
    let array = Array { shape: shape.clone(), bytes: bytes.clone() };
    match shape.dtype {
        DType::S64 => array.to_vec::<i64>().map(|all| all.into_iter().map(|x| x as f64).collect()),
        DType::S32 => array.to_vec::<i32>().map(|all| all.into_iter().map(f64::from).collect()),
        DType::F64 => array.to_vec::<f64>(),
        DType::U64 | DType::Pred => return Vec::new(),
        _ => array.to_vec::<f32>().map(|all| all.into_iter().map(f64::from).collect()),
    }
    .unwrap_or_default()
}

/// Values by variable.
type State = BTreeMap<String, Literal>;

/// The norm of `a - b`.
fn distance(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum::<f64>().sqrt()
}

/// The distance of `ours` from `theirs`, relative to each variable's change since `before`.
struct Apart {
    median: f64,
    worst: f64,
    variable: String,
}

fn apart(before: &State, theirs: &State, ours: &State) -> Option<Apart> {
    let mut shares: Vec<(f64, &str)> = Vec::new();
    for (name, theirs) in theirs {
        let (Some(before), Some(ours)) = (before.get(name), ours.get(name)) else { continue };
        let [before, theirs, ours] = [before, theirs, ours].map(numbers);
        let (change, size) = (distance(&theirs, &before), distance(&theirs, &vec![0.0; theirs.len()]));
        // A change below the roundings of the variable's own elements is noise.
        if change > size * f64::from(f32::EPSILON) * 10.0 {
            shares.push((distance(&ours, &theirs) / change, name));
        }
    }
    shares.sort_by(|a, b| a.0.total_cmp(&b.0));
    let median = shares.get(shares.len() / 2)?.0;
    shares.last().map(|(worst, name)| Apart { median, worst: *worst, variable: (*name).to_string() })
}

/// The results of a run: its losses, and the variables after the first and the last step.
#[derive(Default)]
struct Ran {
    losses: Vec<f64>,
    first: State,
    last: State,
}

fn run(module: &Module, roles: &Roles, record: &State, is_wide: bool) -> Result<Ran, Failure> {
    let client = Client::for_platform(&Platform::cpu(), &Setup::from_env())?;
    let executable = client.compile(&encode::to_bytes(module)?, &CompileOptions::default())?;
    let fitted = |literal: &Literal| if is_wide { widen::widened_literal(literal) } else { literal.clone() };
    let mut state: State = record
        .iter()
        .filter_map(|(key, array)| Some((key.strip_prefix("before/")?.to_string(), fitted(array))))
        .collect();
    let mut random = Literal::Array { shape: ArrayShape::new(DType::U64, [2]), bytes: vec![1; 16] };
    let mut ran = Ran::default();
    for step in (0..).take_while(|step| record.contains_key(&format!("step{step}/loss"))) {
        let mut literals: Vec<std::borrow::Cow<'_, Literal>> = Vec::new();
        for variable in &roles.variables {
            let value = state.get(&variable.name).ok_or_else(|| format!("no variable {}", variable.name))?;
            literals.push(std::borrow::Cow::Borrowed(value));
        }
        for input in &roles.inputs {
            let key = format!("step{step}/{}", input.name);
            let value = fitted(record.get(&key).ok_or_else(|| format!("the record has no {key}"))?);
            literals.push(std::borrow::Cow::Owned(value));
        }
        literals.extend(roles.has_random_state.then_some(std::borrow::Cow::Borrowed(&random)));
        let buffer = |literal: &Literal| match literal {
            Literal::Array { shape, bytes } => Ok(client.buffer_from_host(bytes, shape.dtype, &shape.dims, 0)?),
            _ => Err(Failure::from("no array")),
        };
        let buffers = literals.iter().map(|literal| buffer(literal)).collect::<Result<Vec<_>, _>>()?;
        drop(literals);
        let outputs = executable.execute(buffers.iter().map(Arg::Keep).collect())?;
        for (number, output) in outputs.iter().enumerate() {
            let shape = ArrayShape::new(output.dtype()?, output.dims()?);
            let value = Literal::Array { shape, bytes: output.to_host()? };
            match roles.results.get(number) {
                None => random = value,
                Some(role) => match role.variable {
                    Some(variable) => drop(state.insert(roles.variables[variable].name.clone(), value)),
                    None if number == 0 => ran.losses.push(numbers(&value)[0]),
                    None => {}
                },
            }
        }
        if step == 0 {
            ran.first = state.clone();
        }
    }
    ran.last = state;
    Ok(ran)
}

fn main() -> Result<(), Failure> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let is_wide = arguments.iter().position(|argument| argument == "--f64").map(|at| arguments.remove(at)).is_some();
    let [meta, record] = &arguments[..] else {
        return Err("expected: steps model.meta record.safetensors [--f64]".into());
    };
    let mut record = arrays(record)?;
    let lowered = lower(&Graph::open(std::path::Path::new(meta))?, &Choice { name: None, size_of: &|_, _| None })?;
    let mut recorded = |prefix: &str| -> State {
        let keys: Vec<String> = record.keys().filter(|key| key.starts_with(prefix)).cloned().collect();
        keys.into_iter().filter_map(|key| Some((key[prefix.len()..].to_string(), record.remove(&key)?))).collect()
    };
    let [first, last] = [recorded("first/"), recorded("after/")];
    let others =
        ["xla", "again"].map(|name| (name, recorded(&format!("{name}_first/")), recorded(&format!("{name}/"))));
    let losses = |prefix: &str| -> Vec<f64> {
        (0..).map_while(|step| Some(numbers(record.get(&format!("{prefix}{step}/loss"))?)[0])).collect()
    };
    let theirs = Ran { losses: losses("step"), first, last };
    let mut runs = vec![("", run(&lowered.module, &lowered.roles, &record, false)?)];
    runs.extend(others.map(|(name, first, last)| (name, Ran { losses: losses(&format!("{name}_step")), first, last })));
    let before: State = record
        .iter()
        .filter_map(|(key, array)| Some((key.strip_prefix("before/")?.to_string(), array.clone())))
        .collect();
    let mut fields = vec![format!("\"n_variables\": {}", lowered.roles.variables.len())];
    let mut say = |name: &str, reference: &Ran, ran: &Ran| {
        let key = |field: &str| if name.is_empty() { field.to_string() } else { format!("{name}_{field}") };
        let pairs = ran.losses.iter().zip(&reference.losses).map(|(a, b)| (a - b).abs() / b.abs());
        fields.extend(pairs.reduce(f64::max).map(|most| format!("\"{}\": {most:e}", key("loss"))));
        for (prefix, at_reference, at) in [("first_", &reference.first, &ran.first), ("", &reference.last, &ran.last)] {
            let Some(apart) = apart(&before, at_reference, at) else { continue };
            let key = |field: &str| format!("\"{}\"", key(&format!("{prefix}{field}")));
            fields.push(format!("{}: {:e}", key("change"), apart.median));
            fields.push(format!(
                "{}: {:e}, {}: {:?}",
                key("worst"),
                apart.worst,
                key("worst_variable"),
                apart.variable
            ));
        }
    };
    runs.iter().for_each(|(name, ran)| say(name, &theirs, ran));
    if is_wide {
        let (wide, _) = widen::run(&lowered.module, &widen::Config)?;
        let wide = run(&wide, &lowered.roles, &record, true)?;
        say("f64_ours", &wide, &runs[0].1);
        say("f64_theirs", &wide, &theirs);
    }
    fields.push(format!("\"losses\": {:?}, \"tensorflow\": {:?}", runs[0].1.losses, theirs.losses));
    println!("{{{}}}", fields.join(", "));
    Ok(())
}
