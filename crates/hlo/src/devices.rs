//! The devices that a module is for, and the compile options for them.
//!
//! The text of a module has both counts in its first line, if a compiler printed it. A proto, and the text that JAX
//! prints before compilation, leave them to the compile options: then the shardings, meshes and groups of collectives
//! show how many devices they need.
//!
//! Source: `HloModuleConfig`; `CollectiveOpGroupMode` in XLA's `collective_ops_utils.h`; Shardy's round trip
//! (`xla/service/spmd/shardy`).

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::alone::{as_proto, instructions, most_of_groups, of_sharding, place, size_of_meshes};
use super::ops::ReplicaGroups;
use super::proto::attributes::take_groups;
use super::proto::messages::{HloInstructionProto, MeshAxesReplicaGroupListProto};
use super::{Computation, Instruction, Module, Op, Shape, Sharding};

/// The number of devices that a program is compiled for: its replicas, and the partitions of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Devices {
    /// Replicas: copies of the program, which run at the same time on different data.
    pub replicas: usize,
    /// Partitions of each replica.
    pub partitions: usize,
}

impl Devices {
    /// One device.
    pub const ONE: Devices = Devices { replicas: 1, partitions: 1 };

    /// The total number.
    pub const fn n(self) -> usize {
        self.replicas.saturating_mul(self.partitions)
    }

    /// Whether there is only one.
    pub fn is_one(self) -> bool {
        self == Devices::ONE
    }
}

impl Default for Devices {
    fn default() -> Self {
        Devices::ONE
    }
}

/// Counts of one are omitted: `8 partitions`, `4 replicas of 2 partitions`.
impl fmt::Display for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.replicas, self.partitions) {
            (1, 1) => f.write_str("1 device"),
            (1, partitions) => write!(f, "{partitions} partitions"),
            (replicas, 1) => write!(f, "{replicas} replicas"),
            (replicas, partitions) => write!(f, "{replicas} replicas of {partitions} partitions"),
        }
    }
}

/// The placement of a module on devices: what belongs to the compile options, not to the program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// The number of devices.
    pub devices: Devices,
    /// Whether Shardy partitions it (the module has Shardy's shardings), not GSPMD.
    pub is_shardy: bool,
    /// For each parameter whether the partitioner may choose its sharding.
    pub free_parameters: Vec<bool>,
    /// The same for each result.
    pub free_results: Vec<bool>,
}

/// Why the devices of a module cannot be determined.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlacementError {
    /// A compiler has partitioned the module already.
    #[error(
        "XLA compiled this module already ({said}), so it is one device's part, with its communication written out\nhelp: \
         give the module as it is before optimization, such as jax's lowered.as_text(\"hlo\") or the \
         before_optimizations file of --xla_dump_to"
    )]
    Compiled {
        /// The evidence for that.
        said: String,
    },
    /// A part of the module needs more devices than there are.
    #[error("{by} for {wants} devices, and the module is for {said}\nhelp: give both the same number")]
    Disagreement {
        /// The part: `main/%y has a sharding`.
        by: String,
        /// The number of devices that it needs.
        wants: i64,
        /// The number of devices according to the rest of the module.
        said: Devices,
    },
    /// There are collectives, and it is not known whether their devices are replicas or partitions.
    #[error(
        "{by} for {wants} devices, and nothing says whether these are replicas or partitions\nhelp: write replica_count={wants} \
         or num_partitions={wants} in the first line of the module's text"
    )]
    Unsaid {
        /// The part that needs them.
        by: String,
        /// The number of devices that it needs.
        wants: i64,
    },
}

