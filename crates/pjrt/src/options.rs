//! Compile options, and their `CompileOptionsProto`.
//!
//! Declares only the fields this crate sets. XLA's flags are sent as `env_option_overrides`, which XLA applies on top
//! of its defaults; a `DebugOptions` message would replace all defaults by zeros.
//!
//! Source: XLA's `xla/pjrt/proto/compile_options.proto` (field numbers), `xla/xla.proto` (names of flags).

use std::collections::BTreeMap;

use prost::Message;
use serde::{Deserialize, Serialize};

use bf16scope_hlo::devices::Placement;

/// The options for compiling a program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CompileOptions {
    /// The number of replicas, which run at once on different data.
    pub n_replicas: usize,
    /// The number of partitions of a replica.
    pub n_partitions: usize,
    /// The devices' ids, grouped by replica; empty: the plugin chooses.
    pub device_ids: Vec<i32>,
    /// Whether the program is partitioned by Shardy, whose shardings it carries, instead of GSPMD.
    pub is_shardy: bool,
    /// For each parameter, whether the partitioner may choose its sharding; one value applies to all; empty: none.
    pub free_parameters: Vec<bool>,
    /// The same for each result.
    pub free_results: Vec<bool>,
    /// Whether XLA may keep more precision than the program specifies: drop an f32 → bf16 → f32 pair, and with it the
    /// user's cast. XLA's default is `true`; ours is `false`, because the casts are the point.
    pub allow_excess_precision: bool,
    /// Whether the program takes one tuple instead of one argument per parameter.
    pub parameter_is_tupled: bool,
    /// A folder for the plugin's dump of its input as MLIR text, before processing; empty: none.
    pub inputs_to: String,
    /// More of XLA's flags (fields of `DebugOptions`, or the compiler's own), by name.
    pub flags: BTreeMap<String, OptionValue>,
}

impl Default for CompileOptions {
    fn default() -> Self {
        CompileOptions {
            n_replicas: 1,
            n_partitions: 1,
            device_ids: Vec::new(),
            is_shardy: false,
            free_parameters: Vec::new(),
            free_results: Vec::new(),
            allow_excess_precision: false,
            parameter_is_tupled: false,
            inputs_to: String::new(),
            flags: BTreeMap::new(),
        }
    }
}

/// Value of one of XLA's flags.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum OptionValue {
    /// Text; also the name of an enum value.
    Str(String),
    /// A boolean.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A float.
    Float(f64),
}

impl CompileOptions {
    /// The defaults for a program with this placement on devices.
    pub fn over(placement: &Placement) -> CompileOptions {
        let Placement { devices, is_shardy, free_parameters, free_results } = placement.clone();
        CompileOptions {
            n_replicas: devices.replicas,
            n_partitions: devices.partitions,
            is_shardy,
            free_parameters,
            free_results,
            ..CompileOptions::default()
        }
    }

    /// The devices by partition and replica.
    fn device_assignment(&self) -> Option<DeviceAssignmentProto> {
        let n_partitions = self.n_partitions.max(1);
        let of_partition = |partition| ComputationDevice {
            replica_device_ids: self
                .device_ids
                .iter()
                .skip(partition)
                .step_by(n_partitions)
                .map(|&id| id.into())
                .collect(),
        };
        (!self.device_ids.is_empty()).then(|| DeviceAssignmentProto {
            replica_count: self.n_replicas as i32,
            computation_count: self.n_partitions as i32,
            computation_devices: (0..n_partitions).map(of_partition).collect(),
        })
    }

    /// The serialized `CompileOptionsProto`; the same bytes for the same options.
    pub fn encode(&self) -> Vec<u8> {
        let mut flags: BTreeMap<String, OptionOverrideProto> =
            self.flags.iter().map(|(name, value)| (name.clone(), value.into())).collect();
        flags.insert(EXCESS_PRECISION.to_string(), (&OptionValue::Bool(self.allow_excess_precision)).into());
        CompileOptionsProto {
            parameter_is_tupled_arguments: self.parameter_is_tupled,
            executable_build_options: Some(ExecutableBuildOptionsProto {
                device_ordinal: NOT_SET,
                debug_options: (!self.inputs_to.is_empty())
                    .then(|| DebugOptions { xla_dump_to: self.inputs_to.clone() }),
                num_replicas: self.n_replicas as i64,
                num_partitions: self.n_partitions as i64,
                use_spmd_partitioning: self.n_partitions > 1,
                device_assignment: self.device_assignment(),
                allow_spmd_sharding_propagation_to_output: self.free_results.clone(),
                allow_spmd_sharding_propagation_to_parameters: self.free_parameters.clone(),
                use_shardy_partitioner: self.is_shardy,
            }),
            env_option_overrides: flags,
        }
        .encode_to_vec()
    }
}

const EXCESS_PRECISION: &str = "xla_allow_excess_precision";
/// XLA's "no device ordinal given".
const NOT_SET: i64 = -1;

impl From<&OptionValue> for OptionOverrideProto {
    fn from(value: &OptionValue) -> Self {
        OptionOverrideProto {
            value: Some(match value {
                OptionValue::Str(text) => OverrideValue::Str(text.clone()),
                OptionValue::Bool(boolean) => OverrideValue::Bool(*boolean),
                OptionValue::Int(int) => OverrideValue::Int(*int),
                OptionValue::Float(float) => OverrideValue::Float(*float),
            }),
        }
    }
}

