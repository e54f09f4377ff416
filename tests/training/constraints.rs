//! Constraints, spectral norms and gradients as layers: training steps beside Keras' and TensorFlow's
//! (`tests/data/constraints_tf/record.py`), and what is said where they are written wrong.
//!
//! No number here is above 3, and none is behind more than 200 roundings of 2^-24 of such numbers.

use crate::run;

use bf16scope::document;
use bf16scope::graph::{Numbers, Precision, Storage};
use bf16scope::hlo::{DType, Literal};
use bf16scope::models::Model;
use bf16scope::optim::{LearningRate, Optimizer, Sgd, Update};
use bf16scope::train::{Objective, program};
use std::collections::BTreeMap;

const TOLERANCE: f32 = 200.0 * 3.0 / (1 << 24) as f32;

fn values(dims: &[i64], first: i64) -> Vec<f32> {
    let n: i64 = dims.iter().product();
    (0..n).map(|at| (((at * 7 + first) % 13) as f64 / 10.0 - 0.6) as f32).collect()
}

/// The state, and the loss, after `n_steps` of gradient descent at a rate of 0.5; `start` are values of variables and inputs.
fn trained(
    text: &str,
    objective: &Objective,
    n_steps: i32,
    start: impl Fn(&str, &[i64]) -> Vec<f32>,
) -> BTreeMap<String, Vec<f32>> {
    let task = document::from_str::<Model>("model.yaml", text).unwrap_or_else(|error| panic!("{error}")).task(0.0);
    let program =
        program::training(&*task, Precision::F32, 5, objective).unwrap_or_else(|error| panic!("{error}")).program;
    let mut state: BTreeMap<String, Vec<f32>> = BTreeMap::new();
    for step in 0..n_steps {
        let results = run::run(&program, |name| {
            let variable = program.variables.iter().find(|it| it.name == name).map(|it| (it.dtype, it.dims.clone()));
            let input = program.inputs.iter().find(|it| it.name == name).map(|it| (it.dtype, it.dims.clone()));
            let (dtype, dims) = variable.or(input).unwrap_or_else(|| panic!("{name} is no argument"));
            match (name, dtype) {
                ("step", _) => Literal::from_elements(dims, &[step]),
                ("weight", _) => Literal::from_elements(dims, &[1.0f32; 5]),
                _ => Literal::from_elements(
                    dims.clone(),
                    &state.get(name).cloned().unwrap_or_else(|| start(name, &dims)),
                ),
            }
        });
        let floats = |literal: &Literal| match literal {
            Literal::Array { shape, .. } if shape.dtype == DType::F32 => run::f32s(literal),
            _ => Vec::new(),
        };
        state = program.outputs.iter().cloned().zip(results.iter().map(floats)).collect();
    }
    state
}

fn descent() -> Objective {
    let update = Update {
        optimizer: Optimizer::Sgd(Sgd {}),
        learning_rate: LearningRate::Constant { value: 0.5 },
        ..Update::default()
    };
    Objective { update, ..Objective::default() }
}

fn check(name: &str, measured: &[&[f32]], expected: &[f32]) {
    let measured = measured.concat();
    assert_eq!(measured.len(), expected.len(), "{name}");
    for (ours, theirs) in measured.iter().zip(expected) {
        assert!((ours - theirs).abs() <= TOLERANCE, "{name}: {measured:?}, expected {expected:?}");
    }
}

fn dense(options: &str) -> String {
    format!("kind: layers\ninputs: {{x: [3]}}\nlayers: [{{dense: 2, {options}}}]\nloss: mean_squared_error\n")
}

fn of_dense(name: &str, dims: &[i64]) -> Vec<f32> {
    match name {
        "dense/kernel" => values(dims, 1),
        "dense/bias" => values(dims, 2),
        "x" => values(dims, 5),
        "labels" => values(dims, 7),
        "dense/vector_u" => values(dims, 4),
        _ => vec![1.0; dims.iter().product::<i64>() as usize],
    }
}

