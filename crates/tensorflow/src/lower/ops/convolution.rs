//! Convolutions and their gradients, in one to three spatial dims, plain and depthwise.
//!
//! The gradient with respect to the input is a convolution of the dilated cotangent with the reversed kernel; the gradient with
//! respect to the kernel is a convolution of the input with the dilated cotangent, with batch and features swapped.
//!
//! Source: `conv_op_helpers.cc` and `conv_ops.cc` of `tf2xla/kernels`; paddings as in `core/framework/common_shape_fns.cc`.

use super::super::Call;
use super::super::call::Outputs;
use super::Table;
use crate::error::Problem;
use bf16scope_hlo::ops::{Convolution, ConvolutionDims, PrecisionConfig, WindowDim};
use bf16scope_hlo::{InstrId, Op};

pub(super) const TABLE: Table = &[
    ("Conv2D", |c| c.forward(false)),
    ("Conv3D", |c| c.forward(false)),
    ("DepthwiseConv2dNative", |c| c.forward(true)),
    ("Conv2DBackpropInput", |c| c.by_input(false)),
    ("Conv3DBackpropInputV2", |c| c.by_input(false)),
    ("DepthwiseConv2dNativeBackpropInput", |c| c.by_input(true)),
    ("Conv2DBackpropFilter", |c| c.by_kernel(false)),
    ("Conv3DBackpropFilterV2", |c| c.by_kernel(false)),
    ("DepthwiseConv2dNativeBackpropFilter", |c| c.by_kernel(true)),
];

/// The positions of batch, feature and spatial dims.
pub(super) struct Layout {
    pub batch: i64,
    pub feature: i64,
    pub spatial: Vec<i64>,
}

/// One spatial dim of a convolution: strides, dilation and paddings.
#[derive(Clone, Copy)]
pub(super) struct SpatialDim {
    pub stride: i64,
    pub dilation: i64,
    pub low: i64,
    pub high: i64,
}

/// The largest stride, dilation, window and padding: sums of some of them and of sizes are numbers.
pub(super) const MAX_STEP: i64 = 1 << 31;

/// The extent of `n` elements that are `stride` apart.
pub(super) fn extent(n: i64, stride: i64) -> i64 {
    if n == 0 { 0 } else { (n - 1).saturating_mul(stride).saturating_add(1) }
}

/// The low and high padding of a spatial dim.
pub(super) fn padding(
    kind: &str,
    explicit: Option<(i64, i64)>,
    n: i64,
    window: i64,
    stride: i64,
) -> Result<(i64, i64), Problem> {
    let (low, high) = explicit.unwrap_or_default();
    if [window, low, high].iter().any(|size| !(0..=MAX_STEP).contains(size)) {
        let message = format!("its window has {window} elements, with {low} before and {high} behind its input");
        return Err(Problem::new(format!("{message}, expected 0 to {MAX_STEP}")));
    }
    Ok(match (kind, explicit) {
        ("VALID", _) => (0, 0),
        ("SAME", _) => {
            let n_places = (n + stride - 1) / stride;
            let total = ((n_places - 1) * stride + window - n).max(0);
            (total / 2, total - total / 2)
        }
        ("EXPLICIT", Some(pads)) => pads,
        _ => return Err(Problem::new(format!("its padding is `{kind}`, expected SAME, VALID or EXPLICIT"))),
    })
}

impl Call<'_, '_> {
    /// The positions of the dims, by `data_format`.
    pub(super) fn layout(&self, rank: usize) -> Result<Layout, Problem> {
        let rank = rank as i64;
        match self.node.text("data_format") {
            format if format.starts_with("NC") && !format.contains("VECT") => {
                Ok(Layout { batch: 0, feature: 1, spatial: (2..rank).collect() })
            }
            "" | "NHWC" | "NDHWC" | "NWC" => {
                Ok(Layout { batch: 0, feature: rank - 1, spatial: (1..rank - 1).collect() })
            }
            other => {
                Err(Problem::new(format!("its data_format is {other}, expected channels last (NHWC) or first (NCHW)")))
            }
        }
    }

