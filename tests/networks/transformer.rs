//! Transformers on the CPU plugin: attention against its definition, its gradients against central differences, a causal
//! decoder that does not look ahead, and Flax's encoder with the weights and logits that JAX recorded.

use crate::run;

use bf16scope::document;
use bf16scope::graph::{Graph, Init, Precision, Program, Scope, Tensor};
use bf16scope::hlo::{DType, Literal};
use bf16scope::models::{Model, transformer};
use bf16scope::nn::*;
use bf16scope::passes::grad::gradients;
use bf16scope::task::{Features, Mode};
use bf16scope::train::program::prediction;
use bf16scope::tuning::Tuning;
use ndarray::ArrayD;
use ndarray_npy::NpzReader;
use std::fs::File;

/// A fixed sequence in `[-1, 1)` that is different for each name.
fn numbers(name: &str, dims: &[i64]) -> Vec<f64> {
    let n: i64 = dims.iter().product();
    let values = Init::Uniform { limit: 1.0 }.values(7, name, &[n]);
    values.into_iter().map(f64::from).collect()
}

fn f64s(dims: &[i64], values: &[f64]) -> Literal {
    Literal::from_elements(dims.to_vec(), values)
}

const BATCH: i64 = 2;
const LENGTH: i64 = 3;
const FEATURES: i64 = 4;

const MASKS_AND_SOFTMAXES: [(bool, Softmax); 3] =
    [(false, Softmax::OnePass), (true, Softmax::OnePass), (true, Softmax::TwoPasses)];

/// Heads that share keys and values, without biases, rotated by Llama 3.1's frequencies; the sizes of heads are not the
/// features' share.
fn grouped() -> Attention {
    let scaling =
        RopeScaling { factor: 4.0, low_freq_factor: 0.5, high_freq_factor: 1.5, original_max_position_embeddings: 6 };
    Attention {
        num_heads: 4,
        num_key_value_heads: Some(2),
        head_dim: Some(6),
        use_bias: false,
        rope: Some(Rope { max_wavelength: 20.0, scaling: Some(scaling) }),
        use_causal_mask: true,
        ..Attention::default()
    }
}

fn plain() -> Vec<Attention> {
    let attention = |(use_causal_mask, softmax)| Attention {
        num_heads: 2,
        use_causal_mask,
        softmax: Some(softmax),
        ..Attention::default()
    };
    MASKS_AND_SOFTMAXES.map(attention).to_vec()
}

/// Relative positions in four buckets, seen from both sides and from behind.
fn relative() -> [Attention; 2] {
    let relative = RelativePositions { num_buckets: 4, max_distance: 3, ..RelativePositions::default() };
    [false, true].map(|use_causal_mask| Attention {
        num_heads: 2,
        use_causal_mask,
        relative_positions: Some(relative),
        ..Attention::default()
    })
}

/// `Σ weight · attention(x + positions, memory)` in f64, and its gradients by every variable and by both inputs.
fn attention_loss(config: &Attention) -> (Program, Program) {
    let build = |with_gradients: bool| {
        let g = Graph::new("attention");
        let dims = [BATCH, LENGTH, FEATURES];
        let (x, memory) = (g.input("x", DType::F64, dims), g.input("memory", DType::F64, dims));
        let weight = g.input("weight", DType::F64, dims);
        let s = g.scope();
        let placed =
            position_embedding(&s, &x, "positions", &PositionEmbedding { max_length: 5, ..Default::default() });
        let y = attention(&s, &placed, &memory, "attention", config);
        let loss = (&y * &weight).sum(&[0, 1, 2]);
        if !with_gradients {
            return g.finish(&[("loss", &loss), ("y", &y)]).unwrap();
        }
        let variables = g.variables();
        let mut wrt: Vec<_> = variables.iter().map(|variable| variable.instr).collect();
        wrt.extend([x.id, memory.id]);
        let gradients = gradients(g.emitter(), loss.id, &wrt).unwrap();
        let names: Vec<String> = variables.into_iter().map(|v| v.name).chain(["x".into(), "memory".into()]).collect();
        let tensors: Vec<Tensor> = gradients.into_iter().map(|id| g.tensor(id)).collect();
        let results: Vec<(&str, &Tensor)> = names.iter().map(String::as_str).zip(&tensors).collect();
        g.finish(&results).unwrap()
    };
    (build(false), build(true))
}