#[test]
fn constraints_are_those_of_keras() {
    #[rustfmt::skip]
    let cases: &[(&str, &str, &[f32])] = &[
        ("non_neg", "kernel_constraint: NonNeg",
         &[0.01332805, 0.1793986, 0.00836885, 0.2087695, 0.0383699, 0.3241108, 0.2154185, -0.252877]),
        ("max_norm", "kernel_constraint: {max_norm: 0.5}, bias_constraint: {MaxNorm: {max_value: 0.1}}",
         &[-0.2993394, 0.1823591, -0.2743478, 0.2028481, -0.08178104, 0.3221369, 0.06840924, -0.07293949]),
        ("max_norm_rows", "kernel_constraint: {max_norm: {max_value: 0.5, axis: 1}}",
         &[-0.3764967, 0.1782731, -0.3550535, 0.2086851, -0.1160067, 0.3242837, 0.2349574, -0.2529317]),
        ("unit_norm", "kernel_constraint: unit_norm",
         &[-0.7100931, 0.3764911, -0.6614968, 0.5501415, -0.2412253, 0.7453848, 0.2478496, -0.2816843]),
        ("min_max_norm", "kernel_constraint: {min_max_norm: {min_value: 0.2, max_value: 0.5, rate: 0.75}}",
         &[-0.3174828, 0.1793984, -0.2981616, 0.2087693, -0.091434, 0.3241106, 0.2317836, -0.2528769]),
        ("clip", "kernel_constraint: {clip: 0.25}",
         &[-0.1887025, 0.1949836, -0.2381168, 0.2005687, -0.1370444, 0.2217962, 0.2335815, -0.2488739]),
    ];
    for (name, options, expected) in cases {
        let state = trained(&dense(options), &descent(), 3, of_dense);
        check(name, &[&state["dense/kernel"], &state["dense/bias"]], expected);
    }
}

/// Stored values obey in every storage; the slots are those of an unconstrained variable.
#[test]
fn constraints_hold_in_every_storage() {
    for variables in Storage::ALL {
        let update = Update { learning_rate: LearningRate::Constant { value: 0.5 }, ..Update::default() };
        let objective = Objective { update, ..Objective::default() };
        let numbers = Numbers { precision: Precision::Bf16, variables };
        let text = dense("kernel_constraint: non_neg, bias_constraint: {clip: 0.125}");
        let task = document::from_str::<Model>("model.yaml", &text).unwrap().task(0.0);
        let program = program::training(&*task, numbers, 5, &objective).unwrap().program;
        let results = run::run(&program, |name| {
            let info = program.variables.iter().find(|it| it.name == name);
            let (dtype, dims) = info.map(|it| (it.dtype, it.dims.clone())).unwrap_or_else(|| {
                let input = program.inputs.iter().find(|it| it.name == name).unwrap();
                (input.dtype, input.dims.clone())
            });
            let numbers = match name.ends_with("/low") {
                true => vec![0.0; dims.iter().product::<i64>() as usize],
                false => of_dense(name, &dims),
            };
            match dtype {
                DType::F32 => Literal::from_elements(dims, &numbers),
                DType::BF16 => {
                    let numbers: Vec<half::bf16> = numbers.into_iter().map(half::bf16::from_f32).collect();
                    Literal::from_elements(dims, &numbers)
                }
                DType::S32 => Literal::from_elements(dims, &[0]),
                DType::U32 => Literal::from_elements(dims.clone(), &vec![7u32; dims.iter().product::<i64>() as usize]),
                other => panic!("{name} is {other}"),
            }
        });
        let elements = |name: &str| {
            let literal = &results[program.outputs.iter().position(|output| output == name).unwrap()];
            let wide = literal.elements::<half::bf16>().map(|it| it.into_iter().map(half::bf16::to_f32).collect());
            wide.or_else(|| literal.elements::<f32>()).unwrap()
        };
        let (kernel, bias): (Vec<f32>, Vec<f32>) = (elements("dense/kernel"), elements("dense/bias"));
        assert!(kernel.iter().all(|&w| w >= 0.0) && kernel.contains(&0.0), "{variables}: {kernel:?}");
        assert!(
            bias.iter().all(|w| w.abs() <= 0.125) && bias.iter().any(|w| w.abs() == 0.125),
            "{variables}: {bias:?}"
        );
    }
}

