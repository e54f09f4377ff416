//! The StableHLO name and attributes of each op: one arm for each op of the IR.

use super::calls::{self, custom_call};
use super::collectives::all_reduced;
use super::types::{self, Missing, ints, missing, plain};
use bf16scope_hlo::ops::{
    BatchNorm, BinaryOp, CompareKind, Convolution, ConvolutionDims, DotDims, GatherDims, PadDim, PrecisionConfig,
    RngAlgorithm, ScatterDims, SliceDim, UnaryOp, WindowDim,
};
use bf16scope_hlo::{Instruction, Op, Shape};

/// An operation's name, and its attributes, each `name = value`.
pub(super) struct Mnemonic {
    pub(super) name: String,
    pub(super) attributes: Vec<String>,
}

/// The StableHLO op of an instruction. `lhs` is the shape of its first operand.
pub(super) fn mnemonic(instr: &Instruction, lhs: Option<&Shape>) -> Result<Mnemonic, Missing> {
    let (name, attributes): (&str, Vec<String>) = match &instr.op {
        Op::Constant(literal) => {
            let value = types::of_literal(literal).ok_or_else(|| missing("constant that is not an array"))?;
            ("constant", vec![format!("value = {value}")])
        }
        Op::Iota { dimension } => ("iota", vec![format!("iota_dimension = {dimension} : i64")]),
        Op::RngBitGenerator(algorithm) => {
            let name = match algorithm {
                RngAlgorithm::Default => "DEFAULT",
                RngAlgorithm::ThreeFry => "THREE_FRY",
                RngAlgorithm::Philox => "PHILOX",
            };
            ("rng_bit_generator", vec![format!("rng_algorithm = #stablehlo<rng_algorithm {name}>")])
        }
        Op::Unary(op) => return unary(*op),
        Op::Binary(op) => return Ok(Mnemonic { name: binary(*op), attributes: Vec::new() }),
        Op::Compare { direction, kind } => {
            let default = lhs.and_then(Shape::dtype).map(CompareKind::default_of);
            let mut said =
                vec![format!("comparison_direction = #stablehlo<comparison_direction {}>", direction.name())];
            said.extend(kind.or(default).map(|k| format!("compare_type = #stablehlo<comparison_type {}>", k.name())));
            ("compare", said)
        }
        Op::Select => ("select", vec![]),
        Op::Clamp => ("clamp", vec![]),
        Op::Convert => ("convert", vec![]),
        Op::BitcastConvert => ("bitcast_convert", vec![]),
        Op::ReducePrecision { exponent_bits, mantissa_bits } => (
            "reduce_precision",
            vec![format!("exponent_bits = {exponent_bits} : i32"), format!("mantissa_bits = {mantissa_bits} : i32")],
        ),
        Op::Broadcast { dimensions } => ("broadcast_in_dim", vec![ints("broadcast_dimensions", dimensions)]),
        Op::Reshape => ("reshape", vec![]),
        Op::Transpose { permutation } => ("transpose", vec![ints("permutation", permutation)]),
        Op::Slice(dims) => ("slice", slice(dims)),
        Op::Pad(dims) => ("pad", pad(dims)),
        Op::Concatenate { dimension } => ("concatenate", vec![format!("dimension = {dimension} : i64")]),
        Op::Reverse { dimensions } => ("reverse", vec![ints("dimensions", dimensions)]),
        Op::DynamicSlice { slice_sizes } => ("dynamic_slice", vec![ints("slice_sizes", slice_sizes)]),
        Op::DynamicUpdateSlice => ("dynamic_update_slice", vec![]),
        Op::Gather(dims) => ("gather", gather(dims)),
        Op::Scatter { dims, .. } => ("scatter", scatter(dims)),
        Op::Dot { dims, precision: config } => {
            let mut said = vec![dot(dims)];
            said.extend(precision(config));
            said.extend(config.algorithm.as_deref().map(algorithm).transpose()?);
            ("dot_general", said)
        }
        Op::Convolution(convolution) => ("convolution", conv(convolution)),
        Op::Reduce { dimensions, .. } => ("reduce", vec![ints("dimensions", dimensions)]),
        Op::ReduceWindow { window, .. } => ("reduce_window", reduce_window(window)),
        Op::SelectAndScatter { window, .. } => ("select_and_scatter", select_and_scatter(window)),
        Op::BatchNormTraining(norm) => ("batch_norm_training", batch_norm(norm)),
        Op::BatchNormInference(norm) => ("batch_norm_inference", batch_norm(norm)),
        Op::BatchNormGrad(norm) => ("batch_norm_grad", batch_norm(norm)),
        Op::Sort { dimension, is_stable, .. } => {
            ("sort", vec![format!("dimension = {dimension} : i64"), format!("is_stable = {is_stable}")])
        }
        Op::Call { .. } => return Ok(Mnemonic { name: "func.call".to_string(), attributes: Vec::new() }),
        Op::While { .. } => ("while", vec![]),
        // By one of two values, or by a number.
        Op::Conditional(_) if lhs.and_then(Shape::dtype) == Some(bf16scope_hlo::DType::Pred) => ("if", vec![]),
        Op::Conditional(_) => ("case", vec![]),
        Op::CustomCall(call) => ("custom_call", custom_call(call, instr)?),
        Op::AllReduce(all_reduce) => ("all_reduce", all_reduced(all_reduce)?),
        Op::OptimizationBarrier => ("optimization_barrier", vec![]),
        Op::Opaque(opaque) => {
            let (name, attributes) = calls::opaque(opaque, instr, lhs)?;
            return Ok(Mnemonic { name: name.to_string(), attributes });
        }
        Op::Parameter { .. } | Op::Tuple | Op::GetTupleElement { .. } => {
            return Err(missing(&format!("`{}`", instr.op.opcode())));
        }
    };
    Ok(Mnemonic { name: format!("stablehlo.{name}"), attributes })
}

