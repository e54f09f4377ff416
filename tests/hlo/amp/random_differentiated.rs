//! Random programs (`programs`), differentiated here, lowered, and run beside themselves in f32.
//!
//! Some have only integers of at most 256 as their numbers: parameters are small integers, and weights have one 1 or
//! -1 in each row and column. bf16 has eight bits of precision, so it represents each such integer, and a sum of them
//! is exact in whatever order. So no cast rounds anything, and every bit of every result must be f32's: any other
//! change by lowering, from a gather's rows to the branch that was taken, shows.
//!
//! The others have arbitrary numbers. The lowered program's own casts and bf16 ops are counted ([`roundings`]), and
//! each element of each result must be within the resulting bound: all of these programs are sums of products, a term
//! with c roundings is at most (1 + 2^-8)^c - 1 of its size away from the true one, and the sum of the terms' sizes is
//! the same program's result for the arguments' sizes, with every difference replaced by a sum.
//!
//! For each, the lowered form verifies, keeps the dtypes of its results, has no cast that changes nothing, and stores
//! no more at once than in f32 ([`stored`]).

use crate::amp::evaluate::evaluate;
use crate::amp::programs::{Draws, Form, Program};
use crate::amp::roundings::{UNIT, idle_cast, roundings, stored};
use crate::run::run_bytes;
use bf16scope::hlo::proto::encode;
use bf16scope::hlo::verify::verify;
use bf16scope::hlo::{DType, Instruction, Literal, Module, Op, text};
use bf16scope::passes::amp::{self, Policy};
use bf16scope::passes::grad;
use bf16scope::pjrt::CompileOptions;
use std::ops::Range;

/// The findings over all programs.
#[derive(Default)]
struct Totals {
    n_exact: usize,
    n_rounded: usize,
    n_lowered: usize,
    /// Programs whose loops carry narrow arrays.
    n_carried: usize,
    /// The largest error, divided by its bound.
    most: f64,
}

/// The program of a seed, in f32, with its gradients.
fn differentiated(program: &Program, form: Form, seed: u64) -> Module {
    let source = program.text(form);
    let with_source = |error: &dyn std::fmt::Display| format!("seed {seed}: {error}\n{source}");
    let module = text::parse(&source, "random.hlo").unwrap_or_else(|error| panic!("{}", with_source(&error)));
    let config = grad::Config { loss: 0, wrt: vec![0, 1, 2, 3] };
    grad::run(&module, &config).unwrap_or_else(|error| panic!("{}", with_source(&error))).0
}

fn by_xla(module: &Module, arguments: &[Literal]) -> Vec<Literal> {
    run_bytes(&encode::to_bytes(module).unwrap(), &CompileOptions::default(), arguments)
}

/// Builds the programs of these seeds, lowers them and checks them and their results.
fn run(seeds: Range<u64>, results: impl Fn(u64, &Module, &[Literal]) -> Vec<Literal>) -> Totals {
    let mut totals = Totals::default();
    for seed in seeds {
        let mut draws = Draws(seed);
        let program = Program::new(&mut draws);
        let is_exact = program.is_exact() && draws.below(2) == 0;
        let (keeps_before, is_over_layers) = (draws.below(2) == 1, draws.below(2) == 1);
        let form = Form { keeps_before, is_over_layers, sums_products: !is_exact, is_majorant: false };
        let module = differentiated(&program, form, seed);
        let preset = ["default", "default", "bf16_scope", "tf_amp", "O2"][draws.below(5)];
        let policy = Policy::preset(preset).unwrap();
        let (lowered, report) = amp::run(&module, &policy).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        totals.n_lowered += report.n_lowered();
        let is_carried = |instr: &Instruction| {
            matches!(instr.op, Op::While { .. }) && instr.shape.leaves()[1].dtype() == Some(DType::BF16)
        };
        totals.n_carried += usize::from(lowered.entry().instructions.iter().any(is_carried));
        let context = || format!("seed {seed}, {preset}: {}", text::print(&lowered, &Default::default()));
        verify(&lowered).unwrap_or_else(|errors| panic!("{errors}\n{}", context()));
        assert!(lowered.entry().result_shape().is_compatible(module.entry().result_shape()), "{}", context());
        assert_eq!(idle_cast(&lowered), None, "{}", context());
        let (bytes, bytes_f32) = (stored(&lowered), stored(&module));
        assert!(bytes <= bytes_f32, "{bytes} bytes are stored, in f32 {bytes_f32}\n{}", context());
        let arguments = program.arguments(&mut draws, is_exact);
        let (measured, expected) = (results(seed, &lowered, &arguments), results(seed, &module, &arguments));
        if is_exact {
            totals.n_exact += 1;
            for (nth, (measured, expected)) in measured.iter().zip(&expected).enumerate() {
                assert!(equal(measured, expected), "result {nth}: {measured:?}, expected {expected:?}\n{}", context());
            }
        } else {
            totals.n_rounded += 1;
            let of_sizes = differentiated(&program, Form { is_majorant: true, ..form }, seed);
            let sizes = results(seed, &of_sizes, &arguments.iter().map(sizes).collect::<Vec<_>>());
            let counts = roundings(&lowered).into_iter().zip(roundings(&module));
            for (nth, ((measured, expected), (sizes, (n_lowered, n_before)))) in
                measured.iter().zip(&expected).zip(sizes.iter().zip(counts)).enumerate()
            {
                let [Some(measured), Some(expected), Some(sizes)] =
                    [measured, expected, sizes].map(Literal::elements::<f32>)
                else {
                    // Integers that were computed from floats jump.
                    continue;
                };
                // Both were rounded, and so were the sums of sizes.
                let moved = |n: f64| (1.0 + UNIT).powf(n) - 1.0;
                let relative = (moved(n_lowered) + moved(n_before)) / (1.0 - UNIT).powf(n_before);
                for ((measured, expected), size) in measured.into_iter().zip(expected).zip(sizes) {
                    let error = f64::from((measured - expected).abs());
                    // The least normal number, under which roundings are not relative.
                    let bound = relative * f64::from(size) + f64::from(f32::MIN_POSITIVE);
                    let is_within = error <= bound;
                    assert!(is_within, "result {nth}: {measured}, expected {expected} within {bound}\n{}", context());
                    totals.most = totals.most.max(error / bound);
                }
            }
        }
    }
    totals
}