fn dims_of(program: &Program, name: &str) -> Vec<i64> {
    let variable =
        program.variables.iter().find(|variable| variable.name == name).map(|variable| variable.dims.clone());
    let input = || program.inputs.iter().find(|input| input.name == name).map(|input| input.dims.clone());
    variable.or_else(input).unwrap_or_else(|| panic!("no {name}"))
}

/// With a step h of 2^-13 and every third derivative of this loss below 20 (values are below 1 in size, the softmax's
/// third derivative below 1, times 12 weights), the differences' own error is below `h² / 6 · 20 = 5e-8`; rounding of a
/// loss of size 24 adds `24 · 100 · 2^-53 / h = 2e-9`. A wrong rule is off by the size of the gradient.
#[test]
fn gradients_of_attention_agree_with_central_differences() {
    const STEP: f64 = 1.0 / 8192.0;
    for config in plain().into_iter().chain([grouped()]).chain(relative()) {
        let (loss, gradients) = attention_loss(&config);
        let compiled = run::Compiled::new(&loss);
        let at = |moved: Option<(&str, usize, f64)>| {
            let results = compiled.run(|name| {
                let dims = dims_of(&loss, name);
                let mut values = numbers(name, &dims);
                if let Some((_, element, by)) = moved.filter(|(variable, _, _)| *variable == name) {
                    values[element] += by;
                }
                f64s(&dims, &values)
            });
            run::f64s(&results[0])[0]
        };
        let measured = run::run(&gradients, |name| {
            let dims = dims_of(&gradients, name);
            f64s(&dims, &numbers(name, &dims))
        });
        for (name, measured) in gradients.outputs.iter().zip(&measured) {
            let measured = run::f64s(measured);
            // Kernels and inputs are alike in all their elements: some of each.
            for element in (0..measured.len()).step_by(5) {
                let difference = (at(Some((name, element, STEP))) - at(Some((name, element, -STEP)))) / (2.0 * STEP);
                let error = (measured[element] - difference).abs();
                assert!(error <= 6e-8, "{config:?}: {name}[{element}] is {}, {difference}", measured[element]);
            }
        }
    }
}

/// A loss as a function of one f64 input, and its gradient, compiled.
fn check_gradient(name: &str, dims: &[i64], bound: f64, loss: impl Fn(&Graph, &Tensor) -> Tensor) {
    const STEP: f64 = 1.0 / 8192.0;
    let build = |with_gradient: bool| {
        let g = Graph::new(name);
        let x = g.input("x", DType::F64, dims);
        let loss = loss(&g, &x);
        if !with_gradient {
            return g.finish(&[("loss", &loss)]).unwrap();
        }
        let gradient = g.tensor(gradients(g.emitter(), loss.id, &[x.id]).unwrap()[0]);
        g.finish(&[("gradient", &gradient)]).unwrap()
    };
    let (loss, gradient) = (build(false), build(true));
    let compiled = run::Compiled::new(&loss);
    // Up to ±3, where gelu bends.
    let values: Vec<f64> = numbers(name, dims).into_iter().map(|value| 3.0 * value).collect();
    let argument = |name: &str, values: &[f64]| match name {
        "x" => f64s(dims, values),
        variable => f64s(&dims_of(&loss, variable), &numbers(variable, &dims_of(&loss, variable))),
    };
    let at = |values: &[f64]| run::f64s(&compiled.run(|name| argument(name, values))[0])[0];
    let measured = run::f64s(&run::run(&gradient, |name| argument(name, &values))[0]);
    for (element, &measured) in measured.iter().enumerate() {
        let moved = |by: f64| {
            let mut values = values.clone();
            values[element] += by;
            at(&values)
        };
        let difference = (moved(STEP) - moved(-STEP)) / (2.0 * STEP);
        assert!(
            (measured - difference).abs() <= bound,
            "{name}[{element}]: gradient {measured}, difference {difference}"
        );
    }
}

