//! The programs whose gradients are checked: at least one for every rule, with strides, padding, dilation, groups,
//! broadcasting and ties.
//!
//! A case is a function of f64 arrays. `tests/networks/grad.rs` checks that its gradient is a valid module, and
//! `tests/networks/grad_finite_difference.rs` that it is the right one. Inputs come from a fixed generator, kept away from kinks
//! and from each other by more than the step of the differences; ties are cases of their own with known answers.

#![allow(dead_code)] // Each test binary uses its own part.

use bf16scope::hlo::ops::{
    AllReduce, BatchNorm, BinaryOp, Comparison, Conditional, Convolution, ConvolutionDims, DotDims, GatherDims, PadDim,
    PrecisionConfig, ReplicaGroups, ScatterDims, SliceDim, UnaryOp, Window, WindowDim,
};
use bf16scope::hlo::{CompId, DType, Emitter, InstrId, Literal, Metadata, Module, Op, Shape};
use bf16scope::passes::PassError;
use bf16scope::passes::grad::gradients;

type Build = Box<dyn Fn(&Emitter, &[InstrId]) -> Vec<InstrId>>;

/// A function of arrays to differentiate.
pub struct Case {
    pub name: &'static str,
    /// Dims of each argument.
    pub dims: Vec<Vec<i64>>,
    /// Values of each argument.
    pub values: Vec<Vec<f64>>,
    build: Build,
}

impl Case {
    /// The module arguments → (loss, gradient by each argument). The loss is the results of the case, each weighed with
    /// fixed random numbers and summed.
    pub fn gradient_module(&self) -> Result<Module, PassError> {
        let (e, arguments, loss) = self.emit();
        let gradients = gradients(&e, loss, &arguments)?;
        e.tuple(&[&[loss], gradients.as_slice()].concat());
        e.finish().map_err(PassError::from)
    }

    fn emit(&self) -> (Emitter, Vec<InstrId>, InstrId) {
        let module = Module::new(self.name);
        let entry = module.entry;
        let e = Emitter::new(module, entry);
        let arguments: Vec<InstrId> = (0..)
            .zip(&self.dims)
            .map(|(number, dims)| e.parameter(number, &Shape::array(DType::F64, dims.clone())))
            .collect();
        let results = (self.build)(&e, &arguments);
        let mut random = Random(17);
        let mut loss = e.scalar(DType::F64, 0.0);
        for result in results {
            let dims = e.dims(result);
            let n_elements: i64 = dims.iter().product();
            let weights: Vec<f64> = (0..n_elements).map(|_| random.between(0.5, 1.5)).collect();
            let weighed = e.mul(result, e.constant(Literal::from_elements(dims.clone(), &weights)));
            let all: Vec<i64> = (0..dims.len() as i64).collect();
            loss = e.add(loss, e.reduce_sum(weighed, &all));
        }
        (e, arguments, loss)
    }
}

/// Numbers from a linear congruence: the same on every machine.
struct Random(u64);

impl Random {
    fn between(&mut self, low: f64, high: f64) -> f64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        low + (high - low) * ((self.0 >> 11) as f64 / (1u64 << 53) as f64)
    }
}

/// A case with arguments drawn between `low` and `high`.
fn case(
    name: &'static str,
    dims: &[&[i64]],
    (low, high): (f64, f64),
    build: impl Fn(&Emitter, &[InstrId]) -> InstrId + 'static,
) -> Case {
    let mut random = Random(name.bytes().map(u64::from).sum());
    let values = dims.iter().map(|dims| (0..dims.iter().product()).map(|_: i64| random.between(low, high)).collect());
    Case {
        name,
        dims: dims.iter().map(|dims| dims.to_vec()).collect(),
        values: values.collect(),
        build: Box::new(move |e, args| vec![build(e, args)]),
    }
}

/// The same with given values.
fn case_at(
    name: &'static str,
    arguments: &[(&[i64], &[f64])],
    build: impl Fn(&Emitter, &[InstrId]) -> InstrId + 'static,
) -> Case {
    Case {
        name,
        dims: arguments.iter().map(|(dims, _)| dims.to_vec()).collect(),
        values: arguments.iter().map(|(_, values)| values.to_vec()).collect(),
        build: Box::new(move |e, args| vec![build(e, args)]),
    }
}

/// Every case.
pub fn all() -> Vec<Case> {
    [elementwise(), movement(), indexing(), products(), reductions(), windows(), normalisation(), control()]
        .into_iter()
        .flatten()
        .collect()
}

