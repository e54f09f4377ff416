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

/// Cases whose arithmetic is another, with the beginnings of the results that have other bits for it.
const OTHERS: &[(&[&str], &[&str])] = &[
    // A transposed convolution of ours reverses its kernel by the window, TensorFlow's before the product; and the kernel's gradient
    // of ours slides the other one of the two arrays.
    (
        &["conv_transpose_1d", "conv_transpose_1d_valid", "conv_transpose_2d", "conv_transpose_2d_same"],
        &["result", "gradient_kernel"],
    ),
    (&["conv_transpose_2d_short", "conv_transpose_2d_added", "conv_transpose_3d"], &["result", "gradient_kernel"]),
    // Both divide by the number of places; XLA folds one side's numbers, and then multiplies by 1/3.
    (&["avg_pool_1d"], &["result", "gradient_x"]),
    // The three gradients of an element are summed in another order.
    (&["upsample_1d"], &["gradient_x"]),
    // TensorFlow makes its resize a product with a matrix of weights, of nine for each place, which it divides by their sums.
    (&["upsample_lines"], &["result", "gradient_x"]),
    // Keras has e^(x - log Σ e^x) over several axes, and ours a quotient, as over one.
    (&["softmax_axes"], &["result", "gradient_x"]),
    // TensorFlow has a formula of the result, (g - Σ g·y)·y, or g - e^y Σ g; ours goes back through quotient, sum and powers.
    (&["softmax", "activation_softmax", "activation_log_softmax"], &["gradient_x"]),
    // These go back through a softmax, too. Queries, keys and the table are before it; values and the product behind it are the same.
    (
        &["relative_positions", "relative_positions_causal"],
        &["gradient_x", "gradient_query", "gradient_key", "gradient_relative_positions"],
    ),
    // Attention of ours divides queries by √size, where Keras multiplies by 1/√size; its weights are e^(score - log Σ e^score), and
    // the row sums of its gradient those of the result.
    (
        &["attention_padding", "attention_segments", "attention_window", "attention_cross", "attention_windows"],
        &["result", "gradient"],
    ),
    (&["attention_wider", "attention_windows_masked"], &["result", "gradient"]),
    // TensorFlow multiplies r³ by half the sum, and another product by 2; ours goes back through each operation.
    (&["cosine", "unit_norm", "unit_norm_axis", "rms_norm"], &["gradient_x", "gradient_y"]),
    // Keras computes x·r - mean·r for what is not an image, and ours (x - mean)·r, as both do for images (`batch_norm`).
    (&["batch_norm_plain"], &["result", "gradient_x"]),
    // Keras' are batch norms of rows, (x - mean)·r, which it multiplies by gamma; ours is x·(r·gamma) + (beta - mean·r·gamma).
    (&["layer_norm", "layer_norm_plain"], &["result", "gradient_x", "gradient_gamma"]),
    // Keras has x·(r·gamma) + (beta - mean·r·gamma), and ours (x - mean)·r·gamma + beta. Keras sums gradients
    // within each example first.
    (&["group_norm", "instance_norm"], &["result", "gradient"]),
    // TensorFlow multiplies running products from both sides, so that a zero does no harm.
    (&["reduce_prod"], &["gradient_x"]),
    // TensorFlow multiplies by 1 / Σ, ours divides by Σ.
    (&["reduce_logsumexp"], &["gradient_x"]),
    // TensorFlow multiplies the queries with all examples at once, ours repeats them for each example.
    (&["variable_queries"], &["result", "gradient_value"]),
    // The kernels' gradients are sums over steps: of ours in one order, of TensorFlow's in another; so are those of what several gates
    // read.
    (
        &["lstm_started", "lstm_started_both", "lstm_masked", "gru_started", "gru_masked", "convlstm", "convlstm_last"],
        &["gradient"],
    ),
    // The same; and ours multiplies all steps with the kernel at once, whose products XLA may sum in another order than those of a step.
    (&["simple_rnn", "simple_rnn_masked"], &["result", "gradient"]),
    // TensorFlow's formulas are of the result, g·(y + λα), or of the sigmoid and of the square; ours go back through the operations.
    (&["activation_selu", "activation_silu", "activation_softsign"], &["gradient_x"]),
    // TensorFlow writes a polynomial for erf before XLA sees it, and divides by √2. Both forms have a formula of ours for a gradient.
    (&["activation_gelu"], &["result", "gradient_x"]),
    (&["activation_gelu_tanh"], &["gradient_x"]),
    // TensorFlow has log(1 + e^x) between two bounds, and ours max(x, 0) + log(1 + e^-|x|).
    (&["activation_softplus"], &["result"]),
];

