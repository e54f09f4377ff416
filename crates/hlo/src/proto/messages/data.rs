//! Attributes of ops, metadata and shardings of XLA's `xla/xla_data.proto`.

use super::ShapeProto;
use prost::Message;
use std::collections::BTreeMap;

/// Attributes of `pad`.
#[derive(Clone, PartialEq, Message)]
pub struct PaddingConfig {
    #[prost(message, repeated, tag = "1")]
    pub dimensions: Vec<PaddingConfigDimension>,
}

/// One dimension of a `pad`.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct PaddingConfigDimension {
    #[prost(int64, tag = "1")]
    pub edge_padding_low: i64,
    #[prost(int64, tag = "2")]
    pub edge_padding_high: i64,
    #[prost(int64, tag = "3")]
    pub interior_padding: i64,
}

/// The source position of an instruction.
#[derive(Clone, PartialEq, Message)]
pub struct OpMetadata {
    #[prost(string, tag = "1")]
    pub op_type: String,
    #[prost(string, tag = "2")]
    pub op_name: String,
    #[prost(string, tag = "3")]
    pub source_file: String,
    #[prost(int32, tag = "4")]
    pub source_line: i32,
    #[prost(int32, tag = "17")]
    pub source_end_line: i32,
    #[prost(int32, tag = "18")]
    pub source_column: i32,
    #[prost(int32, tag = "19")]
    pub source_end_column: i32,
    #[prost(int32, repeated, tag = "5")]
    pub profile_type: Vec<i32>,
    #[prost(int64, tag = "8")]
    pub size_of_generated_code_in_bytes: i64,
    #[prost(int64, tag = "9")]
    pub size_of_memory_working_set_in_bytes: i64,
    #[prost(bytes = "vec", optional, tag = "10")]
    pub profile_info: Option<Vec<u8>>,
    #[prost(string, tag = "12")]
    pub deduplicated_name: String,
    #[prost(int32, tag = "15")]
    pub stack_frame_id: i32,
    #[prost(string, tag = "16")]
    pub scheduling_name: String,
    #[prost(bytes = "vec", optional, tag = "20")]
    pub metadata_payload: Option<Vec<u8>>,
}

/// One dimension of a window.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct WindowDimension {
    #[prost(int64, tag = "1")]
    pub size: i64,
    #[prost(int64, tag = "2")]
    pub stride: i64,
    #[prost(int64, tag = "3")]
    pub padding_low: i64,
    #[prost(int64, tag = "4")]
    pub padding_high: i64,
    #[prost(int64, tag = "5")]
    pub window_dilation: i64,
    #[prost(int64, tag = "6")]
    pub base_dilation: i64,
    #[prost(bool, tag = "7")]
    pub window_reversal: bool,
}

/// A window.
#[derive(Clone, PartialEq, Message)]
pub struct Window {
    #[prost(message, repeated, tag = "1")]
    pub dimensions: Vec<WindowDimension>,
}

/// Dimension numbers of `gather`.
#[derive(Clone, PartialEq, Message)]
pub struct GatherDimensionNumbers {
    #[prost(int64, repeated, tag = "1")]
    pub offset_dims: Vec<i64>,
    #[prost(int64, repeated, tag = "2")]
    pub collapsed_slice_dims: Vec<i64>,
    #[prost(int64, repeated, tag = "3")]
    pub start_index_map: Vec<i64>,
    #[prost(int64, tag = "4")]
    pub index_vector_dim: i64,
    #[prost(int64, repeated, tag = "5")]
    pub operand_batching_dims: Vec<i64>,
    #[prost(int64, repeated, tag = "6")]
    pub start_indices_batching_dims: Vec<i64>,
}

