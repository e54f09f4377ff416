//! Which shard of each parameter and result of a module a device holds; and a module without its shardings.
//!
//! Source: XLA's `OpSharding`; `spmd_parameters_shardings` and `spmd_output_sharding` of a compiled program, which
//! hold the shardings that a module leaves to the partitioner.

use super::alone::runs_alone;
use super::devices::Devices;
use super::proto::messages::HloModuleProto;
use super::proto::sharding;
use super::shards::ShardBox;
use super::{ArrayShape, Module, Op, Shape, Sharding};
use prost::Message as _;

/// The shardings of a module's parameters and results.
#[derive(Clone, Debug)]
pub struct Shards {
    devices: Devices,
    parameters: Vec<Option<Sharding>>,
    results: Vec<Option<Sharding>>,
}

/// Why a device's shard of an array is not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShardError {
    /// The array is split manually, or its sharding has a form that is only carried.
    #[error(
        "{what} lies over the devices in a way that is not followed here\nhelp: give it a sharding in tiles, or none"
    )]
    NotFollowed {
        /// The array: `parameter 0 (f32[4])`.
        what: String,
    },
    /// A device returned an array with other dims than its shard's.
    #[error(
        "{what}: device {device} gave {measured:?}, expected {expected:?}, its shard: this is a bug of bf16scope, or of the \
         plugin's partitioner"
    )]
    OtherDims {
        /// The array: `result 0 (f32[4])`.
        what: String,
        /// The device.
        device: usize,
        /// Dims of the returned array.
        measured: Vec<i64>,
        /// Dims of its shard.
        expected: Vec<i64>,
    },
}

impl Shards {
    /// The shardings that a verified module states; arrays without one are replicated.
    pub fn from_module(module: &Module, devices: Devices) -> Shards {
        let entry = module.entry();
        let parameters = entry.parameters().into_iter().map(|id| entry.instr(id));
        let parameters = parameters.flat_map(|instr| per_leaf(instr.sharding.as_deref(), &instr.shape)).collect();
        let root = entry.instr(entry.root);
        Shards { devices, parameters, results: per_leaf(root.sharding.as_deref(), &root.shape) }
    }

    /// The shardings that the compiled program states, or else those of the module.
    pub fn from_compiled(module: &Module, devices: Devices, compiled: &Module) -> Shards {
        let stated = Shards::from_module(module, devices);
        let Ok(proto) = HloModuleProto::decode(compiled.unmodelled.proto.as_slice()) else { return stated };
        let entry = module.entry();
        let numbered = entry.parameters().into_iter().zip(&proto.spmd_parameters_shardings);
        let parameters: Vec<Option<Sharding>> = numbered
            .flat_map(|(id, encoded)| per_leaf(Some(&sharding::decode(encoded)), &entry.instr(id).shape))
            .collect();
        let root = &entry.instr(entry.root).shape;
        let results =
            proto.spmd_output_sharding.as_ref().map(|encoded| per_leaf(Some(&sharding::decode(encoded)), root));
        Shards {
            parameters: if parameters.len() == stated.parameters.len() { parameters } else { stated.parameters },
            results: results.unwrap_or(stated.results),
            devices,
        }
    }

    /// The program's parameter array number `position`: the part that a device takes.
    ///
    /// # Errors
    /// The array is split manually, or its sharding has a form that is only carried.
    pub fn parameter(&self, position: usize, shape: &ArrayShape, device: usize) -> Result<ShardBox, ShardError> {
        self.part(self.parameters.get(position), shape, device, || format!("parameter {position} ({shape})"))
    }

    /// The program's result array number `position`: the part that a device returns.
    ///
    /// # Errors
    /// As [`Shards::parameter`].
    pub fn result(&self, position: usize, shape: &ArrayShape, device: usize) -> Result<ShardBox, ShardError> {
        self.part(self.results.get(position), shape, device, || format!("result {position} ({shape})"))
    }

    /// Assembles a result of one replica from the arrays of its partitions, without their padding.
    ///
    /// # Errors
    /// As [`Shards::parameter`]; or an array does not have its shard's dims.
    pub fn whole(
        &self,
        (position, shape): (usize, &ArrayShape),
        n_bytes: usize,
        replica: usize,
        mut given: impl FnMut(usize) -> (Vec<i64>, Vec<u8>),
    ) -> Result<Vec<u8>, ShardError> {
        let mut whole = vec![0; shape.n_elements() as usize * n_bytes];
        for partition in 0..self.devices.partitions {
            let device = replica * self.devices.partitions + partition;
            let part = self.result(position, shape, device)?;
            let (dims, bytes) = given(device);
            if dims != part.dims {
                let what = format!("result {position} ({shape})");
                return Err(ShardError::OtherDims { what, device, measured: dims, expected: part.dims });
            }
            part.place(&bytes, &mut whole, &shape.dims, n_bytes);
        }
        Ok(whole)
    }

    /// Devices are numbered by replica; the partitions of one replica are consecutive.
    fn part(
        &self,
        sharding: Option<&Option<Sharding>>,
        shape: &ArrayShape,
        device: usize,
        what: impl Fn() -> String,
    ) -> Result<ShardBox, ShardError> {
        // Only partitions split arrays: each replica holds the whole array.
        let partition = (device % self.devices.partitions) as i64;
        let sharding = sharding.and_then(Option::as_ref).filter(|_| self.devices.partitions > 1);
        let part = sharding.unwrap_or(&Sharding::Replicated).shard(&shape.dims, partition);
        part.ok_or_else(|| ShardError::NotFollowed { what: what() })
    }
}

