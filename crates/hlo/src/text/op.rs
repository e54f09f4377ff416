//! Ops as text, both ways: the `name=value` attributes of each opcode, in XLA's order.

use super::error::ParseErrorKind;
use super::forms::*;
use super::lex::{Fault, Read};
use super::number;
use super::read_literal::literal;
use super::syntax::RawInstruction;
use super::values::Values;
use crate::ops::{
    AllReduce, BatchNorm, BinaryOp, CompareKind, Comparison, Conditional, Convolution, CustomCall, DotDims, GatherDims,
    Opaque, OperandPrecision, PrecisionConfig, ReplicaGroups, RngAlgorithm, ScatterDims, UnaryOp, WindowDim, opcodes,
};
use crate::words::nearest;
use crate::{CompId, DType, Op, Shape};
use std::fmt::{Display, Write};

/// Names of XLA's `CustomCallApiVersion` by number.
const API_VERSIONS: [&str; 5] = [
    "API_VERSION_UNSPECIFIED",
    "API_VERSION_ORIGINAL",
    "API_VERSION_STATUS_RETURNING",
    "API_VERSION_STATUS_RETURNING_UNIFIED",
    "API_VERSION_TYPED_FFI",
];

/// The API version that text omits.
const API_VERSION_ORIGINAL: i32 = 1;

/// Attributes of a custom call that the IR does not model, and that XLA prints before its target.
pub(crate) const BEFORE_TARGET: [&str; 6] =
    ["window", "dim_labels", "feature_group_count", "batch_group_count", "padding_type", "operand_precision"];

/// Unmodelled attributes that it prints before the API version.
pub(crate) const BEFORE_API_VERSION: [&str; 3] = ["literal", "output_to_operand_aliasing", "schedule"];

/// Writes `, name=value` after an instruction's operands.
pub(super) struct Attributes<'a> {
    /// The output.
    pub(super) out: &'a mut String,
    /// Writes the name of a computation.
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

    /// Writes `, name=true` if `value` is true.
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

    /// Writes the attributes of an op, and the `further` ones that the IR does not model. `lhs` is the shape of its
    /// first operand.
    pub(super) fn write_op(&mut self, op: &Op, lhs: Option<&Shape>, further: &[&(String, String)]) {
        match op {
            Op::CustomCall(call) => self.custom_call(call, further),
            op => {
                self.modelled(op, lhs);
                self.put_further(further, |_| true);
            }
        }
    }

    /// Writes the further attributes whose names are selected.
    fn put_further(&mut self, further: &[&(String, String)], is_asked: impl Fn(&str) -> bool) {
        further.iter().filter(|(name, _)| is_asked(name)).for_each(|(name, value)| self.put(name, value));
    }

    fn modelled(&mut self, op: &Op, lhs: Option<&Shape>) {
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
            Op::Slice(dims) => self.put("slice", format_args!("{{{}}}", slice_text(dims))),
            Op::Pad(dims) => self.put("padding", padding_text(dims)),
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
                (Some(DType::Pred), &[on_true, on_false]) => {
                    self.put_called("true_computation", on_true);
                    self.put_called("false_computation", on_false);
                }
                (_, branches) => self.put_all_called("branch_computations", branches),
            },
            Op::AllReduce(all_reduce) => self.all_reduce(all_reduce),
            // Its own attributes are among the unmodelled ones, which come before the called computations.
            Op::Opaque(_) => {}
            Op::CustomCall(_)
            | Op::Constant(_)
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
        if config.operand_precision.iter().any(|&precision| precision != OperandPrecision::Default) {
            let names: Vec<&str> = config.operand_precision.iter().map(|precision| precision.name()).collect();
            self.put_list("operand_precision", &names);
        }
        if let Some(algorithm) = &config.algorithm {
            self.put("algorithm", algorithm);
        }
    }

    fn convolution(&mut self, convolution: &Convolution) {
        self.window(&convolution.window);
        self.put("dim_labels", dim_labels_text(&convolution.dims));
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

    fn custom_call(&mut self, call: &CustomCall, further: &[&(String, String)]) {
        self.put_further(further, |name| BEFORE_TARGET.contains(&name));
        self.put("custom_call_target", format_args!("\"{}\"", number::escape(&call.target)));
        if !call.operand_layouts.is_empty() {
            let shapes = joined(&call.operand_layouts, ", ", |out, shape| write_display(out, shape));
            self.put("operand_layout_constraints", format_args!("{{{shapes}}}"));
        }
        self.put_flag("custom_call_has_side_effect", call.has_side_effect);
        self.put_further(further, |name| BEFORE_API_VERSION.contains(&name));
        if call.api_version != API_VERSION_ORIGINAL {
            match API_VERSIONS.get(call.api_version as usize) {
                Some(name) => self.put("api_version", name),
                None => self.put("api_version", call.api_version),
            }
        }
        let is_placed = |name: &str| BEFORE_TARGET.contains(&name) || BEFORE_API_VERSION.contains(&name);
        self.put_further(further, |name| !is_placed(name));
        if !call.called.is_empty() {
            self.put_all_called("called_computations", &call.called);
        }
    }

    fn all_reduce(&mut self, all_reduce: &AllReduce) {
        if let Some(channel_id) = all_reduce.channel_id {
            self.put("channel_id", channel_id);
        }
        self.put("replica_groups", groups_text(&all_reduce.replica_groups));
        self.put_flag("constrain_layout", all_reduce.constrain_layout);
        self.put_flag("use_global_device_ids", all_reduce.use_global_device_ids);
        self.put_called("to_apply", all_reduce.to_apply);
    }
}

