//! Encodes a `Module` as a `HloModuleProto`, as XLA writes it.
//!
//! Computations are written callees first and instructions get ids counted through the whole module, which every
//! version of XLA accepts. If instructions of several computations have one name, all but the first get a number
//! appended. Arrays without a layout get the row-major one. Fields that the IR does not model come from
//! [`Unmodelled::proto`](crate::Unmodelled). A text's counts of replicas and partitions become its device assignment
//! ([`assignment`]); its other unmodelled attributes have no field: they belong to the compile options. Nothing is
//! verified here: run `hlo::verify` first.

use super::messages::*;
use super::order::dependencies_first;
use super::{ProtoError, WireError, assignment, op, shape, sharding};
use crate as hlo;
use crate::ops::opcodes;
use crate::unmodelled::{self, NoMessage};
use crate::{AliasKind, CompId, Computation, InstrId, Instruction, Module, Shape, StackFrames};
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint, message};
use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::mem::take;

const MAY_ALIAS: i32 = 1;
const MUST_ALIAS: i32 = 2;

/// Encodes a module as the bytes of its `HloModuleProto`.
///
/// # Errors
/// As [`module`].
pub fn to_bytes(module: &Module) -> Result<Vec<u8>, ProtoError> {
    // As `module(…).encode_to_vec()`, but an instruction's message, which takes many times its encoding, is freed
    // before the next one is created.
    let Whole { mut proto, order, ids, fused, renamed } = whole(module)?;
    let (name, entry_name) = (take(&mut proto.name), take(&mut proto.entry_computation_name));
    let mut out =
        HloModuleProto { name, entry_computation_name: entry_name, ..HloModuleProto::default() }.encode_to_vec();
    for &comp in &order {
        let mut computation_proto = computation(module, comp, &ids)?;
        computation_proto.is_fusion_computation |= fused.contains(&comp);
        let name = take(&mut computation_proto.name);
        let mut bytes = HloComputationProto { name, ..HloComputationProto::default() }.encode_to_vec();
        for id in module.comp(comp).ids() {
            let mut proto = instruction(module.comp(comp), id, comp, &ids)?;
            if let Some(name) = renamed.get(&(comp, id)) {
                proto.name.clone_from(name);
            }
            instruction_field(&proto, &mut bytes);
        }
        // The fields after the instructions.
        bytes.extend(computation_proto.encode_to_vec());
        encode_key(COMPUTATIONS, WireType::LengthDelimited, &mut out);
        encode_varint(bytes.len() as u64, &mut out);
        out.extend(bytes);
    }
    out.extend(proto.encode_to_vec());
    Ok(out)
}

/// Field of `HloModuleProto` that holds computations.
const COMPUTATIONS: u32 = 3;
/// Field of `HloComputationProto` that holds instructions.
const INSTRUCTIONS: u32 = 2;

fn instruction_field(proto: &HloInstructionProto, out: &mut Vec<u8>) {
    message::encode(INSTRUCTIONS, proto, out);
}

/// A module's message without its computations, and the data to encode these.
struct Whole {
    proto: HloModuleProto,
    order: Vec<CompId>,
    ids: Ids,
    fused: BTreeSet<CompId>,
    renamed: Renamed,
}

/// A module as its message.
///
/// # Errors
/// Calls form a cycle, literals do not fit their shapes, or attributes of foreign text have no field.
pub fn module(module: &Module) -> Result<HloModuleProto, ProtoError> {
    let Whole { mut proto, order, ids, fused, renamed } = whole(module)?;
    let message = |&comp: &CompId| {
        let mut proto = computation(module, comp, &ids)?;
        proto.is_fusion_computation |= fused.contains(&comp);
        let instructions = module.comp(comp).ids().map(|id| instruction(module.comp(comp), id, comp, &ids));
        proto.instructions = instructions.collect::<Result<_, ProtoError>>()?;
        for (proto, id) in proto.instructions.iter_mut().zip(module.comp(comp).ids()) {
            if let Some(name) = renamed.get(&(comp, id)) {
                proto.name.clone_from(name);
            }
        }
        Ok(proto)
    };
    proto.computations = order.iter().map(message).collect::<Result<_, ProtoError>>()?;
    Ok(proto)
}

