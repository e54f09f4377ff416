//! Random modules through text, proto and lowering: what comes back is the same module, verifies, compiles, and gives
//! the same bits. How far lowering moves results is bounded in `tests/hlo/amp/random.rs`.

use crate::modules;
use crate::run;

use bf16scope::hlo::proto::{decode, encode};
use bf16scope::hlo::text::{self, PrintOptions};
use bf16scope::hlo::verify::verify;
use bf16scope::hlo::{Literal, Module};
use bf16scope::passes::amp::{self, Policy};
use bf16scope::pjrt::CompileOptions;
use modules::{N, N_PARAMETERS, build, step};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

fn from_text(text: &str) -> Module {
    let module = text::parse(text, "text").unwrap_or_else(|error| panic!("{error}"));
    verify(&module).unwrap_or_else(|errors| panic!("{errors}"));
    module
}

/// The same module with its computations in the opposite order, callers first, as text may have them.
fn callers_first(text: &str) -> String {
    let mut blocks: Vec<&str> = text.split("\n\n").filter(|block| !block.trim().is_empty()).collect();
    blocks[1..].reverse();
    blocks.join("\n\n")
}

/// Converts a module in every way between text and proto, and returns the programs that differ in their bytes.
///
/// The first passage puts callees first and writes out what a text or message leaves to be understood (layouts, the
/// precision of operands); after it nothing changes any more.
fn programs(built: &Module) -> Vec<Vec<u8>> {
    let first = encode::to_bytes(built).unwrap();
    let of_text = from_text(&text::print(built, &PrintOptions::default()));
    let bytes = encode::to_bytes(&of_text).unwrap();
    let module = decode::from_bytes(&bytes).unwrap();
    verify(&module).unwrap_or_else(|errors| panic!("{errors}"));
    assert!(encode::to_bytes(&module).unwrap() == bytes, "proto to module to proto:\n{module:#?}");
    for options in [PrintOptions::default(), PrintOptions::long()] {
        let printed = text::print(&module, &options);
        let of_text = from_text(&printed);
        assert!(of_text == module, "text to module:\n{printed}");
        assert!(text::print(&of_text, &options) == printed, "text to module to text:\n{printed}");
        assert!(encode::to_bytes(&of_text).unwrap() == bytes, "text to proto:\n{printed}");
    }
    let turned = from_text(&callers_first(&text::print(&module, &PrintOptions::default())));
    let mut programs = vec![first, bytes, encode::to_bytes(&turned).unwrap()];
    programs.dedup();
    programs
}

/// The bits of the programs' results, which must all be the same.
fn results(programs: &[Vec<u8>], arguments: &[Literal]) -> Vec<Literal> {
    let mut results = programs.iter().map(|bytes| run::run_bytes(bytes, &CompileOptions::default(), arguments));
    let first = results.next().unwrap();
    for other in results {
        assert!(other == first, "the same module in another order gives other bits");
    }
    first
}

/// Passing through text and proto changes nothing, of a module and of its lowered form.
#[test]
fn random_modules_come_back_with_the_same_bits() {
    come_back(16);
}

fn come_back(n_cases: u32) {
    let config = Config { cases: n_cases, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let parameters = prop::collection::vec(prop::collection::vec(-1.0f32..1.0, N), N_PARAMETERS);
    let inputs = (prop::collection::vec(step(), 3..24), parameters, prop::sample::select(&["default", "O2"][..]));
    let (n_programs, n_lowered) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
    let result = runner.run(&inputs, |(steps, parameters, preset)| {
        let module = build(&steps);
        let (lowered, report) = amp::run(&module, &Policy::preset(preset).unwrap()).unwrap();
        let arguments: Vec<Literal> = parameters.iter().map(|p| Literal::from_elements([4, 4], p)).collect();
        for module in [&module, &lowered] {
            let programs = programs(module);
            let results = results(&programs, &arguments);
            prop_assert_eq!(results.len(), 3);
            n_programs.set(n_programs.get() + programs.len());
        }
        n_lowered.set(n_lowered.get() + report.n_lowered());
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
    let n = n_cases as usize;
    assert!(n_programs.get() > 3 * n, "only {} programs of {n} modules differ in their bytes", n_programs.get());
    assert!(n_lowered.get() > n + n / 2, "only {} instructions of {n} modules were lowered", n_lowered.get());
}

/// Too long for `cargo test`: `ci/long` runs them.
#[cfg_attr(not(feature = "long-tests"), allow(dead_code))]
mod long {
    use super::*;

    /// Compiles some three hundred programs.
    #[cfg_attr(feature = "long-tests", test)]
    fn many_random_modules_come_back_with_the_same_bits() {
        come_back(64);
    }
}