/// Reads an op with its attributes. `shape` is its result's, `lhs` the dtype of the first operand.
pub(super) fn op(values: &mut Values<'_, '_>, raw: &RawInstruction<'_>, shape: &Shape, lhs: Option<DType>) -> Read<Op> {
    if let Some(op) = UnaryOp::from_name(raw.opcode) {
        return Ok(Op::Unary(op));
    }
    if let Some(op) = BinaryOp::from_name(raw.opcode) {
        return Ok(Op::Binary(op));
    }
    let mut operands = values.cursor.over(raw.operands);
    Ok(match raw.opcode {
        "parameter" => {
            let number = operands.int()?;
            finished(&mut operands)?;
            let replication = values.maybe("parameter_replication", |value| {
                let mut flags = Vec::new();
                value.sequence("{", "}", |value| {
                    value.spend(2 * size_of::<bool>())?;
                    flags.push(value.boolean()?);
                    Ok(())
                })?;
                Ok(flags)
            })?;
            Op::Parameter { number, replication: replication.unwrap_or_default() }
        }
        "constant" => {
            let value = literal(&mut operands, shape)?;
            finished(&mut operands)?;
            Op::Constant(value)
        }
        "iota" => Op::Iota { dimension: values.need("iota_dimension", |value| value.int())? },
        "rng-bit-generator" => {
            Op::RngBitGenerator(values.need("algorithm", |value| named(value, RngAlgorithm::ALL, |item| item.name()))?)
        }
        "compare" => {
            let direction = values.need("direction", |value| named(value, Comparison::ALL, |item| item.name()))?;
            let kind = values.maybe("type", |value| named(value, CompareKind::ALL, |item| item.name()))?;
            let default = lhs.map(CompareKind::default_of);
            Op::Compare { direction, kind: kind.filter(|&kind| Some(kind) != default) }
        }
        "select" => Op::Select,
        "clamp" => Op::Clamp,
        "convert" => Op::Convert,
        "bitcast-convert" => Op::BitcastConvert,
        "reduce-precision" => Op::ReducePrecision {
            exponent_bits: values.need("exponent_bits", small_int)?,
            mantissa_bits: values.need("mantissa_bits", small_int)?,
        },
        "broadcast" => Op::Broadcast { dimensions: values.ints("dimensions")? },
        "reshape" => Op::Reshape,
        "transpose" => Op::Transpose { permutation: values.need("dimensions", |value| value.ints("{", "}"))? },
        "slice" => Op::Slice(values.need("slice", slice)?),
        "pad" => Op::Pad(values.need("padding", padding)?),
        "concatenate" => Op::Concatenate { dimension: values.only_dimension()? },
        "reverse" => Op::Reverse { dimensions: values.need("dimensions", |value| value.ints("{", "}"))? },
        "dynamic-slice" => {
            Op::DynamicSlice { slice_sizes: values.need("dynamic_slice_sizes", |value| value.ints("{", "}"))? }
        }
        "dynamic-update-slice" => Op::DynamicUpdateSlice,
        "gather" => Op::Gather(gather(values)?),
        "scatter" => Op::Scatter { dims: scatter(values)?, to_apply: values.called("to_apply")? },
        "dot" => Op::Dot {
            dims: DotDims {
                lhs_batch: values.ints("lhs_batch_dims")?,
                rhs_batch: values.ints("rhs_batch_dims")?,
                lhs_contracting: values.ints("lhs_contracting_dims")?,
                rhs_contracting: values.ints("rhs_contracting_dims")?,
            },
            precision: values.precision()?,
        },
        "convolution" => Op::Convolution(Box::new(Convolution {
            window: values.window()?,
            dims: values.need("dim_labels", dim_labels)?,
            feature_group_count: values.int_or("feature_group_count", 1)?,
            batch_group_count: values.int_or("batch_group_count", 1)?,
            precision: values.precision()?,
        })),
        "reduce" => Op::Reduce {
            dimensions: values.need("dimensions", |value| value.ints("{", "}"))?,
            to_apply: values.called("to_apply")?,
        },
        "reduce-window" => Op::ReduceWindow { window: values.window()?, to_apply: values.called("to_apply")? },
        "select-and-scatter" => Op::SelectAndScatter {
            window: values.window()?,
            select: values.called("select")?,
            scatter: values.called("scatter")?,
        },
        "batch-norm-training" => Op::BatchNormTraining(batch_norm(values)?),
        "batch-norm-inference" => Op::BatchNormInference(batch_norm(values)?),
        "batch-norm-grad" => Op::BatchNormGrad(batch_norm(values)?),
        "sort" => Op::Sort {
            dimension: values.only_dimension()?,
            is_stable: values.flag("is_stable")?,
            to_apply: values.called("to_apply")?,
        },
        "tuple" => Op::Tuple,
        "get-tuple-element" => Op::GetTupleElement { index: values.need("index", |value| value.int())? },
        "call" => Op::Call { to_apply: values.called("to_apply")? },
        "while" => Op::While { condition: values.called("condition")?, body: values.called("body")? },
        "conditional" => Op::Conditional(Conditional {
            branches: match values.all_called("branch_computations")? {
                Some(branches) => branches,
                None => vec![values.called("true_computation")?, values.called("false_computation")?],
            },
        }),
        "custom-call" => custom_call(values)?,
        // Groups may also be axes of a mesh, which the IR does not model.
        "all-reduce" if !matches!(values.peek("replica_groups").and_then(|mut v| v.peek()), Some(b'a'..=b'z')) => {
            all_reduce(values)?
        }
        "opt-barrier" => Op::OptimizationBarrier,
        opcode => opaque(values, opcode)?,
    })
}

