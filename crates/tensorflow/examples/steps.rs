//! Runs the training step of a graph ten times beside TensorFlow's record of it: `steps model.meta record.safetensors`.
//!
//! The record has arrays `before/VARIABLE`, `step0/INPUT`, `step0/loss`, … and `after/VARIABLE`, and may have `xla/VARIABLE`, what
//! another order of sums gave TensorFlow. One line of JSON says how far apart losses and the changes of variables are.
//! `benches/port/official.py` writes such records and reads the line.

use std::collections::BTreeMap;

use bf16scope_hlo::proto::encode;
use bf16scope_hlo::{Array, ArrayShape, DType, Literal};
use bf16scope_pjrt::{Arg, Client, CompileOptions, Platform, Setup};
use bf16scope_tensorflow::{Choice, Graph, lower};

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
        _ => array.to_vec::<f32>().map(|all| all.into_iter().map(f64::from).collect()),
    }
    .unwrap_or_default()
}

/// The norm of `a - b`.
fn distance(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum::<f64>().sqrt()
}

/// How far `ours` is from `theirs`, as a share of what each variable changed: the median of all variables, and the most.
fn apart(record: &BTreeMap<String, Literal>, ours: impl Fn(&str) -> Option<Vec<f64>>) -> (f64, f64, String) {
    let mut shares: Vec<(f64, &str)> = Vec::new();
    for (name, after) in record.iter().filter_map(|(key, array)| Some((key.strip_prefix("after/")?, array))) {
        let (theirs, before) = (numbers(after), record.get(&format!("before/{name}")).map(numbers).unwrap_or_default());
        let (change, size) = (distance(&theirs, &before), distance(&theirs, &vec![0.0; theirs.len()]));
        if let Some(ours) = ours(name)
            // What moved by less than the roundings of its own elements moved by chance.
            && change > size * f64::from(f32::EPSILON) * 10.0
        {
            shares.push((distance(&ours, &theirs) / change, name));
        }
    }
    shares.sort_by(|a, b| a.0.total_cmp(&b.0));
    let median = shares.get(shares.len() / 2).map_or(0.0, |share| share.0);
    shares.last().map_or((median, 0.0, String::new()), |(most, name)| (median, *most, (*name).to_string()))
}

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [meta, record] = &arguments[..] else { return Err("expected: steps model.meta record.safetensors".into()) };
    let record = arrays(record)?;
    let lowered = lower(&Graph::open(std::path::Path::new(meta))?, &Choice { name: None, size_of: &|_, _| None })?;
    let client = Client::of(&Platform::cpu(), &Setup::from_env())?;
    let executable = client.compile(&encode::to_bytes(&lowered.module)?, &CompileOptions::default())?;
    let mut state: BTreeMap<&str, Literal> =
        record.iter().filter_map(|(key, array)| Some((key.strip_prefix("before/")?, array.clone()))).collect();
    let roles = &lowered.roles;
    let (mut losses, mut random) =
        (Vec::new(), Literal::Array { shape: ArrayShape::new(DType::U64, [2]), bytes: vec![1; 16] });
    let n_steps = (0..).take_while(|step| record.contains_key(&format!("step{step}/loss"))).count();
    for step in 0..n_steps {
        let mut literals = Vec::new();
        for variable in &roles.variables {
            literals.push(state.get(variable.name.as_str()).ok_or_else(|| format!("no variable {}", variable.name))?);
        }
        for input in &roles.inputs {
            let key = format!("step{step}/{}", input.name);
            literals.push(record.get(&key).ok_or_else(|| format!("the record has no {key}"))?);
        }
        literals.extend(roles.has_random_state.then_some(&random));
        let buffer = |literal: &&Literal| match literal {
            Literal::Array { shape, bytes } => Ok(client.buffer_from_host(bytes, shape.dtype, &shape.dims, 0)?),
            _ => Err(Failure::from("no array")),
        };
        let buffers = literals.iter().map(buffer).collect::<Result<Vec<_>, _>>()?;
        let outputs = executable.execute(buffers.iter().map(Arg::Keep).collect())?;
        for (number, output) in outputs.iter().enumerate() {
            let shape = ArrayShape::new(output.dtype()?, output.dims()?);
            let value = Literal::Array { shape, bytes: output.to_host()? };
            match roles.results.get(number) {
                None => random = value,
                Some(role) => match role.variable {
                    Some(variable) => drop(state.insert(&roles.variables[variable].name, value)),
                    None if number == 0 => losses.push(numbers(&value)[0]),
                    None => {}
                },
            }
        }
    }
    let of_losses = |prefix: &str| -> Vec<f64> {
        (0..n_steps).filter_map(|step| Some(numbers(record.get(&format!("{prefix}{step}/loss"))?)[0])).collect()
    };
    let theirs = of_losses("step");
    let most = |a: &[f64]| a.iter().zip(&theirs).map(|(a, b)| (a - b).abs() / b.abs()).fold(0.0, f64::max);
    let (median, worst, name) = apart(&record, |name| state.get(name).map(numbers));
    let xla = apart(&record, |name| record.get(&format!("xla/{name}")).map(numbers));
    let xla_losses = of_losses("xla_step");
    println!(
        "{{\"n_variables\": {}, \"loss\": {:e}, \"xla_loss\": {:e}, \"change\": {median:e}, \"worst\": {worst:e}, \
         \"worst_variable\": {name:?}, \"xla_change\": {:e}, \"xla_worst\": {:e}, \"losses\": {losses:?}, \"tensorflow\": {theirs:?}}}",
        state.len(),
        most(&losses),
        most(&xla_losses),
        xla.0,
        xla.1,
    );
    Ok(())
}
