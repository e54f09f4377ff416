//! Networks written layer by layer: the same program as the zoo's, and every kind of layer trains. Errors are in
//! `layer_errors`.

use crate::run;
use bf16scope::document;
use bf16scope::experiment::Experiment;
use bf16scope::graph::{Precision, Program};
use bf16scope::hlo::DType;
use bf16scope::hlo::text::{PrintOptions, print};
use bf16scope::hlo::verify::verify;
use bf16scope::hlo::{Literal, Metadata, Module};
use bf16scope::models::Model;
use bf16scope::optim::{LearningRate, Optimizer, Update};
use bf16scope::task::Feature;
use bf16scope::train::program::{Objective, evaluation, prediction, training};
use bf16scope::tuning::Tuning;
use expect_test::expect;

fn model(text: &str) -> Model {
    document::from_str("model.yaml", text).unwrap_or_else(|error| panic!("{error}"))
}

fn array(dims: &[i64], values: &[f32]) -> Literal {
    Literal::from_elements(dims, values)
}

fn sgd_with_momentum() -> Objective {
    let optimizer = Optimizer::default();
    let update = Update { optimizer, learning_rate: LearningRate::Constant { value: 0.1 }, ..Update::default() };
    Objective { update, ..Objective::default() }
}

/// The three programs of a model.
fn programs(model: &Model, precision: Precision) -> [Program; 3] {
    let (task, tuning) = (model.task(0.1), Tuning::none());
    [
        training(&*task, precision, 8, &sgd_with_momentum()),
        evaluation(&*task, precision, 8, &tuning),
        prediction(&*task, precision, 8, &tuning),
    ]
    .map(|program| program.unwrap_or_else(|error| panic!("{error}")).program)
}

/// The computation without source locations.
fn text(module: &Module) -> String {
    let mut module = module.clone();
    for computation in &mut module.computations {
        for instruction in &mut computation.instructions {
            instruction.metadata = Metadata::default();
        }
    }
    print(&module, &PrintOptions::default()).replace("layers_", "cnn_")
}

const CNN: &str = "
kind: layers
inputs: {images: [9, 8, 1]}
layers:
  - {conv: 4, kernel_size: 3, padding: same, use_bias: false, kernel_initializer: he_normal, name: cnn/block1/conv}
  - {batch_norm: {momentum: 0.9, epsilon: 1.0e-5}, name: cnn/block1/bn}
  - {activation: relu}
  - {max_pool: 2, padding: same}
  - {conv: 6, kernel_size: [3, 3], padding: same, use_bias: false, kernel_initializer: he_normal, name: cnn/block2/conv}
  - {BatchNormalization: {momentum: 0.9, epsilon: 1.0e-5}, name: cnn/block2/bn}
  - {activation: relu}
  - MaxPooling2D: {padding: same}
  - flatten
  - {dense: 7, activation: relu, name: cnn/dense1}
  - {dropout: 0.25, name: cnn/dropout}
  - {dense: 5, name: cnn/logits}
loss: sparse_softmax_cross_entropy
metrics: accuracy
";

/// Not only the same numbers: the same instructions, so the same bits on any device.
#[test]
fn the_zoos_cnn_layer_by_layer_is_the_same_program() {
    let zoo = model("{kind: cnn, input: [9, 8, 1], n_classes: 5, filters: [4, 6], hidden: [7], dropout: 0.25}");
    let layers = model(CNN);
    for precision in Precision::ALL {
        for (ours, zoos) in programs(&layers, precision).iter().zip(&programs(&zoo, precision)) {
            let starts = |program: &Program| {
                program.variables.iter().map(|v| (v.name.clone(), v.init, v.trainable)).collect::<Vec<_>>()
            };
            assert_eq!(starts(ours), starts(zoos), "{precision}");
            assert_eq!(ours.outputs, zoos.outputs);
            let (ours, zoos) = (text(&ours.module), text(&zoos.module));
            let first = ours.lines().zip(zoos.lines()).find(|(ours, zoos)| ours != zoos);
            assert_eq!(first, None, "{precision}");
            assert_eq!(ours.len(), zoos.len());
        }
    }
    assert_eq!(layers.task(0.0).features(), zoo.task(0.0).features());
}

/// A network in which `layer` stands between an input and the loss.
fn around(inputs: &str, layers: &str) -> String {
    format!(
        "kind: layers\ninputs: {inputs}\nlayers:\n{layers}loss: mean_squared_error\nmetrics: [mean_absolute_error]\n"
    )
}