/// Dimension numbers of `scatter`.
#[derive(Clone, PartialEq, Message)]
pub struct ScatterDimensionNumbers {
    #[prost(int64, repeated, tag = "1")]
    pub update_window_dims: Vec<i64>,
    #[prost(int64, repeated, tag = "2")]
    pub inserted_window_dims: Vec<i64>,
    #[prost(int64, repeated, tag = "3")]
    pub scatter_dims_to_operand_dims: Vec<i64>,
    #[prost(int64, tag = "4")]
    pub index_vector_dim: i64,
    #[prost(int64, repeated, tag = "5")]
    pub input_batching_dims: Vec<i64>,
    #[prost(int64, repeated, tag = "6")]
    pub scatter_indices_batching_dims: Vec<i64>,
}

/// Dimension numbers of `convolution`.
#[derive(Clone, PartialEq, Message)]
pub struct ConvolutionDimensionNumbers {
    #[prost(int64, tag = "7")]
    pub input_batch_dimension: i64,
    #[prost(int64, tag = "8")]
    pub input_feature_dimension: i64,
    #[prost(int64, repeated, tag = "11")]
    pub input_spatial_dimensions: Vec<i64>,
    #[prost(int64, tag = "3")]
    pub kernel_input_feature_dimension: i64,
    #[prost(int64, tag = "4")]
    pub kernel_output_feature_dimension: i64,
    #[prost(int64, repeated, tag = "6")]
    pub kernel_spatial_dimensions: Vec<i64>,
    #[prost(int64, tag = "9")]
    pub output_batch_dimension: i64,
    #[prost(int64, tag = "10")]
    pub output_feature_dimension: i64,
    #[prost(int64, repeated, tag = "12")]
    pub output_spatial_dimensions: Vec<i64>,
}

/// Dimension numbers of `dot`.
#[derive(Clone, PartialEq, Message)]
pub struct DotDimensionNumbers {
    #[prost(int64, repeated, tag = "1")]
    pub lhs_contracting_dimensions: Vec<i64>,
    #[prost(int64, repeated, tag = "2")]
    pub rhs_contracting_dimensions: Vec<i64>,
    #[prost(int64, repeated, tag = "3")]
    pub lhs_batch_dimensions: Vec<i64>,
    #[prost(int64, repeated, tag = "4")]
    pub rhs_batch_dimensions: Vec<i64>,
}

/// Dimension numbers of `ragged-dot`.
#[derive(Clone, PartialEq, Message)]
pub struct RaggedDotDimensionNumbers {
    #[prost(message, optional, tag = "1")]
    pub dot_dimension_numbers: Option<DotDimensionNumbers>,
    #[prost(int64, repeated, tag = "2")]
    pub lhs_ragged_dimensions: Vec<i64>,
    #[prost(int64, repeated, tag = "3")]
    pub rhs_group_dimensions: Vec<i64>,
}

/// Attributes of `triangular-solve`; `transpose_a`: 1 = no, 2 = transpose, 3 = adjoint.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct TriangularSolveOptions {
    #[prost(bool, tag = "1")]
    pub left_side: bool,
    #[prost(bool, tag = "2")]
    pub lower: bool,
    #[prost(bool, tag = "3")]
    pub unit_diagonal: bool,
    #[prost(int32, tag = "4")]
    pub transpose_a: i32,
}

/// Attributes of `cholesky`.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct CholeskyOptions {
    #[prost(bool, tag = "1")]
    pub lower: bool,
}

/// Key-value pairs from the frontend.
#[derive(Clone, PartialEq, Message)]
pub struct FrontendAttributes {
    #[prost(btree_map = "string, string", tag = "1")]
    pub map: BTreeMap<String, String>,
}

/// One figure of [`StatisticsViz`].
#[derive(Clone, PartialEq, Message)]
pub struct Statistic {
    #[prost(string, tag = "1")]
    pub stat_name: String,
    #[prost(double, tag = "2")]
    pub stat_val: f64,
}

