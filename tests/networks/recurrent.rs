//! Recurrent layers against Keras' (`tests/data/layers_tf/make_recurrent.py`): states, masks, both directions, and all gradients; and in bf16.
//!
//! In f32 a sum before a gate has 11 products of numbers below 4, so it is off by at most `11 · 44 · 2^-24 = 3e-5` if all roundings
//! pulled the same way, in practice by a tenth of that; five steps and gradients of sums over 15 rows add as much again a few
//! times. A wrong gate, order or mask is off by a tenth and more.

use crate::run;
use bf16scope::document;
use bf16scope::graph::{Graph, Precision, Program, Scope, Tensor};
use bf16scope::hlo::{DType, Literal, Op};
use bf16scope::models::Model;
use bf16scope::nn::{Gru, Lstm, SimpleRnn, StepRemat, gru, lstm, simple_rnn};
use bf16scope::passes::grad;
use bf16scope::task::{Features, Mode};
use ndarray::{ArrayD, Axis};
use ndarray_npy::NpzReader;
use std::fs::File;

const TOLERANCE: f32 = 1e-4;

fn recorded(name: &str) -> Option<ArrayD<f32>> {
    recorded_in("recurrent", name)
}

fn recorded_in(file: &str, name: &str) -> Option<ArrayD<f32>> {
    let path = format!("{}/tests/data/layers_tf/{file}.npz", env!("CARGO_MANIFEST_DIR"));
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
fn program(case: &str, batch: i64, unroll: bool, remat: StepRemat) -> Program {
    let g = Graph::training(case);
    let x = g.input("x", DType::F32, [batch, 5, 4]);
    let mask = recorded(&format!("{case}/mask")).map(|_| g.input("mask", DType::F32, [batch, 5]));
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
    let looped = program(case, 3, false, remat);
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

/// A batch of one: its results, and its gradient by x.
#[test]
fn the_first_example_alone_has_its_row_of_keras_results() {
    for kind in ["lstm", "gru"] {
        for form in ["", "_sequences", "_masked", "_bidirectional", "_bidirectional_last"] {
            let case = format!("{kind}{form}");
            let has_rows = |name: &str| matches!(name, "x" | "mask" | "y" | "cotangent" | "gradient_x");
            let first = |name: &str| {
                let array = recorded(&format!("{case}/{name}")).unwrap_or_else(|| panic!("{case} has no {name}"));
                if has_rows(name) { array.select(Axis(0), &[0]) } else { array }
            };
            let alone = program(&case, 1, false, StepRemat::Nothing);
            let results = run::run(&alone, |name| {
                let array = first(name);
                let dims: Vec<i64> = array.shape().iter().map(|&dim| dim as i64).collect();
                Literal::from_elements(dims, &array.iter().copied().collect::<Vec<f32>>())
            });
            for (name, result) in alone.outputs.iter().zip(&results).filter(|(name, _)| has_rows(name)) {
                let (result, expected) = (run::f32s(result), first(name));
                assert_eq!(result.len(), expected.len(), "{case}: {name}");
                for (idx, (result, expected)) in result.iter().zip(&expected).enumerate() {
                    let error = (result - expected).abs();
                    assert!(error <= TOLERANCE * (1.0 + expected.abs()), "{case}: {name}[{idx}] {result}, {expected}");
                }
            }
        }
    }
}

/// The largest array of a step's program that a loop carries, in elements: what reverse mode keeps over the steps.
#[test]
fn segments_keep_less_than_steps_and_steps_less_than_all() {
    let largest_carried = |remat: StepRemat| {
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
    let (all, steps, segments) =
        (largest_carried(StepRemat::Nothing), largest_carried(StepRemat::Steps), largest_carried(StepRemat::Segments));
    assert!(all > steps && steps > segments, "{all}, {steps}, {segments}");
    // Less than the products of all steps with the kernel, which are made by segments.
    assert!(segments < 64 * 2 * 4 * 8, "{segments}");
}

/// Every form as a loop; with masks also rematerialised and unrolled.
#[test]
fn recurrent_layers_compute_what_keras_does() {
    compute_what_keras_does(|form| form == "_masked", |form| form == "_masked");
}

fn compute_what_keras_does(is_rematerialised: impl Fn(&str) -> bool, is_unrolled: impl Fn(&str) -> bool) {
    for kind in ["lstm", "gru"] {
        for form in ["", "_sequences", "_masked", "_bidirectional", "_bidirectional_last"] {
            let case = format!("{kind}{form}");
            let plain = as_keras(&case, StepRemat::Nothing);
            // Five steps give two segments, and one step that is left.
            if is_rematerialised(form) {
                [StepRemat::Steps, StepRemat::Segments].into_iter().for_each(|remat| drop(as_keras(&case, remat)));
            }
            // Trip by trip the same arithmetic.
            if is_unrolled(form) {
                let unrolled = run::run(&program(&case, 3, true, StepRemat::Nothing), |name| argument(&case, name));
                run::assert_same(&plain, &unrolled, &case);
            }
        }
    }
}

/// `tanh(x · kernel + bias + h · recurrent_kernel)`, step by step in f64.
///
/// A sum has 11 roundings of numbers below 4 and XLA's `tanh` some ulps more, so a step is off by less than 3e-6; an error
/// grows by 1.25 at most from step to step, so four steps are off by less than 3e-6 · (1 + 1.25 + 1.56 + 1.95) = 1.8e-5.
#[test]
fn a_recurrence_without_gates_is_its_formula() {
    let (steps, inputs, units) = (4, 3, 2);
    let values = |seed: usize, n: usize| -> Vec<f32> {
        (0..n).map(|at| (((at * 7 + seed * 5) % 11) as f32 - 5.0) / 8.0).collect()
    };
    let (x, kernel, recurrent, bias) = (values(1, 24), values(2, 6), values(3, 4), values(4, 2));
    let mask = [1f32, 1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0];
    let sum = |left: &mut dyn Iterator<Item = f64>, right: &[f32], unit: usize| -> f64 {
        left.zip(right[unit..].iter().step_by(units)).map(|(a, b)| a * f64::from(*b)).sum()
    };
    let expected = |go_backwards: bool, is_masked: bool| -> Vec<f64> {
        let mut states = Vec::new();
        for example in 0..2 {
            let mut state = vec![0.0; units];
            for trip in 0..steps {
                let step = example * steps + if go_backwards { steps - 1 - trip } else { trip };
                if !is_masked || mask[step] != 0.0 {
                    let row = &x[step * inputs..(step + 1) * inputs];
                    let next = |unit: usize| {
                        let of_x = sum(&mut row.iter().map(|&x| f64::from(x)), &kernel, unit);
                        (of_x + f64::from(bias[unit]) + sum(&mut state.iter().copied(), &recurrent, unit)).tanh()
                    };
                    state = (0..units).map(next).collect();
                }
                states.extend(&state);
            }
        }
        states
    };
    for (go_backwards, is_masked, unroll) in
        [(false, false, false), (false, true, false), (true, false, true), (true, true, false)]
    {
        let g = Graph::new("simple");
        let input = g.input("x", DType::F32, [2, 4, 3]);
        let steps = is_masked.then(|| g.input("mask", DType::F32, [2, 4]));
        let config = SimpleRnn { units: 2, return_sequences: true, go_backwards, unroll, ..SimpleRnn::default() };
        let y = simple_rnn(&g.scope(), &input, steps.as_ref(), "", &config);
        let results = run::run(&g.finish(&[("y", &y)]).unwrap(), |name| match name {
            "x" => Literal::from_elements([2, 4, 3], &x),
            "mask" => Literal::from_elements([2, 4], &mask),
            "kernel" => Literal::from_elements([3, 2], &kernel),
            "recurrent_kernel" => Literal::from_elements([2, 2], &recurrent),
            _ => Literal::from_elements([2], &bias),
        });
        let (results, expected) = (run::f32s(&results[0]), expected(go_backwards, is_masked));
        assert_eq!(results.len(), expected.len());
        let is_near = |(a, b): (&f32, &f64)| (f64::from(*a) - b).abs() <= 1.8e-5;
        let case = format!("{go_backwards}, {is_masked}: {results:?}, {expected:?}");
        assert!(results.iter().zip(&expected).all(is_near), "{case}");
    }
}

/// An encoder and a decoder that starts from its last states.
fn encoder_decoder(kind: &str, bidirectional: bool) -> String {
    let states = match (kind, bidirectional) {
        ("lstm", false) => "encoder.h, encoder.c",
        ("lstm", true) => "encoder.forward_h, encoder.forward_c, encoder.backward_h, encoder.backward_c",
        (_, false) => "encoder.h",
        (_, true) => "encoder.forward_h, encoder.backward_h",
    };
    let outputs: String =
        states.split(", ").enumerate().map(|(number, state)| format!(", state{number}: {state}")).collect();
    format!(
        "kind: layers
inputs: {{source: [5, 4], mask: [5], target: [5, 4]}}
layers:
  - {{{kind}: 6, bidirectional: {bidirectional}, inputs: [source, mask], name: encoder}}
  - {{{kind}: 6, bidirectional: {bidirectional}, return_sequences: true, inputs: target, initial_state: [{states}], name: decoder}}
outputs: {{result: decoder{outputs}}}
loss: {{mean_squared_error: , output: decoder}}
"
    )
}

/// `tests/data/layers_tf/make_states.py`. Twice as many steps as a layer alone.
#[test]
fn a_decoder_that_starts_from_an_encoders_states_computes_what_keras_does() {
    for (kind, bidirectional) in [("lstm", false), ("lstm", true), ("gru", false), ("gru", true)] {
        let case = if bidirectional { format!("{kind}_bidirectional") } else { kind.to_string() };
        let model: Model = document::from_str("m.yaml", &encoder_decoder(kind, bidirectional)).unwrap();
        let task = model.task(0.0);
        let described = task.features();
        let g = Graph::training(&case);
        let features = Features::new(&g, &described, 3, Mode::Predict);
        let predictions = task.call(&g.scope(), &features, Mode::Predict).predictions;
        let result = &predictions[0].1;
        let cotangent = g.input("cotangent", DType::F32, result.dims());
        let loss = (result * &cotangent).sum(&[0, 1, 2]);
        let variables = g.variables();
        let inputs = ["source", "target"].map(|name| (name.to_string(), features.get(name).id));
        let wrt: Vec<(String, _)> = inputs
            .into_iter()
            .chain(variables.iter().enumerate().map(|(number, it)| (it.name.clone(), g.differentiable(number))))
            .collect();
        let ids: Vec<_> = wrt.iter().map(|(_, id)| *id).collect();
        let gradients = grad::gradients(g.emitter(), loss.id, &ids).unwrap();
        let mut outputs: Vec<(String, Tensor)> = predictions.clone();
        outputs.extend(wrt.iter().zip(gradients).map(|((name, _), id)| (format!("gradient_{name}"), g.tensor(id))));
        let outputs: Vec<(&str, &Tensor)> = outputs.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
        let program = g.finish(&outputs).unwrap();
        let results = run::run(&program, |name| {
            let key = if name == "mask" { name.to_string() } else { format!("{case}/{name}") };
            let array = recorded_in("states", &key).unwrap_or_else(|| panic!("no {key}"));
            let dims: Vec<i64> = array.shape().iter().map(|&dim| dim as i64).collect();
            Literal::from_elements(dims, &array.iter().copied().collect::<Vec<f32>>())
        });
        let n_states = if kind == "lstm" { 2 } else { 1 } * if bidirectional { 2 } else { 1 };
        assert_eq!(results.len(), 1 + n_states + 2 + variables.len(), "{case}");
        for (name, result) in program.outputs.iter().zip(&results) {
            let expected = recorded_in("states", &format!("{case}/{name}")).unwrap_or_else(|| panic!("{case}/{name}"));
            let result = run::f32s(result);
            assert_eq!(result.len(), expected.len(), "{case}: {name}");
            for (idx, (result, expected)) in result.iter().zip(&expected).enumerate() {
                let off = (result - expected).abs();
                assert!(off <= 2.0 * TOLERANCE * (1.0 + expected.abs()), "{case}: {name}[{idx}] {result}, {expected}");
            }
        }
    }
}

/// A c that another layer starts from stays f32 in bf16; a layer that reads it gets bf16.
#[test]
fn last_states_keep_their_dtype_and_wrong_names_of_them_are_said() {
    let model: Model = document::from_str("m.yaml", &encoder_decoder("lstm", false)).unwrap();
    let task = model.task(0.0);
    let described = task.features();
    let g = Graph::training("lstm").computing_in(Precision::Bf16);
    let features = Features::new(&g, &described, 3, Mode::Predict);
    let predictions = task.call(&g.scope(), &features, Mode::Predict).predictions;
    let program = g.finish(&[("result", &predictions[0].1)]).unwrap();
    let entry = program.module.entry();
    let second = entry.instructions.iter().filter(|instr| matches!(instr.op, Op::While { .. })).nth(1).unwrap();
    let start = entry.instr(second.operands[0]);
    let carried: Vec<_> = start.operands.iter().map(|&id| entry.instr(id)).collect();
    let c = carried.iter().find(|it| it.shape.to_string().starts_with("f32[3,6]")).expect("a decoder's c");
    assert!(matches!(c.op, Op::GetTupleElement { .. }), "{c:?}");

    let error = |from: &str, to: &str| {
        let text = encoder_decoder("lstm", false);
        assert!(text.contains(from), "{from}");
        document::from_str::<Model>("m.yaml", &text.replacen(from, to, 1)).unwrap_err().to_string()
    };
    let of_state = error("[encoder.h, encoder.c]", "[encoder.h, encoder.d]");
    assert!(
        of_state.contains("layer `decoder` starts from `encoder.d`, which is neither an input nor a layer")
            && of_state.contains("help: `encoder` (lstm) has `encoder.h`, `encoder.c`"),
        "{of_state}"
    );
    let unknown = error("[encoder.h, encoder.c]", "zzzzzzzzz");
    assert!(
        unknown.contains("help: there are source, mask, target, encoder") && !unknown.contains("encoder, decoder"),
        "{unknown}"
    );
    let of_itself = error("[encoder.h, encoder.c]", "[decoder.h, decoder.c]");
    assert!(of_itself.contains("layers read each other in a cycle: `decoder` reads `decoder`"), "{of_itself}");
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

/// Kernels and biases have one product or sum of all steps, which no step adds to. A state that is rematerialised gets no
/// further array of all steps.
#[test]
fn in_a_bf16_scope_no_step_adds_to_gradients() {
    let n_sums = |kind: &str, remat: StepRemat| {
        let g = Graph::training(kind).computing_in(Precision::Bf16);
        let x = g.input("x", DType::BF16, [3, 5, 4]);
        let y = g.bf16_scope(|s| match kind {
            "lstm" => lstm(s, &x, None, kind, &Lstm { units: 6, remat, ..Lstm::default() }),
            _ => gru(s, &x, None, kind, &Gru { units: 6, remat, ..Gru::default() }),
        });
        let loss = y.cast(DType::F32).sum(&[0, 1]);
        let wrt: Vec<_> = (0..g.variables().len()).map(|number| g.differentiable(number)).collect();
        let gradients: Vec<Tensor> =
            grad::gradients(g.emitter(), loss.id, &wrt).unwrap().into_iter().map(|id| g.tensor(id)).collect();
        let names = ["kernel", "recurrent_kernel", "bias"];
        let outputs: Vec<(&str, &Tensor)> = names.into_iter().zip(&gradients).collect();
        let program = g.finish(&outputs).unwrap();
        let all = program.module.entry().instructions.iter();
        let loops = all.filter(|instr| matches!(instr.op, Op::While { .. }));
        let is_sum =
            |shape: &str| ["f32[6,24]", "f32[24]", "f32[6,18]", "f32[2,18]"].iter().any(|it| shape.starts_with(it));
        loops.flat_map(|instr| instr.shape.leaves()).filter(|leaf| is_sum(&leaf.to_string())).count()
    };
    assert_eq!((n_sums("lstm", StepRemat::Nothing), n_sums("gru", StepRemat::Nothing)), (0, 0));
    assert_eq!((n_sums("lstm", StepRemat::Steps), n_sums("gru", StepRemat::Steps)), (0, 2));
}

/// Steps come first in what the loop reads: in the sequence, or in its product with the kernel if that is narrower.
#[test]
fn the_narrower_of_a_sequence_and_its_gates_is_transposed() {
    let transposed = |n_inputs: i64| {
        let g = Graph::training("lstm");
        let x = g.input("x", DType::F32, [3, 5, n_inputs]);
        let y = lstm(&g.scope(), &x, None, "lstm", &Lstm { units: 6, ..Lstm::default() });
        let program = g.finish(&[("y", &y)]).unwrap();
        let all = program.module.entry().instructions.iter();
        let transposes = all.filter(|instr| matches!(instr.op, Op::Transpose { .. }));
        transposes.map(|instr| instr.shape.dims().to_vec()).collect::<Vec<_>>()
    };
    assert_eq!((transposed(4), transposed(30)), (vec![vec![5, 3, 4]], vec![vec![5, 3, 24]]));
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

/// Too long for `cargo test`: `ci/long` runs them.
#[cfg_attr(not(feature = "long-tests"), allow(dead_code))]
mod long {
    use super::*;

    /// Every form is also unrolled, and those of both directions are rematerialised.
    #[cfg_attr(feature = "long-tests", test)]
    fn recurrent_layers_compute_in_every_form_what_keras_does() {
        compute_what_keras_does(|form| ["_masked", "_bidirectional"].contains(&form), |_| true);
    }
}
