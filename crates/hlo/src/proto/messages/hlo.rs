//! Messages of XLA's `xla/service/hlo.proto`: modules, computations, instructions.

use super::*;
use prost::Message;
use std::collections::BTreeMap;

/// A module, perhaps with the buffer assignment a compiler made for it.
#[derive(Clone, PartialEq, Message)]
pub struct HloProto {
    #[prost(message, optional, tag = "1")]
    pub hlo_module: Option<HloModuleProto>,
    #[prost(bytes = "vec", optional, tag = "3")]
    pub buffer_assignment: Option<Vec<u8>>,
}

/// A module with its compilation settings, as some PJRT plugins return an optimized program.
#[derive(Clone, PartialEq, Message)]
pub struct HloModuleProtoWithConfig {
    #[prost(message, optional, tag = "1")]
    pub hlo_module: Option<HloModuleProto>,
    #[prost(bytes = "vec", optional, tag = "2")]
    pub config: Option<Vec<u8>>,
}

/// A module.
#[derive(Clone, PartialEq, Message)]
pub struct HloModuleProto {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub entry_computation_name: String,
    #[prost(int64, tag = "6")]
    pub entry_computation_id: i64,
    #[prost(message, repeated, tag = "3")]
    pub computations: Vec<HloComputationProto>,
    #[prost(message, optional, tag = "4")]
    pub host_program_shape: Option<ProgramShapeProto>,
    #[prost(int64, tag = "5")]
    pub id: i64,
    #[prost(int64, optional, tag = "23")]
    pub pjrt_id: Option<i64>,
    #[prost(message, optional, tag = "7")]
    pub schedule: Option<HloScheduleProto>,
    #[prost(message, optional, tag = "8")]
    pub input_output_alias: Option<HloInputOutputAliasProto>,
    #[prost(bytes = "vec", repeated, tag = "22")]
    pub payloads: Vec<Vec<u8>>,
    #[prost(message, optional, tag = "18")]
    pub buffer_donor: Option<HloBufferDonorProto>,
    #[prost(message, repeated, tag = "10")]
    pub cross_program_prefetches: Vec<CrossProgramPrefetch>,
    #[prost(bool, tag = "11")]
    pub is_dynamic: bool,
    #[prost(message, optional, tag = "12")]
    pub spmd_output_sharding: Option<OpSharding>,
    #[prost(message, repeated, tag = "14")]
    pub spmd_parameters_shardings: Vec<OpSharding>,
    #[prost(bool, tag = "16")]
    pub use_auto_spmd_partitioning: bool,
    #[prost(bytes = "vec", repeated, tag = "13")]
    pub profile_info: Vec<Vec<u8>>,
    #[prost(bytes = "vec", optional, tag = "15")]
    pub device_assignment: Option<Vec<u8>>,
    #[prost(message, optional, tag = "17")]
    pub stack_frame_index: Option<StackFrameIndexProto>,
    #[prost(message, optional, tag = "19")]
    pub frontend_attributes: Option<FrontendAttributes>,
    #[prost(bytes = "vec", optional, tag = "20")]
    pub original_value_recovery_table: Option<Vec<u8>>,
    #[prost(string, tag = "21")]
    pub device_type: String,
    #[prost(bytes = "vec", optional, tag = "9")]
    pub dynamic_parameter_binding: Option<Vec<u8>>,
}

/// A computation. Ids of its instructions are unique in the module.
#[derive(Clone, PartialEq, Message)]
pub struct HloComputationProto {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(message, repeated, tag = "2")]
    pub instructions: Vec<HloInstructionProto>,
    #[prost(message, optional, tag = "4")]
    pub program_shape: Option<ProgramShapeProto>,
    #[prost(int64, tag = "5")]
    pub id: i64,
    #[prost(int64, tag = "6")]
    pub root_id: i64,
    #[prost(bool, tag = "7")]
    pub is_fusion_computation: bool,
    #[prost(string, tag = "8")]
    pub execution_thread: String,
}

