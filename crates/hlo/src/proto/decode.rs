//! Decodes a `HloModuleProto` to a `Module`.
//!
//! The input is not trusted: any bytes result in a module or an error. Computations and instructions may be in any
//! order and have any ids; they are sorted callees and operands first, and otherwise keep their order. Fields that the
//! IR does not model stay in [`Unmodelled::proto`](crate::Unmodelled), so that [`encode`] writes them back. Shapes are
//! not checked against the ops: that is `hlo::verify`.

use super::messages::*;
use super::order::dependencies_first;
use super::{MAX_BYTES, ProtoError, WireError, assignment, cost, encode, op, shape, sharding};
use crate::{self as hlo, unmodelled};
use crate::{
    Alias, AliasKind, CompId, Computation, EntryLayout, InstrId, Instruction, Metadata, Module, Shape, StackFrames,
    Unmodelled,
};
use prost::Message;
use std::collections::HashMap;
use std::mem::take;

/// Checks that the module in the bytes of a `HloModuleProto` is small enough for [`from_bytes`].
///
/// # Errors
/// [`ProtoError::TooLarge`].
pub fn check_size(bytes: &[u8]) -> Result<(), ProtoError> {
    fits(bytes, false)
}

fn fits(bytes: &[u8], is_wrapped: bool) -> Result<(), ProtoError> {
    let n_bytes = cost::bytes_needed(bytes, is_wrapped).saturating_add(bytes.len() as u64);
    if n_bytes > MAX_BYTES { Err(ProtoError::TooLarge { n_bytes }) } else { Ok(()) }
}

/// A module from the bytes of an `HloModuleProto`, or of an `HloProto` or `HloModuleProtoWithConfig` around one.
///
/// # Errors
/// The bytes are none of these, the module takes more than [`MAX_BYTES`] of memory, or [`module`] refuses it.
pub fn from_bytes(bytes: &[u8]) -> Result<Module, ProtoError> {
    // The wrappers have the module as field 1, which in the module itself is the name; so a wrapper that is read as a
    // module is an error or has no computations.
    let bare = fits(bytes, false).and_then(|()| Ok(HloModuleProto::decode(bytes).map_err(WireError::new)?));
    match bare {
        Ok(proto) if !proto.computations.is_empty() => module(proto),
        bare => {
            let wrapper = fits(bytes, true).ok().and_then(|()| HloProto::decode(bytes).ok());
            match wrapper.and_then(|wrapper| wrapper.hlo_module) {
                Some(inner) if !inner.computations.is_empty() => module(inner),
                Some(_) | None => module(bare?),
            }
        }
    }
}

/// A module from its message.
///
/// # Errors
/// The message lacks a required field, has ids that do not exist or form cycles, numbers or names that the schema does
/// not have, or literals that do not fit their shapes.
pub fn module(mut proto: HloModuleProto) -> Result<Module, ProtoError> {
    let name = take(&mut proto.name);
    let mut protos = take(&mut proto.computations);
    if protos.is_empty() {
        return Err(ProtoError::missing(&format!("module `{name}`"), "computations"));
    }
    let order = computation_order(&protos)?;
    let comp_of: HashMap<i64, CompId> =
        order.iter().enumerate().map(|(new, &old)| (protos[old].id, CompId(new as u32))).collect();
    let mut schedule = proto.schedule.take();
    let mut computations = Vec::with_capacity(order.len());
    for &old in &order {
        let computation_proto = take(&mut protos[old]);
        let sequence = match &mut schedule {
            Some(schedule) => schedule.sequences.remove(&computation_proto.id),
            None => None,
        };
        computations.push(computation(computation_proto, &comp_of, sequence)?);
    }
    let entry_name = take(&mut proto.entry_computation_name);
    let entry_id = take(&mut proto.entry_computation_id);
    let by_name = || computations.iter().position(|c| c.name == entry_name).map(|i| CompId(i as u32));
    let entry = comp_of.get(&entry_id).copied().or_else(by_name).ok_or_else(|| ProtoError::DanglingId {
        place: name.clone(),
        field: "entry_computation_id",
        id: entry_id,
        scope: "the module".to_string(),
    })?;
    let entry_layout = entry_layout(&mut proto, &computations[entry.idx()])?;
    let mut module = Module::new(name);
    module.next_name = next_name(&computations);
    module.computations = computations;
    module.entry = entry;
    module.input_output_alias = aliases(&mut proto, &module.name)?;
    module.buffer_donors = donors(&mut proto);
    module.entry_layout = entry_layout;
    module.is_scheduled = schedule.is_some();
    module.stack_frames = stack_frames(proto.stack_frame_index.take());
    module.frontend_attributes = pairs(&mut proto.frontend_attributes);
    module.unmodelled.attributes = assignment::attributes(proto.device_assignment.as_deref());
    module.unmodelled.proto = proto.encode_to_vec();
    Ok(module)
}

