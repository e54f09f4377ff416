//! Each op beside what TensorFlow computed of it on random inputs, ranks and paddings (`data`).

mod run;

use bf16scope_hlo::{DType, Literal, verify};
use bf16scope_tensorflow::{Choice, Graph, lower};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data")
}

/// Arrays by name, and for each case how many roundings meet in a result.
fn fixtures() -> (BTreeMap<String, Literal>, BTreeMap<String, f64>) {
    let bytes = std::fs::read(folder().join("ops.safetensors")).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let (_, metadata) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    let array = |(name, view): (String, safetensors::tensor::TensorView<'_>)| {
        let dims: Vec<i64> = view.shape().iter().map(|dim| *dim as i64).collect();
        let dtype = match view.dtype() {
            safetensors::Dtype::F32 => DType::F32,
            safetensors::Dtype::F64 => DType::F64,
            safetensors::Dtype::F16 => DType::F16,
            safetensors::Dtype::BF16 => DType::BF16,
            safetensors::Dtype::I32 => DType::S32,
            safetensors::Dtype::I64 => DType::S64,
            safetensors::Dtype::U8 => DType::U8,
            safetensors::Dtype::BOOL => DType::Pred,
            other => panic!("{name} is {other:?}"),
        };
        let shape = bf16scope_hlo::ArrayShape::new(dtype, dims);
        (name, Literal::Array { shape, bytes: view.data().to_vec() })
    };
    let terms = metadata.metadata().clone().unwrap_or_default();
    let terms = terms.into_iter().map(|(name, terms)| (name, terms.parse().unwrap())).collect();
    (tensors.tensors().into_iter().map(array).collect(), terms)
}

fn values(literal: &Literal) -> Vec<f64> {
    let Literal::Array { shape, .. } = literal else { panic!("{literal:?}") };
    match shape.dtype {
        DType::F64 => literal.elements::<f64>().unwrap(),
        DType::F32 | DType::BF16 | DType::F16 => run::f32s(literal),
        DType::S32 => literal.elements::<i32>().unwrap().into_iter().map(f64::from).collect(),
        DType::S64 => literal.elements::<i64>().unwrap().into_iter().map(|x| x as f64).collect(),
        DType::U8 => literal.elements::<u8>().unwrap().into_iter().map(f64::from).collect(),
        DType::Pred => literal.elements::<bool>().unwrap().into_iter().map(|x| f64::from(u8::from(x))).collect(),
        other => panic!("{other}"),
    }
}

/// What differs between two arrays by more than `terms` roundings, each of half an ulp of the largest element.
fn difference(ours: &Literal, theirs: &Literal, terms: f64) -> Option<String> {
    if ours.shape().without_layout() != theirs.shape().without_layout() {
        return Some(format!("{} instead of {}", ours.shape(), theirs.shape()));
    }
    let epsilon = match ours.shape().dtype() {
        Some(DType::F32) => f64::from(f32::EPSILON) / 2.0,
        Some(DType::F64) => f64::EPSILON / 2.0,
        Some(DType::F16) => 2f64.powi(-11),
        Some(DType::BF16) => 2f64.powi(-8),
        _ => 0.0,
    };
    let (ours, theirs) = (values(ours), values(theirs));
    let scale = theirs.iter().filter(|x| x.is_finite()).fold(0f64, |most, x| most.max(x.abs()));
    let bound = terms * epsilon * scale;
    let is_same = |a: f64, b: f64| a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= bound;
    let at = ours.iter().zip(&theirs).position(|(a, b)| !is_same(*a, *b))?;
    Some(format!(
        "[{at}] is {}, expected {} within {bound:e}\n   ours {ours:?}\n theirs {theirs:?}",
        ours[at], theirs[at]
    ))
}

#[test]
fn every_op_computes_what_tensorflow_computes() {
    let (arrays, terms) = fixtures();
    let graph = Graph::read(&std::fs::read(folder().join("ops.pb")).unwrap(), "ops.pb").unwrap();
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
