//! The errors of layers with wrong arguments: the whole message, with the layer and the user's line.

use bf16scope::graph::{Graph, Init, Scope, Tensor};
use bf16scope::hlo::DType;
use bf16scope::nn::*;
use expect_test::{Expect, expect};

/// Builds with an image `x` (bf16 `[2,8,8,3]`), labels `y` (s32 `[2]`), and expects the error; the line is left out.
fn check(build: impl FnOnce(&Scope, &Tensor, &Tensor) -> Tensor, expected: Expect) {
    let g = Graph::training("test");
    let x = g.input("x", DType::BF16, [2, 8, 8, 3]);
    let y = g.input("y", DType::S32, [2]);
    let result = build(&g.scope(), &x, &y);
    assert!(result.is_poison());
    let error = g.finish(&[("result", &result)]).unwrap_err().to_string();
    let lines: Vec<&str> = error.lines().collect();
    let (at, rest): (Vec<&str>, Vec<&str>) = lines.iter().partition(|line| line.trim_start().starts_with("at "));
    assert!(at.len() == 1 && at[0].trim_start().starts_with("at tests/networks/nn_errors.rs:"), "{error}");
    expected.assert_eq(&rest.join("\n"));
}

#[test]
fn dense_says_what_is_wrong() {
    let units = |units| Dense { units, ..Dense::default() };
    check(
        |s, x, _| dense(s, x, "fc", &units(-1)),
        expect![[r#"
            fc: dense: units is -1, expected at least 1
              operand 0: bf16[2,8,8,3] x"#]],
    );
    check(
        |s, _, y| dense(s, y, "fc", &units(4)),
        expect![[r#"
            fc: dense: x is s32[2], expected a floating dtype
              operand 0: s32[2] y
              help: cast it with .cast(DType::F32), or in YAML with the layer `cast: compute`"#]],
    );
    check(
        |s, x, _| dense(s, &x.reshape([384]), "fc", &units(4)),
        expect![[r#"
            fc: dense: x bf16[384] has rank 1, expected at least 2: [batch, inputs]
              operand 0: bf16[384] reshape"#]],
    );
}

#[test]
fn conv2d_says_what_is_wrong() {
    let good = Conv2d { filters: 4, kernel_size: [3, 3], ..Conv2d::default() };
    let conv = |config: Conv2d| move |s: &Scope, x: &Tensor, _: &Tensor| conv2d(s, x, "conv", &config);
    check(
        conv(Conv2d { filters: -4, ..good }),
        expect![[r#"
            conv: conv2d: filters is -4, expected at least 1
              operand 0: bf16[2,8,8,3] x"#]],
    );
    check(
        conv(Conv2d { kernel_size: [3, 0], ..good }),
        expect![[r#"
            conv: conv2d: window [3, 0]: one is 0, expected at least 1
              operand 0: bf16[2,8,8,3] x"#]],
    );
    check(
        conv(Conv2d { strides: [0, 1], ..good }),
        expect![[r#"
            conv: conv2d: strides [0, 1]: one is 0, expected at least 1
              operand 0: bf16[2,8,8,3] x"#]],
    );
    check(
        conv(Conv2d { groups: 0, ..good }),
        expect![[r#"
            conv: conv2d: groups is 0, expected at least 1
              operand 0: bf16[2,8,8,3] x"#]],
    );
    check(
        conv(Conv2d { groups: 2, ..good }),
        expect![[r#"
            conv: conv2d: 3 channels do not split in 2 groups, expected a multiple
              operand 0: bf16[2,8,8,3] x"#]],
    );
    check(
        conv(Conv2d { groups: 3, ..good }),
        expect![[r#"
            conv: conv2d: 4 filters do not split in 3 groups, expected a multiple
              operand 0: bf16[2,8,8,3] x"#]],
    );
    check(
        conv(Conv2d { kernel_size: [9, 3], ..good }),
        expect![[r#"
            conv: conv2d: window covers 9 along height, which is 8 with padding 0_0
              operand 0: bf16[2,8,8,3] x
              help: pad with `padding: same`, or make the window smaller"#]],
    );
    check(
        conv(Conv2d { padding: Padding::Explicit([[0, 0], [-1, 0]]), ..good }),
        expect![[r#"
            conv: conv2d: padding [[0, 0], [-1, 0]]: one is -1, expected at least 0
              operand 0: bf16[2,8,8,3] x"#]],
    );
    check(
        |s, x, _| conv2d(s, &flatten(x), "conv", &good),
        expect![[r#"
            conv: conv2d: x bf16[2,192] has rank 2, expected 4: [batch, height, width, channels]
              operand 0: bf16[2,192] reshape"#]],
    );
}

#[test]
fn pools_say_what_is_wrong() {
    check(
        |_, x, _| max_pool(x, &Pool { pool_size: [0, 2], ..Pool::default() }),
        expect![[r#"
            max_pool: window [0, 2]: one is 0, expected at least 1
              operand 0: bf16[2,8,8,3] x"#]],
    );
    check(
        |_, x, _| avg_pool(x, &Pool { pool_size: [2, 9], ..Pool::default() }),
        expect![[r#"
            avg_pool: window covers 9 along width, which is 8 with padding 0_0
              operand 0: bf16[2,8,8,3] x
              help: pad with `padding: same`, or make the window smaller"#]],
    );
    check(
        |_, _, y| global_avg_pool(y, DataFormat::ChannelsLast),
        expect![[r#"
            global_avg_pool: x s32[2] has rank 1, expected 4: [batch, height, width, channels], or 3 of a sequence
              operand 0: s32[2] y"#]],
    );
}

#[test]
fn normalisations_say_what_is_wrong() {
    check(
        |s, x, _| batch_norm(s, x, "bn", &BatchNorm { axis: 4, ..BatchNorm::default() }),
        expect![[r#"
            bn: batch_norm: axis is 4, expected one of x bf16[2,8,8,3] after the batch
              operand 0: bf16[2,8,8,3] x"#]],
    );
    // Along the batch, an example's result would depend on those beside it.
    check(
        |s, x, _| batch_norm(s, x, "bn", &BatchNorm { axis: 0, ..BatchNorm::default() }),
        expect![[r#"
            bn: batch_norm: axis is 0, expected one of x bf16[2,8,8,3] after the batch
              operand 0: bf16[2,8,8,3] x"#]],
    );
    check(
        |_, x, _| unit(x, 0),
        expect![[r#"
            unit: axis is 0, expected one of bf16[2,8,8,3] after the batch
              operand 0: bf16[2,8,8,3] x"#]],
    );
    check(
        |s, x, _| batch_norm(s, x, "bn", &BatchNorm { momentum: 1.5, ..BatchNorm::default() }),
        expect![[r#"
            bn: batch_norm: momentum is 1.5, expected 0 to 1
              operand 0: bf16[2,8,8,3] x"#]],
    );
    check(
        |s, x, _| batch_norm(s, x, "bn", &BatchNorm { epsilon: 0.0, ..BatchNorm::default() }),
        expect![[r#"
            bn: batch_norm: epsilon is 0, expected more than 0
              operand 0: bf16[2,8,8,3] x"#]],
    );
    check(
        |s, _, y| batch_norm(s, y, "bn", &BatchNorm::default()),
        expect![[r#"
            bn: batch_norm: x is s32[2], expected a floating dtype
              operand 0: s32[2] y
              help: cast it with .cast(DType::F32), or in YAML with the layer `cast: compute`"#]],
    );
    check(
        |s, x, _| layer_norm(s, x, "ln", &LayerNorm { epsilon: f64::NAN, ..LayerNorm::default() }),
        expect![[r#"
            ln: layer_norm: epsilon is NaN, expected more than 0
              operand 0: bf16[2,8,8,3] x"#]],
    );
    check(
        |s, x, _| rms_norm(s, x, "rms", &RmsNorm { epsilon: f64::NAN, ..RmsNorm::default() }),
        expect![[r#"
            rms: rms_norm: epsilon is NaN, expected more than 0
              operand 0: bf16[2,8,8,3] x"#]],
    );
    check(
        |s, _, y| rms_norm(s, y, "rms", &RmsNorm::default()),
        expect![[r#"
            rms: rms_norm: x is s32[2], expected a floating dtype
              operand 0: s32[2] y
              help: cast it with .cast(DType::F32), or in YAML with the layer `cast: compute`"#]],
    );
}

#[test]
fn dropout_and_embedding_say_what_is_wrong() {
    check(
        |s, x, _| dropout(s, x, "drop", 1.0),
        expect![[r#"
            drop: dropout: rate is 1, expected 0 up to but not including 1
              operand 0: bf16[2,8,8,3] x"#]],
    );
    check(
        |s, x, _| {
            free_variable(
                s,
                &x.sum(&[0, 1, 2, 3]),
                "queries",
                &FreeVariable { shape: vec![4], initializer: Init::Zeros },
            )
        },
        expect![[r#"
            queries: free_variable: like bf16[] has no axes, expected a batch
              operand 0: bf16[] Cast"#]],
    );
    check(
        |s, x, _| conv_lstm(s, x, "lstm", &ConvLstm { filters: 4, kernel_size: [3, 3], ..ConvLstm::default() }),
        expect![[r#"
            lstm: conv_lstm: x bf16[2,8,8,3] has rank 4, expected 5: [batch, steps, height, width, channels]
              operand 0: bf16[2,8,8,3] x"#]],
    );
    check(
        |s, x, _| class_token(s, x, "first", &ClassToken::default()),
        expect![[r#"
            first: class_token: x bf16[2,8,8,3] has rank 4, expected 3: [batch, positions, features]
              operand 0: bf16[2,8,8,3] x"#]],
    );
    let config = Embedding { input_dim: 10, output_dim: 4, ..Embedding::default() };
    check(
        |s, x, _| embedding(s, x, "words", &config),
        expect![[r#"
            words: embedding: indices are bf16[2,8,8,3], expected an integer dtype
              operand 0: bf16[2,8,8,3] x"#]],
    );
    check(
        |s, _, y| embedding(s, y, "words", &Embedding { output_dim: 0, ..config }),
        expect![[r#"
            words: embedding: output_dim is 0, expected at least 1
              operand 0: s32[2] y"#]],
    );
}

#[test]
fn losses_and_metrics_say_what_is_wrong() {
    let logits = |x: &Tensor| flatten(x).cast(DType::F32);
    check(
        |_, x, y| sparse_softmax_cross_entropy(&flatten(x), y, 0.0),
        expect![[r#"
            loss: sparse_softmax_cross_entropy: logits bf16[2,192] would lose the loss to rounding, expected f32
              operand 0: bf16[2,192] reshape
              operand 1: s32[2] y
              help: cast them where the low-precision scope ends: logits.cast(DType::F32)"#]],
    );
    check(
        |_, x, _| sparse_softmax_cross_entropy(&logits(x), &logits(x), 0.0),
        expect![[r#"
            loss: sparse_softmax_cross_entropy: labels are f32[2,192], expected an integer dtype
              operand 0: f32[2,192] Cast
              operand 1: f32[2,192] Cast"#]],
    );
    check(
        |_, x, y| sparse_softmax_cross_entropy(&x.cast(DType::F32), y, 0.0),
        expect![[r#"
            loss: sparse_softmax_cross_entropy: labels s32[2] do not fit logits f32[2,8,8,3], expected one label for each row
              operand 0: f32[2,8,8,3] Cast
              operand 1: s32[2] y"#]],
    );
    check(
        |_, x, y| sparse_softmax_cross_entropy(&logits(x), y, 1.0),
        expect![[r#"
            loss: sparse_softmax_cross_entropy: label_smoothing is 1, expected 0 up to but not including 1
              operand 0: f32[2,192] Cast
              operand 1: s32[2] y"#]],
    );
    check(
        |_, x, _| softmax_cross_entropy(&logits(x), &x.cast(DType::F32), 0.0),
        expect![[r#"
            loss: softmax_cross_entropy: labels f32[2,8,8,3] differ from logits f32[2,192], expected one shape
              operand 0: f32[2,192] Cast
              operand 1: f32[2,8,8,3] Cast"#]],
    );
    check(
        |_, x, _| mean_squared_error(x, x),
        expect![[r#"
            loss: mean_squared_error: prediction bf16[2,8,8,3] would lose the loss to rounding, expected f32
              operand 0: bf16[2,8,8,3] x
              operand 1: bf16[2,8,8,3] x
              help: cast them where the low-precision scope ends: prediction.cast(DType::F32)"#]],
    );
    check(
        |_, x, y| accuracy(x, y),
        expect![[r#"
            metric: is_correct: labels s32[2] do not fit logits bf16[2,8,8,3], expected one label for each row
              operand 0: bf16[2,8,8,3] x
              operand 1: s32[2] y"#]],
    );
    // Logits and labels of sigmoids: floats of one shape, or nothing is computed.
    check(
        |_, x, y| is_on_side(x, y),
        expect![[r#"
            metric: is_on_side: labels s32[2] do not fit logits bf16[2,8,8,3], expected one shape
              operand 0: bf16[2,8,8,3] x
              operand 1: s32[2] y"#]],
    );
    check(
        |_, x, _| sides(x, &x.max(&[-1])).0,
        expect![[r#"
            metric: sides: labels bf16[2,8,8] do not fit logits bf16[2,8,8,3], expected one shape
              operand 0: bf16[2,8,8,3] x
              operand 1: bf16[2,8,8] reduce"#]],
    );
    check(
        |_, _, y| sides(y, y).1,
        expect![[r#"
            metric: sides: labels s32[2] do not fit logits s32[2], expected one shape
              operand 0: s32[2] y
              operand 1: s32[2] y"#]],
    );
    // There is nothing to flatten, and none of the sizes can be inferred.
    check(
        |_, x, _| flatten(&x.sum(&[0, 1, 2, 3])),
        expect![[r#"
            flatten: x bf16[] has rank 0, expected at least 1: [batch, …]
              operand 0: bf16[] Cast"#]],
    );
    check(
        |_, x, _| reshape_example(x, &[0, -1]),
        expect![[r#"
            reshape: an example of [8, 8, 3] has 192 elements, expected dims of as many, found [0, -1]
              operand 0: bf16[2,8,8,3] x"#]],
    );
    check(
        |s, x, _| layer_norm(s, x, "ln", &LayerNorm { epsilon: 0.0, ..LayerNorm::default() }),
        expect![[r#"
            ln: layer_norm: epsilon is 0, expected more than 0
              operand 0: bf16[2,8,8,3] x"#]],
    );
    check(
        |_, x, y| concat(&[x, y], 3),
        expect![[r#"
            concat: bf16[2,8,8,3] and s32[2] meet, expected equal shapes but along axis 3
              operand 0: bf16[2,8,8,3] x
              operand 1: s32[2] y
              help: cast one of them with .cast(dtype), or in YAML with the layer `cast: compute`"#]],
    );
    check(
        |_, x, _| concat(&[x, x], -5),
        expect![[r#"
            concat: axis is -5, expected one of bf16[2,8,8,3]
              operand 0: bf16[2,8,8,3] x
              operand 1: bf16[2,8,8,3] x"#]],
    );
}

/// The call; the message after the layer's and the function's name; the help.
type Case = (fn(&Scope, &Tensor, &Tensor) -> Tensor, &'static str, &'static str);

fn in_f32(x: &Tensor) -> Tensor {
    flatten(x).cast(DType::F32)
}

fn volume(s: &Scope) -> Tensor {
    s.graph().full(DType::F32, &[2, 4, 4, 4, 3], 0.0)
}

/// Arguments that no document gives a layer.
#[test]
fn what_only_a_program_gets_wrong() {
    const EXPLICIT: Padding = Padding::Explicit([[0, 0], [0, 0]]);
    const CASES: &[Case] = &[
        (
            |s, x, _| layer_norm(s, &x.sum(&[0, 1, 2, 3]), "ln", &LayerNorm::default()),
            "rank of x is 0, expected at least 1",
            "",
        ),
        (
            |s, x, _| rms_norm(s, &x.sum(&[0, 1, 2, 3]), "rms", &RmsNorm::default()),
            "rank of x is 0, expected at least 1",
            "",
        ),
        (
            |s, x, _| {
                let config = ConvTranspose { filters: 4, padding: EXPLICIT, ..ConvTranspose::default() };
                conv_transpose(s, x, "up", &config)
            },
            "padding is explicit, expected `same` or `valid`",
            "",
        ),
        (
            |s, _, _| conv3d(s, &volume(s), "conv", &Conv3d { filters: 4, padding: EXPLICIT, ..Conv3d::default() }),
            "padding [[0, 0], [0, 0]] is of an image, expected `same` or `valid`",
            "",
        ),
        (
            |_, x, _| pad_places(x, &[[1, 1]]),
            "x bf16[2,8,8,3] has rank 4, expected 3: the batch, 1 axes of places, channels",
            "",
        ),
        (
            |s, x, _| {
                let config = Conv2d { filters: 4, kernel_size: [3, 3], ..Conv2d::default() };
                conv2d_space_to_depth(s, x, "stem", &config)
            },
            "strides are [1, 1], dilation [1, 1], groups 1",
            "expected strides [2, 2], else 1",
        ),
        (|s, x, _| stochastic_depth(s, &x.sum(&[0, 1, 2, 3]), "depth", 0.5), "x is a scalar, expected [batch, …]", ""),
        (
            |s, x, _| gaussian_noise(s, x, "noise", -1.0),
            "the noise's standard deviation is -1, expected at least 0",
            "",
        ),
        (
            |s, _, _| {
                let x = s.graph().full(DType::F32, &[2, 0, 4], 0.0);
                gru(s, &x, None, "gru", &Gru { units: 4, ..Gru::default() })
            },
            "the number of steps is 0, expected at least 1",
            "",
        ),
        (
            |_, x, y| class_counts(&in_f32(x), y, Some(y)).hits,
            "what is counted is s32[2], expected pred or f32 of dims [2]",
            "",
        ),
        (
            |_, x, y| ctc_per_example(&in_f32(x), y, 0),
            "logits f32[2,192] have rank 2, expected 3: [batch, steps, classes]",
            "",
        ),
        (
            |_, x, _| triplet_per_example(&in_f32(x), &in_f32(x), 1.0),
            "labels f32[2,192] do not fit embeddings f32[2,192], expected integers [batch] and [batch, n]",
            "",
        ),
        (
            |_, x, _| {
                let focal = Focal { gamma: -1.0, ..Focal::default() };
                sigmoid_focal_cross_entropy_per_example(&in_f32(x), &in_f32(x), &focal, 0.0)
            },
            "gamma is -1, expected a finite number of at least 0",
            "",
        ),
        (|_, _, y| class_weights(y, &[1.0, -1.0]), "a class weighs -1, expected a finite number of at least 0", ""),
        (|_, x, _| class_weights(&in_f32(x), &[1.0, 2.0]), "2 weights of classes do not fit labels f32[2,192]", ""),
        (
            |_, x, _| x.broadcast_to(&[2, 8, 8, 4]),
            "dims [2, 8, 8, 3] do not broadcast to [2, 8, 8, 4]",
            "dims are aligned at the right; each must be equal or 1",
        ),
        (
            |s, x, _| x + &s.graph().full(DType::BF16, &[2, 8, 8, 4], 0.0),
            "dims [2, 8, 8, 3] and [2, 8, 8, 4] do not broadcast: sizes 3 and 4 meet",
            "dims are aligned at the right; each pair must be equal or hold a 1",
        ),
    ];
    for (build, message, help) in CASES {
        let g = Graph::training("test");
        let x = g.input("x", DType::BF16, [2, 8, 8, 3]);
        let y = g.input("y", DType::S32, [2]);
        let result = build(&g.scope(), &x, &y);
        let error = g.finish(&[("result", &result)]).unwrap_err().to_string();
        let helps = error.lines().find_map(|line| line.trim_start().strip_prefix("help: ")).unwrap_or_default();
        assert!(error.lines().next().unwrap().ends_with(&format!(": {message}")), "{message}: {error}");
        assert_eq!(helps, *help, "{error}");
    }
}

#[test]
fn two_layers_of_one_name_are_an_error() {
    let units = Dense { units: 4, ..Dense::default() };
    check(
        |s, x, _| dense(s, &dense(s, &flatten(x), "fc", &units), "fc", &units),
        expect![[r#"
            fc: variable: a variable named fc/kernel exists already
              help: give one of them another name, or open a scope with `within` around each layer"#]],
    );
}