/// Positions of the computations, callees first.
fn computation_order(protos: &[HloComputationProto]) -> Result<Vec<usize>, ProtoError> {
    let position = positions(protos.iter().map(|proto| (proto.id, proto.name.as_str())))?;
    let mut callees = Vec::with_capacity(protos.len());
    for proto in protos {
        let mut called = Vec::new();
        for instr in &proto.instructions {
            for id in &instr.called_computation_ids {
                called.push(*position.get(id).ok_or_else(|| ProtoError::DanglingId {
                    place: format!("{}/{}", proto.name, instr.name),
                    field: "called_computation_ids",
                    id: *id,
                    scope: "the module".to_string(),
                })?);
            }
        }
        callees.push(called);
    }
    dependencies_first(protos.len(), |comp| callees[comp].as_slice())
        .map_err(|member| ProtoError::Cycle { place: protos[member].name.clone(), what: "calls" })
}

/// The position of each id.
fn positions<'a>(items: impl Iterator<Item = (i64, &'a str)> + Clone) -> Result<HashMap<i64, usize>, ProtoError> {
    let mut position = HashMap::new();
    for (at, (id, name)) in items.clone().enumerate() {
        if let Some(other) = position.insert(id, at) {
            let other = items.clone().nth(other).map_or("", |(_, name)| name).to_string();
            return Err(ProtoError::DuplicateId { place: name.to_string(), id, other });
        }
    }
    Ok(position)
}

fn computation(
    mut proto: HloComputationProto,
    comp_of: &HashMap<i64, CompId>,
    mut sequence: Option<InstructionSequence>,
) -> Result<Computation, ProtoError> {
    let name = take(&mut proto.name);
    local_ids(&mut proto, &mut sequence);
    let mut protos = take(&mut proto.instructions);
    let order = instruction_order(&name, &protos, sequence)?;
    let new_of: HashMap<i64, InstrId> =
        order.iter().enumerate().map(|(new, &old)| (protos[old].id, InstrId(new as u32))).collect();
    let root_id = take(&mut proto.root_id);
    let root = *new_of.get(&root_id).ok_or_else(|| ProtoError::DanglingId {
        place: name.clone(),
        field: "root_id",
        id: root_id,
        scope: "the computation".to_string(),
    })?;
    let mut computation = Computation::new(name);
    computation.root = root;
    computation.instructions.reserve(order.len());
    for &old in &order {
        let instr = instruction(take(&mut protos[old]), &computation, &new_of, comp_of)?;
        computation.instructions.push(instr);
    }
    proto.id = 0;
    let own_names = computation.parameters().into_iter().map(|id| computation.instr(id).name.clone()).collect();
    let names = proto.program_shape.take().unwrap_or_default().parameter_names;
    proto.program_shape = unusual_names(names, own_names);
    computation.unmodelled.attributes = unmodelled::computation_to_text(&proto);
    computation.unmodelled.proto = proto.encode_to_vec();
    Ok(computation)
}

/// Removes the computation's number from its instructions' ids. XLA writes it above their low 32 bits, in some places
/// and not in others: modules from `XlaBuilder` have it in `id` and `root_id`, and not in `operand_ids`.
///
/// Source: XLA's `HloInstruction::CalculateLocalId`.
fn local_ids(proto: &mut HloComputationProto, sequence: &mut Option<InstructionSequence>) {
    const N_LOCAL_BITS: u32 = 32;
    let number_of = |id: i64| id >> N_LOCAL_BITS;
    let Some(number) = proto.instructions.first().map(|instr| number_of(instr.id)) else { return };
    // Other ids stay as they are, so that they remain unique.
    if number == 0 || proto.instructions.iter().any(|instr| number_of(instr.id) != number) {
        return;
    }
    let of_instructions = proto.instructions.iter_mut().flat_map(|instr| {
        std::iter::once(&mut instr.id).chain(&mut instr.operand_ids).chain(&mut instr.control_predecessor_ids)
    });
    let scheduled = sequence.iter_mut().flat_map(|sequence| &mut sequence.instruction_ids);
    for id in of_instructions.chain(scheduled).chain(std::iter::once(&mut proto.root_id)) {
        if number_of(*id) == number {
            *id -= number << N_LOCAL_BITS;
        }
    }
}

