//! Networks of layers that are written wrong: each error has its line, and says what was found and what was expected.

use bf16scope::document;
use bf16scope::models::Model;
use expect_test::{Expect, expect};

/// `layers` and what follows them, under two lines, in an experiment.
fn check(lines: &str, expected: Expect) {
    let text = format!("kind: layers\n{lines}");
    expected.assert_eq(&document::from_str::<Model>("model.yaml", &text).unwrap_err().to_string());
}

/// Images, the layers, and a loss of classes.
fn check_layers(layers: &str, expected: Expect) {
    check(&format!("inputs: {{images: [8, 8, 3]}}\nlayers:\n{layers}loss: sparse_softmax_cross_entropy\n"), expected);
}

/// An input of floats has no bound, and a formula no sum over axes.
#[test]
fn what_is_of_other_numbers_or_of_axes() {
    check(
        "inputs: {ids: {shape: [4], below: 9}}\nlayers: [{embedding: 9, output_dim: 2}]\nloss: mean_squared_error\n",
        expect![[r#"
            model.yaml:2:28: input `ids` is floats, and `below` bounds whole numbers
              2 | inputs: {ids: {shape: [4], below: 9}}
                |                            ^^^^^
              help: write `dtype: int32` beside it, or leave it out"#]],
    );
    check(
        "inputs: {x: [4]}\nlayers: [{expression: sum(x)}]\nloss: mean_squared_error\n",
        expect![[r#"
            model.yaml:3:23: there is no function `sum`: write a layer `{reduce: sum, inputs: a, name: b}`, and `b` here
              3 | layers: [{expression: sum(x)}]
                |                       ^^^^^^"#]],
    );
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
            model.yaml:6:21: unknown value `acc`, expected one of accuracy, top_k, mean_per_class_accuracy, mean_iou, perplexity, auc, iou, binary_accuracy, precision, recall, f1, macro_f1, cosine_similarity, r2, mean_squared_error, mean_absolute_error, root_mean_squared_error
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
