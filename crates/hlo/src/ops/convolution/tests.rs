//! Accepts and rejects of the convolution rules; messages are compared whole.

use super::super::{Op, WindowDim, testing::expect};
use super::*;
use expect_test::expect as text;

/// `b01f_01io->b01f` with a 3x3 kernel, changed.
fn op(change: impl FnOnce(&mut Convolution)) -> Op {
    let dims = ConvolutionDims {
        input_batch: 0,
        input_feature: 3,
        input_spatial: vec![1, 2],
        kernel_input_feature: 2,
        kernel_output_feature: 3,
        kernel_spatial: vec![0, 1],
        output_batch: 0,
        output_feature: 3,
        output_spatial: vec![1, 2],
    };
    let mut convolution = Convolution {
        window: vec![WindowDim::of_size(3); 2],
        dims,
        feature_group_count: 1,
        batch_group_count: 1,
        precision: PrecisionConfig::default(),
    };
    change(&mut convolution);
    Op::Convolution(Box::new(convolution))
}

#[test]
fn accepts() {
    let nhwc = ["bf16[8,28,28,4]", "bf16[3,3,4,6]"];
    expect(&op(|_| ()), &nhwc, "", text!["bf16[8,26,26,6]"]);
    expect(&op(|_| ()), &nhwc, "f32[8,26,26,6]", text!["f32[8,26,26,6]"]);
    // SAME with stride 2, and each attribute once: (28 - 1) * 2 + 1 + 1 - 2 = 54 padded, 5 covered, 25 positions.
    expect(
        &op(|c| {
            c.window[0] = WindowDim { stride: 2, padding_low: 0, padding_high: 1, ..c.window[0] };
            c.window[1] = WindowDim {
                size: 3,
                stride: 2,
                padding_low: 1,
                padding_high: -2,
                window_dilation: 2,
                base_dilation: 2,
                reversal: true,
            };
        }),
        &nhwc,
        "",
        text!["bf16[8,14,25,6]"],
    );
    expect(&op(|c| c.feature_group_count = 4), &["f32[8,28,28,4]", "f32[3,3,1,8]"], "", text!["f32[8,26,26,8]"]);
    expect(&op(|c| c.batch_group_count = 4), &["f32[8,28,28,4]", "f32[3,3,4,8]"], "", text!["f32[2,26,26,8]"]);
    // A window that does not fit has no position.
    expect(&op(|_| ()), &["f32[8,2,28,4]", "f32[3,3,4,6]"], "", text!["f32[8,0,26,6]"]);
    expect(&op(|_| ()), &["f32[<=8,28,<=28,4]", "f32[3,3,4,6]"], "", text!["f32[<=8,26,<=26,6]"]);
    let nchw = |c: &mut Convolution| {
        (c.dims.input_feature, c.dims.input_spatial) = (1, vec![2, 3]);
        (c.dims.kernel_output_feature, c.dims.kernel_input_feature, c.dims.kernel_spatial) = (0, 1, vec![2, 3]);
        (c.dims.output_feature, c.dims.output_spatial) = (1, vec![3, 2]);
    };
    expect(&op(nchw), &["f32[8,4,28,20]", "f32[6,4,3,3]"], "", text!["f32[8,6,18,26]"]);
}