#[test]
fn every_kind_of_layer_is_built_and_trained() {
    let image = "{x: [6, 6, 4]}";
    let sequence = "{tokens: {shape: [5], dtype: int32, below: 9}}";
    let two = "  - {dense: 8, inputs: a, name: p}\n  - {dense: 8, inputs: b, name: q}\n";
    let embedded = "  - {embedding: 9, output_dim: 8}\n";
    let mut cases: Vec<(&str, String)> = vec![
        ("{x: [3]}", "  - {dense: {units: 2, activation: tanh, use_bias: false}}\n".to_string()),
        (image, "  - {conv: 4, kernel_size: [3, 1], strides: 2, groups: 2, activation: relu}\n".to_string()),
        (
            image,
            "  - {conv: {filters: 2, kernel_size: 2, dilation_rate: 2, data_format: channels_first}}\n".to_string(),
        ),
        (
            image,
            "  - {depthwise_conv: 3, depth_multiplier: 2, strides: 2, padding: same, activation: silu}\n".to_string(),
        ),
        (image, "  - {conv: 4, kernel_size: 1}\n  - batch_norm\n  - {max_pool: 2, strides: 1}\n".to_string()),
        (image, "  - {conv: 4, kernel_size: 1}\n  - {avg_pool: [2, 3], padding: same}\n".to_string()),
        (image, "  - {conv: 4, kernel_size: 1}\n  - global_max_pool\n".to_string()),
        (image, "  - {slice: [1, -1]}\n  - {conv: 4, kernel_size: 1}\n  - {slice: [null, 2], axis: -1}\n".to_string()),
        (image, "  - {conv: 4, kernel_size: 1}\n  - global_avg_pool\n  - {dropout: 0.5}\n".to_string()),
        (image, "  - {zero_padding: [[0, 1], [2, 0]]}\n  - {conv: 3, kernel_size: 2}\n".to_string()),
        (image, "  - {conv: 4, kernel_size: 1}\n  - {zero_padding: [1, 2]}\n  - {upsample: 2}\n".to_string()),
        (
            image,
            "  - {rescaling: 0.5, offset: -1.0}\n  - flatten\n  - {dense: 6}\n  - {reshape: [2, -1]}\n".to_string(),
        ),
        (image, "  - {conv: 4, kernel_size: 1, spectral_norm: true}\n  - {cumsum: 1, reverse: true}\n".to_string()),
        (image, "  - {conv_transpose: 4, kernel_size: 3, spectral_norm: 2, kernel_constraint: non_neg}\n".to_string()),
        ("{x: [5]}", "  - {dense: 6, kernel_constraint: {max_norm: 1}}\n  - sort\n  - {top_k: 3}\n".to_string()),
        ("{x: [5]}", "  - {dense: 6, activation: tanh, name: y}\n  - {gradient: [y, x]}\n".to_string()),
        (sequence, format!("{embedded}  - {{position_embedding: 5}}\n  - layer_norm\n  - {{attention: 2}}\n")),
        (sequence, format!("{embedded}  - {{attention: {{num_heads: 4, use_causal_mask: true}}}}\n  - {{dense: 3}}\n")),
        (sequence, format!("{embedded}  - class_token\n  - {{rms_norm: {{epsilon: 0.01}}}}\n  - {{dense: 3}}\n")),
        (
            sequence,
            format!(
                "{embedded}  - {{attention: 4, num_key_value_heads: 2, head_dim: 6, use_bias: false, rope: {{max_wavelength: 100}}}}\n"
            ),
        ),
        (sequence, format!("{embedded}  - {{attention: 4, num_key_value_heads: 1, rope: {{}}}}\n  - {{dense: 3}}\n")),
        (sequence, format!("{embedded}  - {{SimpleRNN: 4, bidirectional: true, return_sequences: true}}\n")),
        (
            sequence,
            format!(
                "{embedded}  - {{simple_rnn: 4, return_sequences: true, remat: segments, name: r}}\n  - {{simple_rnn: 4, \
                 activation: relu, initial_state: r.h}}\n"
            ),
        ),
    ];
    for merge in ["add", "subtract", "multiply", "average", "maximum", "minimum", "concat"] {
        cases.push(("{a: [3], b: [4]}", format!("{two}  - {{{merge}: [p, q]}}\n")));
    }
    let activations = [
        "linear",
        "relu",
        "relu6",
        "leaky_relu",
        "elu",
        "selu",
        "gelu",
        "gelu_tanh",
        "silu",
        "softplus",
        "softsign",
        "sigmoid",
        "hard_sigmoid",
        "tanh",
        "exponential",
        "softmax",
        "log_softmax",
    ];
    cases.extend(activations.map(|name| ("{x: [3]}", format!("  - {{dense: 4}}\n  - {{activation: {name}}}\n"))));
    for (inputs, layers) in cases {
        let text = around(inputs, &layers);
        let model = model(&text);
        assert_eq!(document::from_str::<Model>("again.yaml", &as_yaml(&model)).unwrap(), model, "{text}");
        for precision in Precision::ALL {
            for program in programs(&model, precision) {
                verify(&program.module).unwrap_or_else(|error| panic!("{text}: {error}"));
            }
            let step = &programs(&model, precision)[0];
            assert!(!step.variables.is_empty() || layers.contains("rescaling"), "{text}");
            let lost: Vec<&String> = step.variables.iter().filter(|v| v.update.is_none()).map(|v| &v.name).collect();
            assert_eq!(lost, [""; 0], "{text}");
            assert_eq!(step.warnings, [""; 0], "{text}");
        }
    }
}

