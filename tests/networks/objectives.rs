//! Losses and metrics of `layers` by name: what is written wrong, and what weights do.

use crate::run;

use bf16scope::document;
use bf16scope::graph::Precision;
use bf16scope::hlo::{DType, Literal};
use bf16scope::models::Model;
use bf16scope::train::Objective;
use bf16scope::train::program::{evaluation, training};
use bf16scope::tuning::Tuning;
use expect_test::{Expect, expect};

fn model(text: &str) -> Model {
    document::from_str("model.yaml", text).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn options_that_do_not_fit() {
    let check = |rest: &str, expected: Expect| {
        let text = format!("kind: layers\ninputs: {{x: [3]}}\nlayers: [{{dense: 4}}]\n{rest}\n");
        expected.assert_eq(&document::from_str::<Model>("model.yaml", &text).unwrap_err().to_string());
    };
    check(
        "loss: {sigmoid_focal_cross_entropy: {gama: 2}}",
        expect![[r#"
            model.yaml:4:38: unknown key `gama`, expected one of output, labels, weight, label_smoothing, class_weights, example_weights, reduction, name, variables, gamma, alpha
              4 | loss: {sigmoid_focal_cross_entropy: {gama: 2}}
                |                                      ^^^^
              help: did you mean `gamma`?"#]],
    );
    check(
        "loss: {focal: {gamma: 2}}",
        expect![[r#"
            model.yaml:4:8: unknown value `focal`, expected one of sparse_softmax_cross_entropy, softmax_cross_entropy, kl_divergence, sigmoid_cross_entropy, sparse_softmax_focal_cross_entropy, softmax_focal_cross_entropy, sigmoid_focal_cross_entropy, sigmoid_dice, softmax_dice, mean_squared_error, mean_absolute_error, mean_absolute_percentage_error, mean_squared_logarithmic_error, poisson, quantile, log_cosh, cosine_similarity, hinge, squared_hinge, categorical_hinge, contrastive, triplet, ctc, matching, crf, huber, value
              4 | loss: {focal: {gamma: 2}}
                |        ^^^^^
              help: did you mean `sigmoid_focal_cross_entropy`? a loss is its name, or with options `{sigmoid_focal_cross_entropy: , labels: NAME, output: NAME}`"#]],
    );
    check(
        "loss: {softmax_focal_cross_entropy: , alpha: 1.5}",
        expect![[r#"
            model.yaml:4:46: found floating point `1.5`, expected a number from 0 to 1
              4 | loss: {softmax_focal_cross_entropy: , alpha: 1.5}
                |                                              ^^^"#]],
    );
    check(
        "loss: huber",
        expect![[r#"
            model.yaml:4:7: huber does not say where its squares end
              4 | loss: huber
                |       ^^^^^
              help: add `delta`, in the unit of the output: `{huber: , delta: 1.0}`"#]],
    );
    check(
        "loss: {huber: , delta: 0}",
        expect![[r#"
            model.yaml:4:24: found integer `0`, expected a finite number above 0
              4 | loss: {huber: , delta: 0}
                |                        ^"#]],
    );
    check(
        "loss: {mean_squared_error: , gamma: 2}",
        expect![[r#"
            model.yaml:4:30: unknown key `gamma`, expected one of output, labels, weight, label_smoothing, class_weights, example_weights, reduction, name, variables
              4 | loss: {mean_squared_error: , gamma: 2}
                |                              ^^^^^"#]],
    );
    check(
        "loss: {sparse_softmax_cross_entropy: , class_weights: [1, 2]}",
        expect![[r#"
            model.yaml:4:55: `class_weights` are 2 numbers, and the output has 4 classes
              4 | loss: {sparse_softmax_cross_entropy: , class_weights: [1, 2]}
                |                                                       ^"#]],
    );
    check(
        "loss: {sigmoid_dice: , class_weights: [1, 2, 1, 1]}",
        expect![[r#"
            model.yaml:4:24: sigmoid_dice has no classes to weigh
              4 | loss: {sigmoid_dice: , class_weights: [1, 2, 1, 1]}
                |                        ^^^^^^^^^^^^^
              help: leave `class_weights` out: it is for cross entropies of classes"#]],
    );
    check(
        "labels: {w: [2], labels: []}\nloss: {sparse_softmax_cross_entropy: , example_weights: w}",
        expect![[r#"
            model.yaml:5:57: `example_weights: w` is f32[batch, 2], expected f32[batch]
              5 | loss: {sparse_softmax_cross_entropy: , example_weights: w}
                |                                                         ^
              help: describe it as `w: []`: one number for each example"#]],
    );
    check(
        "labels: {labels: [5]}\nloss: sigmoid_dice",
        expect![[r#"
        model.yaml:5:7: loss `sigmoid_dice` judges `dense` by `labels` f32[batch, 5]: labels f32[32,5] differ from logits f32[32,4], expected one shape
          5 | loss: sigmoid_dice
            |       ^^^^^^^^^^^^"#]],
    );
    check(
        "loss: sparse_softmax_cross_entropy\nmetrics: [{top_k: 5}]",
        expect![[r#"
        model.yaml:5:19: the label is always among the top 5 of 4 classes
          5 | metrics: [{top_k: 5}]
            |                   ^
          help: write a `top_k` of at most 3"#]],
    );
    check(
        "loss: sparse_softmax_cross_entropy\nmetrics: [accuracy, precision]",
        expect![[r#"
        model.yaml:5:21: metric `precision` judges yes-or-no answers, and `dense` is 4 logits of classes
          5 | metrics: [accuracy, precision]
            |                     ^^^^^^^^^
          help: write `macro_f1`, or judge an output that a `sigmoid_cross_entropy` trains"#]],
    );
    check(
        "loss: softmax_cross_entropy\nmetrics: [auc]",
        expect![[r#"
        model.yaml:5:11: metric `auc` judges yes-or-no answers, and `dense` is 4 logits of classes
          5 | metrics: [auc]
            |           ^^^
          help: write `mean_per_class_accuracy`, or judge an output that a `sigmoid_cross_entropy` trains"#]],
    );
    check(
        "loss: sparse_softmax_cross_entropy\nmetrics: [{top_k: 2, kk: 3}]",
        expect![[r#"
            model.yaml:5:22: unknown key `kk`, expected one of k, output, labels, name, example_weights
              5 | metrics: [{top_k: 2, kk: 3}]
                |                      ^^
              help: did you mean `k`?"#]],
    );
    check(
        "loss: sparse_softmax_cross_entropy\nmetrics: [{top_k: 2, k: 3}]",
        expect![[r#"
            model.yaml:5:22: key `k` is given twice
              5 | metrics: [{top_k: 2, k: 3}]
                |                      ^
              help: keep one `k`"#]],
    );
    check(
        "labels: {w: [2], labels: []}\nloss: sparse_softmax_cross_entropy\nmetrics: {accuracy: , example_weights: w}",
        expect![[r#"
            model.yaml:6:40: `example_weights: w` is f32[batch, 2], and metric `accuracy` has labels s32[batch]: expected as many rows
              6 | metrics: {accuracy: , example_weights: w}
                |                                        ^
              help: name others, or write `example_weights: null`: all weigh alike"#]],
    );
    check(
        "loss: [{sparse_softmax_cross_entropy: , example_weights: w}, sparse_softmax_cross_entropy]\nmetrics: accuracy",
        expect![[r#"
            model.yaml:5:10: metric `accuracy` does not say what examples weigh: losses of its output differ
              5 | metrics: accuracy
                |          ^^^^^^^^
              help: add `example_weights: w` or `example_weights: null` (all alike)"#]],
    );
    check(
        "loss: sigmoid_cross_entropy\nmetrics: [{auc: 1}]",
        expect![[r#"
            model.yaml:5:17: found integer `1`, expected a whole number from 2 to 10000
              5 | metrics: [{auc: 1}]
                |                 ^"#]],
    );
}

#[test]
fn a_sigmoid_is_not_taken_twice_by_a_metric() {
    let text = "kind: layers\ninputs: {x: [3]}\nlayers: [{dense: 4, activation: sigmoid}]\nloss: mean_squared_error\n\
                metrics: [binary_accuracy]\n";
    expect![[r#"
        model.yaml:5:11: layer `dense` ends in sigmoid, which metric `binary_accuracy` takes itself: it reads logits
          5 | metrics: [binary_accuracy]
            |           ^^^^^^^^^^^^^^^
          help: leave the activation of `dense` out, or judge the layer before it with `output: …`"#]]
    .assert_eq(&document::from_str::<Model>("model.yaml", text).unwrap_err().to_string());
}

/// Reading a configuration back gives the same one: checkpoints store it.
#[test]
fn losses_are_written_as_they_are_read() {
    for loss in [
        "{sigmoid_focal_cross_entropy: , gamma: 1.5, alpha: null}",
        "{huber: , delta: 0.5, weight: 2.0}",
        "value",
        "{value: , labels: y}",
        "{sparse_softmax_cross_entropy: , class_weights: [1.0, 0.0, 2.5, 1.0], example_weights: w}",
        "{sparse_softmax_cross_entropy: , example_weights: w}\nmetrics: [{top_k: 3, example_weights: null}]",
        "sparse_softmax_cross_entropy\nmetrics: [{accuracy: , example_weights: w}, {mean_iou: , name: m}]",
    ] {
        let model = model(&format!("kind: layers\ninputs: {{x: [3]}}\nlayers: [{{dense: 4}}]\nloss: {loss}\n"));
        let written = document::to_string(&model).unwrap();
        assert_eq!(document::from_str::<Model>("written.yaml", &written).unwrap(), model, "{written}");
    }
}

fn f32s(dims: &[i64], values: &[f32]) -> Literal {
    Literal::from_elements(dims.to_vec(), values)
}

/// Two losses of one network with factors, of examples and classes with weights, beside the same by hand from the parts. One
/// example weighs nothing, whose loss is not a number.
#[test]
fn weights_multiply_what_they_say() {
    let head = "kind: layers\ninputs: {x: {shape: [3], dtype: float32}, y: {shape: [3], dtype: float32}}\n\
                layers: [{activation: linear, inputs: x, name: a}]\noutputs: {a: a, y: y}\n";
    let losses = |model: &Model| {
        let program = evaluation(&*model.task(0.0), Precision::F32, 4, &Tuning::none()).unwrap().program;
        let step = run::run(&program, |name| match name {
            "x" => f32s(&[4, 3], &[1.0, 2.0, 0.0, 0.5, -1.0, 0.0, 2.0, 0.0, 1.0, 3.0, f32::NAN, 0.0]),
            "y" => f32s(&[4, 3], &[0.0, 1.0, 0.5, 0.0, 0.0, 1.0, -1.0, 0.0, 1.0, 3.0, 0.25, 0.0]),
            "w" => f32s(&[4], &[2.0, 0.5, 1.0, 0.0]),
            "weight" => f32s(&[4], &[1.0; 4]),
            _ => Literal::from_elements([4], &[0, 1, 2, 1]),
        });
        run::f32s(&step[0])[0]
    };
    let both = model(&format!(
        "{head}loss:\n  - {{sparse_softmax_cross_entropy: , output: a, class_weights: [1, 3, 0.5], example_weights: w}}\n  \
         - {{mean_squared_error: , output: y, labels: y, weight: 0.5, example_weights: w}}\n"
    ));
    // e^x of each row, and its label's share.
    let row = |x: [f64; 3], label: usize| x.iter().map(|x| x.exp()).sum::<f64>().ln() - x[label];
    let expected = 2.0 * row([1.0, 2.0, 0.0], 0) + 0.5 * 3.0 * row([0.5, -1.0, 0.0], 1) + 0.5 * row([2.0, 0.0, 1.0], 2);
    let measured = f64::from(losses(&both));
    // A sum of three cross-entropies, each of three terms and two functions, rounds less than 64 times by half an ulp.
    assert!((measured - expected).abs() <= 64.0 * expected / f64::from(1 << 24), "{measured}, expected {expected}");
}

/// The results of an evaluation's program for a batch, by name.
fn evaluated(text: &str, batch: i64, input: impl Fn(&str) -> Literal) -> impl Fn(&str) -> Vec<f32> {
    let program = evaluation(&*model(text).task(0.0), Precision::F32, batch, &Tuning::none()).unwrap().program;
    let results = run::run(&program, input);
    move |name| {
        let at = program.outputs.iter().position(|output| output == name).unwrap_or_else(|| panic!("no {name}"));
        let counts = || Some(results[at].elements::<i32>()?.into_iter().map(|count| count as f32).collect());
        results[at].elements::<f32>().or_else(counts).unwrap()
    }
}

/// Boxes of anchors: a loss of numbers counts each row of an example by its weight, and one of weight 0 not at all.
#[test]
fn rows_of_numbers_have_weights() {
    let text = |weights: &str, loss: &str| {
        format!(
            "kind: layers\ninputs: {{x: {{shape: [2, 3], dtype: float32}}}}\nlabels: {{labels: [2, 3], w: {weights}}}\n\
             layers: [{{activation: linear}}]\nloss: {{{loss}: , example_weights: w}}\n"
        )
    };
    let measured = |loss: &str| {
        let program = evaluation(&*model(&text("[2]", loss)).task(0.0), Precision::F32, 2, &Tuning::none()).unwrap();
        let step = run::run(&program.program, |name| match name {
            "x" => f32s(&[2, 2, 3], &[1.0, 2.0, 0.0, 0.5, -1.0, 0.0, 2.0, 0.0, 1.0, 3.0, f32::NAN, 0.0]),
            "labels" => f32s(&[2, 2, 3], &[0.0; 12]),
            "w" => f32s(&[2, 2], &[1.0, 2.0, 0.5, 0.0]),
            _ => f32s(&[2], &[1.0; 2]),
        });
        run::f32s(&step[0])[0]
    };
    let squares = [5.0 / 3.0, 1.25 / 3.0, 5.0 / 3.0];
    let lines = [1.0, 0.5, 1.0];
    for (loss, rows) in [("mean_squared_error", squares), ("mean_absolute_error", lines)] {
        let expected = (rows[0] + 2.0 * rows[1] + 0.5 * rows[2]) / 2.0;
        let measured = f64::from(measured(loss));
        // Twelve products and sums.
        assert!((measured - expected).abs() <= 12.0 * expected / f64::from(1 << 24), "{loss}: {measured}, {expected}");
    }
    let error = document::from_str::<Model>("m.yaml", &text("[3]", "mean_squared_error")).unwrap_err().to_string();
    let expected =
        "`example_weights: w` is f32[batch, 3], expected f32[batch], or the first axes of the output f32[batch, 2, 3]";
    assert!(error.contains(expected), "{error}");
}

/// A loss that the network computes may be below 0, and reads no labels.
#[test]
fn a_value_of_the_network_is_a_loss() {
    let text = "kind: layers\ninputs: {v: [2]}\nlayers: [{dense: 2, name: d}, {expression: 'x - 3'}]\nloss: value\n";
    let features = model(text).task(0.0).features();
    assert_eq!(features.iter().map(|feature| feature.name.as_str()).collect::<Vec<_>>(), ["v"]);
    let total = evaluated(text, 4, |name| match name {
        "d/kernel" => f32s(&[2, 2], &[1.0, 0.0, 0.0, 1.0]),
        "d/bias" => f32s(&[2], &[0.0; 2]),
        "v" => f32s(&[4, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 0.0, 0.0]),
        _ => f32s(&[4], &[1.0; 4]),
    });
    assert_eq!(total("loss")[0] / total("loss/weight")[0], -0.375);
}

/// Losses beside those of Keras' `evaluate` (`tests/data/layers_tf/make_regularizers.py`). A shared layer's variables
/// are penalised once, and its results each time. 64 roundings of a loss below 1/2 are below 2e-6.
#[test]
fn regularizers_add_what_keras_does() {
    let values = |dims: &[i64], first: i64| {
        let n: i64 = dims.iter().product();
        let numbers = (0..n).map(|at| (((at * 7 + first) % 13) as f64 / 10.0 - 0.6) as f32);
        f32s(dims, &numbers.collect::<Vec<f32>>())
    };
    let loss = |of_shared: &str, of_last: &str| {
        let text = format!(
            "kind: layers\ninputs: {{a: [3], b: [3]}}\nlayers:\n  - {{dense: 4, inputs: a, name: s{of_shared}}}\n  \
             - {{share: s, inputs: b, name: t}}\n  - {{concat: [s, t]}}\n  - {{dense: 2, name: o{of_last}}}\n\
             loss: mean_squared_error\n"
        );
        let total = evaluated(&text, 5, |name| match name {
            "s/kernel" => values(&[3, 4], 1),
            "s/bias" => values(&[4], 2),
            "o/kernel" => values(&[8, 2], 3),
            "o/bias" => values(&[2], 4),
            "a" => values(&[5, 3], 5),
            "b" => values(&[5, 3], 6),
            "labels" => values(&[5, 2], 7),
            _ => f32s(&[5], &[1.0; 5]),
        });
        total("loss")[0] / total("loss/weight")[0]
    };
    let (l1, l2) = (", kernel_regularizer: {l1: 0.02}", ", bias_regularizer: {l2: 0.03}");
    let activity = ", activity_regularizer: {l1: 0.01, l2: 0.04}";
    let both = ", kernel_regularizer: l1_l2";
    for (of_shared, of_last, expected) in [
        (String::new(), String::new(), 0.195_916_89),
        (l1.to_string(), String::new(), 0.277_916_9),
        (l2.to_string(), String::new(), 0.210_916_9),
        (activity.to_string(), String::new(), 0.283_920_1),
        (String::new(), both.to_string(), 0.268_016_87),
        ([l1, l2, activity].concat(), format!("{both}, activity_regularizer: l2"), 0.453_977_64),
    ] {
        let measured = loss(&of_shared, &of_last);
        assert!((measured - expected).abs() <= 2e-6, "{of_shared} {of_last}: {measured}, expected {expected}");
    }
}

/// Rows of weight 0 are not reported: the perplexity of masked words counts the masked ones only. By hand: three rows
/// of weights 1, 2 and 1/2 count, one is wrong; the last example is padding.
#[test]
fn metrics_weigh_rows_as_their_loss_does() {
    let text = "kind: layers
inputs: {x: {shape: [3, 3], dtype: float32}}
labels: {w: [3], v: []}
layers: [{activation: linear}]
loss: {sparse_softmax_cross_entropy: , example_weights: w}
metrics:
  - accuracy
  - {accuracy: , name: plain, example_weights: null}
  - {accuracy: , name: by_example, example_weights: v}
  - {top_k: 2}
  - perplexity
  - mean_per_class_accuracy
  - mean_iou
";
    let total = evaluated(text, 3, |name| match name {
        "x" => {
            let nan = f32::NAN;
            #[rustfmt::skip]
            let x = [2.0, 1.0, 0.0,  2.0, 1.0, 0.0,  0.0, 1.0, 2.0,
                     1.0, 2.0, 0.0,  0.0, 0.0, 1.0,  nan, 0.0, 0.0,
                     0.0, 0.0, 9.0,  0.0, 0.0, 9.0,  0.0, 0.0, 9.0];
            f32s(&[3, 3, 3], &x)
        }
        "labels" => Literal::from_elements([3, 3], &[0, 1, 2, 0, 2, 0, 0, 0, 0]),
        "w" => f32s(&[3, 3], &[1.0, 0.0, 2.0, 0.5, 0.0, 0.0, 3.0, 3.0, 3.0]),
        "v" => f32s(&[3], &[1.0, 0.0, 5.0]),
        _ => f32s(&[3], &[1.0, 1.0, 0.0]),
    });
    let quotient = |name: &str| [total(name), total(&format!("{name}/weight"))].concat();
    assert_eq!(quotient("accuracy"), [3.0, 3.5]);
    assert_eq!(quotient("plain"), [3.0, 6.0]);
    assert_eq!(quotient("by_example"), [2.0, 3.0]);
    assert_eq!(quotient("top_2_accuracy"), [3.5, 3.5]);
    let row = |x: [f64; 3], label: usize| x.iter().map(|x| x.exp()).sum::<f64>().ln() - x[label];
    let expected = row([2.0, 1.0, 0.0], 0) + 2.0 * row([0.0, 1.0, 2.0], 2) + 0.5 * row([1.0, 2.0, 0.0], 0);
    let [sum, weight] = quotient("perplexity")[..] else { panic!("two numbers") };
    // As above: fewer than 64 roundings by half an ulp.
    assert!((f64::from(sum) - expected).abs() <= 64.0 * expected / f64::from(1 << 24), "{sum}, expected {expected}");
    assert_eq!(weight, 3.5);
    // Hits, and rows of each class. The only row of class 1 has weight 0, but row 3, of weight 1/2, was predicted as
    // it.
    assert_eq!(quotient("mean_per_class_accuracy"), [1.0, 0.0, 2.0, 1.5, 0.0, 2.0]);
    assert_eq!(quotient("mean_iou"), [1.0, 0.0, 2.0, 1.5, 0.5, 2.0]);
}

/// Answers yes and no, of three examples of weights 1, 0 and 2, and one of padding.
#[test]
fn metrics_of_answers_weigh_examples() {
    let text = "kind: layers
inputs: {x: {shape: [2], dtype: float32}}
layers: [{activation: linear}]
loss: {sigmoid_cross_entropy: , example_weights: w}
metrics: [precision, recall, iou, binary_accuracy, {auc: 3}, mean_squared_error]
";
    let total = evaluated(text, 4, |name| match name {
        "x" => f32s(&[4, 2], &[3.0, -1.0, 0.5, -2.0, 4.0, f32::NAN, 9.0, 9.0]),
        "labels" => f32s(&[4, 2], &[1.0, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0]),
        "w" => f32s(&[4], &[1.0, 0.0, 2.0, 7.0]),
        _ => f32s(&[4], &[1.0, 1.0, 1.0, 0.0]),
    });
    let quotient = |name: &str| [total(name), total(&format!("{name}/weight"))].concat();
    assert_eq!(quotient("precision"), [1.0, 3.0]);
    assert_eq!(quotient("recall"), [1.0, 4.0]);
    assert_eq!(quotient("iou"), [1.0, 6.0]);
    assert_eq!(quotient("binary_accuracy"), [1.0, 6.0]);
    assert_eq!(quotient("auc"), [2.0, 1.0, 0.0, 2.0, 2.0, 0.0, 4.0, 2.0]);
    // The third example's error is not a number, and it counts.
    assert!(total("mean_squared_error")[0].is_nan() && total("mean_squared_error/weight") == [3.0]);
}

/// Every output that leaves the scope is cast to f32 before a loss or a metric reads it, in an auxiliary head too.
/// As the monitor of a callback names them: `val_price_loss`.
#[test]
fn losses_are_called_by_the_outputs_that_they_judge() {
    let text = "kind: layers
inputs: {x: [4]}
labels: {price: [1], tags: [5], rest: [2]}
layers:
  - {dense: 2, name: body}
  - {dense: 1, name: price_head, inputs: body}
  - {dense: 5, name: tag_head, inputs: body}
outputs: {price: price_head, tags: tag_head}
loss:
  - {mean_squared_error: , output: price, labels: price}
  - {sigmoid_cross_entropy: , output: tag_head, labels: tags, weight: 0.5}
  - {mean_squared_error: , output: body, labels: rest}
";
    let program = evaluation(&*model(text).task(0.0), Precision::F32, 4, &Tuning::none()).unwrap().program;
    let losses: Vec<&String> = program.outputs.iter().filter(|name| name.ends_with("_loss")).collect();
    assert_eq!(losses, ["price_loss", "tags_loss", "body_loss"]);
}

#[test]
fn every_output_leaves_the_scope_in_f32() {
    let text = "kind: layers
inputs: {x: [4]}
labels: {classes: [], distribution: [3], answers: [3], numbers: [3]}
layers:
  - {dense: 3, name: first}
  - {dense: 3, name: last}
outputs: {first: first, last: last}
loss:
  - {sparse_softmax_focal_cross_entropy: , output: last, labels: classes}
  - {softmax_focal_cross_entropy: , output: last, labels: distribution}
  - {sigmoid_focal_cross_entropy: , output: first, labels: answers, weight: 0.3}
  - {sigmoid_dice: , output: first, labels: answers, weight: 0.3}
  - {softmax_dice: , output: last, labels: distribution}
  - {huber: , delta: 1, output: first, labels: numbers}
metrics:
  - {mean_per_class_accuracy: , output: last, labels: classes}
  - {mean_iou: , output: last, labels: classes}
  - {perplexity: , output: last, labels: classes}
  - {auc: , output: first, labels: answers}
  - {iou: , output: first, labels: answers}
";
    let task = model(text).task(0.0);
    let step = training(&*task, Precision::Bf16, 4, &Objective::default()).unwrap().program;
    let test = evaluation(&*task, Precision::Bf16, 4, &Tuning::none()).unwrap().program;
    for program in [step, test] {
        let entry = program.module.entry();
        let is_judge =
            |name: &str| name.split('/').any(|level| level.starts_with("loss") || level.starts_with("metric"));
        let mut n_judging = 0;
        for instr in entry.instructions.iter().filter(|instr| is_judge(&instr.metadata.op_name)) {
            n_judging += 1;
            assert_ne!(instr.shape.dtype(), Some(DType::BF16), "{} {}", instr.name, instr.metadata.op_name);
        }
        assert!(n_judging > 50, "{n_judging}");
    }
}

/// As in Keras, a metric compares with the label of its output's loss, and two of one name are told apart by their outputs.
#[test]
fn metrics_without_labels_and_names_have_those_of_their_outputs() {
    let task = |objectives: &str| {
        let text = format!(
            "kind: layers\ninputs: {{x: [4]}}\nlayers: [{{dense: 3, name: a}}, {{dense: 5, inputs: x, name: b}}]\noutputs: {{left: a, b: \
             b}}\n{objectives}\n"
        );
        document::from_str::<Model>("m.yaml", &text).unwrap_or_else(|error| panic!("{error}")).task(0.0)
    };
    let labels = |objectives: &str| -> Vec<String> {
        task(objectives).features().into_iter().filter(|it| it.is_label).map(|it| it.name).collect()
    };
    let losses = "loss: [{sparse_softmax_cross_entropy: , output: left, labels: kind}, {sparse_softmax_cross_entropy: , output: b, \
                  labels: place}]\nmetrics: ";
    let both = format!("{losses}[{{accuracy: , output: a}}, {{accuracy: , output: b}}]");
    assert_eq!(labels(&both), ["kind", "place"]);
    let program = evaluation(&*task(&both), Precision::F32, 4, &Tuning::none()).unwrap().program;
    let has = |name: &str| program.outputs.iter().any(|output| output.starts_with(name));
    assert!(has("a_accuracy") && has("b_accuracy") && !has("accuracy"), "{:?}", program.outputs);
    // A label that is said counts, and so does a name.
    assert_eq!(labels(&format!("{losses}[{{accuracy: , output: b, labels: other}}]")), ["kind", "place", "other"]);
    let twice = format!("{losses}[{{accuracy: , output: b}}, {{accuracy: , output: b}}]");
    let text = format!(
        "kind: layers\ninputs: {{x: [4]}}\nlayers: [{{dense: 3, name: a}}, {{dense: 5, inputs: x, name: b}}]\noutputs: {{left: a, b: b}}\n{twice}\n"
    );
    let error = document::from_str::<Model>("m.yaml", &text).unwrap_err().to_string();
    assert!(error.contains("two things are reported as `accuracy`"), "{error}");
}