/// StableHLO's own, or one of CHLO's, which XLA and JAX read beside it.
fn unary(op: UnaryOp) -> Result<Mnemonic, Missing> {
    let name = match op {
        UnaryOp::Acos | UnaryOp::Acosh | UnaryOp::Asin | UnaryOp::Asinh | UnaryOp::Atanh => {
            format!("chlo.{}", op.name())
        }
        UnaryOp::Cosh | UnaryOp::Erf | UnaryOp::Sinh => format!("chlo.{}", op.name()),
        // A copy is its operand: a barrier of one value says so, and nothing else.
        UnaryOp::Copy => "stablehlo.optimization_barrier".to_string(),
        UnaryOp::Clz => "stablehlo.count_leading_zeros".to_string(),
        op => format!("stablehlo.{}", op.name().replace('-', "_")),
    };
    Ok(Mnemonic { name, attributes: Vec::new() })
}

fn binary(op: BinaryOp) -> String {
    format!("stablehlo.{}", op.name().replace('-', "_"))
}

fn slice(dims: &[SliceDim]) -> Vec<String> {
    let of = |name: &str, get: fn(&SliceDim) -> i64| ints(name, &dims.iter().map(get).collect::<Vec<i64>>());
    vec![of("start_indices", |d| d.start), of("limit_indices", |d| d.limit), of("strides", |d| d.stride)]
}

fn pad(dims: &[PadDim]) -> Vec<String> {
    let of = |name: &str, get: fn(&PadDim) -> i64| ints(name, &dims.iter().map(get).collect::<Vec<i64>>());
    vec![of("edge_padding_low", |d| d.low), of("edge_padding_high", |d| d.high), of("interior_padding", |d| d.interior)]
}

/// Lists of dimensions in a dialect attribute, those that are empty left out.
fn fields(lists: &[(&str, &[i64])], vector: i64) -> String {
    let said =
        lists.iter().filter(|(_, list)| !list.is_empty()).map(|(name, list)| format!("{name} = [{}]", plain(list)));
    said.chain([format!("index_vector_dim = {vector}")]).collect::<Vec<_>>().join(", ")
}

fn gather(dims: &GatherDims) -> Vec<String> {
    let numbers = fields(
        &[
            ("offset_dims", &dims.offset_dims),
            ("collapsed_slice_dims", &dims.collapsed_slice_dims),
            ("operand_batching_dims", &dims.operand_batching_dims),
            ("start_indices_batching_dims", &dims.start_indices_batching_dims),
            ("start_index_map", &dims.start_index_map),
        ],
        dims.index_vector_dim,
    );
    vec![
        format!("dimension_numbers = #stablehlo.gather<{numbers}>"),
        ints("slice_sizes", &dims.slice_sizes),
        format!("indices_are_sorted = {}", dims.indices_are_sorted),
    ]
}

fn scatter(dims: &ScatterDims) -> Vec<String> {
    let numbers = fields(
        &[
            ("update_window_dims", &dims.update_window_dims),
            ("inserted_window_dims", &dims.inserted_window_dims),
            ("input_batching_dims", &dims.input_batching_dims),
            ("scatter_indices_batching_dims", &dims.scatter_indices_batching_dims),
            ("scatter_dims_to_operand_dims", &dims.scatter_dims_to_operand_dims),
        ],
        dims.index_vector_dim,
    );
    vec![
        format!("scatter_dimension_numbers = #stablehlo.scatter<{numbers}>"),
        format!("indices_are_sorted = {}", dims.indices_are_sorted),
        format!("unique_indices = {}", dims.unique_indices),
    ]
}

fn dot(dims: &DotDims) -> String {
    format!(
        "dot_dimension_numbers = #stablehlo.dot<lhs_batching_dimensions = [{}], rhs_batching_dimensions = [{}], \
         lhs_contracting_dimensions = [{}], rhs_contracting_dimensions = [{}]>",
        plain(&dims.lhs_batch),
        plain(&dims.rhs_batch),
        plain(&dims.lhs_contracting),
        plain(&dims.rhs_contracting)
    )
}

