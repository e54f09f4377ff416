//! Attributes of the ops as text: which opcode prints which `name=value`, in XLA's order.

use super::{number, sharding};
use crate::hlo::ops::{
    AllReduce, BatchNorm, CompareKind, Convolution, ConvolutionDims, CustomCall, DotDims, GatherDims, PadDim,
    PrecisionConfig, ReplicaGroups, ScatterDims, SliceDim, WindowDim,
};
use crate::hlo::{CompId, Op, Shape};
use std::fmt::{Display, Write};

/// Names of XLA's `CustomCallApiVersion` by number.
pub(super) const API_VERSIONS: [&str; 5] = [
    "API_VERSION_UNSPECIFIED",
    "API_VERSION_ORIGINAL",
    "API_VERSION_STATUS_RETURNING",
    "API_VERSION_STATUS_RETURNING_UNIFIED",
    "API_VERSION_TYPED_FFI",
];

/// The API version that text leaves out.
pub(super) const API_VERSION_ORIGINAL: i32 = 1;

/// Values joined by commas.
pub(in crate::hlo) fn list<T: Display>(values: &[T]) -> String {
    joined(values, ",", |out, value| write_display(out, value))
}

fn write_display(out: &mut String, value: &dyn Display) {
    write!(out, "{value}").expect("writing to a string cannot fail");
}

fn joined<T>(values: &[T], separator: &str, mut each: impl FnMut(&mut String, &T)) -> String {
    let mut out = String::new();
    for (i, value) in values.iter().enumerate() {
        if i > 0 {
            out.push_str(separator);
        }
        each(&mut out, value);
    }
    out
}

/// Collects `, name=value` after an instruction's operands.
pub(super) struct Attributes<'a> {
    /// Where they go.
    pub(super) out: &'a mut String,
    /// How the name of a computation is written.
    pub(super) computation: &'a dyn Fn(CompId) -> String,
}