    /// The spatial dims of a convolution of an input of these dims.
    fn spatial(&self, layout: &Layout, input: &[i64], kernel: &[i64]) -> Result<Vec<SpatialDim>, Problem> {
        let (strides, dilations) = (self.node.ints("strides"), self.node.ints("dilations"));
        let pads = self.node.ints("explicit_paddings");
        let kind = self.node.text("padding");
        for axis in [layout.batch, layout.feature].map(|axis| axis as usize) {
            let steps = [strides.get(axis), dilations.get(axis)].map(|step| step.copied().unwrap_or(1));
            let pads = [pads.get(2 * axis), pads.get(2 * axis + 1)].map(|pad| pad.copied().unwrap_or(0));
            if (steps, pads) != ([1, 1], [0, 0]) {
                return Err(Problem::new(format!(
                    "axis {axis}, of batch or features, has stride and dilation {steps:?} and padding {pads:?}, \
                     expected [1, 1] and [0, 0]"
                )));
            }
        }
        let dim = |(at, axis): (usize, &i64)| {
            let axis = *axis as usize;
            let stride = strides.get(axis).copied().unwrap_or(1);
            let dilation = dilations.get(axis).copied().unwrap_or(1);
            if ![stride, dilation].iter().all(|step| (1..=MAX_STEP).contains(step)) {
                return Err(Problem::new(format!(
                    "it has stride {stride} and dilation {dilation}, expected 1 to {MAX_STEP}"
                )));
            }
            let window = extent(kernel[at], dilation);
            let explicit = pads.get(2 * axis).copied().zip(pads.get(2 * axis + 1).copied());
            let (low, high) = padding(kind, explicit, input[axis], window, stride)?;
            Ok(SpatialDim { stride, dilation, low, high })
        };
        layout.spatial.iter().enumerate().map(dim).collect()
    }

    fn check_kernel(&self, input: &[i64], kernel: &[i64]) -> Result<(), Problem> {
        match input.len() == kernel.len() && input.len() >= 3 {
            true => Ok(()),
            false => Err(Problem::new(format!("its input has dims {input:?}, its kernel {kernel:?}"))),
        }
    }

    /// Checks the dims of a gradient's input or kernel, which are an input of its own, and that its cotangent has as many.
    pub(super) fn check_cotangent(&self, dims: &[i64], dy: InstrId) -> Result<Vec<i64>, Problem> {
        self.check_dims(dims)?;
        let dy_dims = self.dims(dy);
        match dy_dims.len() == dims.len() {
            true => Ok(dy_dims),
            false => Err(Problem::new(format!("its cotangent has dims {dy_dims:?}, expected as many as {dims:?}"))),
        }
    }

    /// A depthwise kernel `[h, w, c, m]` as `[h, w, 1, c * m]`.
    fn grouped_kernel(&self, kernel: InstrId) -> InstrId {
        let mut dims = self.dims(kernel);
        let n = dims.len();
        dims[n - 1] *= dims[n - 2];
        dims[n - 2] = 1;
        self.e().reshape(kernel, &dims)
    }

    fn forward(&mut self, is_depthwise: bool) -> Outputs {
        let (x, kernel) = (self.array(0)?, self.array(1)?);
        let (input, kernel_dims) = (self.dims(x), self.dims(kernel));
        self.check_kernel(&input, &kernel_dims)?;
        let layout = self.layout(input.len())?;
        let spatial = self.spatial(&layout, &input, &kernel_dims)?;
        let features = input[layout.feature as usize];
        let kernel = if is_depthwise { self.grouped_kernel(kernel) } else { kernel };
        let kernel_dims = self.dims(kernel);
        let per_group = kernel_dims[kernel_dims.len() - 2];
        let groups = if per_group > 0 && features % per_group == 0 { features / per_group } else { 1 };
        let window = spatial.iter().zip(&kernel_dims).map(|(dim, size)| WindowDim {
            stride: dim.stride,
            padding_low: dim.low,
            padding_high: dim.high,
            window_dilation: dim.dilation,
            ..WindowDim::of_size(*size)
        });
        let n = layout.spatial.len() as i64;
        let convolution = Convolution {
            window: window.collect(),
            dims: ConvolutionDims {
                input_batch: layout.batch,
                input_feature: layout.feature,
                input_spatial: layout.spatial.clone(),
                kernel_input_feature: n,
                kernel_output_feature: n + 1,
                kernel_spatial: (0..n).collect(),
                output_batch: layout.batch,
                output_feature: layout.feature,
                output_spatial: layout.spatial,
            },
            feature_group_count: groups,
            batch_group_count: 1,
            precision: PrecisionConfig::default(),
        };
        self.one(self.e().emit(Op::Convolution(Box::new(convolution)), &[x, kernel], None))
    }