fn whole(module: &Module) -> Result<Whole, ProtoError> {
    let mut proto = HloModuleProto::decode(module.unmodelled.proto.as_slice()).map_err(WireError::new)?;
    let order = computation_order(module)?;
    let ids = Ids::new(module, &order);
    let fused = fused_computations(module);
    let entry = module
        .computations
        .get(module.entry.idx())
        .ok_or_else(|| ProtoError::missing(&module.name, "entry_computation_id"))?;
    proto.name = module.name.clone();
    proto.entry_computation_name = entry.name.clone();
    proto.entry_computation_id = ids.comp(module.entry);
    let names = proto.host_program_shape.take().unwrap_or_default().parameter_names;
    proto.host_program_shape = Some(host_program_shape(module, entry, names)?);
    proto.schedule = match module.is_scheduled {
        true => Some(schedule(module, &order, &ids, &fused)?),
        false => None,
    };
    let entries = module.input_output_alias.iter().map(|alias| AliasEntryProto {
        output_shape_index: alias.output_index.clone(),
        parameter_number: alias.parameter_number,
        parameter_shape_index: alias.parameter_index.clone(),
        kind: match alias.kind {
            AliasKind::May => MAY_ALIAS,
            AliasKind::Must => MUST_ALIAS,
        },
    });
    proto.input_output_alias = Some(HloInputOutputAliasProto { entries: entries.collect() });
    let donors = module.buffer_donors.iter().map(|(parameter_number, index)| BufferDonorEntryProto {
        parameter_number: *parameter_number,
        parameter_shape_index: index.clone(),
    });
    proto.buffer_donor = Some(HloBufferDonorProto { entries: donors.collect() });
    proto.frontend_attributes = Some(attributes(&module.frontend_attributes));
    let came_with = proto.device_assignment.take();
    proto.device_assignment = assignment::encode(&module.unmodelled.attributes, came_with, &module.name)?;
    proto.stack_frame_index = stack_frame_index(&module.stack_frames);
    let renamed = renamed(module, &order);
    Ok(Whole { proto, order, ids, fused, renamed })
}

/// Names that replace the instructions' own in the message.
type Renamed = HashMap<(CompId, InstrId), String>;

/// New names for instructions that share one with an instruction of another computation: text may use a name once in
/// each, but XLA refuses duplicates in a proto.
fn renamed(module: &Module, order: &[CompId]) -> Renamed {
    let n_instructions = module.computations.iter().map(|computation| computation.instructions.len()).sum();
    let mut taken: HashSet<Cow<'_, str>, foldhash::fast::RandomState> =
        HashSet::with_capacity_and_hasher(n_instructions, Default::default());
    let all = order.iter().flat_map(|&comp| module.comp(comp).ids().map(move |id| (comp, id)));
    let name = |(comp, id): (CompId, InstrId)| module.comp(comp).instr(id).name.as_str();
    let again: Vec<(CompId, InstrId)> = all.filter(|&place| !taken.insert(Cow::Borrowed(name(place)))).collect();
    let mut next: HashMap<&str, u64> = HashMap::new();
    let mut renamed = Renamed::new();
    for place in again {
        let next = next.entry(name(place)).or_insert(1);
        let unique = loop {
            let candidate = format!("{}.{next}", name(place));
            *next += 1;
            if taken.insert(Cow::Owned(candidate.clone())) {
                break candidate;
            }
        };
        renamed.insert(place, unique);
    }
    renamed
}

/// Computations inside a fusion. A text does not mark them; a proto does, and omits them from the schedule.
fn fused_computations(module: &Module) -> BTreeSet<CompId> {
    let instrs = module.computations.iter().flat_map(|computation| &computation.instructions);
    instrs.filter(|instr| instr.op.opcode() == "fusion").flat_map(|instr| instr.op.called()).collect()
}

/// All computations, callees first.
fn computation_order(module: &Module) -> Result<Vec<CompId>, ProtoError> {
    let callees = |computation: &Computation| -> Vec<usize> {
        computation.instructions.iter().flat_map(|instr| instr.op.called()).map(CompId::idx).collect()
    };
    let callees: Vec<Vec<usize>> = module.computations.iter().map(callees).collect();
    for (computation, callees) in module.computations.iter().zip(&callees) {
        if let Some(&missing) = callees.iter().find(|&&callee| callee >= module.computations.len()) {
            return Err(ProtoError::DanglingId {
                place: computation.name.clone(),
                field: "called_computation_ids",
                id: missing as i64,
                scope: "the module".to_string(),
            });
        }
    }
    match dependencies_first(callees.len(), |comp| callees[comp].as_slice()) {
        Ok(order) => Ok(order.into_iter().map(|comp| CompId(comp as u32)).collect()),
        Err(member) => Err(ProtoError::Cycle { place: module.computations[member].name.clone(), what: "calls" }),
    }
}

