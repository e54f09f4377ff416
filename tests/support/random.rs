//! Random modules: lists of steps on `f32[4,4]` values, and the module that computes them.

use bf16scope::hlo::ops::{BinaryOp, Comparison, DotDims, PrecisionConfig, UnaryOp};
use bf16scope::hlo::{CompId, DType, Emitter, InstrId, Metadata, Module, Op, Shape};
use proptest::prelude::*;

/// Elements of a value.
pub const N: usize = 16;
/// Parameters.
pub const N_PARAMETERS: usize = 3;

/// One step; numbers name earlier values, modulo how many there are.
#[derive(Clone, Debug)]
pub enum Step {
    Dot(usize, usize),
    Binary(BinaryOp, usize, usize),
    Unary(UnaryOp, usize),
    Transpose(usize),
    /// Sums rows and broadcasts the sums back.
    RowSums(usize),
    /// The maxima of rows, broadcast back.
    RowMaxima(usize),
    /// `a` where the first parameter is positive, else `b`: no rounding decides.
    Select(usize, usize),
    /// Through a called `max(x, -x)`.
    Call(usize),
    /// Both through a tuple; the second comes out.
    Tuple(usize, usize),
    /// Behind a barrier, together with a parameter.
    Barrier(usize),
    /// Rounded to bf16 and back, as the program says.
    Round(usize),
}

pub fn step() -> impl Strategy<Value = Step> {
    use Step::*;
    let v = 0usize..64;
    let two = (v.clone(), v.clone());
    prop_oneof![
        4 => two.clone().prop_map(|(a, b)| Dot(a, b)),
        3 => two.clone().prop_map(|(a, b)| Binary(BinaryOp::Add, a, b)),
        1 => two.clone().prop_map(|(a, b)| Binary(BinaryOp::Subtract, a, b)),
        1 => two.clone().prop_map(|(a, b)| Binary(BinaryOp::Multiply, a, b)),
        1 => two.clone().prop_map(|(a, b)| Binary(BinaryOp::Maximum, a, b)),
        2 => v.clone().prop_map(|a| Unary(UnaryOp::Tanh, a)),
        1 => v.clone().prop_map(|a| Unary(UnaryOp::Negate, a)),
        1 => v.clone().prop_map(|a| Unary(UnaryOp::Exp, a)),
        1 => v.clone().prop_map(Transpose),
        1 => v.clone().prop_map(RowSums),
        1 => v.clone().prop_map(RowMaxima),
        1 => two.clone().prop_map(|(a, b)| Select(a, b)),
        1 => v.clone().prop_map(Call),
        1 => two.prop_map(|(a, b)| Tuple(a, b)),
        1 => v.clone().prop_map(Barrier),
        1 => v.prop_map(Round),
    ]
}

fn shape() -> Shape {
    Shape::array(DType::F32, [4, 4])
}

/// The module of some steps: its results are the values of the last three.
pub fn build(steps: &[Step]) -> Module {
    let mut module = Module::new("main");
    let called = module.add_computation("magnitude");
    let x = module.push(called, Op::parameter(0), &[], Some(&shape()), Metadata::default()).unwrap();
    let minus = module.push(called, Op::Unary(UnaryOp::Negate), &[x], None, Metadata::default()).unwrap();
    module.push(called, Op::Binary(BinaryOp::Maximum), &[x, minus], None, Metadata::default()).unwrap();
    let e = Emitter::new(module, CompId(0));
    let mut values: Vec<InstrId> = (0..N_PARAMETERS).map(|n| e.parameter(n as i64, &shape())).collect();
    for step in steps {
        let at = |v: usize| values[v % values.len()];
        let rows = |op, a: usize| e.broadcast(e.reduce(op, at(a), &[1]), &[0], &[4, 4]);
        let value = match *step {
            Step::Dot(a, b) => {
                let dims = DotDims { lhs_contracting: vec![1], rhs_contracting: vec![0], ..DotDims::default() };
                e.emit(Op::Dot { dims, precision: PrecisionConfig::default() }, &[at(a), at(b)], None)
            }
            Step::Binary(op, a, b) => e.binary(op, at(a), at(b)),
            Step::Unary(op, a) => e.unary(op, at(a)),
            Step::Transpose(a) => e.transpose(at(a), &[1, 0]),
            Step::RowSums(a) => rows(BinaryOp::Add, a),
            Step::RowMaxima(a) => rows(BinaryOp::Maximum, a),
            Step::Select(a, b) => {
                let pred = e.compare(Comparison::Gt, values[0], e.zeros_like(values[0]));
                e.select(pred, at(a), at(b))
            }
            Step::Call(a) => e.emit(Op::Call { to_apply: called }, &[at(a)], None),
            Step::Tuple(a, b) => e.get_tuple_element(e.tuple(&[at(a), at(b)]), 1),
            Step::Barrier(a) => e.barrier([values[a % N_PARAMETERS], at(a)])[1],
            Step::Round(a) => e.convert(e.convert(at(a), DType::BF16), DType::F32),
        };
        values.push(value);
    }
    let n = values.len();
    e.tuple(&values[n - 3..]);
    e.finish().unwrap()
}
