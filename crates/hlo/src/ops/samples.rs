//! A sample of every op for round-trip tests, with a non-default value in every attribute.

use super::{
    AllReduce, BatchNorm, BinaryOp, CompareKind, Comparison, Conditional, Convolution, ConvolutionDims, CustomCall,
    DotDims, GatherDims, Opaque, OperandPrecision, PadDim, PrecisionConfig, ReplicaGroups, RngAlgorithm, ScatterDims,
    SliceDim, UnaryOp, WindowDim,
};
use crate::{ArrayShape, CompId, DType, Layout, Literal, Op, Shape};

fn window() -> Vec<WindowDim> {
    let dim = WindowDim {
        size: 3,
        stride: 2,
        padding_low: -1,
        padding_high: 4,
        window_dilation: 5,
        base_dilation: 6,
        reversal: true,
    };
    vec![dim, WindowDim::of_size(1)]
}

fn precision() -> PrecisionConfig {
    PrecisionConfig {
        operand_precision: vec![OperandPrecision::High, OperandPrecision::Highest],
        algorithm: Some("dot_bf16_bf16_f32_x3".to_string()),
    }
}

/// Every op, with a non-default value in every attribute.
pub(crate) fn all_ops() -> Vec<Op> {
    let [f, g] = [CompId(1), CompId(2)];
    let dims = vec![2, 0];
    let norm = BatchNorm { epsilon: 1e-5, feature_index: 3 };
    let mut ops = vec![
        Op::Parameter { number: 4, replication: vec![true, false] },
        Op::Constant(Literal::Array {
            shape: ArrayShape { layout: Some(Layout::descending(1)), ..ArrayShape::new(DType::BF16, [2]) },
            bytes: vec![1, 2, 3, 4],
        }),
        Op::Iota { dimension: 1 },
        Op::RngBitGenerator(RngAlgorithm::Philox),
        Op::Compare { direction: Comparison::Ge, kind: None },
        Op::Compare { direction: Comparison::Lt, kind: Some(CompareKind::TotalOrder) },
        Op::Select,
        Op::Clamp,
        Op::Convert,
        Op::BitcastConvert,
        Op::ReducePrecision { exponent_bits: 8, mantissa_bits: 7 },
        Op::Broadcast { dimensions: dims.clone() },
        Op::Reshape,
        Op::Transpose { permutation: vec![1, 0] },
        Op::Slice(vec![SliceDim { start: 1, limit: 9, stride: 2 }]),
        Op::Pad(vec![PadDim { low: -1, high: 2, interior: 3 }]),
        Op::Concatenate { dimension: 1 },
        Op::Reverse { dimensions: dims.clone() },
        Op::DynamicSlice { slice_sizes: vec![1, 2] },
        Op::DynamicUpdateSlice,
        Op::Gather(GatherDims {
            offset_dims: vec![1],
            collapsed_slice_dims: vec![2],
            start_index_map: vec![3],
            operand_batching_dims: vec![4],
            start_indices_batching_dims: vec![5],
            index_vector_dim: 6,
            slice_sizes: vec![7],
            indices_are_sorted: true,
        }),
        Op::Scatter {
            dims: ScatterDims {
                update_window_dims: vec![1],
                inserted_window_dims: vec![2],
                scatter_dims_to_operand_dims: vec![3],
                input_batching_dims: vec![4],
                scatter_indices_batching_dims: vec![5],
                index_vector_dim: 6,
                indices_are_sorted: true,
                unique_indices: true,
            },
            to_apply: f,
        },
        Op::Dot {
            dims: DotDims {
                lhs_batch: vec![1],
                rhs_batch: vec![2],
                lhs_contracting: vec![3],
                rhs_contracting: vec![4],
            },
            precision: precision(),
        },
        Op::Convolution(Box::new(Convolution {
            window: window(),
            dims: ConvolutionDims {
                input_batch: 2,
                input_feature: 1,
                input_spatial: vec![0],
                kernel_input_feature: 0,
                kernel_output_feature: 2,
                kernel_spatial: vec![1],
                output_batch: 1,
                output_feature: 0,
                output_spatial: vec![2],
            },
            feature_group_count: 2,
            batch_group_count: 3,
            precision: precision(),
        })),
        Op::Reduce { dimensions: dims.clone(), to_apply: f },
        Op::ReduceWindow { window: window(), to_apply: f },
        Op::SelectAndScatter { window: window(), select: f, scatter: g },
        Op::BatchNormTraining(norm),
        Op::BatchNormInference(norm),
        Op::BatchNormGrad(norm),
        Op::Sort { dimension: 1, is_stable: true, to_apply: f },
        Op::Tuple,
        Op::GetTupleElement { index: 2 },
        Op::Call { to_apply: f },
        Op::While { condition: f, body: g },
        Op::Conditional(Conditional { branches: vec![g, f] }),
        Op::CustomCall(Box::new(CustomCall {
            target: "target".to_string(),
            has_side_effect: true,
            api_version: 4,
            called: vec![f],
            operand_layouts: vec![Shape::array(DType::F32, [2]).with_default_layout()],
        })),
        Op::OptimizationBarrier,
        Op::Opaque(Box::new(Opaque { opcode: "fusion".to_string(), called: vec![("calls".to_string(), vec![f])] })),
    ];
    let iota = ReplicaGroups::Iota { dims: vec![2, 2], reshape_dims: vec![2, 2], transpose_perm: vec![1, 0] };
    for replica_groups in [ReplicaGroups::List(vec![vec![0, 2], vec![1, 3]]), iota] {
        ops.push(Op::AllReduce(Box::new(AllReduce {
            to_apply: f,
            replica_groups,
            channel_id: Some(9),
            use_global_device_ids: true,
            constrain_layout: true,
        })));
    }
    ops.extend(UnaryOp::ALL.iter().map(|&op| Op::Unary(op)));
    ops.extend(BinaryOp::ALL.iter().map(|&op| Op::Binary(op)));
    ops
}