/// The third derivatives of gelu stay below 3, of a cross-entropy below 1 in one logit: `h² / 6 · 3 = 7.5e-9` with a step
/// of 2^-13, and rounding of a loss below 32 adds `32 · 100 · 2^-53 / h = 3e-9`.
#[test]
fn custom_vjps_agree_with_central_differences() {
    for form in [Gelu::Tanh, Gelu::Erf] {
        check_gradient("gelu", &[24], 2e-8, |_, x| gelu(x, form).sum(&[0]));
    }
    for (smoothing, softmax) in [(0.0, Softmax::TwoPasses), (0.1, Softmax::OnePass), (0.1, Softmax::TwoPasses)] {
        check_gradient("token_loss", &[2, 3, 5], 2e-8, |g, x| {
            let labels = g.iota(DType::S32, &[2, 3], 1);
            let weight = g.iota(DType::F64, &[2, 3], 0) + 1.0;
            (token_loss(x, &labels, smoothing, softmax).loss * weight).sum(&[0, 1])
        });
    }
    let norm = LayerNorm::FLAX;
    // A normalised value y of 6 is at most √5, and with a deviation above 1 its derivatives are below 1, 3 and 15: that of
    // y³ is below 6 + 18 · √5 · 3 + 3 · 5 · 15 = 352, and `h² / 6 · 352 = 9e-7`.
    check_gradient("layer_norm", &[4, 6], 1e-6, |g, x| {
        let y = layer_norm(&g.scope(), x, "norm", &norm);
        (&y * &y * &y).sum(&[0, 1])
    });
}

/// The loss is the other cross-entropy, and hits are those of the other metric: ties, NaN, labels that are no class,
/// and infinities included. Both are f32 sums of 7 terms below 32: within `14 · 32 · 2^-24`.
#[test]
fn token_losses_are_the_cross_entropy_and_the_metric() {
    let logits = [
        [1.0f32, 3.0, 3.0, 0.0, -2.0, 1.5, 2.0], // a tie: the first of equals is right
        [1.0, 3.0, 3.0, 0.0, -2.0, 1.5, 2.0],
        [9.0, 3.0, -30.0, 0.0, -2.0, 1.5, 2.0],
        [0.0, f32::NAN, 3.0, 0.0, -2.0, 1.5, 2.0],
        [0.0, 1.0, 3.0, 0.0, f32::NEG_INFINITY, 1.5, 2.0],
        [5.0, 1.0, 3.0, 0.0, 1.0, 1.5, 2.0],
        [5.0, 1.0, 3.0, 0.0, 1.0, 1.5, 2.0],
        [5.0, 1.0, 3.0, f32::INFINITY, 1.0, 1.5, 2.0],
        [f32::NEG_INFINITY; 7],
    ];
    let labels = [1, 2, 0, 2, 2, 7, -1, 3, 0];
    for dtype in [DType::F32, DType::BF16] {
        for (smoothing, softmax) in [(0.0, Softmax::OnePass), (0.1, Softmax::OnePass), (0.1, Softmax::TwoPasses)] {
            let g = Graph::new("losses");
            let x = g.input("x", DType::F32, [9, 7]).cast(dtype);
            let y = g.input("y", DType::S32, [9]);
            let rows = token_loss(&x, &y, smoothing, softmax);
            let x = x.cast(DType::F32);
            let expected = sparse_softmax_cross_entropy_per_example(&x, &y, smoothing);
            let hits = |hits: &Tensor| hits.cast(DType::F32);
            let (measured_hits, expected_hits) = (hits(&rows.is_correct), hits(&is_correct(&x, &y)));
            let outputs = [("a", &rows.loss), ("b", &expected), ("c", &measured_hits), ("d", &expected_hits)];
            let program = g.finish(&outputs).unwrap();
            let results = run::run(&program, |name| match name {
                "x" => Literal::from_elements(vec![9, 7], logits.as_flattened()),
                _ => Literal::from_elements(vec![9], &labels),
            });
            let results: Vec<Vec<f32>> = results.iter().map(run::f32s).collect();
            // The other counts where there is no sum, in the last two rows.
            assert_eq!(results[2][..7], results[3][..7], "{dtype}: hits");
            assert_eq!(results[2], [1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0]);
            for (row, (measured, expected)) in results[0].iter().zip(&results[1]).enumerate() {
                let agrees = measured == expected
                    || (measured.is_nan() && expected.is_nan())
                    || (measured - expected).abs() <= 14.0 * 32.0 * 2f32.powi(-24);
                assert!(agrees, "{dtype}, smoothing {smoothing}, row {row}: {measured}, expected {expected}");
            }
        }
    }
}