    /// Inputs: the input's dims, the kernel, the cotangent.
    fn by_input(&mut self, is_depthwise: bool) -> Outputs {
        let input = self.ints(0)?;
        let (kernel, dy) = (self.array(1)?, self.array(2)?);
        let kernel_dims = self.dims(kernel);
        self.check_kernel(&input, &kernel_dims)?;
        let dy_dims = self.check_cotangent(&input, dy)?;
        let layout = self.layout(input.len())?;
        let spatial = self.spatial(&layout, &input, &kernel_dims)?;
        let features = input[layout.feature as usize];
        let kernel = if is_depthwise { self.grouped_kernel(kernel) } else { kernel };
        let kernel_dims = self.dims(kernel);
        let n = layout.spatial.len();
        let (per_group, out) = (kernel_dims[n], kernel_dims[n + 1]);
        let groups = if per_group > 0 && features % per_group == 0 { features / per_group } else { 1 };
        // Each group's outputs become inputs: [.., i, g * o] to [.., g * i, o].
        let kernel = match groups {
            1 => kernel,
            groups => {
                let sizes = &kernel_dims[..n];
                let split = self.e().reshape(kernel, &[sizes, &[per_group, groups, out / groups]].concat());
                let permutation: Vec<i64> = (0..n as i64).chain([n as i64 + 1, n as i64, n as i64 + 2]).collect();
                let moved = self.e().transpose(split, &permutation);
                self.e().reshape(moved, &[sizes, &[groups * per_group, out / groups]].concat())
            }
        };
        let window = spatial.iter().enumerate().map(|(at, dim)| {
            let axis = layout.spatial[at] as usize;
            let reach = extent(kernel_dims[at], dim.dilation);
            let low = reach - 1 - dim.low;
            WindowDim {
                padding_low: low,
                padding_high: (input[axis] + reach - 1 - low).saturating_sub(extent(dy_dims[axis], dim.stride)),
                window_dilation: dim.dilation,
                base_dilation: dim.stride,
                reversal: true,
                ..WindowDim::of_size(kernel_dims[at])
            }
        });
        let n = n as i64;
        let convolution = Convolution {
            window: window.collect(),
            dims: ConvolutionDims {
                input_batch: layout.batch,
                input_feature: layout.feature,
                input_spatial: layout.spatial.clone(),
                kernel_input_feature: n + 1,
                kernel_output_feature: n,
                kernel_spatial: (0..n).collect(),
                output_batch: layout.batch,
                output_feature: layout.feature,
                output_spatial: layout.spatial.clone(),
            },
            feature_group_count: groups,
            batch_group_count: 1,
            precision: PrecisionConfig::default(),
        };
        self.one(self.e().emit(Op::Convolution(Box::new(convolution)), &[dy, kernel], None))
    }

    /// Inputs: the input, the kernel's dims, the cotangent.
    fn by_kernel(&mut self, is_depthwise: bool) -> Outputs {
        let (x, dy) = (self.array(0)?, self.array(2)?);
        let kernel_dims = self.ints(1)?;
        let input = self.dims(x);
        self.check_kernel(&input, &kernel_dims)?;
        let dy_dims = self.check_cotangent(&kernel_dims, dy)?;
        let layout = self.layout(input.len())?;
        let spatial = self.spatial(&layout, &input, &kernel_dims)?;
        let n = layout.spatial.len();
        let features = input[layout.feature as usize];
        let per_group = if is_depthwise { 1 } else { kernel_dims[n] };
        let groups = if per_group > 0 && features % per_group == 0 { features / per_group } else { 1 };
        let window = spatial.iter().enumerate().map(|(at, dim)| {
            let axis = layout.spatial[at] as usize;
            let reach = extent(kernel_dims[at], dim.dilation);
            WindowDim {
                padding_low: dim.low,
                padding_high: extent(dy_dims[axis], dim.stride).saturating_add(reach - 1 - input[axis] - dim.low),
                stride: dim.dilation,
                window_dilation: dim.stride,
                ..WindowDim::of_size(dy_dims[axis])
            }
        });
        let k = n as i64;
        let convolution = Convolution {
            window: window.collect(),
            dims: ConvolutionDims {
                input_batch: layout.feature,
                input_feature: layout.batch,
                input_spatial: layout.spatial.clone(),
                kernel_input_feature: layout.batch,
                kernel_output_feature: layout.feature,
                kernel_spatial: layout.spatial.clone(),
                output_batch: k,
                output_feature: k + 1,
                output_spatial: (0..k).collect(),
            },
            feature_group_count: 1,
            batch_group_count: groups,
            precision: PrecisionConfig::default(),
        };
        let kernel = self.e().emit(Op::Convolution(Box::new(convolution)), &[x, dy], None);
        self.one(if is_depthwise { self.e().reshape(kernel, &kernel_dims) } else { kernel })
    }
}
