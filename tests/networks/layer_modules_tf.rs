//! Layers beside TensorFlow's own modules of them (`tests/data/layers_tf/make_more.py`), on one device with the same options: results
//! and gradients have the same bits where the arithmetic is the same. `OTHERS` lists where it is not; `layers_more_tf.rs` compares
//! those with what Keras recorded, within bounds.

use crate::layers_more_tf::{CASES, Recorded, argument, program};
use crate::run;
use bf16scope::graph::Precision;
use bf16scope::hlo::proto::encode;
use bf16scope::hlo::text::parse;
use bf16scope::hlo::verify::verify;
use bf16scope::hlo::{DType, Literal};
use bf16scope::pjrt::CompileOptions;
use flate2::read::GzDecoder;
use std::fs::File;
use std::io::Read;

/// Results whose arithmetic is another, by the beginnings of their cases. A transposed convolution of ours reverses its kernel by the
/// window, TensorFlow's before the product; and the kernel's gradient of ours slides the other one of the two arrays.
const OTHERS: &[(&str, &[&str])] = &[("conv_transpose", &["result", "gradient_kernel"])];

/// A case's module as TensorFlow hands it to XLA.
struct Theirs {
    case: String,
    parameters: Vec<String>,
    results: Vec<String>,
    text: String,
}

/// The recorded modules: each behind a line `// CASE: PARAMETERS -> RESULTS`.
fn modules() -> Vec<Theirs> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/layers_tf/modules.txt.gz");
    let mut text = String::new();
    GzDecoder::new(File::open(path).unwrap()).read_to_string(&mut text).unwrap();
    let names = |list: &str| -> Vec<String> { list.split_whitespace().map(str::to_string).collect() };
    let module = |part: &str| {
        let (head, text) = part.split_once('\n').unwrap();
        let (case, head) = head.split_once(": ").unwrap();
        let (parameters, results) = head.split_once(" -> ").unwrap();
        let (case, text) = (case.to_string(), text.to_string());
        Theirs { case, parameters: names(parameters), results: names(results), text }
    };
    text.split("// ").skip(1).map(module).collect()
}

/// The results of TensorFlow's module of a case.
fn computed(theirs: &Theirs, recorded: &Recorded) -> Vec<Literal> {
    let case = &theirs.case;
    let module = parse(&theirs.text, case).unwrap_or_else(|error| panic!("{case}: {error}"));
    verify(&module).unwrap_or_else(|errors| panic!("{case}: {errors}"));
    let argument = |name: &String| {
        let literal = recorded.literal(&format!("{case}/{name}"), DType::F32);
        literal.unwrap_or_else(|| panic!("{case} has no {name}"))
    };
    let arguments: Vec<Literal> = theirs.parameters.iter().map(argument).collect();
    run::run_bytes(&encode::to_bytes(&module).unwrap(), &CompileOptions::default(), &arguments)
}

#[test]
fn layers_have_the_bits_of_tensorflows_modules() {
    let recorded = Recorded::open();
    let modules = modules();
    assert_eq!(modules.len(), 8);
    let mut wrong = vec![];
    for module in &modules {
        let case = module.case.as_str();
        let (_, layer) = CASES.iter().find(|(name, _)| *name == case).unwrap_or_else(|| panic!("no case {case}"));
        let program = program(case, layer, &recorded, Precision::F32);
        let ours = run::run(&program, |name| argument(case, name, &program, &recorded, Precision::F32));
        let theirs = computed(module, &recorded);
        assert_eq!((theirs.len(), ours.len()), (module.results.len(), module.results.len()), "{case}");
        let others: Vec<&str> =
            OTHERS.iter().filter(|(start, _)| case.starts_with(start)).flat_map(|(_, names)| names.to_vec()).collect();
        for (name, theirs) in module.results.iter().zip(&theirs) {
            let at = program.outputs.iter().position(|output| output == name);
            let ours = at.map_or_else(|| panic!("{case} has no {name}"), |at| &ours[at]);
            if !others.contains(&name.as_str()) && !run::is_same(ours, theirs) {
                wrong.push(format!("{case}/{name}"));
            }
        }
    }
    assert!(wrong.is_empty(), "of {} modules, these results have other bits: {}", modules.len(), wrong.join(", "));
}
