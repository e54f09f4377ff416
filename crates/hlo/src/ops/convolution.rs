//! `convolution`, with every window and dimension attribute.

pub mod grad;

use super::dot::{self, PrecisionConfig};
use super::window::{self, Window};
use super::{RuleError, operands};
use crate::{ArrayShape, DType, Shape};

/// Attributes of `convolution`.
#[derive(Clone, Debug, PartialEq)]
pub struct Convolution {
    /// One entry per spatial dimension: size = the kernel's, stride, padding, dilations, reversal.
    pub window: Window,
    /// Which dimension is which.
    pub dims: ConvolutionDims,
    /// The number of groups of input features.
    pub feature_group_count: i64,
    /// The number of groups of the batch.
    pub batch_group_count: i64,
    /// Operand precision.
    pub precision: PrecisionConfig,
}

/// Which dimension of each array is batch, feature, or the n-th spatial one; `dim_labels=b01f_01io->b01f`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ConvolutionDims {
    /// The batch dimension of the input.
    pub input_batch: i64,
    /// The feature dimension of the input.
    pub input_feature: i64,
    /// The spatial dimensions of the input.
    pub input_spatial: Vec<i64>,
    /// The input feature dimension of the kernel.
    pub kernel_input_feature: i64,
    /// The output feature dimension of the kernel.
    pub kernel_output_feature: i64,
    /// The spatial dimensions of the kernel.
    pub kernel_spatial: Vec<i64>,
    /// The batch dimension of the result.
    pub output_batch: i64,
    /// The feature dimension of the result.
    pub output_feature: i64,
    /// The spatial dimensions of the result.
    pub output_spatial: Vec<i64>,
}

const OP: &str = "convolution";

/// `result[b, o, y…] = sum over window offsets w… and input features i of input[b, i, y*stride + w*dilation - low…] *
/// kernel[i, o, w…]`, where elements outside the input, or in the gaps of base dilation, are 0. It is a correlation; a
/// window dimension with `reversal` flips its kernel.
///
/// # Shapes
/// input `[b, i, x…]`, kernel `[i / feature_group_count, o, w…]` → `[b / batch_group_count, o, y…]`, each with its
/// dims where [`ConvolutionDims`] says; `y` = positions of the window `w` over `x`.
///
/// # Types
/// One dtype (not `pred`), or `f8e5m2` and `f8e4m3fn`, or both with `fnuz`; a wider result by declaration, as for `dot`.
///
/// # Source
/// `ShapeInference::InferConvolveShape`.
pub(super) fn convolution(
    convolution: &Convolution,
    operands: &[&Shape],
    declared: Option<&Shape>,
) -> Result<Shape, RuleError> {
    let [input, kernel] = operands::arity(OP, operands)?;
    let input = operands::array(OP, "input", input)?;
    let kernel = operands::array(OP, "kernel", kernel)?;
    dot::check_precision(OP, &convolution.precision)?;
    if let Some(algorithm) = &convolution.precision.algorithm {
        let message = format!("convolution has algorithm `{algorithm}`, expected none: only dot has one");
        return Err(RuleError::new("convolution/algorithm", message));
    }
    let operand_dtype = operand_dtype(input, kernel)?;
    operands::dtype(OP, "input", input, |dtype| dtype != DType::Pred, "numbers")?;
    let dims = &convolution.dims;
    check_ranks(convolution, input, kernel)?;
    check_groups(convolution, input, kernel)?;
    let n = |array: &ArrayShape, axis: i64| array.dims[axis as usize];
    let kernel_sizes: Vec<i64> = dims.kernel_spatial.iter().map(|&axis| n(kernel, axis)).collect();
    let window_sizes: Vec<i64> = convolution.window.iter().map(|dim| dim.size).collect();
    if kernel_sizes != window_sizes {
        let message =
            format!("window sizes are {window_sizes:?}, expected {kernel_sizes:?}, the kernel's spatial dims");
        return Err(RuleError::new("convolution/window-sizes", message));
    }
    let input_sizes: Vec<i64> = dims.input_spatial.iter().map(|&axis| n(input, axis)).collect();
    let positions = window::positions(OP, &convolution.window, &input_sizes)?;
    let (mut sizes, mut dynamic) = (vec![0; input.rank()], vec![false; input.rank()]);
    sizes[dims.output_batch as usize] = n(input, dims.input_batch) / convolution.batch_group_count;
    dynamic[dims.output_batch as usize] = input.is_dynamic(dims.input_batch as usize);
    sizes[dims.output_feature as usize] = n(kernel, dims.kernel_output_feature);
    for (i, position) in positions.into_iter().enumerate() {
        let axis = dims.output_spatial[i] as usize;
        sizes[axis] = position;
        dynamic[axis] =
            input.is_dynamic(dims.input_spatial[i] as usize) || kernel.is_dynamic(dims.kernel_spatial[i] as usize);
    }
    let dtype = dot::result_dtype(OP, operand_dtype, declared)?;
    let mut result = operands::result(OP, dtype, sizes)?;
    result.dynamic = operands::dynamic_flags(dynamic.len(), |axis| dynamic[axis]);
    Ok(Shape::Array(result))
}

