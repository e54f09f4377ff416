//! Checks of collectives that the IR carries without modelling them: groups and pairs that no set of devices can form.
//!
//! Source: `CheckReplicaGroups`, `CheckDuplicatedSourceOrTarget` and `GetCollectiveOpGroupMode` in XLA.

use std::collections::BTreeSet;

use super::Errors;
use super::ids::comps;
use crate::alone::as_proto;
use crate::ops::RuleError;
use crate::ops::collective::check_groups;
use crate::proto::attributes::take_groups;
use crate::proto::messages::HloInstructionProto;
use crate::{Module, Op};

pub(super) fn check(module: &Module, errors: &mut Errors<'_>) {
    for (comp, computation) in comps(module) {
        for id in computation.ids() {
            let instr = computation.instr(id);
            let Op::Opaque(opaque) = &instr.op else { continue };
            // Attributes that cannot be read are reported when the module is encoded.
            let Some(proto) = as_proto(&opaque.opcode, instr) else { continue };
            if let Err(error) = check_one(&opaque.opcode, proto) {
                errors.instruction(comp, id, error);
            }
        }
    }
}

fn check_one(opcode: &str, mut proto: HloInstructionProto) -> Result<(), RuleError> {
    check_pairs(opcode, &proto)?;
    let (channel, is_global) = (proto.channel_id, proto.use_global_device_ids);
    let Some(groups) = take_groups(&mut proto) else { return Ok(()) };
    // Devices outside of all groups of a collective-broadcast get zeros.
    if opcode != "collective-broadcast" {
        check_groups("collective/groups", &groups)?;
    }
    if is_global && (channel < 1 || groups.is_all()) {
        let message = format!("{opcode} has use_global_device_ids, expected also a channel_id and replica_groups");
        return Err(RuleError::new("collective/mode", message).with_help("list the groups by global device id"));
    }
    Ok(())
}

/// Each device sends at most once and receives at most once.
fn check_pairs(opcode: &str, proto: &HloInstructionProto) -> Result<(), RuleError> {
    // A send and its recv of one chain may repeat a device.
    if !opcode.starts_with("collective-permute") {
        return Ok(());
    }
    let (mut sources, mut targets) = (BTreeSet::new(), BTreeSet::new());
    for pair in &proto.source_target_pairs {
        for (role, device, seen) in [("source", pair.source, &mut sources), ("target", pair.target, &mut targets)] {
            if device < 0 {
                let message = format!("source_target_pairs has {role} {device}, expected 0 or more");
                return Err(RuleError::new("collective/pairs", message));
            }
            if !seen.insert(device) {
                let message = format!("source_target_pairs has {role} {device} twice, expected each at most once");
                return Err(RuleError::new("collective/pairs", message));
            }
        }
    }
    Ok(())
}