/// The sizes of floating-point numbers; other arguments are unchanged.
fn sizes(argument: &Literal) -> Literal {
    let Some(elements) = argument.elements::<f32>() else { return argument.clone() };
    Literal::from_elements(argument.shape().dims(), &elements.into_iter().map(f32::abs).collect::<Vec<_>>())
}

/// Whether all numbers are the same; zeros of either sign are.
fn equal(measured: &Literal, expected: &Literal) -> bool {
    match (measured.elements::<f32>(), expected.elements::<f32>()) {
        (Some(measured), Some(expected)) => measured == expected,
        _ => measured == expected,
    }
}

#[test]
fn differentiated_programs_are_as_near_to_f32_as_their_casts_allow() {
    // XLA takes a quarter of a second for each; `what_is_evaluated_here_is_what_xla_computes`.
    let by_either = |seed, module: &_, arguments: &_| match seed {
        1..7 => by_xla(module, arguments),
        _ => evaluate(module, arguments),
    };
    let totals = run(1..49, by_either);
    println!("{} exact, {} rounded, {:.3} of the bound", totals.n_exact, totals.n_rounded, totals.most);
    assert!(totals.n_exact >= 8 && totals.n_rounded >= 8, "{} exact, {} rounded", totals.n_exact, totals.n_rounded);
    assert!(totals.n_lowered > 480, "only {} instructions were lowered in all", totals.n_lowered);
    assert!(totals.n_carried >= 8, "the loops of only {} carry bf16", totals.n_carried);
    // If nothing came near the bound, the test would be blind.
    assert!(totals.most > 0.05, "the largest error was {} of its bound", totals.most);
}

#[test]
fn what_is_evaluated_here_is_what_xla_computes() {
    for seed in (1..).filter(|&seed| Program::new(&mut Draws(seed)).is_exact()).take(4) {
        let mut draws = Draws(seed);
        let program = Program::new(&mut draws);
        let form = Form { keeps_before: true, is_over_layers: seed % 2 == 1, sums_products: false, is_majorant: false };
        let (module, _) = amp::run(&differentiated(&program, form, seed), &Policy::default()).unwrap();
        let arguments = program.arguments(&mut draws, true);
        for (measured, expected) in evaluate(&module, &arguments).iter().zip(by_xla(&module, &arguments)) {
            assert!(equal(measured, &expected), "seed {seed}: {measured:?}, expected {expected:?}");
        }
    }
}

/// Too long for `cargo test`: `ci/long` runs them.
#[cfg_attr(not(feature = "long-tests"), allow(dead_code))]
mod long {
    use super::*;

    /// Programs are evaluated here, as XLA takes a quarter of a second for each; for programs of the other test both
    /// agree.
    /// `BF16SCOPE_PROGRAMS=2000..4000` runs a part.
    ///
    /// 10,000 programs.
    #[cfg_attr(feature = "long-tests", test)]
    fn many_differentiated_programs_are_as_near_to_f32_as_their_casts_allow() {
        let part = std::env::var("BF16SCOPE_PROGRAMS").unwrap_or_else(|_| "1..10001".to_string());
        let (from, to) = part.split_once("..").expect("BF16SCOPE_PROGRAMS is A..B");
        let totals =
            run(from.parse().unwrap()..to.parse().unwrap(), |_, module, arguments| evaluate(module, arguments));
        println!("{} exact, {} rounded, {:.3} of the bound", totals.n_exact, totals.n_rounded, totals.most);
    }
}