#[derive(Clone, PartialEq, Message)]
struct CompileOptionsProto {
    #[prost(bool, tag = "2")]
    parameter_is_tupled_arguments: bool,
    #[prost(message, optional, tag = "3")]
    executable_build_options: Option<ExecutableBuildOptionsProto>,
    #[prost(btree_map = "string, message", tag = "7")]
    env_option_overrides: BTreeMap<String, OptionOverrideProto>,
}

#[derive(Clone, PartialEq, Message)]
struct ExecutableBuildOptionsProto {
    #[prost(int64, tag = "1")]
    device_ordinal: i64,
    /// If present, it replaces the process's own flags; the plugin has no flags of its own.
    #[prost(message, optional, tag = "3")]
    debug_options: Option<DebugOptions>,
    #[prost(int64, tag = "4")]
    num_replicas: i64,
    #[prost(int64, tag = "5")]
    num_partitions: i64,
    #[prost(bool, tag = "6")]
    use_spmd_partitioning: bool,
    #[prost(message, optional, tag = "9")]
    device_assignment: Option<DeviceAssignmentProto>,
    #[prost(bool, repeated, tag = "12")]
    allow_spmd_sharding_propagation_to_output: Vec<bool>,
    #[prost(bool, repeated, tag = "18")]
    allow_spmd_sharding_propagation_to_parameters: Vec<bool>,
    #[prost(bool, tag = "19")]
    use_shardy_partitioner: bool,
}

/// From `xla.proto`.
#[derive(Clone, PartialEq, Message)]
struct DebugOptions {
    #[prost(string, tag = "109")]
    xla_dump_to: String,
}

/// From `xla_data.proto`.
#[derive(Clone, PartialEq, Message)]
struct DeviceAssignmentProto {
    #[prost(int32, tag = "1")]
    replica_count: i32,
    #[prost(int32, tag = "2")]
    computation_count: i32,
    /// One for each partition.
    #[prost(message, repeated, tag = "3")]
    computation_devices: Vec<ComputationDevice>,
}

#[derive(Clone, PartialEq, Message)]
struct ComputationDevice {
    /// One for each replica.
    #[prost(int64, repeated, tag = "1")]
    replica_device_ids: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct OptionOverrideProto {
    #[prost(oneof = "OverrideValue", tags = "1, 2, 3, 4")]
    value: Option<OverrideValue>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum OverrideValue {
    #[prost(string, tag = "1")]
    Str(String),
    #[prost(bool, tag = "2")]
    Bool(bool),
    #[prost(int64, tag = "3")]
    Int(i64),
    #[prost(double, tag = "4")]
    Float(f64),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_survive_the_proto_with_every_field_set() {
        let options = CompileOptions {
            n_replicas: 2,
            n_partitions: 3,
            device_ids: vec![5, 4, 3, 2, 1, 0],
            is_shardy: true,
            free_parameters: vec![true, false],
            free_results: vec![false],
            allow_excess_precision: true,
            parameter_is_tupled: true,
            inputs_to: "folder".to_string(),
            flags: BTreeMap::from([
                ("a".to_string(), OptionValue::Str("text".to_string())),
                ("b".to_string(), OptionValue::Bool(true)),
                ("c".to_string(), OptionValue::Int(-1)),
                ("d".to_string(), OptionValue::Float(0.5)),
            ]),
        };
        let proto = CompileOptionsProto::decode(options.encode().as_slice()).unwrap();
        let build = proto.executable_build_options.unwrap();
        assert_eq!((build.device_ordinal, build.num_replicas, build.num_partitions), (-1, 2, 3));
        assert_eq!(build.debug_options.unwrap().xla_dump_to, "folder");
        assert!(build.use_spmd_partitioning && proto.parameter_is_tupled_arguments);
        let assignment = build.device_assignment.unwrap();
        assert_eq!((assignment.replica_count, assignment.computation_count), (2, 3));
        let ids: Vec<_> = assignment.computation_devices.into_iter().map(|it| it.replica_device_ids).collect();
        assert_eq!(ids, [[5, 2], [4, 1], [3, 0]]);
        assert!(build.use_shardy_partitioner);
        assert_eq!(build.allow_spmd_sharding_propagation_to_parameters, [true, false]);
        assert_eq!(build.allow_spmd_sharding_propagation_to_output, [false]);
        let mut expected: BTreeMap<String, OptionOverrideProto> =
            options.flags.iter().map(|(name, value)| (name.clone(), value.into())).collect();
        expected.insert("xla_allow_excess_precision".to_string(), (&OptionValue::Bool(true)).into());
        assert_eq!(proto.env_option_overrides, expected);
    }

    #[test]
    fn excess_precision_is_off_and_said_so_by_default() {
        let proto = CompileOptionsProto::decode(CompileOptions::default().encode().as_slice()).unwrap();
        let value = proto.env_option_overrides[EXCESS_PRECISION].value.clone();
        assert_eq!(value, Some(OverrideValue::Bool(false)));
    }

    #[test]
    fn one_device_is_said_in_the_bytes_that_it_always_was() {
        // The cache of compiles uses these bytes as a key.
        let bytes = CompileOptions::over(&Placement::default()).encode();
        assert_eq!(bytes, CompileOptions::default().encode());
        assert_eq!(bytes[..17], *b"\x1a\x0f\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x20\x01\x28\x01");
    }
}