#[test]
fn rejects_operands() {
    expect(&op(|_| ()), &["f32[8,28,28,4]"], "", text!["operands/arity: convolution takes 2 operands, got 1"]);
    expect(
        &op(|_| ()),
        &["bf16[8,28,28,4]", "f32[3,3,4,6]"],
        "",
        text![[r#"
            operands/dtypes-differ: convolution dtypes differ: input is bf16[8,28,28,4], kernel is f32[3,3,4,6]
              help: hlo converts nothing by itself: insert a `convert` of kernel to bf16 (or of input to f32)"#]],
    );
    expect(
        &op(|_| ()),
        &["pred[8,28,28,4]", "pred[3,3,4,6]"],
        "",
        text![[r#"
            operands/dtype: convolution input is pred[8,28,28,4], expected numbers
              help: insert a `convert` to such a dtype"#]],
    );
    expect(
        &op(|_| ()),
        &["f32[8,28,4]", "f32[3,3,4,6]"],
        "",
        text!["convolution/rank: convolution input is f32[8,28,4], expected rank 4: two dims and the window's 2"],
    );
    expect(
        &op(|_| ()),
        &["f32[8,28,28,4]", "f32[5,3,4,6]"],
        "",
        text!["convolution/window-sizes: window sizes are [3, 3], expected [5, 3], the kernel's spatial dims"],
    );
    expect(
        &op(|_| ()),
        &["f32[8,28,28,4]", "f32[3,3,4,6]"],
        "f16[8,26,26,6]",
        text![[r#"
            dot/declared-dtype: convolution declares f16 for operands of f32, expected f32 or a wider dtype like it
              help: let convolution give f32 and `convert` its result to f16"#]],
    );
    expect(
        &op(|_| ()),
        &["f32[8,28,28,4]", "f32[3,3,4,<=6]"],
        "",
        text!["convolution/dynamic-features: kernel is f32[3,3,4,<=6], expected static output features"],
    );
    let algorithm = Some("dot_bf16_bf16_f32".to_string());
    expect(
        &op(|c| c.precision.algorithm = algorithm),
        &["f32[8,28,28,4]", "f32[3,3,4,6]"],
        "",
        text![[r#"
                convolution/algorithm: convolution has algorithm `dot_bf16_bf16_f32`, expected none: only dot has one"#]],
    );
}

#[test]
fn rejects_dims_and_groups() {
    let operands = ["f32[8,28,28,4]", "f32[3,3,4,6]"];
    expect(
        &op(|c| c.dims.input_feature = 4),
        &operands,
        "",
        text!["operands/axis: convolution input dims names axis 4, expected 0 <= axis < 4"],
    );
    expect(
        &op(|c| c.dims.output_batch = 3),
        &operands,
        "",
        text![[r#"
                operands/axis-twice: convolution output dims={3,3,1,2} names axis 3 twice, expected each axis at most once"#]],
    );
    expect(
        &op(|c| c.dims.kernel_spatial = vec![0]),
        &operands,
        "",
        text!["convolution/spatial-dims: kernel_spatial=[0] has 1 dims, expected 2, as the window"],
    );
    expect(
        &op(|c| c.feature_group_count = 0),
        &operands,
        "",
        text![[r#"
                convolution/group-counts: feature_group_count is 0 and batch_group_count is 1, expected 1 or more, and one of them 1"#]],
    );
    expect(
        &op(|c| (c.feature_group_count, c.batch_group_count) = (2, 2)),
        &operands,
        "",
        text![[r#"
                convolution/group-counts: feature_group_count is 2 and batch_group_count is 2, expected 1 or more, and one of them 1"#]],
    );
    expect(
        &op(|c| c.feature_group_count = 2),
        &operands,
        "",
        text![[r#"
            convolution/features: input features differ: input[3]=4 in 2 groups, kernel[2]=4
              help: the kernel has input features / feature_group_count of them"#]],
    );
    expect(
        &op(|_| ()),
        &["f32[8,28,28,4]", "f32[3,3,2,6]"],
        "",
        text![[r#"
                convolution/features: input features differ: input[3]=4, kernel[2]=2
                  help: this kernel fits feature_group_count=2"#]],
    );
    expect(
        &op(|c| c.feature_group_count = 4),
        &["f32[8,28,28,4]", "f32[3,3,1,6]"],
        "",
        text![[r#"
                convolution/output-features: kernel[3]=6 output features, expected a multiple of feature_group_count=4"#]],
    );
    expect(
        &op(|c| c.batch_group_count = 3),
        &operands,
        "",
        text!["convolution/batch: input[0]=8 is the batch, expected a multiple of batch_group_count=3"],
    );
}

#[test]
fn rejects_windows() {
    let operands = ["f32[8,28,28,4]", "f32[3,3,4,6]"];
    expect(
        &op(|c| c.window[1].stride = 0),
        &operands,
        "",
        text!["window/attribute: convolution window has stride 0 in dimension 1, expected 1 or more"],
    );
    expect(
        &op(|c| c.window[0].base_dilation = -1),
        &operands,
        "",
        text!["window/attribute: convolution window has base dilation -1 in dimension 0, expected 1 or more"],
    );
    expect(
        &op(|c| c.window[0].window_dilation = 0),
        &operands,
        "",
        text!["window/attribute: convolution window has window dilation 0 in dimension 0, expected 1 or more"],
    );
    // XLA aborts on a negative padded size.
    expect(
        &op(|c| c.window[1].padding_low = -29),
        &operands,
        "",
        text![[r#"
                window/padded-size: convolution pads dimension 1 of size 28 (base dilation 1) by -29 and 0 to -1, expected 0 to 2^63 - 1"#]],
    );
    expect(
        &op(|c| c.window[1].base_dilation = i64::MAX),
        &operands,
        "",
        text![[r#"
                window/padded-size: convolution pads dimension 1 of size 28 (base dilation 9223372036854775807) by 0 and 0 to 249031044995078946790, expected 0 to 2^63 - 1"#]],
    );
    expect(
        &op(|c| c.window[1].window_dilation = i64::MAX),
        &operands,
        "",
        text![[r#"
                window/covered-size: convolution window of size 3 and dilation 9223372036854775807 covers 18446744073709551615 elements in dimension 1, expected at most 2^63 - 1"#]],
    );
}