/// An instruction: the fields of all opcodes in one message, those of other opcodes unset.
#[derive(Clone, PartialEq, Message)]
pub struct HloInstructionProto {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub opcode: String,
    #[prost(message, optional, tag = "3")]
    pub shape: Option<ShapeProto>,
    #[prost(message, optional, tag = "7")]
    pub metadata: Option<OpMetadata>,
    #[prost(message, optional, boxed, tag = "8")]
    pub literal: Option<Box<LiteralProto>>,
    #[prost(int64, tag = "9")]
    pub parameter_number: i64,
    #[prost(string, tag = "11")]
    pub fusion_kind: String,
    #[prost(int64, tag = "13")]
    pub tuple_index: i64,
    #[prost(int64, repeated, tag = "14")]
    pub dimensions: Vec<i64>,
    #[prost(message, optional, tag = "15")]
    pub window: Option<Window>,
    #[prost(message, optional, boxed, tag = "16")]
    pub convolution_dimension_numbers: Option<Box<ConvolutionDimensionNumbers>>,
    #[prost(int64, tag = "50")]
    pub feature_group_count: i64,
    #[prost(int64, tag = "58")]
    pub batch_group_count: i64,
    #[prost(message, repeated, tag = "17")]
    pub slice_dimensions: Vec<SliceDimensions>,
    #[prost(int32, tag = "18")]
    pub exponent_bits: i32,
    #[prost(int32, tag = "19")]
    pub mantissa_bits: i32,
    #[prost(int64, repeated, tag = "20")]
    pub dynamic_slice_sizes: Vec<i64>,
    #[prost(message, optional, tag = "21")]
    pub padding_config: Option<PaddingConfig>,
    #[prost(bytes = "vec", tag = "22")]
    pub outfeed_config: Vec<u8>,
    #[prost(int32, tag = "23")]
    pub distribution: i32,
    #[prost(float, tag = "24")]
    pub epsilon: f32,
    #[prost(int64, tag = "25")]
    pub feature_index: i64,
    #[prost(int64, tag = "26")]
    pub channel_id: i64,
    #[prost(bytes = "vec", tag = "27")]
    pub infeed_config: Vec<u8>,
    #[prost(string, tag = "28")]
    pub custom_call_target: String,
    #[prost(message, optional, boxed, tag = "29")]
    pub outfeed_shape: Option<Box<ShapeProto>>,
    #[prost(message, optional, boxed, tag = "30")]
    pub dot_dimension_numbers: Option<Box<DotDimensionNumbers>>,
    #[prost(message, optional, boxed, tag = "90")]
    pub ragged_dot_dimension_numbers: Option<Box<RaggedDotDimensionNumbers>>,
    #[prost(int32, tag = "31")]
    pub fft_type: i32,
    #[prost(int64, repeated, tag = "32")]
    pub fft_length: Vec<i64>,
    #[prost(string, tag = "63")]
    pub comparison_direction: String,
    #[prost(message, optional, boxed, tag = "33")]
    pub gather_dimension_numbers: Option<Box<GatherDimensionNumbers>>,
    #[prost(int64, repeated, tag = "34")]
    pub gather_slice_sizes: Vec<i64>,
    #[prost(int64, tag = "35")]
    pub id: i64,
    #[prost(int64, repeated, tag = "36")]
    pub operand_ids: Vec<i64>,
    #[prost(int64, repeated, tag = "37")]
    pub control_predecessor_ids: Vec<i64>,
    #[prost(int64, repeated, tag = "38")]
    pub called_computation_ids: Vec<i64>,
    #[prost(message, optional, boxed, tag = "40")]
    pub sharding: Option<Box<OpSharding>>,
    #[prost(bytes = "vec", tag = "43")]
    pub backend_config: Vec<u8>,
    #[prost(bytes = "vec", optional, tag = "99")]
    pub backend_config_payload: Option<Vec<u8>>,
    #[prost(message, repeated, tag = "49")]
    pub replica_groups: Vec<ReplicaGroup>,
    #[prost(int64, tag = "45")]
    pub all_reduce_id: i64,
    #[prost(bool, tag = "71")]
    pub use_global_device_ids: bool,
    #[prost(bool, tag = "47")]
    pub is_host_transfer: bool,
    #[prost(bool, tag = "60")]
    pub is_stable: bool,
    #[prost(message, optional, boxed, tag = "48")]
    pub scatter_dimension_numbers: Option<Box<ScatterDimensionNumbers>>,
    #[prost(message, optional, tag = "51")]
    pub precision_config: Option<PrecisionConfig>,
    #[prost(message, repeated, tag = "52")]
    pub source_target_pairs: Vec<SourceTarget>,
    #[prost(message, optional, boxed, tag = "54")]
    pub domain_entry_sharding: Option<Box<OpSharding>>,
    #[prost(message, optional, boxed, tag = "55")]
    pub domain_exit_sharding: Option<Box<OpSharding>>,
    #[prost(bool, tag = "56")]
    pub constrain_layout: bool,
    #[prost(message, repeated, tag = "57")]
    pub operand_shapes_with_layout: Vec<ShapeProto>,
    #[prost(message, optional, tag = "59")]
    pub triangular_solve_options: Option<TriangularSolveOptions>,
    #[prost(message, optional, tag = "62")]
    pub cholesky_options: Option<CholeskyOptions>,
    #[prost(message, optional, tag = "61")]
    pub parameter_replication: Option<ParameterReplication>,
    #[prost(bool, tag = "65")]
    pub custom_call_has_side_effect: bool,
    #[prost(message, repeated, tag = "74")]
    pub output_operand_aliasing: Vec<OutputOperandAliasing>,
    #[prost(int32, tag = "76")]
    pub custom_call_schedule: i32,
    #[prost(int64, tag = "66")]
    pub delta: i64,
    #[prost(bool, tag = "67")]
    pub indices_are_sorted: bool,
    #[prost(message, optional, tag = "68")]
    pub frontend_attributes: Option<FrontendAttributes>,
    #[prost(bool, tag = "69")]
    pub unique_indices: bool,
    #[prost(int32, tag = "70")]
    pub rng_algorithm: i32,
    #[prost(string, tag = "72")]
    pub comparison_type: String,
    #[prost(bool, tag = "73")]
    pub is_cross_program_prefetch: bool,
    #[prost(int32, optional, tag = "80")]
    pub cross_program_prefetch_index: Option<i32>,
    #[prost(int32, tag = "75")]
    pub padding_type: i32,
    #[prost(int32, tag = "77")]
    pub custom_call_api_version: i32,
    #[prost(string, tag = "79")]
    pub async_execution_thread: String,
    #[prost(int64, tag = "81")]
    pub k: i64,
    #[prost(bool, tag = "85")]
    pub largest: bool,
    #[prost(message, optional, tag = "82")]
    pub statistics_viz: Option<StatisticsViz>,
    #[prost(message, optional, boxed, tag = "87")]
    pub collective_device_list: Option<Box<CollectiveDeviceListProto>>,
    #[prost(message, optional, boxed, tag = "92")]
    pub iota_collective_device_list: Option<Box<IotaReplicaGroupListProto>>,
    #[prost(message, optional, boxed, tag = "93")]
    pub mesh_axes_replica_group_list: Option<Box<MeshAxesReplicaGroupListProto>>,
    #[prost(message, optional, tag = "88")]
    pub original_value: Option<OriginalValueProto>,
    #[prost(bool, tag = "89")]
    pub is_composite: bool,
    #[prost(message, optional, tag = "91")]
    pub result_accuracy: Option<ResultAccuracy>,
    #[prost(bool, tag = "94")]
    pub is_reverse: bool,
    #[prost(int64, tag = "95")]
    pub num_carries: i64,
    #[prost(int32, tag = "96")]
    pub is_associative: i32,
    #[prost(int32, tag = "97")]
    pub conv_kind: i32,
    #[prost(bytes = "vec", optional, tag = "98")]
    pub sparsity_config: Option<Vec<u8>>,
    #[prost(int64, tag = "78")]
    pub async_group_id: i64,
    #[prost(bytes = "vec", repeated, tag = "86")]
    pub dot_sparsity: Vec<Vec<u8>>,
}

