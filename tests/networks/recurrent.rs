//! Recurrent layers against Keras' (`tests/data/layers_tf/make_recurrent.py`): states, masks, both directions, and all gradients; and in bf16.
//!
//! In f32 a sum before a gate has 11 products of numbers below 4, so it is off by at most `11 · 44 · 2^-24 = 3e-5` if all roundings
//! pulled the same way, in practice by a tenth of that; five steps and gradients of sums over 15 rows add as much again a few
//! times. A wrong gate, order or mask is off by a tenth and more.

use crate::run;
use bf16scope::graph::{Graph, Precision, Program, Scope, Tensor};
use bf16scope::hlo::{DType, Literal, Op};
use bf16scope::nn::{Gru, Lstm, StepRemat, gru, lstm};
use bf16scope::passes::grad;
use ndarray::ArrayD;
use ndarray_npy::NpzReader;
use std::fs::File;

const TOLERANCE: f32 = 1e-4;

fn recorded(name: &str) -> Option<ArrayD<f32>> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/layers_tf/recurrent.npz");
    let mut npz = NpzReader::new(File::open(path).unwrap()).unwrap();
    npz.by_name(name).ok()
}

/// The layer of a case.
fn layer(case: &str, (unroll, remat): (bool, StepRemat), s: &Scope, x: &Tensor, mask: Option<&Tensor>) -> Tensor {
    let bidirectional = case.contains("bidirectional");
    let return_sequences = !matches!(case, "lstm" | "gru") && !case.ends_with("last");
    if case.starts_with("lstm") {
        let config = Lstm { units: 6, bidirectional, return_sequences, unroll, remat, ..Lstm::default() };
        return lstm(s, x, mask, "", &config);
    }
    gru(s, x, mask, "", &Gru { units: 6, bidirectional, return_sequences, unroll, remat, ..Gru::default() })
}

/// The result, and the gradients by x and all variables of its product with a cotangent.
fn program(case: &str, unroll: bool, remat: StepRemat) -> Program {
    let g = Graph::training(case);
    let x = g.input("x", DType::F32, [3, 5, 4]);
    let mask = recorded(&format!("{case}/mask")).map(|_| g.input("mask", DType::F32, [3, 5]));
    let y = layer(case, (unroll, remat), &g.scope(), &x, mask.as_ref());
    let cotangent = g.input("cotangent", DType::F32, y.dims());
    let axes: Vec<i64> = (0..y.rank() as i64).collect();
    let loss = (&y * &cotangent).sum(&axes);
    let variables = g.variables();
    let wrt = (0..variables.len()).map(|number| g.differentiable(number));
    let wrt: Vec<_> = [x.id].into_iter().chain(wrt).collect();
    let gradients = grad::gradients(g.emitter(), loss.id, &wrt).unwrap();
    let names = ["gradient_x".to_string()].into_iter().chain(variables.iter().map(|v| format!("gradient_{}", v.name)));
    let named: Vec<(String, Tensor)> = names.zip(gradients.into_iter().map(|id| g.tensor(id))).collect();
    let mut outputs = vec![("y", &y)];
    outputs.extend(named.iter().map(|(name, tensor)| (name.as_str(), tensor)));
    g.finish(&outputs).unwrap()
}

fn argument(case: &str, name: &str) -> Literal {
    let array = recorded(&format!("{case}/{name}")).unwrap_or_else(|| panic!("{case} has no {name}"));
    let dims: Vec<i64> = array.shape().iter().map(|&dim| dim as i64).collect();
    Literal::from_elements(dims, &array.iter().copied().collect::<Vec<f32>>())
}

/// Runs a case and compares it with what Keras computed.
fn as_keras(case: &str, remat: StepRemat) -> Vec<Literal> {
    let looped = program(case, false, remat);
    let results = run::run(&looped, |name| argument(case, name));
    for (name, result) in looped.outputs.iter().zip(&results) {
        let expected = recorded(&format!("{case}/{name}")).unwrap_or_else(|| panic!("{case} has no {name}"));
        let result = run::f32s(result);
        assert_eq!(result.len(), expected.len(), "{case}: {name}");
        for (idx, (result, expected)) in result.iter().zip(&expected).enumerate() {
            let error = (result - expected).abs();
            let what = format!("{case} ({remat:?}): {name}[{idx}]");
            assert!(error <= TOLERANCE * (1.0 + expected.abs()), "{what} {result}, {expected}");
        }
    }
    results
}