/// A vocabulary's row against its sum in f64: each of 4,096 steps rounds a value that is at most the row's scale and
/// log 4096 together by 2^-24 of it, and adds what functions in `[0, 1]` are off by, 2^-22 at most.
#[test]
fn a_token_loss_sums_a_vocabulary() {
    const N: i64 = 4096;
    let g = Graph::new("loss");
    let (x, y) = (g.input("x", DType::F32, [3, N]), g.input("y", DType::S32, [3]));
    let program = g.finish(&[("loss", &token_loss(&x, &y, 0.0, Softmax::OnePass).loss)]).unwrap();
    // Small, large, and past where powers are finite.
    let scales = [0.5, 16.0, 128.0];
    let values: Vec<f32> = scales
        .iter()
        .flat_map(|scale| numbers("x", &[N]).into_iter().map(move |value| (scale * value) as f32))
        .collect();
    let results = run::run(&program, |name| match name {
        "x" => Literal::from_elements(vec![3, N], &values),
        _ => Literal::from_elements(vec![3], &[5, 6, 7]),
    });
    for (idx, &measured) in run::f32s(&results[0]).iter().enumerate() {
        let row = values[idx * N as usize..][..N as usize].iter().map(|&value| f64::from(value));
        let greatest = row.clone().fold(f64::MIN, f64::max);
        let label_logit = f64::from(values[idx * N as usize + 5 + idx]);
        let expected = greatest + row.map(|value| (value - greatest).exp()).sum::<f64>().ln() - label_logit;
        let bound = N as f64 * ((scales[idx] + (N as f64).ln()) * 2f64.powi(-24) + 2f64.powi(-22));
        let error = (f64::from(measured) - expected).abs();
        assert!(error <= bound, "row {idx}: {measured}, expected {expected}, bound {bound}");
    }
}

/// The definition, in f64 and in plain loops. 12 roundings of values below 10 are below 1e-13.
#[test]
fn attention_is_its_definition() {
    for config in plain().into_iter().chain(relative()) {
        let is_causal = config.use_causal_mask;
        let (program, _) = attention_loss(&config);
        let value = |name: &str| numbers(name, &dims_of(&program, name));
        let table = config.relative_positions.map(|_| value("attention/relative_positions"));
        // The buckets of distances from -2 to 2 by T5's formula.
        let buckets: [usize; 5] = if is_causal { [2, 1, 0, 0, 0] } else { [1, 1, 0, 3, 3] };
        let added = |from: usize, to: usize, head: usize| {
            table.as_ref().map_or(0.0, |table| table[buckets[to + 2 - from] * 2 + head])
        };
        let measured = run::run(&program, |name| f64s(&dims_of(&program, name), &value(name)));
        let (length, features, size) = (LENGTH as usize, FEATURES as usize, FEATURES as usize / 2);
        let (x, memory, positions) = (value("x"), value("memory"), value("positions/embeddings"));
        let mut expected = Vec::new();
        for batch in 0..BATCH as usize {
            let row = |array: &[f64], at: usize| array[(batch * length + at) * features..][..features].to_vec();
            let project = |x: &[f64], name: &str| -> Vec<f64> {
                let kernel = value(&format!("attention/{name}/kernel"));
                let bias = value(&format!("attention/{name}/bias"));
                let sum = |unit: usize| (0..features).map(|i| x[i] * kernel[i * features + unit]).sum::<f64>();
                (0..features).map(|unit| sum(unit) + bias[unit]).collect()
            };
            let placed = |at: usize| -> Vec<f64> {
                row(&x, at).iter().zip(&positions[at * features..]).map(|(x, position)| x + position).collect()
            };
            let keys: Vec<_> = (0..length).map(|at| project(&row(&memory, at), "key")).collect();
            let values: Vec<_> = (0..length).map(|at| project(&row(&memory, at), "value")).collect();
            for at in 0..length {
                let query = project(&placed(at), "query");
                let mut mixed = vec![0.0; features];
                for head in 0..2 {
                    let head_features = head * size..(head + 1) * size;
                    let seen = if is_causal { at + 1 } else { length };
                    let score = |other: usize| -> f64 {
                        let product = head_features.clone().map(|i| query[i] * keys[other][i]).sum::<f64>();
                        product / (size as f64).sqrt() + added(at, other, head)
                    };
                    let powers: Vec<f64> = (0..seen).map(|other| score(other).exp()).collect();
                    let total: f64 = powers.iter().sum();
                    for i in head_features {
                        mixed[i] = (0..seen).map(|other| powers[other] / total * values[other][i]).sum();
                    }
                }
                expected.extend(project(&mixed, "out"));
            }
        }
        for (measured, expected) in run::f64s(&measured[1]).iter().zip(&expected) {
            assert!((measured - expected).abs() <= 1e-13, "causal {is_causal}: {measured}, expected {expected}");
        }
    }
}

