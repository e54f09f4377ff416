//! Whether one device can run a module alone, and if not, which instruction prevents it.
//!
//! A module may be written for several replicas or partitions. XLA runs it on one device all the same, where a
//! collective returns its operand: the results are those of another program. A module may also wait for a host program
//! or for another device; without that it never returns.
//!
//! Source: the ops' semantics in XLA's `operation_semantics.md`; `OpSharding` in `xla_data.proto`.

use std::fmt;

use super::ops::ReplicaGroups;
use super::proto::attributes::take_groups;
use super::proto::messages::HloInstructionProto;
use super::sharding::{DeviceOrder, TileAssignment};
use super::{ArrayShape, Computation, Instruction, Module, Op, Shape, Sharding, proto, unmodelled};

/// The devices of `cpu:N` at most: `MAX_CPU_DEVICES` of the crate `pjrt`, which this one does not know.
const MOST_ON_A_CPU: i64 = 64;

/// Why one device alone cannot run a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotAlone {
    /// The program is for several devices.
    Devices {
        /// Their number, as far as the module states it.
        wants: i64,
        /// The evidence: `main/%y has source_target_pairs`.
        by: String,
    },
    /// The size of its result is only known at run time.
    Varies {
        /// The result's shape.
        shape: Box<Shape>,
    },
    /// It waits for a peer.
    Peer {
        /// The instruction: `main/%i`.
        instruction: String,
        /// Its opcode.
        opcode: String,
        /// The peer that it waits for.
        waits_for: &'static str,
    },
}

impl fmt::Display for NotAlone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotAlone::Devices { wants, by } => {
                let others = match *wants > MOST_ON_A_CPU {
                    true => format!("`run` and `audit` have {MOST_ON_A_CPU} devices at most; "),
                    false => format!("`run` and `audit` take `--device cpu:{wants}`; "),
                };
                write!(
                    f,
                    "{by} for {wants} devices, and this is one: it would give numbers of another program\nhelp: \
                     {others}a module for one device has no collectives over several, and no shardings"
                )
            }
            NotAlone::Varies { shape } => write!(
                f,
                "its result is {shape}: a size that varies cannot be read here\nhelp: make it the size's bound, with \
                 `pad-to-static` or by leaving `set-dimension-size` out, and give the size as a result of its own"
            ),
            NotAlone::Peer { instruction, opcode, waits_for } => write!(
                f,
                "{instruction} is `{opcode}`, which waits for {waits_for}, and there is none: it would never return\nhelp: \
                 make what comes in a parameter, and what goes out a result"
            ),
        }
    }
}

impl std::error::Error for NotAlone {}

/// Checks that one device can run a verified module alone.
///
/// # Errors
/// The largest number of devices that it needs, if more than one; else a result of variable size; else the first
/// instruction that waits for a peer.
pub fn runs_alone(module: &Module) -> Result<(), NotAlone> {
    several_devices(module).map_or_else(|| runs_by_itself(module), Err)
}

/// The same check for all the devices that the module needs.
///
/// # Errors
/// As [`runs_alone`], except for the number of devices.
pub fn runs_by_itself(module: &Module) -> Result<(), NotAlone> {
    let result = module.entry().result_shape();
    if result.leaves().into_iter().filter_map(Shape::as_array).any(ArrayShape::has_dynamic) {
        return Err(NotAlone::Varies { shape: Box::new(result.clone()) });
    }
    instructions(module).find_map(peer).map_or(Ok(()), Err)
}

/// The part of a module that needs the most devices, if more than one.
pub fn several_devices(module: &Module) -> Option<NotAlone> {
    let of_module = of_module(module).map(|(wants, by)| (wants, format!("{} has {by}", module.name)));
    let of_instructions = instructions(module).filter_map(|(comp, instr)| {
        let (wants, by) = of_instruction(instr)?;
        Some((wants, format!("{} has {by}", place(comp, instr))))
    });
    let all = of_module.into_iter().chain(of_instructions).filter(|(wants, _)| *wants > 1);
    // The first of equal needs.
    let most = all.reduce(|most, next| if next.0 > most.0 { next } else { most });
    most.map(|(wants, by)| NotAlone::Devices { wants, by })
}

