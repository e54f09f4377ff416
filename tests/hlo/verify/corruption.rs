//! A valid module, corrupted at random: the verifier returns for any input.
//!
//! The corpus tests that errors are detected. Here a panic, an overflow or an endless loop is a failure.

use crate::verify::build::{rich, shape};
use bf16scope::hlo::ops::*;
use bf16scope::hlo::*;
use proptest::prelude::*;

/// Where and what to corrupt; every part is taken modulo what there is.
#[derive(Clone, Copy, Debug)]
struct Corruption {
    kind: usize,
    comp: usize,
    instruction: usize,
    part: usize,
    value: i64,
}

fn corruption() -> impl Strategy<Value = Corruption> {
    let extremes = [i64::MIN, i64::MIN + 1, -(1 << 32), -2, -1, 0, 1, 2, 3, 5, 1 << 31, 1 << 32, 1 << 62, i64::MAX];
    let value = prop_oneof![proptest::sample::select(extremes.to_vec()), -3..40i64];
    // Half of the corruptions hit the entry, which has most of the instructions.
    let comp = prop_oneof![Just(0usize), 0..64usize];
    (0..N_KINDS, comp, any::<usize>(), any::<usize>(), value)
        .prop_map(|(kind, comp, instruction, part, value)| Corruption { kind, comp, instruction, part, value })
}

const N_KINDS: usize = 16;

fn corrupt(module: &mut Module, at: Corruption) {
    let Corruption { kind, comp, instruction, part, value } = at;
    let id = InstrId(value as u32);
    if module.computations.is_empty() {
        return;
    }
    let comp = comp % module.computations.len();
    match kind {
        0 => module.entry = CompId(value as u32),
        1 => module.computations[comp].root = id,
        2 => drop(module.computations.remove(comp)),
        3 => module.input_output_alias.push(Alias {
            output_index: vec![value; part % 3],
            parameter_number: value,
            parameter_index: vec![value; part % 2],
            kind: AliasKind::May,
        }),
        4 => module.buffer_donors.push((value, vec![value; part % 3])),
        _ => {
            let instructions = &mut module.computations[comp].instructions;
            if instructions.is_empty() {
                return;
            }
            let place = instruction % instructions.len();
            if kind == 5 {
                instructions.remove(place);
            } else if kind == 6 {
                let other = part % instructions.len();
                instructions.swap(place, other);
            } else {
                corrupt_instruction(&mut instructions[place], at);
            }
        }
    }
}

fn corrupt_instruction(instruction: &mut Instruction, at: Corruption) {
    let Corruption { kind, part, value, .. } = at;
    let id = InstrId(value as u32);
    match kind {
        7 => match instruction.operands.len() {
            0 => instruction.operands.push(id),
            n => instruction.operands[part % n] = id,
        },
        8 => drop(instruction.operands.pop()),
        9 => instruction.control_predecessors.push(id),
        10 => instruction.op.for_each_called_mut(&mut |comp| *comp = CompId(value as u32)),
        11 => corrupt_shape(&mut instruction.shape, part, value),
        12 => {
            let deep = (0..value.clamp(0, 300)).fold(shape("f32[]"), |inner, _| Shape::Tuple(vec![inner]));
            instruction.shape = deep;
        }
        13 => instruction.name = ["", "r1", "a b", "ü"][part % 4].into(),
        _ => {
            let mut numbers = numbers(&mut instruction.op);
            let n = numbers.len().max(1);
            if let Some(number) = numbers.get_mut(part % n) {
                **number = value;
            } else {
                corrupt_rest(&mut instruction.op, value);
            }
        }
    }
}

fn corrupt_shape(shape: &mut Shape, part: usize, value: i64) {
    match shape {
        Shape::Array(array) => match part % 5 {
            0 => array.dims.push(value),
            1 => drop(array.dims.pop()),
            2 => array.dtype = DType::ALL[part % DType::ALL.len()],
            3 => array.layout = Some(Layout { minor_to_major: vec![value, 0], ..Layout::default() }),
            _ => match array.dims.len() {
                0 => array.dynamic = vec![true],
                n => array.dims[part % n] = value,
            },
        },
        Shape::Tuple(elements) if !elements.is_empty() && part.is_multiple_of(2) => {
            let n = elements.len();
            corrupt_shape(&mut elements[part % n], part / 2, value);
        }
        other => *other = [Shape::Token, Shape::Opaque, Shape::Tuple(vec![])][part % 3].clone(),
    }
}