/// A model as YAML; JSON is YAML.
fn as_yaml(model: &Model) -> String {
    serde_json::to_string(model).unwrap()
}

const TWO_TASKS: &str = "
kind: layers
inputs:
  images: [4, 4, 1]
  age: {shape: [1], dtype: float32}
labels:
  kind: {shape: [], dtype: int32, below: 3}
layers:
  - flatten: {inputs: images}
  - {dense: 8, activation: relu, name: trunk}
  - {dense: 3, name: kinds, inputs: trunk}
  - {dense: 16, name: picture, inputs: trunk}
  - {dense: 1, name: years, inputs: trunk}
outputs: {kinds: kinds, years: years, picture: picture}
loss:
  - {sparse_softmax_cross_entropy: kinds, labels: kind, label_smoothing: 0.1}
  - {mean_squared_error: years, labels: age, weight: 0.5}
metrics:
  - {accuracy: kinds, labels: kind}
  - {top_k: {k: 2, output: kinds, labels: kind}}
  - {mean_absolute_error: years, labels: age, name: years_off}
";

#[test]
fn several_inputs_outputs_losses_and_metrics() {
    let model = model(TWO_TASKS);
    assert_eq!(document::from_str::<Model>("again.yaml", &as_yaml(&model)).unwrap(), model);
    let [step, evaluation, prediction] = programs(&model, Precision::Bf16);
    let inputs = |program: &Program| {
        program.inputs.iter().map(|i| format!("{} {}{:?}", i.name, i.dtype, i.dims)).collect::<Vec<_>>().join(", ")
    };
    expect!["images bf16[8, 4, 4, 1], age f32[8, 1], kind s32[8], step s32[]"].assert_eq(&inputs(&step));
    expect!["images bf16[8, 4, 4, 1]"].assert_eq(&inputs(&prediction));
    assert_eq!(prediction.outputs, ["kinds", "years", "picture"]);
    let reported = [
        "loss",
        "loss/weight",
        "accuracy",
        "accuracy/weight",
        "top_2_accuracy",
        "top_2_accuracy/weight",
        "years_off",
        "years_off/weight",
        // Each loss beside their sum.
        "kinds_loss",
        "kinds_loss/weight",
        "years_loss",
        "years_loss/weight",
    ];
    assert_eq!(evaluation.outputs, reported);
}