pub(super) fn instructions(module: &Module) -> impl Iterator<Item = (&Computation, &Instruction)> {
    module.computations.iter().flat_map(|comp| comp.instructions.iter().map(move |instr| (comp, instr)))
}

pub(super) fn place(comp: &Computation, instr: &Instruction) -> String {
    format!("{}/%{}", comp.name, instr.name)
}

/// Replicas times partitions, if the text states them; in a proto they belong to the compile options. Otherwise the
/// mesh that Shardy leaves in the module's attributes.
fn of_module(module: &Module) -> Option<(i64, String)> {
    of_counts(module).or_else(|| size_of_meshes(module).map(|n| (n, MESHES.to_string())))
}

const MESHES: &str = "xla.sdy.meshes";

/// The number of devices of Shardy's largest mesh, if several: `{mesh = #sdy.mesh<["batch"=4, "model"=2]>, …}`.
pub(super) fn size_of_meshes(module: &Module) -> Option<i64> {
    let (_, text) = module.frontend_attributes.iter().find(|(name, _)| name == MESHES)?;
    let sizes = |mesh: &str| -> i64 {
        let sizes = mesh
            .split("\"=")
            .skip(1)
            .filter_map(|size| size.split(|c: char| !c.is_ascii_digit()).next()?.parse::<i64>().ok());
        sizes.fold(1, i64::saturating_mul)
    };
    text.split('>').map(sizes).max().filter(|&n| n > 1)
}

fn of_counts(module: &Module) -> Option<(i64, String)> {
    let count = |name: &str| {
        let (_, value) = module.unmodelled.attributes.iter().find(|(attribute, _)| attribute == name)?;
        value.parse::<i64>().ok().filter(|count| *count > 1)
    };
    let parts = ["replica_count", "num_partitions"].map(|name| count(name).map(|count| (name, count)));
    let named: Vec<(&str, i64)> = parts.into_iter().flatten().collect();
    let wants = named.iter().fold(1i64, |product, (_, count)| product.saturating_mul(*count));
    let words: Vec<String> = named.iter().map(|(name, count)| format!("{name}={count}")).collect();
    (!words.is_empty()).then(|| (wants, words.join(", ")))
}

fn of_instruction(instr: &Instruction) -> Option<(i64, String)> {
    let sharding = instr.sharding.as_deref().and_then(|sharding| Some((of_sharding(sharding)?, "a sharding")));
    let most = [most_of_groups(instr), sharding].into_iter().flatten();
    most.reduce(|most, next| if next.0 > most.0 { next } else { most }).map(|(wants, by)| (wants, by.to_string()))
}

/// How many devices the groups or pairs of a collective name, and whether it has groups or pairs.
pub(super) fn most_of_groups(instr: &Instruction) -> Option<(i64, &'static str)> {
    let groups = |groups: &ReplicaGroups| Some((of_groups(groups)?, "replica_groups"));
    match &instr.op {
        Op::AllReduce(all_reduce) => groups(&all_reduce.replica_groups),
        Op::Opaque(opaque) => {
            let mut proto = as_proto(&opaque.opcode, instr)?;
            let pairs = proto.source_target_pairs.iter().flat_map(|pair| [pair.source, pair.target]).max();
            match pairs {
                Some(greatest) => Some((greatest.saturating_add(1), "source_target_pairs")),
                None => match take_groups(&mut proto) {
                    Some(named) => groups(&named),
                    None => {
                        let mesh = proto.mesh_axes_replica_group_list?.mesh?;
                        let sizes: Vec<i64> = mesh.axes.iter().map(|axis| axis.size).collect();
                        Some((product(&sizes), "replica_groups"))
                    }
                },
            }
        }
        _ => None,
    }
}