/// `[start:limit:stride]` of one dimension of a slice.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct SliceDimensions {
    #[prost(int64, tag = "1")]
    pub start: i64,
    #[prost(int64, tag = "2")]
    pub limit: i64,
    #[prost(int64, tag = "3")]
    pub stride: i64,
}

/// The order of execution, by id of the computation.
#[derive(Clone, PartialEq, Message)]
pub struct HloScheduleProto {
    #[prost(btree_map = "int64, message", tag = "1")]
    pub sequences: BTreeMap<i64, InstructionSequence>,
}

/// The order of execution of one computation.
#[derive(Clone, PartialEq, Message)]
pub struct InstructionSequence {
    #[prost(int64, repeated, tag = "1")]
    pub instruction_ids: Vec<i64>,
}

/// Which outputs reuse which parameters' buffers.
#[derive(Clone, PartialEq, Message)]
pub struct HloInputOutputAliasProto {
    #[prost(message, repeated, tag = "1")]
    pub entries: Vec<AliasEntryProto>,
}

/// One pair of [`HloInputOutputAliasProto`]; `kind`: 1 = may alias, 2 = must alias.
#[derive(Clone, PartialEq, Message)]
pub struct AliasEntryProto {
    #[prost(int64, repeated, tag = "1")]
    pub output_shape_index: Vec<i64>,
    #[prost(int64, tag = "2")]
    pub parameter_number: i64,
    #[prost(int64, repeated, tag = "3")]
    pub parameter_shape_index: Vec<i64>,
    #[prost(int32, tag = "4")]
    pub kind: i32,
}