/// The definition again, in f64 and in plain loops, a rotation as a product of complex numbers.
#[test]
fn grouped_and_rotated_attention_is_its_definition() {
    let config = grouped();
    let (program, _) = attention_loss(&config);
    let value = |name: &str| numbers(name, &dims_of(&program, name));
    let measured = run::run(&program, |name| f64s(&dims_of(&program, name), &value(name)));
    let (length, features, size) = (LENGTH as usize, FEATURES as usize, 6);
    let frequency = |pair: usize| {
        let plain = 20f64.powf(-(pair as f64) / 3.0);
        match 6.0 * plain / std::f64::consts::TAU {
            periods if periods < 0.5 => plain / 4.0,
            periods if periods > 1.5 => plain,
            periods => (periods - 0.5) * plain + (1.5 - periods) * plain / 4.0,
        }
    };
    let project = |x: &[f64], name: &str, head: usize, n_heads: usize| -> Vec<f64> {
        let kernel = value(&format!("attention/{name}/kernel"));
        let project_unit = |unit: usize| (0..features).map(|i| x[i] * kernel[(i * n_heads + head) * size + unit]).sum();
        (0..size).map(project_unit).collect()
    };
    let rotated = |x: Vec<f64>, at: usize| -> Vec<f64> {
        let mut y = x.clone();
        for pair in 0..3 {
            let (sin, cos) = (at as f64 * frequency(pair)).sin_cos();
            (y[pair], y[pair + 3]) = (x[pair] * cos - x[pair + 3] * sin, x[pair] * sin + x[pair + 3] * cos);
        }
        y
    };
    let (x, memory, positions) = (value("x"), value("memory"), value("positions/embeddings"));
    let out = value("attention/out/kernel");
    let mut expected = Vec::new();
    for batch in 0..BATCH as usize {
        let row = |array: &[f64], at: usize| array[(batch * length + at) * features..][..features].to_vec();
        for at in 0..length {
            let placed: Vec<f64> = row(&x, at).iter().zip(&positions[at * features..]).map(|(x, y)| x + y).collect();
            let mut result = vec![0.0; features];
            for head in 0..4 {
                let query = rotated(project(&placed, "query", head, 4), at);
                let power = |other: usize| -> f64 {
                    let key = rotated(project(&row(&memory, other), "key", head / 2, 2), other);
                    (query.iter().zip(&key).map(|(q, k)| q * k).sum::<f64>() / 6f64.sqrt()).exp()
                };
                let total: f64 = (0..=at).map(power).sum();
                for other in 0..=at {
                    let values = project(&row(&memory, other), "value", head / 2, 2);
                    for (unit, value) in values.iter().enumerate() {
                        for (feature, sum) in result.iter_mut().enumerate() {
                            *sum += power(other) / total * value * out[(head * size + unit) * features + feature];
                        }
                    }
                }
            }
            expected.extend(result);
        }
    }
    for (measured, expected) in run::f64s(&measured[1]).iter().zip(&expected) {
        assert!((measured - expected).abs() <= 1e-12, "{measured}, expected {expected}");
    }
}

