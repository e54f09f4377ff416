//! Audits beside the same figures computed instruction by instruction, each from runs of the whole module up to it.
//!
//! All numbers are integers small enough for f32 to represent every product and sum, so f32 arithmetic is exact, in
//! any order and however a compiler fuses it; the only roundings are those to bf16 that the program states. So figures
//! are equal, not close.

use std::cell::RefCell;
use std::collections::BTreeMap;

use bf16scope::audit::{Auditor, Config};
use bf16scope::hlo::proto::encode;
use bf16scope::hlo::{DType, InstrId, Literal, Metadata, Module, Op, Shape, text, verify};
use bf16scope::numerics::compare::{Comparison, Errors};
use bf16scope::passes::amp::{self, Policy, Reach};
use bf16scope::pjrt::CompileOptions;
use half::bf16;

use crate::run;

/// A convolution, a product, reductions, a call, a loop, both ways of a conditional, and data movement.
const MODULE: &str = "HloModule m

sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] add(a, b)
}

greatest {
  c = f32[] parameter(0)
  d = f32[] parameter(1)
  ROOT t = f32[] maximum(c, d)
}

more {
  e = f32[16,3] parameter(0)
  twice = f32[16,3] add(e, e)
  ROOT thrice = f32[16,3] add(twice, e)
}

body {
  state = (s32[], f32[16,3]) parameter(0)
  n = s32[] get-tuple-element(state), index=0
  v = f32[16,3] get-tuple-element(state), index=1
  one = s32[] constant(1)
  next = s32[] add(n, one)
  grown = f32[16,3] add(v, v)
  unit = f32[] constant(1)
  units = f32[16,3] broadcast(unit), dimensions={}
  shifted = f32[16,3] subtract(grown, units)
  ROOT out = (s32[], f32[16,3]) tuple(next, shifted)
}

condition {
  state.1 = (s32[], f32[16,3]) parameter(0)
  n.1 = s32[] get-tuple-element(state.1), index=0
  two = s32[] constant(2)
  ROOT less = pred[] compare(n.1, two), direction=LT
}

left {
  g = f32[3] parameter(0)
  ROOT g2 = f32[3] add(g, g)
}

right {
  h = f32[3] parameter(0)
  ROOT h2 = f32[3] negate(h)
}

ENTRY m {
  x = f32[1,6,6,2] parameter(0)
  k = f32[3,3,2,4] parameter(1)
  w = f32[4,3] parameter(2)
  bias = f32[3] parameter(3)
  conv = f32[1,4,4,4] convolution(x, k), window={size=3x3}, dim_labels=b01f_01io->b01f
  flat = f32[16,4] reshape(conv)
  dot = f32[16,3] dot(flat, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  wide = f32[16,3] broadcast(bias), dimensions={1}
  added = f32[16,3] add(dot, wide)
  zero = f32[] constant(0)
  zeros = f32[16,3] broadcast(zero), dimensions={}
  relu = f32[16,3] maximum(added, zeros)
  called = f32[16,3] call(relu), to_apply=more
  counter = s32[] constant(0)
  start = (s32[], f32[16,3]) tuple(counter, called)
  loop = (s32[], f32[16,3]) while(start), condition=condition, body=body
  end = f32[16,3] get-tuple-element(loop), index=1
  total = f32[3] reduce(end, zero), dimensions={0}, to_apply=sum
  peak = f32[] reduce(relu, zero), dimensions={0,1}, to_apply=greatest
  is_large = pred[] compare(peak, zero), direction=GT
  yes = f32[3] conditional(is_large, total, bias), true_computation=left, false_computation=right
  is_none = pred[] compare(peak, zero), direction=LT
  no = f32[3] conditional(is_none, total, bias), true_computation=left, false_computation=right
  turned = f32[3,16] transpose(end), dimensions={1,0}
  joined = f32[3,19] concatenate(turned, turned_less), dimensions={1}
  picked = f32[3,19] select(is_all, joined, joined_back)
  ROOT result = (f32[3], f32[3], f32[3,19]) tuple(yes, no, picked)
}
";

fn module() -> Module {
    // Ops with further attributes: a slice, a reversal, and a mask.
    let text = MODULE
        .replace("  joined =", "  turned_less = f32[3,3] slice(turned), slice={[0:3], [2:5]}\n  joined =")
        .replace(
            "  picked =",
            "  joined_back = f32[3,19] reverse(joined), dimensions={1}\n  \
             is_all = pred[3,19] compare(joined, joined_back), direction=LT\n  picked =",
        );
    text::parse(&text, "m.txt").unwrap_or_else(|error| panic!("{error}"))
}

/// Integers from -`most` to `most`.
fn integers(dims: &[i64], most: i64, seed: i64) -> Literal {
    let n: i64 = dims.iter().product();
    let values: Vec<f32> = (0..n).map(|i| ((i * 37 + seed * 11) * 7919 % (2 * most + 1) - most) as f32).collect();
    Literal::from_elements(dims.to_vec(), &values)
}

/// f32 as it is, or rounded.
fn in_dtype(literal: &Literal, dtype: DType) -> Literal {
    let (Shape::Array(shape), Some(values)) = (literal.shape(), literal.elements::<f32>()) else {
        return literal.clone();
    };
    match dtype {
        DType::BF16 => {
            let values: Vec<bf16> = values.into_iter().map(bf16::from_f32).collect();
            Literal::from_elements(shape.dims, &values)
        }
        _ => literal.clone(),
    }
}

/// A module with its inputs, and the results of runs up to each instruction.
struct Runs<'m> {
    module: &'m Module,
    inputs: Vec<Literal>,
    known: RefCell<BTreeMap<InstrId, Vec<Literal>>>,
}