/// Attributes that name computations, for opcodes that the IR does not model.
const CALLED: [&str; 11] = [
    "calls",
    "to_apply",
    "condition",
    "body",
    "select",
    "scatter",
    "true_computation",
    "false_computation",
    "branch_computations",
    "called_computations",
    "async_wrapped_computation",
];

fn opaque(values: &mut Values<'_, '_>, opcode: &str) -> Read<Op> {
    if !opcodes::is_known(opcode) {
        let nearest = nearest(opcode, opcodes::OPCODES).map(str::to_string);
        let kind = ParseErrorKind::UnknownOpcode { opcode: opcode.to_string(), nearest };
        return Err(Fault::new(values.raw.opcode_offset, kind));
    }
    let mut called = Vec::new();
    for name in CALLED {
        if let Some(comps) = values.all_called(name)? {
            called.push((name.to_string(), comps));
        }
    }
    Ok(Op::Opaque(Box::new(Opaque { opcode: opcode.to_string(), called })))
}

fn batch_norm(values: &mut Values<'_, '_>) -> Read<BatchNorm> {
    let epsilon = values.need("epsilon", |value| {
        value.skip_blank();
        let start = value.pos;
        value.word_or_empty().parse::<f32>().map_err(|_| {
            value.pos = start;
            value.expected("a number")
        })
    })?;
    Ok(BatchNorm { epsilon, feature_index: values.need("feature_index", |value| value.int())? })
}