impl Placement {
    /// Determines the placement of a module from its contents.
    ///
    /// Parameters and results without a sharding are left to the partitioner, as JAX asks for it, unless the module's
    /// text says which are.
    ///
    /// # Errors
    /// The module is partitioned already, its parts disagree, or its collectives may be of replicas or of partitions.
    pub fn from_module(module: &Module) -> Result<Placement, PlacementError> {
        let (replicas, partitions) = (count(module, "replica_count"), count(module, "num_partitions"));
        let needs = Needs::from_module(module);
        let or = |stated: Option<usize>, need: &Option<Need>| {
            stated.or_else(|| usize::try_from(need.as_ref()?.wants).ok()).unwrap_or(1)
        };
        let devices =
            Devices { replicas: or(replicas, &needs.replicas), partitions: or(partitions, &needs.partitions) };
        if module.is_scheduled && !devices.is_one() {
            let text = format!("is_scheduled=true, {devices}");
            return Err(PlacementError::Compiled { said: text });
        }
        let exceeds =
            |need: Option<Need>, n: usize| need.filter(|need| usize::try_from(need.wants).is_ok_and(|wants| wants > n));
        let too_many = [(needs.replicas, devices.replicas), (needs.partitions, devices.partitions)];
        let disagrees = too_many.into_iter().find_map(|(need, n)| exceeds(need, n));
        if let Some(Need { wants, by }) = disagrees {
            return Err(PlacementError::Disagreement { by, wants, said: devices });
        }
        if let Some(Need { wants, by }) = exceeds(needs.either, devices.n()) {
            let is_unsaid = replicas.is_none() && partitions.is_none() && devices.is_one();
            return Err(match is_unsaid {
                true => PlacementError::Unsaid { by, wants },
                false => PlacementError::Disagreement { by, wants, said: devices },
            });
        }
        if devices.partitions == 1 {
            return Ok(Placement { devices, ..Placement::default() });
        }
        Ok(Placement {
            devices,
            is_shardy: is_shardy(module),
            free_parameters: flags(module, "parameters").unwrap_or_else(|| free_parameters(module)),
            free_results: flags(module, "output").unwrap_or_else(|| free_results(module)),
        })
    }
}

/// Whether a partitioner may split a module's values over devices: as far as is known, it is for several partitions.
pub fn is_partitioned(module: &Module) -> bool {
    let says = |instr: &Instruction| instr.sharding.as_deref().and_then(of_sharding).is_some_and(|wants| wants > 1);
    count(module, "num_partitions").is_some_and(|count| count > 1)
        || size_of_meshes(module).is_some()
        || instructions(module).any(|(_, instr)| says(instr))
}

/// The devices of a module that a compiler has printed, from its text.
pub fn devices_of_compiled(module: &Module) -> Devices {
    let count = |name| count(module, name).unwrap_or(1);
    Devices { replicas: count("replica_count"), partitions: count("num_partitions") }
}

fn attribute<'a>(module: &'a Module, name: &str) -> Option<&'a str> {
    let entry = module.unmodelled.attributes.iter().find(|(attribute, _)| attribute == name);
    entry.map(|(_, value)| value.as_str())
}

fn count(module: &Module, name: &str) -> Option<usize> {
    attribute(module, name)?.parse().ok().filter(|&count| count > 0)
}

/// `allow_spmd_sharding_propagation_to_output={true,false}`.
fn flags(module: &Module, direction: &str) -> Option<Vec<bool>> {
    let text = attribute(module, &format!("allow_spmd_sharding_propagation_to_{direction}"))?;
    let inside = text.trim().strip_prefix('{')?.strip_suffix('}')?;
    inside.split(',').map(|flag| flag.trim().parse().ok()).collect()
}

/// A part of a module that needs devices.
struct Need {
    wants: i64,
    by: String,
}

/// For each kind of device the part that needs the most.
#[derive(Default)]
struct Needs {
    replicas: Option<Need>,
    partitions: Option<Need>,
    /// Collectives whose ids number replicas and partitions, or partitions.
    either: Option<Need>,
}

impl Needs {
    fn from_module(module: &Module) -> Needs {
        let mut needs = Needs::default();
        if let Some(wants) = size_of_meshes(module) {
            more(&mut needs.partitions, wants, || format!("{} has a mesh", module.name));
        }
        for (comp, instr) in instructions(module) {
            if let Some(wants) = instr.sharding.as_deref().and_then(of_sharding) {
                more(&mut needs.partitions, wants, || format!("{} has a sharding", place(comp, instr)));
            }
            needs.add_groups(comp, instr);
        }
        needs
    }