/// Results and gradients that are the same but for the sign of zeros: one side multiplies by 0 or 1, the other selects.
const SIGNS: &[&str] =
    &["top_k_indices", "arg_min", "reduce_max", "reduce_min", "global_max_1d", "global_max_2d", "global_max_3d"];

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
        if name.starts_with("moving") {
            return Literal::from_elements([5], &[1.0f32; 5]);
        }
        let literal = recorded.literal(&format!("{case}/{name}"), DType::F32);
        literal.unwrap_or_else(|| panic!("{case} has no {name}"))
    };
    let arguments: Vec<Literal> = theirs.parameters.iter().map(argument).collect();
    run::run_bytes(&encode::to_bytes(&module).unwrap(), &CompileOptions::default(), &arguments)
}

fn with_positive_zeros(literal: &Literal) -> Literal {
    let values: Vec<f32> = run::f32s(literal).iter().map(|value| value + 0.0).collect();
    Literal::from_elements([values.len() as i64], &values)
}

#[test]
fn layers_have_the_bits_of_tensorflows_modules() {
    let recorded = Recorded::open();
    let modules = modules();
    // All but `upsample_2d`, whose gradient TensorFlow does not compile for XLA, and transforms, which XLA has as an op.
    let is_meant = |case: &str| case != "upsample_2d" && !case.contains("fft");
    assert_eq!(modules.len(), CASES.iter().filter(|(case, _)| is_meant(case)).count());
    for case in OTHERS.iter().flat_map(|(cases, _)| *cases).chain(SIGNS) {
        assert!(modules.iter().any(|module| module.case == *case), "no module of {case}");
    }
    let mut wrong = vec![];
    for module in &modules {
        let case = module.case.as_str();
        let (_, layer) = CASES.iter().find(|(name, _)| *name == case).unwrap_or_else(|| panic!("no case {case}"));
        let program = program(case, layer, &recorded, Precision::F32);
        let ours = run::run(&program, |name| argument(case, name, &program, &recorded, Precision::F32));
        let theirs = computed(module, &recorded);
        // Behind the results stand new running statistics.
        assert!(theirs.len() >= module.results.len(), "{case}");
        assert_eq!(ours.len(), module.results.len(), "{case}");
        let others: Vec<&str> =
            OTHERS.iter().filter(|(cases, _)| cases.contains(&case)).flat_map(|(_, names)| names.to_vec()).collect();
        for (name, theirs) in module.results.iter().zip(&theirs) {
            let at = program.outputs.iter().position(|output| output == name);
            let ours = at.map_or_else(|| panic!("{case} has no {name}"), |at| &ours[at]);
            let is_same = match SIGNS.contains(&case) && ["result", "gradient_x"].contains(&name.as_str()) {
                true => run::is_same(&with_positive_zeros(ours), &with_positive_zeros(theirs)),
                false => run::is_same(ours, theirs),
            };
            if !is_same && !others.iter().any(|start| name.starts_with(start)) {
                wrong.push(format!("{case}/{name}"));
            }
        }
    }
    assert!(wrong.is_empty(), "of {} modules, these results have other bits: {}", modules.len(), wrong.join(", "));
}