/// Parameter names of a signature, if [`encode`] would not write the same.
fn unusual_names(parameter_names: Vec<String>, usual: Vec<String>) -> Option<ProgramShapeProto> {
    let is_usual = parameter_names.is_empty() || parameter_names == usual;
    (!is_usual).then(|| ProgramShapeProto { parameter_names, ..ProgramShapeProto::default() })
}

/// Positions of the instructions, operands and control predecessors first: as scheduled, or in their own order if that
/// works.
fn instruction_order(
    place: &str,
    protos: &[HloInstructionProto],
    sequence: Option<InstructionSequence>,
) -> Result<Vec<usize>, ProtoError> {
    let position = positions(protos.iter().map(|proto| (proto.id, proto.name.as_str())))?;
    let mut dependencies = Vec::with_capacity(protos.len());
    for proto in protos {
        let mut needed = Vec::with_capacity(proto.operand_ids.len() + proto.control_predecessor_ids.len());
        let operands = proto.operand_ids.iter().map(|id| ("operand_ids", id));
        for (field, id) in
            operands.chain(proto.control_predecessor_ids.iter().map(|id| ("control_predecessor_ids", id)))
        {
            needed.push(*position.get(id).ok_or_else(|| ProtoError::DanglingId {
                place: format!("{place}/{}", proto.name),
                field,
                id: *id,
                scope: "the computation".to_string(),
            })?);
        }
        dependencies.push(needed);
    }
    let Some(sequence) = sequence else {
        return dependencies_first(protos.len(), |node| dependencies[node].as_slice()).map_err(|member| {
            ProtoError::Cycle { place: format!("{place}/{}", protos[member].name), what: "operands" }
        });
    };
    let order: Option<Vec<usize>> = sequence.instruction_ids.iter().map(|id| position.get(id).copied()).collect();
    let unfit = || ProtoError::Schedule { place: place.to_string(), n_instructions: protos.len() };
    let order = order.filter(|order| order.len() == protos.len()).ok_or_else(unfit)?;
    let mut done = vec![false; protos.len()];
    for &node in &order {
        if done[node] || dependencies[node].iter().any(|&dependency| !done[dependency]) {
            return Err(unfit());
        }
        done[node] = true;
    }
    Ok(order)
}

fn instruction(
    mut proto: HloInstructionProto,
    computation: &Computation,
    new_of: &HashMap<i64, InstrId>,
    comp_of: &HashMap<i64, CompId>,
) -> Result<Instruction, ProtoError> {
    let name = take(&mut proto.name);
    let place = format!("{}/{name}", computation.name);
    if proto.opcode.is_empty() {
        return Err(ProtoError::missing(&place, "opcode"));
    }
    // An opcode newer than this build is preserved; a string that cannot be an opcode is damage.
    if !proto.opcode.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-') {
        return Err(ProtoError::NoOpcode { place, opcode: take(&mut proto.opcode) });
    }
    let shape = proto.shape.take().ok_or_else(|| ProtoError::missing(&place, "shape"))?;
    let shape = shape::decode(&shape, &place)?;
    // Ids were resolved when the order was determined.
    let instrs = |ids: Vec<i64>| ids.iter().filter_map(|id| new_of.get(id).copied()).collect::<Vec<InstrId>>();
    let operands = instrs(take(&mut proto.operand_ids));
    let control_predecessors = instrs(take(&mut proto.control_predecessor_ids));
    let called = take(&mut proto.called_computation_ids).iter().filter_map(|id| comp_of.get(id).copied()).collect();
    proto.id = 0;
    let lhs = operands.first().map(|lhs| &computation.instr(*lhs).shape);
    let op = op::decode(&mut proto, op::Context { place: &place, called, lhs })?;
    let backend_config = match String::from_utf8(take(&mut proto.backend_config)) {
        Ok(text) => text,
        Err(not_text) => {
            proto.backend_config = not_text.into_bytes();
            String::new()
        }
    };
    let metadata = metadata(&mut proto);
    let sharding = proto.sharding.take().map(|sharding| Box::new(sharding::decode(&sharding)));
    let frontend_attributes = pairs(&mut proto.frontend_attributes);
    let mut attributes = unmodelled::to_text(&op.opcode(), &proto);
    // A field that the op does not have is preserved, and has no text.
    attributes.retain(|(name, _)| unmodelled::may_have(&op, name));
    let unmodelled = Unmodelled { attributes, proto: leftover(proto) };
    Ok(Instruction {
        name,
        op,
        shape,
        operands,
        metadata,
        sharding,
        frontend_attributes,
        control_predecessors,
        backend_config,
        unmodelled,
    })
}