/// Ids of computations and instructions in the message: each counts from 1 in the order of the message.
struct Ids {
    comp: Vec<i64>,
    first_instr: Vec<i64>,
}

impl Ids {
    fn new(module: &Module, order: &[CompId]) -> Ids {
        let mut ids = Ids { comp: vec![0; order.len()], first_instr: vec![0; order.len()] };
        let mut next = 1;
        for (position, comp) in order.iter().enumerate() {
            ids.comp[comp.idx()] = position as i64 + 1;
            ids.first_instr[comp.idx()] = next;
            next += module.comp(*comp).instructions.len() as i64;
        }
        ids
    }

    fn comp(&self, comp: CompId) -> i64 {
        self.comp[comp.idx()]
    }

    fn instr(&self, comp: CompId, instr: InstrId) -> i64 {
        self.first_instr[comp.idx()] + i64::from(instr.0)
    }
}

/// A computation's message without its instructions.
fn computation(module: &Module, comp: CompId, ids: &Ids) -> Result<HloComputationProto, ProtoError> {
    let computation = module.comp(comp);
    let mut proto = HloComputationProto::decode(computation.unmodelled.proto.as_slice()).map_err(WireError::new)?;
    proto.name = computation.name.clone();
    if computation.unmodelled.proto.is_empty() {
        unmodelled::computation_to_proto(&computation.unmodelled.attributes, &mut proto).map_err(|name| {
            let what = format!("a proto for the text attribute {name}");
            ProtoError::Unsupported { place: computation.name.clone(), what }
        })?;
    }
    proto.id = ids.comp(comp);
    proto.root_id = ids.instr(comp, computation.root);
    let names = proto.program_shape.take().unwrap_or_default().parameter_names;
    proto.program_shape = Some(program_shape(computation, names)?);
    Ok(proto)
}

fn instruction(
    computation: &Computation,
    id: InstrId,
    comp: CompId,
    ids: &Ids,
) -> Result<HloInstructionProto, ProtoError> {
    let instr = computation.instr(id);
    let place = format!("{}/{}", computation.name, instr.name);
    let opcode = instr.op.opcode();
    if let Some(wrapped) = opcodes::short_async(&opcode) {
        let what = format!(
            "`{opcode}`, text's short form of an `async-start` around `{wrapped}` (a proto has that, with a computation of its \
             own: give XLA's proto of the module),"
        );
        return Err(ProtoError::Unsupported { place, what });
    }
    let mut proto = unmodelled::message(&instr.op.opcode(), &instr.unmodelled).map_err(|error| match error {
        NoMessage::Wire(error) => ProtoError::from(WireError::new(error)),
        NoMessage::Attribute(name) => {
            ProtoError::Unsupported { place: place.clone(), what: format!("a proto for the text attribute {name}") }
        }
    })?;
    if proto.outfeed_shape.is_none() && instr.op.opcode() == "outfeed" {
        let operand = instr.operands.first().and_then(|id| computation.instructions.get(id.idx()));
        proto.outfeed_shape = operand.map(|operand| Box::new(shape::encode(&operand.shape)));
    }
    proto.name = instr.name.clone();
    proto.opcode = instr.op.opcode().into_owned();
    proto.shape = Some(shape::encode(&instr.shape));
    proto.id = ids.instr(comp, id);
    proto.operand_ids = instr.operands.iter().map(|&operand| ids.instr(comp, operand)).collect();
    proto.control_predecessor_ids = instr.control_predecessors.iter().map(|&before| ids.instr(comp, before)).collect();
    proto.called_computation_ids = op::called(&instr.op).into_iter().map(|callee| ids.comp(callee)).collect();
    write_metadata(instr, &mut proto);
    if let Some(sharding) = &instr.sharding {
        proto.sharding = Some(Box::new(sharding::encode(sharding, &place)?));
    }
    if !instr.backend_config.is_empty() {
        proto.backend_config = instr.backend_config.clone().into_bytes();
    }
    let lhs = instr.operands.first().and_then(|lhs| computation.instructions.get(lhs.idx()));
    op::encode(&instr.op, lhs.map(|lhs| &lhs.shape), &mut proto, &place)?;
    Ok(proto)
}

