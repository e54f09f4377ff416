//! Modules from JAX and TensorFlow go through text and proto, in every direction, and still compute the same bits.
//!
//! `tests/hlo/foreign_modules.rs` compares the modules; this file compares the results of the CPU plugin.

use crate::run;

use bf16scope::hlo::proto::{decode, encode};
use bf16scope::hlo::text::{self, PrintOptions};
use bf16scope::hlo::verify::verify;
use bf16scope::hlo::{DType, Literal, Module, Shape};
use bf16scope::pjrt::CompileOptions;
use std::path::{Path, PathBuf};

/// Folder and name of each oracle module.
const ORACLES: [(&str, &str); 7] = [
    ("oracle_jax", "cnn_momentum_step"),
    ("oracle_jax", "encoder_forward"),
    ("oracle_jax", "mlp_adam_step"),
    ("oracle_tf", "mlp_bf16"),
    ("oracle_tf", "mlp_f32"),
    ("oracle_tf", "resnet_block_bf16"),
    ("oracle_tf", "resnet_block_f32"),
];

fn path((folder, name): (&str, &str), ending: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(folder).join(format!("{name}.hlo.{ending}"))
}

fn from_proto(bytes: &[u8]) -> Module {
    decode::from_bytes(bytes).unwrap_or_else(|error| panic!("{error}"))
}

fn from_text(text: &str) -> Module {
    text::parse(text, "text").unwrap_or_else(|error| panic!("{error}"))
}

fn to_proto(module: &Module) -> Vec<u8> {
    verify(module).unwrap_or_else(|errors| panic!("{errors}"));
    encode::to_bytes(module).unwrap()
}

fn to_text(module: &Module) -> String {
    text::print(module, &PrintOptions::default())
}

/// The same text with its computations in the opposite order, callers first.
fn callers_first(text: &str) -> String {
    let mut blocks: Vec<&str> = text.split("\n\n").filter(|block| !block.trim().is_empty()).collect();
    blocks[1..].reverse();
    blocks.join("\n\n")
}

/// A module's protos after each way of reading and writing it.
fn journeys(oracle: (&str, &str)) -> Vec<(&'static str, Vec<u8>)> {
    let original = std::fs::read(path(oracle, "pb")).unwrap();
    let written = std::fs::read_to_string(path(oracle, "txt")).unwrap();
    let of_proto = from_proto(&original);
    let of_text = from_text(&written);
    let printed = to_text(&of_proto);
    let long = text::print(&of_proto, &PrintOptions::long());
    vec![
        ("proto to proto", to_proto(&of_proto)),
        ("proto to text to proto", to_proto(&from_text(&printed))),
        ("proto to the long text to proto", to_proto(&from_text(&long))),
        ("proto to text, callers first, to proto", to_proto(&from_text(&callers_first(&printed)))),
        ("text to proto", to_proto(&of_text)),
        ("text to text to proto", to_proto(&from_text(&to_text(&of_text)))),
        ("text to proto to text to proto", to_proto(&from_text(&to_text(&from_proto(&to_proto(&of_text)))))),
    ]
}

/// After the first conversion nothing changes any more: the module, its text and its proto agree.
#[test]
fn text_and_proto_are_stable() {
    for oracle in ORACLES {
        let of_proto = from_proto(&std::fs::read(path(oracle, "pb")).unwrap());
        let of_text = from_text(&std::fs::read_to_string(path(oracle, "txt")).unwrap());
        for (from, module) in [("proto", of_proto), ("text", of_text)] {
            let what = format!("{} from {from}", oracle.1);
            let (bytes, text) = (to_proto(&module), to_text(&module));
            assert!(from_proto(&bytes) == module, "{what}: through proto");
            assert!(to_proto(&from_proto(&bytes)) == bytes, "{what}: its proto");
            assert!(to_text(&from_text(&text)) == text, "{what}: its text");
            assert!(to_text(&from_proto(&bytes)) == text, "{what}: its proto's text");
            let mut through_text = from_text(&text);
            // A proto says more of a module as a whole than text does, such as the ids of its schedule.
            through_text.unmodelled.proto.clone_from(&module.unmodelled.proto);
            assert!(through_text == module, "{what}: through text");
        }
    }
}

/// Values that differ from element to element and stay below one in size, integers that are small labels: every
/// program computes something of them, and nothing overflows.
fn arguments(module: &Module) -> Vec<Literal> {
    let entry = module.entry();
    let argument = |(number, id): (usize, _)| {
        let Shape::Array(shape) = &entry.instr(id).shape else { panic!("a parameter is no array") };
        let n = shape.n_elements() as usize;
        match shape.dtype {
            DType::F32 => {
                let values = (0..n).map(|at| ((at * 7919 + number * 104_729) % 1009) as f32 / 1009.0 + 1e-3);
                Literal::from_elements(shape.dims.clone(), &values.collect::<Vec<f32>>())
            }
            DType::S32 => {
                let values = (0..n).map(|at| ((at + number) % 8) as i32);
                Literal::from_elements(shape.dims.clone(), &values.collect::<Vec<i32>>())
            }
            other => panic!("no oracle takes {other}"),
        }
    };
    entry.parameters().into_iter().enumerate().map(argument).collect()
}

/// An oracle of each framework, kind and precision; the longest journeys from proto and from text, which hold the others.
#[test]
fn every_journey_ends_with_a_program_of_the_same_bits() {
    let is_short = |(_, name): &(&str, &str)| !["mlp_f32", "resnet_block_bf16"].contains(name);
    let oracles: Vec<(&str, &str)> = ORACLES.into_iter().filter(is_short).collect();
    let longest = ["proto to text, callers first, to proto", "text to proto to text to proto"];
    end_with_the_same_bits(&oracles, |journey| longest.contains(&journey));
}

/// Too long for `cargo test`: `ci/long` runs them.
#[cfg_attr(not(feature = "long-tests"), allow(dead_code))]
mod long {
    use super::*;

    /// Compiles some forty programs; `every_journey_ends_with_a_program_of_the_same_bits` asks for two journeys of most oracles.
    #[cfg_attr(feature = "long-tests", test)]
    fn all_journeys_of_all_oracles_end_with_programs_of_the_same_bits() {
        end_with_the_same_bits(&ORACLES, |_| true);
    }
}

fn end_with_the_same_bits(oracles: &[(&'static str, &'static str)], is_meant: impl Fn(&str) -> bool) {
    let mut n_compiled = 0;
    for &oracle in oracles {
        let original = std::fs::read(path(oracle, "pb")).unwrap();
        let arguments = arguments(&from_proto(&original));
        let expected = run::run_bytes(&original, &CompileOptions::default(), &arguments);
        let is_nan = |literal: &Literal| run::f32s(literal).iter().any(|value| value.is_nan());
        assert!(
            !expected.iter().filter(|literal| literal.shape().dtype() == Some(DType::F32)).any(is_nan),
            "{oracle:?}"
        );
        let mut seen = vec![original];
        for (journey, bytes) in journeys(oracle) {
            // The same bytes are the same program.
            if !is_meant(journey) || seen.contains(&bytes) {
                continue;
            }
            let results = run::run_bytes(&bytes, &CompileOptions::default(), &arguments);
            assert!(results == expected, "{}, {journey}: results differ", oracle.1);
            n_compiled += 1;
            seen.push(bytes);
        }
    }
    assert!(n_compiled >= oracles.len(), "only {n_compiled} programs differ in their bytes from the original");
}
