//! Static properties of a module: how often its results were rounded, and how much it stores.

use bf16scope::hlo::ops::decisions::is_map;
use bf16scope::hlo::ops::{BinaryOp, UnaryOp};
use bf16scope::hlo::{CompId, Computation, DType, InstrId, Instruction, Module, Op, Shape};

/// Half a unit in the last place of bf16, relative to the number: it has eight bits.
pub const UNIT: f64 = 1.0 / 256.0;

/// The same of f32, which has 24, in those units.
const UNITS_OF_F32: f64 = 1.0 / 65536.0;

/// Steps of every loop of these modules.
const N_STEPS: usize = 3;

/// For each array of the entry's result the most factors (1 + d), |d| at most [`UNIT`], that a term of it was multiplied by.
///
/// Each result is a sum of products of the arguments' numbers (these modules have no other functions), and every rounding
/// multiplies all terms of what it rounds by one factor; a rounding to f32 by a power of one, 2^-16. A product has the
/// factors of both operands, a sum those of the operand that has more. So a term of c factors is at most (1 + UNIT)^c - 1 of
/// its size from what it is without any.
pub fn roundings(module: &Module) -> Vec<f64> {
    let entry = module.entry();
    let parameters = entry.parameters();
    let arguments = parameters.iter().map(|&id| vec![0.0; entry.instr(id).shape.leaves().len()]).collect();
    of_computation(module, entry, arguments)
}

fn of_computation(module: &Module, computation: &Computation, arguments: Vec<Vec<f64>>) -> Vec<f64> {
    let mut roundings: Vec<Vec<f64>> = Vec::with_capacity(computation.instructions.len());
    for instr in &computation.instructions {
        let operand = |nth: usize| roundings[instr.operands[nth].idx()].clone();
        let most = || (0..instr.operands.len()).flat_map(operand).fold(0.0, f64::max);
        let of_callee = |comp: CompId, arguments| of_computation(module, module.comp(comp), arguments);
        let counts = match &instr.op {
            Op::Parameter { number, .. } => arguments[*number as usize].clone(),
            Op::Tuple => (0..instr.operands.len()).flat_map(operand).collect(),
            Op::GetTupleElement { index } => {
                let elements = computation.instr(instr.operands[0]).shape.as_tuple().unwrap();
                let n_leaves = |element: &Shape| element.leaves().len();
                let start: usize = elements[..*index as usize].iter().map(n_leaves).sum();
                operand(0)[start..start + n_leaves(&elements[*index as usize])].to_vec()
            }
            Op::OptimizationBarrier | Op::Unary(UnaryOp::Copy) => operand(0),
            Op::Call { to_apply } => of_callee(*to_apply, (0..instr.operands.len()).map(operand).collect()),
            Op::While { body, .. } => (0..N_STEPS).fold(operand(0), |state, _| of_callee(*body, vec![state])),
            Op::Conditional(conditional) => {
                let of_branches = conditional.branches.iter().enumerate();
                let of_branches = of_branches.map(|(nth, &branch)| of_callee(branch, vec![operand(nth + 1)]));
                of_branches.reduce(|a, b| a.iter().zip(b).map(|(&a, b)| a.max(b)).collect()).unwrap()
            }
            Op::Dot { .. } | Op::Binary(BinaryOp::Multiply) => {
                vec![operand(0)[0] + operand(1)[0] + roundings_of(computation, instr)]
            }
            _ => vec![most() + roundings_of(computation, instr)],
        };
        roundings.push(counts);
    }
    roundings[computation.root.idx()].clone()
}

