//! The arrays of shapes, and copies of a module that return other arrays.

use std::collections::BTreeMap;

use bf16scope_hlo::numerics::compare::is_comparable;
use bf16scope_hlo::{ArrayShape, DType, InstrId, Instruction, Metadata, Module, Op, Shape};

/// An array in an instruction's value: the instruction, and the path through its tuples.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Leaf {
    instr: InstrId,
    path: Vec<i64>,
}

/// Whether arrays of this dtype are compared as numbers.
pub(super) fn is_floating(dtype: DType) -> bool {
    is_comparable(dtype)
}

/// The arrays of a shape, with the path to each, depth first.
fn arrays<'s>(shape: &'s Shape, path: &mut Vec<i64>, out: &mut Vec<(Vec<i64>, &'s ArrayShape)>) {
    match shape {
        Shape::Array(array) => out.push((path.clone(), array)),
        Shape::Tuple(elements) => {
            for (index, element) in elements.iter().enumerate() {
                path.push(index as i64);
                arrays(element, path, out);
                path.pop();
            }
        }
        Shape::Token | Shape::Opaque | Shape::Buffer(_) => {}
    }
}

fn all_arrays(shape: &Shape) -> Vec<(Vec<i64>, &ArrayShape)> {
    let mut out = Vec::new();
    arrays(shape, &mut Vec::new(), &mut out);
    out
}

/// The comparable arrays of a shape.
pub(super) fn floating_arrays(shape: &Shape) -> Vec<&ArrayShape> {
    all_arrays(shape).into_iter().map(|(_, array)| array).filter(|array| is_floating(array.dtype)).collect()
}

/// The indices of a shape's comparable arrays, depth first.
pub(super) fn floating_places(shape: &Shape) -> Vec<usize> {
    let arrays = all_arrays(shape).into_iter().enumerate().filter(|(_, (_, array))| is_floating(array.dtype));
    arrays.map(|(place, _)| place).collect()
}

/// Why values of a shape cannot be compared; `None` if they can.
pub(super) fn why_not(shape: &Shape) -> Option<String> {
    let arrays = all_arrays(shape);
    if let Some((_, array)) = arrays.iter().find(|(_, array)| array.has_dynamic()) {
        return Some(format!("{array} has dynamic dimensions"));
    }
    let is_float = |dtype: DType| dtype.is_float() || dtype.is_complex();
    let (_, array) = arrays.iter().find(|(_, array)| is_float(array.dtype) && !is_floating(array.dtype))?;
    Some(format!("there are no error measures for {}", array.dtype))
}

/// An instruction without metadata and attributes beyond its op.
pub(super) fn plain(name: String, op: Op, shape: Shape, operands: Vec<InstrId>) -> Instruction {
    Instruction::plain(name, op, shape, operands, Metadata::default())
}

/// A prefix that no name in the module has, for added instructions.
pub(super) fn fresh_prefix(module: &Module, wanted: &str) -> String {
    let mut prefix = wanted.to_string();
    let names = || {
        let instrs = module.computations.iter().flat_map(|computation| &computation.instructions);
        let comps = module.computations.iter().map(|computation| &computation.name);
        instrs.map(|instr| &instr.name).chain(comps)
    };
    while names().any(|name| name.starts_with(&prefix)) {
        prefix.push('_');
    }
    prefix
}

/// Removes properties that only hold for the module's own results.
fn forget_boundary(module: &mut Module) {
    module.input_output_alias.clear();
    module.buffer_donors.clear();
    module.entry_layout = None;
    module.is_scheduled = false;
}

/// A copy of the module that returns these arrays.
fn tapped(module: &Module, taps: &[Leaf]) -> Module {
    let mut copy = module.clone();
    forget_boundary(&mut copy);
    let prefix = fresh_prefix(module, "tap");
    let entry = &mut copy.computations[module.entry.idx()];
    let mut parts: BTreeMap<(InstrId, i64), InstrId> = BTreeMap::new();
    let push = |instructions: &mut Vec<Instruction>, op, shape, operands| {
        let id = InstrId(instructions.len() as u32);
        instructions.push(plain(format!("{prefix}.{}", id.0), op, shape, operands));
        id
    };
    let mut elements = Vec::with_capacity(taps.len());
    for tap in taps {
        let mut id = tap.instr;
        for &index in &tap.path {
            id = *parts.entry((id, index)).or_insert_with(|| {
                let shape = entry.instructions[id.idx()].shape.as_tuple().map(|parts| parts[index as usize].clone());
                let shape = shape.expect("a path leads through tuples");
                push(&mut entry.instructions, Op::GetTupleElement { index }, shape, vec![id])
            });
        }
        elements.push(id);
    }
    let shapes = elements.iter().map(|id| entry.instructions[id.idx()].shape.clone()).collect();
    entry.root = push(&mut entry.instructions, Op::Tuple, Shape::Tuple(shapes), elements);
    copy
}

/// The arrays of a module's result.
fn result_leaves(module: &Module) -> Vec<Leaf> {
    let root = module.entry().root;
    let arrays = all_arrays(&module.entry().instr(root).shape);
    arrays.into_iter().map(|(path, _)| Leaf { instr: root, path }).collect()
}

/// For each array of the result, whether it is state: whether it aliases a parameter.
pub(super) fn is_state(module: &Module) -> Vec<bool> {
    let goes_back = |leaf: &Leaf| module.input_output_alias.iter().any(|alias| alias.output_index == leaf.path);
    result_leaves(module).iter().map(goes_back).collect()
}

/// A copy of the module that returns the arrays of its result one by one.
pub(super) fn results(module: &Module) -> Module {
    tapped(module, &result_leaves(module))
}

/// The same, followed by these arrays.
pub(super) fn results_and(module: &Module, more: &[InstrId]) -> Module {
    let more = more.iter().map(|&instr| Leaf { instr, path: Vec::new() });
    tapped(module, &result_leaves(module).into_iter().chain(more).collect::<Vec<Leaf>>())
}

/// A copy of the module that returns only these arrays.
pub(super) fn alone(module: &Module, arrays: &[InstrId]) -> Module {
    let leaves: Vec<Leaf> = arrays.iter().map(|&instr| Leaf { instr, path: Vec::new() }).collect();
    tapped(module, &leaves)
}

/// For each array of the result the name of the instruction that computes it.
pub(super) fn result_makers(module: &Module) -> Vec<String> {
    let entry = module.entry();
    let maker = |leaf: &Leaf| {
        let mut id = leaf.instr;
        for &index in &leaf.path {
            match &entry.instr(id).op {
                Op::Tuple => id = entry.instr(id).operands[index as usize],
                _ => break,
            }
        }
        entry.instr(id).name.clone()
    };
    result_leaves(module).iter().map(maker).collect()
}
