//! `trainable: false` of a layer and of a block, as in Keras: variables without gradients, and batch norms that read their
//! running statistics in training.

use crate::keras_user::read;
use crate::run;
use bf16scope::graph::{Graph, Precision, Program, VariableInfo};
use bf16scope::hlo::Literal;
use bf16scope::task::{Features, Mode};
use bf16scope::train::{Objective, program};

const BATCH: i64 = 3;

/// A network's program with its predictions, in training or not.
fn predicting(text: &str, graph: Graph) -> Program {
    let task = read(text).unwrap_or_else(|error| panic!("{error}")).task(0.0);
    let described = task.features();
    let features = Features::new(&graph, &described, BATCH, Mode::Predict);
    let outputs = task.call(&graph.scope(), &features, Mode::Predict);
    graph.finish(&[("y", &outputs.predictions[0].1)]).unwrap()
}

fn step(text: &str) -> Result<Program, String> {
    let task = read(text).unwrap_or_else(|error| panic!("{error}")).task(0.0);
    let step = program::training(&*task, Precision::F32, BATCH, &Objective::default());
    step.map(|step| step.program).map_err(|error| error.to_string())
}

fn names(program: &Program, is_such: impl Fn(&VariableInfo) -> bool) -> Vec<&str> {
    program.variables.iter().filter(|variable| is_such(variable)).map(|variable| variable.name.as_str()).collect()
}

/// Numbers of a variable or an input that differ.
fn numbers(name: &str, dims: &[i64]) -> Literal {
    let n = dims.iter().product::<i64>();
    let first = name.bytes().map(i64::from).sum::<i64>();
    let elements: Vec<f32> = (0..n).map(|at| ((first + 3 * at) % 7) as f32 / 4.0 + 0.5).collect();
    Literal::from_elements(dims, &elements)
}

fn network(frozen: &str) -> String {
    format!(
        "inputs: {{x: [4]}}\nlayers: [{{dense: 3, name: a}}, {{batch_norm: , name: n{frozen}}}, {{dense: 2, name: \
         b}}]\nloss: mean_squared_error\n"
    )
}

#[test]
fn a_frozen_batch_norm_reads_its_running_statistics_in_training() {
    let result = |text: &str, graph: Graph| {
        let program = predicting(text, graph);
        let dims = |name: &str| {
            program.variables.iter().find(|it| it.name == name).map_or(vec![BATCH, 4], |it| it.dims.clone())
        };
        run::f32s(&run::run(&program, |name| numbers(name, &dims(name)))[0])
    };
    let evaluated = result(&network(""), Graph::new("evaluated"));
    assert_eq!(result(&network(", trainable: false"), Graph::training("frozen")), evaluated);
    assert_ne!(result(&network(", trainable: true"), Graph::training("trained")), evaluated);
}

#[test]
fn frozen_variables_have_no_update_and_pass_gradients_on() {
    let program = step(&network(", trainable: false")).unwrap();
    assert_eq!(names(&program, |it| it.trainable), ["a/kernel", "a/bias", "b/kernel", "b/bias"]);
    assert_eq!(names(&program, |it| it.is_frozen), ["n/gamma", "n/beta"]);
    let fixed = ["n/gamma", "n/beta", "n/moving_mean", "n/moving_variance"];
    assert_eq!(names(&program, |it| it.update.is_none()), fixed);
    // A penalty, a constraint and a spectral norm of a frozen layer say nothing, and are no error.
    let text = "inputs: {x: [4]}\nlayers: [{dense: 3, name: a, trainable: false, kernel_regularizer: l2, kernel_constraint: non_neg}, \
                {dense: 2, name: b}]\nloss: mean_squared_error\n";
    assert_eq!(names(&step(text).unwrap(), |it| it.is_frozen), ["a/kernel", "a/bias"]);
}

#[test]
fn a_frozen_block_freezes_its_layers_and_what_they_share() {
    let blocks = "inputs: {x: [4]}\nblocks:\n  inner: [{dense: 4, trainable: true}, batch_norm]\n  outer: {parameters: [n], layers: [{inner: }, \
                  {dense: $n}]}\n";
    let text = |uses: &str| format!("{blocks}layers: [{uses}]\nloss: mean_squared_error\n");
    let program = step(&text("{outer: 3, name: o, trainable: false}, {outer: 2, name: p}")).unwrap();
    assert!(names(&program, |it| it.is_frozen).iter().all(|name| name.starts_with("o/")));
    assert_eq!(names(&program, |it| it.is_frozen).len(), 6);
    let trained = names(&program, |it| it.trainable);
    assert!(trained.len() == 6 && trained.iter().all(|name| name.starts_with("p/")), "{trained:?}");
    // Applied again it is the same layer.
    let shared = text("{outer: 4, name: o, trainable: false}, {share: o, name: again}, {dense: 2, name: head}");
    assert_eq!(names(&step(&shared).unwrap(), |it| it.trainable), ["head/kernel", "head/bias"]);
    let error = read(&text("{outer: 3, trainable: 7}")).unwrap_err();
    assert!(error.contains("`trainable` of a block, expected true or false"), "{error}");
    // A network that is frozen as a whole has nothing to learn.
    let error = step(&text("{outer: 3, trainable: false}")).unwrap_err();
    assert!(error.contains("(there is none: layers or patterns freeze all of them)"), "{error}");
}

/// `dtype` of a use is that of its layers which say none, and a block's layers read each other's last states.
#[test]
fn a_block_has_a_dtype_and_states() {
    let text = |inner: &str, used: &str| {
        format!(
            "inputs: {{x: [4]}}\nblocks: {{b: [{{dense: 4{inner}}}, {{layer_norm: {inner}}}]}}\nlayers: [{{b: {used}}}, {{dense: 2}}]\n\
             loss: mean_squared_error\n"
        )
    };
    assert_eq!(read(&text("", ", dtype: float32")).unwrap(), read(&text(", dtype: float32", "")).unwrap());
    assert_ne!(read(&text("", "")).unwrap(), read(&text(", dtype: float32", "")).unwrap());
    let error = read(&text("", ", dtype: int8")).unwrap_err();
    assert!(error.contains("unknown value `int8`, expected one of f32, float32"), "{error}");
    let states = "inputs: {s: [9, 4]}\nblocks: {b: [{lstm: 4, name: e}, {lstm: 4, inputs: input, initial_state: [e.h, e.c], name: d}, \
                  {top_k: 2, name: t}, {cast: compute, inputs: t.indices, name: i}, {multiply: [t, i]}]}\n\
                  layers: [{b: , name: o}, {share: o, inputs: s, name: again}, {add: [o, again]}, {dense: 2}]\n\
                  loss: mean_squared_error\n";
    read(states).unwrap_or_else(|error| panic!("{error}"));
}

/// A run may go on with other layers frozen: the function is the same.
#[test]
fn freezing_is_no_other_network() {
    let identity = |text: &str| serde_json::to_value(read(text).unwrap().task(0.0).identity()).unwrap();
    assert_eq!(identity(&network("")), identity(&network(", trainable: false")));
    let written = serde_yaml::to_string(&read(&network(", trainable: false")).unwrap()).unwrap();
    assert!(written.contains("trainable: false"), "{written}");
}
