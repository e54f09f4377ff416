//! Ops over devices in StableHLO: `all-reduce`, which the IR has, and those that it carries without modelling them.
//!
//! Source: `StablehloOps.td`; `GetCollectiveOpGroupMode` in XLA: channels, groups and flags mean the same in both.

use super::types::{Missing, missing, plain};
use bf16scope_hlo::alone::as_proto;
use bf16scope_hlo::ops::{AllReduce, ReplicaGroups};
use bf16scope_hlo::proto::attributes::{listed, take_groups};
use bf16scope_hlo::{Instruction, Shape};

pub(super) fn all_reduced(all_reduce: &AllReduce) -> Result<Vec<String>, Missing> {
    let mut said = vec![replica_groups(&of_groups(&all_reduce.replica_groups)?)];
    said.extend(channel(all_reduce.channel_id));
    said.extend(global(all_reduce.use_global_device_ids));
    Ok(said)
}

/// A collective that the IR carries, with its name in StableHLO; `None` for another opcode.
pub(super) fn carried(
    opcode: &str,
    instr: &Instruction,
    lhs: Option<&Shape>,
) -> Option<Result<(&'static str, Vec<String>), Missing>> {
    let name = match opcode {
        "all-gather" => "stablehlo.all_gather",
        "all-to-all" => "stablehlo.all_to_all",
        "collective-broadcast" => "stablehlo.collective_broadcast",
        "collective-permute" => "stablehlo.collective_permute",
        "partition-id" => "stablehlo.partition_id",
        "reduce-scatter" => "stablehlo.reduce_scatter",
        "replica-id" => "stablehlo.replica_id",
        _ => return None,
    };
    Some(said_of(opcode, instr, lhs).map(|said| (name, said)))
}

fn said_of(opcode: &str, instr: &Instruction, lhs: Option<&Shape>) -> Result<Vec<String>, Missing> {
    if matches!(opcode, "partition-id" | "replica-id") {
        return Ok(Vec::new());
    }
    let unknown = |what: &str| missing(&format!("`{opcode}` {what}"));
    let mut proto = as_proto(opcode, instr).ok_or_else(|| unknown("with attributes that are not known"))?;
    // Several arrays at once: of the others each is another op in HLO, or none.
    let n = instr.operands.len();
    if lhs.and_then(Shape::as_array).is_none() || n != 1 && opcode != "all-gather" {
        return Err(unknown(&format!("of {n} operands, expected one array")));
    }
    let mut said: Vec<String> = channel(Some(proto.channel_id).filter(|&id| id > 0)).into_iter().collect();
    let is_global = proto.use_global_device_ids;
    if is_global && !matches!(opcode, "all-gather" | "reduce-scatter") {
        return Err(unknown("with use_global_device_ids"));
    }
    said.extend(global(is_global));
    if opcode == "collective-permute" {
        let pairs = proto.source_target_pairs.iter().map(|pair| vec![pair.source, pair.target]);
        said.push(table("source_target_pairs", &pairs.collect::<Vec<_>>(), 2));
        return Ok(said);
    }
    let dimension = || match proto.dimensions[..] {
        [dimension] => Ok(dimension),
        ref dimensions => Err(unknown(&format!("along {} dimensions, expected one", dimensions.len()))),
    };
    match opcode {
        "all-gather" => said.push(format!("all_gather_dim = {} : i64", dimension()?)),
        "reduce-scatter" => said.push(format!("scatter_dimension = {} : i64", dimension()?)),
        "all-to-all" => {
            let dimension = dimension()?;
            said.push(format!("split_dimension = {dimension} : i64, concat_dimension = {dimension} : i64"));
        }
        _ => {}
    }
    let groups = take_groups(&mut proto).ok_or_else(|| missing("replica groups by a mesh"))?;
    let groups = of_groups(&groups)?;
    if opcode == "all-to-all" {
        // As many parts as a group has devices.
        let count = groups.first().ok_or_else(|| unknown("over all devices, whose number it does not say"))?.len();
        said.push(format!("split_count = {count} : i64"));
    }
    said.push(replica_groups(&groups));
    Ok(said)
}

fn of_groups(groups: &ReplicaGroups) -> Result<Vec<Vec<i64>>, Missing> {
    listed(groups).ok_or_else(|| missing("replica groups of so many devices"))
}

/// A table of ids. Groups that are shorter than others end with -1, which is nobody.
fn replica_groups(groups: &[Vec<i64>]) -> String {
    let width = groups.iter().map(Vec::len).max().unwrap_or(0);
    let padded = |group: &Vec<i64>| group.iter().copied().chain(std::iter::repeat(-1)).take(width).collect();
    table("replica_groups", &groups.iter().map(padded).collect::<Vec<Vec<i64>>>(), width)
}

fn table(name: &str, rows: &[Vec<i64>], width: usize) -> String {
    let words = rows.iter().map(|row| format!("[{}]", plain(row))).collect::<Vec<_>>().join(", ");
    let dense = if rows.is_empty() { "dense<>".to_string() } else { format!("dense<[{words}]>") };
    format!("{name} = {dense} : tensor<{}x{width}xi64>", rows.len())
}

/// Between devices, which is type 1.
fn channel(id: Option<i64>) -> Option<String> {
    Some(format!("channel_handle = #stablehlo.channel_handle<handle = {}, type = 1>", id?))
}

fn global(is_global: bool) -> Option<String> {
    is_global.then(|| "use_global_device_ids".to_string())
}
