//! Each op beside what TensorFlow computed of it on random inputs, ranks and paddings (`data`).

mod fixtures;
mod run;

use bf16scope_hlo::{Literal, verify};
use bf16scope_tensorflow::{Choice, Graph, lower};
use fixtures::{arrays, difference, unpacked};

#[test]
fn every_op_computes_what_tensorflow_computes() {
    compare("ops");
}

/// `TensorArray`s of both versions in and outside of loops, and what gradients of loops keep.
#[test]
fn lists_and_gradients_of_loops_are_what_tensorflow_computes() {
    compare("lists");
}

fn compare(file: &str) {
    let (arrays, terms) = arrays(file);
    let terms: Vec<(String, f64)> = terms.into_iter().map(|(name, terms)| (name, terms.parse().unwrap())).collect();
    let graph = Graph::read(&unpacked(&format!("{file}.pb")), file).unwrap();
    let mut wrong = Vec::new();
    for (case, terms) in &terms {
        let outs: Vec<String> =
            (0..).map(|n| format!("{case}/out{n}")).take_while(|name| arrays.contains_key(name)).collect();
        assert!(!outs.is_empty(), "{case}");
        let choice = Choice { name: Some(outs.join(",")), size_of: &|_, _| None };
        let lowered = match lower(&graph, &choice) {
            Ok(lowered) => lowered,
            Err(error) => {
                wrong.push(format!("{case}: {error}"));
                continue;
            }
        };
        if let Err(errors) = verify(&lowered.module) {
            wrong.push(format!("{case}: {errors}"));
            continue;
        }
        let inputs: Vec<Literal> = lowered.roles.inputs.iter().map(|input| arrays[&input.name].clone()).collect();
        let results = match run::run(&lowered.module, &inputs) {
            Ok(results) => results,
            Err(error) => {
                wrong.push(format!("{case}: {error}"));
                continue;
            }
        };
        assert_eq!(results.len(), outs.len(), "{case}");
        for (name, ours) in outs.iter().zip(&results) {
            // Eight: four for each of two implementations of a function of one element.
            wrong.extend(difference(ours, &arrays[name], terms + 8.0).map(|text| format!("{name}: {text}")));
        }
    }
    assert!(wrong.is_empty(), "{} of {}\n{}", wrong.len(), terms.len(), wrong.join("\n"));
}