    fn add_groups(&mut self, comp: &Computation, instr: &Instruction) {
        let Some((wants, by)) = most_of_groups(instr) else { return };
        let has_channel = match &instr.op {
            Op::AllReduce(all_reduce) => all_reduce.channel_id.is_some(),
            Op::Opaque(opaque) => as_proto(&opaque.opcode, instr).is_some_and(|proto| proto.channel_id > 0),
            _ => false,
        };
        let kind = if has_channel { &mut self.either } else { &mut self.replicas };
        more(kind, wants, || format!("{} has {by}", place(comp, instr)));
    }
}

/// Keeps the larger need; of two equal ones, the first.
fn more(need: &mut Option<Need>, wants: i64, by: impl FnOnce() -> String) {
    if wants > 1 && need.as_ref().is_none_or(|need| wants > need.wants) {
        *need = Some(Need { wants, by: by() });
    }
}

/// The prefix of attributes that Shardy leaves.
const SHARDY: &str = "xla.sdy.";

fn is_shardy(module: &Module) -> bool {
    let has = |attributes: &[(String, String)]| attributes.iter().any(|(name, _)| name.starts_with(SHARDY));
    has(&module.frontend_attributes) || instructions(module).any(|(_, instr)| has(&instr.frontend_attributes))
}

fn says_sharding(instr: &Instruction) -> bool {
    instr.sharding.is_some() || instr.frontend_attributes.iter().any(|(name, _)| name.starts_with(SHARDY))
}

fn free_parameters(module: &Module) -> Vec<bool> {
    let entry = module.entry();
    entry.parameters().into_iter().map(|id| !says_sharding(entry.instr(id))).collect()
}

/// How the sharding of a result is stated: on the root, or on the operand of its tuple, through Shardy's custom call.
fn free_results(module: &Module) -> Vec<bool> {
    let entry = module.entry();
    let root = entry.instr(entry.root);
    let n = match &root.shape {
        Shape::Tuple(elements) => elements.len(),
        _ => 1,
    };
    match root.sharding.as_deref() {
        Some(Sharding::Tuple(shardings)) if shardings.len() == n => shardings.iter().map(is_unknown).collect(),
        Some(sharding) => vec![is_unknown(sharding); n],
        None => {
            let is_free = |id: &super::InstrId| !is_result_sharding(entry.instr(*id));
            match root.op {
                Op::Tuple => root.operands.iter().map(is_free).collect(),
                _ => vec![is_free(&entry.root); n],
            }
        }
    }
}

fn is_unknown(sharding: &Sharding) -> bool {
    matches!(sharding, Sharding::Raw { text, .. } if text == "unknown")
}

fn is_result_sharding(instr: &Instruction) -> bool {
    const RESULT: &str = "xla.sdy.FuncResultSharding";
    matches!(&instr.op, Op::CustomCall(call) if call.target == RESULT)
}

/// How many devices are in each group of a collective.
///
/// # Source
/// `GetCollectiveOpGroupMode`; a permutation's pairs have no groups, and all senders and receivers count.
pub fn participants(instr: &HloInstructionProto, devices: Devices) -> usize {
    if !instr.source_target_pairs.is_empty() {
        let ids: BTreeSet<i64> = instr.source_target_pairs.iter().flat_map(|pair| [pair.source, pair.target]).collect();
        return ids.len();
    }
    let has_channel = instr.channel_id > 0;
    // Ids of a group are replicas, and all partitions of each take part.
    let is_of_replicas =
        has_channel && !instr.use_global_device_ids && !PARTITIONS_ALONE.contains(&instr.opcode.as_str());
    let size = match take_groups(&mut instr.clone()) {
        Some(ReplicaGroups::List(groups)) => groups.iter().map(Vec::len).max(),
        Some(ReplicaGroups::Iota { dims, .. }) => dims.last().and_then(|&size| usize::try_from(size).ok()),
        None => instr.mesh_axes_replica_group_list.as_deref().and_then(size_of_axes),
    };
    // Without groups, all devices take part.
    match size.filter(|&size| size > 0) {
        Some(size) if is_of_replicas => size.saturating_mul(devices.partitions),
        Some(size) => size,
        None if has_channel => devices.n(),
        None => devices.replicas,
    }
}

