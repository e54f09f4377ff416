//! Rewrites programs to meet xla-rs's requirements. A program that meets them is passed to XLA unchanged.
//!
//! - xla-rs passes no options, including the one that passes a tuple's arrays one by one: the tuple becomes parameters.
//! - Results are read in the program's own layout, which xla-rs does not expose: it becomes row-major.
//! - Two kinds of ops abort the process: their scalar operand becomes an array.

use std::collections::BTreeMap;

use bf16scope_hlo::proto::messages::{HloInstructionProto, HloModuleProto, ShapeProto};

/// XLA's `PrimitiveType` of a tuple.
pub(super) const TUPLE: i32 = 13;

/// Rewrites a program if necessary; returns whether it changed.
pub(super) fn run(proto: &mut HloModuleProto, parameter_is_tupled: bool) -> bool {
    let adds = (parameter_is_tupled && spread_tuple(proto)) | widen_scalars(proto);
    if adds {
        // The schedule of the previous instructions is no longer valid.
        proto.schedule = None;
    }
    make_row_major(proto) | adds
}

/// Ids for new instructions of a module.
struct Ids {
    largest: i64,
    n_new: i64,
}

impl Ids {
    fn new(proto: &HloModuleProto) -> Ids {
        let ids = proto.computations.iter().flat_map(|computation| &computation.instructions).map(|instr| instr.id);
        Ids { largest: ids.max().unwrap_or(0), n_new: 0 }
    }

    /// An unused id. Ids that contain their computation in the upper half are counted within it, others within the
    /// module.
    fn next(&mut self, largest_of_computation: i64) -> i64 {
        self.n_new += 1;
        self.n_new + if largest_of_computation >> 32 > 0 { largest_of_computation } else { self.largest }
    }
}

fn largest_id(instructions: &[HloInstructionProto]) -> i64 {
    instructions.iter().map(|instr| instr.id).max().unwrap_or(0)
}

/// Turns the entry's single tuple parameter into parameters, one for each array. Returns whether there was one.
/// (`hlo::verify` refuses a tuple among other parameters, or of tuples.)
fn spread_tuple(proto: &mut HloModuleProto) -> bool {
    let mut ids = Ids::new(proto);
    let Some(entry) = proto.computations.iter_mut().find(|it| it.id == proto.entry_computation_id) else {
        return false;
    };
    let is_tuple = |shape: &ShapeProto| shape.element_type == TUPLE;
    let takes_it =
        |instr: &HloInstructionProto| instr.opcode == "parameter" && instr.shape.as_ref().is_some_and(is_tuple);
    let Some(position) = entry.instructions.iter().position(takes_it) else { return false };
    let largest = largest_id(&entry.instructions);
    let tuple = &mut entry.instructions[position];
    let leaves = tuple.shape.iter().flat_map(|shape| &shape.tuple_shapes);
    let parameters: Vec<HloInstructionProto> = (leaves.enumerate())
        .map(|(number, leaf)| HloInstructionProto {
            name: format!("{}.element{number}", tuple.name),
            opcode: "parameter".to_string(),
            shape: Some(leaf.clone()),
            id: ids.next(largest),
            parameter_number: number as i64,
            ..Default::default()
        })
        .collect();
    tuple.opcode = "tuple".to_string();
    tuple.operand_ids = parameters.iter().map(|parameter| parameter.id).collect();
    tuple.parameter_replication = None;
    let names: Vec<String> = parameters.iter().map(|parameter| parameter.name.clone()).collect();
    entry.instructions.splice(position..position, parameters);
    for shape in entry.program_shape.iter_mut().chain(&mut proto.host_program_shape) {
        shape.parameters = std::mem::take(&mut shape.parameters).into_iter().flat_map(|it| it.tuple_shapes).collect();
        shape.parameter_names.clone_from(&names);
    }
    // An array of the tuple is identified by parameter 0 and its index.
    let rename = |number: &mut i64, index: &mut Vec<i64>| {
        if let Some(place) = index.pop() {
            *number = place;
        }
    };
    for alias in proto.input_output_alias.iter_mut().flat_map(|alias| &mut alias.entries) {
        rename(&mut alias.parameter_number, &mut alias.parameter_shape_index);
    }
    for donor in proto.buffer_donor.iter_mut().flat_map(|donor| &mut donor.entries) {
        rename(&mut donor.parameter_number, &mut donor.parameter_shape_index);
    }
    true
}

/// Rewrites ops that abort the process in the XLA of TensorFlow 2.21 (`Mismatched ranks of types`, then `LLVM ERROR`):
/// a select of arrays by one predicate, and a clamp of an array between scalars, get the scalar as an array. Returns
/// whether there was any.
fn widen_scalars(proto: &mut HloModuleProto) -> bool {
    let mut ids = Ids::new(proto);
    for computation in &mut proto.computations {
        let largest = largest_id(&computation.instructions);
        let shape_of: BTreeMap<i64, ShapeProto> =
            computation.instructions.iter().filter_map(|instr| Some((instr.id, instr.shape.clone()?))).collect();
        let mut instructions = Vec::with_capacity(computation.instructions.len());
        for mut instr in std::mem::take(&mut computation.instructions) {
            let scalars: &[usize] = match instr.opcode.as_str() {
                "select" => &[0],
                "clamp" => &[0, 2],
                _ => &[],
            };
            for &idx in scalars {
                let (Some(result), Some(&operand)) = (instr.shape.as_ref(), instr.operand_ids.get(idx)) else {
                    continue;
                };
                let Some(scalar) = shape_of.get(&operand) else { continue };
                if !scalar.dimensions.is_empty() || result.dimensions.is_empty() {
                    continue;
                }
                let id = ids.next(largest);
                let shape = ShapeProto { element_type: scalar.element_type, ..result.clone() };
                instructions.push(HloInstructionProto {
                    name: format!("{}.operand{idx}.{}", instr.name, ids.n_new),
                    opcode: "broadcast".to_string(),
                    shape: Some(shape),
                    id,
                    operand_ids: vec![operand],
                    ..Default::default()
                });
                instr.operand_ids[idx] = id;
            }
            instructions.push(instr);
        }
        computation.instructions = instructions;
    }
    ids.n_new > 0
}

/// Makes the layouts of parameters and results row-major; returns whether any changed.
fn make_row_major(proto: &mut HloModuleProto) -> bool {
    fn relay(shape: &mut ShapeProto) -> bool {
        let mut changed = shape.tuple_shapes.iter_mut().fold(false, |changed, leaf| relay(leaf) | changed);
        let row_major: Vec<i64> = (0..shape.dimensions.len() as i64).rev().collect();
        if let Some(layout) = &mut shape.layout
            && !layout.minor_to_major.is_empty()
            && layout.minor_to_major != row_major
        {
            layout.minor_to_major = row_major;
            changed = true;
        }
        changed
    }
    let Some(shape) = &mut proto.host_program_shape else { return false };
    let shapes = shape.parameters.iter_mut().chain(&mut shape.result);
    shapes.fold(false, |changed, shape| relay(shape) | changed)
}