/// A label described only by its dims used to be rounded to the compute dtype and multiplied by the images' scale, and
/// a class was not checked.
#[test]
fn a_label_that_is_described_is_what_its_loss_reads() {
    let labels = |text: &str| {
        let head = "kind: layers\ninputs: {x: [4]}\nlayers: [{dense: 3}]\n";
        let features = model(&format!("{head}{text}\n")).task(0.0).features();
        features.into_iter().find(|feature| feature.is_label).unwrap()
    };
    let numbers = Feature::exact("y", DType::F32, [3]).label();
    assert_eq!(labels("labels: {y: [3]}\nloss: {mean_squared_error: , labels: y}"), numbers);
    assert_eq!(labels("labels: {y: {shape: [3], dtype: f32}}\nloss: {mean_squared_error: , labels: y}"), numbers);
    let class = Feature::exact("y", DType::S32, []).below(3).label();
    let loss = "loss: {sparse_softmax_cross_entropy: , labels: y}";
    assert_eq!(labels(&format!("labels: {{y: {{shape: [], dtype: s32}}}}\n{loss}")), class);
    assert_eq!(labels(&format!("labels: {{y: []}}\n{loss}")), class);
    assert_eq!(labels(&format!("labels: {{y: []}}\n{loss}\nmetrics: {{top_k: 2, labels: y}}")), class);
    let narrower = labels(&format!("labels: {{y: {{shape: [], dtype: s32, below: 2}}}}\n{loss}"));
    assert_eq!(narrower.n_values, Some(2));
    // Weights are not rounded or scaled either.
    let text = "kind: layers\ninputs: {x: [4]}\nlayers: [{dense: 4}]\nlabels: {w: []}\n\
                loss: {sparse_softmax_cross_entropy: , example_weights: w}\n";
    let features = model(text).task(0.0).features();
    assert_eq!(
        features.iter().find(|feature| feature.name == "w"),
        Some(&Feature::exact("w", DType::F32, []).weight().label())
    );
}

/// Outside of 0 and 1 the sigmoid's cross entropy has no minimum, and training silently leads nowhere.
#[test]
fn what_a_cross_entropy_is_judged_by_is_a_probability() {
    let features = |text: &str| {
        let head = "kind: layers\ninputs: {x: [4]}\nlayers: [{dense: 4}]\n";
        let features = model(&format!("{head}{text}\n")).task(0.0).features();
        features.iter().map(|feature| (feature.name.clone(), feature.is_probability)).collect::<Vec<_>>()
    };
    let named = |list: &[(&str, bool)]| list.iter().map(|(name, is)| (name.to_string(), *is)).collect::<Vec<_>>();
    assert_eq!(features("loss: sigmoid_cross_entropy"), named(&[("x", false), ("labels", true)]));
    assert_eq!(features("loss: softmax_cross_entropy"), named(&[("x", false), ("labels", true)]));
    assert_eq!(features("loss: sparse_softmax_cross_entropy"), named(&[("x", false), ("labels", false)]));
    assert_eq!(features("loss: mean_squared_error"), named(&[("x", false), ("labels", false)]));
    let described = "labels: {tags: {shape: [4], dtype: int32}}\nloss: {sigmoid_cross_entropy: , labels: tags}";
    assert_eq!(features(described), named(&[("x", false), ("tags", true)]));
    let kinds =
        "labels: {tags: [4]}\nloss: {labels: tags, kind: sigmoid_cross_entropy}\nmetrics: {labels: tags, recall: }";
    assert_eq!(features(kinds), named(&[("x", false), ("tags", true)]));
    let two = "loss: {mean_squared_error: , labels: y}\nmetrics: {binary_accuracy: , labels: y}";
    assert_eq!(features(two), named(&[("x", false), ("y", true)]));
    // The input is reconstructed.
    assert_eq!(features("loss: {sigmoid_cross_entropy: , labels: x}"), named(&[("x", true)]));
}

/// Three positive predictions, two of them right; four truths, two of them detected. The last example is padding. Sums
/// and weights are counts, so that batches add up.
#[test]
fn precision_and_recall_are_exact_ratios_of_counts() {
    let model = model(
        "kind: layers
inputs: {x: {shape: [2], dtype: float32}}
layers: [{activation: linear}]
loss: sigmoid_cross_entropy
metrics: [precision, recall]
",
    );
    let program = evaluation(&*model.task(0.0), Precision::F32, 4, &Tuning::none()).unwrap().program;
    assert_eq!(program.outputs[2..], ["precision", "precision/weight", "recall", "recall/weight"]);
    let results = run::run(&program, |name| match name {
        "x" => array(&[4, 2], &[3.0, -1.0, 0.5, -2.0, 4.0, f32::NAN, 9.0, 9.0]),
        "labels" => array(&[4, 2], &[1.0, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0]),
        _ => array(&[4], &[1.0, 1.0, 1.0, 0.0]),
    });
    assert_eq!(results[2..], [2, 3, 2, 4].map(|count| Literal::from_elements([], &[count])));
}