fn elementwise() -> Vec<Case> {
    let unary = |name, range, op: UnaryOp| case(name, &[&[7]], range, move |e, args| e.unary(op, args[0]));
    let binary = |name, range, op: BinaryOp| {
        case(name, &[&[2, 4], &[2, 4]], range, move |e, args| e.binary(op, args[0], args[1]))
    };
    let mut cases = vec![
        unary("abs", (-2.0, 2.0), UnaryOp::Abs),
        unary("acos", (-0.8, 0.8), UnaryOp::Acos),
        unary("asin", (-0.8, 0.8), UnaryOp::Asin),
        unary("cbrt", (0.5, 2.0), UnaryOp::Cbrt),
        unary("copy", (-2.0, 2.0), UnaryOp::Copy),
        unary("cosine", (-2.0, 2.0), UnaryOp::Cos),
        unary("cosh", (-2.0, 2.0), UnaryOp::Cosh),
        unary("erf", (-2.0, 2.0), UnaryOp::Erf),
        unary("exponential", (-2.0, 2.0), UnaryOp::Exp),
        unary("exponential-minus-one", (-2.0, 2.0), UnaryOp::Expm1),
        unary("log", (0.5, 2.0), UnaryOp::Log),
        unary("log-plus-one", (-0.5, 2.0), UnaryOp::Log1p),
        unary("logistic", (-2.0, 2.0), UnaryOp::Logistic),
        unary("negate", (-2.0, 2.0), UnaryOp::Negate),
        unary("rsqrt", (0.5, 2.0), UnaryOp::Rsqrt),
        unary("sine", (-2.0, 2.0), UnaryOp::Sin),
        unary("sinh", (-2.0, 2.0), UnaryOp::Sinh),
        unary("sqrt", (0.5, 2.0), UnaryOp::Sqrt),
        unary("tan", (-1.0, 1.0), UnaryOp::Tan),
        unary("tanh", (-2.0, 2.0), UnaryOp::Tanh),
        // Constant between jumps: the differences are 0 as well.
        unary("ceil", (0.1, 0.9), UnaryOp::Ceil),
        unary("floor", (0.1, 0.9), UnaryOp::Floor),
        unary("round-nearest-afz", (0.6, 1.4), UnaryOp::RoundNearestAfz),
        unary("round-nearest-even", (0.6, 1.4), UnaryOp::RoundNearestEven),
        unary("sign", (0.1, 0.9), UnaryOp::Sign),
        binary("add", (-2.0, 2.0), BinaryOp::Add),
        binary("subtract", (-2.0, 2.0), BinaryOp::Subtract),
        binary("multiply", (-2.0, 2.0), BinaryOp::Multiply),
        binary("divide", (0.5, 2.0), BinaryOp::Divide),
        binary("maximum", (-2.0, 2.0), BinaryOp::Maximum),
        binary("minimum", (-2.0, 2.0), BinaryOp::Minimum),
        binary("power", (0.5, 2.0), BinaryOp::Power),
        binary("atan2", (0.5, 2.0), BinaryOp::Atan2),
        case("multiply_by_itself", &[&[5]], (-2.0, 2.0), |e, args| e.mul(args[0], args[0])),
    ];
    cases.extend([
        case_at(
            "atan2_all_quadrants",
            &[(&[4], &[1.0, 1.5, -1.0, -0.7]), (&[4], &[1.0, -1.0, -1.5, 0.7])],
            |e, args| e.binary(BinaryOp::Atan2, args[0], args[1]),
        ),
        case_at("remainder", &[(&[4], &[7.3, -7.3, 7.3, -2.2]), (&[4], &[2.0, 2.0, -2.0, 3.0])], |e, args| {
            e.binary(BinaryOp::Remainder, args[0], args[1])
        }),
        case_at("power_of_negative_base", &[(&[3], &[-1.5, -0.5, 2.0])], |e, args| {
            let exponent = e.full(DType::F64, &[3], 3.0);
            e.binary(BinaryOp::Power, args[0], exponent)
        }),
        case("select", &[&[6], &[6]], (-2.0, 2.0), |e, args| {
            let pred = e.constant(Literal::from_elements([6], &[true, false, true, true, false, false]));
            e.select(pred, args[0], args[1])
        }),
        case("select_scalar_pred", &[&[6], &[6]], (-2.0, 2.0), |e, args| {
            e.select(e.constant(Literal::scalar(false)), args[0], args[1])
        }),
        case_at(
            "clamp_arrays",
            &[
                (&[5], &[0.0, 1.0, -1.0, 0.2, 3.0]),
                (&[5], &[0.5, 0.5, 0.5, 0.1, 0.0]),
                (&[5], &[1.0, 2.0, 0.0, 1.0, 2.0]),
            ],
            |e, args| e.emit(Op::Clamp, args, None),
        ),
        case_at(
            "clamp_scalars",
            &[(&[], &[-0.5]), (&[2, 3], &[-2.0, -0.3, 0.0, 0.4, 0.9, 2.0]), (&[], &[0.8])],
            |e, args| e.emit(Op::Clamp, args, None),
        ),
        case("reduce_precision_to_itself", &[&[4]], (-2.0, 2.0), |e, args| {
            // All bits kept: differences cannot see a coarser rounding, whose slope is 0 or infinite.
            e.emit(Op::ReducePrecision { exponent_bits: 11, mantissa_bits: 52 }, args, None)
        }),
        case("bitcast_convert_to_itself", &[&[4]], (-2.0, 2.0), |e, args| {
            e.emit(Op::BitcastConvert, args, Some(&Shape::array(DType::F64, [4])))
        }),
        case("through_integers", &[&[4]], (0.1, 0.9), |e, args| {
            let rounded = e.convert(e.convert(args[0], DType::S32), DType::F64);
            e.mul(e.add_scalar(rounded, 2.0), args[0])
        }),
    ]);
    cases
}