/// The first collective without groups and pairs, which runs over all devices: `main/%y`.
pub fn collective_of_all(module: &Module) -> Option<String> {
    let is_of_all = |instr: &Instruction| match &instr.op {
        Op::AllReduce(all_reduce) => all_reduce.replica_groups.is_all(),
        Op::Opaque(opaque) => {
            OVER_DEVICES.contains(&opaque.opcode.as_str())
                && as_proto(&opaque.opcode, instr)
                    .and_then(|mut proto| take_groups(&mut proto))
                    .is_some_and(|groups| groups.is_all())
        }
        _ => false,
    };
    instructions(module).find(|(_, instr)| is_of_all(instr)).map(|(comp, instr)| place(comp, instr))
}

/// Opcodes whose groups may be all devices.
const OVER_DEVICES: [&str; 5] = ["all-gather", "all-gather-start", "all-reduce-start", "all-to-all", "reduce-scatter"];

/// The unmodelled attributes of an instruction, as a message; `None` for an attribute without a field, which encoding
/// reports.
pub fn as_proto(opcode: &str, instr: &Instruction) -> Option<HloInstructionProto> {
    unmodelled::message(opcode, &instr.unmodelled).ok()
}

fn of_groups(groups: &ReplicaGroups) -> Option<i64> {
    match groups {
        ReplicaGroups::List(groups) => Some(groups.iter().flatten().max()?.saturating_add(1)),
        ReplicaGroups::Iota { dims, .. } => Some(product(dims)),
    }
}

fn product(dims: &[i64]) -> i64 {
    dims.iter().fold(1, |product, &dim| product.saturating_mul(dim))
}

pub(super) fn of_sharding(sharding: &Sharding) -> Option<i64> {
    match sharding {
        Sharding::Replicated | Sharding::Manual => None,
        Sharding::Maximal { device } => Some(device.saturating_add(1)),
        Sharding::Tiled(TileAssignment { devices, .. }) => Some(match devices {
            DeviceOrder::List(devices) => devices.iter().max()?.saturating_add(1),
            DeviceOrder::Iota { reshape_dims, .. } => product(reshape_dims),
        }),
        Sharding::Tuple(shardings) => shardings.iter().filter_map(of_sharding).max(),
        // Subgroups of devices, and values that are sharded with others.
        Sharding::Raw { .. } => {
            let message = proto::sharding::encode(sharding, "").ok()?;
            Some(match message.iota_reshape_dims.as_slice() {
                [] => message.tile_assignment_devices.iter().max()?.saturating_add(1),
                dims => product(dims),
            })
        }
    }
}

/// Opcodes that wait, and what they wait for.
const WAITING: [(&str, &str); 6] = [
    ("infeed", "a host program that feeds it"),
    ("outfeed", "a host program that takes what it gives"),
    ("recv", "somebody who sends"),
    ("recv-done", "somebody who sends"),
    ("send", "somebody who receives"),
    ("send-done", "somebody who receives"),
];

