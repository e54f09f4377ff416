//! What a program writes twice is decided as if it were written once: otherwise a compiler, which computes equal expressions
//! once, would find two.

use super::corpus::{Lowered, corpus};
use super::invariants::{failures, lowered};
use super::known_failures::judge;
use super::storage::{HEAD, parsed};
use bf16scope::hlo::ops::decisions::{is_map, is_repeatable};
use bf16scope::hlo::{DType, InstrId, Instruction, Module, Op, text};
use bf16scope::passes::amp::{self, LoweringReport, Policy};
use std::collections::BTreeMap;

/// The module with each op of its entry that is a function of its operands written twice: readers read the one and the other
/// by turns.
fn written_twice(module: &Module) -> Module {
    let mut twice = module.clone();
    let entry = &mut twice.computations[module.entry.idx()];
    let mut out: Vec<Instruction> = Vec::new();
    let mut places: Vec<[InstrId; 2]> = Vec::new();
    let mut n_reads = vec![0; entry.instructions.len()];
    for instr in std::mem::take(&mut entry.instructions) {
        let is_function = is_map(&instr.op) || is_repeatable(&instr.op) || matches!(instr.op, Op::Constant(_));
        let is_tied = instr.sharding.is_some() || !instr.control_predecessors.is_empty();
        let is_twice = is_function && !is_tied && instr.frontend_attributes.is_empty();
        let mut copy = |name: String| {
            let mut operands = instr.operands.clone();
            for operand in &mut operands {
                n_reads[operand.idx()] += 1;
                *operand = places[operand.idx()][n_reads[operand.idx()] % 2];
            }
            let control_predecessors = instr.control_predecessors.iter().map(|id| places[id.idx()][0]).collect();
            out.push(Instruction { name, operands, control_predecessors, ..instr.clone() });
            InstrId(out.len() as u32 - 1)
        };
        let first = copy(instr.name.clone());
        let second = if is_twice { copy(format!("{}.again", instr.name)) } else { first };
        places.push([first, second]);
    }
    entry.instructions = out;
    entry.root = places[entry.root.idx()][0];
    twice
}

/// The dtypes of the instructions of each name.
fn dtypes(report: &LoweringReport) -> BTreeMap<String, Vec<String>> {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for decision in report.decisions.iter().filter(|decision| decision.opcode != "constant") {
        let name = decision.instruction.trim_end_matches(".again").to_string();
        found.entry(name).or_default().push(decision.new.clone());
    }
    found.values_mut().for_each(|dtypes| {
        dtypes.sort();
        dtypes.dedup();
    });
    found
}

/// An op that is decided otherwise where each is written twice.
fn decides_otherwise(module: &Module, report: &LoweringReport) -> Option<String> {
    let (once, twice) = (dtypes(report), dtypes(&lowered(&written_twice(module), &Policy::default()).1));
    // A broadcast of a constant is written in the dtypes that its readers want.
    let is_constant = |name: &str| {
        let entry = module.entry();
        let instr = entry.instructions.iter().find(|instr| instr.name == name);
        instr.is_some_and(|instr| {
            let reads_constant = |&id: &InstrId| matches!(entry.instr(id).op, Op::Constant(_));
            matches!(instr.op, Op::Broadcast { .. }) && instr.operands.iter().any(reads_constant)
        })
    };
    let (name, now) = twice.iter().find(|(name, now)| once.get(*name) != Some(now) && !is_constant(name))?;
    Some(format!("{name} is {:?}, written twice {now:?}", once.get(name)))
}

#[test]
fn what_is_written_twice_is_decided_once() {
    let steps: Vec<&Lowered> = corpus().iter().collect();
    judge("written twice", &failures(&steps, 0..200, |module, _, report| decides_otherwise(module, report)));
}

/// A generator's forward pass, of which the loss of a discriminator reads one and that of the generator the other.
#[test]
fn two_calls_of_equal_functions_are_one_expression() {
    let source = "shift.1 {
  of.1 = f32[64,64] parameter(0)
  w.1 = f32[64,64] parameter(1)
  product.1 = f32[64,64] dot(of.1, w.1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  half.1 = f32[] constant(0.5)
  halves.1 = f32[64,64] broadcast(half.1), dimensions={}
  ROOT shifted.1 = f32[64,64] add(product.1, halves.1)
}

shift.2 {
  of.2 = f32[64,64] parameter(0)
  w.2 = f32[64,64] parameter(1)
  product.2 = f32[64,64] dot(of.2, w.2), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  half.2 = f32[] constant(0.5)
  halves.2 = f32[64,64] broadcast(half.2), dimensions={}
  ROOT shifted.2 = f32[64,64] add(product.2, halves.2)
}

ENTRY main {
  x = f32[64,64] parameter(0)
  w = f32[64,64] parameter(1)
  zero = f32[] constant(0)
  once = f32[64,64] call(x, w), to_apply=shift.1
  again = f32[64,64] call(x, w), to_apply=shift.2
  logits = f32[64,64] dot(once, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  squares = f32[64,64] multiply(again, again)
  loss = f32[] reduce(squares, zero), dimensions={0,1}, to_apply=add
  ROOT out = (f32[64,64], f32[]) tuple(logits, loss)
}
";
    let module = parsed(&format!("{HEAD}{source}"));
    let (low, _) = amp::run(&module, &Policy::default()).unwrap();
    let printed = text::print(&low, &Default::default());
    let dtype = |name: &str| {
        let mut all = low.computations.iter().flat_map(|computation| &computation.instructions);
        all.find(|instr| instr.name == name).and_then(|instr| instr.shape.dtype())
    };
    for [a, b] in [["product.1", "product.2"], ["shifted.1", "shifted.2"], ["once", "again"]] {
        assert_eq!(dtype(a), dtype(b), "{a} and {b} in {printed}");
    }
    assert_eq!(dtype("once"), Some(DType::BF16), "{printed}");
}
