//! Layers that consist of several: the same programs as their parts, and what is dropped whole.

use crate::run;
use bf16scope::document;
use bf16scope::graph::{Graph, Init, Precision, Tensor};
use bf16scope::hlo::verify::verify;
use bf16scope::hlo::{DType, Literal};
use bf16scope::models::Model;
use bf16scope::nn::{Activation, SqueezeExcite, squeeze_excite, stochastic_depth, take};
use bf16scope::optim::Update;
use bf16scope::train::program::{Objective, training};
use bf16scope::train::resume::function_of;

fn model(inputs: &str, layers: &str) -> Model {
    let text = format!("kind: layers\ninputs: {inputs}\nlayers:\n{layers}loss: mean_squared_error\n");
    document::from_str("model.yaml", &text).unwrap_or_else(|error| panic!("{error}"))
}

/// Both predict with the same instructions in the same order, and the first trains in every precision.
#[track_caller]
fn same(inputs: &str, block: &str, layers: &str) {
    let (block, layers) = (model(inputs, block), model(inputs, layers));
    assert_eq!(function_of(&*block.task(0.0)), function_of(&*layers.task(0.0)));
    let again: Model = document::from_str("again.yaml", &serde_json::to_string(&block).unwrap()).unwrap();
    assert_eq!(again, block);
    for precision in Precision::ALL {
        let objective = Objective { update: Update::default(), ..Objective::default() };
        let step = training(&*block.task(0.0), precision, 4, &objective).unwrap().program;
        verify(&step.module).unwrap();
        let unused: Vec<&String> = step.variables.iter().filter(|v| v.update.is_none()).map(|v| &v.name).collect();
        assert_eq!(unused, [""; 0]);
    }
}

#[test]
fn an_inverted_bottleneck_is_its_layers() {
    let norm = "  - {batch_norm: , momentum: 0.9, epsilon: 0.001}\n";
    let conv = |filters: i64| format!("  - {{conv: {filters}, kernel_size: 1, use_bias: false}}\n");
    let depthwise =
        |strides: i64| format!("  - {{depthwise_conv: 3, strides: {strides}, padding: same, use_bias: false}}\n");
    let relu = "  - {activation: relu6}\n";
    let first =
        [&conv(12), norm, relu, &depthwise(2), norm, relu, &conv(6), "  - {batch_norm: , momentum: 0.9, name: a}\n"];
    let second = [&conv(18), norm, relu, &depthwise(1), norm, relu];
    let squeeze = "  - {squeeze_excite: 1, activation: relu6}\n";
    let rest = [&conv(6), "  - {batch_norm: , momentum: 0.9, name: b}\n", "  - {add: [a, b]}\n"];
    // The channels are 4 and then 6, so a squeeze of a quarter is of one unit in both.
    let first = first.concat().replacen(&conv(6), &format!("{squeeze}{}", conv(6)), 1);
    let layers = format!("{first}{}{squeeze}{}", second.concat(), rest.concat());
    let block = "  - {mb_conv: 6, kernel_size: 3, strides: 2, expand_ratio: 3, se_ratio: 0.25, repeats: 2, momentum: 0.9, \
                 stochastic_depth: [0.1, 0.2]}\n";
    same("{x: [6, 6, 4]}", block, &layers);
    // Without an expansion, and without an addition where the channels change.
    let layers = [&depthwise(1), norm, relu, &conv(6), norm].concat();
    same("{x: [6, 6, 4]}", "  - {mb_conv: 6, kernel_size: 3, expand_ratio: 1, momentum: 0.9}\n", &layers);
}

#[test]
fn transformer_blocks_are_their_layers() {
    let norm = |name: &str| format!("  - {{layer_norm: , epsilon: 1.0e-5, name: {name}}}\n");
    let dense = "  - {dense: 16}\n  - {activation: gelu_tanh}\n  - {dense: 8, name: f}\n";
    let begin = "  - {embedding: 9, output_dim: 8, name: x}\n";
    let post = format!(
        "{begin}  - {{attention: 2, name: a}}\n  - {{add: [x, a]}}\n{}{dense}  - {{add: [y, f]}}\n{}",
        norm("y"),
        norm("z")
    );
    let sequence = "{tokens: {shape: [5], dtype: int32}}";
    let block = "  - {transformer_block: 2, intermediate_dim: 16, activation: gelu_tanh, dropout: 0.1}\n";
    same(sequence, &format!("{begin}{block}"), &post);
    let pre = format!(
        "{begin}{}  - {{attention: 2, use_causal_mask: true, name: a}}\n  - {{add: [x, a], name: y}}\n{}{}  - {{add: [y, f]}}\n",
        norm("n"),
        norm("m"),
        dense.replace("gelu_tanh", "relu")
    );
    let block = "  - {transformer_block: 2, intermediate_dim: 16, normalize_first: true, use_causal_mask: true}\n";
    same(sequence, &format!("{begin}{block}"), &pre);
}