/// The number of devices along the mesh axes that form a group.
fn size_of_axes(list: &MeshAxesReplicaGroupListProto) -> Option<usize> {
    let mesh = list.mesh.as_ref()?;
    let sizes = list.axes.iter().map(|axis| match &axis.sub_axis_info {
        Some(part) => Some(part.size),
        None => Some(mesh.axes.get(usize::try_from(axis.mesh_axis_index).ok()?)?.size),
    });
    sizes.map(|size| usize::try_from(size?).ok()).try_fold(1usize, |product, size| product.checked_mul(size?))
}

/// With a channel, these groups are of partitions.
const PARTITIONS_ALONE: [&str; 4] =
    ["all-to-all", "collective-broadcast", "collective-permute", "collective-permute-start"];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{proto, text};

    /// The placement of a module as it was read, and as it comes back from a proto.
    fn placed(header: &str, body: &str) -> [Result<Placement, String>; 2] {
        let text = format!(
            "HloModule m{header}\n\nadd {{\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT c = f32[] add(a, \
             b)\n}}\n\nENTRY main {{\n{body}}}\n"
        );
        let module = text::parse(&text, "m").unwrap();
        let decoded = proto::decode::from_bytes(&proto::encode::to_bytes(&module).unwrap()).unwrap();
        [module, decoded].map(|module| Placement::from_module(&module).map_err(|error| error.to_string()))
    }

    fn counts(header: &str, body: &str) -> [Option<(usize, usize)>; 2] {
        placed(header, body).map(|placed| placed.ok().map(|it| (it.devices.replicas, it.devices.partitions)))
    }

    const X: &str = "  x = f32[4]{0} parameter(0)\n";

    #[test]
    fn counts_meshes_shardings_and_groups_say_over_how_many() {
        let negate = format!("{X}  ROOT y = f32[4]{{0}} negate(x)\n");
        assert_eq!(counts("", &negate), [Some((1, 1)); 2]);
        assert_eq!(counts(", replica_count=2, num_partitions=4", &negate), [Some((2, 4)); 2]);
        let mesh = ", frontend_attributes={xla.sdy.meshes={mesh = #sdy.mesh<[\"data\"=4, \"model\"=2]>}}";
        assert_eq!(counts(mesh, &negate), [Some((1, 8)); 2]);
        let split = format!("{X}  ROOT y = f32[4]{{0}} negate(x), sharding={{devices=[4]<=[4]}}\n");
        assert_eq!(counts("", &split), [Some((1, 4)); 2]);
        assert_eq!(counts(", replica_count=2", &split), [Some((2, 4)); 2]);
        let reduce = |with: &str| format!("{X}  ROOT y = f32[4]{{0}} all-reduce(x){with}, to_apply=add\n");
        assert_eq!(counts("", &reduce(", replica_groups={{0,1,2,3}}")), [Some((4, 1)); 2]);
        let global = ", channel_id=1, replica_groups={{0,1,2,3}}, use_global_device_ids=true";
        assert_eq!(counts(", num_partitions=4", &reduce(global))[0], Some((1, 4)));
        assert_eq!(counts(", replica_count=2, num_partitions=2", &reduce(global))[0], Some((2, 2)));
    }

    #[test]
    fn what_cannot_be_said_to_a_compiler_is_an_error() {
        let split = format!("{X}  ROOT y = f32[4]{{0}} negate(x), sharding={{devices=[4]<=[4]}}\n");
        let error = |header: &str, body: &str| placed(header, body)[0].clone().unwrap_err();
        assert_eq!(
            error(", num_partitions=2", &split),
            "main/%y has a sharding for 4 devices, and the module is for 2 partitions\nhelp: give both the same number"
        );
        let reduce = format!(
            "{X}  ROOT y = f32[4]{{0}} all-reduce(x), channel_id=1, replica_groups={{{{0,1}}}}, \
             use_global_device_ids=true, to_apply=add\n"
        );
        assert_eq!(
            error("", &reduce),
            "main/%y has replica_groups for 2 devices, and nothing says whether these are replicas or partitions\nhelp: \
             write replica_count=2 or num_partitions=2 in the first line of the module's text"
        );
        assert_eq!(counts(", replica_count=2", &reduce)[0], Some((2, 1)));
        assert_eq!(
            error(", is_scheduled=true, num_partitions=8", &format!("{X}  ROOT y = f32[4]{{0}} negate(x)\n"))
                .lines()
                .next()
                .unwrap(),
            "XLA compiled this module already (is_scheduled=true, 8 partitions), so it is one device's part, with its \
             communication written out"
        );
    }

    #[test]
    fn a_compiled_module_is_refused_with_what_to_give_instead() {
        let compiled = PlacementError::Compiled { said: "is_scheduled=true".to_string() };
        assert_eq!(
            compiled.to_string(),
            "XLA compiled this module already (is_scheduled=true), so it is one device's part, with its communication written \
             out\nhelp: give the module as it is before optimization, such as jax's lowered.as_text(\"hlo\") or the \
             before_optimizations file of --xla_dump_to"
        );
    }

    #[test]
    fn what_has_no_sharding_is_left_to_the_partitioner() {
        let body = |results: &str| {
            format!(
                "  x = f32[4]{{0}} parameter(0), sharding={{devices=[2]<=[2]}}\n  w = f32[4]{{0}} parameter(1)\n  y = \
                 f32[4]{{0}} add(x, w)\n  ROOT t = (f32[4]{{0}}, f32[4]{{0}}) tuple(y, w){results}\n"
            )
        };
        let free = |header: &str, body: &str| {
            let placed = placed(header, body)[0].clone().unwrap();
            (placed.free_parameters, placed.free_results)
        };
        assert_eq!(free("", &body("")), (vec![false, true], vec![true, true]));
        let both = body(", sharding={{devices=[2]<=[2]}, {replicated}}");
        assert_eq!(free("", &both), (vec![false, true], vec![false, false]));
        let header = ", allow_spmd_sharding_propagation_to_parameters={true}, \
                      allow_spmd_sharding_propagation_to_output={false,true}";
        assert_eq!(free(header, &both), (vec![true], vec![false, true]));
    }

    #[test]
    fn a_group_is_of_replicas_partitions_or_devices() {
        let devices = Devices { replicas: 2, partitions: 4 };
        let count = |with: &str, opcode: &str| {
            let apply = if opcode == "all-reduce" { ", to_apply=add" } else { "" };
            let text = format!(
                "HloModule m\n\nadd {{\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT c = f32[] add(a, \
                 b)\n}}\n\nENTRY main {{\n{X}  ROOT y = f32[4]{{0}} {opcode}(x){with}{apply}\n}}\n"
            );
            let module = text::parse(&text, "m").unwrap();
            let bytes = proto::encode::to_bytes(&module).unwrap();
            let proto: proto::messages::HloModuleProto = prost::Message::decode(bytes.as_slice()).unwrap();
            let entry = proto.computations.iter().find(|it| it.id == proto.entry_computation_id).unwrap();
            participants(entry.instructions.iter().find(|it| it.opcode == opcode).unwrap(), devices)
        };
        assert_eq!(count("", "all-reduce"), 2);
        assert_eq!(count(", channel_id=1", "all-reduce"), 8);
        assert_eq!(count(", replica_groups={{0},{1}}", "all-reduce"), 1);
        assert_eq!(count(", channel_id=1, replica_groups={{0},{1}}", "all-reduce"), 4);
        let global = ", channel_id=1, replica_groups=[4,2]<=[8], use_global_device_ids=true";
        assert_eq!(count(global, "all-reduce"), 2);
        assert_eq!(count(", channel_id=1, source_target_pairs={{0,1},{1,2}}", "collective-permute"), 3);
    }
}