impl Attributes<'_> {
    /// Writes `, name=value`.
    pub(super) fn put(&mut self, name: &str, value: impl Display) {
        write!(self.out, ", {name}={value}").expect("writing to a string cannot fail");
    }

    /// Writes `, name={a,b}`.
    fn put_list<T: Display>(&mut self, name: &str, values: &[T]) {
        self.put(name, format_args!("{{{}}}", list(values)));
    }

    fn put_nonempty<T: Display>(&mut self, name: &str, values: &[T]) {
        if !values.is_empty() {
            self.put_list(name, values);
        }
    }

    /// Writes `, name=true` if it is.
    fn put_flag(&mut self, name: &str, value: bool) {
        if value {
            self.put(name, true);
        }
    }

    fn put_called(&mut self, name: &str, comp: CompId) {
        self.put(name, (self.computation)(comp));
    }

    fn put_all_called(&mut self, name: &str, comps: &[CompId]) {
        let names = joined(comps, ", ", |out, &comp| out.push_str(&(self.computation)(comp)));
        self.put(name, format_args!("{{{names}}}"));
    }

    /// Writes the attributes of an op. `lhs` is the shape of its first operand.
    pub(super) fn write_op(&mut self, op: &Op, lhs: Option<&Shape>) {
        match op {
            Op::Parameter { replication, .. } => self.put_nonempty("parameter_replication", replication),
            Op::Iota { dimension } => self.put("iota_dimension", dimension),
            Op::RngBitGenerator(algorithm) => self.put("algorithm", algorithm.name()),
            Op::Compare { direction, kind } => {
                self.put("direction", direction.name());
                let default = lhs.and_then(Shape::dtype).map(CompareKind::default_of);
                if let Some(kind) = kind.filter(|kind| Some(*kind) != default) {
                    self.put("type", kind.name());
                }
            }
            Op::ReducePrecision { exponent_bits, mantissa_bits } => {
                self.put("exponent_bits", exponent_bits);
                self.put("mantissa_bits", mantissa_bits);
            }
            Op::Broadcast { dimensions } | Op::Reverse { dimensions } => self.put_list("dimensions", dimensions),
            Op::Transpose { permutation } => self.put_list("dimensions", permutation),
            Op::Concatenate { dimension } => self.put_list("dimensions", &[dimension]),
            Op::Slice(dims) => self.put("slice", format_args!("{{{}}}", slice(dims))),
            Op::Pad(dims) => self.put("padding", padding(dims)),
            Op::DynamicSlice { slice_sizes } => self.put_list("dynamic_slice_sizes", slice_sizes),
            Op::Gather(dims) => self.gather(dims),
            Op::Scatter { dims, to_apply } => {
                self.scatter(dims);
                self.put_called("to_apply", *to_apply);
            }
            Op::Dot { dims, precision } => {
                self.dot(dims);
                self.precision(precision);
            }
            Op::Convolution(convolution) => self.convolution(convolution),
            Op::Reduce { dimensions, to_apply } => {
                self.put_list("dimensions", dimensions);
                self.put_called("to_apply", *to_apply);
            }
            Op::ReduceWindow { window, to_apply } => {
                self.window(window);
                self.put_called("to_apply", *to_apply);
            }
            Op::SelectAndScatter { window, select, scatter } => {
                self.window(window);
                self.put_called("select", *select);
                self.put_called("scatter", *scatter);
            }
            Op::BatchNormTraining(norm) | Op::BatchNormInference(norm) | Op::BatchNormGrad(norm) => {
                let BatchNorm { epsilon, feature_index } = norm;
                self.put("epsilon", number::f32_text(*epsilon));
                self.put("feature_index", feature_index);
            }
            Op::Sort { dimension, is_stable, to_apply } => {
                self.put_list("dimensions", &[dimension]);
                self.put_flag("is_stable", *is_stable);
                self.put_called("to_apply", *to_apply);
            }
            Op::GetTupleElement { index } => self.put("index", index),
            Op::Call { to_apply } => self.put_called("to_apply", *to_apply),
            Op::While { condition, body } => {
                self.put_called("condition", *condition);
                self.put_called("body", *body);
            }
            Op::Conditional(conditional) => match (lhs.and_then(Shape::dtype), conditional.branches.as_slice()) {
                (Some(crate::hlo::DType::Pred), &[on_true, on_false]) => {
                    self.put_called("true_computation", on_true);
                    self.put_called("false_computation", on_false);
                }
                (_, branches) => self.put_all_called("branch_computations", branches),
            },
            Op::CustomCall(call) => self.custom_call(call),
            Op::AllReduce(all_reduce) => self.all_reduce(all_reduce),
            // Its own attributes are among the unmodelled ones, which go before the called computations.
            Op::Opaque(_) => {}
            Op::Constant(_)
            | Op::Unary(_)
            | Op::Binary(_)
            | Op::Select
            | Op::Clamp
            | Op::Convert
            | Op::BitcastConvert
            | Op::Reshape
            | Op::DynamicUpdateSlice
            | Op::Tuple
            | Op::OptimizationBarrier => {}
        }
    }

    /// Writes the computations an opaque op calls.
    pub(super) fn write_opaque_called(&mut self, op: &Op) {
        if let Op::Opaque(opaque) = op {
            for (attribute, comps) in &opaque.called {
                let names = joined(comps, ", ", |out, &comp| out.push_str(&(self.computation)(comp)));
                match comps.len() {
                    1 => self.put(attribute, names),
                    _ => self.put(attribute, format_args!("{{{names}}}")),
                }
            }
        }
    }

    fn gather(&mut self, dims: &GatherDims) {
        self.put_list("offset_dims", &dims.offset_dims);
        self.put_list("collapsed_slice_dims", &dims.collapsed_slice_dims);
        self.put_list("start_index_map", &dims.start_index_map);
        self.put_nonempty("operand_batching_dims", &dims.operand_batching_dims);
        self.put_nonempty("start_indices_batching_dims", &dims.start_indices_batching_dims);
        self.put("index_vector_dim", dims.index_vector_dim);
        self.put_list("slice_sizes", &dims.slice_sizes);
        self.put_flag("indices_are_sorted", dims.indices_are_sorted);
    }

    fn scatter(&mut self, dims: &ScatterDims) {
        self.put_list("update_window_dims", &dims.update_window_dims);
        self.put_list("inserted_window_dims", &dims.inserted_window_dims);
        self.put_list("scatter_dims_to_operand_dims", &dims.scatter_dims_to_operand_dims);
        self.put_nonempty("input_batching_dims", &dims.input_batching_dims);
        self.put_nonempty("scatter_indices_batching_dims", &dims.scatter_indices_batching_dims);
        self.put("index_vector_dim", dims.index_vector_dim);
        self.put_flag("indices_are_sorted", dims.indices_are_sorted);
        self.put_flag("unique_indices", dims.unique_indices);
    }

    fn dot(&mut self, dims: &DotDims) {
        self.put_nonempty("lhs_batch_dims", &dims.lhs_batch);
        self.put_list("lhs_contracting_dims", &dims.lhs_contracting);
        self.put_nonempty("rhs_batch_dims", &dims.rhs_batch);
        self.put_list("rhs_contracting_dims", &dims.rhs_contracting);
    }

    fn precision(&mut self, config: &PrecisionConfig) {
        use crate::hlo::ops::OperandPrecision::Default;
        if config.operand_precision.iter().any(|&precision| precision != Default) {
            let names: Vec<&str> = config.operand_precision.iter().map(|precision| precision.name()).collect();
            self.put_list("operand_precision", &names);
        }
        if let Some(algorithm) = &config.algorithm {
            self.put("algorithm", algorithm);
        }
    }

    fn convolution(&mut self, convolution: &Convolution) {
        self.window(&convolution.window);
        self.put("dim_labels", dim_labels(&convolution.dims));
        if convolution.feature_group_count != 1 {
            self.put("feature_group_count", convolution.feature_group_count);
        }
        if convolution.batch_group_count != 1 {
            self.put("batch_group_count", convolution.batch_group_count);
        }
        self.precision(&convolution.precision);
    }

    fn window(&mut self, window: &[WindowDim]) {
        if !window.is_empty() {
            self.put("window", format_args!("{{{}}}", window_text(window)));
        }
    }

    fn custom_call(&mut self, call: &CustomCall) {
        self.put("custom_call_target", format_args!("\"{}\"", number::escape(&call.target)));
        if !call.operand_layouts.is_empty() {
            let shapes = joined(&call.operand_layouts, ", ", |out, shape| write_display(out, shape));
            self.put("operand_layout_constraints", format_args!("{{{shapes}}}"));
        }
        self.put_flag("custom_call_has_side_effect", call.has_side_effect);
        if call.api_version != API_VERSION_ORIGINAL {
            match API_VERSIONS.get(call.api_version as usize) {
                Some(name) => self.put("api_version", name),
                None => self.put("api_version", call.api_version),
            }
        }
        if !call.called.is_empty() {
            self.put_all_called("called_computations", &call.called);
        }
    }

    fn all_reduce(&mut self, all_reduce: &AllReduce) {
        if let Some(channel_id) = all_reduce.channel_id {
            self.put("channel_id", channel_id);
        }
        self.put("replica_groups", replica_groups(&all_reduce.replica_groups));
        self.put_flag("constrain_layout", all_reduce.constrain_layout);
        self.put_flag("use_global_device_ids", all_reduce.use_global_device_ids);
        self.put_called("to_apply", all_reduce.to_apply);
    }
}