fn small(text: &str) -> Model {
    let text = format!(
        "{{kind: transformer, vocabulary: 19, length: 8, max_length: 8, layers: 2, features: 16, heads: 4, hidden: 32, \
         {text}}}"
    );
    document::from_str("small", &text).unwrap()
}

/// Logits of each example, `[length, vocabulary]` as the bits of f32.
fn logits(model: &Model, precision: Precision, examples: &[[i32; 8]]) -> Vec<Vec<u32>> {
    let program = prediction(&*model.task(0.0), precision, 1, &Tuning::none()).unwrap().program;
    let compiled = run::Compiled::new(&program);
    let example_logits = |tokens: &[i32; 8]| {
        let results = compiled.run(|name| match program.variables.iter().find(|variable| variable.name == name) {
            Some(v) => Literal::from_elements(v.dims.clone(), &v.init.values(3, name, &v.dims)),
            None => Literal::from_elements(vec![1, 8], tokens),
        });
        run::f32s(&results[0]).into_iter().map(f32::to_bits).collect()
    };
    examples.iter().map(example_logits).collect()
}

#[test]
fn a_decoder_does_not_look_ahead_and_an_encoder_does() {
    let before = [3, 1, 4, 1, 5, 9, 2, 6];
    let at = 5;
    let mut after = before;
    after[at] = 11;
    for norm in ["pre", "post"] {
        for precision in [Precision::F32, Precision::Bf16] {
            let [decoder, encoder] = [true, false]
                .map(|causal| logits(&small(&format!("norm: {norm}, causal: {causal}")), precision, &[before, after]));
            let n = at * 19;
            assert_eq!(decoder[0][..n], decoder[1][..n], "{norm} {precision}: an earlier logit changed");
            assert_ne!(decoder[0][n..], decoder[1][n..], "{norm} {precision}");
            assert_ne!(encoder[0][..19], encoder[1][..19], "{norm} {precision}: the first position sees nothing");
        }
    }
}

/// Each kind that has attention has its option, and a state to draw from in training alone.
#[test]
fn weights_of_attention_are_dropped_where_a_layer_says_so() {
    let states = |layer: &str, graph: Graph, mode: Mode| -> Vec<String> {
        let text = format!("{{kind: layers, inputs: {{x: [4, 8]}}, layers: [{layer}], loss: mean_squared_error}}");
        let task = document::from_str::<Model>("m.yaml", &text).unwrap().task(0.0);
        task.call(&graph.scope(), &Features::new(&graph, &task.features(), 3, mode), mode);
        graph.variables().into_iter().map(|it| it.name).filter(|name| name.ends_with("/state")).collect()
    };
    let of_block = "a/block1/attention/heads/dropout/state";
    for (layer, state) in [
        ("{attention: 2, dropout: 0.5, name: a}", "a/dropout/state"),
        ("{transformer_block: 2, intermediate_dim: 8, attention_dropout: 0.5, name: a}", of_block),
        ("{llama_block: 2, intermediate_dim: 8, attention_dropout: 0.5, name: a}", of_block),
    ] {
        assert_eq!(states(layer, Graph::training("train"), Mode::Train), [state]);
        assert!(states(layer, Graph::new("evaluate"), Mode::Evaluate).is_empty(), "{layer}");
        let without = layer.replace("0.5", "0");
        assert!(states(&without, Graph::training("train"), Mode::Train).is_empty(), "{without}");
    }
}

#[test]
fn pre_and_post_norm_differ() {
    let tokens = [[3, 1, 4, 1, 5, 9, 2, 6]];
    let [pre, post] = ["pre", "post"].map(|norm| logits(&small(&format!("norm: {norm}")), Precision::F32, &tokens));
    assert_ne!(pre, post);
}