/// The pairs of different dtypes that a convolution accepts: an 8-bit float of more range with one of more precision.
const MIXED: [[DType; 2]; 2] = [[DType::F8E5M2, DType::F8E4M3FN], [DType::F8E5M2FNUZ, DType::F8E4M3FNUZ]];

/// The operands' dtype: the common one, or the one with more range for a pair of [`MIXED`]. StableHLO has no other
/// pairs, and JAX writes none.
fn operand_dtype(input: &ArrayShape, kernel: &ArrayShape) -> Result<DType, RuleError> {
    let pair = [input.dtype, kernel.dtype];
    if let Some([range, _]) = MIXED.into_iter().find(|&[a, b]| pair == [a, b] || pair == [b, a]) {
        return Ok(range);
    }
    operands::same_dtype(OP, ("input", input), ("kernel", kernel))?;
    Ok(input.dtype)
}

/// Ranks agree with the dimension numbers, which name each dimension once.
fn check_ranks(convolution: &Convolution, input: &ArrayShape, kernel: &ArrayShape) -> Result<(), RuleError> {
    let dims = &convolution.dims;
    let n_spatial = convolution.window.len();
    let rank = n_spatial + 2;
    let lists = [
        ("input", dims.input_batch, dims.input_feature, &dims.input_spatial),
        ("kernel", dims.kernel_input_feature, dims.kernel_output_feature, &dims.kernel_spatial),
        ("output", dims.output_batch, dims.output_feature, &dims.output_spatial),
    ];
    for (role, first, second, spatial) in lists {
        if spatial.len() != n_spatial {
            let message =
                format!("{role}_spatial={spatial:?} has {} dims, expected {n_spatial}, as the window", spatial.len());
            return Err(RuleError::new("convolution/spatial-dims", message));
        }
        let all: Vec<i64> = [first, second].into_iter().chain(spatial.iter().copied()).collect();
        operands::axes(OP, &format!("{role} dims"), &all, rank)?;
    }
    for (role, array) in [("input", input), ("kernel", kernel)] {
        if array.rank() != rank {
            let message = format!(
                "convolution {role} is {}, expected rank {rank}: two dims and the window's {n_spatial}",
                operands::show(array)
            );
            return Err(RuleError::new("convolution/rank", message));
        }
    }
    Ok(())
}

/// Groups divide the features and the batch. Dimension numbers are in range.
fn check_groups(convolution: &Convolution, input: &ArrayShape, kernel: &ArrayShape) -> Result<(), RuleError> {
    let dims = &convolution.dims;
    let (groups, batch_groups) = (convolution.feature_group_count, convolution.batch_group_count);
    if groups < 1 || batch_groups < 1 || (groups > 1 && batch_groups > 1) {
        let message = format!(
            "feature_group_count is {groups} and batch_group_count is {batch_groups}, expected 1 or more, and one of them 1"
        );
        return Err(RuleError::new("convolution/group-counts", message));
    }
    let features = input.dims[dims.input_feature as usize];
    let kernel_features = kernel.dims[dims.kernel_input_feature as usize];
    if features % groups != 0 || features / groups != kernel_features {
        let in_groups = if groups == 1 { String::new() } else { format!(" in {groups} groups") };
        let message = format!(
            "input features differ: input[{}]={features}{in_groups}, kernel[{}]={kernel_features}",
            dims.input_feature, dims.kernel_input_feature
        );
        let error = RuleError::new("convolution/features", message);
        return Err(match kernel_features {
            n if n > 0 && features % n == 0 && features / n > 1 => {
                error.with_help(format!("this kernel fits feature_group_count={}", features / n))
            }
            _ => error.with_help("the kernel has input features / feature_group_count of them"),
        });
    }
    if kernel.is_dynamic(dims.kernel_output_feature as usize) {
        let message = format!("kernel is {}, expected static output features", operands::show(kernel));
        return Err(RuleError::new("convolution/dynamic-features", message));
    }
    let output_features = kernel.dims[dims.kernel_output_feature as usize];
    for (name, count) in [("feature_group_count", groups), ("batch_group_count", batch_groups)] {
        if output_features % count != 0 {
            let message = format!(
                "kernel[{}]={output_features} output features, expected a multiple of {name}={count}",
                dims.kernel_output_feature
            );
            return Err(RuleError::new("convolution/output-features", message));
        }
    }
    let batch = input.dims[dims.input_batch as usize];
    if batch % batch_groups != 0 {
        let message = format!(
            "input[{}]={batch} is the batch, expected a multiple of batch_group_count={batch_groups}",
            dims.input_batch
        );
        return Err(RuleError::new("convolution/batch", message));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
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
}