fn slice(dims: &[SliceDim]) -> String {
    let strided = dims.iter().any(|dim| dim.stride != 1);
    joined(dims, ", ", |out, dim| {
        let SliceDim { start, limit, stride } = dim;
        match strided {
            true => write_display(out, &format_args!("[{start}:{limit}:{stride}]")),
            false => write_display(out, &format_args!("[{start}:{limit}]")),
        }
    })
}

fn padding(dims: &[PadDim]) -> String {
    let has_interior = dims.iter().any(|dim| dim.interior != 0);
    joined(dims, "x", |out, dim| {
        let PadDim { low, high, interior } = dim;
        match has_interior {
            true => write_display(out, &format_args!("{low}_{high}_{interior}")),
            false => write_display(out, &format_args!("{low}_{high}")),
        }
    })
}

/// What stands in `window={…}`; fields that are everywhere at their default are left out.
fn window_text(window: &[WindowDim]) -> String {
    let mut out = format!("size={}", joined(window, "x", |out, dim| write_display(out, &dim.size)));
    let mut put = |name: &str, is_default: fn(&WindowDim) -> bool, text: fn(&WindowDim) -> String| {
        if !window.iter().all(is_default) {
            let values = joined(window, "x", |out, dim| out.push_str(&text(dim)));
            write_display(&mut out, &format_args!(" {name}={values}"));
        }
    };
    put("stride", |dim| dim.stride == 1, |dim| dim.stride.to_string());
    put(
        "pad",
        |dim| dim.padding_low == 0 && dim.padding_high == 0,
        |dim| format!("{}_{}", dim.padding_low, dim.padding_high),
    );
    put("lhs_dilate", |dim| dim.base_dilation == 1, |dim| dim.base_dilation.to_string());
    put("rhs_dilate", |dim| dim.window_dilation == 1, |dim| dim.window_dilation.to_string());
    put("rhs_reversal", |dim| !dim.reversal, |dim| u8::from(dim.reversal).to_string());
    out
}