/// Takes the modelled part of the metadata.
fn metadata(proto: &mut HloInstructionProto) -> Metadata {
    let Some(metadata) = &mut proto.metadata else { return Metadata::default() };
    Metadata {
        op_type: take(&mut metadata.op_type),
        op_name: take(&mut metadata.op_name),
        source_file: take(&mut metadata.source_file),
        source_line: take(&mut metadata.source_line),
        stack_frame_id: take(&mut metadata.stack_frame_id),
    }
}

fn stack_frames(index: Option<StackFrameIndexProto>) -> StackFrames {
    let StackFrameIndexProto { file_names, function_names, file_locations, stack_frames } = index.unwrap_or_default();
    let location = |location: FileLocation| {
        let FileLocation { file_name_id, function_name_id, line, end_line, column, end_column } = location;
        hlo::FileLocation { file_name_id, function_name_id, line, end_line, column, end_column }
    };
    let frame =
        |StackFrame { file_location_id, parent_frame_id }| hlo::StackFrame { file_location_id, parent_frame_id };
    StackFrames {
        file_names,
        function_names,
        locations: file_locations.into_iter().map(location).collect(),
        frames: stack_frames.into_iter().map(frame).collect(),
    }
}

/// The remaining fields of a message, encoded; messages that are always written, and empty now, do not count.
fn leftover(mut proto: HloInstructionProto) -> Vec<u8> {
    proto.metadata = proto.metadata.filter(|metadata| metadata.encoded_len() > 0);
    proto.statistics_viz = proto.statistics_viz.filter(|figures| figures.encoded_len() > 0);
    proto.sparsity_config = proto.sparsity_config.filter(|config| !config.is_empty());
    proto.encode_to_vec()
}

fn pairs(attributes: &mut Option<FrontendAttributes>) -> Vec<(String, String)> {
    attributes.take().unwrap_or_default().map.into_iter().collect()
}

/// The host program shape, if it is not that of the entry's instructions.
fn entry_layout(proto: &mut HloModuleProto, entry: &Computation) -> Result<Option<EntryLayout>, ProtoError> {
    let Some(signature) = proto.host_program_shape.take() else { return Ok(None) };
    let place = "host_program_shape";
    let decoded = |proto| shape::decode(proto, place).map(|shape| shape.with_default_layout());
    let parameters = signature.parameters.iter().map(decoded).collect::<Result<Vec<_>, _>>()?;
    let result = signature.result.ok_or_else(|| ProtoError::missing(place, "result"))?;
    let result = decoded(&result)?;
    proto.host_program_shape = unusual_names(signature.parameter_names, encode::host_names(parameters.len()));
    let instruction_shape = |id: InstrId| entry.instr(id).shape.with_default_layout();
    let own_parameters: Vec<Shape> = entry.parameters().into_iter().map(instruction_shape).collect();
    let is_own = own_parameters == parameters && instruction_shape(entry.root) == result;
    Ok((!is_own).then_some(EntryLayout { parameters, result }))
}

fn aliases(proto: &mut HloModuleProto, place: &str) -> Result<Vec<Alias>, ProtoError> {
    let entries = proto.input_output_alias.take().unwrap_or_default().entries;
    let alias = |entry: AliasEntryProto| {
        Ok(Alias {
            output_index: entry.output_shape_index,
            parameter_number: entry.parameter_number,
            parameter_index: entry.parameter_shape_index,
            kind: match entry.kind {
                1 => AliasKind::May,
                2 => AliasKind::Must,
                kind => return Err(ProtoError::unknown(place, "input_output_alias.kind", kind.into(), "1 or 2")),
            },
        })
    };
    entries.into_iter().map(alias).collect()
}

fn donors(proto: &mut HloModuleProto) -> Vec<(i64, Vec<i64>)> {
    let entries = proto.buffer_donor.take().unwrap_or_default().entries;
    entries.into_iter().map(|entry| (entry.parameter_number, entry.parameter_shape_index)).collect()
}

/// A number above all those at the end of names.
fn next_name(computations: &[Computation]) -> u32 {
    let names = computations.iter().flat_map(|computation| &computation.instructions).map(|instr| &instr.name);
    let numbers = names.filter_map(|name| name.rsplit_once('.')?.1.parse::<u32>().ok());
    numbers.max().unwrap_or(0).saturating_add(1)
}

#[cfg(test)]
mod tests;