/// The variables of a layer that is applied twice are constrained once, and divided by one norm.
#[test]
fn a_layer_that_is_applied_again_has_the_same_kernel() {
    let text = |options: &str| {
        format!(
            "kind: layers\ninputs: {{x: [3]}}\nlayers:\n  - {{dense: 3, name: dense, {options}}}\n  - {{share: dense}}\n\
             loss: mean_squared_error\n"
        )
    };
    for options in ["kernel_constraint: unit_norm", "spectral_norm: true"] {
        let state = trained(&text(options), &descent(), 2, |name, dims| match name {
            "labels" => values(&[5, 3], 7),
            _ => of_dense(name, dims),
        });
        let names: Vec<&String> = state.keys().filter(|name| name.starts_with("dense")).collect();
        let n_expected = if options.starts_with("spectral") { 4 } else { 2 };
        assert_eq!(names.len(), n_expected, "{names:?}");
        let kernel = &state["dense/kernel"];
        if n_expected == 2 {
            let norm: f32 = kernel.iter().step_by(3).map(|w| w * w).sum();
            assert!((norm - 1.0).abs() < 1e-5, "{kernel:?}");
        }
    }
}

#[test]
fn a_spectral_norm_is_differentiated_as_torch_does() {
    #[rustfmt::skip]
    let cases: &[(&str, &[f32])] = &[
        ("spectral_norm: true",
         &[-0.4950129, 0.232045, -0.4189786, 0.2872948, -0.2666471, 0.4057764, -0.03252596, -0.02329871, -0.785106,
           0.6193614, 0.4992206, 0.5741037, 0.6489868]),
        ("spectral_norm: 3",
         &[-0.5058296, 0.237262, -0.419544, 0.2851789, -0.2588007, 0.3965533, -0.03268924, -0.02308103, -0.8046443,
           0.593757, 0.6010951, 0.5770154, 0.5529357]),
    ];
    for (options, expected) in cases {
        let state = trained(&dense(options), &descent(), 1, of_dense);
        let names = ["dense/kernel", "dense/bias", "dense/vector_u", "dense/vector_v"];
        check(options, &names.map(|name| &state[name][..]), expected);
    }
}

/// WGAN-GP's penalty of a critic, and a differential equation, whose second derivative is a gradient of a gradient.
#[test]
fn gradients_are_layers() {
    let penalty = "kind: layers
inputs: {x: [3]}
layers:
  - {dense: 4, use_bias: false, activation: tanh, name: hidden}
  - {dense: 1, use_bias: false, name: last}
  - {gradient: [last, x], name: slope}
  - {expression: slope ** 2}
  - {reduce: sum, name: square}
  - {expression: '(sqrt(square + 1e-12) - 1) ** 2', name: penalty}
outputs: {penalty: penalty}
loss: {value: , output: penalty, weight: 10}
";
    let law = "kind: layers
inputs: {x: [1]}
layers:
  - {dense: 4, use_bias: false, activation: tanh, name: hidden}
  - {dense: 1, use_bias: false, name: last}
  - {gradient: [last, x], name: du}
  - {gradient: [du, x], name: ddu}
  - {expression: '(ddu + last) ** 2', name: law}
outputs: {law: law}
loss: {value: , output: law}
";
    #[rustfmt::skip]
    let cases: [(&str, &str, &[f32]); 2] = [
        ("penalty", penalty,
         &[1.064371, -1.297154, 0.7881176, -1.044264, 1.281536, -1.180753, 1.034126, -0.8759916, 1.247664, 0.0295765,
           0.5134528, 0.06562455, -0.5268456, -2.161886, 1.529896, -1.6586, 2.181781]),
        ("law", law,
         &[0.01714883, -0.5064356, 0.1886125, -0.3985207, 0.2906182, -0.3867495, 0.2907623, -0.2862057, 0.3876524]),
    ];
    for (name, text, expected) in cases {
        let state = trained(text, &descent(), 1, |name, dims| match name {
            "hidden/kernel" => values(dims, 1),
            "last/kernel" => values(dims, 2),
            _ => values(dims, 5),
        });
        check(name, &["loss", "hidden/kernel", "last/kernel"].map(|name| &state[name][..]), expected);
    }
}