/// Parameters whose buffers any output may reuse.
#[derive(Clone, PartialEq, Message)]
pub struct HloBufferDonorProto {
    #[prost(message, repeated, tag = "1")]
    pub entries: Vec<BufferDonorEntryProto>,
}

/// One entry of [`HloBufferDonorProto`].
#[derive(Clone, PartialEq, Message)]
pub struct BufferDonorEntryProto {
    #[prost(int64, tag = "1")]
    pub parameter_number: i64,
    #[prost(int64, repeated, tag = "2")]
    pub parameter_shape_index: Vec<i64>,
}

/// A parameter that the previous program already brings into fast memory.
#[derive(Clone, PartialEq, Message)]
pub struct CrossProgramPrefetch {
    #[prost(int64, tag = "1")]
    pub parameter: i64,
    #[prost(int64, repeated, tag = "2")]
    pub index: Vec<i64>,
    #[prost(int64, tag = "3")]
    pub offset: i64,
}

/// Source positions of the whole module, each stored once; ids count from 1, 0 = none.
#[derive(Clone, PartialEq, Message)]
pub struct StackFrameIndexProto {
    #[prost(string, repeated, tag = "1")]
    pub file_names: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub function_names: Vec<String>,
    #[prost(message, repeated, tag = "3")]
    pub file_locations: Vec<FileLocation>,
    #[prost(message, repeated, tag = "4")]
    pub stack_frames: Vec<StackFrame>,
}

/// A place in a source file.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct FileLocation {
    #[prost(int32, tag = "1")]
    pub file_name_id: i32,
    #[prost(int32, tag = "2")]
    pub function_name_id: i32,
    #[prost(int32, tag = "3")]
    pub line: i32,
    #[prost(int32, tag = "5")]
    pub end_line: i32,
    #[prost(int32, tag = "4")]
    pub column: i32,
    #[prost(int32, tag = "6")]
    pub end_column: i32,
}

/// A frame of a call stack.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct StackFrame {
    #[prost(int32, tag = "1")]
    pub file_location_id: i32,
    #[prost(int32, tag = "2")]
    pub parent_frame_id: i32,
}

/// The devices of a module: how many replicas, of how many computations (partitions).
#[derive(Clone, PartialEq, Message)]
pub struct DeviceAssignmentProto {
    #[prost(int32, tag = "1")]
    pub replica_count: i32,
    #[prost(int32, tag = "2")]
    pub computation_count: i32,
    #[prost(message, repeated, tag = "3")]
    pub computation_devices: Vec<ComputationDevice>,
}

/// The devices of a computation, by replica.
#[derive(Clone, PartialEq, Message)]
pub struct ComputationDevice {
    #[prost(int64, repeated, tag = "1")]
    pub replica_device_ids: Vec<i64>,
}