/// How often an instruction itself rounds a term.
fn roundings_of(computation: &Computation, instr: &Instruction) -> f64 {
    let n_elements = |id: InstrId| computation.instr(id).shape.as_array().map_or(1, |array| array.n_elements());
    let shape = instr.shape.as_array().unwrap();
    let n_terms = match &instr.op {
        Op::Convert => {
            let rounds =
                shape.dtype == DType::BF16 && computation.instr(instr.operands[0]).shape.dtype() == Some(DType::F32);
            return f64::from(u8::from(rounds));
        }
        // XLA sums products in f32 and rounds the sum to bf16, once.
        Op::Dot { dims, .. } => {
            let contracted: i64 = dims
                .lhs_contracting
                .iter()
                .map(|&dim| computation.instr(instr.operands[0]).shape.dims()[dim as usize])
                .product();
            let rounds = if shape.dtype == DType::BF16 { 1.0 } else { 0.0 };
            return rounds + contracted as f64 * UNITS_OF_F32;
        }
        Op::Reduce { .. } => n_elements(instr.operands[0]) / shape.n_elements(),
        // All rows may be added to one.
        Op::Scatter { .. } => computation.instr(instr.operands[2]).shape.dims()[0],
        Op::Binary(BinaryOp::Add | BinaryOp::Subtract | BinaryOp::Multiply) => 1,
        _ => return 0.0,
    };
    n_terms as f64 * if shape.dtype == DType::BF16 { 1.0 } else { UNITS_OF_F32 }
}

/// The most bytes that are stored at once while a module runs in its order, besides its parameters.
///
/// Ops that a fusion may compute in their consumer are not stored, and keep their operands live until then:
/// elementwise ops, casts, and ops that take or repeat parts. Everything else is stored, from where it is computed to
/// where it is last read.
pub fn stored(module: &Module) -> i64 {
    peak(module, module.entry())
}

fn peak(module: &Module, computation: &Computation) -> i64 {
    let n = computation.instructions.len();
    let mut last: Vec<usize> = (0..n).collect();
    last[computation.root.idx()] = n;
    for (at, instr) in computation.instructions.iter().enumerate().rev() {
        let read = if is_fused(&instr.op) { last[at] } else { at };
        for operand in &instr.operands {
            last[operand.idx()] = last[operand.idx()].max(read);
        }
    }
    let (mut most, mut alive, mut ends) = (0, 0, vec![0; n + 1]);
    for (at, instr) in computation.instructions.iter().enumerate() {
        let is_stored = !is_fused(&instr.op) && !matches!(instr.op, Op::Parameter { .. });
        let bytes = if is_stored { instr.shape.leaves().iter().map(|leaf| leaf.n_bytes()).sum() } else { 0 };
        alive += bytes;
        ends[last[at]] += bytes;
        let inside = match &instr.op {
            Op::While { body, .. } => peak(module, module.comp(*body)),
            Op::Conditional(conditional) => {
                conditional.branches.iter().map(|&branch| peak(module, module.comp(branch))).max().unwrap_or(0)
            }
            _ => 0,
        };
        most = most.max(alive + inside);
        alive -= ends[at];
    }
    most
}

fn is_fused(op: &Op) -> bool {
    let moves = matches!(
        op,
        Op::Tuple
            | Op::GetTupleElement { .. }
            | Op::OptimizationBarrier
            | Op::Constant(_)
            | Op::Iota { .. }
            | Op::Broadcast { .. }
            | Op::Reshape
            | Op::Slice(_)
            | Op::Pad(_)
            | Op::DynamicSlice { .. }
            | Op::Transpose { .. }
    );
    moves || is_map(op)
}

/// A cast that changes nothing: to f32 and back, or to the operand's own dtype.
pub fn idle_cast(module: &Module) -> Option<String> {
    module.computations.iter().find_map(|computation| {
        let dtype = |id: InstrId| computation.instr(id).shape.dtype();
        let cast =
            |id: InstrId| matches!(computation.instr(id).op, Op::Convert).then(|| computation.instr(id).operands[0]);
        let is_idle = |&id: &InstrId| {
            let Some(from) = cast(id) else { return false };
            let widened =
                cast(from).filter(|&first| dtype(first) == Some(DType::BF16) && dtype(from) == Some(DType::F32));
            dtype(id) == dtype(from) || dtype(id) == Some(DType::BF16) && widened.is_some()
        };
        computation.ids().find(is_idle).map(|id| computation.instr(id).name.clone())
    })
}