/// Metadata, attributes and statistics: XLA writes all three messages even if they are empty.
fn write_metadata(instr: &Instruction, proto: &mut HloInstructionProto) {
    let metadata = proto.metadata.get_or_insert_default();
    metadata.op_type = instr.metadata.op_type.clone();
    metadata.op_name = instr.metadata.op_name.clone();
    metadata.source_file = instr.metadata.source_file.clone();
    metadata.source_line = instr.metadata.source_line;
    metadata.stack_frame_id = instr.metadata.stack_frame_id;
    proto.frontend_attributes = Some(attributes(&instr.frontend_attributes));
    proto.statistics_viz.get_or_insert_default();
}

/// The tables' message; `None` if they are empty.
fn stack_frame_index(frames: &StackFrames) -> Option<StackFrameIndexProto> {
    let location = |location: &hlo::FileLocation| {
        let hlo::FileLocation { file_name_id, function_name_id, line, end_line, column, end_column } = *location;
        FileLocation { file_name_id, function_name_id, line, end_line, column, end_column }
    };
    let frame = |frame: &hlo::StackFrame| StackFrame {
        file_location_id: frame.file_location_id,
        parent_frame_id: frame.parent_frame_id,
    };
    (!frames.is_empty()).then(|| StackFrameIndexProto {
        file_names: frames.file_names.clone(),
        function_names: frames.function_names.clone(),
        file_locations: frames.locations.iter().map(location).collect(),
        stack_frames: frames.frames.iter().map(frame).collect(),
    })
}

fn attributes(pairs: &[(String, String)]) -> FrontendAttributes {
    FrontendAttributes { map: pairs.iter().cloned().collect() }
}

/// The parameters' shapes, in the order of their numbers, and the result's.
fn signature(computation: &Computation) -> Result<(Vec<InstrId>, &Shape), ProtoError> {
    let root = computation.instructions.get(computation.root.idx());
    let root = root.ok_or_else(|| ProtoError::missing(&computation.name, "root_id"))?;
    Ok((computation.parameters(), &root.shape))
}

fn program_shape(computation: &Computation, names: Vec<String>) -> Result<ProgramShapeProto, ProtoError> {
    let (parameters, result) = signature(computation)?;
    let shapes: Vec<&Shape> = parameters.iter().map(|&id| &computation.instr(id).shape).collect();
    let instruction_names = || parameters.iter().map(|&id| computation.instr(id).name.clone()).collect();
    Ok(shape::encode_program(&shapes, result, if names.is_empty() { instruction_names() } else { names }))
}

fn host_program_shape(
    module: &Module,
    entry: &Computation,
    names: Vec<String>,
) -> Result<ProgramShapeProto, ProtoError> {
    let (parameters, result) = signature(entry)?;
    let (shapes, result): (Vec<&Shape>, &Shape) = match &module.entry_layout {
        Some(layout) => (layout.parameters.iter().collect(), &layout.result),
        None => (parameters.iter().map(|&id| &entry.instr(id).shape).collect(), result),
    };
    let names = if names.is_empty() { host_names(shapes.len()) } else { names };
    Ok(shape::encode_program(&shapes, result, names))
}

/// XLA's names for the parameters of a module's host program shape.
pub(super) fn host_names(n: usize) -> Vec<String> {
    (0..n).map(|number| format!("p{number}")).collect()
}

/// The order of execution of every computation that is not inside a fusion.
fn schedule(
    module: &Module,
    order: &[CompId],
    ids: &Ids,
    fused: &BTreeSet<CompId>,
) -> Result<HloScheduleProto, ProtoError> {
    let mut schedule = HloScheduleProto::default();
    for &comp in order {
        // In a proto some computations are marked as such.
        if fused.contains(&comp) || computation(module, comp, ids)?.is_fusion_computation {
            continue;
        }
        let instruction_ids = module.comp(comp).ids().map(|id| ids.instr(comp, id)).collect();
        schedule.sequences.insert(ids.comp(comp), InstructionSequence { instruction_ids });
    }
    Ok(schedule)
}
