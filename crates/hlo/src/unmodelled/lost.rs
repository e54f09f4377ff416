//! Fields of a module's proto that HLO text cannot represent.

use std::collections::BTreeMap;

use prost::Message as _;
use prost::encoding::{DecodeContext, decode_key, skip_field};

use super::to_proto;
use crate::Module;
use crate::ops::opcodes;
use crate::proto::messages::{HloInstructionProto, PrecisionConfig};

/// An instruction whose text omits a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// Its computation and name.
    pub place: String,
    /// Its opcode.
    pub opcode: String,
    /// The numbers of the omitted fields of `HloInstructionProto`, ascending. 2 is the opcode, for an op newer than
    /// this build, which no parser of text knows.
    pub fields: Vec<u32>,
}

/// The field `opcode`.
const OPCODE: u32 = 2;

/// The instructions of a module from a proto whose text would be read back with another meaning.
pub fn lost_in_text(module: &Module) -> Vec<Lost> {
    let mut lost = Vec::new();
    for computation in &module.computations {
        for instr in &computation.instructions {
            let opcode = instr.op.opcode().into_owned();
            let is_read = opcodes::is_known(&opcode);
            if is_read && instr.unmodelled.proto.is_empty() {
                continue;
            }
            let mut restored = HloInstructionProto::default();
            // An attribute that cannot be read back leaves its field unset, so it is reported.
            let _ = to_proto(&opcode, &instr.unmodelled.attributes, &mut restored);
            let (kept, restored) = (fields(&instr.unmodelled.proto), fields(&restored.encode_to_vec()));
            let defaults = defaults(&opcode, &instr.unmodelled.proto);
            let is_lost = |tag: &u32, bytes| restored.get(tag) != Some(bytes) && !defaults.contains(tag);
            let missing = kept.iter().filter(|(tag, bytes)| is_lost(tag, bytes)).map(|(tag, _)| *tag);
            let missing: Vec<u32> = (!is_read).then_some(OPCODE).into_iter().chain(missing).collect();
            if !missing.is_empty() {
                lost.push(Lost { place: format!("{}/%{}", computation.name, instr.name), opcode, fields: missing });
            }
        }
    }
    lost
}

/// The fields of a custom call that XLA writes with the value that means no attribute: one group of features, one of
/// batches, and operands of the default precision.
fn defaults(opcode: &str, unmodelled: &[u8]) -> Vec<u32> {
    let proto = match HloInstructionProto::decode(unmodelled) {
        Ok(proto) if opcode == "custom-call" => proto,
        _ => return Vec::new(),
    };
    let is_default = |config: &PrecisionConfig| {
        config.algorithm == 0 && config.operand_precision.iter().all(|precision| *precision == 0)
    };
    let fields = [
        (50, proto.feature_group_count == 1),
        (58, proto.batch_group_count == 1),
        (51, proto.precision_config.as_ref().is_some_and(is_default)),
    ];
    fields.into_iter().filter_map(|(tag, is_default)| is_default.then_some(tag)).collect()
}

/// The bytes of each field of a message; those of a repeated field are concatenated.
fn fields(mut message: &[u8]) -> BTreeMap<u32, Vec<u8>> {
    let mut fields: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
    while !message.is_empty() {
        let whole = message;
        let Ok((tag, wire_type)) = decode_key(&mut message) else { break };
        if skip_field(wire_type, tag, &mut message, DecodeContext::default()).is_err() {
            break;
        }
        fields.entry(tag).or_default().extend(&whole[..whole.len() - message.len()]);
    }
    fields
}