/// `dot_bf16_bf16_f32_x3` in StableHLO's words: types of both sides and of the sum, and how many products make one.
///
/// # Source
/// `ConvertDotAlgorithm` of XLA's `attribute_importer.cc`.
fn algorithm(name: &str) -> Result<String, Missing> {
    let unknown = || missing(&format!("algorithm `{name}` that bf16scope can write"));
    let parts: Vec<&str> = name.split('_').skip(1).collect();
    let (&[lhs, rhs, sum], n) = match &parts[..] {
        [lhs, rhs, sum] => (&[*lhs, *rhs, *sum], "1"),
        [lhs, rhs, sum, times] => (&[*lhs, *rhs, *sum], times.strip_prefix('x').ok_or_else(unknown)?),
        // Any f8 is no type of StableHLO.
        _ => return Err(unknown()),
    };
    Ok(format!(
        "algorithm = #stablehlo.dot_algorithm<lhs_precision_type = {lhs}, rhs_precision_type = {rhs}, accumulation_type = \
         {sum}, lhs_component_count = 1, rhs_component_count = 1, num_primitive_operations = {n}, \
         allow_imprecise_accumulation = false>"
    ))
}

fn precision(config: &PrecisionConfig) -> Option<String> {
    let one = |p: &bf16scope_hlo::ops::OperandPrecision| format!("#stablehlo<precision {}>", p.name().to_uppercase());
    let all = config.operand_precision.iter().map(one).collect::<Vec<_>>().join(", ");
    (!config.operand_precision.is_empty()).then(|| format!("precision_config = [{all}]"))
}

fn conv(convolution: &Convolution) -> Vec<String> {
    let Convolution { window, dims, feature_group_count, batch_group_count, precision: config } = convolution;
    let flags = window.iter().map(|dim| dim.reversal.to_string()).collect::<Vec<_>>().join(", ");
    let reversal = if window.is_empty() { "array<i1>".to_string() } else { format!("array<i1: {flags}>") };
    let mut said = vec![
        format!("dimension_numbers = {}", conv_dims(dims)),
        of_window("window_strides", window, |dim| dim.stride),
        padding(window),
        of_window("lhs_dilation", window, |dim| dim.base_dilation),
        of_window("rhs_dilation", window, |dim| dim.window_dilation),
        format!("window_reversal = {reversal}"),
        format!("feature_group_count = {feature_group_count} : i64"),
        format!("batch_group_count = {batch_group_count} : i64"),
    ];
    said.extend(precision(config));
    said
}

/// `#stablehlo.conv<[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]>`.
fn conv_dims(dims: &ConvolutionDims) -> String {
    let labelled = |spatial: &[i64], named: [(i64, &str); 2]| {
        let mut labels = vec![String::new(); spatial.len() + 2];
        let spatial = spatial.iter().enumerate().map(|(idx, &at)| (at, idx.to_string()));
        for (at, label) in spatial.chain(named.map(|(at, label)| (at, label.to_string()))) {
            if let Some(place) = usize::try_from(at).ok().and_then(|at| labels.get_mut(at)) {
                *place = label;
            }
        }
        format!("[{}]", labels.join(", "))
    };
    format!(
        "#stablehlo.conv<{}x{}->{}>",
        labelled(&dims.input_spatial, [(dims.input_batch, "b"), (dims.input_feature, "f")]),
        labelled(&dims.kernel_spatial, [(dims.kernel_input_feature, "i"), (dims.kernel_output_feature, "o")]),
        labelled(&dims.output_spatial, [(dims.output_batch, "b"), (dims.output_feature, "f")])
    )
}

fn of_window(name: &str, window: &[WindowDim], get: fn(&WindowDim) -> i64) -> String {
    ints(name, &window.iter().map(get).collect::<Vec<i64>>())
}

fn padding(window: &[WindowDim]) -> String {
    let pairs = window.iter().map(|dim| format!("[{}, {}]", dim.padding_low, dim.padding_high));
    let pairs = pairs.collect::<Vec<_>>().join(", ");
    let dense = if window.is_empty() { "dense<>".to_string() } else { format!("dense<[{pairs}]>") };
    format!("padding = {dense} : tensor<{}x2xi64>", window.len())
}

// In a verified module, a reversed window is a convolution's, and that of a `select-and-scatter` has no dilation.
fn reduce_window(window: &[WindowDim]) -> Vec<String> {
    vec![
        of_window("window_dimensions", window, |dim| dim.size),
        of_window("window_strides", window, |dim| dim.stride),
        of_window("base_dilations", window, |dim| dim.base_dilation),
        of_window("window_dilations", window, |dim| dim.window_dilation),
        padding(window),
    ]
}

fn select_and_scatter(window: &[WindowDim]) -> Vec<String> {
    vec![
        of_window("window_dimensions", window, |dim| dim.size),
        of_window("window_strides", window, |dim| dim.stride),
        padding(window),
    ]
}

fn batch_norm(norm: &BatchNorm) -> Vec<String> {
    let BatchNorm { epsilon, feature_index } = norm;
    vec![format!("epsilon = 0x{:08X} : f32", epsilon.to_bits()), format!("feature_index = {feature_index} : i64")]
}