fn movement() -> Vec<Case> {
    let slice = |start, limit, stride| SliceDim { start, limit, stride };
    let pad = |low, high, interior| PadDim { low, high, interior };
    vec![
        case("broadcast_scalar", &[&[]], (-2.0, 2.0), |e, args| e.broadcast(args[0], &[], &[2, 3])),
        case("broadcast_inner_and_outer", &[&[2, 3]], (-2.0, 2.0), |e, args| {
            e.broadcast(args[0], &[1, 2], &[4, 2, 3, 2])
        }),
        case("reshape", &[&[2, 6]], (-2.0, 2.0), |e, args| e.reshape(args[0], &[3, 4])),
        case("transpose", &[&[2, 3, 4]], (-2.0, 2.0), |e, args| e.transpose(args[0], &[2, 0, 1])),
        case("slice", &[&[5, 4]], (-2.0, 2.0), move |e, args| e.slice(args[0], &[slice(1, 4, 1), slice(0, 3, 1)])),
        case("slice_strided", &[&[9, 7]], (-2.0, 2.0), move |e, args| {
            e.slice(args[0], &[slice(1, 9, 3), slice(2, 6, 2)])
        }),
        case("slice_of_nothing", &[&[3]], (-2.0, 2.0), move |e, args| e.slice(args[0], &[slice(1, 1, 2)])),
        case("pad", &[&[2, 3], &[]], (-2.0, 2.0), move |e, args| {
            e.pad(args[0], args[1], &[pad(1, 2, 0), pad(0, 1, 0)])
        }),
        case("pad_interior", &[&[3, 2], &[]], (-2.0, 2.0), move |e, args| {
            e.pad(args[0], args[1], &[pad(1, 0, 2), pad(0, 2, 1)])
        }),
        case("pad_negative", &[&[5, 4], &[]], (-2.0, 2.0), move |e, args| {
            e.pad(args[0], args[1], &[pad(-1, 2, 0), pad(1, -2, 0)])
        }),
        case("pad_negative_interior", &[&[4, 3], &[]], (-2.0, 2.0), move |e, args| {
            e.pad(args[0], args[1], &[pad(-2, -1, 1), pad(-1, 1, 2)])
        }),
        case("concatenate", &[&[2, 1], &[2, 3], &[2, 2]], (-2.0, 2.0), |e, args| e.concatenate(args, 1)),
        case("reverse", &[&[2, 3, 2]], (-2.0, 2.0), |e, args| e.reverse(args[0], &[0, 2])),
    ]
}

