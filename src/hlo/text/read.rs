//! Operands and attributes of an instruction from text: the inverse of `attributes`.

use super::attributes::API_VERSIONS;
use super::computation::{Later, PER_OPERAND};
use super::error::ParseErrorKind;
use super::lex::{Cursor, Fault, Read, nearest};
use super::read_literal::literal;
use super::syntax::{Attribute, RawInstruction};
use crate::hlo::ops::{
    AllReduce, BatchNorm, BinaryOp, CompareKind, Comparison, Conditional, Convolution, ConvolutionDims, CustomCall,
    DotDims, GatherDims, Opaque, OperandPrecision, PadDim, PrecisionConfig, ReplicaGroups, RngAlgorithm, ScatterDims,
    SliceDim, UnaryOp, Window, WindowDim, opcodes,
};
use crate::hlo::{CompId, DType, Op, Shape};
use std::collections::HashMap;

/// Places by name. Every operand is looked up here, so the hash is a fast one.
pub(super) type ByName<'a> = HashMap<&'a str, usize, foldhash::fast::RandomState>;

/// What names mean where an instruction stands.
pub(super) struct Names<'a> {
    /// Computations of the module.
    pub(super) comp_of: &'a ByName<'a>,
    /// Where names go of computations that may begin in a later part; `None` in the last.
    pub(super) later: Option<&'a Later>,
    /// Instructions of the computation.
    pub(super) position: &'a ByName<'a>,
    /// How many of them stand in parts of the text before this one.
    pub(super) base: usize,
}

/// The attributes of an instruction. One that was read loses its name, which otherwise is never empty.
pub(super) struct Values<'a, 'l> {
    cursor: Cursor<'a>,
    raw: &'l RawInstruction<'a>,
    names: &'l Names<'l>,
    attributes: &'l mut [Attribute<'a>],
}

impl<'a, 'l> Values<'a, 'l> {
    pub(super) fn new(
        cursor: Cursor<'a>,
        raw: &'l RawInstruction<'a>,
        attributes: &'l mut [Attribute<'a>],
        names: &'l Names<'l>,
    ) -> Values<'a, 'l> {
        Values { cursor, raw, names, attributes }
    }

    /// The attributes that nobody read, in order.
    pub(super) fn rest(&self) -> impl Iterator<Item = &Attribute<'a>> {
        self.attributes.iter().filter(|attribute| !attribute.name.is_empty())
    }

    fn peek(&self, name: &str) -> Option<Cursor<'a>> {
        let attribute = self.attributes.iter().find(|attribute| attribute.name == name)?;
        Some(self.cursor.over(attribute.value))
    }

    /// Reads an attribute to its end, if it is there.
    fn maybe<T>(&mut self, name: &str, read: impl FnOnce(&mut Cursor<'a>) -> Read<T>) -> Read<Option<T>> {
        let Some(attribute) = self.attributes.iter_mut().find(|attribute| attribute.name == name) else {
            return Ok(None);
        };
        attribute.name = "";
        let mut value = self.cursor.over(attribute.value);
        let result = read(&mut value)?;
        finished(&mut value)?;
        Ok(Some(result))
    }

    /// Reads an attribute that must be there.
    fn need<T>(&mut self, name: &'static str, read: impl FnOnce(&mut Cursor<'a>) -> Read<T>) -> Read<T> {
        self.maybe(name, read)?.ok_or_else(|| {
            let kind = ParseErrorKind::MissingAttribute { opcode: self.raw.opcode.to_string(), attribute: name };
            Fault::new(self.raw.offset, kind)
        })
    }

    fn ints(&mut self, name: &str) -> Read<Vec<i64>> {
        Ok(self.maybe(name, |value| value.ints("{", "}"))?.unwrap_or_default())
    }

    fn flag(&mut self, name: &str) -> Read<bool> {
        Ok(self.maybe(name, |value| value.boolean())?.unwrap_or(false))
    }

    fn int_or(&mut self, name: &str, default: i64) -> Read<i64> {
        Ok(self.maybe(name, |value| value.int())?.unwrap_or(default))
    }

    fn called(&mut self, name: &'static str) -> Read<CompId> {
        let names = self.names;
        self.need(name, |value| names.computation(value))
    }

    /// `{f, g}` or `f`.
    fn all_called(&mut self, name: &str) -> Read<Option<Vec<CompId>>> {
        let names = self.names;
        self.maybe(name, |value| {
            let mut comps = Vec::new();
            if value.peek() == Some(b'{') {
                value.sequence("{", "}", |value| {
                    value.spend(2 * size_of::<CompId>())?;
                    comps.push(names.computation(value)?);
                    Ok(())
                })?;
            } else {
                comps.push(names.computation(value)?);
            }
            Ok(comps)
        })
    }

    /// The one dimension of `dimensions={n}`.
    fn only_dimension(&mut self) -> Read<i64> {
        self.need("dimensions", |value| {
            value.expect("{")?;
            let dimension = value.int()?;
            value.expect("}")?;
            Ok(dimension)
        })
    }

    fn window(&mut self) -> Read<Window> {
        Ok(self.maybe("window", window)?.unwrap_or_default())
    }

    fn precision(&mut self) -> Read<PrecisionConfig> {
        let operand_precision = self.maybe("operand_precision", |value| {
            let mut all = Vec::new();
            value.sequence("{", "}", |value| {
                value.spend(2 * size_of::<OperandPrecision>())?;
                all.push(named(value, OperandPrecision::ALL, |item| item.name())?);
                Ok(())
            })?;
            Ok(all)
        })?;
        let algorithms = &crate::hlo::ops::dot::ALGORITHMS;
        let algorithm = self.maybe("algorithm", |value| named(value, algorithms, |name| name))?;
        Ok(PrecisionConfig {
            // Text leaves out what is default for all operands; XLA's parser writes it back too.
            operand_precision: operand_precision.unwrap_or(vec![OperandPrecision::Default; 2]),
            algorithm: algorithm.map(str::to_string),
        })
    }
}

