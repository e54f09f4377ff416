//! Random modules: lowered, they verify, compile, and give results within a bound that is carried along for each.
//!
//! A module is a list of steps on `f32[4,4]` values. The same list is evaluated here in f64 with a bound on the error
//! that lowering may make: every operand and every result of every op may have been rounded to bf16 (a relative 2^-9
//! each), and errors of operands reach the result by the op's own slope. Where nothing was rounded the bound is only
//! wider than it need be; where something was rounded that must not be, types would be wrong or the entry's results not
//! f32, which is checked too.

use crate::oracle;
use bf16scope::hlo::ops::{BinaryOp, Comparison, DotDims, PrecisionConfig, UnaryOp};
use bf16scope::hlo::{CompId, DType, Emitter, InstrId, Metadata, Module, Op, Shape};
use bf16scope::passes::amp::{self, Accumulate, Policy};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

/// Elements of a value.
const N: usize = 16;
/// Parameters.
const N_PARAMETERS: usize = 3;

/// Half a unit in the last place of bf16, relative; and room for as much again, which covers f32's roundings, another
/// order of sums, and XLA's approximations of `tanh` and `exp` (a few f32 units).
const UNIT: f64 = 2.0 / 512.0;

/// One step; numbers name earlier values, modulo how many there are.
#[derive(Clone, Debug)]
enum Step {
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
    /// Rounded to bf16 and back, as the program says.
    Round(usize),
}

fn step() -> impl Strategy<Value = Step> {
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
        1 => v.prop_map(Round),
    ]
}

fn shape() -> Shape {
    Shape::array(DType::F32, [4, 4])
}

/// The module of some steps: its results are the values of the last three.
fn build(steps: &[Step]) -> Module {
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
            Step::Round(a) => e.convert(e.convert(at(a), DType::BF16), DType::F32),
        };
        values.push(value);
    }
    let n = values.len();
    e.tuple(&values[n - 3..]);
    e.finish().unwrap()
}

/// Values and how far lowering may move each.
#[derive(Clone)]
struct Bounded {
    value: [f64; N],
    error: [f64; N],
}

impl Bounded {
    /// As an operand or result that may have been rounded once more.
    fn rounded(&self) -> Bounded {
        let error = std::array::from_fn(|i| self.error[i] + UNIT * (self.value[i].abs() + self.error[i]));
        Bounded { error, ..self.clone() }
    }

    /// Each element a function of elements of operands: its value, and its error given theirs.
    fn of(f: impl Fn(usize) -> (f64, f64)) -> Bounded {
        let pairs: [(f64, f64); N] = std::array::from_fn(f);
        Bounded { value: pairs.map(|(value, _)| value), error: pairs.map(|(_, error)| error) }.rounded()
    }
}

fn product((a, ea): (f64, f64), (b, eb): (f64, f64)) -> (f64, f64) {
    (a * b, a.abs() * eb + b.abs() * ea + ea * eb)
}