fn indexing() -> Vec<Case> {
    let index = |e: &Emitter, value: i32| e.constant(Literal::scalar(value));
    let indices = |e: &Emitter, dims: &[i64], values: &[i32]| e.constant(Literal::from_elements(dims, values));
    let rows = GatherDims {
        offset_dims: vec![1],
        collapsed_slice_dims: vec![0],
        start_index_map: vec![0],
        index_vector_dim: 1,
        slice_sizes: vec![1, 3],
        ..GatherDims::default()
    };
    let boxes = GatherDims {
        offset_dims: vec![0, 2],
        start_index_map: vec![1, 0],
        index_vector_dim: 0,
        slice_sizes: vec![2, 2],
        ..GatherDims::default()
    };
    let batched = GatherDims {
        offset_dims: vec![2],
        start_index_map: vec![1],
        operand_batching_dims: vec![0],
        start_indices_batching_dims: vec![0],
        index_vector_dim: 2,
        slice_sizes: vec![1, 2],
        ..GatherDims::default()
    };
    let into_rows = ScatterDims {
        update_window_dims: vec![1],
        inserted_window_dims: vec![0],
        scatter_dims_to_operand_dims: vec![0],
        index_vector_dim: 1,
        ..ScatterDims::default()
    };
    let into_boxes = ScatterDims {
        update_window_dims: vec![1, 2],
        scatter_dims_to_operand_dims: vec![1, 0],
        index_vector_dim: 1,
        ..ScatterDims::default()
    };
    let into_batched = ScatterDims {
        update_window_dims: vec![2],
        input_batching_dims: vec![0],
        scatter_indices_batching_dims: vec![0],
        scatter_dims_to_operand_dims: vec![1],
        index_vector_dim: 2,
        ..ScatterDims::default()
    };
    let unique = ScatterDims { unique_indices: true, ..into_rows.clone() };
    vec![
        case("dynamic_slice", &[&[4, 5]], (-2.0, 2.0), move |e, args| {
            // The second index sticks out: the box moves to 3.
            let operands = [args[0], index(e, 1), index(e, 4)];
            e.emit(Op::DynamicSlice { slice_sizes: vec![2, 2] }, &operands, None)
        }),
        case("dynamic_update_slice", &[&[4, 5], &[2, 2]], (-2.0, 2.0), move |e, args| {
            e.emit(Op::DynamicUpdateSlice, &[args[0], args[1], index(e, -3), index(e, 4)], None)
        }),
        case("gather_rows", &[&[4, 3]], (-2.0, 2.0), move |e, args| {
            // A repeated row, one before the first and one past the last.
            let indices = indices(e, &[5, 1], &[2, 0, 2, -1, 9]);
            e.emit(Op::Gather(rows.clone()), &[args[0], indices], None)
        }),
        case("gather_boxes", &[&[4, 5]], (-2.0, 2.0), move |e, args| {
            let indices = indices(e, &[2, 3], &[0, 1, 4, 0, 1, 3]);
            e.emit(Op::Gather(boxes.clone()), &[args[0], indices], None)
        }),
        case("gather_scalar_indices", &[&[6]], (-2.0, 2.0), move |e, args| {
            let dims = GatherDims {
                collapsed_slice_dims: vec![0],
                start_index_map: vec![0],
                index_vector_dim: 1,
                slice_sizes: vec![1],
                ..GatherDims::default()
            };
            e.emit(Op::Gather(dims), &[args[0], indices(e, &[4], &[3, 3, 0, 7])], None)
        }),
        case("gather_batched", &[&[2, 5]], (-2.0, 2.0), move |e, args| {
            let dims = GatherDims { collapsed_slice_dims: vec![], ..batched.clone() };
            let indices = indices(e, &[2, 3, 1], &[0, 1, 3, 3, 4, 0]);
            e.emit(Op::Gather(dims), &[args[0], indices], None)
        }),
        case("scatter_add_rows", &[&[4, 3], &[4, 3]], (-2.0, 2.0), {
            let dims = into_rows.clone();
            move |e, args| {
                // Two updates meet, two are dropped.
                let indices = indices(e, &[4, 1], &[1, 1, -1, 4]);
                let to_apply = e.scalar_computation(BinaryOp::Add, DType::F64);
                e.emit(Op::Scatter { dims: dims.clone(), to_apply }, &[args[0], indices, args[1]], None)
            }
        }),
        case("scatter_add_boxes", &[&[4, 5], &[3, 2, 2]], (-2.0, 2.0), move |e, args| {
            // Index vectors are (column, row); the second box sticks out and is dropped.
            let indices = indices(e, &[3, 2], &[0, 0, 4, 1, 3, 2]);
            let to_apply = e.scalar_computation(BinaryOp::Add, DType::F64);
            e.emit(Op::Scatter { dims: into_boxes.clone(), to_apply }, &[args[0], indices, args[1]], None)
        }),
        case("scatter_add_batched", &[&[2, 5], &[2, 3, 2]], (-2.0, 2.0), move |e, args| {
            let indices = indices(e, &[2, 3, 1], &[0, 1, 3, 3, 4, 0]);
            let to_apply = e.scalar_computation(BinaryOp::Add, DType::F64);
            e.emit(Op::Scatter { dims: into_batched.clone(), to_apply }, &[args[0], indices, args[1]], None)
        }),
        case("scatter_replace_rows", &[&[4, 3], &[2, 3]], (-2.0, 2.0), move |e, args| {
            let indices = indices(e, &[2, 1], &[3, 0]);
            let to_apply = e.with_module_mut(second_of_two);
            e.emit(Op::Scatter { dims: unique.clone(), to_apply }, &[args[0], indices, args[1]], None)
        }),
    ]
}

/// `(x, y) -> y`.
pub fn second_of_two(module: &mut Module) -> CompId {
    let comp = module.add_computation("second");
    let [_, second] = [0, 1].map(|number| {
        module.append(comp, Op::parameter(number), Vec::new(), Shape::scalar(DType::F64), Metadata::default())
    });
    module.computations[comp.idx()].root = second;
    comp
}

