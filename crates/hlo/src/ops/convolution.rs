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
mod tests;