/// Layers of `x` `[3]`, after which a dense layer is the last, and what is said of them.
const WRONG: &[(&str, &str)] = &[
    (
        "{dense: 2, kernel_constraint: 3}",
        "found integer `3`, expected one of non_neg, unit_norm, max_norm, min_max_norm, clip, with",
    ),
    ("{dense: 2, kernel_constraint: max_nrm}", "unknown constraint `max_nrm`, expected one of non_neg, "),
    ("{dense: 2, kernel_constraint: max_nrm}", "help: did you mean `max_norm`?"),
    ("{dense: 2, kernel_constraint: {max_norm: 1, clip: 2}}", "found keys and values, expected one of non_neg, "),
    ("{dense: 2, kernel_constraint: {max_norm: -1}}", "found integer `-1`, expected a number above 0"),
    ("{dense: 2, kernel_constraint: {max_norm: 0}}", "found integer `0`, expected a number above 0"),
    ("{dense: 2, kernel_constraint: {clip: 0}}", "found integer `0`, expected a number above 0"),
    ("{dense: 2, kernel_constraint: {min_max_norm: {min_value: -1}}}", "expected a number of at least 0"),
    (
        "{dense: 2, kernel_constraint: {max_norm: {value: 1}}}",
        "unknown key `value` of `max_norm`, expected one of max_value, axis",
    ),
    ("{dense: 2, kernel_constraint: {non_neg: 1}}", "found integer `1`, expected nothing: `non_neg` has no arguments"),
    ("{dense: 2, kernel_constraint: {non_neg: {axis: 1}}}", "`non_neg` has no arguments, found `axis`"),
    (
        "{dense: 2, kernel_constraint: {min_max_norm: {min_value: 2}}}",
        "expected a `min_value` (2) of at most `max_value` (1)",
    ),
    ("{dense: 2, kernel_constraint: {min_max_norm: {rate: 2}}}", "found integer `2`, expected a share from 0 to 1"),
    ("{dense: 2, kernel_constraint: clip}", "expected a bound, such as `{clip: 0.01}`"),
    ("{dense: 2, kernel_constraint: {unit_norm: {axis: last}}}", "expected an axis, or a list of axes"),
    (
        "{dense: 2, kernel_constraint: {unit_norm: {axis: [0, 5]}}}",
        "the norm is along the axes [0, 5], expected axes of dense/kernel f32[3,2], each once",
    ),
    (
        "{dense: 2, gamma_constraint: non_neg}",
        "layer `dense`: `gamma_constraint` is of a variable that the layer does not have; its variables: kernel, bias",
    ),
    ("{dense: 2, spectral_norm: 0}", "found integer `0`, expected `true`, or the iterations of a step, from 1 to 100"),
    ("{dense: 2, spectral_norm: 101}", "found integer `101`, expected `true`, or the iterations"),
    ("{dense: 2, spectral_norm: {dense: 2}}", "found keys and values, expected `true`, or the iterations"),
    ("{layer_norm: , spectral_norm: true}", "unknown key `spectral_norm`"),
    ("{lstm: 2, spectral_norm: true}", "help: `dense`, `conv`, `conv1d`, `conv3d` and `conv_transpose` have it"),
    ("{lstm: 2, recurrent_kernel_constraint: non_neg}", "help: it is called `recurrent_constraint`"),
    ("{cumsum: 0}", "axis is 0, expected an axis of x f32[32,3] after the batch"),
    ("{cumsum: 0}", "help: write 1, or -1"),
    ("{cumsum: , exclusive: true}", "help: write `{cumsum: 1, inputs: a, name: c}`, and `{expression: c - a}`"),
    ("{sort: , descending: true}", "help: write `direction: descending`"),
    ("{top_k: 2, sorted: false}", "help: the largest stands first, as with `sorted: true`: leave it out"),
    ("{top_k: 2, axis: 1}", "help: it is of the last axis: `permute` brings another there"),
    (
        "{top_k: 4}",
        "help: write a smaller `k`; the last axis is the one that is searched: `permute` brings another there",
    ),
    ("{expression: cumsum(x)}", "help: write a layer `{cumsum: , inputs: a, name: b}`, and `b` here"),
    ("{expression: 'add(x, x)'}", "help: write a layer `{add: [a, c], name: b}`, and `b` here"),
    ("{expression: 'clip(x, 1, -1)'}", "`clip` between 1 and -1, expected the lower bound before the upper one"),
    ("{expression: clip(x)}", "`clip` does not take 1 argument, expected 3"),
    ("{clip: [0, 1]}", "help: write `{expression: \"clip(x, 0, 1)\"}`"),
    ("{dense: 2, repeats: 3}", "help: a block repeats: `blocks: {hidden: [{dense: 64, activation: relu}]}`"),
    ("{cumsum: 2}", "axis is 2, expected an axis of x f32[32,3] after the batch"),
    ("{cumsum: first}", "found string \"first\", expected a whole number"),
    ("{cumsum: , exclusive: true}", "unknown key `exclusive`, expected one of axis, reverse"),
    ("{cumsum: , reverse: 1}", "found integer `1`, expected true or false"),
    ("{sort: -3}", "axis is -3, expected an axis of x f32[32,3] after the batch"),
    ("{sort: , direction: up}", "unknown value `up`, expected one of ascending, descending"),
    ("{sort: , descending: true}", "unknown key `descending`, expected one of axis, direction"),
    ("{sort: {axis: [1]}}", "found a list"),
    ("{sort: 1.5}", "found floating point `1.5`"),
    ("{top_k: 4}", "k is 4, expected at most 3, the last axis of x f32[32,3]"),
    ("{top_k: 0}", "found integer `0`, expected a whole number of at least 1"),
    ("top_k", "missing key `k`"),
    ("{top_k: 2, axis: 1}", "unknown key `axis`, expected one of k"),
    ("{top_k: two}", "found string \"two\""),
    ("{gradient: [activation, x, x]}", "it reads 3, expected two: what changes, and by what"),
    ("{gradient: [activation, y]}", "f32[32,3] does not depend on f32[32,2]: the gradient would be zeros"),
    ("{gradient: [x, z]}", "`z`"),
    ("{gradient: x}", "reads 1, expected"),
    ("{gradient: [x, x], order: 2}", "unknown key `order`"),
];

#[test]
fn what_is_written_wrong_is_told() {
    let mut wrong = Vec::new();
    for (layer, expected) in WRONG {
        let text = format!(
            "kind: layers\ninputs: {{x: [3], y: [2]}}\nlayers:\n  - {{linear: , inputs: x}}\n  - {layer}\n  - {{dense: 1, name: \
             last}}\n  - {{concat: [last, y]}}\nloss: value\n"
        );
        let error = document::from_str::<Model>("model.yaml", &text).err().map(|error| error.to_string());
        let error = error.unwrap_or_else(|| "it is taken".to_string());
        if !error.contains(expected) || !error.starts_with("model.yaml:5:") {
            wrong.push(format!("{layer}, expected {expected}: {error}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