fn products() -> Vec<Case> {
    let dot =
        |name, lhs: &[i64], rhs: &[i64], [lhs_batch, rhs_batch, lhs_contracting, rhs_contracting]: [&[i64]; 4]| {
            let dims = DotDims {
                lhs_batch: lhs_batch.to_vec(),
                rhs_batch: rhs_batch.to_vec(),
                lhs_contracting: lhs_contracting.to_vec(),
                rhs_contracting: rhs_contracting.to_vec(),
            };
            case(name, &[lhs, rhs], (-1.0, 1.0), move |e, args| {
                e.emit(Op::Dot { dims: dims.clone(), precision: PrecisionConfig::default() }, args, None)
            })
        };
    let by_integers = case("dot_integers", &[&[3, 4]], (-1.0, 1.0), |e, args| {
        let counted = e.emit(Op::Iota { dimension: 0 }, &[], Some(&Shape::array(DType::S32, [4, 2])));
        let dims = DotDims { lhs_contracting: vec![1], rhs_contracting: vec![0], ..DotDims::default() };
        e.emit(Op::Dot { dims, precision: PrecisionConfig::default() }, &[args[0], counted], None)
    });
    let base = WindowDim::of_size(3);
    let rows = |height, width| [height, width];
    let conv = |name, input: &[i64], kernel: &[i64], window: [WindowDim; 2], (features, batches): (i64, i64)| {
        let attributes = Convolution {
            window: window.to_vec(),
            dims: nhwc(),
            feature_group_count: features,
            batch_group_count: batches,
            precision: PrecisionConfig::default(),
        };
        case(name, &[input, kernel], (-1.0, 1.0), move |e, args| {
            e.emit(Op::Convolution(Box::new(attributes.clone())), args, None)
        })
    };
    let padded = WindowDim { padding_low: 1, padding_high: 2, ..base };
    let odd = WindowDim {
        stride: 2,
        padding_low: 2,
        padding_high: 1,
        window_dilation: 2,
        base_dilation: 3,
        ..WindowDim::of_size(2)
    };
    vec![
        by_integers,
        dot("dot_matrices", &[3, 4], &[4, 2], [&[], &[], &[1], &[0]]),
        dot("dot_rhs_transposed", &[3, 4], &[2, 4], [&[], &[], &[1], &[1]]),
        dot("dot_vectors", &[4], &[4], [&[], &[], &[0], &[0]]),
        dot("dot_outer_product", &[3], &[2], [&[], &[], &[], &[]]),
        dot("dot_batched", &[2, 3, 4], &[2, 4, 5], [&[0], &[0], &[2], &[1]]),
        dot("dot_general", &[4, 2, 3, 5], &[5, 3, 6, 4, 2], [&[1], &[4], &[0, 3], &[3, 0]]),
        dot("dot_two_batches_crossed", &[2, 3, 4], &[3, 4, 2], [&[0, 1], &[2, 0], &[2], &[1]]),
        conv("conv_valid", &[2, 5, 4, 2], &[3, 3, 2, 3], rows(base, base), (1, 1)),
        conv(
            "conv_strided_padded",
            &[1, 6, 5, 2],
            &[3, 3, 2, 2],
            rows(WindowDim { stride: 2, ..padded }, padded),
            (1, 1),
        ),
        conv(
            "conv_stride_skips_the_end",
            &[1, 6, 6, 1],
            &[1, 1, 1, 2],
            {
                let strided = WindowDim { stride: 2, ..WindowDim::of_size(1) };
                rows(strided, strided)
            },
            (1, 1),
        ),
        conv(
            "conv_kernel_dilated",
            &[1, 7, 6, 1],
            &[3, 3, 1, 2],
            rows(WindowDim { window_dilation: 2, ..padded }, base),
            (1, 1),
        ),
        conv(
            "conv_input_dilated",
            &[1, 3, 4, 2],
            &[3, 3, 2, 1],
            rows(WindowDim { base_dilation: 2, ..padded }, padded),
            (1, 1),
        ),
        conv("conv_all_attributes", &[2, 4, 5, 2], &[2, 3, 2, 2], rows(odd, WindowDim { stride: 3, ..padded }), (1, 1)),
        conv(
            "conv_negative_padding",
            &[1, 6, 5, 1],
            &[3, 3, 1, 2],
            rows(WindowDim { padding_low: -1, padding_high: 1, ..base }, WindowDim { padding_high: -1, ..base }),
            (1, 1),
        ),
        conv(
            "conv_padding_beyond_the_kernel",
            &[1, 3, 3, 1],
            &[2, 2, 1, 1],
            {
                let wide = WindowDim { padding_low: 3, padding_high: 3, ..WindowDim::of_size(2) };
                rows(wide, wide)
            },
            (1, 1),
        ),
        conv(
            "conv_reversed",
            &[1, 5, 6, 2],
            &[3, 2, 2, 2],
            rows(WindowDim { reversal: true, stride: 2, ..padded }, WindowDim::of_size(2)),
            (1, 1),
        ),
        conv(
            "conv_feature_groups",
            &[2, 4, 4, 4],
            &[3, 3, 2, 6],
            rows(WindowDim { stride: 2, ..padded }, base),
            (2, 1),
        ),
        conv(
            "conv_depthwise",
            &[1, 4, 4, 3],
            &[2, 2, 1, 6],
            rows(WindowDim::of_size(2), WindowDim::of_size(2)),
            (3, 1),
        ),
        conv("conv_batch_groups", &[4, 4, 4, 3], &[3, 3, 3, 4], rows(WindowDim { stride: 2, ..padded }, base), (1, 2)),
        case("conv_nchw", &[&[2, 2, 5, 4], &[3, 2, 3, 2]], (-1.0, 1.0), |e, args| {
            let window = vec![WindowDim::of_size(3), WindowDim { stride: 2, padding_low: 1, ..WindowDim::of_size(2) }];
            let dims = ConvolutionDims {
                input_batch: 0,
                input_feature: 1,
                input_spatial: vec![2, 3],
                kernel_output_feature: 0,
                kernel_input_feature: 1,
                kernel_spatial: vec![2, 3],
                output_batch: 0,
                output_feature: 1,
                output_spatial: vec![2, 3],
            };
            e.emit(Op::Convolution(Box::new(convolution(window, dims, 1))), args, None)
        }),
        case("conv_groups_nchw", &[&[2, 4, 5, 4], &[6, 2, 3, 2]], (-1.0, 1.0), |e, args| {
            let window = vec![WindowDim::of_size(3), WindowDim { stride: 2, padding_low: 1, ..WindowDim::of_size(2) }];
            let dims = ConvolutionDims {
                input_batch: 0,
                input_feature: 1,
                input_spatial: vec![2, 3],
                kernel_output_feature: 0,
                kernel_input_feature: 1,
                kernel_spatial: vec![2, 3],
                output_batch: 0,
                output_feature: 1,
                output_spatial: vec![2, 3],
            };
            e.emit(Op::Convolution(Box::new(convolution(window, dims, 2))), args, None)
        }),
        case("conv_one_spatial_dimension", &[&[2, 7, 2], &[3, 2, 2]], (-1.0, 1.0), |e, args| {
            let dims = ConvolutionDims {
                input_batch: 0,
                input_feature: 2,
                input_spatial: vec![1],
                kernel_output_feature: 2,
                kernel_input_feature: 1,
                kernel_spatial: vec![0],
                output_batch: 0,
                output_feature: 2,
                output_spatial: vec![1],
            };
            let window = vec![WindowDim { stride: 2, padding_low: 1, padding_high: 1, ..WindowDim::of_size(3) }];
            e.emit(Op::Convolution(Box::new(convolution(window, dims, 1))), args, None)
        }),
    ]
}