/// Figures about an instruction, for graph viewers.
#[derive(Clone, PartialEq, Message)]
pub struct StatisticsViz {
    #[prost(int64, tag = "1")]
    pub stat_index_to_visualize: i64,
    #[prost(message, repeated, tag = "2")]
    pub statistics: Vec<Statistic>,
}

/// The sharding of a value; `type`: 0 = replicated, 1 = maximal, 2 = tuple, 3 = other (tiled), 4 = manual, 5 =
/// unknown, 6 = unreduced. `named_sharding` holds an encoded `NamedShardingProto`.
#[derive(Clone, PartialEq, Message)]
pub struct OpSharding {
    #[prost(int32, tag = "1")]
    pub r#type: i32,
    #[prost(message, optional, tag = "2")]
    pub tile_shape: Option<ShapeProto>,
    #[prost(int64, repeated, tag = "3")]
    pub tile_assignment_dimensions: Vec<i64>,
    #[prost(int64, repeated, tag = "4")]
    pub tile_assignment_devices: Vec<i64>,
    #[prost(message, repeated, tag = "5")]
    pub tuple_shardings: Vec<OpSharding>,
    #[prost(bool, tag = "6")]
    pub replicate_on_last_tile_dim: bool,
    #[prost(message, repeated, tag = "7")]
    pub metadata: Vec<OpMetadata>,
    #[prost(int32, repeated, tag = "8")]
    pub last_tile_dims: Vec<i32>,
    #[prost(int64, repeated, tag = "9")]
    pub iota_reshape_dims: Vec<i64>,
    #[prost(int32, repeated, tag = "10")]
    pub iota_transpose_perm: Vec<i32>,
    #[prost(bool, tag = "11")]
    pub is_shard_group: bool,
    #[prost(int64, tag = "12")]
    pub shard_group_id: i64,
    #[prost(int32, tag = "13")]
    pub shard_group_type: i32,
    #[prost(bytes = "vec", optional, tag = "14")]
    pub named_sharding: Option<Vec<u8>>,
}

/// A mesh of devices with named axes.
#[derive(Clone, PartialEq, Message)]
pub struct MeshProto {
    #[prost(message, repeated, tag = "1")]
    pub axes: Vec<MeshAxis>,
    #[prost(int64, repeated, tag = "2")]
    pub device_ids: Vec<i64>,
    #[prost(message, optional, tag = "3")]
    pub iota_transform: Option<IotaTransform>,
}

/// One axis of a [`MeshProto`].
#[derive(Clone, PartialEq, Message)]
pub struct MeshAxis {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(int64, tag = "2")]
    pub size: i64,
}

/// An order of devices: an iota, reshaped and transposed.
#[derive(Clone, PartialEq, Message)]
pub struct IotaTransform {
    #[prost(int64, repeated, tag = "1")]
    pub reshape_dims: Vec<i64>,
    #[prost(int64, repeated, tag = "2")]
    pub transpose_perm: Vec<i64>,
}

/// An axis of a mesh, or a part of one.
#[derive(Clone, PartialEq, Message)]
pub struct AxisRefProto {
    #[prost(int64, tag = "1")]
    pub mesh_axis_index: i64,
    #[prost(message, optional, tag = "2")]
    pub sub_axis_info: Option<SubAxis>,
}

/// The part of an axis to which an [`AxisRefProto`] refers.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct SubAxis {
    #[prost(int64, tag = "1")]
    pub pre_size: i64,
    #[prost(int64, tag = "2")]
    pub size: i64,
}

/// Replicas that take part in a collective together.
#[derive(Clone, PartialEq, Message)]
pub struct ReplicaGroup {
    #[prost(int64, repeated, tag = "1")]
    pub replica_ids: Vec<i64>,
}

/// Replica groups as an iota, reshaped and transposed.
#[derive(Clone, PartialEq, Message)]
pub struct IotaReplicaGroupListProto {
    #[prost(int64, tag = "1")]
    pub num_replica_groups: i64,
    #[prost(int64, tag = "2")]
    pub num_devices_per_group: i64,
    #[prost(int64, repeated, tag = "3")]
    pub iota_reshape_dims: Vec<i64>,
    #[prost(int32, repeated, tag = "4")]
    pub iota_transpose_perm: Vec<i32>,
}