/// A value must end where its reader stopped.
pub(in crate::hlo) fn finished(value: &mut Cursor<'_>) -> Read<()> {
    if value.at_end() { Ok(()) } else { Err(value.expected("the end of the value")) }
}

/// A word of a table.
fn named<T: Copy>(value: &mut Cursor<'_>, all: &[T], of: impl Fn(T) -> &'static str) -> Read<T> {
    value.skip_blank();
    let start = value.pos;
    let word = value.word_or_empty();
    all.iter().copied().find(|&item| of(item) == word).ok_or_else(|| {
        value.pos = start;
        let names: Vec<&str> = all.iter().map(|&item| of(item)).collect();
        value.expected(format!("one of {}", names.join(", ")))
    })
}

/// Appends the positions of the operands: `x, %y, f32[2]{0} %z`. `before` are the instructions above.
pub(super) fn operands(
    cursor: Cursor<'_>,
    raw: &RawInstruction<'_>,
    names: &Names<'_>,
    before: &[RawInstruction<'_>],
    operands: &mut Vec<usize>,
) -> Read<()> {
    if matches!(raw.opcode, "parameter" | "constant") {
        return Ok(());
    }
    let mut value = cursor.over(raw.operands);
    while !value.at_end() {
        skip_operand_shape(&mut value)?;
        value.spend(PER_OPERAND)?;
        operands.push(names.instruction(&mut value, before)?);
        if !value.eat(",") {
            finished(&mut value)?;
        }
    }
    Ok(())
}

/// Passes the shape that the long dialect puts before an operand.
fn skip_operand_shape(value: &mut Cursor<'_>) -> Read<()> {
    let before = *value;
    let is_shape = match value.peek() {
        Some(b'(') => true,
        Some(b'%') => false,
        _ => {
            value.word_or_empty();
            value.text[value.pos..value.end].starts_with('[')
        }
    };
    *value = before;
    if is_shape { value.pass_shape() } else { Ok(()) }
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

/// Attributes in which opcodes that the IR does not model name computations.
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
        let nearest = nearest(opcode, opcodes::OPCODES.into_iter());
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

pub(super) fn small_int(value: &mut Cursor<'_>) -> Read<i32> {
    let start = value.pos;
    i32::try_from(value.int()?).map_err(|_| {
        value.pos = start;
        value.expected("a 32-bit integer")
    })
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
        api_version: api_version.unwrap_or(super::attributes::API_VERSION_ORIGINAL),
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

pub(in crate::hlo) fn replica_groups(value: &mut Cursor<'_>) -> Read<ReplicaGroups> {
    if value.peek() == Some(b'[') {
        let dims = value.ints("[", "]")?;
        let (reshape_dims, transpose_perm) = iota(value)?;
        return Ok(ReplicaGroups::Iota { dims, reshape_dims, transpose_perm });
    }
    let mut groups = Vec::new();
    value.sequence("{", "}", |value| {
        groups.push(value.ints("{", "}")?);
        Ok(())
    })?;
    Ok(ReplicaGroups::List(groups))
}

/// `<=[2,2]T(1,0)`.
pub(in crate::hlo) fn iota(value: &mut Cursor<'_>) -> Read<(Vec<i64>, Vec<i64>)> {
    value.expect("<=")?;
    let reshape_dims = value.ints("[", "]")?;
    let transpose_perm = if value.eat("T") { value.ints("(", ")")? } else { Vec::new() };
    Ok((reshape_dims, transpose_perm))
}

/// `{[0:4], [1:9:2]}`.
fn slice(value: &mut Cursor<'_>) -> Read<Vec<SliceDim>> {
    let mut dims = Vec::new();
    value.sequence("{", "}", |value| {
        value.expect("[")?;
        let start = value.int()?;
        value.expect(":")?;
        let limit = value.int()?;
        let stride = if value.eat(":") { value.int()? } else { 1 };
        value.expect("]")?;
        value.spend(2 * size_of::<SliceDim>())?;
        dims.push(SliceDim { start, limit, stride });
        Ok(())
    })?;
    Ok(dims)
}

/// `n` groups of integers: `0_1x2_3` is `[[0, 1], [2, 3]]`.
fn groups(value: &mut Cursor<'_>) -> Read<Vec<Vec<i64>>> {
    value.skip_blank();
    let start = value.pos;
    let word = value.word("integers like `0_1x2_3`")?;
    // What is made of them, the largest being dimensions of a window, stands beside them for a while.
    let n_groups = word.bytes().filter(|&byte| byte == b'x').count() + 1;
    value.spend(n_groups * (2 * size_of::<Vec<i64>>() + 2 * size_of::<WindowDim>()) + word.len() * size_of::<i64>())?;
    let group = |text: &str| text.split('_').map(|number| number.parse().ok()).collect::<Option<Vec<i64>>>();
    word.split('x').map(group).collect::<Option<Vec<_>>>().ok_or_else(|| {
        value.pos = start;
        value.expected("integers like `0_1x2_3`")
    })
}

/// `1_2x0_0_3`: low, high and perhaps interior padding of each dimension.
fn padding(value: &mut Cursor<'_>) -> Read<Vec<PadDim>> {
    let start = *value;
    if value.at_end() {
        return Ok(Vec::new());
    }
    let dim = |group: Vec<i64>| match group[..] {
        [low, high] => Some(PadDim { low, high, interior: 0 }),
        [low, high, interior] => Some(PadDim { low, high, interior }),
        _ => None,
    };
    let dims = groups(value)?.into_iter().map(dim).collect::<Option<Vec<_>>>();
    dims.ok_or_else(|| {
        *value = start;
        value.expected("padding like `1_2x0_0_3`")
    })
}

/// `{size=3x3 stride=2x2 pad=0_1x0_1}`.
fn window(value: &mut Cursor<'_>) -> Read<Window> {
    value.expect("{")?;
    let mut window: Window = Vec::new();
    while !value.eat("}") {
        value.skip_blank();
        let start = value.pos;
        let field = value.word("a window attribute or `}`")?;
        value.expect("=")?;
        let values_at = *value;
        let fields = groups(value)?;
        if field == "size" && window.is_empty() {
            window = fields.iter().map(|group| WindowDim::of_size(group[0])).collect();
        }
        if window.len() != fields.len() {
            *value = values_at;
            return Err(value.expected(format!("{} values, as many as `size` before it has", window.len())));
        }
        for (dim, group) in window.iter_mut().zip(fields) {
            match (field, &group[..]) {
                ("size", &[size]) => dim.size = size,
                ("stride", &[stride]) => dim.stride = stride,
                ("pad", &[low, high]) => (dim.padding_low, dim.padding_high) = (low, high),
                ("lhs_dilate", &[dilation]) => dim.base_dilation = dilation,
                ("rhs_dilate", &[dilation]) => dim.window_dilation = dilation,
                ("rhs_reversal", &[reversal]) => dim.reversal = reversal != 0,
                ("size" | "stride" | "pad" | "lhs_dilate" | "rhs_dilate" | "rhs_reversal", _) => {
                    *value = values_at;
                    return Err(value.expected("two integers per dimension in `pad`, one in all others"));
                }
                _ => {
                    value.pos = start;
                    return Err(value.expected("size, stride, pad, lhs_dilate, rhs_dilate or rhs_reversal"));
                }
            }
        }
    }
    Ok(window)
}

/// `b01f_01io->b01f`.
fn dim_labels(value: &mut Cursor<'_>) -> Read<ConvolutionDims> {
    value.skip_blank();
    let start = *value;
    let bad = || {
        let mut at = start;
        at.expected("dimension labels like `b01f_01io->b01f`")
    };
    let inputs = value.word_or_empty();
    value.expect("->")?;
    let output = value.word_or_empty();
    let (input, kernel) = inputs.split_once('_').ok_or_else(bad)?;
    let roles = |labels: &str, roles: [char; 2]| -> Option<(i64, i64, Vec<i64>)> {
        let place = |label: char| labels.chars().position(|c| c == label).map(|at| at as i64);
        let spatial = (0..labels.len().checked_sub(2)?)
            .map(|i| place(char::from_digit(i as u32, 10)?))
            .collect::<Option<Vec<_>>>()?;
        Some((place(roles[0])?, place(roles[1])?, spatial))
    };
    let (input_batch, input_feature, input_spatial) = roles(input, ['b', 'f']).ok_or_else(bad)?;
    let (kernel_input_feature, kernel_output_feature, kernel_spatial) = roles(kernel, ['i', 'o']).ok_or_else(bad)?;
    let (output_batch, output_feature, output_spatial) = roles(output, ['b', 'f']).ok_or_else(bad)?;
    Ok(ConvolutionDims {
        input_batch,
        input_feature,
        input_spatial,
        kernel_input_feature,
        kernel_output_feature,
        kernel_spatial,
        output_batch,
        output_feature,
        output_spatial,
    })
}
