//! Networks written layer by layer: the same program as the zoo's, every kind of layer trains, and errors point at the
//! line.

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
use expect_test::{Expect, expect};

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

/// `layers` and what follows them, under two lines, in an experiment.
fn check(lines: &str, expected: Expect) {
    let text = format!("kind: layers\n{lines}");
    expected.assert_eq(&document::from_str::<Model>("model.yaml", &text).unwrap_err().to_string());
}

/// Images, the layers, and a loss of classes.
fn check_layers(layers: &str, expected: Expect) {
    check(&format!("inputs: {{images: [8, 8, 3]}}\nlayers:\n{layers}loss: sparse_softmax_cross_entropy\n"), expected);
}

#[test]
fn a_layer_that_is_written_wrong() {
    check_layers(
        "  - flatten\n  - {dens: 10}\n",
        expect![[r#"
            model.yaml:5:6: unknown value `dens`, expected one of dense, conv, conv1d, conv3d, conv_transpose, separable_conv, depthwise_conv, batch_norm, group_norm, instance_norm, layer_norm, rms_norm, max_pool, avg_pool, global_max_pool, global_avg_pool, dropout, spatial_dropout, stochastic_depth, squeeze_excite, mb_conv, expression, activation, leaky_relu, prelu, softmax, reduce, unit_norm, dot, cosine, gaussian_noise, gaussian_dropout, gather, one_hot, cast, masking, rescaling, embedding, position_embedding, class_token, lstm, gru, attention, transformer_block, llama_block, flatten, reshape, repeat_vector, permute, take, slice, zero_padding, crop, upsample, concat, add, subtract, multiply, average, maximum, minimum
              5 |   - {dens: 10}
                |      ^^^^
              help: did you mean `dense`?"#]],
    );
    check_layers(
        "  - flatten\n  - {dense: {units: 10, activaton: relu}}\n",
        expect![[r#"
            model.yaml:5:25: unknown key `activaton`, expected one of units, activation, use_bias, kernel_initializer, bias_initializer, name, inputs, dtype, share
              5 |   - {dense: {units: 10, activaton: relu}}
                |                         ^^^^^^^^^
              help: did you mean `activation`?"#]],
    );
    check_layers(
        "  - flatten\n  - dense: 10\n    activation: rely\n",
        expect![[r#"
        model.yaml:6:17: unknown value `rely`, expected one of linear, relu, relu6, leaky_relu, elu, selu, gelu, gelu_tanh, silu, swish, softplus, softsign, sigmoid, hard_sigmoid, tanh, exponential, softmax, log_softmax
          6 |     activation: rely
            |                 ^^^^
          help: did you mean `relu`?"#]],
    );
    check_layers(
        "  - flatten\n  - {dense: 0}\n",
        expect![[r#"
        model.yaml:5:13: found integer `0`, expected a whole number of at least 1
          5 |   - {dense: 0}
            |             ^"#]],
    );
    check_layers(
        "  - flatten\n  - {dense: ten}\n",
        expect![[r#"
        model.yaml:5:13: found string "ten", expected a whole number of at least 1
          5 |   - {dense: ten}
            |             ^^^"#]],
    );
    check_layers(
        "  - flatten\n  - dense\n",
        expect![[r#"
        model.yaml:5:5: missing key `units`
          5 |   - dense
            |     ^^^^^
          help: add `units: …` to the block that starts here"#]],
    );
    check_layers(
        "  - {conv: 4, kernel_size: [3]}\n",
        expect![[r#"
        model.yaml:4:28: found 1 sizes, expected a whole number of at least 1, or [height, width]
          4 |   - {conv: 4, kernel_size: [3]}
            |                            ^"#]],
    );
    check_layers(
        "  - {conv: 4, padding: full, kernel_size: 3}\n",
        expect![[r#"
        model.yaml:4:24: unknown value `full`, expected one of valid, same
          4 |   - {conv: 4, padding: full, kernel_size: 3}
            |                        ^^^^"#]],
    );
    check_layers(
        "  - {flatten: 3}\n",
        expect![[r#"
        model.yaml:4:15: found integer `3`, expected nothing, or options
          4 |   - {flatten: 3}
            |               ^"#]],
    );
    check_layers(
        "  - {dense: 3, units: 4}\n",
        expect![[r#"
        model.yaml:4:16: key `units` is given twice
          4 |   - {dense: 3, units: 4}
            |                ^^^^^
          help: keep one `units`"#]],
    );
    check_layers(
        "  - {dense: 3, name: a, name: b}\n",
        expect![[r#"
            model.yaml:4:25: key `name` is given twice
              4 |   - {dense: 3, name: a, name: b}
                |                         ^^^^
              help: keep one `name`"#]],
    );
    check_layers(
        "  - [dense, 3]\n",
        expect![[r#"
        model.yaml:4:5: found a list, expected a layer, such as `flatten` or `{dense: 10}`
          4 |   - [dense, 3]
            |     ^"#]],
    );
    check_layers(
        "  - {name: x}\n",
        expect![[r#"
        model.yaml:4:5: found keys and values, expected a layer, such as `flatten` or `{dense: 10}`
          4 |   - {name: x}
            |     ^^^^^"#]],
    );
    check_layers(
        "  - {dropout: 1.5}\n",
        expect![[r#"
        model.yaml:4:15: found floating point `1.5`, expected a number from 0 up to but not including 1
          4 |   - {dropout: 1.5}
            |               ^^^"#]],
    );
}

#[test]
fn shapes_that_do_not_fit() {
    check_layers(
        "  - {conv: 4, kernel_size: 3}\n  - {dense: 10}\n",
        expect![[r#"
        model.yaml:5:5: layer `dense` (dense) reads `conv` f32[batch, 6, 6, 4]: x f32[32,6,6,4] has rank 4, expected 2 or 3: [batch, …, inputs]
          5 |   - {dense: 10}
            |     ^^^^^^
          help: put `flatten` or `global_avg_pool` before it, or write a dense layer for each pixel as `{conv: UNITS, kernel_size: 1}`"#]],
    );
    check_layers(
        "  - flatten\n  - {max_pool: 2}\n  - {dense: 10}\n",
        expect![[r#"
        model.yaml:5:5: layer `max_pool` (max_pool) reads `flatten` f32[batch, 192]: x f32[32,192] has rank 2, expected [batch, length, channels] or [batch, height, width, channels] or [batch, depth, height, width, channels]
          5 |   - {max_pool: 2}
            |     ^^^^^^^^^"#]],
    );
    check_layers(
        "  - {conv: 4, kernel_size: 9}\n",
        expect![[r#"
        model.yaml:4:5: layer `conv` (conv) reads `images` f32[batch, 8, 8, 3]: window covers 9 along height, which is 8 with padding 0_0
          4 |   - {conv: 4, kernel_size: 9}
            |     ^^^^^
          help: pad with `padding: same`, or make the window smaller"#]],
    );
    check_layers(
        "  - {reshape: [3, -1, 7]}\n",
        expect![[r#"
        model.yaml:4:5: layer `reshape` (reshape) reads `images` f32[batch, 8, 8, 3]: an example of [8, 8, 3] has 192 elements, expected dims of as many, found [3, -1, 7]
          4 |   - {reshape: [3, -1, 7]}
            |     ^^^^^^^^"#]],
    );
    check_layers(
        "  - {name: a, flatten: }\n  - {embedding: 9, output_dim: 2}\n",
        expect![[r#"
        model.yaml:5:5: layer `embedding` (embedding) reads `a` f32[batch, 192]: indices are f32[32,192], expected an integer dtype
          5 |   - {embedding: 9, output_dim: 2}
            |     ^^^^^^^^^^"#]],
    );
    check_layers(
        "  - {conv: 4, kernel_size: 3, name: a}\n  - {conv: 4, kernel_size: 5, name: b, inputs: images}\n  - concat:\n    inputs: [a, b]\n  - flatten\n  - {dense: 3}\n",
        expect![[r#"
            model.yaml:6:5: layer `concat` (concat) reads `a` f32[batch, 6, 6, 4] and `b` f32[batch, 4, 4, 4]: f32[32,6,6,4] and f32[32,4,4,4] meet, expected equal shapes but along axis -1
              6 |   - concat:
                |     ^^^^^^"#]],
    );
    check_layers(
        "  - {conv: 4, kernel_size: 1, name: a}\n  - {conv: 5, kernel_size: 1, name: b}\n  - {add: [a, b]}\n  - flatten\n  - {dense: 3}\n",
        expect![[r#"
            model.yaml:6:5: layer `add` (add) reads `a` f32[batch, 8, 8, 4] and `b` f32[batch, 8, 8, 5]: f32[32,8,8,4] and f32[32,8,8,5] meet, expected equal shapes, or sizes of 1
              6 |   - {add: [a, b]}
                |     ^^^^"#]],
    );
}

#[test]
fn names_that_do_not_fit() {
    check_layers(
        "  - flatten\n  - {dense: 8, name: trunk}\n  - dense: 3\n    inputs: trnk\n",
        expect![[r#"
        model.yaml:7:13: layer `dense` reads `trnk`, which is neither an input nor a layer
          7 |     inputs: trnk
            |             ^^^^
          help: did you mean `trunk`?"#]],
    );
    check_layers(
        "  - flatten\n  - {dense: 8, name: trunk}\n  - {dense: 3, inputs: flatten}\n",
        expect![[r#"
        model.yaml:5:5: unused layer `trunk` (dense)
          5 |   - {dense: 8, name: trunk}
            |     ^^^^^^
          help: name it in another layer's `inputs` or in `outputs`, or leave it out"#]],
    );
    check_layers(
        "  - flatten\n  - {dense: 8, inputs: late}\n  - {dense: 3, name: late, inputs: flatten}\n",
        expect![[r#"
        model.yaml:5:24: layer `dense` reads `late`, which stands below it
          5 |   - {dense: 8, inputs: late}
            |                        ^^^^
          help: move `late` up: a layer stands after what it reads"#]],
    );
    check_layers(
        "  - flatten\n  - {add: [flatten, c], name: a}\n  - {dense: 192, name: b}\n  - {dense: 192, name: c}\n",
        expect![[r#"
            model.yaml:5:5: layers read each other in a cycle: `a` reads `c` reads `b` reads `a`
              5 |   - {add: [flatten, c], name: a}
                |     ^^^^
              help: let the first of them read an input, or a layer above it"#]],
    );
    check_layers(
        "  - flatten\n  - {dense: 8, name: x}\n  - {dense: 3, name: x}\n",
        expect![[r#"
        model.yaml:6:22: another layer or input is called `x`, too
          6 |   - {dense: 3, name: x}
            |                      ^
          help: give one of them another name"#]],
    );
    check_layers(
        "  - flatten\n  - {add: [flatten]}\n",
        expect![[r#"
        model.yaml:5:5: layer `add` (add) reads 1, expected at least two
          5 |   - {add: [flatten]}
            |     ^^^^
          help: name them: `{add: [a, b]}`"#]],
    );
    check_layers(
        "  - {flatten: , inputs: [images, images]}\n",
        expect![[r#"
        model.yaml:4:25: layer `flatten` (flatten) reads 2, expected one
          4 |   - {flatten: , inputs: [images, images]}
            |                         ^
          help: join them first, with `concat` or `add`"#]],
    );
    check(
        "inputs: {a: [3], b: [3]}\nlayers:\n  - {dense: 2}\nloss: mean_squared_error\n",
        expect![[r#"
            model.yaml:4:5: layer `dense` is the first, and there are 2 inputs
              4 |   - {dense: 2}
                |     ^^^^^^
              help: say which it reads: `inputs: a`, …; there are a, b"#]],
    );
    check(
        "inputs: {a: [3], b: [3]}\nlayers:\n  - {dense: 2, inputs: a}\nloss: mean_squared_error\n",
        expect![[r#"
            model.yaml:2:18: no layer reads input `b`
              2 | inputs: {a: [3], b: [3]}
                |                  ^
              help: name it in a layer's `inputs: b`, or leave it out"#]],
    );
}

#[test]
fn losses_and_metrics_that_do_not_fit() {
    let start = "inputs: {x: [3]}\nlayers:\n  - {dense: 2}\n";
    let check = |rest: &str, expected: Expect| check(&format!("{start}{rest}"), expected);
    check(
        "",
        expect![[r#"
        model.yaml:1:1: missing key `loss`
          1 | kind: layers
            | ^^^^
          help: add `loss: …` to the block that starts here"#]],
    );
    check(
        "loss: []\n",
        expect![[r#"
        model.yaml:5:7: there are no losses, expected at least one
          5 | loss: []
            |       ^"#]],
    );
    check(
        "loss: sparse_categorical_crossentropy\n",
        expect![[r#"
            model.yaml:5:7: unknown value `sparse_categorical_crossentropy`, expected one of sparse_softmax_cross_entropy, softmax_cross_entropy, kl_divergence, sigmoid_cross_entropy, sparse_softmax_focal_cross_entropy, softmax_focal_cross_entropy, sigmoid_focal_cross_entropy, sigmoid_dice, softmax_dice, mean_squared_error, mean_absolute_error, mean_absolute_percentage_error, mean_squared_logarithmic_error, poisson, quantile, log_cosh, cosine_similarity, hinge, squared_hinge, categorical_hinge, contrastive, triplet, ctc, huber
              5 | loss: sparse_categorical_crossentropy
                |       ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
              help: did you mean `sparse_softmax_cross_entropy`? a loss is its name, or with options `{sparse_softmax_cross_entropy: , labels: NAME, output: NAME}`"#]],
    );
    check(
        "loss: {mean_squared_error: {wait: 2}}\n",
        expect![[r#"
            model.yaml:5:29: unknown key `wait`, expected one of output, labels, weight, label_smoothing, class_weights, example_weights, reduction, name, variables
              5 | loss: {mean_squared_error: {wait: 2}}
                |                             ^^^^"#]],
    );
    check(
        "loss: mean_squared_error\nmetrics: [accuracy, acc]\n",
        expect![[r#"
            model.yaml:6:21: unknown value `acc`, expected one of accuracy, top_k, mean_per_class_accuracy, mean_iou, perplexity, auc, iou, binary_accuracy, precision, recall, f1, macro_f1, cosine_similarity, r2, mean_squared_error, mean_absolute_error
              6 | metrics: [accuracy, acc]
                |                     ^^^
              help: did you mean `accuracy`? a metric is its name, or with options `{accuracy: , labels: NAME, output: NAME}`"#]],
    );
    check(
        "loss: mean_squared_error\nmetrics: [accuracy]\n",
        expect![[r#"
        model.yaml:6:11: metric `accuracy` judges `dense` by `labels` f32[batch, 2]: labels are f32[32,2], expected an integer dtype
          6 | metrics: [accuracy]
            |           ^^^^^^^^"#]],
    );
    check(
        "labels: {labels: {shape: [2, 1], dtype: int32}}\nloss: sparse_softmax_cross_entropy\n",
        expect![[r#"
        model.yaml:6:7: loss `sparse_softmax_cross_entropy` judges `dense` by `labels` s32[batch, 2, 1]: labels s32[32,2,1] do not fit logits f32[32,2], expected one label for each row
          6 | loss: sparse_softmax_cross_entropy
            |       ^^^^^^^^^^^^^^^^^^^^^^^^^^^^"#]],
    );
    check(
        "labels: {labels: [3]}\nloss:\n  - mean_squared_error\n",
        expect![[r#"
        model.yaml:7:5: loss `mean_squared_error` judges `dense` by `labels` f32[batch, 3]: target f32[32,3] differ from prediction f32[32,2], expected one shape
          7 |   - mean_squared_error
            |     ^^^^^^^^^^^^^^^^^^"#]],
    );
    check(
        "labels: {classes: [3]}\nloss: mean_squared_error\n",
        expect![[r#"
        model.yaml:5:10: no loss and no metric reads label `classes`
          5 | labels: {classes: [3]}
            |          ^^^^^^^
          help: add `labels: classes` to one"#]],
    );
    check(
        "labels: {price: [2]}\nloss: {mean_squared_error: , labels: prize}\n",
        expect![[r#"
        model.yaml:5:10: no loss and no metric reads label `price`
          5 | labels: {price: [2]}
            |          ^^^^^
          help: `prize` is read and is not among `labels`: give both one name"#]],
    );
    check(
        "loss: {mean_squared_error: , label_smoothing: 0.1}\n",
        expect![[r#"
        model.yaml:5:7: mean_squared_error has no label smoothing
          5 | loss: {mean_squared_error: , label_smoothing: 0.1}
            |       ^^^^^^^^^^^^^^^^^^^
          help: leave `label_smoothing` out: it is for cross entropies"#]],
    );
    check(
        "loss: {mean_squared_error: , weight: -2}\n",
        expect![[r#"
            model.yaml:5:38: found integer `-2`, expected a number of at least 0
              5 | loss: {mean_squared_error: , weight: -2}
                |                                      ^^"#]],
    );
    check(
        "loss: {mean_squared_error: densse}\n",
        expect![[r#"
            model.yaml:5:28: loss `mean_squared_error` judges `densse`, which is neither an output nor a layer
              5 | loss: {mean_squared_error: densse}
                |                            ^^^^^^
              help: did you mean `dense`?"#]],
    );
    check(
        "outputs: [dense, dense_1]\nloss: mean_squared_error\n",
        expect![[r#"
        model.yaml:5:10: output `dense_1` is `dense_1`, which is neither a layer nor an input
          5 | outputs: [dense, dense_1]
            |          ^
          help: did you mean `dense`?"#]],
    );
    check(
        "outputs: {a: dense, b: x}\nloss: mean_squared_error\n",
        expect![[r#"
        model.yaml:6:7: loss `mean_squared_error` does not say which output it judges: a, b
          6 | loss: mean_squared_error
            |       ^^^^^^^^^^^^^^^^^^
          help: add `output: a`"#]],
    );
    check(
        "losses: mean_squared_error\n",
        expect![[r#"
        model.yaml:5:1: unknown key `losses`, expected one of inputs, labels, layers, outputs, loss, metrics
          5 | losses: mean_squared_error
            | ^^^^^^
          help: did you mean `loss`?"#]],
    );
    check(
        "loss: mean_squared_error\nmetrics: [mean_absolute_error, {mean_absolute_error: x}]\n",
        expect![[r#"
        model.yaml:6:32: two things are reported as `mean_absolute_error`
          6 | metrics: [mean_absolute_error, {mean_absolute_error: x}]
            |                                ^^^^^^^^^^^^^^^^^^^^
          help: give one of them another name: `name: …`"#]],
    );
}

#[test]
fn a_softmax_is_not_taken_twice() {
    check_layers(
        "  - flatten\n  - {dense: 10, activation: softmax}\n",
        expect![[r#"
        model.yaml:6:7: layer `dense` ends in softmax, which loss `sparse_softmax_cross_entropy` takes itself: it reads logits
          6 | loss: sparse_softmax_cross_entropy
            |       ^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          help: leave the activation of `dense` out, or judge the layer before it with `output: …`"#]],
    );
}

#[test]
fn places_are_those_in_the_whole_file() {
    let text = "# an experiment\nmodel:\n  kind: layers\n  inputs: {x: [4, 4, 1]}\n  layers:\n    - dense: 3\n  loss: sparse_softmax_cross_entropy\n";
    let error = document::from_str::<bf16scope::experiment::Experiment>("e.yaml", text).unwrap_err();
    expect![[r#"
        e.yaml:6:7: layer `dense` (dense) reads `x` f32[batch, 4, 4, 1]: x f32[32,4,4,1] has rank 4, expected 2 or 3: [batch, …, inputs]
          6 |     - dense: 3
            |       ^^^^^
          help: put `flatten` or `global_avg_pool` before it, or write a dense layer for each pixel as `{conv: UNITS, kernel_size: 1}`"#]].assert_eq(&error.to_string());
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