/// JAX's recording of an encoder of two pre-norm blocks, whose attention has separate norms for queries and for keys
/// and values; then follow a norm, the mean over positions and a dense layer.
struct Encoder {
    npz: std::cell::RefCell<NpzReader<File>>,
}

impl Encoder {
    fn array(&self, key: &str) -> Vec<f32> {
        let array: ArrayD<f32> = self.npz.borrow_mut().by_name(key).unwrap();
        array.as_standard_layout().iter().copied().collect()
    }

    fn tokens(&self) -> Vec<i32> {
        let array: ArrayD<i32> = self.npz.borrow_mut().by_name("in42").unwrap();
        array.as_standard_layout().iter().copied().collect()
    }
}

/// The name of a variable here beside the number of JAX's argument.
fn argument_of(name: &str) -> usize {
    let attention = |first: usize, part: &str| {
        let order = ["key/bias", "key/kernel", "out/bias", "out/kernel", "query/bias", "query/kernel", "value/bias"];
        first + order.iter().position(|known| *known == part).unwrap_or(7)
    };
    let pair = |first: usize, part: &str| first + usize::from(matches!(part, "kernel" | "gamma"));
    let (layer, part) = name.split_once('/').unwrap();
    match layer {
        "tokens" => 10,
        "positions" => 41,
        "attention1" => attention(25, part),
        "attention2" => attention(33, part),
        "dense2" => pair(0, part),
        "dense1" => pair(2, part),
        "dense4" => pair(4, part),
        "dense3" => pair(6, part),
        "logits" => pair(8, part),
        // norm0 … norm6.
        norm => pair(11 + 2 * norm.strip_prefix("norm").unwrap().parse::<usize>().unwrap(), part),
    }
}

fn encoder(s: &Scope, tokens: &Tensor, dtype: DType) -> Tensor {
    let table = Embedding { input_dim: 200, output_dim: 64, dtype: Some(dtype), ..Embedding::default() };
    let x = embedding(s, tokens, "tokens", &table);
    let mut x = position_embedding(s, &x, "positions", &PositionEmbedding { max_length: 16, ..Default::default() });
    let config = LayerNorm::FLAX;
    let norm = |x: &Tensor, n: usize| layer_norm(s, x, &format!("norm{n}"), &config);
    let dense = |x: &Tensor, name: &str, units: i64| dense(s, x, name, &Dense { units, ..Dense::default() });
    for block in 0..2 {
        let (queries, memory) = (norm(&x, 3 * block), norm(&x, 3 * block + 1));
        let config = Attention { num_heads: 4, ..Attention::default() };
        x = &x + attention(s, &queries, &memory, &format!("attention{}", block + 1), &config);
        let hidden = dense(&norm(&x, 3 * block + 2), &format!("dense{}", 2 * block + 1), 256);
        x = &x + dense(&gelu(&hidden, Gelu::Tanh), &format!("dense{}", 2 * block + 2), 64);
    }
    dense(&norm(&x, 6).mean(&[1]), "logits", 10)
}

/// Ours in f64 is the exact answer, to which JAX's f32 is near: a path from tokens to logits has, in each block, sums of
/// 64 (norm), 64 (query), 16 (scores), 16 (softmax), 16 (mix), 64 (out), 64 (norm), 64 and 256 (feed-forward) terms, and
/// after them 64, 16 and 64: 1,392 roundings of at most 2^-24 each of the values' size. Ours in f32 makes as many.
#[test]
fn flax_encoder_is_reproduced() {
    let path = format!("{}/tests/data/oracle_jax/encoder_forward.npz", env!("CARGO_MANIFEST_DIR"));
    let oracle = Encoder { npz: NpzReader::new(File::open(path).unwrap()).unwrap().into() };
    let recorded = oracle.array("out0");
    let size = recorded.iter().fold(0f32, |size, value| size.max(value.abs()));
    assert!(size > 0.1, "logits are too small to tell anything: {recorded:?}");
    for dtype in [DType::F64, DType::F32] {
        let g = Graph::new("encoder");
        let tokens = g.input("tokens ids", DType::S32, [4, 16]);
        let logits = encoder(&g.scope(), &tokens, dtype).cast(DType::F32);
        let program = g.finish(&[("logits", &logits)]).unwrap();
        assert_eq!(program.variables.len(), 42);
        let results = run::run(&program, |name| {
            if name == "tokens ids" {
                return Literal::from_elements(vec![4, 16], &oracle.tokens());
            }
            let values = oracle.array(&format!("in{}", argument_of(name)));
            match dtype {
                DType::F64 => f64s(&dims_of(&program, name), &values.into_iter().map(f64::from).collect::<Vec<_>>()),
                _ => Literal::from_elements(dims_of(&program, name), &values),
            }
        });
        let bound = 1392.0 * 2f32.powi(-24) * size;
        for (measured, recorded) in run::f32s(&results[0]).iter().zip(&recorded) {
            assert!((measured - recorded).abs() <= bound, "{dtype}: {measured}, recorded {recorded}, bound {bound}");
        }
    }
}

