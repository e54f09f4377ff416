//! Random modules: lowered, they verify, compile, and their results are within a bound that is computed for each.
//!
//! A module is a list of steps (see `modules`). The same list is evaluated here in f64 with a bound on the error
//! that lowering may make: every operand and every result of every op may have been rounded to bf16 (a relative 2^-9
//! each), and errors of operands reach the result by the op's own slope. Where nothing was rounded the bound is only
//! wider than it need be; where something was rounded that must not be, types would be wrong or the entry's results not
//! f32, which is checked too.

use crate::amp::oracle;
use crate::modules::{N, N_PARAMETERS, Step, build, step};
use bf16scope::hlo::ops::{BinaryOp, UnaryOp};
use bf16scope::passes::amp::{self, Accumulate, Policy};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

/// Half a unit in the last place of bf16, relative; and room for as much again, which covers f32's roundings, another
/// order of sums, and XLA's approximations of `tanh` and `exp` (a few f32 units).
const UNIT: f64 = 2.0 / 512.0;

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

    /// Computes each element: its value, and its error, from those of the operands.
    fn from_fn(f: impl Fn(usize) -> (f64, f64)) -> Bounded {
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
                Bounded::from_fn(|i| {
                    let terms = (0..4).map(|k| product(one(&a, i / 4 * 4 + k), one(&b, k * 4 + i % 4)));
                    terms.fold((0.0, 0.0), |sum, term| (sum.0 + term.0, sum.1 + term.1 + UNIT / 1e3 * term.0.abs()))
                })
            }
            Step::Binary(op, a, b) => {
                let (a, b) = (at(a), at(b));
                Bounded::from_fn(|i| {
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
                Bounded::from_fn(|i| {
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
                Bounded::from_fn(|i| one(&a, i % 4 * 4 + i / 4))
            }
            Step::RowSums(a) => {
                let a = at(a);
                Bounded::from_fn(|i| {
                    let row = i / 4 * 4..i / 4 * 4 + 4;
                    row.fold((0.0, 0.0), |sum, k| {
                        (sum.0 + a.value[k], sum.1 + a.error[k] + UNIT / 1e3 * a.value[k].abs())
                    })
                })
            }
            Step::RowMaxima(a) => {
                let a = at(a);
                Bounded::from_fn(|i| {
                    let row = i / 4 * 4..i / 4 * 4 + 4;
                    row.fold((f64::NEG_INFINITY, 0.0), |max, k| (max.0.max(a.value[k]), f64::max(max.1, a.error[k])))
                })
            }
            Step::Select(a, b) => {
                let (a, b) = (at(a), at(b));
                Bounded::from_fn(|i| if parameters[0][i] > 0.0 { one(&a, i) } else { one(&b, i) })
            }
            Step::Call(a) => {
                let a = at(a);
                Bounded::from_fn(|i| (a.value[i].abs(), a.error[i]))
            }
            Step::Tuple(_, b) => at(b),
            Step::Barrier(a) => at(a),
            // The program rounds here; its operand may have moved.
            Step::Round(a) => at(a).rounded(),
        };
        values.push(value);
    }
    values
}

#[test]
fn random_modules_stay_within_their_bounds() {
    stay_within_bounds(48);
}

fn stay_within_bounds(n_cases: u32) {
    let config = Config { cases: n_cases, failure_persistence: None, ..Config::default() };
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
    assert!(n_lowered.get() > n_cases as usize, "only {} instructions were lowered in all", n_lowered.get());
}

/// Too long for `cargo test`: `ci/long` runs them.
#[cfg_attr(not(feature = "long-tests"), allow(dead_code))]
mod long {
    use super::*;

    /// Compiles 192 programs.
    #[cfg_attr(feature = "long-tests", test)]
    fn many_random_modules_stay_within_their_bounds() {
        stay_within_bounds(192);
    }
}