/// The values of all steps with their bounds.
fn evaluate(steps: &[Step], parameters: &[[f64; N]]) -> Vec<Bounded> {
    let mut values: Vec<Bounded> = parameters.iter().map(|&value| Bounded { value, error: [0.0; N] }).collect();
    for step in steps {
        let at = |v: usize| values[v % values.len()].rounded();
        let one = |x: &Bounded, i: usize| (x.value[i], x.error[i]);
        let value = match *step {
            Step::Dot(a, b) => {
                let (a, b) = (at(a), at(b));
                Bounded::of(|i| {
                    let terms = (0..4).map(|k| product(one(&a, i / 4 * 4 + k), one(&b, k * 4 + i % 4)));
                    terms.fold((0.0, 0.0), |sum, term| (sum.0 + term.0, sum.1 + term.1 + UNIT / 1e3 * term.0.abs()))
                })
            }
            Step::Binary(op, a, b) => {
                let (a, b) = (at(a), at(b));
                Bounded::of(|i| {
                    let ((x, ex), (y, ey)) = (one(&a, i), one(&b, i));
                    match op {
                        BinaryOp::Add => (x + y, ex + ey),
                        BinaryOp::Subtract => (x - y, ex + ey),
                        BinaryOp::Multiply => product((x, ex), (y, ey)),
                        _ => (x.max(y), ex.max(ey)),
                    }
                })
            }
            Step::Unary(op, a) => {
                let a = at(a);
                Bounded::of(|i| {
                    let (x, e) = one(&a, i);
                    match op {
                        UnaryOp::Tanh => (x.tanh(), e),
                        UnaryOp::Exp => (x.exp(), x.exp() * e.exp_m1()),
                        _ => (-x, e),
                    }
                })
            }
            Step::Transpose(a) => {
                let a = at(a);
                Bounded::of(|i| one(&a, i % 4 * 4 + i / 4))
            }
            Step::RowSums(a) => {
                let a = at(a);
                Bounded::of(|i| {
                    let row = i / 4 * 4..i / 4 * 4 + 4;
                    row.fold((0.0, 0.0), |sum, k| {
                        (sum.0 + a.value[k], sum.1 + a.error[k] + UNIT / 1e3 * a.value[k].abs())
                    })
                })
            }
            Step::RowMaxima(a) => {
                let a = at(a);
                Bounded::of(|i| {
                    let row = i / 4 * 4..i / 4 * 4 + 4;
                    row.fold((f64::NEG_INFINITY, 0.0), |max, k| (max.0.max(a.value[k]), f64::max(max.1, a.error[k])))
                })
            }
            Step::Select(a, b) => {
                let (a, b) = (at(a), at(b));
                Bounded::of(|i| if parameters[0][i] > 0.0 { one(&a, i) } else { one(&b, i) })
            }
            Step::Call(a) => {
                let a = at(a);
                Bounded::of(|i| (a.value[i].abs(), a.error[i]))
            }
            Step::Tuple(_, b) => at(b),
            // The program rounds here; whatever it rounds may have moved.
            Step::Round(a) => at(a).rounded(),
        };
        values.push(value);
    }
    values
}

#[test]
fn random_modules_stay_within_their_bounds() {
    let config = Config { cases: 96, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let number = -1.0f32..1.0;
    let parameters = prop::collection::vec(prop::array::uniform16(number), N_PARAMETERS);
    let preset = prop::sample::select(&["default", "bf16_scope", "tf_amp", "O2"][..]);
    let inputs = (prop::collection::vec(step(), 3..24), parameters, preset, any::<bool>());
    let n_lowered = std::cell::Cell::new(0);
    let result = runner.run(&inputs, |(steps, parameters, preset, wide)| {
        let module = build(&steps);
        let accumulate = if wide { Accumulate::F32 } else { Accumulate::Compute };
        let policy = Policy { accumulate, ..Policy::preset(preset).unwrap() };
        let (lowered, report) = amp::run(&module, &policy).map_err(|error| TestCaseError::fail(error.to_string()))?;
        prop_assert!(lowered.entry().result_shape().is_compatible(module.entry().result_shape()));
        prop_assert_eq!(&amp::run(&module, &policy).unwrap().0, &lowered);
        let wide: Vec<[f64; N]> = parameters.iter().map(|p| p.map(f64::from)).collect();
        let expected = evaluate(&steps, &wide);
        // Beyond this, f32 itself overflows or the bound says nothing.
        prop_assume!(expected.iter().all(|x| x.value.iter().zip(x.error).all(|(v, e)| v.abs() < 1e15 && e < 1e15)));
        let arguments: Vec<Vec<u8>> =
            parameters.iter().map(|p| p.iter().flat_map(|x| x.to_le_bytes()).collect()).collect();
        let last = &expected[expected.len() - 3..];
        for ((_, measured), expected) in oracle::run(&lowered, &arguments).iter().zip(last) {
            for (&measured, (value, error)) in measured.iter().zip(expected.value.into_iter().zip(expected.error)) {
                let moved = (f64::from(measured) - value).abs();
                let bound = error + 1e-30;
                prop_assert!(moved <= bound, "{value} moved by {moved}, expected at most {bound}");
            }
        }
        n_lowered.set(n_lowered.get() + report.n_lowered());
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
    assert!(n_lowered.get() > 100, "only {} instructions were lowered in all", n_lowered.get());
}