impl Runs<'_> {
    /// The arrays of one instruction, by a run of the module up to it.
    fn value(&self, id: InstrId) -> Vec<Literal> {
        let run = || {
            let mut module = self.module.clone();
            let entry = module.entry;
            module.computations[entry.idx()].root = id;
            run_module(&module, &self.inputs)
        };
        self.known.borrow_mut().entry(id).or_insert_with(run).clone()
    }
}

fn run_module(module: &Module, inputs: &[Literal]) -> Vec<Literal> {
    verify(module).unwrap_or_else(|errors| panic!("{errors}"));
    run::run_bytes(&encode::to_bytes(module).unwrap(), &CompileOptions::default(), inputs)
}

fn find(module: &Module, name: &str) -> Option<InstrId> {
    module.entry().ids().find(|&id| module.entry().instr(id).name == name)
}

/// An instruction of the lowered entry applied to its operands, computed from the f32 module's values.
fn born(reference: &Runs<'_>, lowered: &Runs<'_>, id: InstrId) -> Vec<Literal> {
    let (runs, lowered) = (lowered, lowered.module);
    let instr = lowered.entry().instr(id);
    let mut alone = lowered.clone();
    let entry = alone.entry;
    alone.computations[entry.idx()].instructions.clear();
    let (mut arguments, mut operands) = (Vec::new(), Vec::new());
    for &operand in &instr.operands {
        // A cast that lowering inserted stands for the value before it; a constant in another dtype for itself.
        let mut source = operand;
        let in_f32 = |id: InstrId| find(reference.module, &lowered.entry().instr(id).name);
        while in_f32(source).is_none() && lowered.entry().instr(source).op == Op::Convert {
            source = lowered.entry().instr(source).operands[0];
        }
        let values = in_f32(source).map_or_else(|| runs.value(source), |id| reference.value(id));
        let is_right = in_f32(source).is_some() || matches!(lowered.entry().instr(source).op, Op::Constant(_));
        assert!(is_right, "nothing else is inserted here");
        let shape = lowered.entry().instr(operand).shape.without_layout();
        let mut parts = Vec::new();
        for (literal, leaf) in values.iter().zip(shape.leaves()) {
            let parameter = Op::parameter(arguments.len() as i64);
            parts.push(alone.append(entry, parameter, Vec::new(), leaf.clone(), Metadata::default()));
            arguments.push(in_dtype(literal, leaf.dtype().unwrap()));
        }
        operands.push(match shape {
            Shape::Tuple(_) => alone.append(entry, Op::Tuple, parts, shape.clone(), Metadata::default()),
            _ => parts[0],
        });
    }
    let mut copy = instr.clone();
    copy.operands = operands;
    alone.append_copy(entry, copy);
    run_module(&alone, &arguments)
}

fn errors(reference: &[Literal], measured: &[Literal]) -> Errors {
    let mut comparison = Comparison::default();
    for (r, x) in reference.iter().zip(measured) {
        if let (Literal::Array { shape, bytes }, Literal::Array { shape: other, bytes: others }) = (r, x)
            && shape.dtype == DType::F32
        {
            comparison.add((shape.dtype, bytes), (other.dtype, others));
        }
    }
    comparison.errors()
}

#[test]
fn an_audit_finds_what_instruction_by_instruction_is_found() {
    let module = module();
    // At most 21 · 7 · 18 after the convolution, 28 times as much and 7 after the product, 12 times that after the loop, and
    // 16 of those in a sum: 14.3 million, and f32 holds 2^24.
    let inputs =
        [integers(&[1, 6, 6, 2], 21, 1), integers(&[3, 3, 2, 4], 7, 2), integers(&[4, 3], 7, 3), integers(&[3], 7, 4)];
    let allow = ["convolution", "dot", "add", "subtract", "maximum", "reshape", "transpose", "negate"];
    let policy = Policy { allow: allow.map(str::to_string).to_vec(), reach: Reach::All, ..Policy::default() };
    let (lowered, _) = amp::run(&module, &policy).unwrap();
    let lowered_inputs: Vec<Literal> = (lowered.entry().parameters().iter().zip(&inputs))
        .map(|(&id, input)| in_dtype(input, lowered.entry().instr(id).shape.dtype().unwrap()))
        .collect();
    let runs = |module, inputs| Runs { module, inputs, known: RefCell::default() };
    let (reference_runs, lowered_runs) = (runs(&module, inputs.to_vec()), runs(&lowered, lowered_inputs));
    let client = run::client();
    let auditor = Auditor::new(client, &module, &inputs, Config::default()).unwrap();
    let audit = auditor.audit(&policy).unwrap();
    let mut n_born: BTreeMap<&str, usize> = BTreeMap::new();
    for row in &audit.rows {
        let (id, other) = (InstrId(row.position as u32), find(&lowered, &row.instruction).unwrap());
        let (reference, measured) = (reference_runs.value(id), lowered_runs.value(other));
        assert_eq!(row.errors, errors(&reference, &measured), "{}", row.instruction);
        let recomputed = born(&reference_runs, &lowered_runs, other);
        assert_eq!(row.born, errors(&reference, &recomputed), "{}", row.instruction);
        *n_born.entry(&row.opcode).or_default() += usize::from(row.born.max_abs > 0.0);
    }
    // To give equality a meaning, errors are born at each kind of instruction that the policy lowers.
    for opcode in ["convolution", "dot", "add", "call", "while", "conditional"] {
        assert!(n_born[opcode] > 0, "nothing is born at a {opcode}: {n_born:?}");
    }
    assert_eq!(audit.skipped, []);
}