fn peer((comp, instr): (&Computation, &Instruction)) -> Option<NotAlone> {
    let opcode = instr.op.opcode();
    let (_, waits_for) = WAITING.iter().find(|(waiting, _)| *waiting == opcode)?;
    Some(NotAlone::Peer { instruction: place(comp, instr), opcode: opcode.to_string(), waits_for })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{proto, text};

    /// The result for a module as it was read, and as it comes back from a proto.
    fn said(header: &str, body: &str) -> [String; 2] {
        let text = format!(
            "HloModule m{header}\n\nadd {{\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT c = f32[] add(a, \
             b)\n}}\n\nENTRY main {{\n  x = f32[4]{{0}} parameter(0)\n{body}}}\n"
        );
        let module = text::parse(&text, "m").unwrap();
        let bytes = proto::encode::to_bytes(&module).unwrap();
        let decoded = proto::decode::from_bytes(&bytes).unwrap();
        [module, decoded].map(|module| match runs_alone(&module) {
            Ok(()) => "alone".to_string(),
            Err(error) => {
                error.to_string().lines().next().unwrap().replace(": it would give numbers of another program", "")
            }
        })
    }

    #[track_caller]
    fn check(header: &str, body: &str, expected: &str) {
        assert_eq!(said(header, body), [expected, expected], "{body}");
    }

    #[test]
    fn what_wants_several_devices_is_named() {
        let reduce = |groups: &str| format!("  ROOT y = f32[4]{{0}} all-reduce(x){groups}, to_apply=add\n");
        check("", &reduce(""), "alone");
        check("", &reduce(", replica_groups={{0}}"), "alone");
        check(
            "",
            &reduce(", replica_groups={{0,1},{2,3}}"),
            "main/%y has replica_groups for 4 devices, and this is one",
        );
        check("", &reduce(", replica_groups=[2,4]<=[8]"), "main/%y has replica_groups for 8 devices, and this is one");
        let permute = "  ROOT y = f32[4]{0} collective-permute(x), source_target_pairs={{0,1},{1,0}}\n";
        check("", permute, "main/%y has source_target_pairs for 2 devices, and this is one");
        let gather = "  ROOT y = f32[8]{0} all-gather(x), replica_groups={{0,1}}, dimensions={0}\n";
        check("", gather, "main/%y has replica_groups for 2 devices, and this is one");
        let negate = |sharding: &str| format!("  ROOT y = f32[4]{{0}} negate(x), sharding={sharding}\n");
        check("", &negate("{replicated}"), "alone");
        check("", &negate("{devices=[4]<=[4]}"), "main/%y has a sharding for 4 devices, and this is one");
        check("", &negate("{devices=[2]0,1}"), "main/%y has a sharding for 2 devices, and this is one");
        check("", &negate("{maximal device=1}"), "main/%y has a sharding for 2 devices, and this is one");
        check("", &negate("{unknown}"), "alone");
        for groups in ["devices=[1,2]<=[2] last_tile_dims={manual}", "devices=[2]0,1 shard_as 1"] {
            let sharding = format!("{{{groups}}}");
            check("", &negate(&sharding), "main/%y has a sharding for 2 devices, and this is one");
        }
        let [text, proto] = said(", replica_count=2, num_partitions=4", "  ROOT y = f32[4]{0} negate(x)\n");
        assert_eq!(text, "m has replica_count=2, num_partitions=4 for 8 devices, and this is one");
        assert_eq!(proto, text);
    }

    #[test]
    fn a_result_of_a_size_that_varies_is_refused() {
        // The result would be as long as its bound, with arbitrary data behind the size.
        let body = "  n = s32[] constant(2)\n  ROOT d = f32[<=4]{0} set-dimension-size(x, n), dimensions={0}\n";
        check("", body, "its result is f32[<=4]{0}: a size that varies cannot be read here");
    }

    #[test]
    fn each_refusal_says_what_to_do() {
        let errors = [
            (
                NotAlone::Devices { wants: 4, by: "m has replica_count=4".into() },
                "m has replica_count=4 for 4 devices, and this is one: it would give numbers of another program\nhelp: \
                 `run` and `audit` take `--device cpu:4`; a module for one device has no collectives over several, and \
                 no shardings",
            ),
            (
                NotAlone::Devices { wants: 65, by: "m has replica_count=65".into() },
                "m has replica_count=65 for 65 devices, and this is one: it would give numbers of another program\nhelp: \
                 `run` and `audit` have 64 devices at most; a module for one device has no collectives over several, and \
                 no shardings",
            ),
            (
                NotAlone::Varies { shape: Box::new(Shape::array(crate::DType::S32, [3])) },
                "its result is s32[3]: a size that varies cannot be read here\nhelp: make it the size's bound, with \
                 `pad-to-static` or by leaving `set-dimension-size` out, and give the size as a result of its own",
            ),
            (
                NotAlone::Peer { instruction: "main/%i".into(), opcode: "recv".into(), waits_for: "a sender" },
                "main/%i is `recv`, which waits for a sender, and there is none: it would never return\nhelp: make what \
                 comes in a parameter, and what goes out a result",
            ),
        ];
        for (error, expected) in errors {
            assert_eq!(error.to_string(), expected);
        }
    }

    #[test]
    fn what_waits_is_named_with_what_it_waits_for() {
        check(
            "",
            "  t = token[] after-all()\n  i = (f32[4]{0}, token[]) infeed(t)\n  ROOT y = f32[4]{0} get-tuple-element(i), index=0\n",
            "main/%i is `infeed`, which waits for a host program that feeds it, and there is none: it would never return",
        );
    }
}