#[test]
fn wrong_operands_are_named() {
    let message = |queries: [i64; 3], memory: [i64; 3], config: Attention| {
        let g = Graph::new("attention");
        let (x, y) = (g.input("x", DType::F32, queries), g.input("y", DType::F32, memory));
        let out = attention(&g.scope(), &x, &y, "attention", &config);
        g.finish(&[("out", &out)]).unwrap_err().0.error.message
    };
    let heads = |num_heads| Attention { num_heads, ..Attention::default() };
    assert_eq!(message([2, 3, 4], [2, 3, 4], heads(3)), "4 features do not divide into 3 heads");
    assert_eq!(message([2, 3, 4], [2, 3, 4], heads(0)), "num_heads is 0, expected at least 1");
    assert_eq!(
        message([2, 3, 4], [1, 3, 4], heads(2)),
        "memory f32[1,3,4] does not fit queries f32[2,3,4], expected one batch and one dtype"
    );
    assert_eq!(
        message([2, 3, 4], [2, 5, 4], Attention { use_causal_mask: true, ..heads(2) }),
        "a causal mask wants as many queries as positions of memory, measured 3 and 5"
    );
    let wrong = |config: Attention| message([2, 3, 4], [2, 3, 4], config);
    let attention = |shared| Attention { num_key_value_heads: Some(shared), head_dim: Some(4), ..heads(4) };
    assert_eq!(
        wrong(attention(3)),
        "4 heads of queries do not divide into 3 of keys and values, expected as many for each"
    );
    assert_eq!(wrong(attention(0)), "num_key_value_heads is 0, expected at least 1");
    assert_eq!(wrong(Attention { head_dim: Some(0), ..attention(2) }), "head_dim is 0, expected at least 1");
    assert_eq!(
        wrong(Attention { remat: AttentionRemat::Values, ..attention(2) }),
        "remat is Values of attention without biases or with fewer heads of keys and values, expected Weights or Nothing"
    );
    let rotated = |head_dim, rope| wrong(Attention { head_dim: Some(head_dim), rope: Some(rope), ..attention(4) });
    assert_eq!(
        rotated(5, Rope::default()),
        "a head has 5 features, expected an even number: they are rotated in pairs"
    );
    let scaling = RopeScaling {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_position_embeddings: 8192,
    };
    let scaled = |scaling| rotated(4, Rope { scaling: Some(scaling), ..Rope::default() });
    assert_eq!(
        scaled(RopeScaling { high_freq_factor: 1.0, ..scaling }),
        "high is 1, expected a number above low, which is 1"
    );
    assert_eq!(scaled(RopeScaling { factor: 0.0, ..scaling }), "factor is 0, expected a number above 0");
    let max_wavelength = f64::INFINITY;
    assert_eq!(
        rotated(4, Rope { max_wavelength, scaling: None }),
        "max_wavelength is inf, expected a number of at least 1"
    );
}

/// The default configuration is what the example says.
#[test]
fn the_example_is_the_default() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/bert_base.yaml");
    let experiment = bf16scope::experiment::Experiment::read(&path).unwrap();
    assert_eq!(experiment.model, Model::Transformer(transformer::Config::default()));
}