/// Replica groups as axes of a mesh.
#[derive(Clone, PartialEq, Message)]
pub struct MeshAxesReplicaGroupListProto {
    #[prost(message, optional, tag = "1")]
    pub mesh: Option<MeshProto>,
    #[prost(message, repeated, tag = "2")]
    pub axes: Vec<AxisRefProto>,
}

/// Replica groups, listed.
#[derive(Clone, PartialEq, Message)]
pub struct CollectiveDeviceListProto {
    #[prost(message, repeated, tag = "1")]
    pub replica_groups: Vec<ReplicaGroup>,
    #[prost(message, optional, tag = "2")]
    pub iota_replica_group_list: Option<IotaReplicaGroupListProto>,
}

/// One pair of a `collective-permute`.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct SourceTarget {
    #[prost(int64, tag = "1")]
    pub source: i64,
    #[prost(int64, tag = "2")]
    pub target: i64,
}

/// How accurate a function must be: `mode` (0 = default, 1 = highest) or `tolerance`; at most one is set.
#[derive(Clone, PartialEq, Message)]
pub struct ResultAccuracy {
    #[prost(int32, optional, tag = "1")]
    pub mode: Option<i32>,
    #[prost(message, optional, tag = "2")]
    pub tolerance: Option<Tolerance>,
}

/// Bounds of [`ResultAccuracy`].
#[derive(Clone, Copy, PartialEq, Message)]
pub struct Tolerance {
    #[prost(double, tag = "1")]
    pub atol: f64,
    #[prost(double, tag = "2")]
    pub rtol: f64,
    #[prost(int64, tag = "3")]
    pub ulps: i64,
}

/// Operand precision (0 = default, 1 = high, 2 = highest) and algorithm of a `dot` or `convolution`.
#[derive(Clone, PartialEq, Message)]
pub struct PrecisionConfig {
    #[prost(int32, repeated, tag = "1")]
    pub operand_precision: Vec<i32>,
    #[prost(int32, tag = "2")]
    pub algorithm: i32,
}

/// Whether replicas get the same data, by leaf of the parameter.
#[derive(Clone, PartialEq, Message)]
pub struct ParameterReplication {
    #[prost(bool, repeated, tag = "1")]
    pub replicated_at_leaf_buffers: Vec<bool>,
}

/// A pair of an output and an operand that share a buffer.
#[derive(Clone, PartialEq, Message)]
pub struct OutputOperandAliasing {
    #[prost(int64, repeated, tag = "1")]
    pub output_shape_index: Vec<i64>,
    #[prost(int64, tag = "2")]
    pub operand_index: i64,
    #[prost(int64, repeated, tag = "3")]
    pub operand_shape_index: Vec<i64>,
}

/// An array of the module as the user wrote it.
#[derive(Clone, PartialEq, Message)]
pub struct OriginalArrayProto {
    #[prost(string, tag = "1")]
    pub instruction_name: String,
    #[prost(int64, repeated, tag = "2")]
    pub shape_index: Vec<i64>,
}

/// The origin of one leaf of a value.
#[derive(Clone, PartialEq, Message)]
pub struct OriginalValueElementProto {
    #[prost(int64, repeated, tag = "1")]
    pub shape_index: Vec<i64>,
    #[prost(message, optional, tag = "2")]
    pub original_array: Option<OriginalArrayProto>,
}

/// The origin of a value in the module as the user wrote it.
#[derive(Clone, PartialEq, Message)]
pub struct OriginalValueProto {
    #[prost(message, repeated, tag = "1")]
    pub elements: Vec<OriginalValueElementProto>,
    #[prost(bool, tag = "2")]
    pub is_synthetic_call: bool,
}