/// A softmax is meaningless for one number or independent answers: `predict` applies it to `logits` only.
#[test]
fn only_logits_of_classes_are_called_so() {
    let outputs = |text: &str| {
        let model = model(&format!("kind: layers\ninputs: {{x: [4]}}\nlayers: [{{dense: 3, name: last}}]\n{text}\n"));
        prediction(&*model.task(0.0), Precision::F32, 2, &Tuning::none()).unwrap().program.outputs
    };
    assert_eq!(outputs("loss: sparse_softmax_cross_entropy"), ["logits"]);
    assert_eq!(outputs("loss: sigmoid_cross_entropy"), ["output"]);
    assert_eq!(outputs("outputs: last\nloss: mean_squared_error"), ["output"]);
    assert_eq!(outputs("outputs: {price: last}\nloss: mean_squared_error"), ["price"]);
}

#[test]
fn the_experiments_of_the_page_build() {
    let page = include_str!("../../docs/EXPERIMENTS.md");
    let blocks: Vec<&str> = page.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert_eq!(blocks.len(), 12);
    for block in blocks {
        let experiment: Experiment = document::from_str("docs/EXPERIMENTS.md", block).unwrap_or_else(|e| panic!("{e}"));
        programs(&experiment.model, Precision::Bf16).iter().for_each(|program| verify(&program.module).unwrap());
    }
}

#[test]
fn a_layer_that_computes_in_f32_reads_and_keeps_f32() {
    let network = |dtype: &str| {
        model(&format!(
            "kind: layers\ninputs: {{x: [6]}}\nlayers:\n  - {{dense: 4, activation: relu}}\n  - {{dense: 4{dtype}}}\n  - {{dense: 3, name: logits}}\n\
             loss: sparse_softmax_cross_entropy\n"
        ))
    };
    let dots = |program: &Program| -> Vec<DType> {
        let entry = program.module.entry();
        let dots = entry.instructions.iter().filter(|instr| instr.op.opcode() == "dot");
        dots.map(|dot| entry.instr(dot.operands[0]).shape.dtype().unwrap()).collect()
    };
    let [train, evaluate, _] = programs(&network(", dtype: float32"), Precision::Bf16);
    assert_eq!(dots(&evaluate), [DType::BF16, DType::F32, DType::BF16]);
    // Its gradients are of f32 dots too: for its kernel and for what it reads.
    let n_f32 = dots(&train).iter().filter(|dtype| **dtype == DType::F32).count();
    assert_eq!((n_f32, dots(&train).len()), (3, 8));
    for program in [train, evaluate] {
        verify(&program.module).unwrap();
        assert!(program.warnings.is_empty(), "{:?}", program.warnings);
    }
    // In f32 it is the network without.
    let texts = |model: &Model| programs(model, Precision::F32).map(|program| text(&program.module));
    assert_eq!(texts(&network(", dtype: float32")), texts(&network("")));
    // As Keras writes it, and in the settings of a checkpoint.
    assert_eq!(network(", dtype: f32"), network(", dtype: float32"));
    assert_eq!(serde_json::to_value(network(", dtype: f32")).unwrap()["layers"][1]["dtype"], "float32");
    assert_eq!(serde_json::to_value(network("")).unwrap()["layers"][1].get("dtype"), None);
    let bf16: Result<Model, _> =
        document::from_str("m.yaml", "kind: layers\ninputs: {x: [6]}\nlayers: [{dense: 4, dtype: bf16}]\nloss: mse\n");
    let message = bf16.unwrap_err().to_string();
    assert!(message.contains("unknown value `bf16`, expected one of f32, float32"), "{message}");
}

#[test]
fn a_table_that_computes_in_f32_has_f32_variables() {
    let network = |dtype: &str| {
        model(&format!(
            "kind: layers\ninputs: {{x: {{shape: [5], dtype: int32, below: 9}}}}\nlayers:\n  - {{embedding: {{input_dim: 9, output_dim: 4}}{dtype}}}\n  \
             - {{layer_norm: {dtype}}}\n  - {{attention: 2}}\n  - flatten\n  - {{dense: 3}}\nloss: sparse_softmax_cross_entropy\n"
        ))
    };
    for program in programs(&network(", dtype: float32"), Precision::Bf16) {
        verify(&program.module).unwrap();
        assert!(program.variables.iter().all(|variable| variable.dtype == DType::F32), "{:?}", program.variables);
        let entry = program.module.entry();
        let table = entry.instructions.iter().find(|instr| instr.op.opcode() == "gather").unwrap();
        assert_eq!(table.shape.dtype(), Some(DType::F32));
    }
    let texts = |model: &Model| programs(model, Precision::F32).map(|program| text(&program.module));
    assert_eq!(texts(&network(", dtype: float32")), texts(&network("")));
}
