//! Compares the training steps of Savers' .meta files with three steps in TensorFlow: losses, variables, slots, counters.

mod fixtures;
mod run;

use bf16scope_hlo::{DType, Literal, verify};
use bf16scope_tensorflow::{Choice, Graph, Lowered, lower};
use fixtures::{arrays, difference, unpacked, values};
use std::collections::BTreeMap;

fn lowered(name: &str) -> Lowered {
    let graph = Graph::read(&unpacked(&format!("{name}.meta")), name).unwrap();
    lower(&graph, &Choice { name: None, size_of: &|_, _| None }).unwrap_or_else(|error| panic!("{error}"))
}

/// A bound on the difference of two results.
enum Bound {
    /// The `terms` of [`difference`].
    Terms(f64),
    /// Relative to the largest change of the variable in three steps.
    Change(f64),
}

/// Runs three steps.
fn check(name: &str, bound: &Bound) {
    let lowered = lowered(name);
    verify(&lowered.module).unwrap_or_else(|errors| panic!("{name}: {errors}"));
    let (arrays, _) = arrays(name);
    let mut state: BTreeMap<String, Literal> = arrays
        .iter()
        .filter_map(|(key, array)| Some((key.strip_prefix("before/")?.to_string(), array.clone())))
        .collect();
    // The module has every variable that the step reads or changes.
    let roles = &lowered.roles;
    let mut wrong = Vec::new();
    for step in 0..3 {
        let variables = roles.variables.iter().map(|variable| state[&variable.name].clone());
        let inputs = roles.inputs.iter().map(|input| arrays[&format!("step{step}/{}", input.name)].clone());
        let arguments: Vec<Literal> = variables.chain(inputs).collect();
        let results = run::run(&lowered.module, &arguments).unwrap();
        for (result, role) in results.into_iter().zip(&roles.results) {
            match role.variable {
                Some(variable) => {
                    state.insert(roles.variables[variable].name.clone(), result);
                }
                None => {
                    // The loss; other losses of the collection are terms of it.
                    let loss = &arrays[&format!("step{step}/loss")];
                    println!("{name} step {step} {}: {:?}, TensorFlow {:?}", role.name, values(&result), values(loss));
                }
            }
        }
    }
    let mut n = 0;
    for (key, theirs) in arrays.iter().filter_map(|(key, array)| Some((key.strip_prefix("after/")?, array))) {
        n += 1;
        match bound {
            Bound::Terms(terms) => {
                wrong.extend(difference(&state[key], theirs, *terms).map(|text| format!("{key}: {text}")))
            }
            Bound::Change(share) => {
                let (ours, theirs, before) =
                    (values(&state[key]), values(theirs), values(&arrays[&format!("before/{key}")]));
                let most = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
                let (apart, change) = (most(&ours, &theirs), most(&theirs, &before));
                if apart > share * change {
                    wrong.push(format!("{key}: {apart:e} apart, of a change of {change:e}"));
                }
            }
        }
    }
    assert_eq!(n, state.len());
    assert!(wrong.is_empty(), "{name}: {} of {n} variables\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn three_steps_are_tensorflows() {
    for name in ["mlp_adam", "cnn", "resnet"] {
        check(name, &Bound::Terms(1000.0));
    }
}

/// An LSTM over lengths, rows of tables by segment, and updates of the rows that were read (Adagrad, FTRL, momentum).
#[test]
fn three_steps_of_a_recurrent_network_with_tables_are_tensorflows() {
    check("recurrent", &Bound::Terms(1000.0));
}

#[test]
fn three_steps_in_a_bf16_scope_are_tensorflows() {
    // A gradient is rounded to bf16 (2^-8) at each product and activation on its path, forward and backward, and each rounding
    // may go the other way if sums are ordered differently: 8 roundings in the two layers.
    check("mlp", &Bound::Change(8.0 / 256.0));
    // 70 roundings in the network of 11 convolutions with their activations.
    check("resnet_bf16", &Bound::Change(70.0 / 256.0));
}

#[test]
fn a_bf16_scope_keeps_f32_variables_and_casts_them() {
    let lowered = lowered("resnet_bf16");
    assert!(lowered.roles.variables.iter().all(|variable| variable.shape.dtype != DType::BF16));
    let entry = lowered.module.entry();
    let convolutions = entry.instructions.iter().filter(|instr| instr.op.opcode() == "convolution");
    assert!(convolutions.clone().all(|instr| instr.shape.dtype() == Some(DType::BF16)));
    assert!(convolutions.count() > 20);
}
