//! A program that writes its ops twice gets the same decisions as one that writes them once: if the decisions on two equal
//! expressions differed, they would no longer be equal, and a compiler could not merge them.

use super::corpus::{Lowered, corpus};
use super::invariants::{failures, lowered};
use super::known_failures::judge;
use super::storage::{HEAD, parsed};
use bf16scope::hlo::ops::decisions::{is_map, is_repeatable};
use bf16scope::hlo::{DType, InstrId, Instruction, Module, Op, text};
use bf16scope::passes::amp::{self, Decision, LoweringReport, Policy};
use std::collections::BTreeMap;

/// The module with each op of its entry that is a function of its operands written twice; readers alternate between
/// the two.
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

/// The dtypes of the products of each name.
fn dtypes(report: &LoweringReport) -> BTreeMap<String, Vec<String>> {
    let mut by_name: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let is_product = |decision: &&Decision| matches!(&decision.opcode[..], "dot" | "convolution");
    for decision in report.decisions.iter().filter(is_product) {
        let name = decision.instruction.trim_end_matches(".again").to_string();
        by_name.entry(name).or_default().push(decision.new.clone());
    }
    by_name.values_mut().for_each(|dtypes| {
        dtypes.sort();
        dtypes.dedup();
    });
    by_name
}

/// A product whose decision changes when each op is written twice.
fn decides_otherwise(module: &Module, report: &LoweringReport) -> Option<String> {
    let (once, twice) = (dtypes(report), dtypes(&lowered(&written_twice(module), &Policy::default()).1));
    let (name, now) = twice.iter().find(|(name, now)| once.get(*name) != Some(now))?;
    Some(format!("{name} is {:?}, written twice {now:?}", once.get(name)))
}

#[test]
fn products_that_are_written_twice_are_decided_once() {
    let steps: Vec<&Lowered> = corpus().iter().collect();
    judge("written twice", &failures(&steps, 0..200, |module, _, report| decides_otherwise(module, report)));
}

/// A product reads one call; the other call alone is a result that would keep its f32 sum.
#[test]
fn two_calls_of_equal_functions_are_one_expression() {
    let source = "shift.1 {
  of.1 = f32[64,64] parameter(0)
  w.1 = f32[64,64] parameter(1)
  half.1 = f32[] constant(0.5)
  halves.1 = f32[64,64] broadcast(half.1), dimensions={}
  shifted.1 = f32[64,64] add(of.1, halves.1)
  ROOT product.1 = f32[64,64] dot(shifted.1, w.1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

shift.2 {
  of.2 = f32[64,64] parameter(0)
  w.2 = f32[64,64] parameter(1)
  half.2 = f32[] constant(0.5)
  halves.2 = f32[64,64] broadcast(half.2), dimensions={}
  shifted.2 = f32[64,64] add(of.2, halves.2)
  ROOT product.2 = f32[64,64] dot(shifted.2, w.2), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

ENTRY main {
  x = f32[64,64] parameter(0)
  w = f32[64,64] parameter(1)
  once = f32[64,64] call(x, w), to_apply=shift.1
  again = f32[64,64] call(x, w), to_apply=shift.2
  logits = f32[64,64] dot(once, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT out = (f32[64,64], f32[64,64]) tuple(logits, again)
}
";
    let module = parsed(&format!("{HEAD}{source}"));
    let (low, _) = amp::run(&module, &Policy::default()).unwrap();
    let printed = text::print(&low, &Default::default());
    let dtype = |name: &str| {
        let mut all = low.computations.iter().flat_map(|computation| &computation.instructions);
        all.find(|instr| instr.name == name).and_then(|instr| instr.shape.dtype())
    };
    assert_eq!([dtype("product.1"), dtype("product.2")], [Some(DType::BF16); 2], "{printed}");
}