fn gather(values: &mut Values<'_, '_>) -> Read<GatherDims> {
    Ok(GatherDims {
        offset_dims: values.ints("offset_dims")?,
        collapsed_slice_dims: values.ints("collapsed_slice_dims")?,
        start_index_map: values.ints("start_index_map")?,
        operand_batching_dims: values.ints("operand_batching_dims")?,
        start_indices_batching_dims: values.ints("start_indices_batching_dims")?,
        index_vector_dim: values.need("index_vector_dim", |value| value.int())?,
        slice_sizes: values.need("slice_sizes", |value| value.ints("{", "}"))?,
        indices_are_sorted: values.flag("indices_are_sorted")?,
    })
}

fn scatter(values: &mut Values<'_, '_>) -> Read<ScatterDims> {
    Ok(ScatterDims {
        update_window_dims: values.ints("update_window_dims")?,
        inserted_window_dims: values.ints("inserted_window_dims")?,
        scatter_dims_to_operand_dims: values.ints("scatter_dims_to_operand_dims")?,
        input_batching_dims: values.ints("input_batching_dims")?,
        scatter_indices_batching_dims: values.ints("scatter_indices_batching_dims")?,
        index_vector_dim: values.need("index_vector_dim", |value| value.int())?,
        indices_are_sorted: values.flag("indices_are_sorted")?,
        unique_indices: values.flag("unique_indices")?,
    })
}

fn custom_call(values: &mut Values<'_, '_>) -> Read<Op> {
    let target = values.need("custom_call_target", |value| value.string())?;
    let layouts = values.maybe("operand_layout_constraints", |value| {
        let mut shapes = Vec::new();
        value.sequence("{", "}", |value| {
            shapes.push(value.shape()?);
            Ok(())
        })?;
        Ok(shapes)
    })?;
    let api_version = values.maybe("api_version", |value| {
        let name = named(value, &API_VERSIONS, |name| name)?;
        Ok(API_VERSIONS.iter().position(|&known| known == name).unwrap_or(0) as i32)
    })?;
    Ok(Op::CustomCall(Box::new(CustomCall {
        target,
        has_side_effect: values.flag("custom_call_has_side_effect")?,
        api_version: api_version.unwrap_or(API_VERSION_ORIGINAL),
        called: values.all_called("called_computations")?.unwrap_or_default(),
        operand_layouts: layouts.unwrap_or_default(),
    })))
}

fn all_reduce(values: &mut Values<'_, '_>) -> Read<Op> {
    let groups = values.maybe("replica_groups", replica_groups)?;
    Ok(Op::AllReduce(Box::new(AllReduce {
        to_apply: values.called("to_apply")?,
        replica_groups: groups.unwrap_or(ReplicaGroups::List(Vec::new())),
        channel_id: values.maybe("channel_id", |value| value.int())?,
        use_global_device_ids: values.flag("use_global_device_ids")?,
        constrain_layout: values.flag("constrain_layout")?,
    })))
}