/// The largest array of a step's program that a loop carries, in elements: what reverse mode keeps over the steps.
#[test]
fn segments_keep_less_than_steps_and_steps_less_than_all() {
    let kept = |remat: StepRemat| {
        let g = Graph::training("lstm");
        let x = g.input("x", DType::F32, [2, 64, 4]);
        let y = lstm(&g.scope(), &x, None, "lstm", &Lstm { units: 8, remat, ..Lstm::default() });
        let loss = (&y * &y).sum(&[0, 1]);
        let wrt: Vec<_> = (0..g.variables().len()).map(|number| g.differentiable(number)).collect();
        let gradients = grad::gradients(g.emitter(), loss.id, &wrt).unwrap();
        let gradients: Vec<Tensor> = gradients.into_iter().map(|id| g.tensor(id)).collect();
        let program = g.finish(&[("kernel", &gradients[0])]).unwrap();
        let computations = &program.module.computations;
        let loops = computations.iter().flat_map(|it| &it.instructions).filter(|it| matches!(it.op, Op::While { .. }));
        let elements = |instr: &bf16scope::hlo::Instruction| -> i64 {
            instr.shape.leaves().iter().map(|leaf| leaf.dims().iter().product::<i64>()).sum()
        };
        loops.map(elements).max().unwrap()
    };
    let (all, steps, segments) = (kept(StepRemat::Nothing), kept(StepRemat::Steps), kept(StepRemat::Segments));
    assert!(all > steps && steps > segments, "{all}, {steps}, {segments}");
    // Less than the products of all steps with the kernel, which are made by segments.
    assert!(segments < 64 * 2 * 4 * 8, "{segments}");
}

#[test]
fn recurrent_layers_compute_what_keras_does() {
    for kind in ["lstm", "gru"] {
        for form in ["", "_sequences", "_masked", "_bidirectional", "_bidirectional_last"] {
            let case = format!("{kind}{form}");
            let plain = as_keras(&case, StepRemat::Nothing);
            // Of five steps two segments, and one step that is left.
            for remat in [StepRemat::Steps, StepRemat::Segments] {
                as_keras(&case, remat);
            }
            // Trip by trip the same arithmetic.
            let unrolled = run::run(&program(&case, true, StepRemat::Nothing), |name| argument(&case, name));
            run::assert_same(&plain, &unrolled, &case);
        }
    }
}

/// Variables are f32 and read as bf16, the state is bf16, the cell f32.
#[test]
fn in_a_bf16_scope_the_cell_is_carried_in_f32() {
    let g = Graph::training("lstm").computing_in(Precision::Bf16);
    let x = g.input("x", DType::BF16, [3, 5, 4]);
    let y = g.bf16_scope(|s| lstm(s, &x, None, "lstm", &Lstm { units: 6, ..Lstm::default() }));
    assert_eq!(y.dtype(), DType::BF16);
    let program = g.finish(&[("y", &y)]).unwrap();
    assert!(program.variables.iter().all(|variable| variable.dtype == DType::F32));
    let entry = program.module.entry();
    let state = entry.instructions.iter().find(|instr| matches!(instr.op, Op::While { .. })).unwrap();
    let leaves: Vec<String> = state.shape.leaves().iter().map(ToString::to_string).collect();
    assert_eq!(leaves[..3], ["bf16[3,6]", "f32[3,6]", "bf16[6,24]"]);
    assert!(state.metadata.op_name.starts_with("lstm/"), "{}", state.metadata.op_name);
}

#[test]
fn a_recurrent_layer_says_what_is_wrong() {
    let error = |dims: &[i64], mask: Option<&[i64]>, config: Lstm| {
        let g = Graph::new("wrong");
        let x = g.input("x", DType::F32, dims);
        let mask = mask.map(|dims| g.input("mask", DType::F32, dims));
        let y = lstm(&g.scope(), &x, mask.as_ref(), "lstm", &config);
        g.finish(&[("y", &y)]).unwrap_err().to_string()
    };
    let six = Lstm { units: 6, ..Lstm::default() };
    assert!(error(&[3, 4], None, six).contains("x f32[3,4] has rank 2, expected 3: [batch, steps, inputs]"));
    assert!(
        error(&[3, 5, 4], Some(&[3, 4]), six).contains("mask f32[3,4] is not of x f32[3,5,4], expected [batch, steps]")
    );
    assert!(error(&[3, 5, 4], None, Lstm::default()).contains("units is 0, expected at least 1"));
}

/// Activations that have custom VJPs elsewhere are differentiated by their ops inside of a loop: as a unit that is written out.
#[test]
fn activations_with_custom_vjps_have_gradients_inside_of_loops() {
    use bf16scope::nn::Activation;
    for activation in [Activation::Gelu, Activation::GeluTanh, Activation::Softplus, Activation::Selu] {
        let gradient = |unroll: bool| {
            let g = Graph::training("lstm");
            let x = g.input("x", DType::F32, [3, 5, 4]);
            let config = Lstm { units: 6, activation, unroll, ..Lstm::default() };
            let y = lstm(&g.scope(), &x, None, "", &config);
            let loss = y.sum(&[0, 1]);
            let gradients = grad::gradients(g.emitter(), loss.id, &[x.id]).unwrap();
            let gradient = g.tensor(gradients[0]);
            run::run(&g.finish(&[("y", &y), ("gradient", &gradient)]).unwrap(), |name| argument("lstm", name))
        };
        // The compiler contracts other operations of a loop than of steps that are written out.
        for (looped, written_out) in gradient(false).iter().zip(&gradient(true)) {
            for (looped, written_out) in run::f32s(looped).iter().zip(run::f32s(written_out)) {
                let error = (looped - written_out).abs();
                assert!(error <= TOLERANCE * (1.0 + written_out.abs()), "{activation:?}: {looped}, {written_out}");
            }
        }
    }
}