/// `b01f_01io->b01f`: the role of each dimension of input, kernel and output.
fn dim_labels(dims: &ConvolutionDims) -> String {
    let labels = |roles: [(i64, char); 2], spatial: &[i64]| {
        let rank = roles.iter().map(|&(dim, _)| dim).chain(spatial.iter().copied()).max().unwrap_or(0) + 1;
        // A broken module may claim any dimension; it gets as many labels as it has roles.
        let rank = usize::try_from(rank).unwrap_or(0).min(2 + spatial.len());
        let mut labels = vec!["?".to_string(); rank];
        let mut set = |dim: i64, label: String| {
            if let Some(slot) = usize::try_from(dim).ok().and_then(|dim| labels.get_mut(dim)) {
                *slot = label;
            }
        };
        roles.into_iter().for_each(|(dim, label)| set(dim, label.to_string()));
        spatial.iter().enumerate().for_each(|(i, &dim)| set(dim, i.to_string()));
        labels.concat()
    };
    let input = labels([(dims.input_batch, 'b'), (dims.input_feature, 'f')], &dims.input_spatial);
    let kernel = labels([(dims.kernel_input_feature, 'i'), (dims.kernel_output_feature, 'o')], &dims.kernel_spatial);
    let output = labels([(dims.output_batch, 'b'), (dims.output_feature, 'f')], &dims.output_spatial);
    format!("{input}_{kernel}->{output}")
}

pub(in crate::hlo) fn replica_groups(groups: &ReplicaGroups) -> String {
    match groups {
        ReplicaGroups::List(groups) => {
            let groups = joined(groups, ",", |out, group| write_display(out, &format_args!("{{{}}}", list(group))));
            format!("{{{groups}}}")
        }
        ReplicaGroups::Iota { dims, reshape_dims, transpose_perm } => {
            let mut out = format!("[{}]", list(dims));
            sharding::write_iota(&mut out, reshape_dims, transpose_perm);
            out
        }
    }
}