#[test]
fn llama_blocks_are_their_layers() {
    let norm = |name: &str| format!("  - {{rms_norm: , epsilon: 1.0e-5, name: {name}}}\n");
    let rope = "rope: {max_wavelength: 1000, scaling: {factor: 4, low_freq_factor: 1, high_freq_factor: 2, \
                original_max_position_embeddings: 8}}";
    let heads = "num_key_value_heads: 2, head_dim: 4";
    let block = |x: &str, n: usize| {
        format!(
            "{}  - {{attention: 4, {heads}, use_bias: false, {rope}, use_causal_mask: true, name: a{n}}}\n  \
             - {{add: [{x}, a{n}], name: y{n}}}\n{}  - {{dense: 16, activation: silu, use_bias: false, name: g{n}}}\n  \
             - {{dense: 16, use_bias: false, inputs: m{n}, name: u{n}}}\n  - {{multiply: [g{n}, u{n}]}}\n  \
             - {{dense: 8, use_bias: false, name: f{n}}}\n  - {{add: [y{n}, f{n}], name: z{n}}}\n",
            norm(&format!("n{n}")),
            norm(&format!("m{n}")),
        )
    };
    let begin = "  - {embedding: 9, output_dim: 8, name: x}\n";
    let blocks =
        format!("{begin}  - {{llama_block: 4, intermediate_dim: 16, {heads}, {rope}, repeats: 2, dropout: 0.1}}\n");
    same("{tokens: {shape: [5], dtype: int32}}", &blocks, &format!("{begin}{}{}", block("x", 1), block("z1", 2)));
}

fn array(dims: &[i64], values: &[f32]) -> Literal {
    Literal::from_elements(dims, values)
}

/// By hand: a mean of 2 and 6, a unit of `relu(2·1 + 6·(-1/4) + 1/2) = 1`, factors of `sigmoid(0)` and `sigmoid(1 - 1)`.
#[test]
fn channels_are_weighted_by_what_the_image_says() {
    let graph = Graph::new("test");
    let x = graph.input("x", DType::F32, [1, 1, 2, 2]);
    let config =
        SqueezeExcite { filters: 1, activation: Activation::Relu, kernel_initializer: bf16scope::graph::Init::Zeros };
    let y = squeeze_excite(&graph.scope(), &x, "se", &config);
    let program = graph.finish(&[("y", &y)]).unwrap();
    let value = |name: &str| match name {
        "x" => array(&[1, 1, 2, 2], &[1.0, 4.0, 3.0, 8.0]),
        "se/reduce/kernel" => array(&[2, 1], &[1.0, -0.25]),
        "se/reduce/bias" => array(&[1], &[0.5]),
        "se/expand/kernel" => array(&[1, 2], &[0.0, 1.0]),
        "se/expand/bias" => array(&[2], &[0.0, -1.0]),
        other => panic!("{other}"),
    };
    assert_eq!(run::f32s(&run::run(&program, value)[0]), [0.5, 2.0, 1.5, 4.0]);
}

#[test]
fn an_example_is_dropped_whole_or_scaled_whole() {
    let (n, rate) = (4000i64, 0.25);
    let graph = Graph::training("test");
    let x = graph.input("x", DType::F32, [n, 2, 3]);
    let y = stochastic_depth(&graph.scope(), &x, "drop", rate);
    let program = graph.finish(&[("y", &y)]).unwrap();
    let y = run::f32s(
        &run::run(&program, |name| match name {
            "x" => array(&[n, 2, 3], &vec![3.0; 6 * n as usize]),
            _ => Literal::from_elements([2], &[7u64, 1]),
        })[0],
    );
    let examples: Vec<&[f32]> = y.chunks(6).collect();
    // 1 / (1 - 1/4), rounded, times 3, rounded.
    let scaled = 3.0 * (1.0f32 / 0.75);
    assert!(examples.iter().all(|example| **example == [0.0; 6] || **example == [scaled; 6]));
    let dropped = examples.iter().filter(|example| example[0] == 0.0).count() as f64 / n as f64;
    // Six standard deviations of a binomial's mean: √(¼ · ¾ / 4000) = 0.0068.
    assert!((dropped - rate).abs() < 6.0 * 0.0068, "{dropped}");
    let graph = Graph::new("test");
    let x = graph.input("x", DType::F32, [2, 3]);
    assert_eq!(stochastic_depth(&graph.scope(), &x, "drop", rate).id, x.id);
}

#[test]
fn one_place_of_an_axis_is_taken() {
    let graph = Graph::new("test");
    let x = graph.input("x", DType::F32, [2, 3, 2]);
    let (y, z) = (take(&x, -2, 1), take(&x, 0, -1));
    let program = graph.finish(&[("y", &y), ("z", &z)]).unwrap();
    let values: Vec<f32> = (0..12).map(|value| value as f32).collect();
    let results = run::run(&program, |_| array(&[2, 3, 2], &values));
    assert_eq!(run::f32s(&results[0]), [2.0, 3.0, 8.0, 9.0]);
    assert_eq!(run::f32s(&results[1]), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
    let message = |index, axis| {
        let graph = Graph::new("test");
        let y: Tensor = take(&graph.input("x", DType::F32, [2, 3, 2]), index, axis);
        graph.finish(&[("y", &y)]).unwrap_err().0.error.message
    };
    assert_eq!(message(3, 1), "index is 3, expected -3 up to 2 of f32[2,3,2]");
    assert_eq!(message(0, 0), "axis is 0, expected one of f32[2,3,2] after the batch");
}

#[test]
fn both_kernels_of_a_squeeze_start_as_it_says() {
    let graph = Graph::new("squeeze");
    let x = graph.input("x", DType::F32, [2, 4, 4, 8]);
    let config = SqueezeExcite { filters: 2, activation: Activation::Relu, kernel_initializer: Init::Constant(0.5) };
    let y = squeeze_excite(&graph.scope(), &x, "squeeze", &config);
    let program = graph.finish(&[("y", &y)]).unwrap();
    let kernels = program.variables.iter().filter(|variable| variable.name.ends_with("kernel"));
    let starts: Vec<(&str, Init)> = kernels.map(|variable| (variable.name.as_str(), variable.init)).collect();
    assert_eq!(
        starts,
        [("squeeze/reduce/kernel", Init::Constant(0.5)), ("squeeze/expand/kernel", Init::Constant(0.5))]
    );
}