fn convolution(window: Window, dims: ConvolutionDims, feature_group_count: i64) -> Convolution {
    Convolution { window, dims, feature_group_count, batch_group_count: 1, precision: PrecisionConfig::default() }
}

/// `b01f_01io->b01f`.
pub fn nhwc() -> ConvolutionDims {
    ConvolutionDims {
        input_batch: 0,
        input_feature: 3,
        input_spatial: vec![1, 2],
        kernel_input_feature: 2,
        kernel_output_feature: 3,
        kernel_spatial: vec![0, 1],
        output_batch: 0,
        output_feature: 3,
        output_spatial: vec![1, 2],
    }
}

fn reductions() -> Vec<Case> {
    let reduce =
        |name, op: BinaryOp| case(name, &[&[2, 3, 4]], (-2.0, 2.0), move |e, args| e.reduce(op, args[0], &[0, 2]));
    vec![
        reduce("reduce_add", BinaryOp::Add),
        reduce("reduce_maximum", BinaryOp::Maximum),
        reduce("reduce_minimum", BinaryOp::Minimum),
        reduce("reduce_multiply", BinaryOp::Multiply),
        case_at("reduce_multiply_zeros", &[(&[2, 3], &[1.5, 0.0, -2.0, 0.0, 0.0, 3.0])], |e, args| {
            e.reduce(BinaryOp::Multiply, args[0], &[1])
        }),
        case("reduce_add_from_init", &[&[2, 3], &[]], (-2.0, 2.0), |e, args| {
            let to_apply = e.scalar_computation(BinaryOp::Add, DType::F64);
            e.emit(Op::Reduce { dimensions: vec![1], to_apply }, args, None)
        }),
        case_at("reduce_maximum_lost_to_init", &[(&[2, 2], &[1.0, 3.0, -1.0, 0.5])], |e, args| {
            let to_apply = e.scalar_computation(BinaryOp::Maximum, DType::F64);
            e.emit(Op::Reduce { dimensions: vec![1], to_apply }, &[args[0], e.scalar(DType::F64, 2.0)], None)
        }),
        case("sort_descending", &[&[2, 5]], (-2.0, 2.0), |e, args| {
            let to_apply = e.with_module_mut(|module| comparator(module, Comparison::Gt, 1));
            e.emit(Op::Sort { dimension: 1, is_stable: false, to_apply }, args, None)
        }),
        Case {
            build: Box::new(|e, args| {
                let to_apply = e.with_module_mut(|module| comparator(module, Comparison::Lt, 2));
                let sorted = e.emit(Op::Sort { dimension: 0, is_stable: true, to_apply }, args, None);
                vec![e.get_tuple_element(sorted, 0), e.get_tuple_element(sorted, 1)]
            }),
            ..case("sort_pairs", &[&[5, 2], &[5, 2]], (-2.0, 2.0), |_, args| args[0])
        },
    ]
}

/// A comparator of `n_operands` pairs of f64 by the first pair.
pub fn comparator(module: &mut Module, direction: Comparison, n_operands: i64) -> CompId {
    let comp = module.add_computation("comparator");
    let parameters: Vec<InstrId> = (0..2 * n_operands)
        .map(|number| {
            module.append(comp, Op::parameter(number), Vec::new(), Shape::scalar(DType::F64), Metadata::default())
        })
        .collect();
    let op = Op::Compare { direction, kind: None };
    module.append(comp, op, parameters[..2].to_vec(), Shape::scalar(DType::Pred), Metadata::default());
    comp
}

