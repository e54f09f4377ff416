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

/// A loss compares an output with an array of the data, or with an input.
#[test]
fn labels_that_are_a_layer() {
    check(
        "inputs: {x: [2, 2]}\nlayers: [{flatten: , name: flat}, {dense: 4}]\nloss: {mean_squared_error: , labels: flat}\n",
        expect![[r#"
            model.yaml:4:38: labels of `mean_squared_error` are `flat`, which is a layer, expected an array of the data
              4 | loss: {mean_squared_error: , labels: flat}
                |                                      ^^^^
              help: name the input that is to be computed, of the output's dims; or compute the difference of two layers in an `expression`, and write the loss `value` of it; or describe the array: `labels: {flat: […]}`"#]],
    );
    // A head may have the name of its label.
    let text = "kind: layers\ninputs: {x: [2]}\nlayers: [{dense: 1, name: price}]\nloss: {mean_squared_error: , labels: price}\n";
    assert_eq!(document::from_str::<Model>("model.yaml", text).err(), None);
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
            model.yaml:5:6: unknown value `dens`, expected one of dense, conv, conv1d, conv3d, conv_transpose, separable_conv, depthwise_conv, batch_norm, group_norm, instance_norm, layer_norm, rms_norm, max_pool, avg_pool, global_max_pool, global_avg_pool, dropout, spatial_dropout, stochastic_depth, squeeze_excite, mb_conv, expression, activation, leaky_relu, prelu, softmax, reduce, cumsum, sort, top_k, arg_max, arg_min, fft, ifft, rfft, irfft, viterbi, gradient, unit_norm, dot, cosine, gaussian_noise, gaussian_dropout, alpha_dropout, gather, one_hot, cast, masking, rescaling, embedding, position_embedding, class_token, variable, constant, lstm, gru, simple_rnn, conv_lstm, attention, transformer_block, llama_block, flatten, reshape, repeat_vector, permute, take, slice, zero_padding, crop, upsample, concat, add, subtract, multiply, average, maximum, minimum
              5 |   - {dens: 10}
                |      ^^^^
              help: did you mean `dense`?"#]],
    );
    check_layers(
        "  - flatten\n  - {dense: {units: 10, activaton: relu}}\n",
        expect![[r#"
            model.yaml:5:25: unknown key `activaton`, expected one of units, activation, use_bias, kernel_initializer, bias_initializer, name, inputs, dtype, share, trainable
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
            model.yaml:5:7: unknown value `sparse_categorical_crossentropy`, expected one of sparse_softmax_cross_entropy, softmax_cross_entropy, kl_divergence, sigmoid_cross_entropy, sparse_softmax_focal_cross_entropy, softmax_focal_cross_entropy, sigmoid_focal_cross_entropy, sigmoid_dice, softmax_dice, mean_squared_error, mean_absolute_error, mean_absolute_percentage_error, mean_squared_logarithmic_error, poisson, quantile, log_cosh, cosine_similarity, hinge, squared_hinge, categorical_hinge, contrastive, triplet, ctc, matching, crf, huber, value
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

#[test]
fn a_block_that_is_written_wrong() {
    check(
        "inputs: {images: [8, 8, 3]}\nblocks: {b: relu}\nlayers:\n  - b\nloss: sparse_softmax_cross_entropy\n",
        expect![[r#"
            model.yaml:3:13: found string "relu", expected a list of layers, or {layers: […], parameters: {…}, inputs: […], output: NAME}
              3 | blocks: {b: relu}
                |             ^^^^
              help: write ['relu'], if it is the only one"#]],
    );
    check(
        "inputs: {images: [8, 8, 3]}\nblocks: {b: {layers: [relu], filters: 1}}\nlayers:\n  - b\nloss: sparse_softmax_cross_entropy\n",
        expect![[r#"
            model.yaml:3:30: unknown key `filters`, expected one of layers, parameters, inputs, output
              3 | blocks: {b: {layers: [relu], filters: 1}}
                |                              ^^^^^^^
              help: a block's options are its parameters: `parameters: {filters: , strides: 1}`"#]],
    );
    check(
        "inputs: {images: [8, 8, 3]}\nblocks: {b: {inputs: [a]}}\nlayers:\n  - b\nloss: sparse_softmax_cross_entropy\n",
        expect![[r#"
            model.yaml:3:13: found keys and values, expected `layers: […]`, at least one
              3 | blocks: {b: {inputs: [a]}}
                |             ^^^^^^^"#]],
    );
    check(
        "inputs: {images: [8, 8, 3]}\nblocks: {b: {layers: [relu], parameters: [name]}}\nlayers:\n  - b\nloss: sparse_softmax_cross_entropy\n",
        expect![[r#"
            model.yaml:3:42: a parameter is called `name`, which every block has
              3 | blocks: {b: {layers: [relu], parameters: [name]}}
                |                                          ^"#]],
    );
    check(
        "inputs: {images: [8, 8, 3]}\nblocks: {b: {layers: [relu], inputs: []}}\nlayers:\n  - b\nloss: sparse_softmax_cross_entropy\n",
        expect![[r#"
            model.yaml:3:13: found keys and values, expected `inputs: [NAME, …]`, at least one
              3 | blocks: {b: {layers: [relu], inputs: []}}
                |             ^^^^^^^"#]],
    );
    check(
        "inputs: {images: [8, 8, 3]}\nblocks: {b: {layers: [relu], output: [relu]}}\nlayers:\n  - b\nloss: sparse_softmax_cross_entropy\n",
        expect![[r#"
            model.yaml:3:38: found a list, expected a layer's name
              3 | blocks: {b: {layers: [relu], output: [relu]}}
                |                                      ^"#]],
    );
    check(
        "inputs: {images: [8, 8, 3]}\nblocks: {b: [relu]}\nlayers:\n  - {b: , inputs: 3}\nloss: sparse_softmax_cross_entropy\n",
        expect![[r#"
            model.yaml:5:5: `inputs` is a name, or a list of names
              5 |   - {b: , inputs: 3}
                |     ^^"#]],
    );
    check(
        "inputs: {images: [8, 8, 3]}\nblocks: {b: {layers: [{dense: 2, name: a_$n}], parameters: {n: [1]}}}\nlayers:\n  - b\nloss: sparse_softmax_cross_entropy\n",
        expect![[r#"
            model.yaml:3:40: `a_$n` has a list inside, expected a text or number
              3 | blocks: {b: {layers: [{dense: 2, name: a_$n}], parameters: {n: [1]}}}
                |                                        ^^^^
              help: a block's layers have its parameters as `$name` or `$(2 * name)`; `$$` is a dollar sign"#]],
    );
}

#[test]
fn a_formula_or_an_option_that_is_written_wrong() {
    check_layers(
        "  - {expression: [1]}\n",
        expect![[r#"
            model.yaml:4:18: found a list, expected a formula, such as `a * sigmoid(b)`
              4 |   - {expression: [1]}
                |                  ^"#]],
    );
    check_layers(
        "  - {expression: 1 + 2}\n",
        expect![[r#"
            model.yaml:4:18: `1 + 2` names no layer
              4 |   - {expression: 1 + 2}
                |                  ^
              help: a formula reads layers or inputs by their names"#]],
    );
    check_layers(
        "  - {expression: images * sigmoid(2)}\n",
        expect![[r#"
            model.yaml:4:5: layer `expression` (expression) reads `images` f32[batch, 8, 8, 3]: `sigmoid` reads a number, expected a layer
              4 |   - {expression: images * sigmoid(2)}
                |     ^^^^^^^^^^^"#]],
    );
    check(
        "inputs: {images: [8, 8, 3]}\nparameters: {}\nlayers:\n  - {dense: $n}\nloss: sparse_softmax_cross_entropy\n",
        expect![[r#"
            model.yaml:5:13: there is no parameter `$n`, as `parameters` names none
              5 |   - {dense: $n}
                |             ^^
              help: a block's layers have its parameters as `$name` or `$(2 * name)`; `$$` is a dollar sign"#]],
    );
    check(
        "inputs: {images: [8, 8, 3]}\nparameters: {n: 2}\nlayers:\n  - {dense: $(2 * n}\nloss: sparse_softmax_cross_entropy\n",
        expect![[r#"
            model.yaml:5:13: `$(2 * n` has no `)` for its `$(`
              5 |   - {dense: $(2 * n}
                |             ^^^
              help: quote a formula with commas inside of `{…}` or `[…]`: `"$(max(8, n))"`"#]],
    );
    check_layers(
        "  - flatten\n  - {share: 3}\n",
        expect![[r#"
            model.yaml:5:5: `share` is the name of a layer or a block
              5 |   - {share: 3}
                |     ^^^^^^"#]],
    );
    check_layers(
        "  - flatten\n  - {share: tower}\n",
        expect![[r#"
            model.yaml:5:13: there is no layer and no block `tower` above
              5 |   - {share: tower}
                |             ^^^^^
              help: name the layer that has the variables with `name: …`"#]],
    );
    check_layers(
        "  - flatten\n  - {dense: 3, kernel_regularizer: 3}\n",
        expect![[r#"
            model.yaml:5:36: found integer `3`, expected `l1`, `l2`, `l1_l2`, or factors such as {l2: 1.0e-4}
              5 |   - {dense: 3, kernel_regularizer: 3}
                |                                    ^"#]],
    );
    check_layers(
        "  - flatten\n  - {dense: 3, kernel_regularizer: {l3: 1}}\n",
        expect![[r#"
            model.yaml:5:37: unknown key `l3`, expected one of l1, l2
              5 |   - {dense: 3, kernel_regularizer: {l3: 1}}
                |                                     ^^"#]],
    );
    check_layers(
        "  - flatten\n  - {dense: 3, kernel_initializer: {zzz: 1}}\n",
        expect![[r#"
            model.yaml:5:37: unknown initializer `zzz` with arguments, expected one of constant, random_normal, truncated_normal, random_uniform, variance_scaling, orthogonal, identity
              5 |   - {dense: 3, kernel_initializer: {zzz: 1}}
                |                                     ^^^
              help: initializers without arguments are names alone: `zzz`"#]],
    );
    check_layers(
        "  - flatten\n  - {dense: 3, kernel_initializer: {constant: {}}}\n",
        expect![[r#"
            model.yaml:5:47: found keys and values, expected a number, such as `{constant: -2}`
              5 |   - {dense: 3, kernel_initializer: {constant: {}}}
                |                                               ^"#]],
    );
}

#[test]
fn a_constant_label_that_no_such_label_can_be() {
    let model = |loss: &str| format!("inputs: {{images: [8, 8, 3]}}\nlayers: [flatten, {{dense: 3}}]\nloss: {loss}\n");
    check(
        &model("{sparse_softmax_cross_entropy: , labels: 7}"),
        expect![[r#"
            model.yaml:4:48: the label of every example is 7, expected a class, a whole number below 3
              4 | loss: {sparse_softmax_cross_entropy: , labels: 7}
                |                                                ^"#]],
    );
    check(
        &model("{triplet: , labels: 7}"),
        expect![[r#"
            model.yaml:4:27: the label of every example is 7, expected a label: it says which examples belong together
              4 | loss: {triplet: , labels: 7}
                |                           ^"#]],
    );
}

#[test]
fn layers_that_are_wired_wrong() {
    check(
        "inputs: {images: [8, 8, 3]}\nlayers: []\nloss: sparse_softmax_cross_entropy\n",
        expect![[r#"
            model.yaml:3:9: there are no layers, expected at least one
              3 | layers: []
                |         ^"#]],
    );
    check(
        "inputs: {}\nlayers: [{dense: 3}]\nloss: sparse_softmax_cross_entropy\n",
        expect![[r#"
            model.yaml:2:9: there are no inputs, expected at least one
              2 | inputs: {}
                |         ^"#]],
    );
    check_layers(
        "  - {dense: 3, name: a}\n  - {dense: 3, name: b}\n  - {expression: a * 2, inputs: [a, b]}\n",
        expect![[r#"
            model.yaml:6:33: layer `expression` (expression) reads 2, expected as many as its formula names
              6 |   - {expression: a * 2, inputs: [a, b]}
                |                                 ^
              help: leave `inputs` out, or name them in the formula's order"#]],
    );
    check_layers(
        "  - {dense: 3, name: a}\n  - {dense: 3, name: b}\n  - {dense: 3, name: c}\n  - {lstm: 3, inputs: [a, b, c, images, a]}\n",
        expect![[r#"
            model.yaml:7:23: layer `lstm` (lstm) reads 5, expected one or two
              7 |   - {lstm: 3, inputs: [a, b, c, images, a]}
                |                       ^
              help: join them first, with `concat` or `add`"#]],
    );
    check(
        "inputs: {images: [8, 8, 3]}\nlabels: {y: {shape: [10]}}\nlayers:\n  - flatten\n  - {dense: 10, name: a}\nloss: {mean_squared_error: y}\n",
        expect![[r#"
            model.yaml:7:28: loss `mean_squared_error` judges `y`, which is neither an output nor a layer
              7 | loss: {mean_squared_error: y}
                |                            ^
              help: it is a label: write `labels: y`"#]],
    );
    check(
        "inputs: {images: [8, 8, 3]}\nlabels: {y: {shape: [10], random: normal}}\nlayers:\n  - flatten\n  - {dense: 10, name: a}\nloss: {mean_squared_error: , labels: y}\n",
        expect![[r#"
            model.yaml:3:27: label `y` is drawn, which nothing can learn
              3 | labels: {y: {shape: [10], random: normal}}
                |                           ^^^^^^
              help: leave `random` out: it is for `inputs`"#]],
    );
    check(
        "inputs: {x: {shape: [4], dtype: int32, random: normal}}\nlayers: [{dense: 3}]\nloss: sparse_softmax_cross_entropy\n",
        expect![[r#"
            model.yaml:2:40: input `x` is whole numbers, and what is drawn are floats
              2 | inputs: {x: {shape: [4], dtype: int32, random: normal}}
                |                                        ^^^^^^
              help: leave `dtype` and `below` out"#]],
    );
    check_layers(
        "  - flatten\n  - {dense: 10, share: later}\n  - {dense: 10, name: later}\n",
        expect![[r#"
            model.yaml:5:24: layer `dense` shares `later`, which is no layer above it
              5 |   - {dense: 10, share: later}
                |                        ^^^^^
              help: did you mean `later`?"#]],
    );
    check_layers(
        "  - flatten\n  - {dense: 10, name: a}\n  - {dense: 9, share: a}\n",
        expect![[r#"
            model.yaml:6:23: layer `dense` shares `a`, which is of another kind or has other options
              6 |   - {dense: 9, share: a}
                |                       ^
              help: write `{share: a}` and nothing of the kind: it is the same layer"#]],
    );
}

#[test]
fn a_loss_that_is_written_wrong() {
    check(
        "inputs: {images: [8, 8, 3]}\nlabels: {y: {shape: [10]}}\nlayers:\n  - flatten\n  - {dense: 10, name: a}\nloss: {mean_squared_error: , labels: y, label_lengths: y}\n",
        expect![[r#"
            model.yaml:7:41: mean_squared_error has no lengths
              7 | loss: {mean_squared_error: , labels: y, label_lengths: y}
                |                                         ^^^^^^^^^^^^^
              help: leave `label_lengths` out: it is for `ctc`"#]],
    );
    check(
        "inputs: {images: [8, 8, 3]}\nlayers:\n  - flatten\n  - {dense: 10}\nloss: {sparse_softmax_cross_entropy: , reduction: weighted_mean}\n",
        expect![[r#"
            model.yaml:6:51: `reduction: weighted_mean` of examples that all weigh alike
              6 | loss: {sparse_softmax_cross_entropy: , reduction: weighted_mean}
                |                                                   ^^^^^^^^^^^^^
              help: add `example_weights: NAME`, or leave `reduction` out"#]],
    );
    check(
        "inputs: {images: [8, 8, 3]}\nlayers:\n  - flatten\n  - {dense: 10, name: a}\nloss:\n  - {sparse_softmax_cross_entropy: , variables: 'a/*'}\n  - {sparse_softmax_cross_entropy: , name: b}\n",
        expect![[r#"
            model.yaml:8:5: loss `b` trains no variable: other losses name all of them
              8 |   - {sparse_softmax_cross_entropy: , name: b}
                |     ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
              help: add `variables` to it, or leave a pattern out of the others"#]],
    );
    check(
        "inputs: {images: [8, 8, 3]}\nlayers:\n  - flatten\n  - {dense: 10, name: a}\n  - {dense: 10, name: c}\nloss:\n  - {sparse_softmax_cross_entropy: , variables: 'a/*'}\n",
        expect![[r#"
            model.yaml:8:3: no loss trains `c/kernel`: the `variables` of each loss leave it and 1 more out
              8 |   - {sparse_softmax_cross_entropy: , variables: 'a/*'}
                |   ^
              help: add 'c/*' to the `variables` of a loss, or a loss without `variables`, which trains the rest"#]],
    );
    check(
        "inputs: {images: [8, 8, 3]}\nlayers:\n  - flatten\n  - {dense: 10, name: a}\nloss:\n  - {sparse_softmax_cross_entropy: , variables: 'a/kernl'}\n",
        expect![[r#"
            model.yaml:7:49: `a/kernl` is the name of no variable that trains
              7 |   - {sparse_softmax_cross_entropy: , variables: 'a/kernl'}
                |                                                 ^^^^^^^^^
              help: did you mean `a/kernel`? `*` is any text"#]],
    );
    check(
        "inputs: {images: [8, 8, 3]}\nlayers:\n  - flatten\n  - {dense: 10, name: a}\nloss:\n  - {sparse_softmax_cross_entropy: , variables: 'generator_of_it/*'}\n",
        expect![[r#"
            model.yaml:7:49: `generator_of_it/*` is the name of no variable that trains
              7 |   - {sparse_softmax_cross_entropy: , variables: 'generator_of_it/*'}
                |                                                 ^^^^^^^^^^^^^^^^^^^
              help: `*` is any text; there are a/*"#]],
    );
    check(
        "inputs: {images: [8, 8, 3]}\nlayers:\n  - flatten\n  - {dense: 10, name: a}\nloss:\n  - {sparse_softmax_cross_entropy: , variables: 'a/*'}\n  - {sparse_softmax_cross_entropy: , name: b, variables: 'a/kernel'}\n",
        expect![[r#"
            model.yaml:8:58: losses `sparse_softmax_cross_entropy` and `b` both train `a/kernel`, by different `variables`
              8 |   - {sparse_softmax_cross_entropy: , name: b, variables: 'a/kernel'}
                |                                                          ^^^^^^^^^^
              help: write the same `variables` in both, whose sum then trains them, or patterns that share no variable"#]],
    );
}