/// Corrupts data other than numbers: lists get shorter or longer, literals lose bytes.
fn corrupt_rest(op: &mut Op, value: i64) {
    match op {
        Op::Constant(Literal::Array { shape, bytes }) => {
            bytes.truncate(value.unsigned_abs() as usize % 8);
            shape.dims.push(value);
        }
        Op::Conditional(conditional) => conditional.branches.clear(),
        Op::CustomCall(call) => {
            call.api_version = value as i32;
            call.operand_layouts.push(Shape::Token);
        }
        _ => *op = Op::Parameter { number: value, replication: vec![true; 3] },
    }
}

/// Every number among an op's attributes.
pub fn numbers(op: &mut Op) -> Vec<&mut i64> {
    fn of_window(window: &mut Window) -> Vec<&mut i64> {
        window
            .iter_mut()
            .flat_map(|dim| {
                [
                    &mut dim.size,
                    &mut dim.stride,
                    &mut dim.padding_low,
                    &mut dim.padding_high,
                    &mut dim.window_dilation,
                    &mut dim.base_dilation,
                ]
            })
            .collect()
    }
    match op {
        Op::Parameter { number, .. } => vec![number],
        Op::Iota { dimension } | Op::Concatenate { dimension } | Op::Sort { dimension, .. } => vec![dimension],
        Op::Broadcast { dimensions } | Op::Reverse { dimensions } | Op::Reduce { dimensions, .. } => {
            dimensions.iter_mut().collect()
        }
        Op::Transpose { permutation } => permutation.iter_mut().collect(),
        Op::DynamicSlice { slice_sizes } => slice_sizes.iter_mut().collect(),
        Op::Slice(dims) => dims.iter_mut().flat_map(|dim| [&mut dim.start, &mut dim.limit, &mut dim.stride]).collect(),
        Op::Pad(dims) => dims.iter_mut().flat_map(|dim| [&mut dim.low, &mut dim.high, &mut dim.interior]).collect(),
        Op::Dot { dims, .. } => [&mut dims.lhs_batch, &mut dims.rhs_batch]
            .into_iter()
            .chain([&mut dims.lhs_contracting, &mut dims.rhs_contracting])
            .flatten()
            .collect(),
        Op::Convolution(convolution) => {
            let Convolution { window, dims, feature_group_count, batch_group_count, .. } = &mut **convolution;
            let mut numbers = of_window(window);
            numbers.extend([feature_group_count, batch_group_count]);
            numbers.extend([&mut dims.input_batch, &mut dims.input_feature, &mut dims.kernel_input_feature]);
            numbers.extend([&mut dims.kernel_output_feature, &mut dims.output_batch, &mut dims.output_feature]);
            numbers.extend(dims.input_spatial.iter_mut().chain(&mut dims.kernel_spatial));
            numbers.extend(&mut dims.output_spatial);
            numbers
        }
        Op::Gather(dims) => {
            let lists = [&mut dims.offset_dims, &mut dims.collapsed_slice_dims, &mut dims.start_index_map];
            let more = [&mut dims.operand_batching_dims, &mut dims.start_indices_batching_dims, &mut dims.slice_sizes];
            lists.into_iter().chain(more).flatten().chain([&mut dims.index_vector_dim]).collect()
        }
        Op::Scatter { dims, .. } => {
            let lists = [&mut dims.update_window_dims, &mut dims.inserted_window_dims];
            let more = [&mut dims.scatter_dims_to_operand_dims, &mut dims.input_batching_dims];
            lists.into_iter().chain(more).flatten().chain([&mut dims.index_vector_dim]).collect()
        }
        Op::ReduceWindow { window, .. } | Op::SelectAndScatter { window, .. } => of_window(window),
        Op::BatchNormTraining(norm) | Op::BatchNormInference(norm) | Op::BatchNormGrad(norm) => {
            vec![&mut norm.feature_index]
        }
        Op::GetTupleElement { index } => vec![index],
        Op::AllReduce(all_reduce) => {
            let mut numbers: Vec<&mut i64> = all_reduce.channel_id.iter_mut().collect();
            match &mut all_reduce.replica_groups {
                ReplicaGroups::List(groups) => numbers.extend(groups.iter_mut().flatten()),
                ReplicaGroups::Iota { dims, reshape_dims, transpose_perm } => {
                    numbers.extend(dims.iter_mut().chain(reshape_dims).chain(transpose_perm));
                }
            }
            numbers
        }
        _ => Vec::new(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_verifier_always_answers(corruptions in proptest::collection::vec(corruption(), 1..6)) {
        let mut module = rich();
        corruptions.into_iter().for_each(|at| corrupt(&mut module, at));
        if let Err(errors) = verify(&module) {
            prop_assert!(!errors.0.is_empty());
            prop_assert!(!errors.to_string().is_empty());
        }
    }
}