fn windows() -> Vec<Case> {
    let reduce_window = |name, dims: &[i64], op: BinaryOp, init: f64, window: Vec<WindowDim>| {
        case(name, &[dims], (-2.0, 2.0), move |e, args| {
            let to_apply = e.scalar_computation(op, DType::F64);
            let op = Op::ReduceWindow { window: window.clone(), to_apply };
            e.emit(op, &[args[0], e.scalar(DType::F64, init)], None)
        })
    };
    let one = WindowDim::of_size(1);
    let pool = WindowDim { stride: 2, padding_high: 1, ..WindowDim::of_size(3) };
    let disjoint = WindowDim { stride: 2, ..WindowDim::of_size(2) };
    let odd = WindowDim {
        stride: 2,
        padding_low: 2,
        padding_high: 1,
        window_dilation: 2,
        base_dilation: 3,
        ..WindowDim::of_size(2)
    };
    let scatter = |name, comparison: Comparison, window: Vec<WindowDim>, source: &[i64]| {
        case(name, &[&[5, 4], source, &[]], (-2.0, 2.0), move |e, args| {
            let select = e.with_module_mut(|module| comparator(module, comparison, 1));
            let scatter = e.scalar_computation(BinaryOp::Add, DType::F64);
            e.emit(Op::SelectAndScatter { window: window.clone(), select, scatter }, args, None)
        })
    };
    vec![
        reduce_window("window_sum", &[1, 6, 5, 2], BinaryOp::Add, 0.0, vec![one, pool, disjoint, one]),
        reduce_window("window_sum_dilated", &[4, 5], BinaryOp::Add, 0.0, vec![odd, pool]),
        reduce_window(
            "window_sum_negative_padding",
            &[6],
            BinaryOp::Add,
            0.0,
            vec![WindowDim { padding_low: -2, ..pool }],
        ),
        reduce_window(
            "window_maximum",
            &[1, 6, 5, 2],
            BinaryOp::Maximum,
            f64::NEG_INFINITY,
            vec![one, pool, disjoint, one],
        ),
        reduce_window("window_minimum", &[6, 5], BinaryOp::Minimum, f64::INFINITY, vec![pool, disjoint]),
        reduce_window(
            "window_cumulative_sum",
            &[5],
            BinaryOp::Add,
            0.0,
            vec![WindowDim { padding_low: 4, ..WindowDim::of_size(5) }],
        ),
        scatter("select_and_scatter_ge", Comparison::Ge, vec![pool, disjoint], &[2, 2]),
        scatter("select_and_scatter_le", Comparison::Le, vec![disjoint, disjoint], &[2, 2]),
        case("second_derivative_of_window_maximum", &[&[6]], (-2.0, 2.0), move |e, args| {
            let window = vec![WindowDim { stride: 1, ..WindowDim::of_size(2) }];
            let to_apply = e.scalar_computation(BinaryOp::Maximum, DType::F64);
            let init = e.scalar(DType::F64, f64::NEG_INFINITY);
            let maxima = e.emit(Op::ReduceWindow { window, to_apply }, &[args[0], init], None);
            let loss = e.reduce_sum(e.mul(maxima, e.mul(maxima, maxima)), &[0]);
            gradients(e, loss, args).unwrap()[0]
        }),
    ]
}

fn normalisation() -> Vec<Case> {
    let attributes = BatchNorm { epsilon: 1e-3, feature_index: 2 };
    vec![
        case("batch_norm_training", &[&[3, 2, 2], &[2], &[2]], (0.5, 2.0), move |e, args| {
            e.batch_norm_training([args[0], args[1], args[2]], attributes)[0]
        }),
        Case {
            build: Box::new(move |e, args| e.batch_norm_training([args[0], args[1], args[2]], attributes).to_vec()),
            ..case("batch_norm_training_with_statistics", &[&[3, 2, 2], &[2], &[2]], (0.5, 2.0), |_, args| args[0])
        },
        case("batch_norm_statistics_alone", &[&[3, 2, 2], &[2], &[2]], (0.5, 2.0), move |e, args| {
            let [_, mean, variance] = e.batch_norm_training([args[0], args[1], args[2]], attributes);
            e.mul(mean, variance)
        }),
        case("batch_norm_inference", &[&[3, 2, 2], &[2], &[2], &[2], &[2]], (0.5, 2.0), move |e, args| {
            e.emit(Op::BatchNormInference(attributes), args, None)
        }),
        Case {
            build: Box::new(move |e, args| {
                let grads = e.emit(Op::BatchNormGrad(attributes), args, None);
                (0..3).map(|index| e.get_tuple_element(grads, index)).collect()
            }),
            ..case("batch_norm_grad", &[&[3, 2, 2], &[2], &[2], &[2], &[3, 2, 2]], (0.5, 2.0), |_, args| args[0])
        },
        case("second_derivative_of_batch_norm", &[&[3, 2, 2], &[2], &[2]], (0.5, 2.0), move |e, args| {
            let y = e.batch_norm_training([args[0], args[1], args[2]], attributes)[0];
            let loss = e.reduce_sum(e.mul(y, e.mul(y, y)), &[0, 1, 2]);
            gradients(e, loss, &args[..1]).unwrap()[0]
        }),
    ]
}