/// The sharding of each array of a value: the elements of a tuple's sharding, or one for all.
fn per_leaf(sharding: Option<&Sharding>, shape: &Shape) -> Vec<Option<Sharding>> {
    let n = shape.leaves().len();
    match sharding {
        Some(Sharding::Tuple(all)) if all.len() == n => all.iter().cloned().map(Some).collect(),
        Some(Sharding::Tuple(_)) | None => vec![None; n],
        Some(one) => vec![Some(one.clone()); n],
    }
}

/// The module for one device, if only shardings split it: these decide where a value is computed, not what it is.
/// `None` if the program depends on its devices: through replicas, collectives, or a manually split part.
pub fn without_shardings(module: &Module) -> Option<Module> {
    const COUNT: &str = "num_partitions";
    const SHARDY: &str = "xla.sdy.";
    // Calls that convert the whole array's shape to that of a part, and back.
    const BY_HAND: [&str; 4] =
        ["SPMDFullToShardShape", "SPMDShardToFullShape", "xla.sdy.GlobalToLocalShape", "xla.sdy.LocalToGlobalShape"];
    let mut alone = module.clone();
    alone.unmodelled.attributes.retain(|(name, _)| name != COUNT);
    alone.frontend_attributes.retain(|(name, _)| !name.starts_with(SHARDY));
    for instr in alone.computations.iter_mut().flat_map(|computation| &mut computation.instructions) {
        let is_by_hand = matches!(&instr.op, Op::CustomCall(call) if BY_HAND.contains(&call.target.as_str()));
        // An op that reads its device's number computes a different value on each.
        if is_by_hand || ["partition-id", "replica-id"].contains(&&*instr.op.opcode()) {
            return None;
        }
        instr.sharding = None;
    }
    runs_alone(&alone).is_ok().then_some(alone)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text;

    fn parse(header: &str, body: &str) -> Module {
        let text = format!(
            "HloModule m{header}\n\nadd {{\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT c = f32[] add(a, b)\n}}\n\n\
             ENTRY main {{\n  x = f32[4,2] parameter(0), sharding={{devices=[2,1]<=[2]}}\n{body}}}\n"
        );
        text::parse(&text, "m").unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn a_shard_that_is_not_known_is_described() {
        let what = || "result 0 (f32[4])".to_string();
        assert_eq!(
            ShardError::NotFollowed { what: what() }.to_string(),
            "result 0 (f32[4]) lies over the devices in a way that is not followed here\nhelp: give it a sharding in tiles, or \
             none"
        );
        let other = ShardError::OtherDims { what: what(), device: 1, measured: vec![3], expected: vec![2] };
        assert_eq!(
            other.to_string(),
            "result 0 (f32[4]): device 1 gave [3], expected [2], its shard: this is a bug of bf16scope, or of the plugin's \
             partitioner"
        );
    }

    #[test]
    fn shardings_are_left_out_where_nothing_else_knows_the_devices() {
        let split = ", num_partitions=2";
        let alone = |header: &str, body: &str| without_shardings(&parse(header, body));
        let negated = alone(split, "  ROOT y = f32[4,2] negate(x), sharding={replicated}\n").unwrap();
        assert!(negated.entry().instructions.iter().all(|instr| instr.sharding.is_none()));
        assert!(runs_alone(&negated).is_ok());
        let summed = "  ROOT y = f32[4,2] all-reduce(x), channel_id=1, use_global_device_ids=true, replica_groups={{0,1}}, \
                      to_apply=add\n";
        assert_eq!(alone(split, summed), None);
        assert_eq!(alone(", replica_count=2", "  ROOT y = f32[4,2] negate(x)\n"), None);
        assert_eq!(alone(split, "  id = u32[] partition-id()\n  ROOT y = f32[] convert(id)\n"), None);
        let by_hand = "  ROOT y = f32[2,2] custom-call(x), custom_call_target=\"SPMDFullToShardShape\"\n";
        assert_eq!(alone(split, by_hand), None);
    }

    #[test]
    fn a_device_holds_its_part() {
        let module = parse(", num_partitions=2", "  ROOT y = f32[4,2] negate(x)\n");
        let shards = Shards::from_module(&module, Devices { replicas: 2, partitions: 2 });
        let shape = ArrayShape::new(crate::DType::F32, [4, 2]);
        let offsets = [0, 1, 2, 3].map(|device| shards.parameter(0, &shape, device).unwrap().offsets);
        assert_eq!(offsets, [[0, 0], [2, 0], [0, 0], [2, 0]]);
        assert_eq!(shards.result(0, &shape, 1).unwrap().dims, [4, 2]);
        let by_hand = parse(", num_partitions=2", "  ROOT y = f32[4,2] negate(x), sharding={manual}\n");
        let shards = Shards::from_module(&by_hand, Devices { replicas: 1, partitions: 2 });
        let error = shards.result(0, &shape, 0).unwrap_err().to_string();
        assert!(
            error.starts_with("result 0 (f32[4,2]) lies over the devices in a way that is not followed"),
            "{error}"
        );
    }
}