fn control() -> Vec<Case> {
    vec![
        case("tuple", &[&[3], &[3]], (-2.0, 2.0), |e, args| {
            let nested = e.tuple(&[args[1], e.tuple(&[args[0], args[1]])]);
            let inner = e.get_tuple_element(nested, 1);
            e.mul(e.get_tuple_element(inner, 0), e.get_tuple_element(inner, 1))
        }),
        case("optimization_barrier", &[&[3], &[3]], (-2.0, 2.0), |e, args| {
            let barrier = e.emit(Op::OptimizationBarrier, &[e.tuple(args)], None);
            e.mul(e.get_tuple_element(barrier, 0), e.get_tuple_element(barrier, 1))
        }),
        case("call", &[&[3], &[3]], (-2.0, 2.0), |e, args| {
            let to_apply = e.with_module_mut(|module| product_of_sines(module, "callee"));
            e.emit(Op::Call { to_apply }, args, None)
        }),
        case("call_with_tuples", &[&[3], &[2]], (-2.0, 2.0), |e, args| {
            let to_apply = e.with_module_mut(swapped_and_squared);
            let result = e.emit(Op::Call { to_apply }, &[e.tuple(args)], None);
            let (second, first) = (e.get_tuple_element(result, 0), e.get_tuple_element(result, 1));
            e.concatenate(&[first, second], 0)
        }),
        case("conditional_true", &[&[3], &[3]], (-2.0, 2.0), |e, args| conditional(e, args, Literal::scalar(true))),
        case("conditional_false", &[&[3], &[3]], (-2.0, 2.0), |e, args| conditional(e, args, Literal::scalar(false))),
        case("conditional_by_index", &[&[3], &[3]], (-2.0, 2.0), |e, args| conditional(e, args, Literal::scalar(1i32))),
        case("all_reduce_of_one", &[&[3]], (-2.0, 2.0), |e, args| {
            let all_reduce = AllReduce {
                to_apply: e.scalar_computation(BinaryOp::Add, DType::F64),
                replica_groups: ReplicaGroups::List(vec![vec![0]]),
                channel_id: None,
                use_global_device_ids: false,
                constrain_layout: false,
            };
            e.mul(e.emit(Op::AllReduce(Box::new(all_reduce)), args, None), args[0])
        }),
    ]
}

/// `(x, y) -> sin x sin y` of f64[3].
fn product_of_sines(module: &mut Module, name: &str) -> CompId {
    let comp = module.add_computation(name);
    let shape = Shape::array(DType::F64, [3]);
    let mut push = |op, operands: Vec<InstrId>| module.append(comp, op, operands, shape.clone(), Metadata::default());
    let (x, y) = (push(Op::parameter(0), vec![]), push(Op::parameter(1), vec![]));
    let (sin_x, sin_y) = (push(Op::Unary(UnaryOp::Sin), vec![x]), push(Op::Unary(UnaryOp::Sin), vec![y]));
    push(Op::Binary(BinaryOp::Multiply), vec![sin_x, sin_y]);
    comp
}

/// `((x, y)) -> (y y, x)` of f64[3] and f64[2].
fn swapped_and_squared(module: &mut Module) -> CompId {
    let comp = module.add_computation("swap");
    let (first, second) = (Shape::array(DType::F64, [3]), Shape::array(DType::F64, [2]));
    let mut push = |op, operands: Vec<InstrId>, shape: &Shape| {
        module.append(comp, op, operands, shape.clone(), Metadata::default())
    };
    let pair = push(Op::parameter(0), vec![], &Shape::Tuple(vec![first.clone(), second.clone()]));
    let x = push(Op::GetTupleElement { index: 0 }, vec![pair], &first);
    let y = push(Op::GetTupleElement { index: 1 }, vec![pair], &second);
    let square = push(Op::Binary(BinaryOp::Multiply), vec![y, y], &second);
    push(Op::Tuple, vec![square, x], &Shape::Tuple(vec![second.clone(), first.clone()]));
    comp
}

/// Branches over (x, y): the product of sines, or `x x`; the value of both arguments times what the branch gives.
fn conditional(e: &Emitter, args: &[InstrId], selector: Literal) -> InstrId {
    let pair = Shape::Tuple(vec![e.shape(args[0]), e.shape(args[1])]);
    let branches = e.with_module_mut(|module| {
        let sines = module.add_computation("sines");
        let square = module.add_computation("square");
        let called = product_of_sines(module, "inner");
        let shape = Shape::array(DType::F64, [3]);
        let mut push = |comp, op, operands: Vec<InstrId>, shape: &Shape| {
            module.append(comp, op, operands, shape.clone(), Metadata::default())
        };
        let parameter = push(sines, Op::parameter(0), vec![], &pair);
        let x = push(sines, Op::GetTupleElement { index: 0 }, vec![parameter], &shape);
        let y = push(sines, Op::GetTupleElement { index: 1 }, vec![parameter], &shape);
        push(sines, Op::Call { to_apply: called }, vec![x, y], &shape);
        let x = push(square, Op::parameter(0), vec![], &shape);
        push(square, Op::Binary(BinaryOp::Multiply), vec![x, x], &shape);
        vec![sines, square]
    });
    let operands = [e.constant(selector), e.tuple(args), args[0]];
    let result = e.emit(Op::Conditional(Conditional { branches }), &operands, None);
    e.mul(result, e.add(args[0], args[1]))
}
